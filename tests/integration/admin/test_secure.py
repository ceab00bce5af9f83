"""The REST API of a secure cluster, with real processes: logins over TLS, ACLs, and those who have neither."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from aetcd.rpc import rpc_pb2

from conftest import end_cluster, start_cluster
from hapax.client.acls import EVERY_ACL
from hapax.client.blocking import Admin, Leases, Producer
from hapax.client.errors import HapaxError
from hapax.client.properties import read_properties
from hapax.client.users import ScramDeletion, ScramUpsertion
from hapax.core.access.bindings import Binding
from hapax.core.access.principals import user
from hapax.core.access.resources import CLUSTER_NAME, Operation, Pattern, Permission, ResourceType
from hapax.core.sasl.scram_keys import ScramMechanism
from hapax.local.authority import Authority
from hapax.local.cluster import LocalCluster
from hapax.local.secure import CLIENTS, ETCD_ROOT, SERVICES, SecureFolder
from integration.admin_process import Answered
from integration.waiting import is_closed, wait_until
from unit.admin.rest_world import basic

HANDSHAKE_S = 3.0
HALF_OPEN = 700
PER_ADDRESS = 200
OTHERS_WAIT_S = 10.0
"""Of a client that behaves, on a machine that has other things to do too."""
PASSWORD = "of alice's own"


class SecureRest:
    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.files = SecureFolder(cluster.folder)
        self.profile = read_properties(self.files.profile)
        self.boss = basic("admin", self.files.password("admin"))
        self.tokens = {
            role: f"Bearer {token}" for _, role, token in map(
                str.split, cluster.folder.rest_tokens().read_text().splitlines())}

    @property
    def port(self) -> int:
        return self.cluster.status().process("admin-0").port

    def trust(self, *shown: Path) -> ssl.SSLContext:
        """`shown`: the client's certificate and key."""
        context = ssl.create_default_context(cafile=str(self.files.file(f"{CLIENTS}.crt")))
        if shown:
            context.load_cert_chain(*shown)
        return context

    def open(self, *shown: Path) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=60, context=self.trust(*shown))

    def ask(
        self, method: str, path: str, body: Any = None, *, auth: str | None = None, shown: tuple[Path, ...] = (),
        connection: http.client.HTTPSConnection | None = None, **headers: str,
    ) -> Answered:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if auth is not None:
            sent["Authorization"] = auth
        if body is not None:
            sent["Content-Type"] = "application/json"
        used = connection or self.open(*shown)
        try:
            used.request(method, path, None if body is None else json.dumps(body), sent)
            response = used.getresponse()
            return Answered(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        finally:
            if connection is None:
                used.close()

    def status(self, method: str, path: str, **how: Any) -> int:
        return self.ask(method, path, **how).status

    def kept(self) -> int:
        """Idempotency keys in etcd."""
        parts = [self.files.file(name).read_bytes() for name in (
            f"{SERVICES}.crt", f"{ETCD_ROOT}.key", f"{ETCD_ROOT}.crt")]
        etcd = self.cluster.status().process("etcd").port
        with grpc.secure_channel(f"127.0.0.1:{etcd}", grpc.ssl_channel_credentials(*parts)) as channel:
            ask = channel.unary_unary(
                "/etcdserverpb.KV/Range", request_serializer=rpc_pb2.RangeRequest.SerializeToString,
                response_deserializer=rpc_pb2.RangeResponse.FromString)
            found = ask(rpc_pb2.RangeRequest(
                key=b"/hapax-admin/", range_end=b"/hapax-admin0", count_only=True), timeout=20)
            return int(found.count)


@pytest.fixture(scope="module")
def rest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureRest]:
    cluster = start_cluster(tmp_path_factory.mktemp("secure-rest"), secure=True, admin=1, settings=[
        f"ssl.handshake.timeout.ms={int(HANDSHAKE_S * 1000)}", f"ssl.max.handshakes.per.ip={PER_ADDRESS}",
        "ssl.reload.interval.ms=200"])
    made = SecureRest(cluster)
    assert made.status("POST", "/v1/topics", body={"name": "orders", "partitions": 1}, auth=made.boss) == 201
    assert made.status("POST", "/v1/topics", body={"name": "secret", "partitions": 1}, auth=made.boss) == 201
    with Producer(made.profile) as producer:
        producer.send("orders", b"v").result(60)
    yield made
    end_cluster(cluster)


@pytest.fixture
def admin(rest: SecureRest) -> Iterator[Admin]:
    with Admin(rest.profile) as made:
        yield made


@pytest.fixture
def alice(rest: SecureRest, admin: Admin) -> Iterator[str]:
    """A user with a password, without rights."""
    admin.alter_user_scram_credentials([ScramUpsertion("alice", ScramMechanism.SCRAM_SHA_256, PASSWORD, 4096)])
    auth = basic("alice", PASSWORD)
    wait_until(lambda: rest.status("GET", "/v1/version", auth=auth) == 200, "login of alice")
    yield auth
    admin.delete_acls(EVERY_ACL)
    with contextlib.suppress(Exception):
        admin.alter_user_scram_credentials([ScramDeletion("alice", ScramMechanism.SCRAM_SHA_256)])


def allowed(operation: Operation, kind: ResourceType, name: str = CLUSTER_NAME, who: str = "alice") -> Binding:
    return Binding(kind, name, Pattern.LITERAL, user(who), "*", operation, Permission.ALLOW)


RECORDS = "/v1/topics/orders/partitions/0/messages"


def test_a_user_does_what_its_acls_permit_from_the_next_request_on(
    rest: SecureRest, admin: Admin, alice: str
) -> None:
    """Abuse cases 20 and 27, on one connection that stays open."""
    with contextlib.closing(rest.open()) as connection:
        def status(method: str, path: str, body: Any = None) -> int:
            return rest.status(method, path, body=body, auth=alice, connection=connection)

        assert status("GET", RECORDS) == status("GET", "/v1/topics/orders") == status("GET", "/v1/topics/nosuch") == 403
        assert json.loads(rest.ask("GET", "/v1/topics", auth=alice).body)["items"] == []
        admin.create_acls([allowed(Operation.READ, ResourceType.TOPIC, "orders")])
        wait_until(lambda: status("GET", RECORDS) == 200, "right to read")
        assert status("GET", "/v1/topics/orders") == 200
        assert status("DELETE", "/v1/topics/orders") == status("GET", "/v1/topics/secret") == 403
        names = [each["name"] for each in json.loads(rest.ask("GET", "/v1/topics", auth=alice).body)["items"]]
        assert names == ["orders"]
        admin.delete_acls(EVERY_ACL)
        wait_until(lambda: status("GET", RECORDS) == 403, "end of the right to read")


def test_a_password_that_is_changed_or_removed_opens_nothing(rest: SecureRest, admin: Admin, alice: str) -> None:
    admin.alter_user_scram_credentials([ScramUpsertion("alice", ScramMechanism.SCRAM_SHA_256, "another", 4096)])
    wait_until(lambda: rest.status("GET", "/v1/version", auth=alice) == 401, "end of the former password")
    assert rest.status("GET", "/v1/version", auth=basic("alice", "another")) == 200
    admin.alter_user_scram_credentials([ScramDeletion("alice", ScramMechanism.SCRAM_SHA_256)])
    wait_until(lambda: rest.status("GET", "/v1/version", auth=basic("alice", "another")) == 401, "end of alice")


def test_a_reader_s_token(rest: SecureRest) -> None:
    """Abuse case 35."""
    reader = rest.tokens["read-only"]
    assert rest.status("GET", "/v1/topics/orders", auth=reader) == 200
    assert rest.status("GET", RECORDS, auth=reader) == rest.status("GET", "/v1/events", auth=reader) == 403
    assert rest.status("DELETE", "/v1/topics/orders", auth=reader) == 403
    assert rest.status("GET", RECORDS, auth=rest.tokens["admin"]) == 200


def test_a_user_without_a_certificate_calls_public_grpc(rest: SecureRest, admin: Admin, alice: str) -> None:
    own = {name: value for name, value in rest.profile.items() if "keystore" not in name and "jaas" not in name}
    own |= {"sasl.mechanism": "SCRAM-SHA-256", "sasl.username": "alice", "sasl.password": PASSWORD}
    with Leases(own) as leases:
        with pytest.raises(HapaxError, match="PERMISSION_DENIED"):
            leases.list()
        admin.create_acls([allowed(Operation.DESCRIBE, ResourceType.CLUSTER)])

        def lists() -> bool:
            with contextlib.suppress(HapaxError):
                return leases.list() == []
            return False

        wait_until(lists, "right to list leases")


def test_a_certificate_gives_its_principal(rest: SecureRest, tmp_path: Path) -> None:
    """Abuse case 5: another authority's, an expired one and a server's are answered with an alert."""
    clients = Authority.read(
        rest.files.file(f"{CLIENTS}.crt").read_bytes(), rest.files.file(f"{CLIENTS}.key").read_bytes())
    own = clients.issue("CN=admin", use="client").write(tmp_path, "own")
    assert rest.status("GET", "/v1/nodes", shown=own) == 200
    guest = clients.issue("CN=guest", use="client").write(tmp_path, "guest")
    assert rest.status("GET", "/v1/nodes", shown=guest) == 403
    for name, made in (
        ("foreign", Authority.make().issue("CN=admin", use="client")),
        ("server", clients.issue("CN=admin", use="server")),
    ):
        shown = made.write(tmp_path, name)
        with pytest.raises((ssl.SSLError, ConnectionError)) as refused:
            rest.status("GET", "/v1/nodes", shown=shown)
        assert "alert" in str(refused.value).lower() or isinstance(refused.value, ConnectionError)


def test_who_is_refused_leaves_no_key(rest: SecureRest, alice: str) -> None:
    before = rest.kept()
    body = {"name": "made-by-key", "partitions": 1}
    for auth, status in ((None, 401), ("Bearer unknown-token-of-nobody", 401), (basic("admin", "guess"), 401),
                         (alice, 403), (rest.tokens["read-only"], 403)):
        assert rest.status("POST", "/v1/topics", body=body, auth=auth, idempotency_key=f"key-{status}") == status
    assert rest.kept() == before
    assert rest.status("POST", "/v1/topics", body=body, auth=rest.boss, idempotency_key="key") == 201
    assert rest.kept() == before + 1
    again = rest.ask("POST", "/v1/topics", body=body, auth=rest.boss, idempotency_key="key")
    assert (again.status, again.headers["idempotency-replayed"]) == (201, "true")
    other = rest.ask("POST", "/v1/topics", body=body, auth=rest.tokens["admin"], idempotency_key="key")
    assert other.status == 409 and "idempotency-replayed" not in other.headers


def test_old_versions_and_plaintext_are_closed(rest: SecureRest) -> None:
    """Abuse cases 1 and 2."""
    old = rest.trust()
    old.minimum_version = ssl.TLSVersion.TLSv1
    old.maximum_version = ssl.TLSVersion.TLSv1_1
    old.set_ciphers("ALL:@SECLEVEL=0")
    with socket.create_connection(("127.0.0.1", rest.port), timeout=30) as raw, pytest.raises(ssl.SSLError) as told:
        old.wrap_socket(raw, server_hostname="127.0.0.1")
    assert "ALERT" in str(told.value).upper(), "the client is told why"
    with socket.create_connection(("127.0.0.1", rest.port), timeout=30) as raw:
        raw.sendall(b"GET /v1/version HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = b""
        with contextlib.suppress(ConnectionError):
            while part := raw.recv(4096):
                answer += part
    assert b"HTTP" not in answer and len(answer) < 16


def test_half_open_handshakes_leave_others_connected(rest: SecureRest) -> None:
    """Abuse cases 3 and 4."""
    opened: list[socket.socket] = []
    try:
        for number in range(HALF_OPEN):
            one = socket.create_connection(("127.0.0.1", rest.port), timeout=30)
            opened.append(one)
            if number % 2:
                with contextlib.suppress(OSError):
                    one.sendall(b"\x16\x03\x01\x02\x00\x01")  # the first bytes of a handshake
            if number % 100 == 99:
                began = time.monotonic()
                assert rest.status("GET", "/v1/version", auth=rest.boss) == 200
                assert time.monotonic() - began < OTHERS_WAIT_S
        ended = sum(is_closed(each) for each in opened)
        assert ended >= HALF_OPEN - PER_ADDRESS
        wait_until(lambda: all(map(is_closed, opened)), "end of half-open handshakes", HANDSHAKE_S * 10)
    finally:
        for each in opened:
            each.close()


def test_the_body_of_who_is_not_known_is_not_waited_for(rest: SecureRest) -> None:
    head = b"POST /v1/topics HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n"
    with socket.create_connection(("127.0.0.1", rest.port), timeout=60) as raw, rest.trust().wrap_socket(
        raw, server_hostname="127.0.0.1") as secured:
        secured.sendall(head)
        assert secured.recv(4096).startswith(b"HTTP/1.1 401 ")


def test_a_new_certificate_breaks_no_connection(rest: SecureRest) -> None:
    def serial(connection: http.client.HTTPSConnection) -> str:
        return str(connection.sock.getpeercert()["serialNumber"])  # type: ignore[union-attr, index]

    with contextlib.closing(rest.open()) as kept:
        assert rest.status("GET", "/v1/version", auth=rest.boss, connection=kept) == 200
        former = serial(kept)
        state = rest.cluster.status()
        rest.files.renew(state.cluster_id, state.processes)

        def renewed() -> bool:
            with contextlib.closing(rest.open()) as fresh:
                assert rest.status("GET", "/v1/version", auth=rest.boss, connection=fresh) == 200
                return serial(fresh) != former

        wait_until(renewed, "new certificate of the REST API")
        assert rest.status("GET", "/v1/version", auth=rest.boss, connection=kept) == 200
        assert serial(kept) == former
