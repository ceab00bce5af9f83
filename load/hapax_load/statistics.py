"""What locust writes down once a second, for the report."""

from __future__ import annotations

import csv
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_TOTAL: Final = "Aggregated"


@dataclass
class Course:
    """Answers and latencies of one kind of request over time; points are (seconds since the start, value)."""

    rate: list[tuple[float, float]] = field(default_factory=list)
    """Answers per second."""
    median: list[tuple[float, float]] = field(default_factory=list)
    """ms."""
    p99: list[tuple[float, float]] = field(default_factory=list)
    failures: int = 0
    requests: int = 0


def read_history(path: Path, began: float) -> dict[str, Course]:
    """Name -> course, of locust's `--csv-full-history`. `began`: Unix time of second 0."""
    courses: dict[str, Course] = defaultdict(Course)
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["Name"] == _TOTAL:
                continue
            second, course = float(row["Timestamp"]) - began, courses[row["Name"]]
            course.rate.append((second, float(row["Requests/s"])))
            course.requests, course.failures = int(row["Total Request Count"]), int(row["Total Failure Count"])
            if row["50%"] != "N/A":
                course.median.append((second, float(row["50%"])))
                course.p99.append((second, float(row["99%"])))
    return dict(courses)
