"""Reads and writes subscriptions and assignments of the consumer protocol that is embedded in the classic one.

The coordinator treats both as opaque bytes, with three exceptions. The topics that a group reads decide which offsets
may expire or be deleted. A description of a group shows the partitions of its members. And a group that changes its
protocol takes its members' subscriptions and partitions with it (`migration.py`).

Sources: Kafka's ConsumerProtocolSubscription and ConsumerProtocolAssignment schemas, versions 0 to 3. Each version
appends fields to the one before it.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterable
from typing import Final, NamedTuple

PROTOCOL_TYPE: Final = "consumer"
NEWEST_VERSION: Final = 3
UNKNOWN_GENERATION: Final = -1

_OWNED_SINCE: Final = 1
_GENERATION_SINCE: Final = 2
_RACK_SINCE: Final = 3

_SHORT: Final = struct.Struct(">h")
_INT: Final = struct.Struct(">i")

_Partitions = tuple[tuple[str, int], ...]
"""(topic, partition)."""


class Subscription(NamedTuple):
    version: int
    topics: tuple[str, ...]
    """In the order in which the bytes list them."""
    user_data: bytes = b""
    owned: _Partitions = ()
    """The partitions that the member still owns when it joins. Empty before version 1: such members give up everything
    first."""
    generation: int = UNKNOWN_GENERATION
    """The generation in which it owned them; -1 if the member does not report or know one."""
    rack_id: str | None = None


class Assignment(NamedTuple):
    partitions: _Partitions
    user_data: bytes = b""


class _Reader:
    """Raises struct.error, ValueError or UnicodeDecodeError if the bytes end too early or are invalid."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, kind: struct.Struct) -> int:
        (found,) = kind.unpack_from(self._data, self._at)
        self._at += kind.size
        return int(found)

    def version(self) -> int:
        found = self.number(_SHORT)
        if found < 0:
            raise ValueError(f"version {found}")
        return found

    def count(self, least: int) -> int:
        """The number of elements that follow, each of which has at least `least` bytes."""
        found = self.number(_INT)
        if not 0 <= found <= (len(self._data) - self._at) // least:
            raise ValueError(f"{found} elements")
        return found

    def text(self) -> str:
        return self._bytes(self.number(_SHORT)).decode()

    def nullable_text(self) -> str | None:
        length = self.number(_SHORT)
        return None if length < 0 else self._bytes(length).decode()

    def nullable_bytes(self) -> bytes:
        """Null is returned as empty bytes."""
        length = self.number(_INT)
        return b"" if length < 0 else self._bytes(length)

    def partitions(self) -> _Partitions:
        found: list[tuple[str, int]] = []
        for _ in range(self.count(_SHORT.size + _INT.size)):
            topic = self.text()
            found += [(topic, self.number(_INT)) for _ in range(self.count(_INT.size))]
        return tuple(found)

    def _bytes(self, length: int) -> bytes:
        end = self._at + length
        if length < 0 or end > len(self._data):
            raise ValueError(f"{length} bytes")
        found, self._at = self._data[self._at : end], end
        return found


_BAD: Final = (struct.error, ValueError)  # a UnicodeDecodeError is a ValueError


def read_subscription(metadata: bytes) -> Subscription | None:
    """None if the bytes are not a subscription of their version. A version above the newest known one is read as that
    one."""
    reader = _Reader(metadata)
    try:
        version = reader.version()
        topics = tuple(reader.text() for _ in range(reader.count(_SHORT.size)))
        user_data = reader.nullable_bytes()
        owned = reader.partitions() if version >= _OWNED_SINCE else ()
        generation = reader.number(_INT) if version >= _GENERATION_SINCE else UNKNOWN_GENERATION
        rack_id = reader.nullable_text() if version >= _RACK_SINCE else None
    except _BAD:
        return None
    return Subscription(version, topics, user_data, owned, generation, rack_id or None)


def read_assignment(assignment: bytes) -> Assignment | None:
    """None if the bytes are not an assignment. An empty assignment may have no bytes at all."""
    if not assignment:
        return Assignment(())
    reader = _Reader(assignment)
    try:
        reader.version()
        return Assignment(reader.partitions(), reader.nullable_bytes())
    except _BAD:
        return None


def write_assignment(partitions: Iterable[tuple[str, int]], version: int) -> bytes:
    """`version` is that of the member's subscription. All known versions have the same layout."""
    by_topic: dict[str, list[int]] = defaultdict(list)
    for topic, partition in sorted(partitions):
        by_topic[topic].append(partition)
    parts = [_SHORT.pack(min(version, NEWEST_VERSION)), _INT.pack(len(by_topic))]
    for topic, numbers in by_topic.items():
        name = topic.encode()
        parts += [_SHORT.pack(len(name)), name, _INT.pack(len(numbers)), *map(_INT.pack, numbers)]
    parts.append(_INT.pack(-1))  # no user data
    return b"".join(parts)


def assigned_partitions(assignment: bytes) -> tuple[tuple[str, int], ...] | None:
    """(topic, partition) of an assignment, for descriptions. What follows them may be missing. None if the bytes are
    not an assignment."""
    if not assignment:
        return ()
    reader = _Reader(assignment)
    try:
        reader.version()
        return reader.partitions()
    except _BAD:
        return None


def subscribed_topics(metadata: bytes) -> tuple[str, ...] | None:
    """Topic names in the order of the subscription, whatever follows them; None if the bytes are not a subscription."""
    reader = _Reader(metadata)
    try:
        reader.version()
        return tuple(reader.text() for _ in range(reader.count(_SHORT.size)))
    except _BAD:
        return None
