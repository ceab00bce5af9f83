"""The simulator's own ports: what they promise to the services, and what they forget on purpose."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

import pytest

from hapax.runtime.ports import FrameConnection, FrameHandler, FrameLimits, RpcError
from hapax_sim.disk import PowerLossDisk
from hapax_sim.loop import Deadlock, SimLoop, SimProcess
from hapax_sim.network import World


def run(loop: SimLoop, work: Coroutine[Any, Any, Any]) -> Any:
    asyncio.set_event_loop(loop)
    try:
        return loop.run_until_complete(work)
    finally:
        asyncio.set_event_loop(None)


class Echo:
    def __init__(self, connection: FrameConnection, log: list[bytes]) -> None:
        self.connection, self.log = connection, log

    def on_frame(self, frame: memoryview) -> None:
        self.log.append(bytes(frame))

    def on_drained(self) -> None: ...

    def on_closed(self, reason: str) -> None:
        self.log.append(b"closed")


def test_time_moves_only_when_nothing_runs() -> None:
    loop = SimLoop()

    async def sleep() -> float:
        await asyncio.sleep(3600)
        return loop.time()

    assert run(loop, sleep()) == 3600.0


def test_a_lost_event_is_a_deadlock_not_a_hang() -> None:
    loop = SimLoop()
    with pytest.raises(Deadlock):
        run(loop, asyncio.Event().wait())


def test_a_crashed_process_runs_nothing_more_not_even_finally() -> None:
    loop = SimLoop()
    process = SimProcess("p")
    ran: list[str] = []

    async def service() -> None:
        try:
            await asyncio.sleep(10)
            ran.append("after")
        finally:
            ran.append("finally")

    async def story() -> None:
        loop.spawn(process, service(), "service")
        await asyncio.sleep(1)
        loop.crash(process)
        await asyncio.sleep(100)

    run(loop, story())
    assert ran == []


def test_a_frozen_process_catches_up_when_it_thaws() -> None:
    loop = SimLoop()
    process = SimProcess("p")
    seen: list[float] = []

    async def service() -> None:
        await asyncio.sleep(1)
        seen.append(loop.time())

    async def story() -> None:
        loop.spawn(process, service(), "service")
        await asyncio.sleep(0.5)
        loop.freeze(process)
        await asyncio.sleep(10)
        assert seen == []
        loop.thaw(process)
        await asyncio.sleep(0.1)

    run(loop, story())
    assert seen == [10.5]


def test_frames_of_one_connection_keep_their_order_and_a_crash_closes_it() -> None:
    loop = SimLoop()
    world = World(loop, random.Random(7))
    world.weather.slow_share = 0.3
    server, client = SimProcess("server"), SimProcess("client")
    received: list[bytes] = []
    answered: list[bytes] = []

    async def story() -> None:
        def accept(connection: FrameConnection) -> FrameHandler:
            return Echo(connection, received)

        listener = await world.network(server).listen("sim", 0, accept, FrameLimits())

        async def send() -> None:
            connection = await world.network(client).connect(
                "sim", listener.port, lambda c: Echo(c, answered), FrameLimits()
            )
            for i in range(50):
                connection.send([b"%d" % i])

        await loop.spawn(client, send(), "send")
        await asyncio.sleep(20)
        loop.crash(server)
        await asyncio.sleep(1)

    run(loop, story())
    assert received == [b"%d" % i for i in range(50)]
    assert answered == [b"closed"]


def test_a_call_to_a_process_that_dies_is_unavailable() -> None:
    loop = SimLoop()
    world = World(loop, random.Random(7))
    server, client = SimProcess("server"), SimProcess("client")

    async def never(request: bytes) -> bytes:
        await asyncio.sleep(1000)
        return b""

    async def story() -> None:
        listening = await world.network(server).serve_rpc("sim", 0, {"/m": never})

        async def call() -> str:
            try:
                await world.network(client).rpc_channel(listening.address).call("/m", b"", 60)
            except RpcError as error:
                return error.status
            return "answered"

        calling = loop.spawn(client, call(), "call")
        await asyncio.sleep(1)
        loop.crash(server)
        assert await calling == "UNAVAILABLE"
        assert loop.time() < 5

    run(loop, story())


@pytest.mark.parametrize("seed", range(20))
def test_a_power_cut_keeps_what_was_synced_and_at_most_a_part_of_the_rest(seed: int) -> None:
    loop = SimLoop()
    store = PowerLossDisk(loop, random.Random(seed))

    async def story() -> None:
        disk = store.mount(SimProcess("p"))
        disk.make_folder("d")
        file = disk.open("d/log", create=True)
        file.append([b"synced"])
        await file.sync()
        await disk.sync_folder("d")
        file.append([b"-lost"])
        disk.open("d/unsynced-name", create=True)
        store.power_cut()
        again = store.mount(SimProcess("p2"))
        content = again.open("d/log").read(0, 100)
        assert content.startswith(b"synced") and b"synced-lost".startswith(content)

    run(loop, story())
