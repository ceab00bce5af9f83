"""Compacted topics: the newest value of each key stays, a deleted key stays deleted, and a time lookup finds its
record."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class KeyWrite(NamedTuple):
    """One write of a key, or a deletion if the value is None. Values are unique. Writes of one key follow each other.
    """

    key: str
    value: str | None
    timestamp: int
    offset: int = -1
    """-1: it is unknown whether the value exists."""


class Reading(NamedTuple):
    """What one reader found between the beginning and `end`."""

    end: int
    sees_deletions: bool
    """It was faster than the retention of tombstones. Otherwise it may have read a value and missed its deletion."""
    records: Sequence[tuple[int, str, str | None]]
    """(offset, key, value) in the order of reading."""


def newest_of_each_key(writes: Sequence[KeyWrite], reading: Reading, known: int | None = None) -> list[str]:
    """Compares a reading with the acknowledged writes below its end. `known`: how many of the writes had begun when the
    end was requested. Later ones may be there or not."""
    acknowledged: dict[str, KeyWrite] = {}
    doubtful: set[str] = set()
    """Keys with a write that may be at the reading's end or beyond. Meanwhile compaction may remove earlier writes of
    these keys."""
    for number, write in enumerate(writes):
        if write.offset < 0 or write.offset >= reading.end or (known is not None and number >= known):
            doubtful.add(write.key)
        elif write.offset > acknowledged.get(write.key, write).offset or write.key not in acknowledged:
            acknowledged[write.key] = write
    last: dict[str, tuple[int, str | None]] = {}
    found, before = [], -1
    for offset, key, value in reading.records:
        if offset <= before:
            found.append(f"read-backwards: offset {offset} after {before}")
        before = offset
        last[key] = (offset, value)
    for key, newest in acknowledged.items():
        offset, value = last.get(key, (-1, None))
        if offset > newest.offset or (offset == newest.offset and value == newest.value):
            continue
        if offset == newest.offset:
            found.append(f"other-value: key {key} has {value!r} at offset {offset}, not {newest.value!r}")
        elif key in doubtful:
            continue
        elif newest.value is None:
            if value is not None and reading.sees_deletions:
                found.append(
                    f"deleted-key-came-back: key {key}, deleted at offset {newest.offset}, has {value!r} of offset "
                    f"{offset} in a reading to {reading.end}")
        elif offset >= 0:
            found.append(
                f"older-value: key {key} has {value!r} of offset {offset}, not {newest.value!r} of "
                f"{newest.offset}, in a reading to {reading.end}")
        else:
            found.append(
                f"lost-key: key {key} has no value in a reading to {reading.end}; {newest.value!r} was written at "
                f"{newest.offset}")
    return found


class Current(NamedTuple):
    """A record that was certainly there at the time of a lookup: read before it, and not overwritten after it."""

    offset: int
    timestamp: int


def by_time(there: Iterable[Current], timestamp: int, answer: int | None) -> list[str]:
    """`answer`: the first offset at or after `timestamp`. None: the answer was that there is none."""
    first = min((one.offset for one in there if one.timestamp >= timestamp), default=None)
    if first is None or (answer is not None and answer <= first):
        return []
    said = "none" if answer is None else f"offset {answer}"
    return [f"time-skips: the first record at or after {timestamp} is said to be {said}, and offset {first} is there"]
