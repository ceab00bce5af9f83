"""Which offset of the target stands for an offset of the source.

A *run* is a sequence of records that follow each other on both sides: (offset in the source, offset in the target,
number of records). Markers and aborted records of the source are in no run, and neither are the target's markers. Runs
are added in order, and cover everything that was copied since the first of them.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

_RUN: Final = struct.Struct(">qqi")
_HEAD: Final = struct.Struct(">h")
_VERSION: Final = 1
MOST_RUNS: Final = 200_000
"""Of one partition; the oldest ones are forgotten."""


class Run(NamedTuple):
    source: int
    target: int
    records: int


class Runs:
    def __init__(self) -> None:
        self._sources = array("q")
        self._targets = array("q")
        self._counts = array("q")

    def __len__(self) -> int:
        return len(self._sources)

    def __iter__(self) -> Iterator[Run]:
        return map(Run, self._sources, self._targets, self._counts)

    def add(self, run: Run) -> None:
        if self._sources and run.source < self._sources[-1] + self._counts[-1]:
            return  # read again
        if self._sources and self._sources[-1] + self._counts[-1] == run.source and (
                self._targets[-1] + self._counts[-1] == run.target):
            self._counts[-1] += run.records
        else:
            self._sources.append(run.source)
            self._targets.append(run.target)
            self._counts.append(run.records)
        if len(self._sources) > MOST_RUNS:
            half = MOST_RUNS // 2
            for each in (self._sources, self._targets, self._counts):
                del each[:half]

    def translate(self, offset: int, position: int) -> int | None:
        """The offset in the target of the first record at `offset` or later. `position`: up to where the source was
        copied. None: it is not copied yet, or was copied before the first run that is known."""
        if offset > position or not self._sources or offset < self._sources[0]:
            return None
        found = bisect_right(self._sources, offset) - 1
        into = offset - self._sources[found]
        if into < self._counts[found]:
            return self._targets[found] + into
        if found + 1 < len(self._sources):
            return self._targets[found + 1]
        return self._targets[found] + self._counts[found]


def encode(runs: Iterable[Run]) -> bytes:
    """The value of a record of the copy's own topic."""
    return _HEAD.pack(_VERSION) + b"".join(_RUN.pack(*each) for each in runs)


def decode(value: bytes) -> Iterator[Run]:
    """Raises ValueError."""
    if len(value) < _HEAD.size or _HEAD.unpack_from(value)[0] != _VERSION or (len(value) - _HEAD.size) % _RUN.size:
        raise ValueError("not the runs of a copy, or those of a later version")
    for at in range(_HEAD.size, len(value), _RUN.size):
        yield Run(*_RUN.unpack_from(value, at))
