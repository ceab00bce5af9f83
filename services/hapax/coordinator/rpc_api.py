"""Calls between services, and the public ones of `hapax.v1.Transactions`. Decodes protobuf, asks the shard, encodes.

A refusal is part of the response (`error`, `reason`), never the status of the call. A status means that the call itself
failed, so that the caller does not know whether it took effect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

from google.protobuf.message import Message

from hapax.codec.metadata import INTERNAL_TOPICS, OFFSETS_TOPIC
from hapax.codec.transaction_log import decode_value
from hapax.coordinator.administration import CoordinatorAdministration
from hapax.coordinator.descriptions import conflict, description
from hapax.coordinator.hanging import HangingTransactions
from hapax.coordinator.shards import Shards
from hapax.coordinator.transactions import TxnShard
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.group.offsets import OffsetsMarker
from hapax.core.partition.verification import Admission
from hapax.core.transaction.admin import restored
from hapax.core.transaction.machine import TransactionShard
from hapax.core.transaction.record import Fingerprint, ProducerIdentity, Token, Transaction, TransactionPartition
from hapax.core.transaction.requests import (
    NO_TOKEN_WORK,
    Caller,
    CommitName,
    CommitPrepared,
    CommitTokenFound,
    EndTransaction,
    EnsureTransactionalId,
    FenceProducer,
    GetCommitToken,
    InstanceFenced,
    Joined,
    JoinTransaction,
    PartitionResults,
    Renewed,
    RenewTransaction,
    RestoreTransactionalId,
    TokenWork,
    VerifyPartitions,
    Winner,
    WinnerPartition,
)
from hapax.core.transaction.tokens import TokenConflict
from hapax.core.types import (
    Millis,
    PartitionIndex,
    ProducerEpoch,
    ProducerId,
    RegistrationEpoch,
    Sequence,
    Serial,
    TopicId,
)
from hapax.rpc.gen.hapax.internal.v1 import common_pb2, coordinator_pb2
from hapax.rpc.gen.hapax.v1 import lease_pb2, restore_pb2, transactions_pb2
from hapax.runtime.asker import ASKER, ascribed
from hapax.runtime.audit_events import SILENT, Audit
from hapax.runtime.cluster import ClusterView
from hapax.runtime.ports import Clock, RpcHandler, RpcPeer
from hapax.wire.write_pass import sign

TXN_COORDINATOR: Final = "/hapax.internal.v1.TxnCoordinator/"
GROUP_COORDINATOR: Final = "/hapax.internal.v1.GroupCoordinator/"
TRANSACTIONS: Final = "/hapax.v1.Transactions/"
RESTORE: Final = "/hapax.v1.Restore/"

_WINNERS_AT_ONCE: Final = 20

_Request = TypeVar("_Request", bound=Message)


class RpcApi:
    hanging: HangingTransactions
    """Set when the shards start."""
    proof: tuple[RegistrationEpoch, bytes]
    """Registration epoch and session of this process; set when it is registered."""

    def __init__(self, shards: Shards, view: ClusterView, clock: Clock, audit: Audit = SILENT) -> None:
        self._audit = audit
        self._shards = shards
        self._view = view
        self._clock = clock

    def handlers(self) -> dict[str, RpcHandler]:
        return {
            TXN_COORDINATOR + "VerifyPartitions": _answering(
                coordinator_pb2.VerifyPartitionsRequest, self.verify_partitions),
            TXN_COORDINATOR + "AbortHanging": _answering(coordinator_pb2.AbortHangingRequest, self._abort_hanging),
            GROUP_COORDINATOR + "WriteOffsetsMarkers": _answering(
                coordinator_pb2.WriteOffsetsMarkersRequest, self.write_offsets_markers),
        }

    def public_handlers(self) -> dict[str, RpcHandler]:
        pb = transactions_pb2
        return ascribed({
            TRANSACTIONS + "JoinTransaction": _answering(
                pb.JoinTransactionRequest, self._join_transaction, pb.JoinTransactionResponse),
            TRANSACTIONS + "RenewTransaction": _answering(
                pb.RenewTransactionRequest, self._renew_transaction, pb.RenewTransactionResponse),
            TRANSACTIONS + "EndTransaction": _answering(
                pb.EndTransactionRequest, self._end_transaction, pb.EndTransactionResponse),
            TRANSACTIONS + "GetCommitToken": _answering(
                pb.GetCommitTokenRequest, self._get_commit_token, pb.GetCommitTokenResponse),
            TRANSACTIONS + "DescribeTransactionalId": _answering(
                pb.DescribeTransactionalIdRequest, self._describe_transactional_id, pb.DescribeTransactionalIdResponse),
            TRANSACTIONS + "EnsureTransactionalId": _answering(
                pb.EnsureTransactionalIdRequest, self._ensure_transactional_id, pb.EnsureTransactionalIdResponse),
            TRANSACTIONS + "FenceProducer": _answering(
                pb.FenceProducerRequest, self._fence_producer, pb.FenceProducerResponse),
            TRANSACTIONS + "CommitPrepared": _answering(
                pb.CommitPreparedRequest, self._commit_prepared, pb.CommitPreparedResponse),
            RESTORE + "ImportTransactionalId": _answering(
                restore_pb2.ImportTransactionalIdRequest, self._import_transactional_id,
                restore_pb2.ImportTransactionalIdResponse),
            **CoordinatorAdministration(self._shards, self._view, self._audit).handlers(),
        })

    def framed_handlers(self) -> dict[str, RpcHandler]:
        """The public calls that also come as Kafka frames (`hapax.kafka.api.transaction_call`)."""
        public = self.public_handlers()
        return {name: public[TRANSACTIONS + name] for name in ("JoinTransaction", "EndTransaction")}

    # --- between services -----------------------------------------------------------------------------------------

    async def verify_partitions(
        self, request: coordinator_pb2.VerifyPartitionsRequest
    ) -> coordinator_pb2.VerifyPartitionsResponse:
        """Returns one result per partition, in the order of the request."""
        known: list[TransactionPartition] = []
        for asked in request.partitions:
            topic = self._view.topic_by_id(TopicId(asked.topic_id))
            if topic is not None and 0 <= asked.partition < topic.partitions:
                known.append(TransactionPartition(topic.name, topic.topic_id, PartitionIndex(asked.partition)))
        try:
            shard = self._shards.txn_shard(request.transactional_id)
            shard.check_serving()  # the question names the transaction that is the id's now
            question = VerifyPartitions(
                request.transactional_id, ProducerId(request.producer_id), ProducerEpoch(request.producer_epoch),
                tuple(known), request.add, self._caller(), after_serial=Serial(request.after_serial),
                serial=shard.machine.serial_of(request.transactional_id),
            )
            reply = await shard.ask(TransactionShard.verify_partitions, question)
        except Refusal as refusal:
            return coordinator_pb2.VerifyPartitionsResponse(
                error=refusal.code, reason=refusal.reason, shard=-1, shard_epoch=-1
            )
        assert isinstance(reply, PartitionResults)
        results = {
            (partition.topic_id, partition.partition): result
            for partition, result in zip(known, reply.results, strict=True)
        }
        answers = []
        for asked in request.partitions:
            result = results.get((TopicId(asked.topic_id), PartitionIndex(asked.partition)))
            answers.append(common_pb2.PartitionError(
                topic_id=asked.topic_id, partition=asked.partition,
                error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if result is None else result.error,
                reason="" if result is None else result.reason,
            ))
        return coordinator_pb2.VerifyPartitionsResponse(
            shard=shard.shard, shard_epoch=shard.epoch, serial=reply.serial, partitions=answers
        )

    async def _abort_hanging(
        self, request: coordinator_pb2.AbortHangingRequest
    ) -> coordinator_pb2.AbortHangingResponse:
        return await self.hanging.abort(request)

    async def write_offsets_markers(
        self, request: coordinator_pb2.WriteOffsetsMarkersRequest
    ) -> coordinator_pb2.WriteOffsetsMarkersResponse:
        """The marker sender of the same process calls it too, without a network call."""
        codes = await asyncio.gather(*(
            self._write_offsets_marker(marker, shard) for marker in request.markers for shard in marker.group_shards
        ))
        answered = iter(codes)
        topic = self._view.topic(OFFSETS_TOPIC)
        topic_id = b"" if topic is None else topic.topic_id
        return coordinator_pb2.WriteOffsetsMarkersResponse(results=[
            coordinator_pb2.OffsetsMarkerResult(partitions=[
                common_pb2.PartitionError(topic_id=topic_id, partition=shard, error=next(answered))
                for shard in marker.group_shards
            ])
            for marker in request.markers
        ])

    async def _write_offsets_marker(self, marker: coordinator_pb2.OffsetsMarker, shard: int) -> ErrorCode:
        try:
            offsets = self._shards.group_shard_of(shard)
        except Refusal as refusal:
            return refusal.code
        return await offsets.write_marker(
            OffsetsMarker(
                ProducerId(marker.producer_id), ProducerEpoch(marker.producer_epoch), marker.commit,
                marker.coordinator_epoch, Serial(marker.serial),
            ),
            marker.shard,
        )

    # --- public ---------------------------------------------------------------------------------------------------

    async def _join_transaction(
        self, request: transactions_pb2.JoinTransactionRequest
    ) -> transactions_pb2.JoinTransactionResponse:
        shard = self._shards.txn_shard(request.transactional_id)
        question = JoinTransaction(
            request.transactional_id, _token(request.token), request.member_key, request.timeout_ms,
            self._caller(), request.allow_unknown_history, _token_work(request.token), self._first(request),
            request.tentative,
        )
        reply = await shard.ask(TransactionShard.join_transaction, question)
        assert isinstance(reply, Joined)
        committed = reply.committed
        return transactions_pb2.JoinTransactionResponse(
            already_committed=reply.already_committed, producer_id=reply.identity.producer_id,
            producer_epoch=reply.identity.producer_epoch, serial=reply.serial,
            committed_value=-1 if committed is None else committed.value, remaining_ms=reply.remaining_ms,
            committed_records=committed.record_count if committed and reply.already_committed else 0,
            write_pass=self._pass(question, reply, shard) if reply.registered else b"", noted=reply.noted,
        )

    def _first(self, request: transactions_pb2.JoinTransactionRequest) -> TransactionPartition | None:
        """The partition that the member will write first. One that clients cannot write is left out: the write itself
        is refused, with the reason."""
        if not request.HasField("partition"):
            return None
        topic, index = self._view.topic(request.partition.topic), request.partition.partition
        if topic is None or topic.name in INTERNAL_TOPICS or not 0 <= index < topic.partitions:
            return None
        return TransactionPartition(topic.name, topic.topic_id, PartitionIndex(index))

    def _pass(self, question: JoinTransaction, reply: Joined, shard: TxnShard) -> bytes:
        first, now = question.partition, self._clock.now_ms()
        assert first is not None
        return sign(Admission(
            question.transactional_id, first.topic_id, first.partition, reply.identity.producer_id,
            reply.identity.producer_epoch, reply.serial, shard.shard, shard.epoch, now,
        ), *self.proof)

    async def _renew_transaction(
        self, request: transactions_pb2.RenewTransactionRequest
    ) -> transactions_pb2.RenewTransactionResponse:
        shard = self._shards.txn_shard(request.transactional_id)
        question = RenewTransaction(
            request.transactional_id, Serial(request.serial), request.timeout_ms, self._caller(),
            _token(request.token) if request.HasField("token") else None,
        )
        reply = await shard.ask(TransactionShard.renew_transaction, question)
        assert isinstance(reply, Renewed)
        return transactions_pb2.RenewTransactionResponse(remaining_ms=reply.remaining_ms)

    async def _end_transaction(
        self, request: transactions_pb2.EndTransactionRequest
    ) -> transactions_pb2.EndTransactionResponse:
        single = request.HasField("producer_id") and request.producer_id >= 0
        shard = self._shards.txn_shard(request.transactional_id)
        reply = await shard.end_transaction(EndTransaction(
            request.transactional_id, request.commit, self._caller(),
            _token(request.token) if request.HasField("token") else None,
            ProducerId(request.producer_id if single else -1),
            ProducerEpoch(request.producer_epoch if single else -1),
            await self._winners(request.winners), request.record_count,
            request.allow_other_count, Serial(request.serial), request.allow_unknown_history,
            single_use=request.single_use, work=_token_work(request.token),
        ))
        return transactions_pb2.EndTransactionResponse(
            outcome=transactions_pb2.Outcome.Name(reply.outcome), producer_id=reply.identity.producer_id,
            producer_epoch=reply.identity.producer_epoch, committed_records=reply.committed_records,
            serial=reply.serial,
        )

    async def _get_commit_token(
        self, request: transactions_pb2.GetCommitTokenRequest
    ) -> transactions_pb2.GetCommitTokenResponse:
        shard = self._shards.txn_shard(request.transactional_id)
        question = GetCommitToken(request.transactional_id, request.scope, self._caller())
        reply = await shard.ask(TransactionShard.get_commit_token, question)
        assert isinstance(reply, CommitTokenFound)
        token = reply.token
        if token is None:
            return transactions_pb2.GetCommitTokenResponse(found=False)
        return transactions_pb2.GetCommitTokenResponse(
            found=True, value=token.value, record_count=token.record_count, owner=token.owner,
            number=token.number,
        )

    async def _describe_transactional_id(
        self, request: transactions_pb2.DescribeTransactionalIdRequest
    ) -> transactions_pb2.DescribeTransactionalIdResponse:
        shard = self._shards.txn_shard(request.transactional_id)
        return description(await shard.describe(request.transactional_id))

    async def _ensure_transactional_id(
        self, request: transactions_pb2.EnsureTransactionalIdRequest
    ) -> transactions_pb2.EnsureTransactionalIdResponse:
        shard = self._shards.txn_shard(request.transactional_id)
        question = EnsureTransactionalId(request.transactional_id, self._caller())
        reply = await shard.ask(TransactionShard.ensure_transactional_id, question)
        assert isinstance(reply, ProducerIdentity)
        return transactions_pb2.EnsureTransactionalIdResponse(
            producer_id=reply.producer_id, producer_epoch=reply.producer_epoch
        )

    async def _import_transactional_id(
        self, request: restore_pb2.ImportTransactionalIdRequest
    ) -> restore_pb2.ImportTransactionalIdResponse:
        try:
            former = decode_value(request.transactional_id, request.record)
        except ValueError as error:
            raise Refusal(ErrorCode.INVALID_REQUEST, f"the record of {request.transactional_id!r}: {error}") from error
        if not isinstance(former, Transaction):
            raise Refusal(ErrorCode.INVALID_REQUEST, f"the record of {request.transactional_id!r} is a tombstone")
        shard = self._shards.txn_shard(request.transactional_id)
        question = RestoreTransactionalId(
            request.transactional_id, restored(former), request.producer_id_floor, self._caller())
        reply = await shard.ask(TransactionShard.restore_transactional_id, question)
        assert isinstance(reply, ProducerIdentity)
        return restore_pb2.ImportTransactionalIdResponse(producer_id=reply.producer_id)

    async def _fence_producer(
        self, request: transactions_pb2.FenceProducerRequest
    ) -> transactions_pb2.FenceProducerResponse:
        shard = self._shards.txn_shard(request.transactional_id)
        question = FenceProducer(
            request.transactional_id, request.instance,
            self._caller()._replace(client_id=request.client_id, peer=request.host),
            Serial(request.serial),
        )
        reply = await shard.ask(TransactionShard.fence_producer, question)
        assert isinstance(reply, InstanceFenced)
        return transactions_pb2.FenceProducerResponse(
            producer_id=reply.identity.producer_id, producer_epoch=reply.identity.producer_epoch
        )

    async def _commit_prepared(
        self, request: transactions_pb2.CommitPreparedRequest
    ) -> transactions_pb2.CommitPreparedResponse:
        shard = self._shards.txn_shard(request.transactional_id)
        caller = self._caller()._replace(client_id=request.client_id, peer=request.host)
        question = CommitPrepared(request.transactional_id, Serial(request.serial), caller)
        reply = await shard.ask(TransactionShard.commit_prepared, question)
        assert isinstance(reply, InstanceFenced)
        return transactions_pb2.CommitPreparedResponse(
            producer_id=reply.identity.producer_id, producer_epoch=reply.identity.producer_epoch)

    async def _winners(self, winners: Iterable[transactions_pb2.Winner]) -> tuple[Winner, ...]:
        """Raises Refusal(UNKNOWN_TOPIC_OR_PARTITION) for a deleted topic, whose records are gone."""
        known: dict[tuple[str, int], TransactionPartition] = {}

        def place(partition: lease_pb2.Partition) -> TransactionPartition:
            name = partition.topic, partition.partition
            if name not in known:
                topic = self._view.topic(name[0])
                if topic is None or not 0 <= name[1] < topic.partitions:
                    raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{name[0]}-{name[1]}")
                known[name] = TransactionPartition(topic.name, topic.topic_id, PartitionIndex(name[1]))
            return known[name]

        found = []
        for number, winner in enumerate(winners):
            found.append(Winner(ProducerId(winner.producer_id), ProducerEpoch(winner.producer_epoch), tuple([
                WinnerPartition(place(each.partition), Sequence(each.last_sequence)) for each in winner.partitions
            ])))
            if number % _WINNERS_AT_ONCE == _WINNERS_AT_ONCE - 1:
                await asyncio.sleep(0)  # a large commit names hundreds of thousands of partitions
        return tuple(found)

    def _caller(self) -> Caller:
        principal, address, call = ASKER.get()
        return Caller("", "", Millis(self._clock.monotonic_ms()), principal=principal, call=call, address=address)


def _token(token: transactions_pb2.CommitToken) -> Token:
    return Token(token.scope, token.value)


def _token_work(token: transactions_pb2.CommitToken) -> TokenWork:
    if not token.HasField("work"):
        return NO_TOKEN_WORK
    work = token.work
    return TokenWork(
        work.owner, work.run, work.follows if work.HasField("follows") else None,
        CommitName(work.continue_from.owner, work.continue_from.value) if work.HasField("continue_from") else None,
        _fingerprints(work.fingerprints), work.allow_other_work, _fingerprints(work.followed),
    )


def _fingerprints(told: Iterable[transactions_pb2.Fingerprint]) -> tuple[Fingerprint, ...]:
    return tuple(Fingerprint(each.kind, each.digest) for each in told)


def _answering(
    request: type[_Request], answer: Callable[[_Request], Awaitable[Message]],
    refused: Callable[..., Message] | None = None,
) -> RpcHandler:
    """Decodes the request and encodes the answer. A refusal is answered by the response `refused`; without it, `answer`
    raises none."""
    async def handle(payload: bytes, peer: RpcPeer) -> bytes:
        try:
            response = await answer(request.FromString(payload))
        except Refusal as refusal:
            if refused is None:
                raise
            conflicts = {"conflict": conflict(refusal)} if isinstance(refusal, TokenConflict) else {}
            response = refused(error=refusal.code, reason=refusal.reason, **conflicts)
        return response.SerializeToString()

    return handle
