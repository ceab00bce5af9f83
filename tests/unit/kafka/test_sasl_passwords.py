"""Passwords in clear are compared with SCRAM's keys, in threads. Real time."""

from __future__ import annotations

import asyncio

import pytest

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
