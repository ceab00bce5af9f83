"""Checks that a process's memory, file handles and tasks stay level, by the slope of samples taken from outside."""

from __future__ import annotations

import csv
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil

WARM_UP_S: Final = 600.0
"""The first seconds of a process's life, which are not judged."""
LEAST_S: Final = 600.0
"""A process is judged only if it lived this many seconds after the warm-up."""
MOST_PER_10_MIN: Final = 0.01
"""Growth that still counts as level, as a share of the mean."""
_WHOLES: Final = 1.0
"""Growth of handles or tasks in ten minutes that still counts as level, in whole ones."""
_MINUTE_S: Final = 60.0
_TASKS: Final = re.compile(r"^hapax_process_tasks (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Sample:
    second: float
    """Since the process began to be watched."""
    resident: int
    """Bytes."""
    handles: int
    tasks: int | None
    """asyncio tasks; None if the process did not report them."""


@dataclass
class Watched:
    """One life of a process; a restart begins another one."""

    name: str
    pid: int
    began: float
    samples: list[Sample] = field(default_factory=list)


def sample(watched: Watched, now: float, http_port: int, tls: ssl.SSLContext | None = None) -> None:
    """Adds a sample if the process still lives."""
    try:
        process = psutil.Process(watched.pid)
        resident, handles = process.memory_info().rss, process.num_fds()
    except psutil.Error:
        return
    watched.samples.append(Sample(now - watched.began, resident, handles, _tasks(http_port, tls)))


def _tasks(http_port: int, tls: ssl.SSLContext | None) -> int | None:
    scheme = "http" if tls is None else "https"
    try:
        with urllib.request.urlopen(f"{scheme}://127.0.0.1:{http_port}/metrics", timeout=5, context=tls) as answer:
            found = _TASKS.search(answer.read().decode())
    except (urllib.error.URLError, OSError):
        return None
    return int(float(found[1])) if found else None


def write_samples(lives: Iterable[Watched], path: Path) -> None:
    """Writes all samples as CSV, one line each."""
    with path.open("w", encoding="utf-8", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(("process", "pid", "second", "resident_bytes", "handles", "tasks"))
        for life in lives:
            lines.writerows(
                (life.name, life.pid, f"{each.second:.1f}", each.resident, each.handles, each.tasks)
                for each in life.samples)


def slope(points: Sequence[tuple[float, float]]) -> float:
    """The least-squares slope of (second, value) points, as a share of their mean per ten minutes."""
    if len(points) < 2:
        return 0.0
    middle = sum(x for x, _ in points) / len(points)
    mean = sum(y for _, y in points) / len(points)
    spread = sum((x - middle) ** 2 for x, _ in points)
    if not spread or not mean:
        return 0.0
    return sum((x - middle) * (y - mean) for x, y in points) / spread * 600 / mean


@dataclass(frozen=True, slots=True)
class Slope:
    """The slope of one figure in one life of a process."""

    share: float
    """Growth in ten minutes, as a share of the figure's mean."""
    most: float
    """The largest share that still counts as level."""

    @property
    def level(self) -> bool:
        return self.share <= self.most


def slopes(watched: Watched, warm_up_s: float = WARM_UP_S, least_s: float = LEAST_S) -> dict[str, Slope] | None:
    """Slopes of `resident`, `handles` and `tasks`; None for a life too short to be judged."""
    counted = [each for each in watched.samples if each.second >= warm_up_s]
    if not counted or counted[-1].second - counted[0].second < least_s:
        return None
    told = [each for each in counted if each.tasks is not None]
    return {
        "resident": Slope(slope([(each.second, each.resident) for each in counted]), MOST_PER_10_MIN),
        "handles": _of_wholes([(each.second, each.handles) for each in counted]),
        "tasks": _of_wholes([(each.second, each.tasks or 0) for each in told]),
    }


def _of_wholes(points: Sequence[tuple[float, float]]) -> Slope:
    """The slope of each minute's minimum. Handles and tasks that come and go do not raise it; leaked ones do."""
    minutes: dict[int, list[float]] = {}
    for second, value in points:
        minutes.setdefault(int(second // _MINUTE_S), []).append(value)
    full = max(map(len, minutes.values()), default=0) / 2  # a minute with few samples may have missed its minimum
    floor = [(minute * _MINUTE_S, min(values)) for minute, values in minutes.items() if len(values) >= full]
    total = sum(value for _, value in floor)
    return Slope(slope(floor), max(MOST_PER_10_MIN, _WHOLES * len(floor) / total if total else 0.0))


def steady(judged: Mapping[str, Mapping[str, Slope]]) -> bool:
    """True if all judged figures (process -> figure -> slope) are level. False if no process could be judged."""
    return bool(judged) and all(each.level for figures in judged.values() for each in figures.values())
