"""The coordinator's answers to Kafka's calls: finds the shard, turns names into topic ids, and asks the shard.

The modules in `hapax.kafka.api` decode the calls and encode the answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from hapax.codec.metadata import INTERNAL_TOPICS, OFFSETS_TOPIC
from hapax.coordinator.id_pattern import IdPattern
from hapax.coordinator.shard import SupersededConnection
from hapax.coordinator.shards import Shards
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.group.offsets import NO_TOPIC_ID, CommitRequest, OffsetCommit, TxnOffsetCommit
from hapax.core.transaction.machine import Answer, TransactionShard
from hapax.core.transaction.record import Transaction, TransactionPartition
from hapax.core.transaction.requests import Caller, Reply, Request
from hapax.core.types import Millis, Now, PartitionIndex, TopicPartition
from hapax.kafka.api import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    describe_transactions,
    end_txn,
    init_producer_id,
    list_transactions,
    offset_commit,
    offset_fetch,
    txn_offset_commit,
)
from hapax.kafka.api.list_transactions import Filters
from hapax.kafka.api.offset_fetch import GroupAsked, OffsetAnswer
from hapax.kafka.table import ApiTable, CloseConnection, RequestContext
from hapax.runtime.cluster import ClusterView
from hapax.runtime.ports import Clock
from hapax.runtime.producer_ids import ProducerIds

TXN_OFFSET_COMMIT_OF_VERSION_2: Final = 5
TRANSACTION_ABORTABLE_SINCE: Final = 4
"""Version of TxnOffsetCommit from which clients know the code; older clients get INVALID_TXN_STATE."""
GROUP_ID_NOT_FOUND_SINCE: Final = 9
"""Version of OffsetCommit from which clients know the code; older clients get ILLEGAL_GENERATION."""
TXN_GROUP_ID_NOT_FOUND_SINCE: Final = 6
"""The corresponding version of TxnOffsetCommit, which also applies to STALE_MEMBER_EPOCH."""

_Request = TypeVar("_Request", bound=Request)


class KafkaApi:
    def __init__(self, shards: Shards, view: ClusterView, clock: Clock, producer_ids: ProducerIds) -> None:
        self._shards = shards
        self._view = view
        self._clock = clock
        self._producer_ids = producer_ids

    def register(self, table: ApiTable) -> None:
        init_producer_id.register(table, self._producer_ids, self)
        for api in (
            add_partitions_to_txn, add_offsets_to_txn, end_txn, txn_offset_commit, offset_commit, offset_fetch,
            describe_transactions, list_transactions,
        ):
            api.register(table, self)

    # --- transactions ---------------------------------------------------------------------------------------------

    def caller(self, ctx: RequestContext) -> Caller:
        connection = ctx.connection
        return Caller(
            ctx.client_id or "", connection.peer, Millis(self._clock.monotonic_ms()), connection.serial,
            ctx.api_version, ctx.principal, ctx.api.name,
        )

    def resolve(
        self, partitions: Sequence[TopicPartition]
    ) -> tuple[tuple[TransactionPartition, ...], tuple[TopicPartition, ...]]:
        existing, unknown = [], []
        for partition in partitions:
            topic = self._view.topic(partition.topic)
            if topic is None or not 0 <= partition.partition < topic.partitions or partition.topic in INTERNAL_TOPICS:
                unknown.append(partition)
            else:
                existing.append(TransactionPartition(partition.topic, topic.topic_id, partition.partition))
        return tuple(existing), tuple(unknown)

    def offsets_partition(self, group_id: str) -> TransactionPartition:
        topic = self._view.topic(OFFSETS_TOPIC)
        if topic is None:
            raise Refusal(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the offsets topic does not exist yet")
        return TransactionPartition(OFFSETS_TOPIC, topic.topic_id, PartitionIndex(self._shards.group_of(group_id)))

    async def ask(self, decide: Callable[[TransactionShard, _Request, Now], Answer], request: _Request) -> Reply:
        """Passes a call to the transaction's shard. On a superseded connection there is no answer: the connection is
        closed (rule 4)."""
        try:
            return await self._shards.txn_shard(request.transactional_id).ask(decide, request)
        except SupersededConnection as superseded:
            raise CloseConnection(str(superseded)) from superseded

    # --- offsets --------------------------------------------------------------------------------------------------

    async def txn_offset_commit(self, ctx: RequestContext, request: TxnOffsetCommit) -> Sequence[ErrorCode]:
        if not request.group_id:
            raise Refusal(ErrorCode.INVALID_GROUP_ID)
        existing, codes = self._existing(request.offsets)
        version = 2 if ctx.api_version >= TXN_OFFSET_COMMIT_OF_VERSION_2 else 1
        shard = self._shards.group_shard(request.group_id)
        request = replace(request, offsets=tuple(existing.values()))
        try:
            answered = await shard.txn_offset_commit(request, ctx.connection.serial, version)
        except SupersededConnection as superseded:
            raise CloseConnection(str(superseded)) from superseded
        except Refusal as refusal:
            if refusal.code is ErrorCode.TRANSACTION_ABORTABLE and ctx.api_version < TRANSACTION_ABORTABLE_SINCE:
                raise Refusal(ErrorCode.INVALID_TXN_STATE, refusal.reason) from refusal
            raise _as_of_version(refusal, ctx.api_version, TXN_GROUP_ID_NOT_FOUND_SINCE) from refusal
        return _merged(codes, existing, answered)

    async def offset_commit(self, request: OffsetCommit) -> Sequence[ErrorCode]:
        shard = self._shards.group_shard(request.group_id)
        existing, codes = self._existing(request.offsets, by_id=request.version >= offset_commit.TOPIC_IDS_FROM)
        try:
            answered = await shard.offset_commit(replace(request, offsets=tuple(existing.values())))
        except SupersededConnection as superseded:
            raise CloseConnection(str(superseded)) from superseded
        except Refusal as refusal:
            raise _as_of_version(refusal, request.version, GROUP_ID_NOT_FOUND_SINCE) from refusal
        return _merged(codes, existing, answered)

    async def offset_fetch(self, group: GroupAsked, require_stable: bool) -> Sequence[OffsetAnswer]:
        shard = self._shards.group_shard(group.group_id)
        if group.partitions is None:
            found = await shard.offset_fetch(
                group.group_id, None, require_stable, group.member_id, group.member_epoch)
            asked = [found_.partition for found_ in found]
            unknown: dict[int, ErrorCode] = {}
        else:
            asked = []
            unknown = {}
            for number, wanted in enumerate(group.partitions):
                name = wanted.topic
                if group.by_id:
                    topic = self._view.topic_by_id(wanted.topic_id)
                    name = "" if topic is None else topic.name
                    if topic is None:
                        unknown[number] = ErrorCode.UNKNOWN_TOPIC_ID
                asked.append(TopicPartition(name, PartitionIndex(wanted.partition)))
            found = await shard.offset_fetch(
                group.group_id, asked, require_stable, group.member_id, group.member_epoch)
        answers = []
        for number, (partition, one) in enumerate(zip(asked, found, strict=True)):
            topic_id = group.partitions[number].topic_id if group.partitions is not None else NO_TOPIC_ID
            if group.by_id and group.partitions is None:
                topic = self._view.topic(partition.topic)
                if topic is None:
                    continue
                topic_id = topic.topic_id
            error = unknown.get(number, one.error)
            committed = one.committed if not error else None
            answers.append(OffsetAnswer(
                partition.topic, topic_id, partition.partition,
                committed.offset if committed else -1, committed.leader_epoch if committed else -1,
                committed.metadata if committed else "", error,
            ))
        return answers

    # --- describing -----------------------------------------------------------------------------------------------

    async def describe_transaction(self, transactional_id: str) -> Transaction:
        return await self._shards.txn_shard(transactional_id).describe(transactional_id)

    async def list_transactions(self, filters: Filters) -> Sequence[Transaction]:
        pattern = None if filters.pattern is None else IdPattern(filters.pattern)
        self._shards.check_owned("txn")
        shards = self._shards.txn_shards()
        try:  # tools decide on this list which producer to fence and which transaction hangs (rule 23)
            await asyncio.gather(*(shard.confirm() for shard in shards))
            for shard in shards:
                shard.check_serving()  # the shard may have been lost while others answered
        except Refusal as refusal:  # the only code after which clients list again
            raise Refusal(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, refusal.reason) from refusal
        return [
            transaction
            for shard in shards
            for transaction in shard.machine.list(
                shard.now(), filters.states, filters.producer_ids, filters.duration_ms
            )
            if pattern is None or pattern.matches(transaction.transactional_id)
        ]

    # --- names and ids --------------------------------------------------------------------------------------------

    def _existing(
        self, offsets: Sequence[CommitRequest], *, by_id: bool = False
    ) -> tuple[dict[int, CommitRequest], list[ErrorCode]]:
        """The offsets of partitions that exist, by their place in the request, and an error code for each place.

        `by_id`: the request names topics by id. The returned offsets have both the name and the id.
        """
        existing: dict[int, CommitRequest] = {}
        codes = []
        for number, offset in enumerate(offsets):
            index = offset.partition.partition
            topic = self._view.topic_by_id(offset.topic_id) if by_id else self._view.topic(offset.partition.topic)
            if topic is None:
                codes.append(ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            elif not 0 <= index < topic.partitions:
                codes.append(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            else:
                codes.append(ErrorCode.NONE)
                existing[number] = offset._replace(
                    partition=TopicPartition(topic.name, index), topic_id=topic.topic_id)
        return existing, codes


def _merged(
    codes: list[ErrorCode], existing: Mapping[int, CommitRequest], answered: Sequence[ErrorCode]
) -> list[ErrorCode]:
    for number, code in zip(existing, answered, strict=True):
        codes[number] = code
    return codes


def _as_of_version(refusal: Refusal, version: int, since: int) -> Refusal:
    """Replaces codes that clients of an older version do not know."""
    if version < since and refusal.code in (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.STALE_MEMBER_EPOCH):
        return Refusal(ErrorCode.ILLEGAL_GENERATION, refusal.reason)
    return refusal
