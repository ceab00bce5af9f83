"""Idempotent batches that were refused because this broker did not lead their partition yet.

A client may learn of a leader before that broker does. The first of its batches in flight is refused then, and the
second one comes when the broker leads. A producer without state may begin at any sequence: without a note of the first,
the second would be taken for the producer's beginning, and the first, sent again, would be out of order for good.
"""

from __future__ import annotations

from typing import Final, Protocol

from hapax.core.batch import BatchHeader
from hapax.core.partition.machine import PartitionMachine
from hapax.core.sequence import distance
from hapax.core.types import PartitionIndex, TopicIdPartition
from hapax.runtime.ports import Clock

MAX_PRODUCERS: Final = 1000
"""Notes kept in all. The oldest goes first."""
KEPT_MS: Final = 120_000
"""As long as clients try to deliver a batch by default (delivery.timeout.ms)."""


class NewlyLed(Protocol):
    topic: str
    id: TopicIdPartition
    index: PartitionIndex
    machine: PartitionMachine


class EarlyWrites:
    __slots__ = ("_clock", "_count", "_notes")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._notes: dict[tuple[str | bytes, int], dict[int, tuple[int, BatchHeader]]] = {}
        """(topic's name or id, partition) -> producer id -> (monotonic ms, its newest epoch's first refused batch)."""
        self._count = 0

    def note(self, topic: str | bytes, partition: int, header: BatchHeader) -> None:
        """`topic`: as the client names it, which need not exist."""
        notes = self._notes.setdefault((topic, partition), {})
        now_ms = self._clock.monotonic_ms()
        known = notes.get(header.producer_id)
        if known is None:
            self._count += 1
        else:
            since, first = known
            follows = (first.producer_epoch, distance(first.base_sequence, header.base_sequence)) >= (
                header.producer_epoch, 0)
            if follows and now_ms - since <= KEPT_MS:
                return
        notes[header.producer_id] = now_ms, header
        while self._count > MAX_PRODUCERS:
            key = next(iter(self._notes))
            oldest = self._notes[key]
            del oldest[next(iter(oldest))]
            self._count -= 1
            if not oldest:
                del self._notes[key]

    def hand_over(self, replica: NewlyLed) -> None:
        """The partition is led here from now on."""
        now_ms = self._clock.monotonic_ms()
        for topic in (replica.topic, replica.id.topic_id):
            notes = self._notes.pop((topic, replica.index), {})
            self._count -= len(notes)
            for since, header in notes.values():
                if now_ms - since <= KEPT_MS:
                    replica.machine.note_refused(header)
