"""Batches that a restore sends in several parts, because they are larger than a call may be.

A broker holds them until the last part is there. What it holds is bounded: in size, because the caller says how large
the batches will be, and in time, because a restore that was given up says nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from hapax.core.errors import ErrorCode, Refusal
from hapax.core.types import TopicIdPartition

ABANDONED_MS: Final = 60_000
"""Parts are let go when no other part has come for this long. A restore sends one after the other; where it was only
slow, it is told to begin with the first part again."""


@dataclass(slots=True)
class _Held:
    size: int
    touched_ms: int
    parts: bytearray = field(default_factory=bytearray)


class ImportParts:
    """All unfinished batches of one broker. The times are of a clock that never goes back, in milliseconds."""

    def __init__(self) -> None:
        self._held: dict[TopicIdPartition, _Held] = {}

    @property
    def reserved(self) -> int:
        """Bytes that the unfinished batches will have together."""
        return sum(each.size for each in self._held.values())

    def add(
        self, partition: TopicIdPartition, name: str, part: bytearray, position: int, size: int, limit: int, now_ms: int
    ) -> bytearray:
        """All parts, if this is the last one, else nothing. A part that is there already, because its answer was lost
        or because two restores run, changes nothing. `size`: of all parts together; `limit`: of what a broker may hold;
        both in bytes. Raises Refusal."""
        end = position + len(part)
        if size > limit:
            raise Refusal(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"{name}: a batch of the backup has {size} bytes, and this broker takes at most {limit} "
                "(socket.request.max.bytes). Set that to at least what the backed-up cluster had, and run the restore "
                "again")
        if position < 0 or end > size:
            raise Refusal(
                ErrorCode.INVALID_REQUEST, f"{name}: a part has the bytes {position} to {end} of {size}")
        held = self._held.get(partition)
        if held is None or held.size != size:
            held = None
        if position > (0 if held is None else len(held.parts)):
            raise Refusal(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"{name}: the bytes before {position} of these batches are not here")
        held = held or self._reserve(partition, name, size, limit, now_ms)
        held.touched_ms = now_ms
        parts = held.parts
        if parts[position:end] != part:
            del parts[position:]
            parts += part
        if end < size:
            return bytearray()
        del self._held[partition]
        return parts

    def forget(self, partition: TopicIdPartition) -> None:
        """The partition is led elsewhere, where its batches are sent from the first part on."""
        self._held.pop(partition, None)

    def let_go(self, now_ms: int) -> None:
        """Drops what was abandoned."""
        for partition, held in list(self._held.items()):
            if held.touched_ms + ABANDONED_MS <= now_ms:
                del self._held[partition]

    def _reserve(self, partition: TopicIdPartition, name: str, size: int, limit: int, now_ms: int) -> _Held:
        """Reserves the whole size at once, so that no two batches wait for each other's room. Raises Refusal."""
        self._held.pop(partition, None)
        self.let_go(now_ms)
        if self.reserved + size > limit:
            raise Refusal(
                ErrorCode.THROTTLING_QUOTA_EXCEEDED,
                f"{name}: a batch of the backup has {size} bytes, and this broker is receiving others of "
                f"{self.reserved} bytes already; at most {limit} at a time (socket.request.max.bytes)")
        held = self._held[partition] = _Held(size, now_ms)
        return held
