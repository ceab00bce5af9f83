"""The subscription and the assignment that members of the classic protocol put into JoinGroup and SyncGroup.

The coordinator passes both on unchanged; the group's leader and the member read them. Layout: Kafka's
ConsumerProtocolSubscription (version 3) and ConsumerProtocolAssignment. Fields of later versions are not read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

VERSION: Final = 3
_SHORT: Final = struct.Struct(">h")
_INT: Final = struct.Struct(">i")

Pairs = frozenset[tuple[str, int]]
"""(topic, partition)."""


class Subscription(NamedTuple):
    topics: tuple[str, ...]
    owned: Pairs = frozenset()
    generation: int = -1
    """The generation of the assignment by which it owns these; -1 if not known."""


class BadSubscription(ValueError):
    """Another member's bytes are not a subscription or an assignment."""


def encode_subscription(subscription: Subscription) -> bytes:
    # The generation is written twice: in the field of version 2, and where the sticky assignors put it before that.
    return b"".join((
        _SHORT.pack(VERSION), _texts(subscription.topics), _INT.pack(4), _INT.pack(subscription.generation),
        _partitions(subscription.owned), _INT.pack(subscription.generation), _SHORT.pack(-1),
    ))


def encode_assignment(partitions: Iterable[tuple[str, int]]) -> bytes:
    return _SHORT.pack(VERSION) + _partitions(partitions) + _INT.pack(-1)


def decode_subscription(data: bytes) -> Subscription:
    """Raises BadSubscription."""
    reader = _Reader(data)
    version = reader.short()
    topics = tuple(reader.text() for _ in range(reader.count()))
    user_data = reader.bytes_or_none()
    owned = reader.partitions() if version >= 1 else frozenset()
    generation = -1
    if version >= 2:
        generation = reader.number()
    elif user_data is not None and len(user_data) == _INT.size:
        (generation,) = _INT.unpack(user_data)
    return Subscription(topics, owned, generation)


def decode_assignment(data: bytes) -> Pairs:
    """Raises BadSubscription. Empty bytes mean that the leader has left this member out."""
    if not data:
        return frozenset()
    reader = _Reader(data)
    reader.short()
    return reader.partitions()


def _text(text: str) -> bytes:
    encoded = text.encode()
    return _SHORT.pack(len(encoded)) + encoded


def _texts(texts: Iterable[str]) -> bytes:
    found = [_text(each) for each in texts]
    return _INT.pack(len(found)) + b"".join(found)


def _partitions(partitions: Iterable[tuple[str, int]]) -> bytes:
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        topics.setdefault(topic, []).append(partition)
    return _INT.pack(len(topics)) + b"".join(
        _text(topic) + struct.pack(f">i{len(numbers)}i", len(numbers), *numbers) for topic, numbers in topics.items())


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def short(self) -> int:
        return self._number(_SHORT)

    def number(self) -> int:
        return self._number(_INT)

    def count(self) -> int:
        found = self.number()
        if not 0 <= found <= len(self._data):
            raise BadSubscription(f"{found} entries in {len(self._data)} bytes")
        return found

    def text(self) -> str:
        try:
            return self._take(self.short()).decode()
        except UnicodeDecodeError as error:
            raise BadSubscription(str(error)) from None

    def bytes_or_none(self) -> bytes | None:
        size = self.number()
        return None if size < 0 else self._take(size)

    def partitions(self) -> Pairs:
        found: set[tuple[str, int]] = set()
        for _ in range(self.count()):
            topic = self.text()
            found.update((topic, self.number()) for _ in range(self.count()))
        return frozenset(found)

    def _number(self, layout: struct.Struct) -> int:
        try:
            (found,) = layout.unpack_from(self._data, self._at)
        except struct.error as error:
            raise BadSubscription(str(error)) from None
        self._at += layout.size
        return int(found)

    def _take(self, size: int) -> bytes:
        if size < 0 or self._at + size > len(self._data):
            raise BadSubscription("the bytes end early")
        self._at += size
        return self._data[self._at - size : self._at]
