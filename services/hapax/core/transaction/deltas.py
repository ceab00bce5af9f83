"""Deltas: changes of one member of an open multi-writer transaction, written without the whole transaction.

A decision that concerns the whole transaction (it begins, it is decided) is one whole record with every member. A
change of one member (it joins, it registers partitions) or of the limit is a `Delta` under its own key. Where an older
release wrote the last whole record, another whole record comes first, because that release does not know deltas.

Deltas of different members commute, so any number of them may be on their way to the log at once. The next decision
starts from the transaction with all of them, and they precede its record in the log.

A delta holds everything that its member has. A compacted log keeps the newest record of each key in its place, so it
gives the same state back: whole records and deltas are applied in log order, and a delta that does not belong to the
transaction then open does nothing.
"""

from __future__ import annotations

from dataclasses import replace

from hapax.core.transaction.record import Delta, Member, Transaction
from hapax.core.types import Millis, ProducerId, TimestampMs


def delta_of(
    transaction: Transaction, elapsed_ms: Millis, wall: TimestampMs, *, member: Member | None = None,
    limit_ms: Millis | None = None,
) -> Delta:
    return Delta(
        transactional_id=transaction.transactional_id, serial=transaction.serial, elapsed_ms=elapsed_ms,
        limit_ms=transaction.limit_ms if limit_ms is None else limit_ms, last_update_ms=wall, member=member,
    )


def belongs(delta: Delta, transaction: Transaction | None) -> bool:
    """Whether the delta belongs to the open transaction. A compacted log keeps a delta of an earlier transaction until
    its key is used again."""
    return (
        transaction is not None and transaction.is_open and transaction.is_multi_writer
        and transaction.serial == delta.serial
    )


def grown(transaction: Transaction, delta: Delta) -> Transaction:
    """The transaction after a delta that belongs to it."""
    if delta.member is not None:
        transaction = transaction.with_member(delta.member)
    return replace(
        transaction, elapsed_ms=delta.elapsed_ms, limit_ms=delta.limit_ms, last_update_ms=delta.last_update_ms
    )


def whole(transaction: Transaction, delta: Delta) -> Transaction:
    """The whole record that is written instead of a delta, where an older release wrote the last whole record."""
    return replace(grown(transaction, delta), takes_deltas=True)


class DeltasInFlight:
    """Deltas of one id that are being written, and the transaction with all of them."""

    __slots__ = ("_deltas", "transaction")

    def __init__(self, transaction: Transaction) -> None:
        self.transaction = transaction
        self._deltas: list[Delta] = []

    def __bool__(self) -> bool:
        return bool(self._deltas)

    def add(self, delta: Delta) -> None:
        self._deltas.append(delta)
        self.transaction = grown(self.transaction, delta)

    def of_member(self, producer_id: ProducerId) -> bool:
        return any(each.member is not None and each.producer_id == producer_id for each in self._deltas)

    def stored(self, delta: Delta) -> bool:
        """Whether the delta was being written."""
        for place, each in enumerate(self._deltas):
            if each is delta:
                del self._deltas[place]
                return True
        return False

    def withdrawn(self, delta: Delta, durable: Transaction) -> None:
        """The delta will not be stored. `durable` is the transaction without any delta that is being written."""
        self.stored(delta)
        self.transaction = durable
        for each in self._deltas:
            self.transaction = grown(self.transaction, each)
