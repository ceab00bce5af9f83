"""Calls that wait while their client is closed: they are told so, and leave no connection behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from hapax.client.cluster import ClusterClient
from hapax.client.consumer import Consumer
from hapax.client.environment import RealPorts
from hapax.client.errors import WrongState
from hapax.client.settings import Options
from hapax.wire.peer import PeerError


class MuteNode:
    """Accepts connections and answers nothing."""

    def __init__(self) -> None:
        self.accepted = asyncio.Event()
        self.connections = 0
        self.none_open = asyncio.Event()
        self.none_open.set()

    async def listen(self) -> int:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.none_open.clear()
        self.accepted.set()
        while await reader.read(65536):
            pass
        self.none_open.set()
        writer.close()

    def close(self) -> None:
        self._server.close()


async def client_of(node: MuteNode) -> ClusterClient:
    port = await node.listen()
    return ClusterClient(Options({"bootstrap.servers": f"127.0.0.1:{port}", "retry.backoff.ms": 1}, "a"), RealPorts())


@pytest.fixture
async def node() -> AsyncIterator[MuteNode]:
    made = MuteNode()
    yield made
    made.close()


_Call = Callable[[ClusterClient], Awaitable[object]]
_CALLS: dict[str, _Call] = {
    "addresses": lambda cluster: cluster.rpc_addresses(),
    "a repeated call": lambda cluster: cluster.within(60_000, "asking", cluster.all_topics),
    "a topic": lambda cluster: cluster.topic("t", 60_000),
}


@pytest.mark.parametrize("name", _CALLS)
async def test_a_call_that_waits_is_told_that_its_client_was_closed(name: str, node: MuteNode) -> None:
    cluster = await client_of(node)
    call = asyncio.ensure_future(_CALLS[name](cluster))
    if name == "a topic":
        await asyncio.sleep(0)
    else:
        await node.accepted.wait()
    await cluster.close()
    async with asyncio.timeout(10):
        with pytest.raises(WrongState, match="closed"):
            await call
        await node.none_open.wait()
    assert node.connections == (name != "a topic")


async def test_the_round_that_was_asked_for_ends_with_the_client(node: MuteNode) -> None:
    cluster = await client_of(node)
    asking = asyncio.ensure_future(cluster._refresh_for_ever())
    cluster._tasks.append(asking)
    call = asyncio.ensure_future(cluster.topic("t", 60_000))
    await node.accepted.wait()
    await cluster.close()
    async with asyncio.timeout(10):
        with pytest.raises(WrongState, match="closed"):
            await call


async def test_a_closed_client_opens_nothing(node: MuteNode) -> None:
    cluster = await client_of(node)
    await cluster.close()
    with pytest.raises(WrongState):
        await cluster.all_topics()
    with pytest.raises(WrongState):
        cluster.channel("127.0.0.1:1")
    assert node.connections == 0


async def test_a_caller_that_is_cancelled_itself_is_cancelled(node: MuteNode) -> None:
    cluster = await client_of(node)
    call = asyncio.ensure_future(cluster.rpc_addresses())
    await node.accepted.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await cluster.close()


async def test_a_consumer_whose_close_is_cancelled_is_closed(node: MuteNode) -> None:
    """Its last commit may take long, and the program may wait for a short time only."""
    port = await node.listen()
    consumer = Consumer(
        {"bootstrap.servers": f"127.0.0.1:{port}", "group.id": "g", "enable.auto.commit": True, "retry.backoff.ms": 1})
    consumer._started = True
    await consumer._after_start()
    consumer.assign([("t", 0)])
    consumer.seek(("t", 0), 1)
    closing = asyncio.ensure_future(consumer.close())
    await node.accepted.wait()
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    async with asyncio.timeout(10):
        await node.none_open.wait()
    with pytest.raises(WrongState):
        await consumer._cluster.all_topics()


async def test_a_client_whose_close_is_cancelled_keeps_no_connection(node: MuteNode) -> None:
    """Its tasks take a moment to end."""
    cluster = await client_of(node)

    async def ends_slowly() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.shield(asyncio.sleep(0.01))

    cluster._tasks = [asyncio.ensure_future(ends_slowly())]
    cluster.nodes = {0: cluster.options["bootstrap.servers"][0]}
    connecting = asyncio.ensure_future(cluster.peer(0))
    await node.accepted.wait()
    closing = asyncio.ensure_future(cluster.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    async with asyncio.timeout(10):
        await node.none_open.wait()
    await asyncio.gather(connecting, return_exceptions=True)


async def test_a_caller_that_is_cancelled_while_its_connection_is_given_up_is_cancelled(node: MuteNode) -> None:
    """Another answer would let it go on, and its time-out would have no effect."""
    cluster = await client_of(node)
    cluster.nodes = {0: cluster.options["bootstrap.servers"][0]}
    connecting = asyncio.ensure_future(cluster.peer(0))
    await node.accepted.wait()
    cluster.give_up_connecting(0, "data")
    connecting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await connecting
    waiting = asyncio.ensure_future(cluster.peer(0))
    await asyncio.sleep(0)
    cluster.give_up_connecting(0, "data")
    with pytest.raises(PeerError, match="others have taken over"):
        await waiting
    await cluster.close()
