"""Clients that should not come in, or not as who they say: each case of the threat model, against a real cluster. No
listener of it takes secrets without TLS, so its first user is made by the bearer of a token. Of those who log in, only
`admin` has a permission; so has everybody on the nodes' own listener."""

from __future__ import annotations

import base64
import http.server
import json
import struct
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AdminClient,
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from clients.logins import PASSWORD, Logins, set_password
from clients.raw_login import RawClient, final_message
from conftest import end_cluster, start_cluster
from hapax.local.cluster import LocalCluster
from hapax.wire import messages
from integration.scraping import scraped, total
from integration.waiting import wait_until

LIFETIME_S = 4.0
FAILED = 58


class KeyServer:
    """Serves the key set, and counts."""

    def __init__(self, users: Logins) -> None:
        self.reads = 0
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.reads += 1
                self.send_response(200)
                self.end_headers()
                self.wfile.write(users.key_set.read_bytes())

            def log_message(self, *arguments: object) -> None: ...

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/keys"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture(scope="module")
def keys(users: Logins) -> Iterator[KeyServer]:
    server = KeyServer(users)
    yield server
    server.close()


@pytest.fixture(scope="module")
def node(users: Logins, keys: KeyServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    running = start_cluster(
        tmp_path_factory.mktemp("abuse"), settings=users.settings(
            "listener.name.plaintext.sasl.allow.secrets.without.tls=false", "authorizer.class.name=acl",
            "super.users=User:admin;User:ANONYMOUS", f"connections.max.reauth.ms={int(LIFETIME_S * 1000)}",
            f"sasl.oauthbearer.jwks.endpoint.url={keys.url}", f"sasl.oauthbearer.allowed.urls={keys.url}"))
    settings = users.librdkafka("OAUTHBEARER", "admin")
    set_password(settings.pop("bootstrap.servers"), "alice", **settings)
    yield running
    end_cluster(running)


@pytest.fixture
def client(users: Logins, node: LocalCluster) -> Iterator[RawClient]:
    with RawClient(users) as made:
        yield made


def metadata(client: RawClient) -> Any:
    return client.ask("Metadata", 9, topics=[], allow_auto_topic_creation=False)


def test_the_login_is_the_principal(users: Logins, node: LocalCluster) -> None:
    for name, sees in (("admin", True), ("alice", False), ("system:serviceaccount:team:loader", False)):
        with RawClient(users) as client:
            assert client.bearer(users.token(name)).error_code == 0
            topics = client.ask("Metadata", 9, topics=None, allow_auto_topic_creation=False).topics
            assert bool([each.name for each in topics]) is sees, name


def test_case_8_a_request_before_the_login_closes_the_connection(client: RawClient) -> None:
    client.write(struct.pack(">ihhih", 14, 0, 9, 1, -1) + b"\xff\xff\xff\xff")
    assert client.closed


def test_case_8_other_keys_amid_the_exchange_too(client: RawClient) -> None:
    assert client.handshake("PLAIN") == 0
    client.send("Metadata", 9, topics=[])
    assert client.closed


def test_case_9_a_token_of_2_gib_closes_the_connection(client: RawClient, node: LocalCluster) -> None:
    assert client.handshake("PLAIN") == 0
    client.write(struct.pack(">ihhih", 2**31 - 1, 36, 2, 1, -1) + b"\0" * 1000)
    assert client.closed
    assert "a frame of 2147483647 bytes (the limit is 65536)" in node.log("broker-0")


def test_a_login_again(client: RawClient) -> None:
    for _ in range(3):
        assert client.scram("alice")[-1].error_code == 0
        assert metadata(client) is not None


def test_case_10_another_user_does_not_take_the_connection_over(users: Logins, client: RawClient) -> None:
    assert client.bearer(users.token("bob")).error_code == 0
    assert client.bearer(users.token("admin")).error_code == FAILED
    assert client.closed


def test_case_11_nor_does_another_mechanism(client: RawClient) -> None:
    assert client.scram("alice")[-1].error_code == 0
    assert client.plain("alice").error_code == FAILED
    assert client.closed


def test_case_12_a_session_that_has_ended_closes_at_its_next_request(client: RawClient) -> None:
    begun = time.monotonic()
    answer = client.scram("alice")[-1]
    assert 0 < answer.session_lifetime_ms <= LIFETIME_S * 1000
    assert metadata(client) is not None
    wait_until(lambda: metadata(client) is None, "end of the session")
    assert time.monotonic() - begun >= answer.session_lifetime_ms / 1000


def test_case_12_what_was_asked_before_is_answered(users: Logins, client: RawClient) -> None:
    assert client.bearer(users.token("admin")).error_code == 0
    client.send("Fetch", 12, max_wait_ms=int(LIFETIME_S * 1000) + 6000, min_bytes=1, max_bytes=1000, topics=[],
                replica_id=-1, isolation_level=0, session_id=0, session_epoch=-1, forgotten_topics_data=[], rack_id="",
                correlation_id=77)
    with RawClient(users) as later:
        assert later.bearer(users.token("admin")).error_code == 0
        wait_until(lambda: metadata(later) is None, "end of the later session")
    client.send("Metadata", 9, topics=[])
    frame = client.frame()
    assert frame is not None and struct.unpack_from(">i", frame)[0] == 77
    assert client.closed


def new_topic(node: LocalCluster) -> str:
    name = f"t-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(30)
    return name


def ask_for_records(client: RawClient, topic: str) -> None:
    """Waits half a minute for the first."""
    asked = messages.FetchRequest.FetchTopic
    client.send("Fetch", 11, max_wait_ms=30_000, min_bytes=1, max_bytes=1000, replica_id=-1, isolation_level=0,
                session_id=0, session_epoch=-1, forgotten_topics_data=[], rack_id="",
                topics=[asked(topic=topic, partitions=[asked.FetchPartition(
                    partition=0, current_leader_epoch=-1, fetch_offset=0, log_start_offset=-1,
                    partition_max_bytes=1000)])])


def records(client: RawClient) -> bytes:
    (topic,) = client.answer("Fetch", 11).responses
    (found,) = topic.partitions
    assert found.error_code == 0
    return bytes(found.records or b"")


def test_case_12_a_fetch_that_waits_ends_with_its_session(users: Logins, node: LocalCluster, client: RawClient) -> None:
    topic = new_topic(node)
    assert client.bearer(users.token("admin")).error_code == 0
    began = time.monotonic()
    ask_for_records(client, topic)
    assert records(client) == b""
    assert time.monotonic() - began < LIFETIME_S + 15
    assert metadata(client) is None


def test_case_12_a_fetch_that_waits_gets_nothing_once_its_password_was_changed(
    users: Logins, node: LocalCluster, client: RawClient
) -> None:
    topic = new_topic(node)
    settings = users.librdkafka("OAUTHBEARER", "admin")
    bootstrap = settings.pop("bootstrap.servers")
    set_password(bootstrap, "admin", "first", **settings)
    assert client.scram("admin", "first")[-1].error_code == 0
    ask_for_records(client, topic)
    set_password(bootstrap, "admin", "second", **settings)

    def known() -> bool:
        with RawClient(users) as other:
            return bool(other.scram("admin", "second")[-1].error_code == 0)

    wait_until(known, "the new password")
    producer = Producer({"bootstrap.servers": node.bootstrap})
    producer.produce(topic, b"not for you")
    assert producer.flush(30) == 0
    assert records(client) == b""
    assert metadata(client) is None


def test_case_12_a_token_s_end_is_the_session_s(users: Logins, client: RawClient) -> None:
    answer = client.bearer(users.token(seconds=-28))  # the skew of 30 s is granted
    assert 0 < answer.session_lifetime_ms <= 2000
    wait_until(lambda: metadata(client) is None, "end of the session")


def test_case_13_an_unknown_user_is_not_told_from_a_wrong_password(users: Logins, node: LocalCluster) -> None:
    seen = []
    for name in ("alice", "mallory"):
        with RawClient(users) as client:
            answers = client.scram(name, "guess")
            assert client.closed
        first = bytes(answers[0].auth_bytes)
        fields = [part.split(b"=", 1) for part in first.split(b",")]
        seen.append(([key for key, _ in fields], fields[2][1], len(first), answers[1].error_code,
                     answers[1].error_message, bytes(answers[1].auth_bytes)))
    assert seen[0] == seen[1]
    assert seen[0][3] == FAILED
    texts = []
    for name in ("alice", "mallory"):
        with RawClient(users) as client:
            answer = client.plain(name, "guess")
            texts.append((answer.error_code, answer.error_message))
    assert texts[0] == texts[1] and texts[0][0] == FAILED


def test_case_13_every_node_gives_the_unknown_user_one_salt(users: Logins, node: LocalCluster) -> None:
    salts = set()
    for offset in (0, 0, 100):
        there = users._replace(tls=users.tls._replace(port=users.tls.port + offset))
        with RawClient(there) as client:
            assert client.handshake("SCRAM-SHA-512") == 0
            salts.add(bytes(client.authenticate(b"n,,n=mallory,r=c").auth_bytes).split(b",")[1])
    assert len(salts) == 1


def test_case_14_a_recorded_login_is_worth_nothing(users: Logins, node: LocalCluster) -> None:
    bare = b"n=alice,r=client"
    with RawClient(users) as client:
        client.handshake("SCRAM-SHA-256")
        challenge = bytes(client.authenticate(b"n,," + bare).auth_bytes)
        recorded = final_message(bare, challenge, PASSWORD)
        assert client.authenticate(recorded).error_code == 0
    with RawClient(users) as client:
        client.handshake("SCRAM-SHA-256")
        client.authenticate(b"n,," + bare)
        assert client.authenticate(recorded).error_code == FAILED
    with RawClient(users) as client:
        client.handshake("SCRAM-SHA-256")
        assert client.authenticate(recorded).error_code == FAILED


@pytest.mark.parametrize("cut", [lambda whole: b"client", lambda whole: whole[:-1]])
def test_case_14_a_part_of_the_nonce_is_not_enough(client: RawClient, cut: Any) -> None:
    assert client.scram("alice", nonce=cut)[-1].error_code == FAILED


def test_case_15_the_rights_of_another_are_not_given(users: Logins, node: LocalCluster) -> None:
    with RawClient(users) as client:
        assert client.plain("alice", authzid="admin").error_code == FAILED
    with RawClient(users) as client:
        assert client.scram("alice", header=b"n,a=admin,")[-1].error_code == FAILED
    with RawClient(users) as client:
        assert client.bearer(users.token("alice"), "admin").error_code == FAILED
    with RawClient(users) as client:
        assert client.plain("alice", authzid="alice").error_code == 0


def by_hand(users: Logins, algorithm: str) -> str:
    """`none`, or HS256 with the public key as the secret."""
    import hashlib
    import hmac

    def part(content: bytes) -> str:
        return base64.urlsafe_b64encode(content).rstrip(b"=").decode()

    claims = users.token("admin").split(".")[1]
    text = part(json.dumps({"alg": algorithm, "kid": "first"}).encode()) + "." + claims
    public = users.key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return text + "." + ("" if algorithm == "none" else part(hmac.digest(public, text.encode(), hashlib.sha256)))


@pytest.mark.parametrize("what", [
    "none", "HS256", "foreign key", "wrong aud", "wrong iss", "no aud", "future nbf", "expired", "no exp"])
def test_case_16_a_token_that_is_not_right_is_refused(users: Logins, client: RawClient, what: str) -> None:
    tokens = {
        "none": lambda: by_hand(users, "none"), "HS256": lambda: by_hand(users, "HS256"),
        "foreign key": lambda: users.token("admin", key=ec.generate_private_key(ec.SECP256R1())),
        "wrong aud": lambda: users.token("admin", aud="else"), "wrong iss": lambda: users.token("admin", iss="else"),
        "no aud": lambda: users.token("admin", aud=[]),
        "future nbf": lambda: users.token("admin", nbf=time.time() + 60),
        "expired": lambda: users.token("admin", seconds=-31), "no exp": lambda: users.token("admin", exp=0),
    }
    answer = client.bearer(tokens[what]())
    assert answer.error_code == FAILED and "OAUTHBEARER" in answer.error_message
    assert client.closed


def test_case_17_random_key_ids_cause_one_read_a_minute(users: Logins, node: LocalCluster, keys: KeyServer) -> None:
    before = keys.reads
    for number in range(20):
        with RawClient(users) as client:
            assert client.bearer(users.token(kid=f"random{number}")).error_code == FAILED
    assert keys.reads <= before + 1


def test_case_19_a_salted_password_is_not_taken_without_tls(node: LocalCluster) -> None:
    admin = AdminClient({"bootstrap.servers": node.bootstrap, "log_level": 0})
    (done,) = admin.alter_user_scram_credentials([UserScramCredentialUpsertion(
        "eve", ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096), b"secret")]).values()
    with pytest.raises(KafkaException) as refused:
        done.result(30)
    assert refused.value.args[0].code() == KafkaError.POLICY_VIOLATION


def test_a_changed_password_counts_at_once(users: Logins, node: LocalCluster) -> None:
    settings = users.librdkafka("OAUTHBEARER", "admin")
    bootstrap = settings.pop("bootstrap.servers")
    for password in ("one", "two"):
        set_password(bootstrap, "carol", password, **settings)
        with RawClient(users) as client:
            assert client.scram("carol", password)[-1].error_code == 0
    with RawClient(users) as client:
        assert client.scram("carol", "one")[-1].error_code == FAILED


def test_a_changed_password_ends_the_sessions_of_the_former_one(users: Logins, node: LocalCluster) -> None:
    settings = users.librdkafka("OAUTHBEARER", "admin")
    bootstrap = settings.pop("bootstrap.servers")
    set_password(bootstrap, "dave", "one", **settings)
    with RawClient(users) as client, RawClient(users) as plain, RawClient(users) as other:
        assert client.scram("dave", "one")[-1].error_code == 0
        assert plain.plain("dave", "one").error_code == 0
        assert other.scram("alice")[-1].error_code == 0
        assert metadata(client) is not None
        set_password(bootstrap, "dave", "two", **settings)
        wait_until(lambda: metadata(client) is None, "end of the session")
        assert metadata(plain) is None
        assert metadata(other) is not None


def test_logins_are_counted(users: Logins, node: LocalCluster) -> None:
    def count(outcome: str) -> float:
        return total(scraped(node, "broker-0"), "hapax_sasl_logins_total", mechanism="PLAIN", outcome=outcome)

    before = count("succeeded"), count("failed")
    for password in (PASSWORD, "guess"):
        with RawClient(users) as client:
            client.plain("alice", password)
    assert (count("succeeded"), count("failed")) == (before[0] + 1, before[1] + 1)


def test_case_18_known_keys_work_while_the_issuer_is_away(users: Logins, node: LocalCluster, keys: KeyServer) -> None:
    keys.close()
    with RawClient(users) as client:
        assert client.bearer(users.token("alice")).error_code == 0
    with RawClient(users) as client:
        assert client.bearer(users.token(kid="new")).error_code == FAILED
    with RawClient(users) as client:
        assert client.bearer(users.token("alice")).error_code == 0
