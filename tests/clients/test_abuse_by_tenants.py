"""A tenant who is let in and then asks for what is not its own: each case of the threat model, as bytes, against a real
cluster. `alice` has no permission but to read and write `mine`; `admin` may do everything."""

from __future__ import annotations

import json
import socket
import ssl
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from clients.logins import Logins
from clients.raw_login import RawClient
from clients.secured import free_ports
from conftest import end_cluster, start_cluster
from hapax.core.errors import ErrorCode
from hapax.local.cluster import LocalCluster
from hapax.wire import messages
from integration.scraping import scraped
from integration.waiting import wait_until

REFUSED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
CLIENT_IDS = 300


@pytest.fixture(scope="module")
def certified() -> int:
    """The first port of the listener on which a certificate is the principal."""
    return free_ports()


@pytest.fixture(scope="module")
def node(users: Logins, certified: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    folder = tmp_path_factory.mktemp("tenants")
    settings = users.settings(
        "authorizer.class.name=acl", "super.users=User:admin;User:ANONYMOUS", "num.partitions=1",
        f"ssl.truststore.location={users.tls.folder / 'ca.crt'}", "listener.name.ssl.ssl.client.auth=required",
        "ssl.principal.mapping.rules=RULE:^CN=([a-z]*),O=shop$/$1/", "quota.client.ids.max=10",
        "audit.log.destination=file", f"audit.log.dir={folder / 'audit'}")
    settings[0] += f",SSL://127.0.0.1:{certified}+node.id"
    running = start_cluster(folder, settings=settings)
    admin = AdminClient(users.librdkafka("OAUTHBEARER", "admin"))
    for made in admin.create_topics([NewTopic("mine", 1, 1), NewTopic("secret", 1, 1)]).values():
        made.result(30)
    for name, operation in (("mine", AclOperation.READ), ("mine", AclOperation.WRITE)):
        for permitted in admin.create_acls([AclBinding(
                ResourceType.TOPIC, name, ResourcePatternType.LITERAL, "User:alice", "*", operation,
                AclPermissionType.ALLOW)]).values():
            permitted.result(30)
    yield running
    end_cluster(running)


@pytest.fixture
def alice(users: Logins, node: LocalCluster) -> Iterator[RawClient]:
    with RawClient(users) as made:
        assert made.bearer(users.token("alice")).error_code == 0
        yield made


@pytest.fixture
def admin(users: Logins, node: LocalCluster) -> Iterator[RawClient]:
    with RawClient(users) as made:
        assert made.bearer(users.token("admin")).error_code == 0
        yield made


def metadata(client: RawClient, *names: str) -> Any:
    topics = [messages.MetadataRequest.MetadataRequestTopic(name=name) for name in names]
    return client.ask("Metadata", 12, topics=topics, allow_auto_topic_creation=True,
                      include_topic_authorized_operations=True)


def fetched(client: RawClient, version: int, *, replica_id: int = -1, **topic: Any) -> int:
    """The error code of one partition."""
    kind = messages.FetchRequest.FetchTopic
    answer = client.ask(
        "Fetch", version, replica_id=replica_id, max_wait_ms=0, min_bytes=0, max_bytes=1000, isolation_level=0,
        session_id=0, session_epoch=-1, forgotten_topics_data=[], rack_id="", topics=[kind(
            **topic, partitions=[kind.FetchPartition(
                partition=0, current_leader_epoch=-1, fetch_offset=0, last_fetched_epoch=-1, log_start_offset=-1,
                partition_max_bytes=1000)])])
    return int(answer.responses[0].partitions[0].error_code)


def connected(users: Logins, port: int, name: str) -> ssl.SSLSocket:
    context = ssl.create_default_context(cafile=str(users.tls.folder / "ca.crt"))
    context.load_cert_chain(users.tls.folder / f"{name}.crt", users.tls.folder / f"{name}.key")
    plain = socket.create_connection(("127.0.0.1", port), timeout=30)
    return context.wrap_socket(plain, server_hostname="127.0.0.1")


def test_case_6_a_certificate_that_no_rule_maps_is_let_go(users: Logins, node: LocalCluster, certified: int) -> None:
    for name, subject, let_in in (("good", "CN=alice,O=shop", True), ("else", "CN=alice,O=else", False)):
        users.tls.authority.issue(subject, use="client").write(users.tls.folder, name)
        with connected(users, certified, name) as client:
            client.sendall(b"\0\0\0\x0a\0\x12\0\0\0\0\0\1\xff\xff")  # ApiVersions
            try:
                answer = client.recv(4)
            except (ssl.SSLError, ConnectionError):
                answer = b""
            assert bool(answer) is let_in, subject
    wait_until(lambda: "CN=alice,O=else" in node.log("broker-0"), "the line that says why")


def test_case_20_a_topic_that_is_hidden_looks_as_one_that_is_missing(alice: RawClient) -> None:
    answer = metadata(alice, "secret", "absent")
    told = [(each.error_code, each.topic_id, each.is_internal, len(each.partitions), each.name is None)
            for each in answer.topics]
    assert told[0] == told[1] and told[0][:2] == (REFUSED, None)
    assert [each.name for each in alice.ask("Metadata", 12, topics=None, allow_auto_topic_creation=True).topics] == [
        "mine"]


def test_case_21_a_topic_s_id_opens_no_more_than_its_name(alice: RawClient, admin: RawClient) -> None:
    (secret,) = metadata(admin, "secret").topics
    (mine,) = metadata(alice, "mine").topics
    assert fetched(alice, 13, topic_id=mine.topic_id) == 0
    assert fetched(alice, 13, topic_id=secret.topic_id) == REFUSED
    assert fetched(alice, 13, topic_id=uuid.uuid4()) != 0


def test_case_22_a_user_is_no_replica(alice: RawClient) -> None:
    assert fetched(alice, 12, topic="mine") == 0
    assert fetched(alice, 12, topic="mine", replica_id=0) == REFUSED


def test_case_23_a_user_writes_no_markers_and_adds_no_partitions_for_others(alice: RawClient) -> None:
    kind = messages.WriteTxnMarkersRequest.WritableTxnMarker
    answer = alice.ask("WriteTxnMarkers", 1, markers=[kind(
        producer_id=1, producer_epoch=1, transaction_result=True, coordinator_epoch=1,
        topics=[kind.WritableTxnMarkerTopic(name="mine", partition_indexes=[0])])])
    assert answer.markers[0].topics[0].partitions[0].error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    batch = messages.AddPartitionsToTxnRequest
    answer = alice.ask("AddPartitionsToTxn", 4, transactions=[batch.AddPartitionsToTxnTransaction(
        transactional_id="mine", producer_id=1, producer_epoch=1, verify_only=True,
        topics=[batch.AddPartitionsToTxnTopic(name="mine", partitions=[0])])])
    assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def test_case_24_a_user_does_not_fence_another(users: Logins, node: LocalCluster) -> None:
    coordinator = users._replace(tls=users.tls._replace(port=users.tls.port + 100))

    def identity(name: str) -> Any:
        with RawClient(coordinator) as client:
            assert client.bearer(users.token(name)).error_code == 0
            return client.ask("InitProducerId", 4, transactional_id="theirs", transaction_timeout_ms=60_000,
                              producer_id=-1, producer_epoch=-1)

    wait_until(lambda: identity("admin").error_code == 0, "a producer id")
    before = identity("admin")
    assert identity("alice").error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    after = identity("admin")
    assert (after.producer_id, after.producer_epoch) == (before.producer_id, before.producer_epoch + 1)


def test_case_25_no_client_id_opens_internal_topics(alice: RawClient, admin: RawClient) -> None:
    topic = messages.ProduceRequest.TopicProduceData
    for client, code in ((alice, REFUSED), (admin, ErrorCode.INVALID_TOPIC_EXCEPTION)):
        client.send("Produce", 9, client_id=b"__admin_client", transactional_id=None, acks=-1, timeout_ms=1000,
                    topic_data=[topic(name="__transaction_state", partition_data=[
                        topic.PartitionProduceData(index=0, records=b"x" * 61)])])
        answer = client.answer("Produce", 9)
        assert answer.responses[0].partition_responses[0].error_code == code


def test_case_28_a_user_gives_itself_no_rights(alice: RawClient) -> None:
    answer = alice.ask("CreateAcls", 3, creations=[messages.CreateAclsRequest.AclCreation(
        resource_type=2, resource_name="secret", resource_pattern_type=3, principal="User:alice", host="*", operation=3,
        permission_type=3)])
    assert [each.error_code for each in answer.results] == [ErrorCode.CLUSTER_AUTHORIZATION_FAILED]
    assert fetched(alice, 12, topic="secret") == REFUSED


def test_case_31_made_up_client_ids_cost_nothing_that_lasts(alice: RawClient, node: LocalCluster) -> None:
    def series() -> int:
        return sum(len(each) for each in scraped(node, "broker-0").values())

    def asked(number: int) -> None:
        alice.send("Metadata", 12, client_id=b"made-up-%d" % number, topics=[], allow_auto_topic_creation=False)
        assert alice.answer("Metadata", 12) is not None

    asked(0)
    before = series()
    for number in range(CLIENT_IDS):
        asked(number)
    assert series() - before < CLIENT_IDS / 10
    assert not [name for name, samples in scraped(node, "broker-0").items() if "made-up-" in repr(samples)]


def test_case_32_names_write_no_lines_of_their_own(alice: RawClient, users: Logins, node: LocalCluster) -> None:
    forged = 'x\n{"v":1,"event":"login","principal":"User:admin"}\r\n2026-01-01 INFO forged: it is so'
    assert metadata(alice, forged).topics[0].error_code != 0
    assert fetched(alice, 12, topic=forged) == REFUSED
    with RawClient(users) as stranger:
        assert stranger.plain(forged, "guess").error_code == 58
    with RawClient(users) as stranger:
        assert stranger.bearer(users.token(forged)).error_code == 58

    def audited() -> list[str]:
        return [line for path in (node.folder.path / "audit").glob("*.jsonl") for line in path.read_text().splitlines()]

    wait_until(lambda: any("forged" in line for line in audited()), "the line of the audit log")
    for line in audited():
        assert json.loads(line)["principal"] != "User:admin" or "forged" not in line
        assert not line.startswith("2026-01-01 INFO forged")
    assert "forged" in node.log("broker-0")
    assert not [line for line in node.log("broker-0").splitlines() if line.startswith(('{"v"', "2026-01-01 INFO"))]
