"""One partition of a client producer: its batches in order, their sequences, and what to do when one is lost.

The rules that everything here follows from:

1. Batches are sent in order; at most `window` (five) are numbered and unsettled, because the leader remembers
   five batches of a producer and recognises a repetition only among those.
2. The first batch of a numbering (a new producer id or epoch) goes alone until the leader has confirmed it: a
   leader without state for the producer accepts any sequence, so a second batch could overtake a refused first.
3. After a failure nothing is sent until the outcome of everything in flight is known; then the first batch goes
   alone until it is settled; then the others follow in order.
4. A batch that has an attempt of unknown outcome ("doubtful") never gets another number: a copy may still sit in
   a closed connection's buffers, and under two numbers it would be stored twice.
5. A batch that is given up leaves a gap, or does not: if it was stored after all, the next one is accepted. The
   next one is therefore tried under its own number; only the leader's 'out of order' proves the gap.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from hapax.core.types import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    Millis,
    ProducerEpoch,
    ProducerId,
    Sequence,
    TopicPartition,
)

WINDOW: Final = 5
FIRST: Final = Sequence(0)
AT_ONCE: Final = Millis(0)
_SEQUENCES: Final = 1 << 31


class Identity(NamedTuple):
    """Under whose name batches are numbered. `NO_IDENTITY` numbers nothing (enable.idempotence=false)."""

    producer_id: ProducerId
    epoch: ProducerEpoch


NO_IDENTITY: Final = Identity(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


def advance(sequence: Sequence, count: int) -> Sequence:
    """Sequences are int32 and wrap from 2^31-1 to 0."""
    return Sequence((sequence + count) % _SEQUENCES)


@dataclass(slots=True, eq=False)
class Batch:
    """A closed batch of records. `content` is the caller's and never looked at here."""

    partition: TopicPartition
    records: int
    deadline: Millis
    content: object = None
    identity: Identity = NO_IDENTITY
    sequence: Sequence = NO_SEQUENCE
    attempts: int = 0
    in_flight: bool = False
    doubtful: bool = False
    """Some attempt's outcome is unknown. Never cleared (rule 4)."""
    reported: bool = False
    """Its owner has been told that its time is up; an answer may still settle the sequence."""


@dataclass(slots=True)
class PartitionQueue:
    """`numbered`: sent at least once, or to be resent; in sequence order. `fresh`: not numbered yet."""

    identity: Identity = NO_IDENTITY
    next_sequence: Sequence = FIRST
    numbered: deque[Batch] = field(default_factory=deque)
    fresh: deque[Batch] = field(default_factory=deque)
    established: bool = False
    """The leader has confirmed a batch of this numbering (rule 2)."""
    recovering: bool = False
    """A failure happened; the first batch goes alone (rule 3)."""
    unresolved: bool = False
    """A numbered batch was given up and may have been stored (rule 5). Nothing new is numbered meanwhile."""
    gap: bool = False
    """The leader has said that a batch is missing: renumber under a new epoch once nothing is in flight."""
    not_before: Millis = AT_ONCE

    @property
    def in_flight(self) -> int:
        return sum(batch.in_flight for batch in self.numbered)

    @property
    def idle(self) -> bool:
        return not self.numbered and not self.fresh

    def wants(self, window: int = WINDOW) -> bool:
        """Whether a new batch would be sent at once, so that closing one early (linger) is worth it. With nothing left
        to resend it wants the next, whatever has failed: no other caller asks for it."""
        if self.fresh or self.unresolved or self.gap:
            return False
        return len(self.numbered) < (window if self.established and not self.recovering else 1)

    def take(self, now: Millis, identity: Identity, window: int) -> list[Batch]:
        """Marks and returns what may be sent now, in order. `identity`: the producer's current one."""
        if self.gap or now < self.not_before:
            return []
        if not self.recovering and self.established and self.identity == identity:
            out = [batch for batch in self.numbered if not batch.in_flight]
            while self.fresh and len(self.numbered) < window and not self.unresolved:
                out.append(self._number())
        elif self.in_flight:
            return []
        elif self.numbered:
            # Old numbers are settled under their own identity before a new one begins.
            out = [self.numbered[0]] if self.recovering else list(self.numbered)
        elif self.fresh and not self.unresolved:
            if self.identity != identity:
                self.restart(identity)
            self.recovering = False
            out = [self._number()]
        else:
            return []
        for batch in out:
            batch.in_flight = True
            batch.attempts += 1
        return out

    def restart(self, identity: Identity, next_sequence: Sequence = FIRST) -> None:
        """Begins a numbering. Numbered batches must have been settled, given up or `unnumber`ed."""
        assert not self.numbered, "a numbering begins only when the old one is settled"
        self.identity = identity
        self.next_sequence = next_sequence
        self.established = identity == NO_IDENTITY
        self.recovering = self.unresolved = self.gap = False

    def settled(self, batch: Batch) -> None:
        """The leader has it."""
        was_first = self.numbered[0] is batch
        batch.in_flight = False
        self.numbered.remove(batch)
        self.established = True
        # Accepted in order: whatever was given up before it had been stored as well (rule 5).
        self.unresolved = False
        if was_first:
            self.recovering = False

    def failed(self, batch: Batch, not_before: Millis) -> None:
        """This attempt failed; the batch keeps its place and number."""
        batch.in_flight = False
        self.recovering = True
        self.not_before = max(self.not_before, not_before)

    def give_up(self, batch: Batch) -> None:
        """Takes a batch out that is not in flight. Closes the gap where it is certain that none was stored."""
        if batch in self.fresh:
            self.fresh.remove(batch)
            return
        place = self.numbered.index(batch)
        followers = [self.numbered[i] for i in range(place + 1, len(self.numbered))]
        self.numbered.remove(batch)
        if batch.identity == NO_IDENTITY:
            return
        if batch.doubtful or any(later.in_flight or later.doubtful for later in followers):
            self.unresolved = True
            self.recovering = True
            return
        self.next_sequence = batch.sequence
        for later in followers:
            self._assign(later)

    def unnumber(self) -> list[Batch]:
        """Before a new numbering: doubtful batches are returned, given up (rule 4); the others are fresh again."""
        assert not self.in_flight, "outcomes of batches in flight are awaited first"
        lost = [batch for batch in self.numbered if batch.doubtful]
        for batch in reversed(self.numbered):
            if not batch.doubtful:
                batch.sequence, batch.identity = NO_SEQUENCE, NO_IDENTITY
                self.fresh.appendleft(batch)
        self.numbered.clear()
        return lost

    def _number(self) -> Batch:
        batch = self.fresh.popleft()
        if self.identity != NO_IDENTITY:
            self._assign(batch)
        self.numbered.append(batch)
        return batch

    def _assign(self, batch: Batch) -> None:
        batch.identity = self.identity
        batch.sequence = self.next_sequence
        self.next_sequence = advance(self.next_sequence, batch.records)
