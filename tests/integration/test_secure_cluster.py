"""`hapax local up --secure`: every port has TLS, processes prove who they are, and each may do its own work only."""

from __future__ import annotations

import json
import socket
import ssl
import stat
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from conftest import end_cluster, start_cluster
from hapax.client.admin import NewTopic
from hapax.client.blocking import Admin, Leases
from hapax.client.users import ScramUpsertion
from hapax.codec.metadata import TXN_STATE_TOPIC, TopicRecord
from hapax.core.errors import ErrorCode
from hapax.core.sasl.scram_keys import ScramMechanism
from hapax.core.types import PartitionIndex, TopicId
from hapax.core.types import TopicPartition as CorePartition
from hapax.rpc.gen.hapax.v1 import cluster_admin_pb2, transactions_pb2
from hapax.runtime.etcd_users import _Auth, set_up
from hapax.runtime.ports import Compare, MetadataUnavailable, Put, RpcError
from hapax.runtime.rpc import CLUSTER_KEY, LOGIN_KEY
from hapax.runtime.tls import Material, TlsOptions
from integration.scraping import total
from integration.secure_cluster import CLIENTS, SERVICES, Secure, certificate_of
from integration.waiting import wait_until
from unit.admin.rest_world import basic

TIMEOUT = 30.0
NODES = ("broker-0", "broker-1", "coordinator-0", "pid-0", "controller-0")
_INTERNAL = "/hapax.internal.v1."


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    running = start_cluster(
        tmp_path_factory.mktemp("secure"), brokers=2, admin=1, secure=True,
        settings=["default.replication.factor=2", "min.insync.replicas=2", "ssl.reload.interval.ms=200"])
    yield Secure(running)
    end_cluster(running)


def librdkafka(secure: Secure, **more: object) -> dict[str, object]:
    return {
        "bootstrap.servers": secure.state.bootstrap, "security.protocol": "SASL_SSL", "log_level": 0,
        "ssl.ca.location": str(secure.files.file(CLIENTS + ".crt")), "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "admin", "sasl.password": secure.files.password("admin"), **more}


# --- the work ---------------------------------------------------------------------------------------------------------


def test_replication_transactions_groups_and_leases_work(secure: Secure) -> None:
    topic = f"t-{uuid.uuid4().hex[:8]}"
    with Admin(secure.client) as admin:
        admin.create_topics([NewTopic(topic, 2)])
        producer = Producer(librdkafka(secure, **{"transactional.id": topic}))
        consumer = Consumer(librdkafka(
            secure, **{"group.id": topic, "auto.offset.reset": "earliest", "enable.auto.commit": False}))
        producer.init_transactions(TIMEOUT)
        producer.begin_transaction()
        producer.produce(topic, b"one", partition=0)
        producer.produce(topic, b"two", partition=1)
        producer.send_offsets_to_transaction(
            [TopicPartition(topic, 0, 1)], consumer.consumer_group_metadata(), TIMEOUT)
        producer.commit_transaction(TIMEOUT)
        consumer.subscribe([topic])
        message = consumer.poll(TIMEOUT)  # the other record is before the offset that was committed with it
        assert message is not None and message.value() == b"two", message
        consumer.close()
        assert [sorted(each.isr) for each in admin.describe_topic(topic).partitions] == [[0, 1], [0, 1]]
    with Leases(secure.client) as leases:
        assert leases.take(topic, [CorePartition(topic, PartitionIndex(0))]).producer_id >= 0


def test_the_rest_api_works_over_tls(secure: Secure) -> None:
    token = next(
        line.split()[2] for line in secure.cluster.folder.rest_tokens().read_text().splitlines() if " admin " in line)
    url = f"https://127.0.0.1:{secure.process('admin-0').port}/v1/topics"
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=20, context=secure.trust(CLIENTS)) as answer:
        assert "items" in json.load(answer)
    with pytest.raises((urllib.error.URLError, ConnectionError)):
        urllib.request.urlopen(url.replace("https", "http"), timeout=10)


def test_probes_and_metrics_need_no_certificate_but_tls(secure: Secure) -> None:
    for name in (*NODES, "admin-0"):
        assert secure.get(name, "/readyz") == "ok\n"
        assert total(secure.metrics(name), "hapax_tls_certificate_days_left", listener="http") > 300
        plain = f"http://127.0.0.1:{secure.process(name).http_port}/metrics"
        with pytest.raises((urllib.error.URLError, ConnectionError, OSError)):
            urllib.request.urlopen(plain, timeout=10)


def test_what_is_secret_is_for_its_owner(secure: Secure) -> None:
    assert stat.S_IMODE(secure.files.path.stat().st_mode) == 0o700
    secrets = [*secure.files.path.glob("*.key"), *secure.files.path.glob("*.pem"), secure.files.profile]
    assert len(secrets) > 10
    assert {stat.S_IMODE(each.stat().st_mode) for each in secrets} == {0o600}


# --- service ports ----------------------------------------------------------------------------------------------------


def service_ports(secure: Secure) -> list[int]:
    found = [each.rpc_port for each in secure.state.processes if each.role not in ("etcd", "admin")]
    found += [port for each in secure.state.processes for port in (each.frames_port, each.nodes_port) if port]
    return [*found, secure.process("etcd").port]


def is_refused(port: int, own: tuple[Path, Path] | None) -> bool:
    """Whether a client that checks nothing is sent an alert. It sends nothing: a port that lets it in waits."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])  # etcd serves nothing else for long
    if own is not None:
        context.load_cert_chain(*own)
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=3) as plain, context.wrap_socket(plain) as secured:
            assert secured.recv(1), "closed without an alert"
    except TimeoutError:
        return False
    except ssl.SSLError as error:
        assert "ALERT" in str(error).upper(), error
        return True
    return False


def test_a_client_s_certificate_opens_no_service_port(secure: Secure, tmp_path: Path) -> None:
    pem = secure.files.file("admin.pem").read_bytes()
    key, _, certificate = pem.partition(b"-----END PRIVATE KEY-----\n")
    (tmp_path / "k").write_bytes(key + b"-----END PRIVATE KEY-----\n")
    (tmp_path / "c").write_bytes(certificate)
    node = secure.files.file("broker-1.crt"), secure.files.file("broker-1.key")
    ports = service_ports(secure)
    assert len(ports) >= 12

    def check(port: int) -> None:
        assert not is_refused(port, node), (port, "no node could use it either")
        assert is_refused(port, (tmp_path / "c", tmp_path / "k")), port
        assert is_refused(port, None), port

    with ThreadPoolExecutor(len(ports)) as at_once:  # an open port is known by its silence, which takes a while
        list(at_once.map(check, ports))


def test_plaintext_to_any_port_is_closed(secure: Secure) -> None:
    public = [each.public_rpc_port for each in secure.state.processes if each.role not in ("etcd", "admin")]
    for port in (*service_ports(secure), *public, int(secure.state.bootstrap.rpartition(":")[2])):
        with socket.create_connection(("127.0.0.1", port), timeout=15) as plain:
            plain.sendall(b"\0\0\0\x0a\0\x12\0\0\0\0\0\1\xff\xff")
            answer = b""
            try:
                while more := plain.recv(4096):
                    answer += more
            except ConnectionError:
                pass
            assert answer == b"" or answer[:1] == b"\x15" or answer.startswith(b"HTTP/1.0 400"), (port, answer)


@pytest.mark.parametrize(("caller", "called", "method"), [
    ("pid-0", "broker-0", "PartitionBroker/WriteMarkers"), ("pid-0", "broker-0", "PartitionBroker/FetchSnapshot"),
    ("pid-0", "coordinator-0", "TxnCoordinator/AbortHanging"),
    ("pid-0", "coordinator-0", "GroupCoordinator/WriteOffsetsMarkers"),
    ("pid-0", "controller-0", "Controller/DeleteTopics"), ("pid-0", "controller-0", "Controller/AlterAcls"),
    ("broker-1", "broker-0", "PartitionBroker/WriteMarkers"),
    ("broker-1", "broker-0", "PartitionBroker/FenceProducer"),
    ("coordinator-0", "broker-0", "PartitionBroker/FenceProducer"),
    ("admin-0", "controller-0", "Controller/DeleteTopics"),
])
def test_a_role_cannot_do_another_s_work(secure: Secure, caller: str, called: str, method: str) -> None:
    with pytest.raises(RpcError) as refused:
        secure.call(caller, called, _INTERNAL + method)
    assert refused.value.status == "PERMISSION_DENIED"


def test_a_topic_outlives_the_attempt_to_delete_it_through_a_service_port(secure: Secure) -> None:
    topic = f"t-{uuid.uuid4().hex[:8]}"
    request = cluster_admin_pb2.DeleteTopicsRequest(names=[topic]).SerializeToString()
    with Admin(secure.client) as admin:
        admin.create_topics([topic])
        for caller in ("pid-0", "admin-0"):
            with pytest.raises(RpcError, match="PERMISSION_DENIED"):
                secure.call(caller, "controller-0", _INTERNAL + "Controller/DeleteTopics", request)
        assert topic in {each.name for each in admin.list_topics()}


def test_another_process_in_the_place_of_the_dialled_one_is_not_believed(secure: Secure) -> None:
    broker = secure.process("broker-0")
    swapped = Secure(secure.cluster)
    swapped.process("broker-1").rpc_port = broker.rpc_port
    with pytest.raises(RpcError, match=r"names spiffe://.*/broker/0, and spiffe://.*/broker/1 is called"):
        swapped.call("coordinator-0", "broker-1", _INTERNAL + "PartitionBroker/DescribeProducers")


def test_a_client_fences_no_one_on_the_public_port(secure: Secure) -> None:
    """Abuse case 29, of a user who is let in; who is not known is refused before that."""
    with Admin(secure.client) as admin:
        admin.alter_user_scram_credentials([ScramUpsertion("tenant", ScramMechanism.SCRAM_SHA_256, "secret", 4096)])
    request = transactions_pb2.FenceProducerRequest(transactional_id="theirs").SerializeToString()
    credentials = grpc.ssl_channel_credentials(secure.files.file(f"{CLIENTS}.crt").read_bytes())
    port = secure.process("coordinator-0").public_rpc_port

    def status(login: str) -> grpc.StatusCode:
        shown = [(LOGIN_KEY, login)] if login else []
        with grpc.secure_channel(f"127.0.0.1:{port}", credentials) as channel:
            try:
                channel.unary_unary("/hapax.v1.Transactions/FenceProducer")(
                    request, timeout=TIMEOUT, metadata=((CLUSTER_KEY, secure.cluster_id), *shown))
            except grpc.RpcError as error:
                code: grpc.StatusCode = error.code()
                return code
        return grpc.StatusCode.OK

    tenant = basic("tenant", "secret")
    wait_until(lambda: status(tenant) is grpc.StatusCode.PERMISSION_DENIED, "login of a tenant")
    for stranger in ("", basic("tenant", "guess"), basic("admin", "guess"), "Bearer x.y.z"):
        assert status(stranger) is grpc.StatusCode.UNAUTHENTICATED
    boss = status(basic("admin", secure.files.password("admin")))
    assert boss not in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED)


# --- the nodes' Kafka listener ----------------------------------------------------------------------------------------


def topic_id(secure: Secure, name: str) -> bytes:
    return bytes(TopicRecord.decode(secure.record(secure.keys.topic(name)).value).topic_id)


def test_a_copied_proof_writes_no_internal_topic(secure: Secure) -> None:
    """Its sixteen bytes were anybody's key; now they count on the connection of that very node alone."""
    internal = topic_id(secure, TXN_STATE_TOPIC)
    for name in ("pid-0", "broker-1"):  # a process, but another than the proof's
        for broker in ("broker-0", "broker-1"):
            port = secure.process(broker).nodes_port
            node_id = secure.process(broker).node_id
            error, _ = secure.internal_write(
                internal, lambda n=name, i=node_id: secure.network(n).node_tls("broker", i), port)  # type: ignore[misc]
            assert error in (ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.TOPIC_AUTHORIZATION_FAILED), (name, error)


def test_the_proof_still_counts_from_its_own_node(secure: Secure) -> None:
    """The fence of the shard's epoch, not the identity, refuses it."""
    internal = topic_id(secure, TXN_STATE_TOPIC)
    errors = set()
    for broker in ("broker-0", "broker-1"):
        process = secure.process(broker)
        error, _ = secure.internal_write(
            internal, lambda i=process.node_id: secure.network("coordinator-0").node_tls("broker", i),  # type: ignore[misc]
            process.nodes_port)
        errors.add(error)
    assert not errors & {ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.TOPIC_AUTHORIZATION_FAILED}, errors


# --- etcd -------------------------------------------------------------------------------------------------------------


def put(secure: Secure, who: str, key: str) -> None:
    """Writes a key as it is, or an empty one if there is none. Raises MetadataUnavailable."""

    async def work(store: Any) -> None:
        found = await store.get(key)
        revision, value = (0, b"{}") if found is None else (found.mod_revision, found.value)
        assert (await store.txn([Compare(key, "mod_revision", revision)], [
            Put(key, value, 0 if found is None else found.lease)])).succeeded

    def answered() -> bool:
        try:
            secure.store(who, work, 0.5)  # a refusal is tried again for this time
        except MetadataUnavailable as error:
            if "permission denied" in str(error):
                raise
            return False
        return True

    wait_until(answered, f"answer to {who}")


def test_etcd_lets_each_role_write_its_own_keys_only(secure: Secure) -> None:
    keys, unknown = secure.keys, TopicId(bytes(15) + b"\1")
    partition = keys.partition(unknown, PartitionIndex(0))
    node = {name: keys.node(secure.process(name).node_id) for name in NODES}  # type: ignore[arg-type]
    allowed = {
        "pid-0": {node["pid-0"], keys.pid_next}, "broker-0": {node["broker-0"], node["broker-1"], partition},
        "coordinator-0": {node["coordinator-0"]}, "admin-0": {f"/hapax-admin/{secure.cluster_id}/x"},
    }
    everything = {
        *node.values(), keys.pid_next, partition, keys.cluster, keys.scram_secret, keys.topic(TXN_STATE_TOPIC),
        f"/hapax-admin/{secure.cluster_id}/x", "/elsewhere"}
    for who, own in allowed.items():
        for key in sorted(everything):
            if key in own:
                if key != partition:  # a key of no topic would be in the way
                    put(secure, who, key)
            else:
                with pytest.raises(MetadataUnavailable, match="permission denied"):
                    put(secure, who, key)


def test_a_role_that_a_user_of_etcd_should_not_have_is_taken_back(secure: Secure) -> None:
    """`set_up` takes back what is too much: whole roles of others too, not only ranges of keys."""
    root = Material(*(secure.files.file(name).read_bytes() for name in ("root.crt", "root.key", SERVICES + ".crt")))
    endpoint = f"127.0.0.1:{secure.process('etcd').port}"
    credentials = grpc.ssl_channel_credentials(root.authorities, root.key, root.chain)
    with grpc.secure_channel(endpoint, credentials, options=(("grpc.enable_http_proxy", 0),)) as channel:
        etcd = _Auth(channel)
        etcd._call("UserGrantRole", user="hapax-pid", role="hapax-controller")
        assert set_up(endpoint, root, secure.cluster_id) == 1
        assert list(etcd._call("UserGet", name="hapax-pid").roles) == ["hapax-pid"]
        assert list(etcd._call("UserGet", name="root").roles) == ["root"]
    assert set_up(endpoint, root, secure.cluster_id) == 0


def test_etcd_takes_no_certificate_of_a_client_and_none_without(secure: Secure) -> None:
    authority = str(secure.files.file(SERVICES + ".crt"))
    pem = str(secure.files.file("admin.pem"))
    for options in (
        TlsOptions(authorities_location=authority), TlsOptions(keystore_location=pem, authorities_location=authority),
    ):
        with pytest.raises(MetadataUnavailable):
            secure.store_with(options, lambda store: store.get(secure.keys.cluster))


# --- rotation ---------------------------------------------------------------------------------------------------------


def test_every_certificate_is_replaced_while_the_cluster_works(secure: Secure) -> None:
    topic = f"t-{uuid.uuid4().hex[:8]}"
    with Admin(secure.client) as admin:
        admin.create_topics([NewTopic(topic, 2)])
    failed: list[object] = []
    producer = Producer(librdkafka(secure, **{"enable.idempotence": True}))

    def written(count: int) -> None:
        for _ in range(count):
            producer.produce(topic, b"x", on_delivery=lambda error, _: failed.append(error) if error else None)
        producer.flush(TIMEOUT)

    written(10)
    ports = {name: secure.process(name).http_port for name in (*NODES, "admin-0")}
    before = {name: certificate_of(port, secure.trust()) for name, port in ports.items()}
    registered = {name: secure.record(secure.keys.node(secure.process(name).node_id)).create_revision  # type: ignore[arg-type]
                  for name in NODES}
    secure.files.renew(secure.cluster_id, secure.state.processes)
    listeners = {
        "broker-0": {"INTERNAL", "CLIENTS", "services", "etcd", "http", "public.rpc"},
        "pid-0": {"services", "etcd", "http", "public.rpc"}, "admin-0": {"admin", "etcd", "http"},
    }
    for name, wanted in listeners.items():
        wait_until(
            lambda n=name, w=wanted: all(  # type: ignore[misc]
                total(secure.metrics(n), "hapax_tls_reloads_total", listener=each) >= 1 for each in w),
            f"rotation of {name}")
    written(200)
    assert not failed
    for name, port in ports.items():
        assert certificate_of(port, secure.trust()) != before[name], name
        assert total(secure.metrics(name), "hapax_tls_certificates_refused") == 0
    # New connections with the new certificates, in both directions.
    assert secure.call("coordinator-0", "broker-0", _INTERNAL + "PartitionBroker/DescribeProducers") is not None
    put(secure, "pid-0", secure.keys.pid_next)
    for name in NODES:
        record = secure.record(secure.keys.node(secure.process(name).node_id))  # type: ignore[arg-type]
        assert record.create_revision == registered[name], f"{name} has lost its registration"


def test_a_process_that_starts_again_is_let_in(secure: Secure) -> None:
    secure.cluster.restart("broker-1")
    secure.cluster.kill("pid-0")
    secure.cluster.start("pid-0")
    topic = f"t-{uuid.uuid4().hex[:8]}"
    with Admin(secure.client) as admin:
        admin.create_topics([NewTopic(topic, 2)])
    producer = Producer(librdkafka(secure, **{"transactional.id": topic}))
    producer.init_transactions(TIMEOUT)
    producer.begin_transaction()
    producer.produce(topic, b"x")
    producer.commit_transaction(TIMEOUT)
