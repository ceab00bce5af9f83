"""Passwords in clear are compared with SCRAM's keys, in threads. Real time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from hapax.core.sasl.scram_keys import salted_password
from unit.kafka.test_sasl import Client, Node, coordinator, last_answer


async def answered(client: Client, count: int) -> None:
    async with asyncio.timeout(30):
        while len(client.connection.sent) < count:  # noqa: ASYNC110 - threads end when they end
            await asyncio.sleep(0.001)


@pytest.mark.parametrize(("name", "password", "code"), [
    ("alice", "secret", 0), ("alice", "guess", 58), ("mallory", "secret", 58)])
async def test_a_password_is_checked_beside_the_loop(name: str, password: str, code: int) -> None:
    client = Node(sasl_enabled_mechanisms="PLAIN").connect()
    assert client.handshake("PLAIN") == 0
    assert client.authenticate(f"\0{name}\0{password}".encode()) is None
    assert client.session.working and not client.connection.reading
    await answered(client, 2)
    assert last_answer(client).error_code == code
    if code == 0:
        assert client.connection.reading and client.session.principal == "User:alice"
        assert coordinator(client).error_code == 0
    else:
        assert not client.connection.reading and client.session.principal == "User:ANONYMOUS"


async def test_after_the_first_version_of_the_handshake() -> None:
    client = Node(sasl_enabled_mechanisms="PLAIN").connect()
    client.handshake("PLAIN", version=0)
    client.session.on_frame(memoryview(b"\0alice\0secret"))
    await answered(client, 2)
    assert client.connection.sent[-1] == b""
    assert coordinator(client).error_code == 0


class Computing:
    """`salted_password`, which ends when the test lets it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = 0
        self.go = threading.Event()
        monkeypatch.setattr("hapax.core.sasl.exchange.salted_password", self)

    def __call__(self, *arguments: Any) -> bytes:
        self.begun += 1
        assert self.go.wait(30)
        return salted_password(*arguments)


async def reached(question: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not question():  # noqa: ASYNC110 - threads end when they end
            await asyncio.sleep(0.001)


def sends_password(node: Node, peer: str = "10.0.0.1:5000") -> Client:
    client = node.connect(peer)
    assert client.handshake("PLAIN") == 0
    assert client.authenticate(b"\0alice\0secret") is None
    return client


@pytest.mark.parametrize("begun", [0, 1])
async def test_a_client_that_leaves_while_its_password_is_checked_leaves_nothing(
    begun: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    computing = Computing(monkeypatch)
    node = Node(sasl_enabled_mechanisms="PLAIN")
    client = sends_password(node)
    if begun:
        await reached(lambda: computing.begun == 1)
    client.session.on_closed("gone")
    computing.go.set()
    await reached(lambda: node.sasl._passwords._running == 0)
    await answered(sends_password(node), 2)
    assert len(node.sasl._sessions) == 1 and sum(map(len, node.sasl._sessions.values())) == 1
    assert node.sasl.outcomes == {("PLAIN", "succeeded"): 1}


async def test_a_password_is_not_checked_for_who_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else an address that connects, sends a password and leaves, again and again, has all memory in the end."""
    computing = Computing(monkeypatch)
    node = Node(sasl_enabled_mechanisms="PLAIN")
    for _ in range(2):
        sends_password(node, "10.0.0.2:1")
    await reached(lambda: computing.begun == 2)
    for _ in range(50):
        sends_password(node).session.on_closed("gone")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    gone = [sends_password(node) for _ in range(50)]
    await asyncio.sleep(0.01)
    for client in gone:
        client.session.on_closed("gone")
    await asyncio.sleep(0.01)
    assert not node.sasl._passwords._waiting
    computing.go.set()
    await reached(lambda: node.sasl._passwords._running == 0)
    assert computing.begun == 2
