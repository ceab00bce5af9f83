"""The calls of administration tools, in every version: configurations, folders, pages of partitions, the quorum,
features and quotas."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from hapax.core.errors import ErrorCode
from hapax.kafka.api import alter_replica_log_dirs, describe_log_dirs
from hapax.kafka.api.describe_log_dirs import StoredReplica
from hapax.kafka.registry import all_apis
from hapax.kafka.table import ApiTable
from hapax.wire import messages
from unit.control_world import ControlWorld, run
from unit.kafka.test_node_apis import AnsweringNode, cluster, creatable, create

TOPIC, BROKER, METRICS, GROUP = 2, 4, 16, 32


def test_alter_configs_replaces_all_that_a_topic_has() -> None:
    async def scenario(world: ControlWorld) -> None:
        node = await cluster(world)
        resource = messages.AlterConfigsRequest.AlterConfigsResource

        async def alter(*configs: tuple[str, str | None], kind: int = TOPIC, name: str = "x", version: int = 2,
                        validate_only: bool = False) -> int:
            answer = await node.ask("AlterConfigs", version, validate_only=validate_only, resources=[
                resource(resource_type=kind, resource_name=name, configs=[
                    resource.AlterableConfig(name=key, value=value) for key, value in configs])])
            (result,) = answer.responses
            assert (result.resource_type, result.resource_name) == (kind, name)
            return int(result.error_code)

        def config() -> dict[str, str]:
            topic = node.view.topic("x")
            assert topic is not None
            return dict(topic.config)

        await create(node, creatable("x", segment_bytes="4096", retention_ms="1000"))
        for version in range(3):
            assert await alter(("retention.ms", str(version)), version=version) == 0
            assert config() == {"retention.ms": str(version)}
        assert await alter(("retention.ms", "7"), validate_only=True) == 0
        assert await alter(("retention.ms", None)) == ErrorCode.INVALID_REQUEST
        assert await alter(("retention.ms", "1"), ("retention.ms", "2")) == ErrorCode.INVALID_REQUEST
        assert await alter(("no.such", "1")) == ErrorCode.INVALID_CONFIG
        assert await alter(kind=BROKER, name="0") == ErrorCode.INVALID_REQUEST
        assert await alter(name="y") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert config() == {"retention.ms": "2"}
        assert await alter() == 0
        assert config() == {}

    run(scenario)


def test_what_has_a_configuration_is_listed() -> None:
    async def scenario(world: ControlWorld) -> None:
        node = await cluster(world)
        await create(node, creatable("x"))

        async def listed(kinds: list[int], version: int = 1) -> set[tuple[int, str]]:
            answer = await node.ask("ListConfigResources", version, resource_types=kinds)
            assert answer.error_code == 0
            return {(each.resource_type, each.resource_name) for each in answer.config_resources}

        assert await listed([], 0) == set(), "version 0 lists metrics of clients"
        topics = {(TOPIC, topic.name) for topic in node.view.topics()}
        assert (TOPIC, "x") in topics and await listed([TOPIC]) == topics
        assert await listed([BROKER, BROKER]) == {(BROKER, "0"), (BROKER, "1")}
        assert await listed([GROUP, METRICS]) == set()
        loggers = {(8, "0"), (8, "1")}
        assert await listed([8]) == loggers
        assert await listed([]) == topics | loggers | {(BROKER, "0"), (BROKER, "1")}
        answer = await node.ask("ListConfigResources", 1, resource_types=[TOPIC, 3])
        assert (answer.error_code, answer.config_resources) == (ErrorCode.UNSUPPORTED_VERSION, [])

    run(scenario)


def test_partitions_are_described_in_pages() -> None:
    async def scenario(world: ControlWorld) -> None:
        node = await cluster(world)
        await create(node, creatable("a", 3), creatable("b", 1), creatable("c", 4))
        request = messages.DescribeTopicPartitionsRequest

        async def page(
            names: list[str], limit: int, cursor: Any = None
        ) -> tuple[list[tuple[str, int, list[int]]], Any]:
            answer = await node.ask(
                "DescribeTopicPartitions", 0, topics=[request.TopicRequest(name=name) for name in names],
                response_partition_limit=limit, cursor=cursor)
            following = answer.next_cursor
            return [
                (topic.name, topic.error_code, [each.partition_index for each in topic.partitions])
                for topic in answer.topics
            ], following and request.Cursor(
                topic_name=following.topic_name, partition_index=following.partition_index)

        wanted = ["c", "a", "b", "no-such", "a/b", "c"]
        assert await page(wanted, 2000) == ([
            ("a", 0, [0, 1, 2]), ("a/b", ErrorCode.INVALID_TOPIC_EXCEPTION, []), ("b", 0, [0]), ("c", 0, [0, 1, 2, 3]),
            ("no-such", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, [])], None)
        for limit in (1, 2, 3, 4, 5):
            found: list[tuple[str, int]] = []
            topics, cursor = await page(["a", "b", "c"], limit)
            while True:
                assert 0 < sum(len(indexes) for _, _, indexes in topics) <= limit
                found += [(name, index) for name, _, indexes in topics for index in indexes]
                if cursor is None:
                    break
                topics, cursor = await page(["a", "b", "c"], limit, cursor)
            assert found == [*(("a", i) for i in range(3)), ("b", 0), *(("c", i) for i in range(4))]
        topics, _ = await page([], 2000)
        assert [name for name, _, _ in topics] == sorted(topic.name for topic in node.view.topics())
        answer = await node.ask(
            "DescribeTopicPartitions", 0, topics=[request.TopicRequest(name="b")], response_partition_limit=1,
            cursor=None)
        (topic,) = answer.topics
        (partition,) = topic.partitions
        assert partition.replica_nodes == partition.isr_nodes == [partition.leader_id]
        assert (partition.eligible_leader_replicas, partition.offline_replicas) == ([], [])

    run(scenario)


def test_the_quorum_is_the_controllers() -> None:
    async def scenario(world: ControlWorld) -> None:
        node = await cluster(world)
        asked = messages.DescribeQuorumRequest.TopicData
        acting = node.view.controller
        assert acting is not None
        for version in range(3):
            answer = await node.ask("DescribeQuorum", version, topics=[
                asked(topic_name=name, partitions=[asked.PartitionData(partition_index=0)])
                for name in ("__cluster_metadata", "x")])
            quorum, other = (topic.partitions[0] for topic in answer.topics)
            assert (quorum.error_code, quorum.leader_id) == (0, acting.record.node_id)
            assert quorum.high_watermark == node.view.revision
            assert [each.replica_id for each in quorum.current_voters] == [
                each.node_id for each in node.view.nodes("controller")] or [acting.record.node_id]
            assert other.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    run(scenario)


def test_features_have_the_levels_of_the_release() -> None:
    async def scenario(world: ControlWorld) -> None:
        node = await cluster(world)
        key = messages.UpdateFeaturesRequest.FeatureUpdateKey

        async def update(version: int, **levels: int) -> tuple[int, list[int]]:
            answer = await node.ask("UpdateFeatures", version, timeout_ms=1000, validate_only=False, feature_updates=[
                key(feature=name.replace("_", "."), max_version_level=level, allow_downgrade=False, upgrade_type=1)
                for name, level in levels.items()])
            return answer.error_code, [each.error_code for each in answer.results or ()]

        wrong = int(ErrorCode.INVALID_UPDATE_VERSION)
        for version in (0, 1):
            assert await update(version, transaction_version=2, group_version=0, no_such=1) == (0, [0, wrong, wrong])
        assert await update(2, transaction_version=2, group_version=1) == (0, [])
        assert await update(2, transaction_version=2, group_version=0) == (wrong, [])
        assert await update(2) == (int(ErrorCode.INVALID_REQUEST), [])

    run(scenario)


# --- folders ----------------------------------------------------------------------------------------------------------


class Folder:
    path = "/data"

    def replicas(self) -> list[StoredReplica]:
        return [StoredReplica("a", 0, 100, 0), StoredReplica("a", 1, 200, 3), StoredReplica("b", 0, 0, 0)]

    def free_bytes(self) -> int:
        return 5000


def _answer(module: Any, request: Any, version: int) -> Any:
    table = ApiTable(all_apis())
    module.register_folder(table, Folder())
    handler = table.apis[module.ROW.key].handler
    assert handler is not None
    answer: Any = handler(SimpleNamespace(api_version=version), request)  # type: ignore[arg-type]
    name = f"{module.ROW.name}Response"
    return getattr(messages, name).decode(bytes(answer.encode(version=version)), version=version)


def test_a_broker_describes_its_folder() -> None:
    topic = messages.DescribeLogDirsRequest.DescribableLogDirTopic
    for version in range(1, 6):
        request = messages.DescribeLogDirsRequest(topics=None)
        (folder,) = _answer(describe_log_dirs, request, version).results
        assert (folder.error_code, folder.log_dir) == (0, "/data")
        assert [
            (found.name, each.partition_index, each.partition_size, each.offset_lag, each.is_future_key)
            for found in folder.topics for each in found.partitions
        ] == [("a", 0, 100, 0, False), ("a", 1, 200, 3, False), ("b", 0, 0, 0, False)]
        if version >= 4:
            assert (folder.total_bytes, folder.usable_bytes) == (-1, 5000)
        request = messages.DescribeLogDirsRequest(topics=[topic(topic="a", partitions=[1, 7])])
        (folder,) = _answer(describe_log_dirs, request, version).results
        assert [each.partition_index for found in folder.topics for each in found.partitions] == [1]


def test_a_replica_stays_in_the_only_folder() -> None:
    wanted = messages.AlterReplicaLogDirsRequest.AlterReplicaLogDir
    for version in (1, 2):
        answer = _answer(alter_replica_log_dirs, messages.AlterReplicaLogDirsRequest(dirs=[
            wanted(path="/data/", topics=[wanted.AlterReplicaLogDirTopic(name="a", partitions=[0, 9])]),
            wanted(path="/other", topics=[wanted.AlterReplicaLogDirTopic(name="b", partitions=[0])])]), version)
        assert [(each.topic_name, [p.error_code for p in each.partitions]) for each in answer.results] == [
            ("a", [0, ErrorCode.REPLICA_NOT_AVAILABLE]), ("b", [ErrorCode.LOG_DIR_NOT_FOUND])]


def test_the_folder_of_another_node_has_no_replicas() -> None:
    async def scenario(world: ControlWorld) -> None:
        await world.controller()
        node = await AnsweringNode(world, log_dir="/data").start(wait=False)
        await asyncio.sleep(0)
        for version in range(1, 6):  # clients take an answer without a folder for CLUSTER_AUTHORIZATION_FAILED
            (folder,) = (await node.ask("DescribeLogDirs", version, topics=None)).results
            assert (folder.error_code, folder.log_dir, folder.topics) == (0, "/data", [])
        wanted = messages.AlterReplicaLogDirsRequest.AlterReplicaLogDir
        answer = await node.ask("AlterReplicaLogDirs", 2, dirs=[
            wanted(path="/data", topics=[wanted.AlterReplicaLogDirTopic(name="a", partitions=[0])])])
        assert answer.results[0].partitions[0].error_code == ErrorCode.LOG_DIR_NOT_FOUND

    run(scenario)
