"""What the commands ask of a cluster: administrative calls of the Kafka protocol, and Hapax's leases.

Every method returns plain dicts, which the commands print as tables or as JSON.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any, NoReturn, TypeVar

import typer

from hapax.cli import output
from hapax.client.cluster import Cluster
from hapax.client.environment import RealPorts
from hapax.client.errors import FatalError, HapaxError, RetriableError, from_code
from hapax.client.settings import Options
from hapax.core.errors import ErrorCode
from hapax.core.types import PartitionIndex, TopicPartition
from hapax.kafka import messages
from hapax.kafka.peer import PeerError, PeerUnsupported

T = TypeVar("T")
Record = dict[str, Any]

Bootstrap = Annotated[
    str, typer.Option("--bootstrap", help="Where to find the cluster: host:port,...", envvar="HAPAX_BOOTSTRAP")
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON instead of a table.")]
DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
_FIND_MS = 5_000
_PATIENCE_MS = 15_000
_MISSING = frozenset({
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
})  # fmt: skip


def administer(bootstrap: str, work: Callable[[Administration], Awaitable[T]]) -> T:
    """Runs `work` against a cluster; a failure ends the command with one line and an exit code that says which."""

    async def run() -> T:
        options = Options(
            {"bootstrap.servers": bootstrap, "client.id": "hapax-command", "request.timeout.ms": _FIND_MS}, "a"
        )
        cluster = Cluster(options, RealPorts())
        try:
            await cluster.start()
        except HapaxError as error:
            output.fail(str(error), output.NOT_RUNNING)
        try:
            return await work(Administration(cluster))
        finally:
            await cluster.close()

    try:
        return asyncio.run(run())
    except HapaxError as error:
        fail(error)
    except (PeerError, PeerUnsupported) as error:
        output.fail(str(error))
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def fail(error: HapaxError) -> NoReturn:
    """Exit code 4 for what does not exist, else 1."""
    output.fail(str(error), output.NOT_FOUND if error.code in _MISSING else output.FAILED)


class Administration:
    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    async def _retried(self, what: str, attempt: Callable[[], Awaitable[T]]) -> T:
        return await self.cluster.within(_PATIENCE_MS, what, attempt)

    async def _controller(self, request: Callable[[], Any]) -> Any:
        """The answer of the node that takes administrative calls."""

        async def attempt() -> Any:
            peer = await self.cluster.peer(self.cluster.controller_id, "coordinator")
            return await peer.call(request(), timeout_ms=2 * _PATIENCE_MS)

        return await self._retried("administration", attempt)

    # --- topics ---

    async def create_topic(self, name: str, partitions: int, replication: int, config: Mapping[str, str]) -> Record:
        kind = messages.CreateTopicsRequest
        topic = kind.CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=replication,
            assignments=[],
            configs=[kind.CreatableTopic.CreatableTopicConfig(name=k, value=v) for k, v in config.items()],
        )
        response = await self._controller(
            lambda: kind(topics=[topic], timeout_ms=_PATIENCE_MS, validate_only=False)
        )
        answer = response.topics[0]
        _check(answer.error_code, f"creating {name}", answer.error_message)
        return {"topic": name, "topic_id": _uuid(answer.topic_id), "partitions": answer.num_partitions}

    async def delete_topic(self, name: str) -> None:
        kind = messages.DeleteTopicsRequest

        def request() -> Any:
            return kind(
                topics=[kind.DeleteTopicState(name=name, topic_id=None)], topic_names=[name], timeout_ms=_PATIENCE_MS
            )

        answer = (await self._controller(request)).responses[0]
        _check(answer.error_code, f"deleting {name}", answer.error_message)

    async def extend_topic(self, name: str, partitions: int) -> None:
        kind = messages.CreatePartitionsRequest
        topic = kind.CreatePartitionsTopic(name=name, count=partitions, assignments=None)
        response = await self._controller(
            lambda: kind(topics=[topic], timeout_ms=_PATIENCE_MS, validate_only=False)
        )
        answer = response.results[0]
        _check(answer.error_code, f"extending {name}", answer.error_message)

    async def topics(self, names: Sequence[str] | None = None) -> list[Record]:
        """All topics, or those named. Raises FatalError for one that is not there."""
        kind = messages.MetadataRequest
        asked = None if names is None else [kind.MetadataRequestTopic(name=name) for name in names]
        response = await self._retried(
            "metadata", lambda: self.cluster.call_any(lambda: kind(topics=asked, allow_auto_topic_creation=False))
        )
        found = []
        for topic in sorted(response.topics, key=lambda each: str(each.name)):
            _check(topic.error_code, f"topic {topic.name}", None)
            found.append({
                "topic": topic.name,
                "topic_id": _uuid(topic.topic_id),
                "internal": topic.is_internal,
                "partitions": [
                    {
                        "partition": each.partition_index,
                        "leader": each.leader_id,
                        "leader_epoch": each.leader_epoch,
                        "replicas": list(each.replica_nodes),
                        "in_sync": list(each.isr_nodes),
                    }
                    for each in sorted(topic.partitions, key=lambda each: int(each.partition_index))
                ],
            })  # fmt: skip
        return found

    async def offsets(self, topic: str, partitions: Sequence[int]) -> dict[int, tuple[int, int, int]]:
        """First offset, last stable offset and high watermark of each partition."""
        marks: list[dict[int, int]] = []
        for timestamp, isolation in ((-2, 0), (-1, 1), (-1, 0)):
            marks.append(await self._list_offsets(topic, partitions, timestamp, isolation))
        return {partition: (marks[0][partition], marks[1][partition], marks[2][partition]) for partition in partitions}

    async def _list_offsets(
        self, topic: str, partitions: Sequence[int], timestamp: int, isolation: int
    ) -> dict[int, int]:
        kind = messages.ListOffsetsRequest
        part = kind.ListOffsetsTopic.ListOffsetsPartition
        found: dict[int, int] = {}
        for partition in partitions:
            def request(partition: int = partition) -> Any:
                asked = part(partition_index=partition, current_leader_epoch=-1, timestamp=timestamp)
                named = kind.ListOffsetsTopic(name=topic, partitions=[asked])
                return kind(replica_id=-1, isolation_level=isolation, topics=[named], timeout_ms=_PATIENCE_MS)

            response = await self._leader(topic, partition, request)
            answer = response.topics[0].partitions[0]
            _check(answer.error_code, f"offsets of {topic}-{partition}", None)
            found[partition] = answer.offset
        return found

    async def _leader(self, topic: str, partition: int, request: Callable[[], Any]) -> Any:
        """The answer of a partition's leader."""

        async def attempt() -> Any:
            await self.cluster.topic(topic, _PATIENCE_MS)
            leader = self.cluster.leader(TopicPartition(topic, PartitionIndex(partition)))
            if leader is None:
                _check(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic}-{partition}", None)
            assert leader is not None
            if leader.node_id < 0:
                raise RetriableError(f"{topic}-{partition} has no leader", code=ErrorCode.LEADER_NOT_AVAILABLE)
            return await (await self.cluster.peer(leader.node_id)).call(request())

        return await self._retried(f"{topic}-{partition}", attempt)

    # --- transactions ---

    async def transactions(self, states: Sequence[str], pattern: str | None) -> list[Record]:
        """Of all coordinators. `states` are Kafka's names (Ongoing, PrepareCommit, ...); [] for all."""
        kind = messages.ListTransactionsRequest
        found = []
        for node_id in sorted(self.cluster.nodes):
            async def attempt(node_id: int = node_id) -> Any:
                peer = await self.cluster.peer(node_id, "coordinator")
                request = kind(
                    state_filters=list(states), producer_id_filters=[], duration_filter=-1,
                    transactional_id_pattern=pattern,
                )  # fmt: skip
                return await peer.call(request)

            response = await self._retried(f"transactions of node {node_id}", attempt)
            _check(response.error_code, f"listing transactions of node {node_id}", None)
            found += [
                {
                    "transactional_id": each.transactional_id,
                    "producer_id": each.producer_id,
                    "state": each.transaction_state,
                    "coordinator": node_id,
                }
                for each in response.transaction_states
            ]
        return sorted(found, key=lambda each: str(each["transactional_id"]))

    async def describe_transaction(self, transactional_id: str) -> Record:
        kind = messages.DescribeTransactionsRequest
        response = await self._coordinator(
            transactional_id, lambda: kind(transactional_ids=[transactional_id])
        )
        answer = response.transaction_states[0]
        _check(answer.error_code, f"transactional id {transactional_id}", None)
        return {
            "transactional_id": answer.transactional_id,
            "state": answer.transaction_state,
            "producer_id": answer.producer_id,
            "producer_epoch": answer.producer_epoch,
            "timeout_ms": answer.transaction_timeout_ms,
            "start_ms": answer.transaction_start_time_ms,
            "coordinator": await self.cluster.coordinator("transaction", transactional_id),
            "partitions": [f"{topic.topic}-{index}" for topic in answer.topics for index in topic.partitions],
        }

    async def abort_transaction(self, transactional_id: str) -> Record:
        """Fences the producer that holds the id and aborts what it has open, as a new instance of it would."""
        await self.describe_transaction(transactional_id)
        kind = messages.InitProducerIdRequest

        def request() -> Any:
            return kind(
                transactional_id=transactional_id, transaction_timeout_ms=60_000, producer_id=-1, producer_epoch=-1
            )

        async def attempt() -> Any:
            response = await self._coordinator(transactional_id, request)
            _check(response.error_code, f"aborting {transactional_id}", None)
            return response

        answer = await self._retried(f"aborting {transactional_id}", attempt)
        return {
            "transactional_id": transactional_id,
            "producer_id": answer.producer_id,
            "producer_epoch": answer.producer_epoch,
        }

    async def abort_hanging(self, topic: str, partition: int, producer_id: int) -> Record:
        """Writes an ABORT marker for a transaction that is open on a partition while no coordinator knows it."""
        found = [
            each for each in await self.producers(topic, [partition]) if each["producer_id"] == producer_id
        ]
        if not found or found[0]["transaction_start"] < 0:
            raise FatalError(
                f"producer {producer_id} has no open transaction in {topic}-{partition}",
                code=ErrorCode.INVALID_PRODUCER_ID_MAPPING,
            )
        kind = messages.WriteTxnMarkersRequest
        marker = kind.WritableTxnMarker

        def request() -> Any:
            named = marker.WritableTxnMarkerTopic(name=topic, partition_indexes=[partition])
            one = marker(
                producer_id=producer_id,
                producer_epoch=found[0]["producer_epoch"],
                transaction_result=False,
                topics=[named],
                coordinator_epoch=max(found[0]["coordinator_epoch"], 0),
                transaction_version=1,
            )
            return kind(markers=[one])

        response = await self._leader(topic, partition, request)
        answer = response.markers[0].topics[0].partitions[0]
        _check(answer.error_code, f"aborting producer {producer_id} in {topic}-{partition}", None)
        return {"topic": topic, "partition": partition, "producer_id": producer_id}

    async def _coordinator(self, transactional_id: str, request: Callable[[], Any]) -> Any:
        async def attempt() -> Any:
            try:
                peer = await self.cluster.coordinator_peer("transaction", transactional_id)
                return await peer.call(request())
            except PeerError:
                self.cluster.forget_coordinator("transaction", transactional_id)
                raise

        return await self._retried(f"transactional id {transactional_id}", attempt)

    # --- producers ---

    async def producers(self, topic: str, partitions: Sequence[int]) -> list[Record]:
        """The producers that each partition knows."""
        kind = messages.DescribeProducersRequest
        found = []
        for partition in partitions:
            def request(partition: int = partition) -> Any:
                return kind(topics=[kind.TopicRequest(name=topic, partition_indexes=[partition])])

            response = await self._leader(topic, partition, request)
            answer = response.topics[0].partitions[0]
            _check(answer.error_code, f"producers of {topic}-{partition}", answer.error_message)
            found += [
                {
                    "partition": partition,
                    "producer_id": each.producer_id,
                    "producer_epoch": each.producer_epoch,
                    "last_sequence": each.last_sequence,
                    "last_timestamp": each.last_timestamp,
                    "coordinator_epoch": each.coordinator_epoch,
                    "transaction_start": each.current_txn_start_offset,
                }
                for each in sorted(answer.active_producers, key=lambda each: int(each.producer_id))
            ]
        return found

    async def partitions_of(self, topic: str, chosen: Sequence[int] | None = None) -> list[int]:
        """All partitions of a topic, or those chosen, which must exist."""
        known = sorted((await self.cluster.topic(topic, _PATIENCE_MS)).partitions)
        for partition in chosen or ():
            if partition not in known:
                _check(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic}-{partition}", None)
        return list(chosen) if chosen else known

    # --- leases ---

    async def lease_call(self, method: str, request: Any, response: Any) -> Any:
        """A call of hapax.v1.ProducerLeases; the answer's error becomes an exception."""

        async def attempt() -> Any:
            _, allocator = await self.cluster.rpc_addresses()
            if allocator is None:
                raise RetriableError("no PID allocator is registered", code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
            channel = self.cluster.channel(allocator)
            payload = await channel.call(f"/hapax.v1.ProducerLeases/{method}", request.SerializeToString(), 10.0)
            answer = response.FromString(payload)
            _check(getattr(answer, "error", 0), method, getattr(answer, "reason", ""))
            return answer

        return await self._retried(method, attempt)


def _check(code: int, what: str, reason: str | None) -> None:
    if code:
        raise from_code(code, what, reason)


def _uuid(value: Any) -> str:
    return str(value) if value is not None else ""
