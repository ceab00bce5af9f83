"""Metrics: declared once with help, unit and the name of Kafka's equivalent; plain numbers on the hot path.

A service declares each metric once, in its module `metrics.py` (`REQUESTS = counter("hapax_requests_total", ...)`);
docs/metrics.md is generated from those modules. Recording a value adds to an attribute. Values that a process can look
up on demand (gauges, totals that it keeps anyway) are observed: read at each scrape, in steps between which the loop
runs other tasks.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeVar

if TYPE_CHECKING:
    from hapax.runtime.tls import TlsCertificates

Kind = Literal["counter", "gauge", "histogram"]

SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Bounds of a histogram of durations."""

_UNITS: Final = ("seconds", "bytes")
_SLICE_S: Final = 0.004
"""Seconds that a scrape may hold up the loop without a pause, plus the time of one step."""
_LINES: Final = 200
"""Lines of one step."""
_TEXTS_KEPT: Final = 20_000


# --- declared -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric as it stands in docs/metrics.md. Made by `counter`, `gauge` and `histogram`."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    unit: str = ""
    kafka: str = ""
    """The equivalent MBean of Kafka or metric of its clients."""
    bounds: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not self.name.startswith("hapax_") or (self.kind == "counter") != self.name.endswith("_total"):
            raise ValueError(f"{self.name}: names begin with hapax_, and those of counters alone end in _total")
        if self.unit in _UNITS and self.unit not in self.name.split("_"):
            raise ValueError(f"{self.name}: says {self.unit} in its name")
        if not self.help.endswith("."):
            raise ValueError(f"{self.name}: the help is a sentence")


def counter(name: str, help: str, labels: Sequence[str] = (), *, unit: str = "", kafka: str = "") -> Metric:
    """Only grows."""
    return Metric(name, "counter", help, tuple(labels), unit, kafka)


def gauge(name: str, help: str, labels: Sequence[str] = (), *, unit: str = "", kafka: str = "") -> Metric:
    """Goes up and down."""
    return Metric(name, "gauge", help, tuple(labels), unit, kafka)


def histogram(
    name: str, help: str, labels: Sequence[str] = (), *, unit: str = "seconds", kafka: str = "",
    bounds: Sequence[float] = SECONDS,
) -> Metric:
    """Counts observations by upper bounds. With labels, a child appears with its first observation."""
    return Metric(name, "histogram", help, tuple(labels), unit, kafka, tuple(bounds))


def declared_in(module: object) -> list[Metric]:
    """In the order of the source."""
    return [each for each in vars(module).values() if isinstance(each, Metric)]


# --- counted ------------------------------------------------------------------------------------------------------


class Counter:
    """The hot path is `counter.value += 1`."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0

    def add(self, amount: float = 1) -> None:
        self.value += amount


class Gauge:
    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0

    def set(self, value: float) -> None:
        self.value = value


class Histogram:
    """Cumulative only when scraped."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total: float = 0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


M = TypeVar("M", Counter, Gauge, Histogram)


class Family(Generic[M]):
    """A metric's children by label values. `family.labels("Produce")`: keep the child where the path is hot."""

    __slots__ = ("_make", "children", "metric")

    def __init__(self, metric: Metric, make: Callable[[], M]) -> None:
        self.metric = metric
        self.children: dict[tuple[str, ...], M] = {}
        self._make: Callable[[], M] = make

    def labels(self, *values: str) -> M:
        child = self.children.get(values)
        if child is None:
            if len(values) != len(self.metric.labels):
                raise ValueError(f"{self.metric.name}: labels are {self.metric.labels}")
            child = self.children[values] = self._make()
        return child


Sample = tuple[tuple[str, ...], float]
"""Label values and the number."""
Sweep = Callable[[Sequence[list[Sample]]], Iterator[None]]
"""Fills one list of samples for each metric; yields wherever it may be interrupted."""


class Metrics:
    """All metrics of a process, made when a service is composed."""

    def __init__(self, stopwatch: Callable[[], float] = time.perf_counter) -> None:
        self.stopwatch = stopwatch
        """Seconds, fine enough for a request's time. Nothing is decided by it."""
        self.certificates: dict[str, TlsCertificates] = {}
        """Of the process's ports, by the name that metrics show."""
        self._families: dict[str, Family[Any]] = {}
        self._observed: dict[str, tuple[Metric, Callable[[], Iterable[Sample]]]] = {}
        self._swept: list[tuple[tuple[Metric, ...], Sweep]] = []
        self._names: set[str] = set()
        self._texts: dict[tuple[str, ...], dict[tuple[str, ...], str]] = {}
        """Label names -> their values -> the text of both: six metrics of a partition share it, scrape for scrape."""

    # --- what there is --------------------------------------------------------------------------------------------

    def counter(self, metric: Metric) -> Counter:
        return self.counters(metric).labels()

    def counters(self, metric: Metric) -> Family[Counter]:
        return self._add(metric, "counter", Counter)

    def gauge(self, metric: Metric) -> Gauge:
        return self.gauges(metric).labels()

    def gauges(self, metric: Metric) -> Family[Gauge]:
        return self._add(metric, "gauge", Gauge)

    def histogram(self, metric: Metric) -> Histogram:
        return self.histograms(metric).labels()

    def histograms(self, metric: Metric) -> Family[Histogram]:
        return self._add(metric, "histogram", lambda: Histogram(metric.bounds))

    def observe(self, metric: Metric, read: Callable[[], float | Iterable[Sample]]) -> None:
        """Read when it is scraped: a number, or one for each combination of label values."""

        def samples() -> Iterable[Sample]:
            found = read()
            return [((), found)] if isinstance(found, (int, float)) else found

        self._name(metric)
        self._observed[metric.name] = metric, samples

    def sweep(self, metrics: Sequence[Metric], visit: Sweep) -> None:
        """Metrics that one walk over many things finds together."""
        for metric in metrics:
            self._name(metric)
        self._swept.append((tuple(metrics), visit))

    def _add(self, metric: Metric, kind: Kind, make: Callable[[], M]) -> Family[M]:
        if metric.kind != kind:
            raise ValueError(f"{metric.name} is a {metric.kind}")
        self._name(metric)
        family: Family[M] = Family(metric, make)
        self._families[metric.name] = family
        return family

    def _name(self, metric: Metric) -> None:
        if metric.name in self._names:
            raise ValueError(f"metric {metric.name} exists")
        self._names.add(metric.name)

    # --- what they say --------------------------------------------------------------------------------------------

    def values(self) -> dict[str, float]:
        """Every number by its name and labels, as in the text; of a histogram the count and the sum."""
        found: dict[str, float] = {}
        for line in self.render().decode().splitlines():
            name, _, number = line.rpartition(" ")
            if line[0] != "#" and "_bucket{" not in name:
                found[name] = float(number)
        return found

    def render(self) -> bytes:
        """Prometheus' text format, in one go."""
        return b"".join(self._pieces())

    async def render_gently(self) -> bytes:
        """The same, while the loop turns: what is read early may be a little older than what is read late."""
        pieces: list[bytes] = []
        began = time.perf_counter()
        for piece in self._pieces():
            if piece:
                pieces.append(piece)
            if time.perf_counter() - began > _SLICE_S:
                await asyncio.sleep(0)
                began = time.perf_counter()
        return b"".join(pieces)

    def _pieces(self) -> Iterator[bytes]:
        """Empty ones say only that this is a moment to let others go on."""
        for metric, samples in self._samples():
            if samples is None:
                yield b""
            else:
                texts = self._texts.setdefault(metric.labels, {})
                if len(texts) > _TEXTS_KEPT:
                    texts.clear()
                yield from _lines(metric, samples, texts)
        for family in list(self._families.values()):
            if family.metric.kind == "histogram":
                yield _buckets(family)

    def _samples(self) -> Iterator[tuple[Metric, Iterable[Sample] | None]]:
        """All but the histograms; None: a moment to let others go on."""
        for family in list(self._families.values()):
            if family.metric.kind != "histogram":
                yield family.metric, [(values, child.value) for values, child in family.children.items()]
        for metric, read in list(self._observed.values()):
            yield metric, read()
        for metrics, visit in self._swept:
            found: list[list[Sample]] = [[] for _ in metrics]
            for _ in visit(found):
                yield metrics[0], None
            for metric, samples in zip(metrics, found, strict=True):
                yield metric, samples

    def collect(self) -> Iterable[Any]:
        """Called by `prometheus_client`, where this is registered with a registry of it."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        for metric, samples in self._samples():
            if samples is None:
                continue
            kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
            numbers = kind(metric.name, metric.help, labels=metric.labels)
            for values, number in samples:
                numbers.add_metric(values, number)
            yield numbers
        for family in self._families.values():
            if family.metric.kind == "histogram":
                histograms = HistogramMetricFamily(family.metric.name, family.metric.help, labels=family.metric.labels)
                for values, child in family.children.items():
                    histograms.add_metric(values, _cumulative(child), child.total)
                yield histograms


# --- text ---------------------------------------------------------------------------------------------------------


def _head(metric: Metric) -> str:
    text = metric.help.replace("\\", "\\\\").replace("\n", "\\n")
    return f"# HELP {metric.name} {text}\n# TYPE {metric.name} {metric.kind}\n"


def _lines(
    metric: Metric, samples: Iterable[Sample], texts: dict[tuple[str, ...], str]
) -> Iterator[bytes]:
    name, labels = metric.name, metric.labels
    lines = [_head(metric)]
    for values, number in samples:
        text = texts.get(values)
        if text is None:
            text = texts[values] = _label_text(labels, values)
        lines.append(f"{name}{text} {number if type(number) is int else _number(number)}\n")
        if len(lines) >= _LINES:
            yield "".join(lines).encode()
            lines.clear()
    yield "".join(lines).encode()


def _buckets(family: Family[Histogram]) -> bytes:
    name, labels = family.metric.name, family.metric.labels
    lines = [_head(family.metric)]
    for values, child in list(family.children.items()):
        if labels and not any(child.counts):
            continue
        for bound, count in (buckets := _cumulative(child)):
            lines.append(f"{name}_bucket{_label_text((*labels, 'le'), (*values, bound))} {count}\n")
        text = _label_text(labels, values)
        lines.append(f"{name}_count{text} {buckets[-1][1]}\n{name}_sum{text} {_number(child.total)}\n")
    return "".join(lines).encode()


def _cumulative(histogram: Histogram) -> list[tuple[str, float]]:
    buckets: list[tuple[str, float]] = []
    count = 0
    for bound, number in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
        count += number
        buckets.append(("+Inf" if bound == float("inf") else repr(float(bound)), count))
    return buckets


def _label_text(names: Sequence[str], values: Sequence[str]) -> str:
    if not names:
        return ""
    return "{" + ",".join([f'{name}="{_escaped(value)}"' for name, value in zip(names, values, strict=True)]) + "}"


def _escaped(value: str) -> str:
    if "\\" in value or '"' in value or "\n" in value:
        return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return value


def _number(value: float) -> str:
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "+Inf" if value > 0 else "-Inf"
    return str(value + 0)  # a truth counts as 1


# --- docs/metrics.md ----------------------------------------------------------------------------------------------


def page(sections: Iterable[tuple[str, str, Iterable[Metric]]]) -> str:
    """docs/metrics.md. Sections: title, a sentence, metrics."""
    lines = [
        "# Metrics",
        "",
        "Generated by `make docs` from the modules `metrics.py` of the services; do not edit. Every process answers",
        "`GET /metrics` on its `http.listen` address in Prometheus' text format. Beside each stands the MBean of",
        "Kafka, or the metric of its clients, that says the same; a rate there is a counter here, for `rate()`. Of a",
        "histogram Prometheus sees `_bucket`, `_count` and `_sum`; its children appear with their first observation.",
        "Which of them to watch and what to do about them: [operations](operations.md#monitoring).",
    ]
    for title, intro, metrics in sections:
        lines += ["", f"## {title}", "", intro, "", "| metric | kind | unit | labels | meaning | Kafka |",
                  "|---|---|---|---|---|---|"]
        for metric in metrics:
            labels = ", ".join(f"`{label}`" for label in metric.labels)
            kafka = f"`{metric.kafka}`" if metric.kafka else ""
            lines.append(
                f"| `{metric.name}` | {metric.kind} | {metric.unit} | {labels} | {metric.help} | {kafka} |")
    return "\n".join(lines) + "\n"
