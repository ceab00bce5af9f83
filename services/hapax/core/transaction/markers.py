"""From a decision to its markers, and from their answers to completion (rules 2, 6, 9 and 10)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from hapax.core.errors import ErrorCode, Refusal
from hapax.core.transaction.record import PartitionSet, Transaction, TransactionPartition
from hapax.core.transaction.requests import (
    AbortHanging,
    Decision,
    HangingAborted,
    Marker,
    MarkerResult,
    SendMarkers,
)
from hapax.core.transaction.states import State
from hapax.core.transaction.steps import Context
from hapax.core.types import NO_PRODUCER_EPOCH, NO_SERIAL, ProducerEpoch, ProducerId, TopicIdPartition

Unmarked = dict[ProducerId, dict[TopicIdPartition, None]]
"""What still waits for its marker, in the order of sending (a set would forget it)."""

class Undecided(Refusal):
    """The transaction is alive at its coordinator, so a broker leaves it alone."""

    def __init__(self, transaction: Transaction) -> None:
        super().__init__(
            ErrorCode.CONCURRENT_TRANSACTIONS,
            f"the transaction is {transaction.state.kafka_name} and will be decided by its coordinator")
        self.no_limit = transaction.has_no_limit
        """It is under two-phase commit, and may be open for as long as it takes."""


_DONE = frozenset({ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_ID})
"""A partition whose topic is gone has nothing left to decide (rule 10). Anything else is asked again, without end."""


def markers_of(transaction: Transaction) -> SendMarkers:
    """All markers of a decided transaction. A marker carries the epoch that the producer uses next."""
    commit = transaction.state is State.PREPARE_COMMIT
    markers = []
    listed: dict[PartitionSet, tuple[TransactionPartition, ...]] = {}
    if transaction.partitions:
        markers.append(
            Marker(transaction.producer_id, transaction.producer_epoch, commit, transaction.partitions)
        )
    for member in transaction.members:
        raised = ProducerEpoch(member.producer_epoch + 1)
        for outcome, partitions in ((True, member.won), (False, member.partitions - member.won)):
            if partitions:
                if partitions not in listed:  # members often write to the same partitions
                    listed[partitions] = tuple(partitions)
                markers.append(Marker(member.producer_id, raised, outcome, listed[partitions]))
    return SendMarkers(
        transaction.transactional_id, transaction.serial, transaction.client_version, tuple(markers)
    )


def unmarked_by(markers: SendMarkers) -> Unmarked:
    unmarked: Unmarked = {}
    ids: dict[int, dict[TopicIdPartition, None]] = {}
    for marker in markers.markers:
        if id(marker.partitions) not in ids:  # `markers_of` shares one tuple between members
            ids[id(marker.partitions)] = dict.fromkeys([partition.by_id for partition in marker.partitions])
        unmarked.setdefault(marker.producer_id, {}).update(ids[id(marker.partitions)])
    return unmarked


def settle(unmarked: Unmarked, results: Iterable[MarkerResult]) -> set[tuple[ProducerId, TopicIdPartition]]:
    """Removes from `unmarked` each marker that is stored or no longer needed. Returns those that failed and still wait.

    Unknown, late and repeated answers have no effect.
    """
    failed = set()
    for result in results:
        key = (result.producer_id, result.partition)
        waiting = unmarked.get(result.producer_id, {})
        if result.error in _DONE:
            waiting.pop(result.partition, None)
            failed.discard(key)
            if not waiting:
                unmarked.pop(result.producer_id, None)
        elif result.partition in waiting:
            failed.add(key)
    return failed


def only(markers: SendMarkers, wanted: set[tuple[ProducerId, TopicIdPartition]]) -> SendMarkers | None:
    """The markers that are in `wanted`; None where there are none."""
    kept = []
    for marker in markers.markers:
        partitions = tuple(each for each in marker.partitions if (marker.producer_id, each.by_id) in wanted)
        if partitions:
            kept.append(replace(marker, partitions=partitions))
    return replace(markers, markers=tuple(kept)) if kept else None


def abort_hanging(transaction: Transaction | None, request: AbortHanging, _: Context) -> Decision:
    """A broker reports that a transaction has been open on a partition for too long.

    A transaction that the coordinator has open or is deciding is left alone: its own end marks the partition. Any other
    is aborted by a conditional marker, which decides only what the broker saw: a transaction that began at that offset
    and has had no record since. A version-1 producer's next transaction has the same epoch, so its records continue the
    one that hangs, and they must not be aborted between this decision and its marker. Where the next transaction is
    open on the partition, the broker may have seen its records, so it is left alone too.
    """
    known_epoch = NO_PRODUCER_EPOCH
    if transaction is not None:
        known_epoch = _known_epoch(transaction, request.producer_id)
        past = 0 < request.serial < transaction.serial and request.producer_epoch < known_epoch
        if not past and _includes(transaction, request.producer_id, request.partition):
            raise Undecided(transaction)
    epoch = ProducerEpoch(max(known_epoch, request.producer_epoch))
    marker = Marker(request.producer_id, epoch, False, (request.partition,))
    send = SendMarkers(
        request.transactional_id, NO_SERIAL, 1, (marker,), first_offset=request.first_offset,
        last_offset=request.last_offset,
    )
    return Decision(None, HangingAborted(), confirm=True, effects=(send,))


def _includes(transaction: Transaction, producer_id: ProducerId, partition: TransactionPartition) -> bool:
    if not transaction.is_open and not transaction.is_decided:
        return False
    member = transaction.member(producer_id)
    if member is not None:
        return partition in member.partitions
    return producer_id == transaction.producer_id and partition in transaction.partitions


def _known_epoch(transaction: Transaction, producer_id: ProducerId) -> ProducerEpoch:
    if producer_id == transaction.producer_id:
        return transaction.producer_epoch
    for member in transaction.members:
        if member.producer_id == producer_id:
            return member.producer_epoch
    for idle in transaction.idle_members:
        if idle.producer_id == producer_id:
            return idle.producer_epoch
    return NO_PRODUCER_EPOCH
