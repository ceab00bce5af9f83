"""Two interchangeable partitions: of a state and the one with their names exchanged, one is explored.

A state is written as rows of small numbers under both namings, and the smaller hash stands for both. Two states that
are treated as one are equal except for the names, because a row represents its content. A mirror image that is not
recognised only costs time.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from hapax_explore.canonical import freeze

Net = Sequence[tuple[str, int, tuple[int, ...]]]


class Mirror:
    """Exchanges two names wherever they occur. `names`: the components of the composition, by position."""

    def __init__(self, one: str, two: str, names: Sequence[str]) -> None:
        self._one, self._two = one, two
        self._bytes = {name.encode().ljust(16, b"\0"): other.encode().ljust(16, b"\0")
                       for name, other in ((one, two), (two, one))}
        self.places = [names.index(self._text(name)) for name in names]
        """For each component: the position of its mirror image."""
        self._numbers: dict[Hashable, int] = {}

    def _text(self, text: str) -> str:
        if self._one not in text and self._two not in text:
            return text
        return text.replace(self._one, "\0").replace(self._two, self._one).replace("\0", self._two)

    def both(self, frozen: Hashable) -> tuple[int, int]:
        """The numbers of a frozen value and of its mirror image."""
        return self._number(self._image(frozen, False)), self._number(self._image(frozen, True))

    def _number(self, value: Hashable) -> int:
        return self._numbers.setdefault(value, len(self._numbers))

    def both_of_message(self, body: tuple[Any, ...]) -> tuple[int, int]:
        return self.both(freeze(body))

    def _image(self, value: Any, mirrored: bool) -> Any:
        if isinstance(value, str):
            return self._text(value) if mirrored else value
        if isinstance(value, bytes):
            return self._bytes.get(value, value) if mirrored else value
        if isinstance(value, frozenset):
            return frozenset(self._image(each, mirrored) for each in value)
        if not isinstance(value, tuple):
            return value
        parts = tuple([self._image(each, mirrored) for each in value])
        if len(parts) == 2 and parts[0] == "dict" and any(self._names(key) for key, _ in parts[1]):
            return "dict", tuple(sorted(parts[1], key=repr))
        if len(parts) > 1 and self._lists_partitions(parts):
            return tuple(sorted(parts, key=repr))
        return parts

    def _lists_partitions(self, parts: tuple[Any, ...]) -> bool:
        """Whether the parts are values for each partition, and their order only says which one came first: a plan's
        records, a transaction's partitions, the recipients of messages."""
        if all(isinstance(each, str) for each in parts):
            return self._one in parts and self._two in parts
        return all(isinstance(each, tuple) and len(each) in (2, 3) and self._names(each[:2]) for each in parts)

    def _names(self, key: Any) -> bool:
        if isinstance(key, str):
            return self._one in key or self._two in key
        if isinstance(key, bytes):
            return key in self._bytes
        return isinstance(key, tuple) and any(self._names(each) for each in key)

    def net(self, value: Net, messages: Sequence[tuple[int, int]]) -> tuple[int, int]:
        """The numbers of the messages in flight. `messages` has those of each message."""
        plain = tuple(sorted(
            (channel, slot, self._queue(channel, [messages[each][0] for each in queue]))
            for channel, slot, queue in value))
        image = tuple(sorted(
            (self._text(channel), self.places[slot], self._queue(channel, [messages[each][1] for each in queue]))
            for channel, slot, queue in value))
        return self._number(("net", plain)), self._number(("net", image))

    @staticmethod
    def _queue(channel: str, messages: list[int]) -> tuple[int, ...]:
        return tuple(messages) if channel else tuple(sorted(messages))
