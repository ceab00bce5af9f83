"""The tables of docs/guarantees.md, from what `bench.guarantees` has measured."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, TypeAlias

from bench.guarantees_load import ROWS, Flow, Times

BEGIN: Final = "<!-- measured: written by `make bench-guarantees` -->"
END: Final = "<!-- end of measured -->"
GENERATOR_BOUND: Final = 0.8
"""From this share of a processor on, the thread that calls the producer limits the rate."""
_TITLES: Final = {
    "1_page_cache": "One broker, acknowledged from the page cache",
    "1_synced": "One broker, every append synced",
    "3_page_cache": "Three brokers, acknowledged from the page cache",
    "3_synced": "Three brokers, every append synced on every replica",
}
_SETTINGS: Final = {
    "1_page_cache": "`durability=page-cache`; Kafka: its default",
    "1_synced": "`durability=fsync`, the default; Kafka: `log.flush.interval.messages=1`",
    "3_page_cache": "`durability=page-cache`, replication 3, `min.insync.replicas=2`; Kafka: the same, without flushes",
    "3_synced": (
        "`durability=fsync`, replication 3, `min.insync.replicas=2`; Kafka: the same, `log.flush.interval.messages=1`"),
}
_SYSTEMS: Final = {"hapax": "Hapax", "kafka": "Kafka"}


@dataclass(frozen=True, slots=True)
class Cell:
    """What one system did in one row: an entry of each list for each turn, or of the samples for each operation."""

    rates: tuple[float, ...] = ()
    """Records per second."""
    cpu: tuple[float, ...] = ()
    """CPU of all servers: seconds for a million records, or milliseconds for a transaction."""
    generator: tuple[float, ...] = ()
    """Share of a processor that the thread which calls the producer took."""
    lost: tuple[int, ...] = ()
    latency_ms: tuple[float, ...] = ()
    delay_ms: tuple[float, ...] = ()
    transactions: bool = False

    @classmethod
    def of(cls, flow: Flow, cpu_s: float, times: Times) -> Cell:
        per = cpu_s * 1e3 / flow.transactions if flow.transactions else cpu_s * 1e6 / max(1, flow.records)
        return cls(
            (flow.records / flow.seconds,), (per,), (flow.generator,), (flow.lost,), tuple(times.latency_ms),
            tuple(times.delay_ms), bool(flow.transactions))

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Cell:
        return cls(**{name: tuple(each) if isinstance(each, list) else each for name, each in value.items()})

    def as_json(self) -> dict[str, Any]:
        """Six digits that count of each number, or the file would have megabytes."""
        return {
            name: [float(f"{each:.6g}") for each in value] if isinstance(value, tuple) else value
            for name, value in asdict(self).items()}

    def with_turn(self, other: Cell) -> Cell:
        return Cell(
            self.rates + other.rates, self.cpu + other.cpu, self.generator + other.generator, self.lost + other.lost,
            self.latency_ms + other.latency_ms, self.delay_ms + other.delay_ms, other.transactions)

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)

    @property
    def generator_bound(self) -> bool:
        return statistics.median(self.generator) >= GENERATOR_BOUND

    def figures(self) -> dict[str, tuple[float, str]]:
        """Name -> (value, unit)."""
        cpu_unit = "ms of the servers' CPU a transaction" if self.transactions else "CPU-s of the servers/1e6 records"
        found = {
            "rate": (self.rate, "records/s"), "cpu": (statistics.median(self.cpu), cpu_unit),
            "generator": (statistics.median(self.generator), "of a processor"),
        }
        if sum(self.lost):
            found["lost"] = (sum(self.lost), "records")
        for name, samples in (("latency", self.latency_ms), ("delay", self.delay_ms)):
            if samples:
                found[f"{name}_p50"] = (quantile(samples, 0.5), "ms")
                found[f"{name}_p99"] = (quantile(samples, 0.99), "ms")
        return found

    def __str__(self) -> str:
        return ", ".join(f"{name} {value:.4g}" for name, (value, _) in self.figures().items())


Results: TypeAlias = dict[str, dict[str, Cell]]
"""Name of a row -> `hapax` or `kafka` -> what it did."""


def quantile(samples: Sequence[float], part: float) -> float:
    ordered = sorted(samples)
    return ordered[min(int(len(ordered) * part), len(ordered) - 1)]


def tables(run: Mapping[str, Any]) -> str:
    """`run`: as in build/guarantees.json."""
    about = run["conditions"]
    lines = [
        f"`{about['command']}` at commit {about['commit']}, {run['minutes']} minutes on {about['cores']} cores (load"
        f" {about['load']} when it began), Apache Kafka {about['kafka']}, librdkafka {about['librdkafka']}."]
    for name, rows in run["tables"].items():
        lines += ["", f"#### {_TITLES[name]}", "", f"{_SETTINGS[name]}.", "", *_table(rows)]
    return "\n".join(lines)


def with_tables(page: str, text: str) -> str:
    """Raises ValueError if the page lacks the markers."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page needs the lines {BEGIN!r} and {END!r}")
    return f"{before}{BEGIN}\n\n{text}\n\n{END}{after}"


def _table(rows: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[str]:
    labels = {row.name: row.label for row in ROWS}
    lines = [
        "| producer | records/s: Hapax | Kafka | Hapax over Kafka | latency p50, p99: Hapax | Kafka |"
        " reader's delay p50, p99: Hapax | Kafka | servers' CPU: Hapax | Kafka |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row, systems in rows.items():
        cells = {system: Cell.from_json(systems[system]) if system in systems else None for system in _SYSTEMS}
        ours, theirs = cells["hapax"], cells["kafka"]
        ratio = f"{ours.rate / theirs.rate:.2f} times" if ours is not None and theirs is not None else "–"
        columns = [
            labels[row], *(_rate(cell) for cell in cells.values()), ratio,
            *(_pair(cell.latency_ms) if cell else "–" for cell in cells.values()),
            *(_pair(cell.delay_ms) if cell else "–" for cell in cells.values()),
            *(_cpu(cell) for cell in cells.values()),
        ]
        lines.append(f"| {' | '.join(columns)} |")
    return lines


def _rate(cell: Cell | None) -> str:
    if cell is None:
        return "–"
    lost = f" ({sum(cell.lost):,.0f} lost)" if sum(cell.lost) else ""
    return f"{_short(cell.rate)}{' †' if cell.generator_bound else ''}{lost}"


def _pair(samples: Sequence[float]) -> str:
    return f"{_short(quantile(samples, 0.5))}, {_short(quantile(samples, 0.99))} ms" if samples else "–"


def _cpu(cell: Cell | None) -> str:
    if cell is None:
        return "–"
    value = _short(statistics.median(cell.cpu))
    return f"{value} ms a transaction" if cell.transactions else f"{value} s a million"


def _short(value: float) -> str:
    """Three digits that count, `12,300` and `0.45`."""
    rounded = float(f"{value:.3g}")
    return f"{rounded:,.0f}" if rounded >= 100 else f"{rounded:g}"
