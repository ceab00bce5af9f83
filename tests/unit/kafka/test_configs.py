"""Configurations of topics, groups and nodes: described, changed and listed, over the real controller."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from hapax.codec.metadata import GroupConfigRecord
from hapax.controller.topics import Topics
from hapax.core.cluster.topics import TOPIC_CONFIGS
from hapax.core.errors import ErrorCode
from hapax.kafka.api.describe_configs import Layer, Source, group_configs, is_secret, node_configs, topic_configs
from hapax.rpc.gen.hapax.v1 import cluster_admin_pb2 as pb
from hapax.runtime.cluster import ClusterView
from hapax.runtime.group_limits import LimitsOfGroups
from hapax.runtime.ports import Put
from hapax.runtime.settings import SETTING_NAMES, load
from hapax.wire import messages
from unit.control_world import ControlWorld, run
from unit.kafka.test_node_apis import AnsweringNode, cluster, creatable, create

TOPIC, NODE, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = range(4)
SESSION, HEARTBEAT, INTERVAL = (
    "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms", "consumer.assignment.interval.ms")


async def alter(
    node: AnsweringNode, kind: int, name: str, *operations: tuple[str, int, str | None], dry: bool = False
) -> tuple[int, str | None]:
    Resource = messages.IncrementalAlterConfigsRequest.AlterConfigsResource
    configs = [
        Resource.AlterableConfig(name=key, config_operation=what, value=value) for key, what, value in operations]
    answer = await node.ask("IncrementalAlterConfigs", 1, validate_only=dry, resources=[
        Resource(resource_type=kind, resource_name=name, configs=configs)])
    return answer.responses[0].error_code, answer.responses[0].error_message


def topic_config(view: ClusterView, name: str) -> dict[str, str]:
    topic = view.topic(name)
    assert topic is not None
    return dict(topic.config)


def group_config(view: ClusterView, name: str) -> dict[str, str]:
    config = view.group_config(name)
    return {} if config is None else dict(config.config)


async def listed(node: AnsweringNode, *kinds: int) -> list[tuple[str, int]]:
    answer = await node.ask("ListConfigResources", 1, resource_types=list(kinds))
    assert answer.error_code == 0
    return [(each.resource_name, each.resource_type) for each in answer.config_resources]


def test_a_topic_s_configuration_is_changed_and_given_back() -> None:
    async def scenario(world: ControlWorld) -> None:
        node = await cluster(world)
        await create(node, creatable("x", retention_ms="1000", segment_bytes="4096"))

        def config() -> dict[str, str]:
            return topic_config(node.view, "x")

        assert await alter(node, TOPIC, "x", ("retention.ms", 0, "2000"), ("segment.bytes", 1, None)) == (0, None)
        assert config() == {"retention.ms": "2000"}
        assert await alter(node, TOPIC, "x", ("retention.ms", 0, "3000"), dry=True) == (0, None)
        assert config() == {"retention.ms": "2000"}
        revision = world.model.revision
        assert await alter(node, TOPIC, "x", ("retention.ms", 0, "2000")) == (0, None)
        assert world.model.revision == revision  # what is so already is not written
        assert (await alter(node, TOPIC, "x", ("retention.ms", 0, "soon")))[0] == ErrorCode.INVALID_CONFIG
        assert (await alter(node, TOPIC, "x", ("retention.ms", 2, "1")))[0] == ErrorCode.INVALID_CONFIG
        assert (await alter(node, TOPIC, "x", ("retention.ms", 0, "1"), ("retention.ms", 1, None)))[0] == (
            ErrorCode.INVALID_REQUEST)
        assert (await alter(node, NODE, "7", ("retention.ms", 0, "1")))[0] == ErrorCode.INVALID_REQUEST
        assert (await alter(node, TOPIC, "y", ("retention.ms", 0, "1")))[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (await alter(node, TOPIC, "__consumer_offsets", ("retention.ms", 0, "1")))[0] == (
            ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        assert config() == {"retention.ms": "2000"}

    run(scenario)


def test_a_controller_that_does_not_know_how_to_add_to_lists_has_not_done_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """During a rolling upgrade, the acting controller may be of a release that passes over the new fields."""
    alter_configs = Topics.alter_configs

    async def of_former_release(self: Topics, request: pb.AlterTopicConfigsRequest) -> Any:
        for change in request.changes:
            change.ClearField("append")
            change.ClearField("subtract")
        return await alter_configs(self, request)

    async def scenario(world: ControlWorld) -> None:
        node = await cluster(world)
        await create(node, creatable("x"))
        monkeypatch.setattr(Topics, "alter_configs", of_former_release)
        for what in (APPEND, SUBTRACT):
            code, reason = await alter(node, TOPIC, "x", ("cleanup.policy", what, "compact"))
            assert code == ErrorCode.UNSUPPORTED_VERSION and "earlier release" in str(reason)
        assert topic_config(node.view, "x") == {}
        assert await alter(node, TOPIC, "x", ("cleanup.policy", SET, "compact")) == (0, None)

    run(scenario)


def test_what_holds_for_a_topic_is_its_own_its_brokers_or_the_default() -> None:
    async def scenario(world: ControlWorld) -> None:
        node = await cluster(world, log_retention_minutes=2, min_insync_replicas=2)
        await create(node, creatable("x", segment_bytes="4096", preallocate="true"))
        Resource = messages.DescribeConfigsRequest.DescribeConfigsResource

        async def describe(kind: int, name: str, keys: list[str] | None = None, version: int = 4) -> Any:
            answer = await node.ask("DescribeConfigs", version, include_synonyms=True, include_documentation=True,
                resources=[Resource(resource_type=kind, resource_name=name, configuration_keys=keys)])
            (result,) = answer.results
            return result

        result = await describe(2, "x")
        found = {each.name: each for each in result.configs}
        assert result.error_code == 0 and [*found] == sorted(found)
        told = {name: (each.value, each.config_source) for name, each in found.items()}
        assert told["segment.bytes"] == ("4096", 1)
        assert told["preallocate"] == ("true", 1)
        assert told["retention.ms"] == ("120000", 4)
        assert told["min.insync.replicas"] == ("2", 4)
        assert told["segment.ms"] == ("604800000", 5)
        assert told["unclean.leader.election.enable"] == ("false", 5)
        assert [(each.name, each.value, each.source) for each in found["retention.ms"].synonyms] == [
            ("log.retention.ms", "120000", 4), ("log.retention.ms", "604800000", 5)]
        assert [(each.value, each.source) for each in found["segment.bytes"].synonyms] == [
            ("4096", 1), (str(1 << 30), 5)]
        types = {"segment.bytes": 3, "cleanup.policy": 7, "retention.ms": 5, "min.cleanable.dirty.ratio": 6,
                 "preallocate": 1, "message.timestamp.type": 2}
        assert {name: found[name].config_type for name in types} == types
        assert set(found) == set(TOPIC_CONFIGS) and found["flush.ms"].documentation == (
            "Checked and kept as Kafka's. It has no effect.")
        assert found["unclean.leader.election.enable"].config_type == 1
        assert "must be in sync" in found["min.insync.replicas"].documentation
        assert not any(each.read_only or each.is_sensitive for each in result.configs)
        for version in (1, 2, 3):
            assert [each.name for each in (await describe(2, "x", ["segment.bytes"], version)).configs] == [
                "segment.bytes"]
        assert (await describe(2, "y")).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (await describe(2, "")).error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert len((await describe(2, "x", [])).configs) == len(found)  # no keys: all, as in Kafka

        own = {each.name: each for each in (await describe(4, "7")).configs}
        assert set(own) == set(SETTING_NAMES)
        assert (own["node.id"].value, own["node.id"].config_source, own["node.id"].read_only) == ("7", 4, True)
        assert (own["log.retention.minutes"].value, own["broker.rack"].value) == ("2", None)
        assert (await describe(4, "8")).error_code == ErrorCode.INVALID_REQUEST
        assert ((await describe(4, "")).error_code, (await describe(4, "")).configs) == (0, [])
        assert (await describe(3, "x")).error_code == ErrorCode.INVALID_REQUEST
        types = {"node.id": 3, "log.retention.ms": 5, "offsets.topic.replication.factor": 4, "listeners": 7,
                 "delete.topic.enable": 1, "log.level": 2}
        assert {name: own[name].config_type for name in types} == types
        (logger,) = (await describe(8, "7")).configs
        assert (logger.name, logger.value, logger.config_source, logger.read_only) == ("root", "INFO", 6, True)

    run(scenario)


def test_a_coordinator_that_finds_no_broker_to_ask_says_so() -> None:
    async def scenario(world: ControlWorld) -> None:
        await world.controller()
        await world.coordinator(100)
        node = await AnsweringNode(world, broker=False).start(wait=False)
        await node.view.wait_for(lambda view: view.cluster is not None, 60)
        Resource = messages.DescribeConfigsRequest.DescribeConfigsResource
        answer = await node.ask("DescribeConfigs", 4, include_synonyms=False, include_documentation=False, resources=[
            Resource(resource_type=2, resource_name="x", configuration_keys=None),
            Resource(resource_type=4, resource_name="7", configuration_keys=["node.id"])])
        assert [each.error_code for each in answer.results] == [ErrorCode.REQUEST_TIMED_OUT, 0]
        assert answer.results[1].configs[0].value == "7"

    run(scenario)


def test_values_are_added_to_lists_and_taken_from_them() -> None:
    async def scenario(world: ControlWorld) -> None:
        node = await cluster(world, log_cleanup_policy="compact")
        await create(node, creatable("x"))

        async def policy(what: int, value: str) -> str:
            assert await alter(node, TOPIC, "x", ("cleanup.policy", what, value)) == (0, None)
            return topic_config(node.view, "x")["cleanup.policy"]

        # The list of a topic without one is Kafka's default, whatever the brokers' setting is.
        assert await policy(APPEND, "compact") == "delete,compact"
        assert await policy(APPEND, "compact, delete") == "delete,compact"
        assert await policy(SUBTRACT, "delete") == "compact"
        assert await policy(SUBTRACT, "delete") == "compact"
        assert await policy(SUBTRACT, "compact") == ""  # Kafka 4.3 takes it: neither is done
        assert await policy(SET, " compact ,delete,compact") == "compact,delete"
        throttled = "leader.replication.throttled.replicas"
        for what, value in ((APPEND, "0:1"), (APPEND, "1:1,0:1"), (SUBTRACT, "0:1")):
            assert await alter(node, TOPIC, "x", (throttled, what, value)) == (0, None)
        assert topic_config(node.view, "x")[throttled] == "1:1"
        before = topic_config(node.view, "x")
        for name, what, value, code in (
            ("cleanup.policy", APPEND, "sometimes", ErrorCode.INVALID_CONFIG),
            ("retention.ms", APPEND, "5", ErrorCode.INVALID_CONFIG),
            ("no.such", SUBTRACT, "5", ErrorCode.INVALID_CONFIG),
            (throttled, APPEND, "x", ErrorCode.INVALID_CONFIG),
            ("cleanup.policy", APPEND, None, ErrorCode.INVALID_REQUEST),
            ("cleanup.policy", SET, None, ErrorCode.INVALID_REQUEST),
            ("cleanup.policy", 9, "delete", ErrorCode.INVALID_REQUEST),
        ):
            assert (await alter(node, TOPIC, "x", (name, what, value)))[0] == code
        assert (await alter(node, TOPIC, "x", ("cleanup.policy", APPEND, "delete"), ("retention.ms", SET, "soon")))[0]
        assert topic_config(node.view, "x") == before  # all of a resource's changes or none
        assert await alter(node, TOPIC, "x", ("cleanup.policy", APPEND, "delete"), dry=True) == (0, None)
        assert topic_config(node.view, "x") == before

    run(scenario)


def test_a_group_is_configured_listed_and_given_back() -> None:
    async def scenario(world: ControlWorld) -> None:
        node = await cluster(world)
        assert await alter(node, GROUP, "a/b é", (SESSION, SET, "50000")) == (0, None)
        assert group_config(node.view, "a/b é") == {SESSION: "50000"}
        assert await alter(node, GROUP, "a/b é", (HEARTBEAT, SET, "10000"), (INTERVAL, SET, "0")) == (0, None)
        assert await alter(node, GROUP, "a/b é", (SESSION, DELETE, None)) == (0, None)
        assert group_config(node.view, "a/b é") == {HEARTBEAT: "10000", INTERVAL: "0"}
        assert await listed(node, GROUP) == [("a/b é", GROUP)]
        assert ("a/b é", GROUP) in await listed(node)
        assert await alter(node, GROUP, "a/b é", (SESSION, SET, "60000"), dry=True) == (0, None)
        revision = world.model.revision
        assert await alter(node, GROUP, "a/b é", (HEARTBEAT, SET, "10000")) == (0, None)
        assert world.model.revision == revision  # what is so already is not written
        assert await alter(node, GROUP, "a/b é", (HEARTBEAT, DELETE, None), (INTERVAL, DELETE, None)) == (0, None)
        assert group_config(node.view, "a/b é") == {} and await listed(node, GROUP) == []
        assert await alter(node, GROUP, "a/b é", ("never.heard.of", DELETE, None)) == (0, None)

        async def replaced(*configs: tuple[str, str]) -> int:
            Resource = messages.AlterConfigsRequest.AlterConfigsResource
            answer = await node.ask("AlterConfigs", 2, validate_only=False, resources=[Resource(
                resource_type=GROUP, resource_name="g",
                configs=[Resource.AlterableConfig(name=name, value=value) for name, value in configs])])
            return int(answer.responses[0].error_code)

        assert await replaced((SESSION, "46000"), (HEARTBEAT, "6000")) == 0
        assert await replaced((SESSION, "47000")) == 0
        assert group_config(node.view, "g") == {SESSION: "47000"}
        assert await replaced() == 0 and await listed(node, GROUP) == []

    run(scenario)


def test_a_group_s_value_outside_narrowed_bounds_leaves_the_others_free() -> None:
    """An operator has narrowed the bounds, or a later release has set what this one does not know."""
    async def scenario(world: ControlWorld) -> None:
        node = await cluster(world)
        stored = {SESSION: "90000", "of.a.later.release": "x"}
        world.model.txn([], [Put(node.view.keys.group_config("g"), GroupConfigRecord(stored).encode())])
        await node.view.wait_for(lambda view: view.group_config("g") is not None, 10)
        assert await alter(node, GROUP, "g", (INTERVAL, SET, "500")) == (0, None)
        assert group_config(node.view, "g") == stored | {INTERVAL: "500"}
        # As in Apache Kafka 4.3.1 after a start with narrower bounds: described as stored, applied within the bounds.
        settings = load([], environment={})
        described = group_configs(group_config(node.view, "g"), settings)[SESSION]
        assert described.layers[0] == Layer(SESSION, "90000", Source.GROUP)
        assert LimitsOfGroups(node.view, settings)("g").consumer_session_timeout_ms == 60_000
        assert (await alter(node, GROUP, "g", (SESSION, SET, "90000")))[0] == ErrorCode.INVALID_CONFIG
        assert await alter(node, GROUP, "g", (SESSION, DELETE, None), ("of.a.later.release", DELETE, None)) == (0, None)
        assert group_config(node.view, "g") == {INTERVAL: "500"}

    run(scenario)


def test_what_a_group_may_not_be_configured_with() -> None:
    async def scenario(world: ControlWorld) -> None:
        node = await cluster(world)
        for name, value, word in (
            (SESSION, "44999", "group.consumer.min.session.timeout.ms"),
            (SESSION, "60001", "group.consumer.max.session.timeout.ms"),
            (HEARTBEAT, "4999", "group.consumer.min.heartbeat.interval.ms"),
            (HEARTBEAT, "15001", "group.consumer.max.heartbeat.interval.ms"),
            (INTERVAL, "15001", "group.consumer.max.assignment.interval.ms"),
            (INTERVAL, "-1", "group.consumer.min.assignment.interval.ms"),
            (SESSION, "soon", "number"),
            (SESSION, "9" * 5_000, "number"),
            ("share.auto.offset.reset", "earliest", "Unknown group config name"),
            ("retention.ms", "1", "Unknown group config name"),
        ):
            code, reason = await alter(node, GROUP, "g", (name, SET, value))
            assert code == ErrorCode.INVALID_CONFIG and word in (reason or "")
        assert (await alter(node, GROUP, "g", (SESSION, APPEND, "50000")))[0] == ErrorCode.INVALID_CONFIG
        assert (await alter(node, GROUP, "g", (SESSION, SET, None)))[0] == ErrorCode.INVALID_REQUEST
        assert (await alter(node, GROUP, "", (SESSION, SET, "50000")))[0] == ErrorCode.INVALID_REQUEST
        assert (await alter(node, GROUP, "g" * 5_000, (SESSION, SET, "50000")))[0] == ErrorCode.INVALID_REQUEST
        assert (await alter(node, METRICS, "g", (SESSION, SET, "50000")))[0] == ErrorCode.INVALID_REQUEST
        assert node.view.configured_groups() == []

    run(scenario)


def test_nothing_is_deleted_from_a_node_without_an_error() -> None:
    """`kafka-reassign-partitions.sh --verify` deletes the throttles of every node."""
    async def scenario(world: ControlWorld) -> None:
        node = await cluster(world)
        throttle = "leader.replication.throttled.rate"
        assert await alter(node, NODE, "0", (throttle, DELETE, None), ("no.such", DELETE, None)) == (0, None)
        for operations in ([(throttle, SET, "1")], [(throttle, DELETE, None), ("node.id", SET, "1")], []):
            assert (await alter(node, NODE, "0", *operations))[0] == ErrorCode.INVALID_REQUEST

    run(scenario)


def test_a_resource_that_is_named_twice_is_changed_by_neither() -> None:
    async def scenario(world: ControlWorld) -> None:
        node = await cluster(world)
        await create(node, creatable("x"))
        Resource = messages.IncrementalAlterConfigsRequest.AlterConfigsResource

        def asked(kind: int, name: str, key: str, value: str) -> Any:
            return Resource(resource_type=kind, resource_name=name, configs=[
                Resource.AlterableConfig(name=key, config_operation=SET, value=value)])

        answer = await node.ask("IncrementalAlterConfigs", 1, validate_only=False, resources=[
            asked(GROUP, "g", SESSION, "50000"), asked(TOPIC, "x", "retention.ms", "1"),
            asked(GROUP, "g", SESSION, "51000"), asked(TOPIC, "", "retention.ms", "1"),
        ])
        assert [each.error_code for each in answer.responses] == [42, 0, 42, 42]
        assert topic_config(node.view, "x") == {"retention.ms": "1"} and node.view.configured_groups() == []

    run(scenario)


def test_what_holds_for_a_group_is_its_own_or_its_coordinators() -> None:
    async def scenario(world: ControlWorld) -> None:
        node = await cluster(world, broker=False, group_consumer_heartbeat_interval_ms=7_000)
        await alter(node, GROUP, "g", (SESSION, SET, "50000"))

        async def described(name: str, keys: Sequence[str] | None = None) -> Any:
            Resource = messages.DescribeConfigsRequest.DescribeConfigsResource
            answer = await node.ask(
                "DescribeConfigs", 4, include_synonyms=True, include_documentation=True,
                resources=[Resource(resource_type=GROUP, resource_name=name, configuration_keys=keys)])
            return answer.results[0]

        found = {each.name: each for each in (await described("g")).configs}
        assert {name: (each.value, each.config_source) for name, each in found.items()} == {
            SESSION: ("50000", 8), HEARTBEAT: ("7000", 4), INTERVAL: ("1000", 5)}
        assert [(each.name, each.value, each.source) for each in found[SESSION].synonyms] == [
            (SESSION, "50000", 8), ("group.consumer.session.timeout.ms", "45000", 5)]
        assert {each.config_type for each in found.values()} == {3}
        assert "heartbeat" in found[SESSION].documentation
        assert not any(each.read_only or each.is_sensitive for each in found.values())
        assert [each.value for each in (await described("other", [SESSION, "no.such"])).configs] == ["45000"]
        assert (await described("")).error_code == ErrorCode.INVALID_REQUEST

    run(scenario)


def test_a_setting_that_was_given_its_default_counts_as_given() -> None:
    async def scenario(world: ControlWorld) -> None:
        node = await cluster(world)
        await create(node, creatable("x"))
        given = load(["log.segment.bytes=1073741824"], environment={})
        described = node_configs(given)["log.segment.bytes"]
        assert [each.source for each in described.layers] == [Source.NODE, Source.DEFAULT]
        topic = node.view.topic("x")
        assert topic is not None
        assert topic_configs(topic, given)["segment.bytes"].layers[0].source is Source.NODE
        assert topic_configs(topic, load([], environment={}))["segment.bytes"].layers[0].source is Source.DEFAULT

    run(scenario)


def test_secrets_are_recognized_by_their_names() -> None:
    for name in ("ssl.keystore.password", "sasl.jaas.config", "oauth.client.secret", "password"):
        assert is_secret(name)
    assert {name for name in SETTING_NAMES if is_secret(name)} == {"ssl.keystore.key", "ssl.key.password"}


def test_a_group_s_configuration_reaches_its_coordinator_at_once() -> None:
    async def scenario(world: ControlWorld) -> None:
        node = await cluster(world)
        limits = LimitsOfGroups(node.view, load([], environment={}))
        default = limits("g")
        assert (default.consumer_session_timeout_ms, limits("other") is default) == (45_000, True)
        await alter(node, GROUP, "g", (SESSION, SET, "50000"))
        made = limits("g")
        assert made.consumer_session_timeout_ms == 50_000 and limits("g") is made and limits("other") is default
        await alter(node, GROUP, "g", (SESSION, SET, "51000"))
        assert limits("g").consumer_session_timeout_ms == 51_000
        await alter(node, GROUP, "g", (SESSION, DELETE, None))
        assert limits("g") is default

    run(scenario)
