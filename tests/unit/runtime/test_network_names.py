"""Connections to names whose addresses change."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
import uvloop

from hapax.runtime import network
from hapax.runtime.network import TcpNetwork
from unit.runtime.test_network import Pair, echo


@pytest.mark.parametrize("run", [uvloop.run, asyncio.run], ids=["uvloop", "asyncio"])
def test_a_name_that_leads_nowhere_is_resolved_again(
    run: Callable[[Coroutine[Any, Any, None]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod's name leads to its former address for a moment, where nothing answers."""
    monkeypatch.setattr(network, "_FIRST_ATTEMPT_S", 0.1)

    async def scenario() -> None:
        net = TcpNetwork()
        pair = await Pair(net).listen(echo)
        with silent("127.0.0.2", pair.listener.port):
            names = Names(net.loop, ["127.0.0.2", "127.0.0.2", "127.0.0.1"])
            net.loop = names  # type: ignore[assignment]
            async with asyncio.timeout(10):
                client = await pair.client()
            net.loop = names.loop
            assert names.asked == 3
            client.connection.send([b"hello"])
            assert await client.frames.get() == b"hello"
            client.connection.drop()
        await pair.listener.close()

    run(scenario())


class Names:
    """A loop that resolves each name to the next of these addresses, in the end to the last one."""

    def __init__(self, loop: asyncio.AbstractEventLoop, addresses: list[str]) -> None:
        self.loop = loop
        self.addresses = addresses
        self.asked = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self.loop, name)

    async def getaddrinfo(self, host: str, port: int, **_: object) -> list[object]:
        self.asked += 1
        address = self.addresses[min(self.asked, len(self.addresses)) - 1]
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, port))]


@contextlib.contextmanager
def silent(host: str, port: int) -> Iterator[None]:
    """An address where attempts to connect get no answer: the queue of a listener that never accepts is full."""
    with contextlib.ExitStack() as opened:
        listener = opened.enter_context(socket.socket())
        listener.bind((host, port))
        listener.listen(0)
        for _ in range(3):
            filler = opened.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex((host, port))
        yield
