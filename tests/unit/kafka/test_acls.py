"""The calls about bindings, and what they change: through a node, the acting controller, the store, and back."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from hapax.core.access.principals import user
from hapax.core.access.resources import Operation, Pattern, Permission, ResourceType
from hapax.core.errors import ErrorCode
from hapax.wire import messages
from unit.control_world import KEYS, ControlWorld, run
from unit.core.access.test_decisions import acl, rules
from unit.kafka.test_node_apis import AnsweringNode, cluster, creatable, create

ALICE = "EXTERNAL"
"""The listener of the client that is alice; that of the super user is PLAINTEXT."""
SETTINGS = {"authorizer_class_name": "acl", "super_users": "User:root;User:ANONYMOUS"}


async def guarded_cluster(world: ControlWorld, **settings: Any) -> AnsweringNode:
    node = await cluster(world, **{**SETTINGS, **settings})
    node.sessions[ALICE].principal = user("alice")
    return node


def creation(text: str, **fields: Any) -> Any:
    kind, name, pattern, principal, host, operation, permission = acl(text)
    return messages.CreateAclsRequest.AclCreation(**{
        "resource_type": kind, "resource_name": name, "resource_pattern_type": pattern, "principal": principal,
        "host": host, "operation": operation, "permission_type": permission, **fields})


def stored(world: ControlWorld) -> dict[str, int]:
    """Key -> revision of its last change."""
    return {key: kv.mod_revision for key, kv in world.model._kvs.items() if "/acls/" in key}


async def add(node: AnsweringNode, text: str, *, by: str = "PLAINTEXT", version: int = 3) -> list[int]:
    """The error codes."""
    creations = [creation(each) for each in text.split(";")]
    return [each.error_code for each in (await node.ask("CreateAcls", version, by=by, creations=creations)).results]


def selecting(**fields: Any) -> dict[str, Any]:
    return {
        "resource_type_filter": ResourceType.ANY, "resource_name_filter": None, "pattern_type_filter": Pattern.ANY,
        "principal_filter": None, "host_filter": None, "operation": Operation.ANY, "permission_type": Permission.ANY,
        **fields}


async def described(node: AnsweringNode, version: int = 3, **fields: Any) -> list[tuple[Any, ...]]:
    answer = await node.ask("DescribeAcls", version, **selecting(**fields))
    assert answer.error_code == 0, answer
    return [
        (found.resource_type, found.resource_name, found.pattern_type, each.principal, each.host, each.operation,
         each.permission_type)
        for found in answer.resources for each in found.acls]


async def remove(node: AnsweringNode, version: int = 3, *, by: str = "PLAINTEXT", **fields: Any) -> Any:
    kind = messages.DeleteAclsRequest.DeleteAclsFilter
    answer = await node.ask("DeleteAcls", version, by=by, filters=[kind(**selecting(**fields))])
    return answer.filter_results[0]


@pytest.mark.parametrize("version", [1, 2, 3])
def test_what_was_created_is_described_and_deleted(version: int) -> None:
    text = "allow alice read topic orders; deny bob all topic or.. from 10.0.0.1; allow * describe group *"

    async def scenario(world: ControlWorld) -> None:
        node = await guarded_cluster(world)
        assert await add(node, text, version=version) == [0, 0, 0]
        assert set(await described(node, version)) == {tuple(each) for each in rules(text)}
        assert await described(node, version, resource_name_filter="orders", pattern_type_filter=Pattern.MATCH,
                               resource_type_filter=ResourceType.TOPIC) == [
            tuple(each) for each in sorted(rules(text)[:2])]
        found = await remove(node, version, principal_filter="User:bob")
        assert (found.error_code, [(each.principal, each.host, each.error_code) for each in found.matching_acls]) == (
            0, [("User:bob", "10.0.0.1", 0)])
        assert len(await described(node, version)) == 2
        assert (await remove(node, version, principal_filter="User:bob")).matching_acls == []
        assert len((await remove(node, version)).matching_acls) == 2
        assert await described(node, version) == []
        assert not stored(world)

    run(scenario)


def test_each_binding_has_its_own_result() -> None:
    async def scenario(world: ControlWorld) -> None:
        node = await guarded_cluster(world)
        good, wrong = "allow alice read topic orders", [
            {"resource_type": ResourceType.ANY}, {"resource_pattern_type": Pattern.MATCH}, {"resource_name": ""},
            {"principal": "alice"}, {"operation": Operation.ANY}, {"permission_type": Permission.ANY}]
        answer = await node.ask("CreateAcls", 3, creations=[
            creation(good), *(creation(good, **each) for each in wrong), creation(good)])
        assert [each.error_code for each in answer.results] == [0, *[int(ErrorCode.INVALID_REQUEST)] * 6, 0]
        assert all(each.error_message for each in answer.results[1:-1])
        assert await described(node) == [tuple(acl(good))]
        (key,) = stored(world)
        assert key == KEYS.acl(acl(good))

    run(scenario)


def test_a_binding_that_exists_is_left_as_it_is() -> None:
    async def scenario(world: ControlWorld) -> None:
        node = await guarded_cluster(world)
        assert await add(node, "allow alice read topic orders") == [0]
        before = stored(world)[KEYS.acl(acl("allow alice read topic orders"))]
        assert await add(node, "allow alice read topic orders; allow alice write topic orders") == [0, 0]
        assert stored(world)[KEYS.acl(acl("allow alice read topic orders"))] == before

    run(scenario)


def test_who_may_not_alter_the_cluster_changes_no_right_and_sees_none() -> None:
    async def scenario(world: ControlWorld) -> None:
        node = await guarded_cluster(world)
        assert await add(node, "allow alice all topic *") == [0]
        assert await add(node, "allow alice all cluster kafka-cluster", by=ALICE) == [31]
        assert (await remove(node, by=ALICE)).error_code == 31
        assert (await node.ask("DescribeAcls", 3, by=ALICE, **selecting())).error_code == 31
        assert len(await described(node)) == 1
        assert await add(node, "allow alice alter cluster kafka-cluster") == [0]
        assert await add(node, "allow bob read topic x", by=ALICE) == [0]

    run(scenario)


def test_without_an_authoriser_there_are_no_bindings() -> None:
    async def scenario(world: ControlWorld) -> None:
        node = await cluster(world)
        answer = await node.ask("DescribeAcls", 3, **selecting())
        assert (answer.error_code, answer.resources) == (ErrorCode.SECURITY_DISABLED, [])
        assert await add(node, "allow alice read topic x") == [54]
        assert (await remove(node)).error_code == 54

    run(scenario)


def test_a_filter_that_makes_no_sense_is_refused() -> None:
    async def scenario(world: ControlWorld) -> None:
        node = await guarded_cluster(world)
        assert (await node.ask("DescribeAcls", 3, **selecting(operation=0))).error_code == 42
        assert (await remove(node, pattern_type_filter=9)).error_code == 42

    run(scenario)


# --- what they change -------------------------------------------------------------------------------------------------

Named = messages.MetadataRequest.MetadataRequestTopic


async def metadata(node: AnsweringNode, *wanted: str | UUID, version: int = 12, **fields: Any) -> list[Any]:
    topics = [
        Named(name=None, topic_id=each) if isinstance(each, UUID) else Named(name=each, topic_id=None)
        for each in wanted] if wanted else None
    answer = await node.ask("Metadata", version, by=ALICE, topics=topics, **fields)
    return list(answer.topics)


def test_a_hidden_topic_looks_like_one_that_does_not_exist() -> None:
    async def scenario(world: ControlWorld) -> None:
        node = await guarded_cluster(world)
        made = await create(node, creatable("secret"), creatable("mine"))
        await add(node, "allow alice read topic mine")
        for version in range(0, 14):
            assert {each.name for each in await metadata(node, version=version)} <= {"mine"}
        for creates in (True, False):
            secret, missing = await metadata(node, "secret", "missing", allow_auto_topic_creation=creates)
            assert (secret.error_code, secret.topic_id, secret.partitions) == (29, None, [])
            assert (missing.error_code, missing.topic_id, missing.partitions) == (29, None, [])
        assert [each.error_code for each in await metadata(node, "mine")] == [0]
        (by_id,) = await metadata(node, made["secret"].topic_id)
        assert (by_id.error_code, by_id.name) == (29, None)
        assert {each.name for each in (await node.ask("Metadata", 12, topics=None)).topics} >= {"secret", "mine"}

    run(scenario)


def test_a_right_that_is_removed_has_ended_when_the_removal_is_answered() -> None:
    async def scenario(world: ControlWorld) -> None:
        node = await guarded_cluster(world)
        await create(node, creatable("mine"))
        await add(node, "allow alice read topic mine; deny alice all topic other")
        assert [each.error_code for each in await metadata(node, "mine")] == [0]
        await remove(node, principal_filter="User:alice", resource_name_filter="mine")
        assert [each.error_code for each in await metadata(node, "mine")] == [29]

    run(scenario)


def test_metadata_kept_for_one_client_is_not_given_to_another() -> None:
    async def scenario(world: ControlWorld) -> None:
        node = await guarded_cluster(world)
        await create(node, creatable("secret"))
        assert [each.error_code for each in await metadata(node, "secret")] == [29]
        node.sessions[ALICE].principal = user("root")
        assert [each.error_code for each in await metadata(node, "secret")] == [0]
        node.sessions[ALICE].principal = user("alice")
        assert [each.error_code for each in await metadata(node, "secret")] == [29]

    run(scenario)


def test_to_create_a_topic_at_first_use_needs_the_right_to_create_it() -> None:
    async def scenario(world: ControlWorld) -> None:
        node = await guarded_cluster(world)
        await add(node, "allow alice describe topic *; allow alice create topic new..")
        found = {each.name: each.error_code
                 for each in await metadata(node, "new-1", "other", allow_auto_topic_creation=True)}
        assert found["other"] == 29
        assert found["new-1"] in (0, ErrorCode.LEADER_NOT_AVAILABLE)
        assert node.view.topic("other") is None
        assert node.view.topic("new-1") is not None
        await add(node, "allow alice create cluster kafka-cluster")
        await metadata(node, "other", allow_auto_topic_creation=True)
        assert node.view.topic("other") is not None

    run(scenario)


def test_topics_are_created_and_deleted_by_those_who_may() -> None:
    async def scenario(world: ControlWorld) -> None:
        node = await guarded_cluster(world)
        await add(node, "allow alice create topic mine..")
        made = await create(node, creatable("mine-1"), creatable("secret"), by=ALICE)
        assert (made["mine-1"].error_code, made["secret"].error_code) == (0, 29)
        assert (made["mine-1"].topic_config_error_code, made["mine-1"].num_partitions, made["mine-1"].configs) == (
            29, -1, [])
        assert node.view.topic("secret") is None
        await create(node, creatable("secret"))
        answer = await node.ask(
            "DeleteTopics", 5, by=ALICE, topic_names=["mine-1", "secret", "missing"], timeout_ms=1000)
        assert {each.name: each.error_code for each in answer.responses} == {
            "mine-1": 29, "secret": 29, "missing": 29}
        wanted = messages.DeleteTopicsRequest.DeleteTopicState
        known = node.view.topic("secret")
        assert known is not None
        by_id = wanted(name=None, topic_id=UUID(bytes=bytes(known.topic_id)))
        answer = await node.ask("DeleteTopics", 6, by=ALICE, topics=[by_id], timeout_ms=1000)
        assert [(each.name, each.error_code) for each in answer.responses] == [(None, 29)]
        await add(node, "allow alice describe topic secret; allow alice delete topic mine..")
        answer = await node.ask("DeleteTopics", 6, by=ALICE, topics=[by_id, wanted(name="mine-1")], timeout_ms=1000)
        assert {each.name: each.error_code for each in answer.responses} == {"mine-1": 0, "secret": 29}

    run(scenario)


def test_configurations_are_judged_by_resource() -> None:
    async def scenario(world: ControlWorld) -> None:
        node = await guarded_cluster(world)
        await create(node, creatable("mine"), creatable("secret"))
        await add(node, "allow alice alter_configs topic mine")
        asked = messages.DescribeConfigsRequest.DescribeConfigsResource
        answer = await node.ask(
            "DescribeConfigs", 4, by=ALICE, include_synonyms=False, include_documentation=False, resources=[
                asked(resource_type=kind, resource_name=name, configuration_keys=None)
                for kind, name in ((2, "mine"), (2, "secret"), (2, "missing"), (4, "7"), (8, "7"), (32, "g"))])
        assert {(each.resource_type, each.resource_name): each.error_code for each in answer.results} == {
            (2, "mine"): 0, (2, "secret"): 29, (2, "missing"): 29, (4, "7"): 31, (8, "7"): 31, (32, "g"): 30}
        changed = messages.IncrementalAlterConfigsRequest.AlterConfigsResource
        config = changed.AlterableConfig(name="retention.ms", config_operation=0, value="1000")
        answer = await node.ask("IncrementalAlterConfigs", 1, by=ALICE, validate_only=False, resources=[
            changed(resource_type=2, resource_name=name, configs=[config]) for name in ("mine", "secret")])
        assert {each.resource_name: each.error_code for each in answer.responses} == {"mine": 0, "secret": 29}
        secret = node.view.topic("secret")
        assert secret is not None and not secret.config

    run(scenario)


def test_coordinators_are_found_by_those_who_may_describe_what_they_coordinate() -> None:
    async def scenario(world: ControlWorld) -> None:
        node = await guarded_cluster(world)
        await add(node, "allow alice read group mine; allow alice write transactional_id mine")
        for kind, code in ((0, 30), (1, 53)):
            answer = await node.ask("FindCoordinator", 4, by=ALICE, key_type=kind, coordinator_keys=["mine", "secret"])
            assert {each.key: each.error_code for each in answer.coordinators} == {"mine": 0, "secret": code}
            for key, expected in (("mine", 0), ("secret", code)):
                answer = await node.ask("FindCoordinator", 3, by=ALICE, key_type=kind, key=key)
                assert answer.error_code == expected

    run(scenario)


def test_answers_name_the_authorized_operations_that_are_asked_for() -> None:
    async def scenario(world: ControlWorld) -> None:
        node = await guarded_cluster(world)
        await create(node, creatable("mine"))
        await add(node, "allow alice write topic mine; allow alice cluster_action cluster kafka-cluster")
        (topic,) = await metadata(node, "mine", include_topic_authorized_operations=True)
        assert topic.authorized_operations == {Operation.WRITE, Operation.DESCRIBE}
        (topic,) = await metadata(node, "mine", include_topic_authorized_operations=False)
        assert topic.authorized_operations is None
        answer = await node.ask(
            "DescribeCluster", 1, by=ALICE, endpoint_type=1, include_cluster_authorized_operations=True)
        assert answer.authorized_operations == {Operation.CLUSTER_ACTION}
        answer = await node.ask("Metadata", 9, by=ALICE, topics=[], include_cluster_authorized_operations=True)
        assert answer.authorized_operations == {Operation.CLUSTER_ACTION}

    run(scenario)


def test_partitions_in_pages_are_those_of_topics_that_may_be_described() -> None:
    async def scenario(world: ControlWorld) -> None:
        node = await guarded_cluster(world)
        await create(node, creatable("mine"), creatable("secret"))
        asked = messages.DescribeTopicPartitionsRequest.TopicRequest

        async def pages(*names: str) -> list[tuple[str, int]]:
            answer = await node.ask(
                "DescribeTopicPartitions", 0, by=ALICE, topics=[asked(name=name) for name in names],
                response_partition_limit=100, cursor=None)
            return [(topic.name, topic.error_code) for topic in answer.topics]

        assert await pages() == []
        await add(node, "allow alice describe topic mine")
        assert await pages() == [("mine", 0)]
        assert await pages("mine", "secret", "missing") == [("mine", 0), ("missing", 29), ("secret", 29)]

    run(scenario)


def test_a_node_that_lost_the_store_goes_on_by_what_it_knew() -> None:
    async def scenario(world: ControlWorld) -> None:
        node = await guarded_cluster(world)
        await create(node, creatable("mine"), creatable("secret"))
        await add(node, "allow alice read topic mine")
        world.model.stop()
        assert [(each.name, each.error_code) for each in await metadata(node, "mine", "secret")] == [
            ("mine", 0), ("secret", 29)]

    run(scenario)
