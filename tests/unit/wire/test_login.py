"""Logins on an outgoing connection: what is sent when, and what is held back. The server is written out by hand."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from hapax.core.errors import ErrorCode
from hapax.core.sasl.client import ClientExchange, ClientStep, Derive, PlainClient, ScramClient
from hapax.core.sasl.scram import ScramExchange
from hapax.core.sasl.scram_keys import ScramMechanism, credential_of, salted_password
from hapax.runtime.ports import FrameConnection, FrameHandler
from hapax.wire.messages import (
    ApiVersionsResponse,
    MetadataRequest,
    MetadataResponse,
    ProduceRequest,
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeResponse,
)
from hapax.wire.peer import Peer, PeerClosed, PeerDistrusted, PeerError, PeerLoginRefused, PeerTimeout
from unit.control_world import ControlWorld, run

SHA_256 = ScramMechanism.SCRAM_SHA_256
ALICE = credential_of(SHA_256, b"salt", salted_password(SHA_256, "secret", b"salt", 4096), 4096)
OFFER = [(0, 3, 13), (3, 0, 12), (17, 0, 1), (18, 0, 4), (36, 0, 2)]


class Known:
    """`Login` of alice."""

    mechanism = "SCRAM-SHA-256"

    def __init__(self, password: str = "secret") -> None:
        self.password = password
        self.exchanges = 0
        self.failure: Exception | None = None
        self.gate: asyncio.Event | None = None
        """A credential is to be had once it is set."""
        self.asked = 0
        self.renewed_after_s = 1000.0

    async def exchange(self) -> ClientExchange:
        self.asked += 1
        if self.gate is not None:
            await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        self.exchanges += 1
        if self.mechanism == "PLAIN":
            return PlainClient("alice", self.password)
        return ScramClient(SHA_256, "alice", f"client{self.exchanges}")

    async def derive(self, exchange: ClientExchange, work: Derive) -> ClientStep:
        assert isinstance(exchange, ScramClient)
        return exchange.derived(work.outcome(self.password))

    def renew_after_s(self, lifetime_ms: int) -> float:
        return self.renewed_after_s

    def shown(self, text: str) -> str:
        return text.replace(self.password, "***")


class Server:
    """Takes frames, and answers at once those that it is asked to."""

    def __init__(self) -> None:
        self.serial = 1
        self.peer = "127.0.0.1:1"
        self.certificate = b""
        self.heard: list[str] = []
        self.dropped = False
        self.handler: FrameHandler
        self.lifetime_ms = 0
        self.delay_s = 0.0
        self.handshake = 0
        self.code = 0
        self.text = ""
        self.silent: frozenset[int] = frozenset({3})
        self.exchange: Any = None
        self.lie: Callable[[bytes], bytes] = lambda token: token
        self.offer = OFFER
        self.waiting: list[tuple[int, int]] = []
        """Key and correlation id of requests without an answer."""
        self.arrived = asyncio.Event()

    async def connect(self, host: str, port: int, opened: Any, limits: object, tls: object = None) -> FrameConnection:
        self.handler = opened(self)
        return self

    def send(self, chunks: Sequence[Any]) -> None:
        frame = b"".join(bytes(chunk) for chunk in chunks)
        key, version, correlation_id = struct.unpack_from(">hhi", frame)
        names = {0: "produce", 3: "metadata", 17: "handshake", 18: "versions", 36: "token"}
        self.heard.append(names[key])
        self.arrived.set()
        if key in self.silent:
            self.waiting.append((key, correlation_id))
            return
        body, tagged = self.answer(key, version, frame)
        asyncio.get_running_loop().call_later(self.delay_s, self.deliver, correlation_id, body, tagged)

    def answer(self, key: int, version: int, frame: bytes) -> tuple[bytes, bool]:
        if key == 18:
            keys = [ApiVersionsResponse.ApiVersion(api_key=k, min_version=a, max_version=b) for k, a, b in self.offer]
            return bytes(ApiVersionsResponse(error_code=0, api_keys=keys).encode(version=version)), False
        if key == 17:
            self.exchange = ScramExchange(lambda name: ALICE, "server")
            response = SaslHandshakeResponse(error_code=self.handshake, mechanisms=["PLAIN", "OAUTH\nBEARER"])
            return bytes(response.encode(version=version)), False
        size = struct.unpack_from(">h", frame, 8)[0]
        token = SaslAuthenticateRequest.decode(memoryview(frame[10 + size + 1:]), version=version).auth_bytes
        outcome = self.exchange.step(token)
        said = self.lie(getattr(outcome, "token", b""))
        response = SaslAuthenticateResponse(
            error_code=self.code, error_message=self.text, auth_bytes=said, session_lifetime_ms=self.lifetime_ms)
        return bytes(response.encode(version=version)), True

    def deliver(self, correlation_id: int, body: bytes, tagged: bool) -> None:
        self.handler.on_frame(memoryview(correlation_id.to_bytes(4, "big") + (b"\0" if tagged else b"") + body))

    def answer_metadata(self, throttle_ms: int = 0) -> None:
        key, correlation_id = self.waiting.pop(0)
        assert key == 3
        response = MetadataResponse(
            throttle_time_ms=throttle_ms, brokers=[], cluster_id="c", controller_id=0, topics=[], error_code=0)
        self.deliver(correlation_id, bytes(response.encode(version=12)), True)

    async def hears(self, what: str) -> None:
        async with asyncio.timeout(20):
            while what not in self.heard:
                self.arrived.clear()
                await self.arrived.wait()

    def unsent_bytes(self) -> int:
        return 0

    def limit_frames(self, most_bytes: int | None) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def close(self, reason: str = "") -> None: ...

    def drop(self) -> None:
        self.dropped = True


async def connected(server: Server, login: Known | None = None, **more: Any) -> Peer:
    return await Peer.connect(server, "h", 1, client_id="t", login=login or Known(), **more)  # type: ignore[arg-type]


async def test_the_login_comes_before_every_other_request() -> None:
    server = Server()
    peer = await connected(server)
    assert server.heard == ["versions", "handshake", "token", "token"]
    asked = peer.submit(MetadataRequest(topics=[]), version=12)
    server.answer_metadata()
    assert (await asked).cluster_id == "c"


async def test_plain_takes_one_message() -> None:
    server, login = Server(), Known()
    login.mechanism = "PLAIN"
    server.lie = lambda token: b""
    await connected(server, login)
    assert server.heard == ["versions", "handshake", "token"]


@pytest.mark.parametrize(("said", "sentence"), [
    (b"", "malformed"), (b"v=" + b"A" * 43 + b"=", "malformed"), (b"r=other,s=c2FsdA==,i=4096", "nonce")])
async def test_a_server_that_skips_the_proof_is_distrusted(said: bytes, sentence: str) -> None:
    server = Server()
    server.lie = lambda token: said
    with pytest.raises(PeerDistrusted, match=sentence):
        await connected(server)
    assert server.dropped and server.heard == ["versions", "handshake", "token"]


async def test_a_server_that_does_not_know_the_password_is_distrusted() -> None:
    server = Server()
    server.lie = lambda token: token if token.startswith(b"r=") else b"v=" + b"A" * 43 + b"="
    with pytest.raises(PeerDistrusted, match=r"h:1: .*does not prove that it knows"):
        await connected(server)
    assert server.dropped


@pytest.mark.parametrize("code", [58, 33, 34])
async def test_a_refusal_is_told_without_secrets(code: int) -> None:
    server = Server()
    server.code, server.text = code, "bad password:\x1b secret"
    with pytest.raises(PeerLoginRefused, match=r"^h:1: bad password:\? \*\*\*$") as refused:
        await connected(server)
    assert refused.value.code == code and server.dropped


async def test_a_failure_that_may_pass_is_no_refusal() -> None:
    server = Server()
    server.code, server.text = ErrorCode.COORDINATOR_NOT_AVAILABLE, "not now"
    with pytest.raises(PeerClosed, match="not now") as failed:
        await connected(server)
    assert not isinstance(failed.value, PeerLoginRefused)


async def test_a_mechanism_that_is_not_offered() -> None:
    server = Server()
    server.handshake = ErrorCode.UNSUPPORTED_SASL_MECHANISM
    with pytest.raises(PeerLoginRefused, match=r"does not offer SCRAM-SHA-256; it offers: PLAIN, OAUTH\?BEARER"):
        await connected(server)
    assert server.heard == ["versions", "handshake"]


async def test_a_server_without_logins() -> None:
    server = Server()
    server.handshake = ErrorCode.ILLEGAL_SASL_STATE
    with pytest.raises(PeerLoginRefused, match="listener with SASL"):
        await connected(server)
    server = Server()
    server.offer = [(18, 0, 4)]
    with pytest.raises(PeerLoginRefused, match="offers no version"):
        await connected(server)


async def test_a_server_that_never_answers_the_login() -> None:
    server = Server()
    server.silent = frozenset({17})
    with pytest.raises(PeerTimeout, match="SaslHandshake"):
        await connected(server, connect_timeout_ms=1)


async def test_without_a_credential_nothing_is_connected() -> None:
    server, login = Server(), Known()
    login.failure = PeerError("no token")
    with pytest.raises(PeerError, match="no token"):
        await connected(server, login)
    assert server.heard == []


# --- renewal -----------------------------------------------------------------------------------------------------


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers let a second pass between two logins."""
    monkeypatch.setattr("hapax.wire.peer._LEAST_BETWEEN_LOGINS_S", 0.0)


async def due(server: Server, **more: Any) -> tuple[Peer, Known]:
    """A connection whose login must be renewed before its next request."""
    login = Known()
    login.renewed_after_s = 1000.0
    server.lifetime_ms = 60_000
    peer = await connected(server, login, **more)
    server.heard.clear()
    return peer, login


def make_due(peer: Peer) -> None:
    """The session is over."""
    peer._renew_at = peer._ends_at = 0.0


def make_due_soon(peer: Peer) -> None:
    """The session goes on for a while."""
    peer._renew_at = 0.0


async def test_a_session_without_an_end_is_not_renewed() -> None:
    server, login = Server(), Known()
    login.renewed_after_s = 0.0
    peer = await connected(server, login)
    peer.submit(MetadataRequest(topics=[]), version=12)
    assert server.heard[-1] == "metadata"


@pytest.mark.usefixtures("unhurried")
async def test_requests_in_flight_are_answered_and_later_ones_wait_for_the_login() -> None:
    server = Server()
    peer, login = await due(server)
    before = peer.submit(MetadataRequest(topics=[]), version=12)
    make_due(peer)
    server.silent = frozenset({3, 17})
    after = [peer.submit(MetadataRequest(topics=[]), version=12) for _ in range(3)]
    await server.hears("handshake")
    assert server.heard == ["metadata", "handshake"] and not before.done() and peer.in_flight == 5
    server.answer_metadata()
    assert (await before).cluster_id == "c"
    _, correlation_id = server.waiting.pop(0)
    server.silent = frozenset({3})
    body, tagged = server.answer(17, 1, b"")
    server.deliver(correlation_id, body, tagged)
    await server.hears("token")
    server.heard.clear()
    await server.hears("metadata")
    assert server.heard.count("metadata") == 3 and login.exchanges == 2
    for each in after:
        server.answer_metadata()
        assert (await each).cluster_id == "c"
    last = peer.submit(MetadataRequest(topics=[]), version=12)  # at once
    assert server.heard[-1] == "metadata" and not peer.closed
    server.answer_metadata()
    await last


@pytest.mark.usefixtures("unhurried")
async def test_what_waits_for_a_throttle_waits_for_the_login_that_is_due_by_then() -> None:
    """The session ends while the server does not read: a request before the login would close the connection."""
    server = Server()
    peer, login = await due(server)
    first = peer.submit(MetadataRequest(topics=[]), version=12)
    server.answer_metadata(throttle_ms=100)
    await first
    held = [peer.submit(MetadataRequest(topics=[]), version=12) for _ in range(2)]
    make_due(peer)
    held.append(peer.submit(MetadataRequest(topics=[]), version=12))
    server.heard.clear()
    assert peer.throttled_s > 0 and peer.in_flight == 3
    await server.hears("metadata")
    assert server.heard == ["handshake", "token", "token", "metadata", "metadata", "metadata"] and login.exchanges == 2
    assert peer.throttled_s == 0
    for each in held:
        server.answer_metadata()
        await each


@pytest.mark.usefixtures("unhurried")
async def test_what_waits_for_a_login_waits_for_a_throttle_that_comes_meanwhile() -> None:
    """The login itself is answered once the server reads again."""
    server = Server()
    peer, _ = await due(server)
    peer._login_timeout = 0.001
    first = peer.submit(MetadataRequest(topics=[]), version=12)
    make_due(peer)
    server.silent = frozenset({3, 17})
    held = peer.submit(MetadataRequest(topics=[]), version=12)
    await server.hears("handshake")
    server.answer_metadata(throttle_ms=100)
    await first
    assert peer._pending[-1].timer.when() - asyncio.get_running_loop().time() > 0.09
    server.silent = frozenset({3})
    _, correlation_id = server.waiting.pop(0)
    server.heard.clear()
    server.deliver(correlation_id, *server.answer(17, 1, b""))
    assert peer.throttled_s > 0
    await server.hears("metadata")
    assert peer.throttled_s == 0 and not peer.closed
    server.answer_metadata()
    await held


@pytest.mark.usefixtures("unhurried")
async def test_records_that_wait_for_a_throttle_count_as_unsent() -> None:
    """With acks=0 nothing else bounds them."""
    server = Server()
    peer = await connected(server)
    first = peer.submit(MetadataRequest(topics=[]), version=12)
    server.answer_metadata(throttle_ms=50)
    await first
    request = ProduceRequest(transactional_id=None, acks=0, timeout_ms=1000, topic_data=[])
    size = len(request.encode(version=9))
    server.silent = frozenset({0, 3})
    assert peer.submit(request, version=9).done()
    assert peer.unsent_bytes() == size
    async with asyncio.timeout(20):
        await peer.drained()
    assert peer.unsent_bytes() == 0 and server.heard[-1] == "produce"


@pytest.mark.usefixtures("unhurried")
async def test_the_login_may_wait_as_long_as_what_is_in_flight() -> None:
    """A member that joins its group has its answer after minutes, and with it that of the handshake."""
    server = Server()
    peer, _ = await due(server)
    peer._login_timeout = 0.001
    peer.submit(MetadataRequest(topics=[]), version=12, timeout_ms=60_000)
    make_due(peer)
    server.silent = frozenset({3, 17})
    peer.submit(MetadataRequest(topics=[]), version=12)
    await server.hears("handshake")
    assert peer._pending[-1].timer.when() - asyncio.get_running_loop().time() > 50
    peer.close()


@pytest.mark.usefixtures("unhurried")
@pytest.mark.parametrize("what", ["refused", "no credential", "distrusted"])
async def test_a_renewal_that_fails_ends_the_connection(what: str) -> None:
    server = Server()
    peer, login = await due(server)
    reasons: list[str] = []
    peer.on_close = reasons.append
    make_due(peer)
    if what == "refused":
        server.code, server.text = 58, "no entry"
    elif what == "distrusted":
        server.lie = lambda token: b""
    else:
        login.failure = PeerError("no token")
    waiting = peer.submit(MetadataRequest(topics=[]), version=12)
    with pytest.raises(PeerError):
        async with asyncio.timeout(20):
            await waiting
    assert server.dropped and "metadata" not in server.heard
    assert len(reasons) == 1 and "the login could not be renewed" in reasons[0]
    with pytest.raises(PeerClosed, match="could not be renewed"):
        peer.submit(MetadataRequest(topics=[]), version=12)


@pytest.mark.usefixtures("unhurried", "task_failures")
async def test_a_defect_of_a_renewal_lets_no_request_wait_for_ever() -> None:
    server = Server()
    peer, login = await due(server)
    make_due(peer)
    login.failure = KeyError("x")
    with pytest.raises(PeerClosed, match="could not be renewed"):
        async with asyncio.timeout(20):
            await peer.submit(MetadataRequest(topics=[]), version=12)


@pytest.mark.usefixtures("unhurried")
async def test_requests_that_wait_fail_with_the_connection() -> None:
    server = Server()
    peer, _ = await due(server)
    make_due(peer)
    server.silent = frozenset({3, 17})
    waiting = peer.submit(MetadataRequest(topics=[]), version=12)
    await server.hears("handshake")
    peer.close("closed")
    with pytest.raises(PeerClosed):
        await waiting
    assert peer._renewal is not None
    await asyncio.wait([peer._renewal], timeout=20)
    assert server.heard == ["handshake"]


@pytest.mark.usefixtures("unhurried")
async def test_unanswered_records_that_wait_count_as_unsent() -> None:
    """With acks=0 nothing else bounds them."""
    server = Server()
    peer, _ = await due(server)
    make_due(peer)
    server.silent = frozenset({0, 3, 17})
    request = ProduceRequest(transactional_id=None, acks=0, timeout_ms=1000, topic_data=[])
    size = len(request.encode(version=9))
    assert peer.submit(request, version=9).done()
    drained = asyncio.ensure_future(peer.drained())
    await server.hears("handshake")
    assert peer.unsent_bytes() == size and not drained.done()
    _, correlation_id = server.waiting.pop(0)
    server.deliver(correlation_id, *server.answer(17, 1, b""))
    await drained
    assert peer.unsent_bytes() == 0 and server.heard[-1] == "produce"


@pytest.mark.usefixtures("unhurried")
async def test_requests_go_on_while_a_credential_is_fetched() -> None:
    """An issuer of tokens may take its time, or its answer may never come."""
    server = Server()
    peer, login = await due(server)
    login.gate = asyncio.Event()
    make_due_soon(peer)
    asked = [peer.submit(MetadataRequest(topics=[]), version=12) for _ in range(3)]
    await asyncio.sleep(0)
    asked.append(peer.submit(MetadataRequest(topics=[]), version=12))
    assert server.heard == ["metadata"] * 4 and login.exchanges == 1
    for each in asked:
        server.answer_metadata()
        assert (await each).cluster_id == "c"
    server.silent = frozenset({3, 17})
    login.gate.set()
    await server.hears("handshake")
    waiting = peer.submit(MetadataRequest(topics=[]), version=12)
    assert server.heard == ["metadata"] * 4 + ["handshake"] and peer.in_flight == 2 and not waiting.done()
    peer.close()


@pytest.mark.usefixtures("unhurried")
async def test_a_credential_that_cannot_be_had_is_asked_for_again_while_the_session_lasts() -> None:
    server = Server()
    peer, login = await due(server)
    make_due_soon(peer)
    login.failure = PeerError("no token")
    for _ in range(3):
        asked = peer.submit(MetadataRequest(topics=[]), version=12)
        await asyncio.sleep(0)
        server.answer_metadata()
        assert (await asked).cluster_id == "c"
    assert login.asked == 2, "once for the connection, once now"
    pause = peer._renew_at - asyncio.get_running_loop().time()
    assert 0.5 < pause <= 1.0 and not peer.closed
    login.failure = None
    make_due_soon(peer)
    peer.submit(MetadataRequest(topics=[]), version=12)
    server.silent = frozenset()
    server.heard.clear()
    await server.hears("handshake")
    peer.close()


def test_a_session_lasts_from_when_its_login_was_sent() -> None:
    """The server's answer may take a while. Counted from its arrival, the session would seem to last longer than it
    does, and the server would close the connection amid requests."""
    async def body(world: ControlWorld) -> None:
        server, login = Server(), Known()
        server.lifetime_ms, server.delay_s = 10_000, 3.0  # the last message leaves after 9 s
        login.renewed_after_s = 9.0
        loop = asyncio.get_running_loop()
        began = loop.time()
        peer = await connected(server, login)
        assert loop.time() - began >= 12
        assert peer._renew_at == pytest.approx(began + 18) and peer._ends_at == pytest.approx(began + 18.5)

    run(body)


@pytest.mark.parametrize("lifetime_ms", [1, 2**63 - 1])
def test_sessions_of_any_length(lifetime_ms: int) -> None:
    """One that is over when its answer arrives lets each request wait for one login."""
    async def body(world: ControlWorld) -> None:
        server, login = Server(), Known()
        server.lifetime_ms, server.delay_s = lifetime_ms, 0.01
        login.renewed_after_s = lifetime_ms / 1000 * 0.9
        peer = await connected(server, login)
        for _ in range(3):
            asked = peer.submit(MetadataRequest(topics=[]), version=12)
            async with asyncio.timeout(5):
                await server.hears("metadata")
            server.answer_metadata()
            assert (await asked).cluster_id == "c"
            server.heard.clear()
        assert login.exchanges == (4 if lifetime_ms == 1 else 1)

    run(body)


def test_no_request_is_sent_in_the_last_moment_of_a_session() -> None:
    """It would arrive after its end. A client that has been idle may send its next request just then."""
    async def body(world: ControlWorld) -> None:
        server, login = Server(), Known()
        server.lifetime_ms = 10_000
        login.renewed_after_s = 8.5
        peer = await connected(server, login)
        server.heard.clear()
        await asyncio.sleep(9.8)
        asked = peer.submit(MetadataRequest(topics=[]), version=12)
        await server.hears("metadata")
        assert server.heard == ["handshake", "token", "token", "metadata"]
        server.answer_metadata()
        await asked

    run(body)


async def test_two_logins_are_a_second_apart() -> None:
    server = Server()
    peer, _ = await due(server)
    make_due(peer)
    peer.submit(MetadataRequest(topics=[]), version=12)
    began = asyncio.get_running_loop().time()
    await server.hears("handshake")
    assert asyncio.get_running_loop().time() - began > 0.9
    peer.close()
