from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hapax.codec import metadata
from hapax.codec.metadata import (
    AclRecord,
    ClusterRecord,
    ControllerRecord,
    DeletedTopicRecord,
    DrainingRecord,
    GroupConfigRecord,
    Keys,
    MetadataFormatError,
    NodeRecord,
    OutsideRecord,
    ParsedKey,
    PartitionRecord,
    PidCounterRecord,
    PidLeaseRecord,
    PolicyRecord,
    QuotaRecord,
    RacksRecord,
    ScramCredentialRecord,
    ScramSecretRecord,
    ShardRecord,
    SilentRecord,
    ThrottleRecord,
    TopicRecord,
)
from hapax.core.access.bindings import Binding
from hapax.core.access.principals import Principal
from hapax.core.access.resources import Operation, Pattern, Permission, ResourceType
from hapax.core.quota.entities import entity_of
from hapax.core.sasl.scram_keys import ScramCredential, ScramMechanism
from hapax.core.types import (
    NO_PRODUCER_ID,
    LeaderEpoch,
    NodeId,
    PartitionIndex,
    ProducerEpoch,
    ProducerId,
    RegistrationEpoch,
    ShardEpoch,
    ShardId,
    TopicId,
    TopicIdPartition,
)

KEYS = Keys("c1")
TOPIC = TopicId(bytes(range(16)))
PARTITION = TopicIdPartition(TOPIC, PartitionIndex(3))

BINDING = Binding(
    ResourceType.TRANSACTIONAL_ID, "a/b é", Pattern.PREFIXED, Principal("User:CN=a,O=b/c"), "::1",
    Operation.DESCRIBE_CONFIGS, Permission.DENY)
RECORDS = [
    ClusterRecord("c1", 50, 50, 1_700_000_000_000),
    NodeRecord(NodeId(100), "coordinator", "::1", 9092, "[::1]:7000", "h:1", bytes(range(16)), "rack", "folder"),
    NodeRecord(NodeId(1), "broker", "a", 9092, "a:7000", listeners=(("EXTERNAL", "b", 30001), ("LAST", "::1", 1))),
    NodeRecord(NodeId(1), "broker", "a", 9092, "a:7000", heeds_passed_over=True),
    TopicRecord(TOPIC, "flights", 4, 1, {"retention.ms": "-1"}, internal=True, assignment=((NodeId(1), NodeId(0)),)),
    TopicRecord(TOPIC, "flights", 4, 1, made_by="uid-1"),
    DeletedTopicRecord(TOPIC, "flights", 5),
    PartitionRecord(NodeId(1), LeaderEpoch(7), RegistrationEpoch(2**40), (NodeId(1), NodeId(2)), (NodeId(1),),
                    LeaderEpoch(6)),
    PartitionRecord(NodeId(1), LeaderEpoch(7), RegistrationEpoch(8), (NodeId(1), NodeId(2)), (NodeId(1),),
                    passed_over=((NodeId(2), RegistrationEpoch(2**40)),)),
    PartitionRecord(NodeId(1), LeaderEpoch(7), RegistrationEpoch(8), (NodeId(1), NodeId(2)), (NodeId(1),),
                    LeaderEpoch(7), passed_over=((NodeId(2), RegistrationEpoch(2**40)),)),
    ShardRecord(NodeId(100), RegistrationEpoch(9), ShardEpoch(4)),
    DrainingRecord(1_700_000_000_000),
    DrainingRecord(1_700_000_000_000, "team/hapax-broker"),
    SilentRecord(RegistrationEpoch(2**40), 1_700_000_000_000),
    DrainingRecord(1_700_000_000_000, "BrokerPool"),
    OutsideRecord({NodeId(0): ("192.0.2.7", 9095), NodeId(100): ("a.example", 443)}),
    OutsideRecord({NodeId(0): ("192.0.2.7", 9095)}, {NodeId(0): "uid"}),
    RacksRecord("topology.kubernetes.io/zone", {"node-1": "a", "node-2": ""}),
    ThrottleRecord(10_000_000, 1_700_000_000_000),
    PidCounterRecord(ProducerId(2**62)),
    PidCounterRecord(ProducerId(2**62), 2**33),
    PidLeaseRecord("a/b ü", ProducerId(5), ProducerEpoch(2), "host", 1, 2, (PARTITION,), {PARTITION: 2**40}),
    PidLeaseRecord("counted", NO_PRODUCER_ID, ProducerEpoch(2), "", 1, 2, (), {}, (ProducerId(5), ProducerId(9)),
                   bytes(16)),
    ControllerRecord(NodeId(300), "h:1", RegistrationEpoch(3)),
    PolicyRecord("", "team-", ("a", "b-*"), 5000, "2026-01-01T00:00:00Z", "uid", "team/loader"),
    GroupConfigRecord({"consumer.session.timeout.ms": "50000"}),
    AclRecord(BINDING),
    ScramCredentialRecord(ScramCredential(
        ScramMechanism.SCRAM_SHA_512, b"salt", b"s" * 64, b"t" * 64, 16384)),
    ScramSecretRecord(bytes(range(32))),
    QuotaRecord(entity_of({"user": "a/b", "client-id": None}), {"producer_byte_rate": 1024.0}, "team/loader"),
    AclRecord(BINDING._replace(pattern=Pattern.LITERAL, permission=Permission.ALLOW, host="*"), "team/loader"),
]


def test_every_record_that_is_read_is_tried() -> None:
    kinds = {each for name, each in vars(metadata).items() if name.endswith("Record") and hasattr(each, "decode")}
    assert {type(record) for record in RECORDS} == kinds


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_a_record_is_read_as_it_was_written(record: ClusterRecord) -> None:
    value = record.encode()
    assert json.loads(value)["v"] == 1
    assert type(record).decode(value) == record


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
@pytest.mark.parametrize("change", [lambda f: f | {"v": 2}, lambda f: {"x": 1}, lambda f: [1]])
def test_another_version_is_refused(record: ClusterRecord, change: object) -> None:
    changed = json.dumps(change(json.loads(record.encode()))).encode()  # type: ignore[operator]
    with pytest.raises(MetadataFormatError):
        type(record).decode(changed)


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_fields_of_a_later_program_are_ignored(record: ClusterRecord) -> None:
    later = json.dumps(json.loads(record.encode()) | {"later": True}).encode()
    assert type(record).decode(later) == record


def test_what_is_not_json_is_refused_by_name() -> None:
    with pytest.raises(MetadataFormatError, match="shard: not JSON"):
        ShardRecord.decode(b"\xff\x00")
    node = json.loads(RECORDS[1].encode()) | {"role": "king"}
    with pytest.raises(MetadataFormatError, match="unknown role"):
        NodeRecord.decode(json.dumps(node).encode())


@pytest.mark.parametrize("change", [{"operation": "SING"}, {"permission": "MAYBE"}, {"type": "X"}, {"pattern": "Y"}])
def test_a_binding_in_words_of_a_later_release_is_refused(change: dict[str, str]) -> None:
    """It may be a denial."""
    with pytest.raises(MetadataFormatError, match="unknown word"):
        AclRecord.decode(json.dumps(json.loads(AclRecord(BINDING).encode()) | change).encode())


def test_a_credential_of_a_mechanism_that_is_not_known_is_refused() -> None:
    credential = next(each for each in RECORDS if isinstance(each, ScramCredentialRecord))
    record = json.loads(credential.encode()) | {"mechanism": "SCRAM-SHA-1"}
    with pytest.raises(MetadataFormatError, match="unknown mechanism"):
        ScramCredentialRecord.decode(json.dumps(record).encode())


def test_keys_parse_back() -> None:
    assert KEYS.parse(KEYS.cluster) == ParsedKey("cluster")
    assert KEYS.parse(KEYS.controller) == ParsedKey("controller")
    assert KEYS.parse(KEYS.pid_next) == ParsedKey("pid_next")
    assert KEYS.parse(KEYS.racks) == ParsedKey("racks")
    assert KEYS.parse(KEYS.outside) == ParsedKey("outside")
    assert KEYS.parse(KEYS.node(NodeId(101))) == ParsedKey("node", 101)
    assert KEYS.parse(KEYS.topic("a.b-c_d")) == ParsedKey("topic", name="a.b-c_d")
    assert KEYS.parse(KEYS.deleted(TOPIC)) == ParsedKey("deleted", topic_id=TOPIC)
    assert KEYS.parse(KEYS.partition(*PARTITION)) == ParsedKey("partition", 3, topic_id=TOPIC)
    assert KEYS.parse(KEYS.shard("txn", ShardId(7))) == ParsedKey("txn_shard", 7)
    assert KEYS.parse(KEYS.shard("group", ShardId(7))) == ParsedKey("group_shard", 7)
    assert KEYS.parse(KEYS.policy("a/b")) == ParsedKey("policy", name="a/b")
    assert KEYS.parse(KEYS.group_config("a/b é%")) == ParsedKey("group_config", name="a/b é%")
    for names, key in (
        ({"user": "a/b", "client-id": None}, "quotas/user/a%2Fb/client-id/<default>"),
        ({"user": None}, "quotas/user/<default>"), ({"user": "<default>"}, "quotas/user/%3Cdefault%3E"),
        ({"client-id": "app 1"}, "quotas/client-id/app%201"), ({"ip": "::1"}, "quotas/ip/%3A%3A1"),
    ):
        assert KEYS.quota(entity_of(names)) == KEYS.prefix + key
        assert KEYS.parse(KEYS.prefix + key) == ParsedKey("quota", name=KEYS.prefix + key)
    acl = KEYS.acl(BINDING)
    assert acl.removeprefix(KEYS.prefix) == (
        "acls/transactional_id/prefixed/a%2Fb%20%C3%A9/deny/describe_configs/User%3ACN%3Da%2CO%3Db%2Fc/%3A%3A1")
    assert KEYS.parse(acl) == ParsedKey("acl", name=acl)
    for mechanism in ScramMechanism:
        key = KEYS.scram_credential(mechanism, "a/b é")
        assert KEYS.parse(key) == ParsedKey("scram_credential", int(mechanism), "a/b é")
    assert KEYS.scram_credential(ScramMechanism.SCRAM_SHA_256, "al/ice") == (
        KEYS.prefix + "scram/users/scram-sha-256/al%2Fice")
    assert KEYS.parse(KEYS.scram_secret) == ParsedKey("scram_secret")
    assert KEYS.parse(KEYS.prefix + "later/thing").kind == "unknown"


@pytest.mark.parametrize("key", [
    "nodes/a", "nodes/", "nodes/01", "nodes/1_0", "nodes/+1", "draining/x", "silent/x", "deleted/no-hex",
    f"partitions/{TOPIC.hex().upper()}/1", f"partitions/{TOPIC.hex()}/one", "partitions/xyz/1", "shards/txn/x",
    "shards/group/ 1", "policies/%61", "policies/a%2fb", "policies/%ff", "pid/leases/%61",
    "scram/users/scram-sha-256/%61", "scram/users/scram-sha-1/a", "scram/users/a", "scram/other",
    "quotas/user", "quotas/user/%61", "quotas/user/a/client-id", "quotas/client-id/a/user/b", "quotas/group/a",
    "acls/topic/literal/%61/allow/read/User%3Aa/*", "acls/topic/literal/a/allow/read/User%3Aa",
])
def test_a_key_that_hapax_does_not_write_is_unknown(key: str) -> None:
    """A key from elsewhere must not end every process that follows the store."""
    assert KEYS.parse(KEYS.prefix + key) == ParsedKey("unknown", name=KEYS.prefix + key)


@given(st.text(min_size=1, max_size=40), st.text(max_size=10))
def test_lease_names_are_free_text(name: str, more: str) -> None:
    assert KEYS.parse(KEYS.pid_lease(name)) == ParsedKey("pid_lease", name=name)
    assert KEYS.pid_lease(name + more).startswith(KEYS.pid_lease(name))


def test_a_cluster_never_sees_the_keys_of_one_whose_id_begins_like_its_own() -> None:
    assert not Keys("c12").node(NodeId(1)).startswith(KEYS.prefix)


def test_a_partition_is_advertised_only_when_its_leader_accepted_this_epoch() -> None:
    def record(leader: int, epoch: int, accepted: int) -> PartitionRecord:
        return PartitionRecord(
            NodeId(leader), LeaderEpoch(epoch), RegistrationEpoch(1), (NodeId(0),), (NodeId(0),), LeaderEpoch(accepted))

    assert record(0, 3, 3).accepted
    assert not record(0, 3, 2).accepted
    assert not record(-1, 3, 3).accepted


def test_a_former_version_does_not_find_who_was_passed_over_for_a_leader_that_accepted() -> None:
    """It would leave the names there, and commit without those."""
    named = ((NodeId(2), RegistrationEpoch(9)),)
    record = PartitionRecord(
        NodeId(1), LeaderEpoch(7), RegistrationEpoch(8), (NodeId(1), NodeId(2)), (NodeId(1),), LeaderEpoch(6),
        passed_over=named)
    assert "passed_over" in json.loads(record.encode())
    accepted = replace(record, accepted_epoch=LeaderEpoch(7))
    assert "passed_over" not in json.loads(accepted.encode())
    assert PartitionRecord.decode(accepted.encode()).passed_over == named
