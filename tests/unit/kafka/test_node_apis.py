"""What every node answers, over the real controller on virtual time, in every version that carries it."""

from __future__ import annotations

import asyncio
import struct
import uuid
from collections.abc import Sequence
from typing import Any

import pytest

from hapax.codec.metadata import OUTSIDE_HOST, OutsideRecord
from hapax.core.errors import ErrorCode
from hapax.core.hashing import shard_of
from hapax.core.types import NodeId
from hapax.kafka.api.describe_cluster import ALLOCATOR_RPC_TAG, NODE_RPC_TAG
from hapax.kafka.api.metadata import LISTED_AFTER_S
from hapax.kafka.node import node_table
from hapax.kafka.registry import register_other_roles
from hapax.kafka.server import KafkaServer
from hapax.runtime.cluster import ClusterView
from hapax.runtime.ports import Chunk, Delete, Put
from hapax.runtime.settings import Settings
from hapax.wire import messages
from hapax.wire.image_revision import image_revision
from hapax.wire.messages import unknown_tag
from unit.control_world import KEYS, ControlWorld, is_ready, run
from unit.kafka.samples import REQUESTS, message

TXN, GROUP = 1, 0


class AnsweringNode:
    """The common part of a node, by default as node 7, which is not registered, with a client connected to it."""

    serial = 1
    peer = "10.0.0.1:5000"

    def __init__(self, world: ControlWorld, *, node_id: int = 7, broker: bool = True, **settings: Any) -> None:
        self._world = world
        self._broker = broker
        self._settings = Settings(node_id=node_id, **settings)
        self._answers: asyncio.Queue[bytes] = asyncio.Queue()
        self.closed_for: str | None = None
        self.reading = True

    async def start(self, wait: bool = True) -> AnsweringNode:
        self._process = self._world.process("node")
        await self._world.inside(self._process, self._start())
        if wait:
            await self.view.wait_for(is_ready, 60)
        return self

    async def _start(self) -> None:
        ports = self._world.ports(self._process)
        self.view = ClusterView(ports.metadata, "test", ports.random)
        await self.view.start()
        table = node_table(
            NodeId(self._settings.node_id), self.view, ports.network, self._settings, broker=self._broker)
        register_other_roles(table)
        self._names = {api.key: api for api in table.advertised()}
        server = KafkaServer(ports.network, table)
        self.sessions = {name: server._accept(self, name) for name in ("PLAINTEXT", "EXTERNAL")}

    async def ask(
        self, name: str, version: int, *, by: str = "PLAINTEXT", client_id: str | None = None, **fields: Any
    ) -> Any:
        """By the listener `by`: encodes, hands the frame over inside the node's process, decodes what is sent back."""
        request = getattr(messages, f"{name}Request")(**fields)
        api = next(api for api in self._names.values() if api.name == name)
        flexible = version >= api.first_flexible
        named = b"" if client_id is None else client_id.encode()
        frame = struct.pack(">hhih", api.key, version, 1, -1 if client_id is None else len(named)) + named
        frame += b"\0" if flexible else b""
        frame += bytes(request.encode(version=version))

        async def inside() -> bytes:
            self.sessions[by].on_frame(memoryview(frame))
            return await self._answers.get()

        answer = await self._world.inside(self._process, inside())
        body = memoryview(answer)[5 if flexible and name != "ApiVersions" else 4 :]
        return getattr(messages, f"{name}Response").decode(body, version=version)

    def send(self, chunks: Sequence[Chunk]) -> None:
        self._answers.put_nowait(b"".join(bytes(chunk) for chunk in chunks))  # type: ignore[arg-type]

    def unsent_bytes(self) -> int:
        return 0

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def drop(self) -> None: ...
    def close(self, reason: str = "") -> None:
        self.closed_for = reason
        raise AssertionError(reason)


async def cluster(world: ControlWorld, **options: Any) -> AnsweringNode:
    """A controller, two brokers, two coordinators, an allocator, and the node under test."""
    await world.controller()
    await world.allocator()
    for node_id in (0, 1):
        await world.broker(node_id)
    for node_id in (100, 101):
        await world.coordinator(node_id)
    return await AnsweringNode(world, **options).start()


def creatable(name: str, partitions: int = 3, factor: int = 1, **config: str | None) -> Any:
    topic = messages.CreateTopicsRequest.CreatableTopic
    return topic(
        name=name, num_partitions=partitions, replication_factor=factor, assignments=[],
        configs=[topic.CreatableTopicConfig(name=n.replace("_", "."), value=v) for n, v in config.items()],
    )


async def create(node: AnsweringNode, *topics: Any, version: int = 7, **fields: Any) -> dict[str, Any]:
    answer = await node.ask(
        "CreateTopics", version, **{"topics": list(topics), "timeout_ms": 5000, "validate_only": False, **fields})
    return {result.name: result for result in answer.topics}


async def metadata(node: AnsweringNode, *names: str, version: int = 12, create: bool = False) -> dict[str, Any]:
    topic = messages.MetadataRequest.MetadataRequestTopic
    answer = await node.ask(
        "Metadata", version, topics=[topic(name=name, topic_id=None) for name in names],
        allow_auto_topic_creation=create)
    return {topic.name: topic for topic in answer.topics}


# --- Metadata -----------------------------------------------------------------------------------------------------


def test_clients_are_told_the_addresses_of_the_listener_that_they_came_by() -> None:
    async def scenario(world: ControlWorld) -> None:
        await world.controller()
        await world.broker(0, listeners=(("EXTERNAL", "outside", 30_000),))
        await world.broker(1)  # it has the nodes' own listener only
        await world.coordinator(100, listeners=(("EXTERNAL", "outside", 30_100),))
        node = await AnsweringNode(world).start()
        inside = {0: 9000, 1: 9001, 100: 9100}
        for by, ports in (("PLAINTEXT", inside), ("EXTERNAL", {**inside, 0: 30_000, 100: 30_100})):
            for _ in range(2):  # the second answer is a kept one
                answer = await node.ask("Metadata", 12, by=by, topics=[], allow_auto_topic_creation=False)
                assert {each.node_id: each.port for each in answer.brokers} == ports
                assert (answer.brokers[0].host == "outside") == (by == "EXTERNAL")
            described = await node.ask("DescribeCluster", 1, by=by, endpoint_type=1)
            assert {each.broker_id: each.port for each in described.brokers} == ports
            found = await node.ask("FindCoordinator", 4, by=by, key_type=TXN, coordinator_keys=["a"])
            assert found.coordinators[0].port == ports[100]
            found = await node.ask("FindCoordinator", 3, by=by, key_type=TXN, key="a")
            assert (found.host, found.port) == ("outside" if by == "EXTERNAL" else "127.0.0.1", ports[100])

    run(scenario)


def test_a_node_is_told_outside_once_its_load_balancer_has_an_address() -> None:
    """As it is never told an address that leads nowhere, its clients wait for it as for a leader."""
    async def scenario(world: ControlWorld) -> None:
        await world.controller()
        for broker in (0, 1):
            await world.broker(broker, listeners=(("EXTERNAL", OUTSIDE_HOST, 9095),))
        await world.coordinator(100, listeners=(("EXTERNAL", OUTSIDE_HOST, 9095),))
        node = await AnsweringNode(world).start()

        async def told(by: str) -> tuple[dict[int, str], dict[int, str], tuple[int, str]]:
            answer = await node.ask("Metadata", 12, by=by, topics=[], allow_auto_topic_creation=False)
            described = await node.ask("DescribeCluster", 1, by=by, endpoint_type=1)
            (found,) = (await node.ask(
                "FindCoordinator", 4, by=by, key_type=TXN, coordinator_keys=["a"])).coordinators
            old = await node.ask("FindCoordinator", 3, by=by, key_type=TXN, key="a")
            assert (old.error_code, old.host, old.port) == (found.error_code, found.host, found.port)
            return ({each.node_id: f"{each.host}:{each.port}" for each in answer.brokers},
                    {each.broker_id: f"{each.host}:{each.port}" for each in described.brokers},
                    (found.error_code, f"{found.host}:{found.port}"))

        inside = await told("PLAINTEXT")
        unreachable = ErrorCode.COORDINATOR_NOT_AVAILABLE, ":-1"
        assert await told("EXTERNAL") == ({}, {}, unreachable)
        nodes = {NodeId(0): ("192.0.2.1", 9095)}
        steps: tuple[dict[NodeId, tuple[str, int]], ...] = (
            {}, {NodeId(100): ("b.example", 443), NodeId(1): ("192.0.2.3", 9095)}, {NodeId(0): ("192.0.2.9", 1)})
        for more in steps:
            nodes |= more
            result = world.model.txn([], [Put(KEYS.outside, OutsideRecord(nodes).encode())])
            await node.view.reached(result.revision, 10)
            addresses = {int(each): f"{host}:{port}" for each, (host, port) in nodes.items()}
            coordinator = (0, "b.example:443") if NodeId(100) in nodes else unreachable
            untold = {each.node_id for each in node.view.nodes() if node.view.untold(each)}
            assert untold == {0, 1, 100} - nodes.keys()
            assert await told("EXTERNAL") == (addresses, addresses, coordinator)
            assert await told("PLAINTEXT") == inside
        result = world.model.txn([], [Delete(KEYS.outside)])
        await node.view.reached(result.revision, 10)
        assert await told("EXTERNAL") == ({}, {}, unreachable)

    run(scenario)


def test_metadata_names_nodes_leaders_and_itself_for_administration() -> None:
    async def scenario(world: ControlWorld) -> None:
        node = await cluster(world, node_id=1)
        await create(node, creatable("flights", 4))
        for version in range(14):
            answer = await node.ask("Metadata", version, topics=None if version else [])
            assert {b.node_id: b.port for b in answer.brokers} == {0: 9000, 1: 9001, 100: 9100, 101: 9101}
            if version >= 1:
                assert answer.controller_id == 1
            if version >= 2:
                assert answer.cluster_id == "test"
            assert image_revision(answer) == (node.view.revision if version >= 9 else None)
            topics = {topic.name: topic for topic in answer.topics}
            assert topics.keys() == {"flights", "__transaction_state", "__consumer_offsets", "__hapax_events"}
            partitions = topics["flights"].partitions
            assert [p.partition_index for p in partitions] == [0, 1, 2, 3]
            assert {p.leader_id for p in partitions} == {0, 1}
            assert all(p.replica_nodes == p.isr_nodes == [p.leader_id] and p.error_code == 0 for p in partitions)
            if version >= 1:
                assert topics["__transaction_state"].is_internal and not topics["flights"].is_internal
            if version >= 7:
                assert all(p.leader_epoch >= 0 for p in partitions)

    run(scenario)


def test_a_coordinator_that_went_away_stays_listed_for_a_while() -> None:
    """librdkafka forgets a node that is not listed, and may then wait for it without end."""

    async def scenario(world: ControlWorld) -> None:
        node = await cluster(world)
        gone, _ = await world.coordinator(102)
        await node.view.wait_for(lambda view: view.node(NodeId(102)) is not None, 60)

        async def listed(name: str, version: int, **fields: Any) -> set[int]:
            return {broker.node_id if name == "Metadata" else broker.broker_id
                    for broker in (await node.ask(name, version, **fields)).brokers}

        world.kill(gone)
        await node.view.wait_for(lambda view: view.node(NodeId(102)) is None, 60)
        assert 102 in await listed("Metadata", 9, topics=[])
        assert 102 not in await listed(
            "DescribeCluster", 0, include_cluster_authorized_operations=False), "which tells who is live"
        await asyncio.sleep(LISTED_AFTER_S / 2)
        revision = node.view.revision
        assert 102 in await listed("Metadata", 9, topics=[])
        await asyncio.sleep(LISTED_AFTER_S / 2 + 1)
        assert node.view.revision == revision, "nothing else has changed"
        assert 102 not in await listed("Metadata", 9, topics=[])

    run(scenario)


def test_an_empty_list_of_topics_asks_for_none_from_version_1() -> None:
    async def scenario(world: ControlWorld) -> None:
        node = await cluster(world)
        assert (await node.ask("Metadata", 1, topics=[])).topics == []

    run(scenario)


def test_topics_are_found_by_id() -> None:
    async def scenario(world: ControlWorld) -> None:
        node = await cluster(world)
        made = (await create(node, creatable("flights")))["flights"]
        topic = messages.MetadataRequest.MetadataRequestTopic
        answer = await node.ask("Metadata", 12, allow_auto_topic_creation=True, topics=[
            topic(name=None, topic_id=made.topic_id), topic(name=None, topic_id=uuid.UUID(int=5)),
            topic(name=None, topic_id=None),
        ])
        assert [(t.name, t.error_code) for t in answer.topics] == [
            ("flights", 0), (None, ErrorCode.UNKNOWN_TOPIC_ID), (None, ErrorCode.UNKNOWN_TOPIC_ID)]
        answer = await node.ask("Metadata", 12, allow_auto_topic_creation=True, topics=[  # as the Java client asks
            topic(name="", topic_id=made.topic_id), topic(name="", topic_id=uuid.UUID(int=5))])
        assert [(t.name, t.error_code) for t in answer.topics] == [
            ("flights", 0), (None, ErrorCode.UNKNOWN_TOPIC_ID)]
        for version in (10, 11):  # a name may be left out of the question, but not of the answer
            answer = await node.ask("Metadata", version, allow_auto_topic_creation=True, topics=[
                topic(name=None, topic_id=uuid.UUID(int=5))])
            assert [(t.name, t.error_code) for t in answer.topics] == [("", ErrorCode.UNKNOWN_TOPIC_ID)]

    run(scenario)


def test_a_leader_is_named_only_once_it_accepts_writes() -> None:
    async def scenario(world: ControlWorld) -> None:
        await world.controller()
        await world.broker(0, accepts=False)
        node = await AnsweringNode(world).start(wait=False)
        result = (await create(node, creatable("slow", 1), timeout_ms=500))["slow"]
        assert result.error_code == ErrorCode.REQUEST_TIMED_OUT
        (partition,) = (await metadata(node, "slow"))["slow"].partitions
        assert (partition.error_code, partition.leader_id) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
        assert partition.replica_nodes == [0]

    run(scenario)


def test_replicas_whose_node_is_gone_are_offline() -> None:
    async def scenario(world: ControlWorld) -> None:
        await world.controller()
        broker = await world.broker(0)
        node = await AnsweringNode(world).start(wait=False)
        await create(node, creatable("flights", 1))
        world.kill(broker.process)
        await node.view.wait_for(lambda view: view.node(NodeId(0)) is None, 60)
        (partition,) = (await metadata(node, "flights"))["flights"].partitions
        assert (partition.error_code, partition.leader_id) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
        assert partition.offline_replicas == [0]

    run(scenario)


def test_an_unknown_topic_is_created_where_the_client_and_the_setting_allow_it() -> None:
    async def scenario(world: ControlWorld) -> None:
        node = await cluster(world)
        assert (await metadata(node, "new"))["new"].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        made = (await metadata(node, "new", "newer", create=True))
        assert {t.error_code for t in made.values()} == {0}
        assert all(p.leader_id >= 0 for t in made.values() for p in t.partitions)
        before_4 = await metadata(node, "old.client", version=3)
        assert before_4["old.client"].error_code == 0
        named = await metadata(node, "__transaction_state", "a/b", "..", "", "x" * 250, create=True)
        assert [t.error_code for t in named.values()] == [0, 17, 17, 17, 17]

    run(scenario)


def test_a_cluster_may_forbid_creation_at_first_use() -> None:
    async def scenario(world: ControlWorld) -> None:
        node = await cluster(world, auto_create_topics_enable=False)
        answer = await metadata(node, "new", create=True)
        assert answer["new"].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    run(scenario)


def test_clients_that_name_the_same_new_topic_at_once_share_one_creation() -> None:
    async def scenario(world: ControlWorld) -> None:
        node = await cluster(world)
        answers = await asyncio.gather(*(metadata(node, "new", f"own-{n}", create=True) for n in range(5)))
        assert all(t.error_code == 0 for answer in answers for t in answer.values())

    run(scenario)


def test_without_a_controller_a_new_topic_is_told_to_be_asked_for_again() -> None:
    async def scenario(world: ControlWorld) -> None:
        node = await AnsweringNode(world).start(wait=False)
        answer = await metadata(node, "new", create=True)
        assert answer["new"].error_code == ErrorCode.LEADER_NOT_AVAILABLE

    run(scenario)


# --- FindCoordinator ----------------------------------------------------------------------------------------------


def test_the_owner_of_the_ids_shard_coordinates_it() -> None:
    async def scenario(world: ControlWorld) -> None:
        node = await cluster(world)
        keys = ["", "a", "polygenelubricants", "ключ", "spark-query-1"]
        for key_type, kind in ((TXN, "txn"), (GROUP, "group")):
            owners = [node.view.shard_owner(kind, shard_of(key, 50)).node_id for key in keys]  # type: ignore[arg-type, union-attr]
            for version in range(0 if key_type == GROUP else 1, 4):
                found = [await node.ask("FindCoordinator", version, key=key, key_type=key_type) for key in keys]
                assert [(f.error_code, f.node_id, f.port) for f in found] == [(0, o, 9000 + o) for o in owners]
            for version in (4, 5, 6):
                batch = await node.ask("FindCoordinator", version, key_type=key_type, coordinator_keys=keys)
                assert [(c.key, c.error_code, c.node_id) for c in batch.coordinators] == [
                    (k, 0, o) for k, o in zip(keys, owners, strict=True)]
        assert {o for o in owners} == {100, 101}
        unknown = await node.ask("FindCoordinator", 4, key_type=2, coordinator_keys=["share"])
        assert unknown.coordinators[0].error_code == ErrorCode.INVALID_REQUEST

    run(scenario)


def test_a_shard_without_an_owner_is_not_available_and_many_of_them_take_no_longer() -> None:
    async def scenario(world: ControlWorld) -> None:
        await world.controller()
        await world.broker()
        node = await AnsweringNode(world).start(wait=False)
        await node.view.wait_for(lambda view: view.cluster is not None, 60)
        began = world.loop.time()
        answer = await node.ask("FindCoordinator", 4, key_type=TXN, coordinator_keys=[f"t-{n}" for n in range(60)])
        assert {c.error_code for c in answer.coordinators} == {ErrorCode.COORDINATOR_NOT_AVAILABLE}
        assert {c.node_id for c in answer.coordinators} == {-1}
        assert world.loop.time() - began < 4

    run(scenario)


# --- DescribeCluster ----------------------------------------------------------------------------------------------


def test_describe_cluster_says_where_each_node_and_an_allocator_answer_grpc() -> None:
    async def scenario(world: ControlWorld) -> None:
        node = await cluster(world, node_id=1)
        allocator = node.view.nodes("pid")[0].public_rpc_address
        for version in range(3):
            answer = await node.ask(
                "DescribeCluster", version, include_cluster_authorized_operations=False, endpoint_type=1)
            assert (answer.error_code, answer.cluster_id, answer.controller_id) == (0, "test", 1)
            assert unknown_tag(answer, ALLOCATOR_RPC_TAG) == allocator.encode()
            addresses = {b.broker_id: unknown_tag(b, NODE_RPC_TAG) for b in answer.brokers}
            assert addresses == {n: node.view.node(NodeId(n)).public_rpc_address.encode() for n in (0, 1, 100, 101)}  # type: ignore[union-attr]
        asked_for_controllers = await node.ask("DescribeCluster", 1, endpoint_type=2)
        assert asked_for_controllers.error_code == ErrorCode.MISMATCHED_ENDPOINT_TYPE

    run(scenario)


# --- topics -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(2, 8))
def test_create_topics_is_answered_when_leaders_accept_writes(version: int) -> None:
    async def scenario(world: ControlWorld) -> None:
        node = await cluster(world)
        result = (await create(node, creatable("flights", 3, retention_ms="1000"), version=version))["flights"]
        assert result.error_code == 0
        topic = (await metadata(node, "flights"))["flights"]
        assert [p.error_code for p in topic.partitions] == [0, 0, 0]
        if version >= 5:
            assert (result.num_partitions, result.replication_factor) == (3, 1)
            assert [(c.name, c.value) for c in result.configs] == [("retention.ms", "1000")]
        if version >= 7:
            assert result.topic_id == topic.topic_id
        again = (await create(node, creatable("flights"), version=version))["flights"]
        assert again.error_code == ErrorCode.TOPIC_ALREADY_EXISTS

    run(scenario)


def test_topics_that_cannot_be_made_are_refused_one_by_one() -> None:
    async def scenario(world: ControlWorld) -> None:
        node = await cluster(world)
        replicated = assigned("placed", {0: [0, 9]})
        twice = creatable("twice-set")
        twice.configs = [messages.CreateTopicsRequest.CreatableTopic.CreatableTopicConfig(name="retention.ms", value=v)
                         for v in ("1", "2")]
        results = await create(
            node, creatable("good"), creatable("a/b"), creatable(".."), creatable(""), creatable("x" * 250),
            creatable("zero", 0), creatable("minus", -2), creatable("huge", 2_000_000_000),
            creatable("many", 1, 3), creatable("none", 1, 0), creatable("double"), creatable("double"),
            creatable("odd", colour="red"), creatable("wrong", retention_ms="soon"),
            creatable("null", retention_ms=None),
            creatable("__consumer_offsets"), creatable("defaults", -1, -1), replicated, twice,
        )
        assert {name: result.error_code for name, result in results.items()} == {
            "good": 0, "a/b": 17, "..": 17, "": 17, "x" * 250: 17, "zero": 37, "minus": 37, "huge": 37, "many": 38,
            "none": 38, "double": 42, "odd": 40, "wrong": 40, "null": 40, "__consumer_offsets": 17, "defaults": 0,
            "placed": 39, "twice-set": 42,
        }
        assert all(result.error_message for result in results.values() if result.error_code)
        assert node.view.topic("good") is not None and node.view.topic("double") is None

    run(scenario)


def assigned(name: str, by_partition: dict[int, list[int]], **numbers: int) -> Any:
    topic = creatable(name, numbers.get("partitions", -1), numbers.get("factor", -1))
    topic.assignments = [
        messages.CreateTopicsRequest.CreatableTopic.CreatableReplicaAssignment(partition_index=i, broker_ids=nodes)
        for i, nodes in by_partition.items()
    ]
    return topic


def test_a_topic_is_made_with_the_replicas_that_its_creator_chose() -> None:
    async def scenario(world: ControlWorld) -> None:
        node = await cluster(world)
        results = await create(
            node, assigned("chosen", {1: [0, 1], 0: [1, 0], 2: [1, 0]}), assigned("gap", {0: [0], 2: [1]}),
            assigned("twice", {0: [0, 0]}), assigned("uneven", {0: [0], 1: [0, 1]}), assigned("dead", {0: [5]}),
            assigned("counted", {0: [0]}, partitions=1), creatable("two", 4, 2))
        assert {name: r.error_code for name, r in results.items()} == {
            "chosen": 0, "gap": 39, "twice": 39, "uneven": 39, "dead": 39, "counted": 42, "two": 0}
        assert (results["chosen"].num_partitions, results["chosen"].replication_factor) == (3, 2)
        topics = await metadata(node, "chosen", "two")
        replicas = {p.partition_index: (p.leader_id, p.replica_nodes) for p in topics["chosen"].partitions}
        assert replicas == {0: (1, [1, 0]), 1: (0, [0, 1]), 2: (1, [1, 0])}
        assert all(sorted(p.isr_nodes) == [0, 1] for p in topics["two"].partitions)
        assert sorted(p.leader_id for p in topics["two"].partitions) == [0, 0, 1, 1]
        request = messages.CreatePartitionsRequest.CreatePartitionsTopic
        answer = await node.ask("CreatePartitions", 3, timeout_ms=5000, validate_only=False, topics=[
            request(name="chosen", count=4, assignments=[request.CreatePartitionsAssignment(broker_ids=[0, 1])]),
            request(name="two", count=6, assignments=[request.CreatePartitionsAssignment(broker_ids=[0, 1])]),
        ])
        assert {r.name: r.error_code for r in answer.results} == {"chosen": 0, "two": 39}
        partitions = (await metadata(node, "chosen"))["chosen"].partitions
        assert (partitions[3].leader_id, partitions[3].replica_nodes) == (0, [0, 1])

    run(scenario)


def test_validating_changes_nothing() -> None:
    async def scenario(world: ControlWorld) -> None:
        node = await cluster(world)
        results = await create(node, creatable("maybe"), creatable("a/b"), validate_only=True)
        assert {name: r.error_code for name, r in results.items()} == {"maybe": 0, "a/b": 17}
        assert node.view.topic("maybe") is None

    run(scenario)


def test_a_change_for_which_no_controller_was_found_has_certainly_not_been_made() -> None:
    async def scenario(world: ControlWorld) -> None:
        await world.broker()
        node = await AnsweringNode(world).start(wait=False)
        began = world.loop.time()
        result = (await create(node, creatable("x"), timeout_ms=700))["x"]
        assert result.error_code == ErrorCode.NOT_CONTROLLER and "controller" in result.error_message
        assert 0.6 < world.loop.time() - began < 2

    run(scenario)


def test_a_controller_that_dies_during_a_call_leaves_it_open_whether_it_was_done() -> None:
    async def scenario(world: ControlWorld) -> None:
        process, _ = await world.controller()
        await world.broker()
        node = await AnsweringNode(world).start(wait=False)
        await node.view.wait_for(lambda view: view.controller is not None, 60)
        world.kill(process)
        result = (await create(node, creatable("x"), timeout_ms=700))["x"]
        assert result.error_code == ErrorCode.REQUEST_TIMED_OUT
        assert "may or may not" in result.error_message

    run(scenario)


def test_create_partitions_only_adds() -> None:
    async def scenario(world: ControlWorld) -> None:
        node = await cluster(world)
        await create(node, creatable("grows", 2), creatable("stays", 2))
        wanted = messages.CreatePartitionsRequest.CreatePartitionsTopic
        for version in range(4):
            answer = await node.ask("CreatePartitions", version, timeout_ms=5000, validate_only=False, topics=[
                wanted(name="grows", count=3 + version, assignments=None),
                wanted(name="stays", count=2, assignments=None),
                wanted(name="no-such", count=9, assignments=None),
                wanted(name="__hapax_events", count=99, assignments=None),
            ])
            assert [(r.name, r.error_code) for r in answer.results] == [
                ("grows", 0), ("stays", 37), ("no-such", 3), ("__hapax_events", 29)]
            partitions = (await metadata(node, "grows"))["grows"].partitions
            assert len(partitions) == 3 + version and all(p.error_code == 0 for p in partitions)

    run(scenario)


# --- other roles --------------------------------------------------------------------------------------------------


def test_a_node_answers_every_advertised_call_of_other_roles_in_every_version() -> None:
    """Rule 11: an error that sends the client elsewhere, or an empty list; never a closed connection."""

    async def scenario(world: ControlWorld) -> None:
        await world.controller()
        node = await AnsweringNode(world, auto_create_topics_enable=False).start(wait=False)
        await node.view.wait_for(lambda view: view.cluster is not None, 60)
        served = {"ApiVersions", "Metadata", "FindCoordinator", "DescribeCluster", "CreateTopics", "DeleteTopics",
                  "CreatePartitions", "ElectLeaders", "AlterPartitionReassignments", "ListPartitionReassignments",
                  "IncrementalAlterConfigs", "DescribeConfigs", "AlterConfigs", "AlterReplicaLogDirs",
                  "DescribeLogDirs", "DescribeClientQuotas", "AlterClientQuotas", "DescribeQuorum", "UpdateFeatures",
                  "ListConfigResources", "DescribeTopicPartitions", "DescribeAcls", "CreateAcls", "DeleteAcls",
                  "SaslHandshake", "SaslAuthenticate", "DescribeUserScramCredentials", "AlterUserScramCredentials"}
        for _, name, version, _ in REQUESTS:
            if name in served:
                continue
            request = message(f"{name}Request", version, world.random, tags=False)
            if name == "Produce":
                request.acks = 1
            answer = await node.ask(name, version, **{
                field: getattr(request, field) for field in request._struct.fields
                if request._struct.fields[field].for_version_q(version)
                and not request._struct.fields[field].tagged_field_q(version)})
            codes = _error_codes(answer)
            assert codes <= {
                int(ErrorCode.NOT_COORDINATOR), int(ErrorCode.NOT_LEADER_OR_FOLLOWER), 0}, (name, version, codes)
            if name in ("EndTxn", "AddOffsetsToTxn", "InitProducerId"):
                assert codes == {int(ErrorCode.NOT_COORDINATOR)}

    run(scenario)


def _error_codes(answer: Any) -> set[int]:
    found = set()
    for field in answer._struct._fields:
        value = getattr(answer, field.name)
        if field.name == "error_code" and field.for_version_q(answer._version):
            found.add(value)
        elif isinstance(value, list) and value and hasattr(value[0], "_struct"):
            found |= set().union(*map(_error_codes, value))
    return found


def test_produce_without_acks_to_a_wrong_node_closes_the_connection() -> None:
    async def scenario(world: ControlWorld) -> None:
        node = await AnsweringNode(world).start(wait=False)
        with pytest.raises(AssertionError, match="acks=0"):
            await node.ask("Produce", 3, transactional_id=None, acks=0, timeout_ms=1, topic_data=[])

    run(scenario)


def test_a_value_put_by_somebody_else_shows_at_once() -> None:
    """The node answers from its image, which follows the store."""

    async def scenario(world: ControlWorld) -> None:
        node = await cluster(world)
        await create(node, creatable("flights", 1))
        found = node.view.topic("flights")
        assert found is not None
        store = world.ports(world.process("other")).metadata
        renamed = found.record.encode().replace(b'"internal":false', b'"internal":true')
        await store.txn([], [Put(KEYS.topic("flights"), renamed)])
        await node.view.wait_for(lambda view: view.topic("flights").internal, 5)  # type: ignore[union-attr]
        assert (await metadata(node, "flights"))["flights"].is_internal

    run(scenario)
