"""The gRPC calls that a broker answers: those of other services (proto/hapax/internal/v1/broker.proto) and those of
clients (proto/hapax/v1/partitions.proto)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from hapax.broker.importing import import_batches
from hapax.broker.kafka_api import check_high_watermark
from hapax.broker.partitions import PartitionSet
from hapax.broker.replica import Replica
from hapax.broker.snapshots import Snapshots
from hapax.core.control import Marker, ProducerFence
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.partition.machine import ProducerView
from hapax.core.partition.values import WriteResult
from hapax.core.types import PartitionIndex, RegistrationEpoch, TopicId, TopicIdPartition
from hapax.rpc.gen.hapax.internal.v1 import broker_pb2, common_pb2
from hapax.rpc.gen.hapax.v1 import partitions_pb2, restore_pb2
from hapax.runtime.ports import RpcHandler, RpcPeer
from hapax.runtime.rpc import decoding

SERVICE: Final = "/hapax.internal.v1.PartitionBroker/"
PUBLIC: Final = "/hapax.v1.Partitions/"
RESTORE: Final = "/hapax.v1.Restore/"
_TopicPartition: TypeAlias = common_pb2.TopicPartition | partitions_pb2.PartitionOfTopicId
_COUNTED_MAX: Final = 16 << 20
"""Maximum bytes of logs read for one answer. For more, the caller asks again."""


class BrokerRpc:
    """Every answer waits until what it states is durable."""

    def __init__(self, partitions: PartitionSet, transactional_id_of: Callable[[TopicIdPartition, int], str]) -> None:
        """`transactional_id_of(partition, producer id)`: "" if this broker does not know it."""
        self._partitions = partitions
        self._transactional_id_of = transactional_id_of
        self._snapshots = Snapshots()

    def handlers(self) -> dict[str, RpcHandler]:
        return {
            SERVICE + "WriteMarkers": decoding(broker_pb2.WriteMarkersRequest, self.write_markers),
            SERVICE + "DescribeProducers": decoding(broker_pb2.DescribeProducersRequest, self.describe_producers),
            SERVICE + "FenceProducer": decoding(broker_pb2.FenceProducerRequest, self.fence_producer),
            SERVICE + "FetchSnapshot": self.fetch_snapshot,
        }

    def public_handlers(self) -> dict[str, RpcHandler]:
        return {
            PUBLIC + "DescribeProducers": decoding(
                partitions_pb2.DescribeProducersRequest, self.describe_producers_publicly),
            PUBLIC + "DescribeReplicas": decoding(partitions_pb2.DescribeReplicasRequest, self.describe_replicas),
            PUBLIC + "DescribeOffsets": decoding(partitions_pb2.DescribeOffsetsRequest, self.describe_offsets),
            RESTORE + "ImportBatches": decoding(restore_pb2.ImportBatchesRequest, self.import_batches),
        }

    def _find(self, partition: _TopicPartition) -> Replica:
        """Raises Refusal. UNKNOWN_TOPIC_ID only if the topic was deleted: then its markers count as done."""
        try:
            return self._partitions.find(partition.topic_id, partition.partition)
        except Refusal as refusal:
            gone = self._partitions.view.is_deleted(TopicId(partition.topic_id))
            if refusal.code == ErrorCode.UNKNOWN_TOPIC_ID and not gone:
                raise Refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER, "this node does not know the topic (yet)") from None
            raise

    # --- markers --------------------------------------------------------------------------------------------------

    async def write_markers(self, request: broker_pb2.WriteMarkersRequest) -> bytes:
        response = broker_pb2.WriteMarkersResponse(results=[broker_pb2.MarkerResult() for _ in request.markers])
        by_partition: dict[tuple[bytes, int], list[tuple[Marker, common_pb2.PartitionError]]] = {}
        for sent, result in zip(request.markers, response.results, strict=True):
            marker = Marker(
                sent.producer_id, sent.producer_epoch, sent.commit, sent.coordinator_epoch, sent.serial, sent.shard,
                sent.first_offset, sent.transaction_version, sent.last_offset if sent.HasField("last_offset") else -1,
            )
            for partition in sent.partitions:
                place = result.partitions.add(topic_id=partition.topic_id, partition=partition.partition)
                by_partition.setdefault((partition.topic_id, partition.partition), []).append((marker, place))
        waits: list[tuple[asyncio.Future[WriteResult], list[common_pb2.PartitionError]]] = []
        repeated: list[tuple[Replica, int, list[common_pb2.PartitionError]]] = []
        for (topic_id, index), markers in by_partition.items():
            try:
                replica = self._find(common_pb2.TopicPartition(topic_id=topic_id, partition=index))
            except Refusal as refusal:
                for _, place in markers:
                    place.error, place.reason = refusal.code, refusal.reason
                continue
            end, before = -1, replica.machine.log_end_offset
            for (_, place), (stored_below, refused) in zip(
                markers, replica.write_markers([marker for marker, _ in markers]), strict=True
            ):
                if refused is not None:
                    place.error, place.reason = refused.code, refused.reason
                end = max(end, stored_below)
            places = [place for _, place in markers]
            # Every partition's wait begins now: one that began later could miss that its leadership was lost meanwhile.
            waits.append((replica.commitment(end), places))
            if replica.machine.log_end_offset == before:
                repeated.append((replica, replica.leader_epoch, places))
        for stored, places in waits:
            written = await stored
            if written.error:
                _refuse(places, ErrorCode(written.error), written.reason)
        if repeated:
            await asyncio.gather(*(_confirm_repeated(*each) for each in repeated))
        return response.SerializeToString()

    # --- describe -------------------------------------------------------------------------------------------------

    async def describe_producers(self, request: broker_pb2.DescribeProducersRequest) -> bytes:
        return await self._describe_producers(request.partitions, request.producer_ids, seal=request.seal)

    async def describe_producers_publicly(self, request: partitions_pb2.DescribeProducersRequest) -> bytes:
        """Clients cannot seal a producer: that is a part of a commit, which is the coordinator's."""
        return await self._describe_producers(request.partitions, request.producer_ids, seal=False)

    async def _describe_producers(
        self, partitions: Sequence[_TopicPartition], producer_ids: Sequence[int], *, seal: bool
    ) -> bytes:
        async def one(partition: _TopicPartition) -> partitions_pb2.PartitionProducers:
            described = partitions_pb2.PartitionProducers(partition=partitions_pb2.PartitionOfTopicId(
                topic_id=partition.topic_id, partition=partition.partition))
            try:
                replica = self._find(partition)
                machine = replica.machine
                if seal:
                    for producer_id in producer_ids:
                        replica.parked.seal(producer_id)
                if producer_ids:
                    found = [machine.describe_producer(producer_id) for producer_id in producer_ids]
                else:
                    found = list(machine.describe_producers())
                unknown = [each for each in producer_ids if machine.may_have_forgotten(each)]
                await replica.committed(machine.log_end_offset)
                await replica.barrier.passed()
            except Refusal as refusal:
                described.error, described.reason = refusal.code, refusal.reason
                return described
            described.producers.extend(self._state(replica, view) for view in found if view is not None)
            described.unknown_producer_ids.extend(unknown)
            return described

        described = await asyncio.gather(*(one(partition) for partition in partitions))
        return partitions_pb2.DescribeProducersResponse(partitions=described).SerializeToString()

    def _state(self, replica: Replica, view: ProducerView) -> partitions_pb2.ProducerState:
        return partitions_pb2.ProducerState(
            producer_id=view.producer_id, producer_epoch=view.producer_epoch, last_sequence=view.last_sequence,
            last_offset=view.last_offset, last_timestamp=view.last_timestamp,
            coordinator_epoch=view.coordinator_epoch, txn_first_offset=view.txn_first_offset,
            record_count=view.record_count, txn_record_count=view.txn_record_count,
            transactional_id=self._transactional_id_of(replica.id, view.producer_id),
        )

    # --- leases ---------------------------------------------------------------------------------------------------

    async def fence_producer(self, request: broker_pb2.FenceProducerRequest) -> bytes:
        fence = ProducerFence(request.producer_id, request.producer_epoch, request.keep_until_ms)
        try:
            replica = self._find(request.partition)
            offset = replica.append_control(replica.machine.decide_producer_fence(fence))
            view = replica.machine.describe_producer(fence.producer_id)
            await replica.committed(offset + 1)
        except Refusal as refusal:
            return broker_pb2.FenceProducerResponse(error=refusal.code, reason=refusal.reason).SerializeToString()
        assert view is not None
        return broker_pb2.FenceProducerResponse(state=self._state(replica, view)).SerializeToString()

    # --- restore --------------------------------------------------------------------------------------------------

    async def import_batches(self, request: restore_pb2.ImportBatchesRequest) -> bytes:
        try:
            replica = self._partitions.find(request.topic_id, request.partition)
            await import_batches(
                replica, request.first_offset, bytearray(request.batches), request.position, request.size)
        except Refusal as refusal:
            return restore_pb2.ImportBatchesResponse(error=refusal.code, reason=refusal.reason).SerializeToString()
        machine = replica.machine
        return restore_pb2.ImportBatchesResponse(
            log_end_offset=machine.log_end_offset, high_watermark=machine.high_watermark).SerializeToString()

    # --- replicas -------------------------------------------------------------------------------------------------

    async def fetch_snapshot(self, payload: bytes, peer: RpcPeer) -> bytes:
        request = broker_pb2.FetchSnapshotRequest.FromString(payload)
        asking = self._partitions.view.registered(RegistrationEpoch(request.registration_epoch), request.session)
        try:
            if asking is None:
                raise Refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the registration that was shown is not a live one")
            if peer.authenticated and peer.node_id != asking.node_id:
                raise Refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the registration that was shown is another node's")
            replica = self._find(request.partition)
            response = await self._snapshots.piece(
                replica, asking.node_id, request.leader_epoch, request.offset, request.position)
        except Refusal as refusal:
            response = broker_pb2.FetchSnapshotResponse(error=refusal.code, reason=refusal.reason)
        return response.SerializeToString()

    async def describe_replicas(self, request: partitions_pb2.DescribeReplicasRequest) -> bytes:
        replicas = self._partitions.replicas
        wanted = [
            TopicIdPartition(TopicId(asked.topic_id), PartitionIndex(asked.partition)) for asked in request.partitions
        ] or list(replicas)
        described = []
        for partition in wanted:
            replica = replicas.get(partition)
            named = partitions_pb2.PartitionOfTopicId(topic_id=partition.topic_id, partition=partition.partition)
            described.append(
                partitions_pb2.PartitionReplicas(partition=named, error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                if replica is None else _described(named, replica))
        return partitions_pb2.DescribeReplicasResponse(partitions=described).SerializeToString()

    async def describe_offsets(self, request: partitions_pb2.DescribeOffsetsRequest) -> bytes:
        response = partitions_pb2.DescribeOffsetsResponse()
        found: list[Replica | None] = []
        for replica in await asyncio.gather(*(self._confirmed(partition) for partition in request.partitions)):
            answer = response.partitions.add()
            if isinstance(replica, Refusal):
                answer.error, answer.reason = replica.code, replica.reason
                found.append(None)
                continue
            machine = replica.machine
            answer.log_start_offset = machine.log_start_offset
            answer.last_stable_offset = machine.last_stable_offset
            answer.high_watermark = machine.high_watermark
            found.append(replica)
        left = min(request.count_max_bytes, _COUNTED_MAX)
        for leading, start, answer in zip(found, request.count_from, response.partitions, strict=False):
            if leading is not None:
                left -= await _count(leading, start, left, answer)
        return response.SerializeToString()

    async def _confirmed(self, partition: _TopicPartition) -> Replica | Refusal:
        """The replica, once its offsets may be answered, or why not."""
        try:
            replica = self._find(partition)
            await replica.barrier.passed()
            check_high_watermark(replica)
        except Refusal as refusal:
            return refusal
        return replica


async def _count(replica: Replica, start: int, max_bytes: int, answer: partitions_pb2.PartitionOffsets) -> int:
    """Returns the number of bytes read."""
    try:
        counted = await replica.record_counter.count(start, max_bytes)
    except Refusal as refusal:
        answer.error, answer.reason = refusal.code, refusal.reason
        return 0
    except OSError as error:
        answer.error, answer.reason = ErrorCode.KAFKA_STORAGE_ERROR, str(error)
        return 0
    answer.readable, answer.counted_to, answer.counted_bytes = counted
    return counted.read_bytes


def _described(named: partitions_pb2.PartitionOfTopicId, replica: Replica) -> partitions_pb2.PartitionReplicas:
    machine, replication = replica.machine, replica.replication
    me = replica.context.node_id
    if replication is None:
        states = [partitions_pb2.ReplicaState(node_id=me, end_offset=replica.durable_end, in_sync=replica.serving)]
    else:
        states = [
            partitions_pb2.ReplicaState(
                node_id=node, end_offset=replication.end_of(node), in_sync=node in replication.isr,
                lag_bytes=replica.log.bytes_above(max(0, replication.end_of(node))))
            for node in replication.replicas
        ]
    return partitions_pb2.PartitionReplicas(
        partition=named, leader_epoch=replica.leader_epoch, leads=replica.serving,
        log_start_offset=machine.log_start_offset, log_end_offset=machine.log_end_offset,
        high_watermark=machine.high_watermark, size_bytes=replica.log.size(), replicas=states,
    )


async def _confirm_repeated(replica: Replica, leader_epoch: int, places: list[common_pb2.PartitionError]) -> None:
    """Nothing was appended, so only this node's memory shows that there is nothing to end. A barrier confirms that it
    led then. The other partitions' markers were waited for since: a leadership that was lost and won back meanwhile
    confirms nothing."""
    try:
        await replica.barrier.passed()
        if replica.leader_epoch != leader_epoch:
            raise Refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    except Refusal as refusal:
        _refuse(places, refusal.code, refusal.reason)


def _refuse(places: list[common_pb2.PartitionError], code: ErrorCode, reason: str) -> None:
    for place in places:
        if not place.error:
            place.error, place.reason = code, reason
