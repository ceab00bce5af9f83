"""What each role may write in the metadata store."""

from __future__ import annotations

import pytest

from hapax.codec.metadata import Keys
from hapax.codec.store_rights import all_rights, rights
from hapax.core.access.services import ROLES
from hapax.core.types import NodeId, PartitionIndex, ShardId, TopicId

KEYS = Keys("shop")
OWNER = {range(0, 100): "broker", range(100, 200): "coordinator", range(200, 300): "pid"}


def may(role: str, key: str, write: bool) -> bool:
    name = key.encode()
    return any(
        (each.key <= name < each.end if each.end else name == each.key) and (each.write or not write)
        for each in rights("shop", role))


def writers(key: str) -> set[str]:
    return {role for role in ROLES if may(role, key, True)}


@pytest.mark.parametrize("ids", OWNER, ids=OWNER.values())
def test_a_registration_is_written_by_its_role_and_by_controllers(ids: range) -> None:
    for node_id in ids:
        assert writers(KEYS.node(NodeId(node_id))) == {OWNER[ids], "controller"}, node_id


def test_controllers_registrations_are_their_own() -> None:
    for node_id in range(300, 400):
        assert writers(KEYS.node(NodeId(node_id))) == {"controller"}, node_id


def test_only_controllers_decide_about_topics_shards_and_users() -> None:
    for key in (
        KEYS.cluster, KEYS.controller, KEYS.topic("orders"), KEYS.deleted(TopicId(bytes(16))), KEYS.scram_secret,
        KEYS.shard("txn", ShardId(0)), KEYS.draining(NodeId(0)), KEYS.silent(NodeId(0)), KEYS.throttle,
        KEYS.group_config("g"), KEYS.policy("u"), f"{KEYS.prefix}acls/topic", f"{KEYS.prefix}something-new",
    ):
        assert writers(key) == {"controller"}, key


def test_partitions_are_brokers_and_ids_the_allocator_s() -> None:
    assert writers(KEYS.partition(TopicId(bytes(16)), PartitionIndex(0))) == {"broker", "controller"}
    assert writers(KEYS.pid_next) == writers(KEYS.pid_lease("x")) == {"pid", "controller"}


def test_every_role_reads_its_cluster_and_no_other() -> None:
    for role in ROLES:
        assert may(role, KEYS.topic("orders"), False)
        assert may(role, "\0", False) and not may(role, "\0", True)
        for foreign in ("/hapax/shop2/topics/x", "/hapax/sho/topics/x", "/hapax/", "/other", "/hapax/shop"):
            assert not may(role, foreign, False), (role, foreign)
    assert writers("/hapax-admin/shop/idempotency/1") == {"admin"}
    assert all_rights("shop").keys() == set(ROLES)
