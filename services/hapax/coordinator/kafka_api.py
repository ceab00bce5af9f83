"""The coordinator's answers to Kafka's calls: finds the shard, turns names into ids, and asks the shard."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from typing import Final

from hapax.codec.metadata import INTERNAL_TOPICS, OFFSETS_TOPIC
from hapax.coordinator.groups import OffsetsShard
from hapax.coordinator.id_pattern import IdPattern
from hapax.coordinator.shard import SupersededConnection
from hapax.coordinator.shards import Shards
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.group.machine import NO_TOPIC_ID, CommitRequest
from hapax.core.transaction.record import ProducerIdentity, TransactionPartition
from hapax.core.transaction.requests import (
    AddPartitionsToTxn,
    Caller,
    EndTxn,
    InitProducerId,
    PartitionResults,
    Reply,
    VerifyPartitions,
)
from hapax.core.types import (
    Millis,
    Offset,
    PartitionIndex,
    ProducerEpoch,
    ProducerId,
    TopicPartition,
)
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
from hapax.kafka.api.describe_transactions import Description
from hapax.kafka.api.list_transactions import Filters, Listed
from hapax.kafka.api.offset_commit import OffsetCommit, OffsetToCommit
from hapax.kafka.api.offset_fetch import GroupAsked, OffsetAnswer
from hapax.kafka.api.txn_offset_commit import TxnOffsetCommit
from hapax.kafka.table import ApiTable, CloseConnection, RequestContext
from hapax.runtime.cluster import ClusterView
from hapax.runtime.ports import Clock
from hapax.runtime.producer_ids import ProducerIds, ProducerIdsUnavailable

END_TXN_OF_VERSION_2: Final = 5
TXN_OFFSET_COMMIT_OF_VERSION_2: Final = 5
TRANSACTION_ABORTABLE_SINCE: Final = 4
"""Version of TxnOffsetCommit; older clients are told INVALID_TXN_STATE."""


class KafkaApi:
    def __init__(self, shards: Shards, view: ClusterView, clock: Clock, producer_ids: ProducerIds) -> None:
        self._shards = shards
        self._view = view
        self._clock = clock
        self._producer_ids = producer_ids

    def register(self, table: ApiTable) -> None:
        for api in (
            init_producer_id, add_partitions_to_txn, add_offsets_to_txn, end_txn, txn_offset_commit, offset_commit,
            offset_fetch, describe_transactions, list_transactions,
        ):
            api.register(table, self)

    # --- transactions ---------------------------------------------------------------------------------------------

    async def init_producer_id(
        self, ctx: RequestContext, transactional_id: str | None, timeout_ms: int, producer_id: int,
        producer_epoch: int,
    ) -> ProducerIdentity:
        if transactional_id is None:
            try:
                return ProducerIdentity(await self._producer_ids.next(), ProducerEpoch(0))
            except ProducerIdsUnavailable as error:
                raise Refusal(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, str(error)) from error
        request = InitProducerId(
            transactional_id, timeout_ms, self._caller(ctx), ProducerId(producer_id), ProducerEpoch(producer_epoch)
        )
        shard = self._shards.txn_shard(transactional_id)
        reply = await _or_close(
            shard.ask(transactional_id, lambda now: shard.machine.init_producer_id(request, now))
        )
        assert isinstance(reply, ProducerIdentity)
        return reply

    async def add_partitions_to_txn(
        self, ctx: RequestContext, transactional_id: str, producer_id: int, producer_epoch: int,
        partitions: Sequence[TopicPartition], *, verify_only: bool,
    ) -> Sequence[ErrorCode]:
        known, unknown = self._resolve(partitions)
        caller = self._caller(ctx)
        shard = self._shards.txn_shard(transactional_id)
        identity = (ProducerId(producer_id), ProducerEpoch(producer_epoch))
        if verify_only:
            question = VerifyPartitions(transactional_id, *identity, known, False, caller, unknown)
            reply = await _or_close(shard.ask(
                transactional_id, lambda now: shard.machine.verify_partitions(question, now)
            ))
        else:
            request = AddPartitionsToTxn(transactional_id, *identity, known, caller, unknown)
            reply = await _or_close(shard.ask(
                transactional_id, lambda now: shard.machine.add_partitions_to_txn(request, now)
            ))
        assert isinstance(reply, PartitionResults)
        codes = {(result.topic, result.partition): result.error for result in reply.results}
        return [codes[partition] for partition in partitions]

    async def add_offsets_to_txn(
        self, ctx: RequestContext, transactional_id: str, producer_id: int, producer_epoch: int, group_id: str
    ) -> None:
        if not group_id:
            raise Refusal(ErrorCode.INVALID_GROUP_ID)
        partition = self._offsets_partition(group_id)
        request = AddPartitionsToTxn(
            transactional_id, ProducerId(producer_id), ProducerEpoch(producer_epoch), (partition,),
            self._caller(ctx),
        )
        shard = self._shards.txn_shard(transactional_id)
        reply = await _or_close(shard.ask(
            transactional_id, lambda now: shard.machine.add_partitions_to_txn(request, now)
        ))
        assert isinstance(reply, PartitionResults)
        for result in reply.results:
            if result.error:
                raise Refusal(result.error, result.reason)

    async def end_txn(
        self, ctx: RequestContext, transactional_id: str, producer_id: int, producer_epoch: int, commit: bool
    ) -> ProducerIdentity:
        request = EndTxn(
            transactional_id, ProducerId(producer_id), ProducerEpoch(producer_epoch), commit, self._caller(ctx),
            transaction_version=2 if ctx.api_version >= END_TXN_OF_VERSION_2 else 1,
        )
        shard = self._shards.txn_shard(transactional_id)
        reply = await _or_close(shard.ask(transactional_id, lambda now: shard.machine.end_txn(request, now)))
        assert isinstance(reply, ProducerIdentity)
        return reply

    # --- offsets --------------------------------------------------------------------------------------------------

    async def txn_offset_commit(self, ctx: RequestContext, request: TxnOffsetCommit) -> Sequence[ErrorCode]:
        if not request.group_id:
            raise Refusal(ErrorCode.INVALID_GROUP_ID)
        known, codes = self._known_topics(request.offsets)
        version = 2 if ctx.api_version >= TXN_OFFSET_COMMIT_OF_VERSION_2 else 1
        shard: OffsetsShard = self._shards.group_shard(request.group_id)
        request = TxnOffsetCommit(
            request.transactional_id, request.group_id, request.producer_id, request.producer_epoch,
            request.generation, request.member_id, request.instance_id, tuple(known.values()),
        )
        try:
            answered = await shard.txn_offset_commit(request, ctx.connection.serial, version)
        except SupersededConnection as superseded:
            raise CloseConnection(str(superseded)) from superseded
        except Refusal as refusal:
            if refusal.code is ErrorCode.TRANSACTION_ABORTABLE and ctx.api_version < TRANSACTION_ABORTABLE_SINCE:
                raise Refusal(ErrorCode.INVALID_TXN_STATE, refusal.reason) from refusal
            raise
        return _merged(codes, known, answered)

    async def offset_commit(self, ctx: RequestContext, request: OffsetCommit) -> Sequence[ErrorCode]:
        shard = self._shards.group_shard(request.group_id)
        named, codes = self._named(request.offsets)
        answered = await shard.offset_commit(
            request.group_id, request.generation, request.member_id, request.instance_id, request.retention_ms,
            tuple(named.values()),
        )
        return _merged(codes, named, answered)

    async def offset_fetch(
        self, ctx: RequestContext, group: GroupAsked, require_stable: bool
    ) -> Sequence[OffsetAnswer]:
        shard = self._shards.group_shard(group.group_id)
        if group.partitions is None:
            found = await shard.offset_fetch(group.group_id, None, require_stable)
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
            found = await shard.offset_fetch(group.group_id, asked, require_stable)
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

    async def describe_transaction(self, ctx: RequestContext, transactional_id: str) -> Description:
        transaction = await self._shards.txn_shard(transactional_id).describe(transactional_id)
        running = transaction.is_open or transaction.is_decided
        partitions = [
            TopicPartition(partition.topic, partition.partition)
            for partition in transaction.every_partition
        ] if running else []
        return Description(
            transaction.state.kafka_name, transaction.timeout_ms, transaction.start_ms if running else -1,
            transaction.producer_id, transaction.producer_epoch, tuple(sorted(set(partitions))),
        )

    async def list_transactions(self, ctx: RequestContext, filters: Filters) -> Sequence[Listed]:
        pattern = None if filters.pattern is None else IdPattern(filters.pattern)
        # Whoever asks every coordinator that is alive would miss what nobody owns at the moment.
        if any(self._view.txn_shard_owner(shard) is None for shard in self._view.shards("txn")):
            raise Refusal(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "some shards are without an owner at the moment")
        shards = self._shards.txn_shards()
        try:  # who is to be fenced, and what hangs, is decided on this, too (rule 23)
            await asyncio.gather(*(shard.confirm() for shard in shards))
            for shard in shards:
                shard.check_serving()  # still, after the last one's answer
        except Refusal as refusal:  # in the one code at which clients list again
            raise Refusal(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, refusal.reason) from refusal
        return [
            Listed(transaction.transactional_id, transaction.producer_id, transaction.state.kafka_name)
            for shard in shards
            for transaction in shard.machine.list(
                shard.now(), filters.states, filters.producer_ids, filters.duration_ms
            )
            if pattern is None or pattern.matches(transaction.transactional_id)
        ]

    # --- names and ids --------------------------------------------------------------------------------------------

    def _resolve(
        self, partitions: Sequence[TopicPartition]
    ) -> tuple[tuple[TransactionPartition, ...], tuple[TopicPartition, ...]]:
        """Those that exist, by id, and those that do not."""
        known, unknown = [], []
        for partition in partitions:
            topic = self._view.topic(partition.topic)
            if topic is None or not 0 <= partition.partition < topic.partitions or partition.topic in INTERNAL_TOPICS:
                unknown.append(partition)
            else:
                known.append(TransactionPartition(partition.topic, topic.topic_id, partition.partition))
        return tuple(known), tuple(unknown)

    def _offsets_partition(self, group_id: str) -> TransactionPartition:
        topic = self._view.topic(OFFSETS_TOPIC)
        if topic is None:
            raise Refusal(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the offsets topic is being made")
        return TransactionPartition(OFFSETS_TOPIC, topic.topic_id, PartitionIndex(self._shards.group_of(group_id)))

    def _known_topics(
        self, offsets: Sequence[CommitRequest]
    ) -> tuple[dict[int, CommitRequest], list[ErrorCode]]:
        """Offsets of partitions that exist, by their place in the request, and a code for each place."""
        known: dict[int, CommitRequest] = {}
        codes = []
        for number, offset in enumerate(offsets):
            topic = self._view.topic(offset.partition.topic)
            if topic is None or not 0 <= offset.partition.partition < topic.partitions:
                codes.append(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            else:
                codes.append(ErrorCode.NONE)
                known[number] = offset._replace(topic_id=topic.topic_id)
        return known, codes

    def _named(self, offsets: Sequence[OffsetToCommit]) -> tuple[dict[int, CommitRequest], list[ErrorCode]]:
        """As `_known_topics`, for offsets that may name their topic by id."""
        known: dict[int, CommitRequest] = {}
        codes = []
        for number, offset in enumerate(offsets):
            by_id = offset.topic_id != NO_TOPIC_ID
            topic = self._view.topic_by_id(offset.topic_id) if by_id else self._view.topic(offset.topic)
            if topic is None:
                codes.append(ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            elif not 0 <= offset.partition < topic.partitions:
                codes.append(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            else:
                codes.append(ErrorCode.NONE)
                known[number] = CommitRequest(
                    TopicPartition(topic.name, PartitionIndex(offset.partition)), Offset(offset.offset),
                    offset.leader_epoch, offset.metadata, topic.topic_id,
                )
        return known, codes

    def _caller(self, ctx: RequestContext) -> Caller:
        connection = ctx.connection
        return Caller(
            ctx.client_id or "", connection.peer, Millis(self._clock.monotonic_ms()), connection.serial,
            ctx.api_version,
        )


async def _or_close(reply: Awaitable[Reply]) -> Reply:
    """A call on a superseded connection is not answered: its connection is closed (rule 4)."""
    try:
        return await reply
    except SupersededConnection as superseded:
        raise CloseConnection(str(superseded)) from superseded


def _merged(
    codes: list[ErrorCode], known: Mapping[int, CommitRequest], answered: Sequence[ErrorCode]
) -> list[ErrorCode]:
    for number, code in zip(known, answered, strict=True):
        codes[number] = code
    return codes
