"""The admin client's calls about replicas: where they are, which one leads, which ones move."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from hapax.client.cluster import COORDINATORS
from hapax.client.connected import Connected
from hapax.client.errors import from_code
from hapax.core.errors import ErrorCode
from hapax.core.types import PartitionIndex, TopicPartition
from hapax.runtime.ports import RpcError
from hapax.wire import messages
from hapax.wire.messages import unknown_tag

if TYPE_CHECKING:
    from hapax.rpc.gen.hapax.v1 import cluster_admin_pb2 as pb

_STANDING_TAG = 10001
"""On each broker of a DescribeCluster answer: why it is not fit. Absent on a fit broker."""


class BrokerInfo(NamedTuple):
    node_id: int
    rack: str
    """Empty: none."""
    standing: str
    """Empty: the broker is fit. Otherwise why it should not lead partitions or get replicas: `draining`, `full disk`,
    ..."""


class ReassignmentInfo(NamedTuple):
    """A partition that moves. `replicas` holds the new replicas, followed by the old ones that will be removed."""

    partition: TopicPartition
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


class ReplicaInfo(NamedTuple):
    """A replica as the leader of its partition sees it."""

    partition: TopicPartition
    node_id: int
    in_sync: bool
    end_offset: int
    """It has synced everything below this offset. -1: it has not reported an offset yet."""
    lag: int
    """The number of the leader's offsets that it lacks."""
    lag_bytes: int
    """The approximate number of bytes that it lacks."""


class Refused(NamedTuple):
    """The result for one partition of a request that the cluster refused."""

    partition: TopicPartition
    code: int
    reason: str


class ReplicationAdmin(Connected):
    """The part of `Admin` that moves replicas and leaderships."""

    async def list_brokers(self) -> list[BrokerInfo]:
        """The live brokers, by id."""
        response = await self._within("listing brokers", lambda: messages.DescribeClusterRequest())
        found = [
            BrokerInfo(each.broker_id, each.rack or "", (unknown_tag(each, _STANDING_TAG) or b"").decode())
            for each in response.brokers]
        return sorted(each for each in found if each.node_id < COORDINATORS.start)

    async def describe_replicas(self, partitions: Mapping[TopicPartition, tuple[str, int]]) -> list[ReplicaInfo]:
        """The state of the partitions' replicas, with (topic id, leader) of each partition. Partitions without a
        leader, or whose leader does not answer, are left out (Hapax only)."""
        from hapax.rpc.gen.hapax.v1 import partitions_pb2 as pb

        addresses, _ = await self._cluster.rpc_addresses()
        ids = {name: UUID(topic_id).bytes for name, (topic_id, _) in partitions.items()}
        names = {(topic_id, name.partition): name for name, topic_id in ids.items()}
        found: list[ReplicaInfo] = []
        for leader in sorted({leader for _, leader in partitions.values() if leader in addresses}):
            request = pb.DescribeReplicasRequest(partitions=[
                pb.PartitionOfTopicId(topic_id=ids[name], partition=name.partition)
                for name, (_, node) in partitions.items() if node == leader])
            try:
                answer = await self._cluster.channel(addresses[leader]).call(
                    "/hapax.v1.Partitions/DescribeReplicas", request.SerializeToString(),
                    self._options["request.timeout.ms"] / 1000)
            except RpcError:
                continue
            for each in pb.DescribeReplicasResponse.FromString(answer).partitions:
                if each.leads:
                    name = names[each.partition.topic_id, PartitionIndex(each.partition.partition)]
                    found += [
                        ReplicaInfo(
                            name, state.node_id, state.in_sync, state.end_offset,
                            max(0, each.log_end_offset - max(state.end_offset, each.log_start_offset)),
                            state.lag_bytes)
                        for state in each.replicas]
        return sorted(found)

    async def alter_reassignments(
        self, targets: Mapping[TopicPartition, Sequence[int] | None], *, keep_replication_factor: bool = False
    ) -> list[Refused]:
        """Starts to move partitions to these replicas, in order of preference. None cancels the running move.

        Returns the refused ones. The others are recorded and proceed by themselves.
        """
        Message = messages.AlterPartitionReassignmentsRequest
        Topic = Message.ReassignableTopic
        by_topic: dict[str, list[Any]] = {}
        for partition, target in targets.items():
            by_topic.setdefault(partition.topic, []).append(Topic.ReassignablePartition(
                partition_index=partition.partition, replicas=None if target is None else list(target)))
        response = await self._within("reassigning", lambda: Message(
            timeout_ms=self._options["request.timeout.ms"],
            allow_replication_factor_change=not keep_replication_factor,
            topics=[Topic(name=name, partitions=partitions) for name, partitions in by_topic.items()]))
        if response.error_code:
            raise from_code(response.error_code, "reassigning", response.error_message)
        return [
            Refused(_partition(topic.name, answer.partition_index), answer.error_code, _reason(answer))
            for topic in response.responses for answer in topic.partitions if answer.error_code]

    async def list_reassignments(self) -> list[ReassignmentInfo]:
        """All running moves, by topic and partition."""
        Message = messages.ListPartitionReassignmentsRequest
        response = await self._within(
            "listing reassignments", lambda: Message(timeout_ms=self._options["request.timeout.ms"], topics=None))
        if response.error_code:
            raise from_code(response.error_code, "listing reassignments", response.error_message)
        return sorted(
            ReassignmentInfo(
                _partition(topic.name, each.partition_index), tuple(each.replicas), tuple(each.adding_replicas),
                tuple(each.removing_replicas))
            for topic in response.topics for each in topic.partitions)

    async def elect_leaders(
        self, partitions: Iterable[TopicPartition] | None = None, *, unclean: bool = False
    ) -> tuple[list[TopicPartition], list[Refused]]:
        """Makes the preferred replica of each partition (None: of all) its leader. `unclean`: where no in-sync replica
        is alive, elects another one, which may lack acknowledged records. Returns the partitions that got another
        leader, and those that were refused. Partitions that needed no election are in neither."""
        Message = messages.ElectLeadersRequest
        named = None
        if partitions is not None:
            by_topic: dict[str, list[int]] = {}
            for partition in partitions:
                by_topic.setdefault(partition.topic, []).append(partition.partition)
            named = [Message.TopicPartitions(topic=name, partitions=indexes) for name, indexes in by_topic.items()]
        response = await self._within("electing leaders", lambda: Message(
            election_type=int(unclean), topic_partitions=named, timeout_ms=self._options["request.timeout.ms"]))
        if response.error_code:
            raise from_code(response.error_code, "electing leaders")
        elected, refused = [], []
        for topic in response.replica_election_results:
            for answer in topic.partition_result:
                partition = _partition(topic.topic, answer.partition_id)
                if not answer.error_code:
                    elected.append(partition)
                elif answer.error_code != ErrorCode.ELECTION_NOT_NEEDED:
                    refused.append(Refused(partition, answer.error_code, _reason(answer)))
        return elected, refused

    async def set_draining(self, brokers: Iterable[int], draining: bool) -> None:
        """A draining broker leads no partition that another broker can lead, and gets no new replicas (Hapax only)."""
        from hapax.rpc.gen.hapax.v1 import cluster_admin_pb2 as pb

        ids = list(brokers)
        await self._set_replication(
            pb.SetReplicationRequest(drain=ids) if draining else pb.SetReplicationRequest(undrain=ids))

    async def set_throttle(self, bytes_per_second: int) -> None:
        """Limits each broker's rate of copying the replicas that reassignments add, until these have ended. 0: the
        brokers' own settings apply (Hapax only)."""
        from hapax.rpc.gen.hapax.v1 import cluster_admin_pb2 as pb

        await self._set_replication(pb.SetReplicationRequest(bytes_per_second=bytes_per_second))

    async def _set_replication(self, request: pb.SetReplicationRequest) -> None:
        from hapax.rpc.gen.hapax.v1 import cluster_admin_pb2 as pb

        async def attempt() -> None:
            answer = pb.SetReplicationResponse.FromString(
                await self._controller_rpc("SetReplication", request))
            if answer.error:
                raise from_code(answer.error, "configuring replication", answer.reason)

        await self._cluster.within(self._timeout, "configuring replication", attempt)

    async def acting_controller(self) -> str:
        """The address of the acting controller's calls. Raises RetriableError while there is none (Hapax only)."""
        return await self._cluster.controller_address()

    async def _controller_rpc(self, method: str, request: Any) -> bytes:
        """`request`: a protobuf message of the Controller service. Raises RpcError once the request may have been sent.
        Before that, raises RetriableError where no controller acts, or NotHapaxError."""
        channel = self._cluster.channel(await self._cluster.controller_address())
        return await channel.call(
            f"/hapax.v1.ClusterAdmin/{method}", request.SerializeToString(),
            self._options["request.timeout.ms"] / 1000)

    async def _within(self, what: str, request: Any) -> Any:
        """Any node can answer. It asks the controller where it has to. The request may be repeated safely."""
        return await self._cluster.within(self._timeout, what, lambda: self._cluster.call_any(request))


def _partition(topic: str, index: int) -> TopicPartition:
    return TopicPartition(topic, PartitionIndex(index))


def _reason(answer: Any) -> str:
    return answer.error_message or ErrorCode(answer.error_code).name
