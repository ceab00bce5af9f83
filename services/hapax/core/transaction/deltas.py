"""Deltas: what members change of an open multi-writer transaction, without the whole of it being written each time.

A decision that concerns the whole transaction (it begins, it is decided) is one whole record, with every member. What
concerns one member only (it joins, it registers partitions) or the limit is a `Delta` under a key of its own, unless an
older release, which knows of none, wrote the last whole record: then there is another whole record first. Deltas of
different members commute, so any number of them may be under way to the log at once; what they will make of the
transaction is what the next decision starts from, and they stand in the log before it.

A delta says all that its member has, so a compacted log, which keeps the newest of each key in its place, gives the
same state back: whole records and deltas are applied in the order of the log, and a delta that does not belong to the
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
    """False: the delta is of an earlier transaction; a compacted log keeps it until its key is used again."""
    return (
        transaction is not None and transaction.is_open and transaction.is_multi_writer
        and transaction.serial == delta.serial
    )


def grown(transaction: Transaction, delta: Delta) -> Transaction:
    """The transaction with a delta that belongs to it."""
    if delta.member is not None:
        transaction = transaction.with_member(delta.member)
    return replace(
        transaction, elapsed_ms=delta.elapsed_ms, limit_ms=delta.limit_ms, last_update_ms=delta.last_update_ms
    )


def whole(transaction: Transaction, delta: Delta) -> Transaction:
    """What stands in the log instead of the delta where none may stand beside the last whole record."""
    return replace(grown(transaction, delta), takes_deltas=True)


class DeltasInFlight:
    """Deltas of one id that are being written, and what they will make of its transaction."""

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
        """False: it was not under way."""
        for place, each in enumerate(self._deltas):
            if each is delta:
                del self._deltas[place]
                return True
        return False

    def withdrawn(self, delta: Delta, durable: Transaction) -> None:
        """It will not be stored; `durable` is the transaction without any of those under way."""
        self.stored(delta)
        self.transaction = durable
        for each in self._deltas:
            self.transaction = grown(self.transaction, each)
