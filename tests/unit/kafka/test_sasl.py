"""Logins on a listener: what a client may send before it has logged in, what it is told, and when its session ends.

Virtual time; but passwords in clear are checked in real threads (`test_sasl_passwords.py`)."""

from __future__ import annotations

import asyncio
import base64
import functools
import inspect
import random
import struct
from collections import Counter
from typing import Any

import pytest

from hapax.core.access.principals import ANONYMOUS
from hapax.core.errors import ErrorCode
from hapax.core.sasl.exchange import Failure, Success
from hapax.core.sasl.scram_keys import ScramMechanism, decoy, default_shape
from hapax.kafka.api import api_versions, find_coordinator, produce, sasl_authenticate, sasl_handshake
from hapax.kafka.registry import all_apis
from hapax.kafka.sasl import SaslListener
from hapax.kafka.sasl_session import SaslSession
from hapax.kafka.security import ListenerSecurity
from hapax.kafka.server import KafkaServer
from hapax.kafka.table import Api, ApiTable
from hapax.runtime.password_checks import PasswordChecks
from hapax.runtime.sasl_settings import SaslSettings
from hapax.wire import messages
from unit.control_world import ControlWorld, run
from unit.core.sasl.test_scram import ALICE, proof_of
from unit.kafka.samples import REQUESTS, mutate, request_frame
from unit.kafka.test_server import Calls, Listening, Recorder, frame, header

FIXED = "Authentication failed during authentication due to invalid credentials with SASL mechanism SCRAM-SHA-256"


class Users:
    """`ScramImage` of a cluster whose only user is alice."""

    def find(self, mechanism: ScramMechanism, name: str) -> Any:
        return ALICE[mechanism] if name == "alice" else decoy(b"secret", name, [default_shape(mechanism)])

    def find_for_plain(self, name: str) -> Any:
        return self.find(ScramMechanism.SCRAM_SHA_256, name)

    def on_withdrawn(self, callback: Any) -> None:
        self.withdrawn = callback

    def is_current(self, name: str, credential: Any) -> bool:
        return self.current

    current = True


class Clock:
    def now_ms(self) -> int:
        return 1_700_000_000_000 + int(asyncio.get_running_loop().time() * 1000)


class SystemOfPorts:
    def __init__(self) -> None:
        self.clock = Clock()
        self.random = random.Random(1)


class Peer(Recorder):
    def __init__(self, serial: int, peer: str) -> None:
        super().__init__(serial)
        self.peer = peer
        self.limit: int | None = None

    def limit_frames(self, most_bytes: int | None) -> None:
        self.limit = most_bytes


class Node:
    """A listener, and clients whose frames the test writes."""

    def __init__(self, **settings: Any) -> None:
        table = ApiTable(all_apis())
        for module in (api_versions, sasl_handshake, sasl_authenticate):
            module.register(table)  # type: ignore[attr-defined]
        self.produced = Calls()
        table.on_raw(produce.ROW, self.produced)
        table.on(find_coordinator.ROW, lambda ctx, request: messages.FindCoordinatorResponse(
            throttle_time_ms=0, error_code=0, error_message=None, node_id=1, host="", port=1))
        self.table = table
        self.users = Users()
        self.sasl = SaslListener(
            SaslSettings(**settings), self.users, SystemOfPorts(), PasswordChecks(), tls=True)  # type: ignore[arg-type]
        self.server = KafkaServer(Listening(), table)  # type: ignore[arg-type]
        self._serial = 0

    def connect(self, peer: str = "10.0.0.1:5000") -> Client:
        self._serial += 1
        connection = Peer(self._serial, peer)
        session = self.server._accept(connection, "SASL", ListenerSecurity("SASL_SSL", sasl=self.sasl))  # type: ignore[arg-type]
        assert isinstance(session, SaslSession)
        return Client(session, connection)


class Client:
    def __init__(self, session: SaslSession, connection: Peer) -> None:
        self.session = session
        self.connection = connection

    def send(self, name: str, version: int, **fields: Any) -> Any:
        """The answer, where there is one at once."""
        api = next(each for each in all_apis() if each.name == name)
        body = bytes(getattr(messages, f"{name}Request")(**fields).encode(version=version))
        flexible = version >= api.first_flexible
        before = len(self.connection.sent)
        self.session.on_frame(memoryview(header(api.key, version, 7, tags=b"\0" if flexible else b"") + body))
        if len(self.connection.sent) == before:
            return None
        at = 5 if flexible and name != "ApiVersions" else 4
        return getattr(messages, f"{name}Response").decode(memoryview(self.connection.sent[-1])[at:], version=version)

    def handshake(self, mechanism: str = "SCRAM-SHA-256", version: int = 1) -> int:
        answer = self.send("SaslHandshake", version, mechanism=mechanism)
        return answer.error_code  # type: ignore[no-any-return]

    def authenticate(self, token: bytes, version: int = 2) -> Any:
        return self.send("SaslAuthenticate", version, auth_bytes=token)

    def log_in(self, name: str = "alice", password: str = "secret", mechanism: str = "SCRAM-SHA-256",
               version: int = 2) -> Any:
        """The last answer."""
        assert self.handshake(mechanism) == 0
        kind = ScramMechanism[mechanism.replace("-", "_")]
        bare = f"n={name},r=client".encode()
        first = self.authenticate(b"n,," + bare, version)
        if first.error_code:
            return first
        return self.authenticate(answer_to(bare, bytes(first.auth_bytes), password, kind), version)

    @property
    def closed(self) -> bool:
        return self.connection.closed_for is not None


def answer_to(
    bare: bytes, challenge: bytes, password: str, kind: ScramMechanism = ScramMechanism.SCRAM_SHA_256
) -> bytes:
    fields = dict(part.split(b"=", 1) for part in challenge.split(b","))
    without = b"c=biws,r=" + fields[b"r"]
    return without + b",p=" + proof_of(
        password, bare + b"," + challenge + b"," + without, base64.b64decode(fields[b"s"]), int(fields[b"i"]), kind)


def scenario(test: Any) -> Any:
    """Runs an asynchronous test on virtual time."""

    def on_virtual_time(*arguments: Any, **named: Any) -> None:
        async def body(world: ControlWorld) -> None:
            await test(*arguments, **named)

        run(body)

    functools.update_wrapper(on_virtual_time, test)
    on_virtual_time.__signature__ = inspect.signature(test)  # type: ignore[attr-defined]
    return on_virtual_time


def coordinator(client: Client) -> Any:
    return client.send("FindCoordinator", 2, key="g", key_type=0)


# --- logging in -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("version", [0, 1, 2])
@scenario
async def test_each_mechanism_gives_the_connection_its_principal(mechanism: str, version: int) -> None:
    node = Node()
    client = node.connect()
    assert client.send("ApiVersions", 3, client_software_name="x", client_software_version="1").error_code == 0
    answer = client.log_in(mechanism=mechanism, version=version)
    assert (answer.error_code, answer.error_message) == (0, None)
    assert bytes(answer.auth_bytes).startswith(b"v=")
    assert client.session.principal == "User:alice"
    assert coordinator(client).error_code == 0
    assert node.sasl.outcomes == Counter({(mechanism, "succeeded"): 1})
    assert len(node.sasl.lobby) == 0
    await asyncio.sleep(60)
    assert not client.closed


@scenario
async def test_a_mechanism_that_is_not_enabled_is_answered_with_those_that_are() -> None:
    client = Node(sasl_enabled_mechanisms="SCRAM-SHA-512").connect()
    answer = client.send("SaslHandshake", 1, mechanism="PLAIN")
    assert (answer.error_code, list(answer.mechanisms)) == (ErrorCode.UNSUPPORTED_SASL_MECHANISM, ["SCRAM-SHA-512"])
    await asyncio.sleep(0.2)
    assert client.closed


@pytest.mark.parametrize(("name", "password"), [("alice", "guess"), ("mallory", "secret")])
@scenario
async def test_a_failure_is_told_with_one_text_and_closes_a_tenth_of_a_second_later(name: str, password: str) -> None:
    """Abuse case 13: the unknown user takes the same rounds and gets the same bytes."""
    client = Node().connect()
    answer = client.log_in(name, password)
    assert (answer.error_code, answer.error_message, bytes(answer.auth_bytes)) == (58, FIXED, b"")
    assert len(client.connection.sent) == 3
    assert client.session.principal == ANONYMOUS and not client.connection.reading
    assert coordinator(client) is None
    await asyncio.sleep(0.09)
    assert not client.closed
    await asyncio.sleep(0.02)
    assert client.closed


@scenario
async def test_tokens_without_headers_follow_the_first_version_of_the_handshake() -> None:
    client = Node().connect()
    assert client.handshake(version=0) == 0
    bare = b"n=alice,r=client"
    client.session.on_frame(memoryview(b"n,," + bare))
    challenge = client.connection.sent[-1]
    assert challenge.startswith(b"r=client")
    client.session.on_frame(memoryview(answer_to(bare, challenge, "secret")))
    assert client.connection.sent[-1].startswith(b"v=")
    assert client.session.principal == "User:alice"
    assert coordinator(client).error_code == 0


@scenario
async def test_a_failed_token_without_header_has_no_answer() -> None:
    client = Node().connect()
    client.handshake(version=0)
    client.session.on_frame(memoryview(b"rubbish"))
    assert len(client.connection.sent) == 1
    await asyncio.sleep(0.2)
    assert client.closed


# --- before the login -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [produce.ROW.key, find_coordinator.ROW.key, 36, 999, -1])
@scenario
async def test_another_request_closes_the_connection_with_its_body_unread(
    key: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Abuse case 8."""
    node = Node()
    client = node.connect()
    decoded: list[object] = []
    monkeypatch.setattr(Api, "decode", lambda api, body, version: decoded.append(body))
    client.session.on_frame(frame(key, 2, 1, b"\xff" * 20))
    assert client.closed and not client.connection.sent and not node.produced.open and not decoded


@scenario
async def test_api_versions_come_first_and_again_only_after_an_unknown_version() -> None:
    client = Node().connect()
    unknown = memoryview(header(18, 99, 1))
    client.session.on_frame(unknown)
    client.session.on_frame(unknown)
    assert len(client.connection.sent) == 2
    assert client.send("ApiVersions", 2).error_code == 0
    assert not client.closed
    client.send("ApiVersions", 2)
    assert client.closed and len(client.connection.sent) == 3


@pytest.mark.parametrize("call", ["SaslHandshake", "ApiVersions"])
@scenario
async def test_another_call_amid_the_exchange_is_an_illegal_state(call: str) -> None:
    client = Node().connect()
    client.handshake()
    fields = {"mechanism": "SCRAM-SHA-256"} if call == "SaslHandshake" else {}
    assert client.send(call, 1, **fields).error_code == ErrorCode.ILLEGAL_SASL_STATE
    await asyncio.sleep(0.2)
    assert client.closed and client.session.principal == ANONYMOUS


@scenario
async def test_a_request_amid_the_exchange_closes_the_connection() -> None:
    node = Node()
    client = node.connect()
    client.handshake()
    client.session.on_frame(frame(produce.ROW.key, 3, 1))
    assert client.closed and not node.produced.open


@scenario
async def test_frames_are_short_until_the_login() -> None:
    """Abuse case 9; the limit is the connection's (`test_network.py`)."""
    client = Node().connect()
    assert client.connection.limit == 65_536
    client.log_in()
    assert client.connection.limit is None


@scenario
async def test_frames_of_a_login_again_are_short_too() -> None:
    client = Node(connections_max_reauth_ms=2000).connect()
    client.log_in()
    await asyncio.sleep(1.5)
    client.handshake()
    assert client.connection.limit == 65_536


@scenario
async def test_a_login_has_a_time_limit() -> None:
    node = Node(sasl_login_timeout_ms=500)
    client = node.connect()
    client.handshake()
    await asyncio.sleep(0.49)
    assert not client.closed
    await asyncio.sleep(0.02)
    assert client.closed and len(node.sasl.lobby) == 0
    assert node.sasl.outcomes == Counter({("SCRAM-SHA-256", "timed out"): 1})


@scenario
async def test_too_many_logins_of_one_address_give_up_the_one_that_is_silent_longest() -> None:
    node = Node(sasl_max_logins_per_ip=2, sasl_max_logins=3)
    first, second = node.connect("10.0.0.1:1"), node.connect("10.0.0.1:2")
    first.handshake()  # so the second is silent longer
    third = node.connect("10.0.0.1:3")
    assert (first.closed, second.closed, third.closed) == (False, True, False)
    others = [node.connect(f"10.0.0.{number}:1") for number in (2, 3)]
    assert first.closed and not third.closed and not any(each.closed for each in others)
    assert len(node.sasl.lobby) == 3
    assert third.log_in().error_code == 0
    for client in others:
        client.session.on_closed("gone")
    assert len(node.sasl.lobby) == 0


def test_addresses_of_one_network_count_as_one() -> None:
    async def body(world: ControlWorld) -> None:
        node = Node(sasl_max_logins_per_ip=1)
        first = node.connect("2001:db8::1:5000")
        node.connect("2001:db8::2:5000")
        assert first.closed

    run(body)


# --- sessions end -----------------------------------------------------------------------------------------------------


@scenario
async def test_an_ended_session_closes_at_its_next_request() -> None:
    """Abuse case 12."""
    client = Node(connections_max_reauth_ms=2000).connect()
    assert client.log_in().session_lifetime_ms == 2000
    await asyncio.sleep(1.9)
    assert coordinator(client).error_code == 0
    await asyncio.sleep(0.2)
    assert not client.closed
    assert coordinator(client) is None
    assert client.closed


@scenario
async def test_a_parked_write_is_answered_before_the_connection_closes() -> None:
    """Abuse case 12."""
    node = Node(connections_max_reauth_ms=2000)
    client = node.connect()
    client.log_in()
    client.session.on_frame(frame(produce.ROW.key, 3, 55, b"body"))
    await asyncio.sleep(2.1)
    assert coordinator(client) is None
    assert not client.closed and not client.connection.reading
    node.produced.open[0].respond([b"written"])
    assert client.connection.sent[-1] == struct.pack(">i", 55) + b"written"
    assert client.closed


@scenario
async def test_a_client_logs_in_again_on_its_connection() -> None:
    """KIP-368."""
    node = Node(connections_max_reauth_ms=2000)
    client = node.connect()
    client.log_in()
    for _ in range(3):
        await asyncio.sleep(1.9)
        assert client.log_in().session_lifetime_ms == 2000
        assert coordinator(client).error_code == 0
    await asyncio.sleep(2.5)
    assert client.log_in().error_code == 0  # late, but before any other request
    assert coordinator(client).error_code == 0
    assert node.sasl.outcomes == Counter({("SCRAM-SHA-256", "succeeded"): 1, ("SCRAM-SHA-256", "renewed"): 4})


@scenario
async def test_a_login_again_within_a_second_is_refused() -> None:
    client = Node(connections_max_reauth_ms=60_000).connect()
    client.log_in()
    await asyncio.sleep(0.9)
    assert client.handshake() == ErrorCode.ILLEGAL_SASL_STATE
    assert client.authenticate(b"x").error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert coordinator(client).error_code == 0
    await asyncio.sleep(0.2)
    assert client.log_in().error_code == 0


@scenario
async def test_where_sessions_do_not_end_there_is_no_login_again() -> None:
    client = Node().connect()
    client.log_in()
    await asyncio.sleep(5)
    assert client.handshake() == ErrorCode.ILLEGAL_SASL_STATE
    assert coordinator(client).error_code == 0


@scenario
async def test_another_user_may_not_take_the_connection_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Abuse case 10."""
    client = Node(connections_max_reauth_ms=2000).connect()
    client.log_in()
    monkeypatch.setattr(Users, "find", lambda self, mechanism, name: ALICE[mechanism])  # now bob has this password too
    await asyncio.sleep(1.5)
    answer = client.log_in("bob")
    assert (answer.error_code, answer.error_message) == (58, FIXED)
    assert client.session.principal == "User:alice"
    await asyncio.sleep(0.2)
    assert client.closed


@scenario
async def test_another_mechanism_may_not_either() -> None:
    """Abuse case 11."""
    client = Node(connections_max_reauth_ms=2000).connect()
    client.log_in()
    await asyncio.sleep(1.5)
    assert client.log_in(mechanism="SCRAM-SHA-512").error_code == 58
    await asyncio.sleep(0.2)
    assert client.closed


@pytest.mark.parametrize("reauth_ms", [0, 60_000])
@scenario
async def test_a_session_ends_when_the_password_is_changed_or_the_user_removed(reauth_ms: int) -> None:
    node = Node(connections_max_reauth_ms=reauth_ms)
    clients = [node.connect() for _ in range(3)]
    for client in clients:
        assert client.log_in().error_code == 0
    await asyncio.sleep(1.5)
    node.users.withdrawn(ScramMechanism.SCRAM_SHA_512, "alice")
    node.users.withdrawn(ScramMechanism.SCRAM_SHA_256, "bob")
    clients[2].session.on_closed("gone")
    for client in clients[:2]:
        assert coordinator(client).error_code == 0
    node.users.withdrawn(ScramMechanism.SCRAM_SHA_256, "alice")
    assert coordinator(clients[0]) is None and clients[0].closed
    assert clients[1].log_in().error_code == 0  # with the new password
    assert coordinator(clients[1]).error_code == 0
    clients[1].session.on_closed("gone")
    assert not node.sasl._sessions


@scenario
async def test_a_password_that_is_changed_amid_the_exchange_lets_no_one_in() -> None:
    """And refuses no one: the password may be the same, with another salt. Another connection decides."""
    node = Node()
    node.users.current = False
    client = node.connect()
    assert client.log_in() is None and client.closed and client.session.principal == ANONYMOUS
    assert not node.sasl.outcomes and not node.sasl._sessions


# --- tokens -----------------------------------------------------------------------------------------------------------

MESSAGE = b"n,,\x01auth=Bearer a.b.c\x01\x01"


class Issuer:
    """`IssuerKeys` whose answer the test decides."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[Success | Failure] = asyncio.get_running_loop().create_future()

    async def check(self, token: str, now_s: float) -> Success | Failure:
        return await self.answer


async def with_token(reauth_ms: int = 0) -> tuple[Node, Client, Issuer]:
    """A client that has sent a token."""
    node = Node(
        sasl_enabled_mechanisms="OAUTHBEARER", sasl_oauthbearer_expected_issuer="i",
        sasl_oauthbearer_expected_audience="a", sasl_oauthbearer_jwks_endpoint_url="file:///x",
        connections_max_reauth_ms=reauth_ms)
    issuer = Issuer()
    node.sasl.keys = issuer  # type: ignore[assignment]
    client = node.connect()
    assert client.handshake("OAUTHBEARER") == 0
    assert client.authenticate(MESSAGE) is None
    return node, client, issuer


def last_answer(client: Client) -> Any:
    return messages.SaslAuthenticateResponse.decode(memoryview(client.connection.sent[-1])[5:], version=2)


@scenario
async def test_nothing_is_read_while_a_token_is_checked() -> None:
    _, client, issuer = await with_token()
    assert client.session.working and not client.connection.reading
    issuer.answer.set_result(Success("alice", b"", Clock().now_ms() + 5000))
    await asyncio.sleep(0)
    await asyncio.sleep(0.01)
    assert client.connection.reading and not client.session.working
    answer = last_answer(client)
    assert answer.error_code == 0 and 4900 < answer.session_lifetime_ms <= 5000
    assert coordinator(client).error_code == 0
    await asyncio.sleep(5)
    assert coordinator(client) is None and client.closed


@pytest.mark.parametrize(("reauth_ms", "lifetime_ms"), [(3000, 3000), (9000, 5000)])
@scenario
async def test_a_session_ends_with_whatever_ends_first(reauth_ms: int, lifetime_ms: int) -> None:
    _, client, issuer = await with_token(reauth_ms)
    issuer.answer.set_result(Success("alice", b"", Clock().now_ms() + 5000))
    await asyncio.sleep(0.01)
    assert lifetime_ms - 100 < last_answer(client).session_lifetime_ms <= lifetime_ms


@scenario
async def test_a_refused_token_is_explained_before_the_failure() -> None:
    _, client, issuer = await with_token()
    issuer.answer.set_result(Failure("expired"))
    await asyncio.sleep(0.01)
    answer = last_answer(client)
    assert (answer.error_code, bytes(answer.auth_bytes)) == (0, b'{"status":"invalid_token"}')
    assert client.authenticate(b"\x01").error_code == 58
    await asyncio.sleep(0.2)
    assert client.closed


@scenario
async def test_a_client_that_leaves_while_its_token_is_checked_is_no_fault() -> None:
    node, client, issuer = await with_token()
    client.session.on_closed("gone")
    issuer.answer.set_result(Success("alice"))
    await asyncio.sleep(0.01)
    assert len(client.connection.sent) == 1 and len(node.sasl.lobby) == 0


@scenario
async def test_who_is_being_checked_is_not_given_up() -> None:
    node, client, _ = await with_token()
    node.sasl.lobby._most_per_address = 2
    idle = node.connect()
    node.connect()
    assert idle.closed and not client.closed


@scenario
async def test_many_that_are_being_checked_keep_no_one_out() -> None:
    node, client, _ = await with_token()
    node.sasl.lobby._most_per_address = 1
    newest = node.connect()
    assert client.closed and not newest.closed


@scenario
async def test_a_failed_login_does_not_also_time_out() -> None:
    node = Node(sasl_login_timeout_ms=50)
    client = node.connect()
    client.log_in(password="guess")
    await asyncio.sleep(1)
    assert client.closed and node.sasl.outcomes == Counter({("SCRAM-SHA-256", "failed"): 1})


async def test_a_listener_without_logins_says_so() -> None:
    table = ApiTable(all_apis())
    for module in (sasl_handshake, sasl_authenticate):
        module.register(table)  # type: ignore[attr-defined]
    session = KafkaServer(Listening(), table)._accept(Recorder())  # type: ignore[arg-type]
    client = Client(session, session.connection)  # type: ignore[arg-type]
    assert client.send("SaslHandshake", 1, mechanism="PLAIN").error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert client.authenticate(b"x").error_code == ErrorCode.ILLEGAL_SASL_STATE


# --- rubbish ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("raw", [False, True])
@scenario
async def test_no_frames_are_a_fault_or_let_a_stranger_in(raw: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Whole requests of every API, mutated ones, and tokens in any order, of a client that knows no password."""
    rng = random.Random(20261125)
    node = Node(
        sasl_enabled_mechanisms="SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER", sasl_oauthbearer_expected_issuer="i",
        sasl_oauthbearer_expected_audience="a", sasl_oauthbearer_jwks_endpoint_url="file:///none",
        connections_max_reauth_ms=10_000)
    tokens = [
        b"n,,n=alice,r=x", b"c=biws,r=x,p=AAAA", b"\0alice\0guess", MESSAGE, b"\x01", b"", b"\xff" * 40,
        MESSAGE.replace(b"a.b.c", b"eyJhbGciOiJub25lIiwia2lkIjoiYSJ9.eyJzdWIiOiJhbGljZSJ9.")]
    for _ in range(600):
        client = node.connect()
        for _ in range(rng.randrange(1, 7)):
            match rng.randrange(4):
                case 0:
                    mechanism = rng.choice((*node.sasl.mechanisms, "PLAIN", "GSSAPI", ""))
                    body = struct.pack(">h", len(mechanism)) + mechanism.encode()
                    wire = bytes(header(17, 0 if raw else 1, 1)) + body
                case 1:
                    token = rng.choice(tokens)
                    wire = bytes(header(36, 0, 1)) + struct.pack(">i", len(token)) + token
                case 2:
                    wire = rng.choice(tokens)
                case _:
                    key, name, version, flexible = rng.choice(REQUESTS)
                    wire = request_frame(key, name, version, flexible, rng)
            if rng.random() < 0.3:
                wire = mutate(wire, rng)
            client.session.on_frame(memoryview(wire))
            await asyncio.sleep(0)
        await asyncio.sleep(0.01)
        assert client.session.principal == ANONYMOUS and not node.produced.open
        client.session.on_closed("gone")
    assert len(node.sasl.lobby) == 0
    assert not [each for each in caplog.records if each.levelname == "ERROR" and "keys cannot be read" not in each.msg]
    assert set(outcome for _, outcome in node.sasl.outcomes) == {"failed"}
