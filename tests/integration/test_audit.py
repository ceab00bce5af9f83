"""The audit log of a real cluster with logins and ACLs: every event once, bounded, whole after a stop, no secret."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import confluent_kafka
import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from clients.logins import PASSWORD, Logins, logins, set_password
from clients.raw_login import RawClient
from clients.secured import secured
from conftest import end_cluster, start_cluster
from hapax.backup.cluster import BackedUpCluster
from hapax.client import NewTopic, TopicPartition
from hapax.client.acls import EVERY_ACL
from hapax.client.blocking import Admin, Leases
from hapax.client.users import ScramDeletion
from hapax.core.access.bindings import checked_binding
from hapax.core.access.resources import Operation, Pattern, Permission, ResourceType
from hapax.core.sasl.scram_keys import ScramMechanism
from hapax.local.cluster import LocalCluster
from hapax.runtime.audit_events import COMMON, EVENTS
from hapax.wire.messages import MetadataRequest
from integration.waiting import wait_until

WRONG = "not the password, but a secret"
NAMES = 1000
FLOOD = 10 * NAMES


class Story(NamedTuple):
    lines: list[dict[str, Any]]
    secrets: list[str]

    def of(self, event: str, principal: str | None = "User:admin") -> list[dict[str, Any]]:
        return [line for line in self.lines if line["event"] == event and line["principal"] == principal]

    def one(self, event: str, principal: str | None = "User:admin", **fields: object) -> dict[str, Any]:
        found = [line for line in self.of(event, principal) if fields.items() <= line.items()]
        assert len(found) == 1, (event, principal, fields, self.of(event, principal))
        return found[0]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """What a cluster wrote until it was stopped in order."""
    users = logins(secured(tmp_path_factory.mktemp("certificates")))
    mutual = secured(tmp_path_factory.mktemp("mutual"))
    folder = tmp_path_factory.mktemp("audit") / "lines"
    settings = users.settings(
        "num.partitions=1", "authorizer.class.name=acl", "super.users=User:ANONYMOUS;User:admin",
        "auto.leader.rebalance.enable=false", "audit.log.destination=file",
        f"audit.log.dir={folder}", "audit.log.max.events=5",
        "listener.name.ssl.ssl.client.auth=required",
        f"listener.name.ssl.ssl.truststore.location={mutual.folder / 'ca.crt'}")
    settings[0] += f",SSL://127.0.0.1:{mutual.port}+node.id"
    cluster = start_cluster(
        tmp_path_factory.mktemp("cluster"), brokers=2, coordinators=1, settings=settings)
    try:
        secrets = [PASSWORD, WRONG]
        set_password(cluster.bootstrap, "admin")
        set_password(cluster.bootstrap, "eve", iterations=8192)
        _change_everything(users, cluster)
        _delete_and_take_over(users, cluster)
        _be_refused(users, secrets)
        _meet_in_a_transaction(users, folder / "coordinator-0.jsonl")
        AdminClient({
            "bootstrap.servers": mutual.bootstrap, "security.protocol": "SSL", "log_level": 0,
            "ssl.ca.location": str(users.tls.folder / "ca.crt"),
            "ssl.certificate.location": str(mutual.folder / "client.crt"),
            "ssl.key.location": str(mutual.folder / "client.key")}).list_topics(timeout=30)
    finally:
        end_cluster(cluster)
    texts = {path.name: path.read_text() for path in folder.glob("*.jsonl")}
    assert {"broker-0.jsonl", "broker-1.jsonl", "coordinator-0.jsonl", "controller-0.jsonl"} <= set(texts)
    yield Story([json.loads(line) for text in texts.values() for line in text.splitlines()], secrets)


def native(users: Logins, name: str = "admin") -> dict[str, Any]:
    return {
        "bootstrap.servers": users.bootstrap, "security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-256",
        "ssl.ca.location": str(users.tls.folder / "ca.crt"), "sasl.username": name, "sasl.password": PASSWORD}


def _change_everything(users: Logins, cluster: LocalCluster) -> None:
    with Admin(native(users)) as admin:
        admin.create_topics([NewTopic("orders", 2, 2, {"retention.ms": "5000"})])
        admin.create_partitions({"orders": 3})
        admin.alter_topic_config("orders", {"retention.ms": "7000", "cleanup.policy": "compact"})
        admin.alter_group_config("readers", {"consumer.session.timeout.ms": "50000"})
        admin.alter_quotas({"user": "eve", "client-id": None}, {"producer_byte_rate": 5e6})
        admin.alter_quotas({"user": "eve", "client-id": None}, {"producer_byte_rate": None})
        allowed = checked_binding(
            ResourceType.TOPIC, "orders", Pattern.LITERAL, "User:eve", "*", Operation.DESCRIBE, Permission.ALLOW)
        admin.create_acls([allowed])
        denied = allowed._replace(operation=Operation.WRITE, permission=Permission.DENY)
        admin.create_acls([denied])
        admin.delete_acls(EVERY_ACL._replace(operation=Operation.DESCRIBE))
        partition = TopicPartition("orders", 0)
        before = admin.describe_topic("orders").partitions[0].replicas
        assert admin.alter_reassignments({partition: list(reversed(before))}) == []
        elected, refused = admin.elect_leaders([partition])
        assert elected == [partition] and not refused
        admin.create_topics([NewTopic("gone", 1, 1)])
        admin.delete_topics(["gone"])
        admin.alter_user_scram_credentials([ScramDeletion("eve", ScramMechanism.SCRAM_SHA_512)])
    with Admin({"bootstrap.servers": cluster.bootstrap}) as admin:  # its gRPC has no logins
        admin.set_draining([1], True)
        admin.set_draining([1], False)


def _delete_and_take_over(users: Logins, cluster: LocalCluster) -> None:
    """What brokers, coordinators and PID allocators change themselves."""
    settings = users.librdkafka("SCRAM-SHA-256", "admin")
    admin = AdminClient(settings)
    with Admin(native(users)) as creator:
        creator.create_topics([NewTopic("queue", 2, 1)])
    producer = Producer(settings)
    for partition in range(2):
        producer.produce("queue", b"x", partition=partition)
    producer.flush(30)
    position = [confluent_kafka.TopicPartition("queue", partition, 1) for partition in range(2)]
    for each in admin.delete_records(position[:1]).values():
        each.result(30)
    consumer = Consumer({**settings, "group.id": "g"})
    consumer.commit(offsets=position, asynchronous=False)
    consumer.close()
    anonymous = {"bootstrap.servers": cluster.bootstrap}  # its gRPC has no logins
    with Admin(anonymous) as other:
        assert other.delete_group_offsets("g", [TopicPartition("queue", 1)]) == 1
    for each in admin.delete_consumer_groups(["g"]).values():
        each.result(30)
    with Leases(anonymous) as leases:
        for holder in ("first", "second"):
            leases.take("loader", [TopicPartition("queue", 0)], holder=holder)
    asyncio.run(_restore(anonymous))


async def _restore(settings: dict[str, Any]) -> None:
    """The calls of a restore that are told."""
    async with BackedUpCluster(settings) as cluster:
        await cluster.reserve_producer_ids(1 << 33)
        for restored in (False, True):
            assert await cluster.note_backup("b", restored=restored) == ""


def _be_refused(users: Logins, secrets: list[str]) -> None:
    with pytest.raises(KafkaException):
        AdminClient(users.librdkafka("PLAIN", "eve", WRONG)).list_topics(timeout=5)
    with RawClient(users) as eve:
        secrets.append(users.token("eve"))
        assert eve.bearer(secrets[-1]).error_code == 0
        for _ in range(FLOOD // NAMES):
            eve.ask("Metadata", 9, allow_auto_topic_creation=False, topics=[
                MetadataRequest.MetadataRequestTopic(name=f"hidden-{number}") for number in range(NAMES)])


def _meet_in_a_transaction(users: Logins, log: Path) -> None:
    first = Producer(users.librdkafka("SCRAM-SHA-256", "admin", **{"transactional.id": "t"}))
    first.init_transactions(30)
    first.begin_transaction()
    first.produce("orders", b"aborted")
    first.flush(30)
    first.abort_transaction(30)
    first.begin_transaction()
    first.produce("orders", b"fenced")
    first.flush(30)
    second = Producer(users.librdkafka("SCRAM-SHA-256", "admin", **{"transactional.id": "t"}))
    second.init_transactions(30)
    late = Producer(users.librdkafka(
        "SCRAM-SHA-256", "admin", **{"transactional.id": "late", "transaction.timeout.ms": 1000}))
    late.init_transactions(30)
    late.begin_transaction()
    late.produce("orders", b"late")
    late.flush(30)
    wait_until(lambda: '"call":"time-out"' in log.read_text(), "line of the time-out")


def test_each_line_has_the_fields_of_its_form(story: Story) -> None:
    assert story.lines
    for line in story.lines:
        assert list(line) == [*COMMON, *EVENTS[line["event"]].fields], line
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["time"])
        assert line["v"] == 1 and line["address"] in ("", "127.0.0.1"), line


def test_every_event_was_seen(story: Story) -> None:
    of_rest = {"rest_change"}  # tests/unit/admin/test_callers.py
    assert set(EVENTS) - of_rest == {line["event"] for line in story.lines}


def test_no_secret_is_in_any_line(story: Story) -> None:
    everything = "\n".join(json.dumps(line, ensure_ascii=False) for line in story.lines)
    for secret in story.secrets:
        assert secret not in everything
    assert not re.search(r"salt|stored_key|server_key|password=", everything)


def test_a_flood_is_a_few_lines_and_a_count(story: Story) -> None:
    refused = story.of("refused", "User:eve")
    counts = [line for line in story.of("left_out", "User:eve") if line["of"] == "refused"]
    assert len(refused) + sum(line["count"] for line in counts) == FLOOD
    assert len(refused) <= 5 * (len(counts) + 1)
    assert len(refused) + len(counts) < 100
    assert refused[0] | {"time": "", "node": "", "resource": ""} == {
        "v": 1, "time": "", "event": "refused", "cluster": refused[0]["cluster"], "node": "",
        "principal": "User:eve", "address": "127.0.0.1", "call": "Metadata", "operation": "Describe",
        "resource_type": "Topic", "resource": "", "rule": None, "reason": "no binding permits it"}


def test_logins(story: Story) -> None:
    login = story.of("login")[0]
    assert (login["listener"], login["mechanism"], login["renewed"]) == ("SASL_SSL", "SCRAM-SHA-256", False)
    failed = story.of("login_failed", None)[0]
    assert (failed["mechanism"], failed["listener"]) == ("PLAIN", "SASL_SSL")
    assert failed["reason"] == "the password is wrong or the user 'eve' unknown"
    assert story.one("login", "User:eve")["mechanism"] == "OAUTHBEARER"
    assert story.of("login", "User:CN=client,O=shop")[0]["mechanism"] == "TLS"


def test_topics(story: Story) -> None:
    topic = {"partitions": 2, "replication_factor": 2, "config": {"retention.ms": "5000"}}
    made = story.one("topic_created", topic="orders", old=None, new=topic, outcome="done", call="CreateTopics")
    assert made["node"] == "controller-0"
    story.one("topic_partitions_added", topic="orders", old=2, new=3, call="CreatePartitions")
    story.one(
        "topic_config_changed", topic="orders", old={"cleanup.policy": None, "retention.ms": "5000"},
        new={"cleanup.policy": "compact", "retention.ms": "7000"}, call="IncrementalAlterConfigs")
    story.one("topic_deleted", topic="gone", new=None, call="DeleteTopics")
    story.one("group_config_changed", group="readers", old={"consumer.session.timeout.ms": None},
              new={"consumer.session.timeout.ms": "50000"})


def test_acls_users_and_quotas(story: Story) -> None:
    acl = {
        "permission": "Allow", "principal": "User:eve", "host": "*", "operation": "Describe",
        "resource_type": "Topic", "pattern": "Literal", "resource": "orders"}
    story.one("acl_created", old=None, new=acl, call="CreateAcls")
    story.one("acl_created", old=None, new={**acl, "permission": "Deny", "operation": "Write"})
    story.one("acl_deleted", old=acl, new=None, call="DeleteAcls")
    story.one("user_changed", "User:ANONYMOUS", user="eve", old=None,
              new={"mechanism": "SCRAM-SHA-512", "iterations": 8192}, call="AlterUserScramCredentials")
    story.one("user_changed", user="eve", old={"mechanism": "SCRAM-SHA-512", "iterations": 8192}, new=None)
    entity = [{"type": "user", "name": "eve"}, {"type": "client-id", "name": None}]
    changes = story.of("quota_changed")
    assert [(line["old"], line["new"]) for line in changes] == [
        ({}, {"producer_byte_rate": 5e6}), ({"producer_byte_rate": 5e6}, {})]
    assert all(sorted(map(str, line["entity"])) == sorted(map(str, entity)) for line in changes)


def test_what_nodes_change_themselves(story: Story) -> None:
    deleted = story.one("records_deleted", topic="queue", partition=0, new=1, outcome="done", call="DeleteRecords")
    assert deleted["node"].startswith("broker-") and deleted["address"] == "127.0.0.1"
    story.one("group_offsets_deleted", "User:ANONYMOUS", group="g", topic="queue", old=[1], call="DeleteOffsets")
    assert story.one("group_deleted", group="g", call="DeleteGroups")["node"] == "coordinator-0"
    taken = story.one("lease_taken_over", "User:ANONYMOUS", lease="loader", outcome="done", call="LeasePid")
    assert (taken["old"], taken["new"]["holder"]) == ({"holder": "first"}, "second")
    story.one("producer_ids_reserved", "User:ANONYMOUS", old=0, new=1 << 33, call="ReserveProducerIds")
    for event in ("backup_taken", "backup_restored"):
        story.one(event, "User:ANONYMOUS", backup="b", call="NoteBackup")


def test_moves(story: Story) -> None:
    (moved,) = story.of("replicas_moved")
    assert moved["old"] == list(reversed(moved["new"])) and (moved["topic"], moved["partition"]) == ("orders", 0)
    elected = story.one("leader_elected", topic="orders", partition=0, call="ElectLeaders")
    assert elected["old"] != elected["new"] == moved["new"][0]
    drained = story.of("replication_changed", "User:ANONYMOUS")
    assert [(line["old"]["draining"], line["new"]["draining"]) for line in drained] == [([], [1]), ([1], [])]


def test_transactions(story: Story) -> None:
    aborted = story.one("transaction_aborted", transactional_id="t", call="EndTxn", new="PrepareAbort")
    fenced = story.one("producer_fenced", transactional_id="t", call="InitProducerId", cause="initialized")
    story.one("transaction_aborted", None, transactional_id="late", call="time-out", address="")
    assert aborted["node"] == fenced["node"] == "coordinator-0"
    assert aborted["old"]["partitions"] == 1
    assert fenced["fenced_address"] == "127.0.0.1"
    assert (fenced["new"]["producer_id"], fenced["new"]["producer_epoch"]) > (
        fenced["old"]["producer_id"], fenced["old"]["producer_epoch"])


def test_only_what_the_cluster_does_by_itself_has_no_principal(story: Story) -> None:
    nameless = Counter(line["event"] for line in story.lines if line["principal"] is None)
    assert set(nameless) <= {"login_failed", "left_out", "transaction_aborted", "producer_fenced"}, nameless
