"""A producer's calls to its coordinators. Each repeats until it has a final answer.

The code of every answer goes to the producer machine, which decides whether to repeat, to abort or to give up. This
module only finds the coordinator, sends, waits and words the error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from hapax.client.backoff import Backoff
from hapax.client.cluster import ClusterClient
from hapax.client.errors import AuthenticationError, HapaxError, RetriableError, from_trouble
from hapax.client.metadata import CoordinatorKind
from hapax.core.errors import ErrorCode
from hapax.core.producer.error_kinds import ErrorKind
from hapax.core.producer.machine import ClientProducer
from hapax.core.producer.partition_queue import NO_IDENTITY, Identity
from hapax.core.producer.states import Trouble
from hapax.core.types import ProducerEpoch, ProducerId, TopicPartition
from hapax.wire import messages
from hapax.wire.peer import Peer, PeerError, PeerUnsupported
from hapax.wire.reasons import reason_of

_LOOK_AGAIN = (
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.REQUEST_TIMED_OUT,
)
_CONCURRENT_PAUSE_S = 0.02
"""The pause after CONCURRENT_TRANSACTIONS: the previous transaction's markers are still being written."""


class OffsetAndMetadata(NamedTuple):
    """A position to commit: the offset of the next record to read."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


Offsets = Mapping[TopicPartition, OffsetAndMetadata | int]


class ConsumerGroup(NamedTuple):
    """The membership under which offsets are committed in a transaction. For consumers with assigned partitions, a
    plain group id is enough."""

    group_id: str
    generation: int = -1
    member_id: str = ""
    instance_id: str | None = None
    assigned: frozenset[TopicPartition] | None = None
    """The member's partitions. Offsets of others are refused, because in the classic protocol the cluster does not know
    who owns a partition. None: unknown."""


class Initialized(NamedTuple):
    identity: Identity
    version: int
    """The version of transactions that the cluster supports."""
    kept: Identity | None
    """Of the open transaction that was kept; None: none."""


def encode_offsets(offsets: Offsets, message: Any) -> dict[str, list[Any]]:
    """For each topic, the partitions of an OffsetCommit or TxnOffsetCommit. `message` is its class for one
    partition."""
    topics: dict[str, list[Any]] = {}
    for partition, given in offsets.items():
        offset = OffsetAndMetadata(given) if isinstance(given, int) else given
        topics.setdefault(partition.topic, []).append(
            message(
                partition_index=partition.partition,
                committed_offset=offset.offset,
                committed_leader_epoch=offset.leader_epoch,
                committed_metadata=offset.metadata,
            )
        )
    return topics


class Coordination:
    def __init__(self, cluster: ClusterClient, machine: ClientProducer, transactional_id: str | None) -> None:
        self._cluster = cluster
        self._machine = machine
        self._id = transactional_id

    async def initialize(self, current: Identity, timeout_ms: int) -> Initialized | None:
        """InitProducerId. A producer that starts and takes part in two-phase commit keeps an open transaction. None:
        refused for good (the machine knows). Repeats without a limit."""
        two_phase = self._machine.options.two_phase
        Message = messages.InitProducerIdRequest
        offered: list[int] = []

        def request(peer: Peer) -> tuple[Any, int]:
            version = (
                peer.capabilities.pick(Message, at_most=6, at_least=6) if two_phase
                else peer.capabilities.pick(Message, at_most=5, at_least=3 if current.epoch >= 0 else 0))
            offered[:] = [_transaction_version(peer)]
            message = Message(
                transactional_id=self._id,
                transaction_timeout_ms=timeout_ms,
                producer_id=current.producer_id,
                producer_epoch=current.epoch,
                enable2_pc=two_phase,
                keep_prepared_txn=two_phase and current == NO_IDENTITY,
            )
            return message, version

        if self._id is None:
            response = await self._repeat(None, "", request, lambda r: int(r.error_code))
        else:
            response = await self._repeat("transaction", self._id, request, lambda r: int(r.error_code))
        if response is None:
            return None
        if two_phase and offered[0] < 2:
            # With one epoch for all its transactions, a producer could not tell the prepared one from the last one.
            self._machine.fail(Trouble(
                ErrorKind.FATAL, ErrorCode.UNSUPPORTED_VERSION,
                "two-phase commit needs transactions version 2: finalize the feature transaction.version"))
            return None
        identity = Identity(ProducerId(response.producer_id), ProducerEpoch(response.producer_epoch))
        if not two_phase or response.ongoing_txn_producer_id < 0:
            return Initialized(identity, offered[0], None)
        return Initialized(identity, offered[0], Identity(
            ProducerId(response.ongoing_txn_producer_id), ProducerEpoch(response.ongoing_txn_producer_epoch)))

    async def add_partitions(self, partitions: tuple[TopicPartition, ...]) -> bool:
        """AddPartitionsToTxn (version 1 only)."""
        Message = messages.AddPartitionsToTxnRequest
        topics: dict[str, list[int]] = {}
        for partition in partitions:
            topics.setdefault(partition.topic, []).append(partition.partition)
        identity = self._machine.identity

        def request(peer: Peer) -> tuple[Any, int]:
            message = Message(
                v3_and_below_transactional_id=self._id,
                v3_and_below_producer_id=identity.producer_id,
                v3_and_below_producer_epoch=identity.epoch,
                v3_and_below_topics=[
                    Message.AddPartitionsToTxnTopic(name=name, partitions=numbers) for name, numbers in topics.items()
                ],
            )
            return message, peer.capabilities.pick(Message, at_most=3)

        def code(response: Any) -> int:
            codes = [
                int(partition.partition_error_code)
                for topic in response.results_by_topic_v3_and_below
                for partition in topic.results_by_partition
            ]
            # The cause, and not OPERATION_NOT_ATTEMPTED, which the request's other partitions get.
            return next((c for c in codes if c not in (0, ErrorCode.OPERATION_NOT_ATTEMPTED)), max(codes, default=0))

        assert self._id is not None
        return await self._repeat("transaction", self._id, request, code) is not None

    async def send_offsets(self, offsets: Offsets, group: ConsumerGroup) -> bool:
        """TxnOffsetCommit, after AddOffsetsToTxn if the cluster uses version 1."""
        assert self._id is not None
        identity = self._machine.identity
        gone = [p for p in offsets if group.assigned is not None and p not in group.assigned]
        if gone:
            self._machine.coordinator_refused(
                ErrorCode.ILLEGAL_GENERATION,
                f"{gone[0].topic}-{gone[0].partition} is not assigned to this member of group {group.group_id!r},"
                " or not any more")
            return False
        if self._machine.version < 2:
            Add = messages.AddOffsetsToTxnRequest

            def add(peer: Peer) -> tuple[Any, int]:
                message = Add(
                    transactional_id=self._id,
                    producer_id=identity.producer_id,
                    producer_epoch=identity.epoch,
                    group_id=group.group_id,
                )
                return message, peer.capabilities.pick(Add)

            if await self._repeat("transaction", self._id, add, lambda r: int(r.error_code)) is None:
                return False
        Message = messages.TxnOffsetCommitRequest
        Partition = Message.TxnOffsetCommitRequestTopic.TxnOffsetCommitRequestPartition
        topics = encode_offsets(offsets, Partition)

        def commit(peer: Peer) -> tuple[Any, int]:
            message = Message(
                transactional_id=self._id,
                group_id=group.group_id,
                producer_id=identity.producer_id,
                producer_epoch=identity.epoch,
                generation_id=group.generation,
                member_id=group.member_id,
                group_instance_id=group.instance_id,
                topics=[
                    Message.TxnOffsetCommitRequestTopic(name=name, partitions=parts) for name, parts in topics.items()
                ],
            )
            # Before version 3 a cluster checks no membership, and takes the offsets of a member that was replaced.
            return message, self._pick(peer, Message, at_least=3 if group.member_id else 0)

        def code(response: Any) -> int:
            return next((int(p.error_code) for t in response.topics for p in t.partitions if p.error_code), 0)

        return await self._repeat("group", group.group_id, commit, code) is not None

    async def end(self, commit: bool) -> tuple[bool, Identity | None]:
        """EndTxn. Returns whether it was accepted, and the next transaction's identity (version 2)."""
        assert self._id is not None
        Message = messages.EndTxnRequest
        identity = self._machine.identity

        def request(peer: Peer) -> tuple[Any, int]:
            message = Message(
                transactional_id=self._id,
                producer_id=identity.producer_id,
                producer_epoch=identity.epoch,
                committed=commit,
            )
            return message, self._pick(peer, Message)

        response = await self._repeat("transaction", self._id, request, lambda r: int(r.error_code))
        if response is None:
            return False, None
        if self._machine.version >= 2:
            return True, Identity(ProducerId(response.producer_id), ProducerEpoch(response.producer_epoch))
        return True, None

    def _pick(self, peer: Peer, message: Any, *, at_least: int = 0) -> int:
        """The version of a TxnOffsetCommit or EndTxn. From 5 on, these calls are of transactions version 2."""
        if self._machine.version >= 2:
            return peer.capabilities.pick(message, at_least=5)
        return peer.capabilities.pick(message, at_most=4, at_least=at_least)

    async def _repeat(
        self,
        kind: CoordinatorKind | None,
        key: str,
        request: Callable[[Peer], tuple[Any, int]],
        code_of: Callable[[Any], int],
    ) -> Any | None:
        """The first answer without an error. None: an answer (or a missing version) is final, and the machine was told.
        Only a cancellation ends the call early."""
        backoff = Backoff(self._cluster.options, self._cluster.ports)
        sent = in_doubt = False
        while True:
            code: int = ErrorCode.NETWORK_EXCEPTION
            in_doubt, sent = in_doubt or sent, False
            try:
                if kind is None:
                    peer = await self._any_peer()
                else:
                    peer = await self._cluster.coordinator_peer(kind, key)
                message, version = request(peer)
                sent = True
                response = await peer.call(message, version=version)
                sent = False
                code = code_of(response)
                if code == 0:
                    return response
                if self._machine.coordinator_refused(code, reason_of(response)) is not ErrorKind.RETRY:
                    return None
            except PeerError:
                pass
            except RetriableError as error:
                code = error.code
            except PeerUnsupported as error:
                self._machine.fail(Trouble(ErrorKind.FATAL, ErrorCode.UNSUPPORTED_VERSION, str(error)))
                return None
            except HapaxError as error:
                said = error.message if isinstance(error, AuthenticationError) else str(error)
                if in_doubt:
                    said += "; an earlier attempt had no answer and may have taken effect"
                self._machine.fail(Trouble(ErrorKind.FATAL, error.code, said))
                return None
            if kind is not None and code in _LOOK_AGAIN:
                self._cluster.forget_coordinator(kind, key)
            pause = _CONCURRENT_PAUSE_S if code == ErrorCode.CONCURRENT_TRANSACTIONS else backoff.seconds()
            await asyncio.sleep(pause)

    async def _any_peer(self) -> Peer:
        nodes = sorted(self._cluster.nodes)
        if not nodes:
            await self._cluster.refreshed(self._cluster.options["request.timeout.ms"])
            raise PeerError("no node is known")
        return await self._cluster.peer(nodes[self._cluster.ports.random.randrange(0, len(nodes))])


def _transaction_version(peer: Peer) -> int:
    """2 if the cluster has finalized it and the peer supports every call that it needs."""
    capabilities = peer.capabilities
    if capabilities.features.get("transaction.version", 0) < 2:
        return 1
    needed = ((messages.ProduceRequest, 12), (messages.EndTxnRequest, 5), (messages.TxnOffsetCommitRequest, 5))
    for message, version in needed:
        if capabilities.versions.get(message.API_KEY, (0, -1))[1] < version:
            return 1
    return 2


def trouble_of(machine: ClientProducer) -> HapaxError:
    """The error for the reason why the machine stopped."""
    assert machine.trouble is not None
    return from_trouble(machine.trouble)
