"""AddPartitionsToTxn, AddOffsetsToTxn and VerifyPartitions: the partitions of a transaction.

A partition is registered, durably, before its first write. So the coordinator that finishes the transaction marks every
partition that may hold a record of it.
"""

from __future__ import annotations

from dataclasses import replace

from hapax.core.errors import ErrorCode, Refusal
from hapax.core.transaction.deltas import delta_of
from hapax.core.transaction.fencing import current, fenced, stale_epoch_code
from hapax.core.transaction.record import NO_PARTITIONS, OFFSETS_TOPIC, PartitionSet, Transaction, TransactionPartition
from hapax.core.transaction.requests import (
    AddPartitionsToTxn,
    Decision,
    Held,
    PartitionResult,
    PartitionResults,
    VerifyPartitions,
)
from hapax.core.transaction.single_writer import refuse_multi_writer
from hapax.core.transaction.states import TABLE, Event, Step
from hapax.core.transaction.steps import Context, begin_own, by_policy
from hapax.core.transaction.two_phase import check_no_limit
from hapax.core.types import ProducerId, TopicId

AddRequest = AddPartitionsToTxn | VerifyPartitions
Registered = tuple[TransactionPartition, ...] | PartitionSet


def add_partitions_to_txn(
    transaction: Transaction | None, request: AddPartitionsToTxn, context: Context
) -> Decision | Held:
    """A client registers partitions (version 1), or the group whose offsets it will commit."""
    code = stale_epoch_code("AddPartitionsToTxn", request.caller.api_version)
    transaction = current(transaction, request.producer_id, request.producer_epoch, code)
    return _add(transaction, request, context, client_version=1)


def verify_partitions(
    transaction: Transaction | None, request: VerifyPartitions, context: Context
) -> Decision | Held:
    """A broker asks before a producer's first write to a partition, a group shard before a producer's first offsets.

    With `add` (version 2) the question registers the partitions. An answer without a record has to be confirmed (rule
    12).
    """
    if transaction is not None and _is_decided_there(transaction, request):
        raise Refusal(
            ErrorCode.NOT_COORDINATOR,
            f"a partition has the marker of transaction {request.after_serial}, but the last transaction here is "
            f"{transaction.serial}: another coordinator has taken over",
        )
    if transaction is not None and _is_members_id(transaction, request.producer_id):
        return _verify_member(transaction, request, context)
    transaction = current(
        transaction, request.producer_id, request.producer_epoch, ErrorCode.PRODUCER_FENCED
    )
    _refuse_kept(transaction)
    if request.add:
        return _add(transaction, request, context, client_version=2)
    if 0 <= request.serial < transaction.serial:
        # The question was held while the last transaction was completed, and the next one has begun since. Its client
        # writes to a partition only after adding it, so the earlier write belongs to the last transaction, although
        # both have the same epoch.
        return Decision(None, _verified(transaction, request, ()), confirm=True)
    if TABLE[transaction.state, Event.VERIFY] is Step.HOLD:
        return context.hold(request.caller, "the last transaction is being completed")
    return Decision(None, _verified(transaction, request, transaction.partitions), confirm=True)


def _is_decided_there(transaction: Transaction, request: VerifyPartitions) -> bool:
    """Whether the partition has a marker that this shard does not know. An open transaction is newer than every decided
    one. A decided one may be the one of the newest marker."""
    newest_decided = transaction.serial - transaction.is_open
    return request.after_serial > newest_decided


def _add(
    transaction: Transaction, request: AddRequest, context: Context, *, client_version: int
) -> Decision | Held:
    refuse_multi_writer(transaction)
    _refuse_kept(transaction)
    refused = _refused_partitions(transaction, request, transaction.partitions, context)
    if refused is not None:
        return Decision(None, refused)
    if TABLE[transaction.state, Event.ADD] is Step.HOLD:
        return context.hold(request.caller, "the last transaction is being completed")
    if not transaction.is_open:
        if transaction.two_phase:  # it was allowed when the producer was initialised, and may not be any more
            check_no_limit(context)
        record = begin_own(
            transaction, context, client_version=client_version, partitions=_union((), request.partitions))
        return Decision(record, _all_registered(record, request))
    if set(request.partitions) <= set(transaction.partitions):
        return Decision(None, _all_registered(transaction, request), confirm=True)
    record = replace(
        transaction,
        partitions=_union(transaction.partitions, request.partitions),
        client_version=client_version,
        elapsed_ms=context.elapsed_ms,
        last_update_ms=context.now.wall,
    )
    return Decision(record, _all_registered(record, request))


def _refuse_kept(transaction: Transaction) -> None:
    """A producer that has kept its predecessor's transaction can only end it (KIP-939). Raises Refusal."""
    if transaction.is_open and transaction.is_kept:
        raise Refusal(
            ErrorCode.INVALID_TXN_STATE,
            "the transaction was kept for its outcome: it takes no more records, only a commit or an abort",
        )


# --- members of a multi-writer transaction ------------------------------------------------------------------------


def _is_members_id(transaction: Transaction, producer_id: ProducerId) -> bool:
    return transaction.member(producer_id) is not None or any(
        idle.producer_id == producer_id for idle in transaction.idle_members
    )


def _verify_member(transaction: Transaction, request: VerifyPartitions, context: Context) -> Decision | Held:
    """A member's late write does not wait for the next transaction: after its own is decided, the write cannot become
    valid. While a commit counts its winners' records, the write waits for the result."""
    member = transaction.member(request.producer_id)
    if member is None or member.producer_epoch != request.producer_epoch or not transaction.is_open:
        raise fenced(transaction, request.producer_id, request.producer_epoch, ErrorCode.PRODUCER_FENCED)
    if context.checking:
        return context.hold(request.caller, "the records of a commit's winners are being counted")
    refused = _refused_partitions(transaction, request, member.partitions, context)
    if refused is not None:
        return Decision(None, refused)
    if context.is_under_way(member.producer_id):
        return context.hold(request.caller, "partitions of this member are being registered")
    wanted = PartitionSet.of(request.partitions)
    if not request.add or wanted <= member.partitions:
        return Decision(None, _verified(transaction, request, member.partitions), confirm=True)
    # One record registers the partitions of the member's other waiting questions too.
    wanted |= context.waiting.get(member.producer_id, NO_PARTITIONS)
    record = delta_of(
        transaction, context.elapsed_ms, context.now.wall,
        member=replace(member, partitions=member.partitions | wanted),
    )
    return Decision(record, _all_registered(transaction, request))


# --- results ------------------------------------------------------------------------------------------------------


def _refused_partitions(
    transaction: Transaction, request: AddRequest, registered: Registered, context: Context
) -> PartitionResults | None:
    """One bad partition refuses the whole request: bad ones get the reason, the others OPERATION_NOT_ATTEMPTED.

    A topic that is not allowed gets TOPIC_AUTHORIZATION_FAILED, after which Kafka's clients abort the transaction and
    can begin the next one. TRANSACTIONAL_ID_AUTHORIZATION_FAILED would end the producer. A partition that is already
    part of the open transaction stays part of it after a change of the policy, because it holds records.
    """
    topics = {each.topic for each in request.partitions}
    if not request.unknown and all(topic == OFFSETS_TOPIC or context.policy.allows(topic) for topic in topics):
        return None
    bad = [
        PartitionResult(topic, partition, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        for topic, partition in request.unknown
    ]
    policy = context.policy
    others = []
    for each in request.partitions:
        topic, _, partition = each
        if policy.allows(topic) or topic == OFFSETS_TOPIC or (transaction.is_open and each in registered):
            others.append(PartitionResult(topic, partition, ErrorCode.OPERATION_NOT_ATTEMPTED))
        else:
            reason = f"{transaction.transactional_id} may not write to {topic}{by_policy(context)}"
            bad.append(PartitionResult(topic, partition, ErrorCode.TOPIC_AUTHORIZATION_FAILED, reason))
    return PartitionResults(transaction.serial, (*bad, *others)) if bad else None


def _all_registered(transaction: Transaction, request: AddRequest) -> PartitionResults:
    return PartitionResults(
        transaction.serial,
        tuple(PartitionResult(topic, partition, ErrorCode.NONE) for topic, _, partition in request.partitions),
    )


def _verified(
    transaction: Transaction, request: VerifyPartitions, registered: Registered
) -> PartitionResults:
    reason = "the partition was not added to the transaction"
    results = [
        PartitionResult(each.topic, each.partition, ErrorCode.NONE)
        if each in registered
        else PartitionResult(each.topic, each.partition, ErrorCode.TRANSACTION_ABORTABLE, reason)
        for each in request.partitions
    ]
    results += [PartitionResult(*each, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) for each in request.unknown]
    return PartitionResults(transaction.serial, tuple(results))


def _union(
    first: tuple[TransactionPartition, ...], second: tuple[TransactionPartition, ...]
) -> tuple[TransactionPartition, ...]:
    """The union, grouped by topic as in the log, so that a replayed transaction equals the live one."""
    topics: dict[tuple[str, TopicId], dict[TransactionPartition, None]] = {}
    for partition in (*first, *second):
        topics.setdefault((partition.topic, partition.topic_id), {})[partition] = None
    return tuple(partition for partitions in topics.values() for partition in partitions)
