"""What the proxy does to single requests, between a node that keeps what it got and a client that counts answers."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator

import pytest

from hapax.local.folder import free_port
from hapax_chaos.proxy import Action, Proxy, Rule

PRODUCE, END_TXN = 0, 26


def request(api_key: int, correlation_id: int) -> bytes:
    body = struct.pack(">hhi", api_key, 9, correlation_id)
    return struct.pack(">i", len(body)) + body


class EchoNode:
    """Answers each request with its correlation id."""

    def __init__(self) -> None:
        self.got: list[tuple[int, int, int]] = []
        """(connection, api key, correlation id), in the order of arrival."""
        self.arrived = asyncio.Event()
        self._connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = self._connections = self._connections + 1
        while head := await reader.read(4):
            body = await reader.readexactly(struct.unpack(">i", head)[0])
            key, _, correlation_id = struct.unpack(">hhi", body)
            self.got.append((connection, key, correlation_id))
            self.arrived.set()
            writer.write(struct.pack(">ii", 4, correlation_id))
        writer.close()


class Link:
    def __init__(self, proxy: Proxy, node: EchoNode, port: int) -> None:
        self.proxy, self.node, self._port = proxy, node, port

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self._port)

    def rule(self, action: Action, api_key: int = END_TXN, after_s: float = 0.05) -> None:
        self.proxy.rules = [Rule(api_key, action, after_s, share=1.0)]


@pytest.fixture
async def link() -> AsyncIterator[Link]:
    node, proxy = EchoNode(), Proxy(1)
    server = await asyncio.start_server(node.serve, "127.0.0.1", 0)
    port = free_port(set())
    await proxy.listen("127.0.0.1", port, server.sockets[0].getsockname())
    yield Link(proxy, node, port)
    server.close()


async def answer(reader: asyncio.StreamReader) -> int:
    async with asyncio.timeout(5):
        return int(struct.unpack(">ii", await reader.readexactly(8))[1])


async def ended(reader: asyncio.StreamReader) -> bool:
    async with asyncio.timeout(5):
        try:
            return await reader.read(1) == b""
        except ConnectionResetError:
            return True


async def test_frames_without_a_rule_pass_in_order(link: Link) -> None:
    link.rule("reset", api_key=END_TXN)
    reader, writer = await link.open()
    for number in range(5):
        writer.write(request(PRODUCE, number))
    assert [await answer(reader) for _ in range(5)] == [0, 1, 2, 3, 4]
    assert link.proxy.taken == {}
    writer.close()


async def test_twice_arrives_twice_and_is_answered_once(link: Link) -> None:
    link.rule("twice")
    reader, writer = await link.open()
    writer.write(request(END_TXN, 1) + request(PRODUCE, 2))
    assert [await answer(reader), await answer(reader)] == [1, 2]
    assert link.node.got == [(1, END_TXN, 1), (1, END_TXN, 1), (1, PRODUCE, 2)]
    writer.close()


async def test_late_arrives_by_the_old_connection_after_the_client_gave_it_up(link: Link) -> None:
    link.rule("late", after_s=0.2)
    reader, writer = await link.open()
    writer.write(request(END_TXN, 1))
    assert await ended(reader)
    link.proxy.rules = []
    again, writer_again = await link.open()
    writer_again.write(request(END_TXN, 2))
    assert await answer(again) == 2
    assert link.node.got == [(2, END_TXN, 2)]
    link.node.arrived.clear()
    async with asyncio.timeout(5):
        await link.node.arrived.wait()
    assert link.node.got == [(2, END_TXN, 2), (1, END_TXN, 1)]
    writer.close()
    writer_again.close()


async def test_unanswered_arrives_and_its_connection_breaks(link: Link) -> None:
    link.rule("unanswered")
    reader, writer = await link.open()
    writer.write(request(END_TXN, 1))
    assert await ended(reader)
    async with asyncio.timeout(5):
        await link.node.arrived.wait()
    assert link.node.got == [(1, END_TXN, 1)]
    writer.close()


async def test_reset_never_arrives(link: Link) -> None:
    link.rule("reset")
    reader, writer = await link.open()
    writer.write(request(END_TXN, 1))
    assert await ended(reader)
    assert link.node.got == []
    assert link.proxy.taken == {"reset": 1}
    writer.close()
