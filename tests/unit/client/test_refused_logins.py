"""A login that is refused: the caller is told at once, whatever it waits for, and the server is left alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hapax.client.cluster import ClusterClient
from hapax.client.environment import Environment, RealPorts
from hapax.client.errors import RetriableError, SaslAuthenticationFailed
from hapax.client.settings import Options
from hapax.core.errors import ErrorCode
from hapax.core.types import PartitionIndex, TopicPartition
from hapax.wire.peer import Peer, PeerClosed, PeerDistrusted, PeerLoginRefused
from unit.client.fetching_world import World
from unit.client.sending_world import FakeCluster, answer, producer_on

A = TopicPartition("a", PartitionIndex(0))
REFUSED = SaslAuthenticationFailed("127.0.0.1:1: no entry", code=ErrorCode.SASL_AUTHENTICATION_FAILED)
LOGIN = {
    "bootstrap.servers": "one:1,two:2,three:3", "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "SCRAM-SHA-256", "sasl.username": "alice", "sasl.password": "hidden word",
    "retry.backoff.ms": 1, "request.timeout.ms": 200}


class Refusing:
    """In place of `Peer.connect`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
        self.error = error
        self.others: Exception | None = None
        """Of the nodes but the first."""
        self.then: Callable[[], object] = lambda: None
        self.tried: list[str] = []
        monkeypatch.setattr(Peer, "connect", self.connect)

    async def connect(self, network: object, host: str, port: int, **more: Any) -> Any:
        assert more["login"].mechanism == "SCRAM-SHA-256"
        self.tried.append(host)
        self.then()
        raise self.error if host == "one" or self.others is None else self.others


class Still:
    """A clock."""

    def __init__(self) -> None:
        self.ms = 0

    def now_ms(self) -> int:
        return self.ms

    def monotonic_ms(self) -> int:
        return self.ms


def client(clock: Still | None = None) -> ClusterClient:
    real = RealPorts()
    return ClusterClient(Options(LOGIN, "a"), Environment(clock or real.clock, None, real.random))  # type: ignore[arg-type]


async def test_the_first_refusal_is_told_at_once_and_to_all(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Refusing(monkeypatch, PeerLoginRefused("one:1: no entry", 58))
    clock = Still()
    cluster = client(clock)
    with pytest.raises(SaslAuthenticationFailed, match=r"one:1: no entry\. Check the settings that begin with sasl"):
        await cluster.start()
    assert network.tried == ["one"]
    cluster.nodes = {0: ("zero", 1)}
    for _ in range(3):
        with pytest.raises(SaslAuthenticationFailed):
            await cluster.peer(0)
        with pytest.raises(SaslAuthenticationFailed):
            await cluster.topic("orders", 60_000)
    assert network.tried == ["one"], "the server is not asked again at once"
    clock.ms = 1000
    with pytest.raises(SaslAuthenticationFailed):
        await cluster.peer(0)
    assert network.tried == ["one", "zero"]
    await cluster.close()


async def test_a_password_that_was_replaced_amid_the_login_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "password"
    file.write_text("former")
    network = Refusing(monkeypatch, PeerLoginRefused("one:1: no entry", 58))
    real = RealPorts()
    given = {name: value for name, value in LOGIN.items() if name != "sasl.password"}
    cluster = ClusterClient(Options({**given, "sasl.password.file": str(file)}, "a"), real)
    network.then = lambda: file.write_text(f"password {len(network.tried)}")
    with pytest.raises(SaslAuthenticationFailed, match="no entry"):
        await cluster.start()
    assert network.tried == ["one", "one"], "and no more than once"
    await cluster.close()


@pytest.mark.parametrize("code", [33, 34])
async def test_a_node_that_is_set_up_otherwise_is_passed_over(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    network = Refusing(monkeypatch, PeerLoginRefused("one:1: not here", code))
    clock = Still()
    cluster = client(clock)
    with pytest.raises(SaslAuthenticationFailed, match="not here") as refused:
        await cluster.start()
    assert network.tried == ["one", "two", "three"] and refused.value.code == code
    with pytest.raises(SaslAuthenticationFailed, match="not here"):
        await cluster.topic("orders", 60_000)
    await cluster.close()


async def test_a_node_that_is_set_up_otherwise_ends_no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others may come back, and let this client in."""
    network = Refusing(monkeypatch, PeerLoginRefused("one:1: not here", 33))
    network.others = PeerClosed("not now")
    with pytest.raises(RetriableError, match="not now"):
        await client().start()


async def test_a_failure_that_may_pass_is_tried_on_each_node(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Refusing(monkeypatch, PeerClosed("not now"))
    with pytest.raises(RetriableError, match="not now"):
        await client().start()
    assert {"one", "two", "three"} <= set(network.tried)


async def test_servers_that_do_not_know_the_password_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    Refusing(monkeypatch, PeerDistrusted("one:1: the login cannot be trusted"))
    with pytest.raises(Exception, match="no node is to be trusted: one:1") as failed:
        await client().start()
    assert type(failed.value).__name__ == "AuthenticationError"


@pytest.mark.parametrize("settings", [{}, {"enable.idempotence": False}, {"transactional.id": "t"}])
async def test_open_deliveries_fail_with_it(settings: dict[str, object]) -> None:
    cluster = FakeCluster(**settings)
    cluster.refuses = REFUSED
    engine = producer_on(cluster)
    delivery = engine.append(A, 0, None, b"v", (), 100)
    with pytest.raises(SaslAuthenticationFailed, match="no entry") as failed:
        async with asyncio.timeout(20):
            await delivery
    assert not failed.value.maybe_written and cluster.wanted == 1
    await engine.stop()


async def test_a_record_that_was_sent_before_may_be_written() -> None:
    cluster = FakeCluster()
    engine = producer_on(cluster)
    peer = cluster.open()
    first, second = (engine.append(A, 0, None, value, (), 100) for value in (b"1", b"2"))
    async with asyncio.timeout(20):
        await peer.sent(1)
    peer.closed = True
    cluster.refuses = REFUSED
    answer(peer, ErrorCode.REQUEST_TIMED_OUT)  # it may or may not be stored, and is to be sent again
    with pytest.raises(SaslAuthenticationFailed, match="no entry") as failed:
        async with asyncio.timeout(20):
            await first
    assert failed.value.maybe_written
    with pytest.raises(SaslAuthenticationFailed):
        await second
    await engine.stop()


async def test_a_reader_is_told() -> None:
    world = World("earliest")

    async def refuse(node_id: int, purpose: str = "data") -> World:
        raise REFUSED

    world.peer = refuse  # type: ignore[method-assign]
    world.write("a", "1")
    world.fetcher.assign([A])
    with pytest.raises(SaslAuthenticationFailed, match="no entry"):
        async with asyncio.timeout(20):
            await world.take()
    await world.fetcher.close()
