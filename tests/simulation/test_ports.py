"""The simulator's own ports: what they promise to the services, and what they forget on purpose."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import pytest

from hapax.runtime.ports import FrameConnection, FrameHandler, FrameLimits, RpcError, RpcPeer
from hapax_sim.disk import PowerLossDisk
from hapax_sim.loop import Deadlock, Runaway, SimLoop, SimProcess
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


def test_a_loop_that_never_waits_is_a_failure_with_a_name() -> None:
    loop = SimLoop()

    async def impatient() -> None:
        for _ in range(1_000_000):
            await asyncio.sleep(0)

    async def story() -> None:
        loop.trace("the last thing that happened")
        loop.spawn(SimProcess("p"), impatient(), "retrying")
        await asyncio.sleep(1)

    with pytest.raises(Runaway, match=r"retrying: .*impatient(.|\n)*the last thing that happened"):
        run(loop, story())


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


def test_a_generator_that_its_process_left_half_way_is_no_callback_of_nobody() -> None:
    loop = SimLoop()

    async def numbers() -> AsyncIterator[int]:
        for number in range(9):
            yield number

    async def leaves() -> None:
        async for _ in numbers():
            break
        await asyncio.sleep(1)

    async def outer() -> None:
        await loop.spawn(SimProcess("a"), leaves(), "leaves")

    run(loop, outer())
    assert loop.time() == 1.0


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

    async def never(request: bytes, peer: RpcPeer) -> bytes:
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


class Pair:
    """A server that notes what it gets, and one open connection to it."""

    def __init__(self, seed: int) -> None:
        self.loop = SimLoop()
        self.world = World(self.loop, random.Random(seed))
        self.server, self.client = SimProcess("server"), SimProcess("client")
        self.received: list[bytes] = []
        self.answered: list[bytes] = []
        self.connections: list[FrameConnection] = []
        self.port = 0

    async def open(self) -> None:
        def accept(connection: FrameConnection) -> FrameHandler:
            return Echo(connection, self.received)

        listener = await self.world.network(self.server).listen("sim", 0, accept, FrameLimits())
        self.port = listener.port
        await self.connect()

    async def connect(self) -> None:
        async def connect() -> None:
            self.connections.append(
                await self.world.network(self.client).connect(
                    "sim", self.port, lambda c: Echo(c, self.answered), FrameLimits()
                )
            )

        await self.loop.spawn(self.client, connect(), "connect")


def test_a_partition_that_swallows_packets_delivers_them_when_it_ends() -> None:
    pair = Pair(1)

    async def story() -> None:
        await pair.open()
        pair.world.begin_hold(("client", "server"))
        pair.connections[0].send([b"1"])
        pair.connections[0].send([b"2"])
        await asyncio.sleep(30)
        assert pair.received == []
        pair.world.end_hold(("client", "server"))
        pair.connections[0].send([b"3"])
        await asyncio.sleep(1)

    run(pair.loop, story())
    assert pair.received == [b"1", b"2", b"3"]


def test_a_half_open_connection_delivers_late_and_the_other_end_learns_last() -> None:
    pair = Pair(3)
    pair.world.weather.half_open_share = 1.0

    async def story() -> None:
        await pair.open()
        late = 0
        for _ in range(20):
            pair.world.weather.cut_share = 1.0
            pair.received.clear()
            pair.answered.clear()
            pair.connections[-1].send([b"old"])
            pair.world.weather.cut_share = 0.0
            await asyncio.sleep(0.02)
            assert pair.answered == [b"closed"]
            await pair.connect()
            pair.connections[-1].send([b"new"])
            await asyncio.sleep(40)
            late += b"old" in pair.received and pair.received.index(b"old") > pair.received.index(b"new")
            assert pair.received[-1] == b"closed"
        assert late > 3

    run(pair.loop, story())


def test_a_machine_without_power_resets_nothing() -> None:
    pair = Pair(5)

    async def story() -> None:
        await pair.open()
        pair.server.vanished = True
        pair.loop.crash(pair.server)
        pair.connections[0].send([b"into the dark"])
        await asyncio.sleep(60)
        assert pair.answered == []
        pair.world.network(SimProcess("server"))  # it is up again, and knows nothing of the connection
        pair.connections[0].send([b"?"])
        await asyncio.sleep(1)

    run(pair.loop, story())
    assert pair.answered == [b"closed"]


def test_a_failed_sync_loses_its_bytes_for_good_though_they_can_be_read() -> None:
    loop = SimLoop()
    store = PowerLossDisk(loop, random.Random(1))

    async def story() -> None:
        disk = store.mount(SimProcess("p"))
        file = disk.open("log", create=True)
        file.append([b"kept"])
        await file.sync()
        await disk.sync_folder("")
        file.append([b"lost"])
        store.fail_syncs = 1
        with pytest.raises(OSError, match="Input/output"):
            await file.sync()
        file.append([b"more"])
        await file.sync()
        assert file.read(0, 100) == b"keptlostmore"
        store.power_cut()
        assert store.mount(SimProcess("p")).open("log").read(0, 100)[:8] != b"keptlost"

    run(loop, story())


def test_a_failed_write_leaves_a_torn_tail() -> None:
    loop = SimLoop()
    store = PowerLossDisk(loop, random.Random(1))

    async def story() -> None:
        file = store.mount(SimProcess("p")).open("log", create=True)
        store.fail_writes = 1
        with pytest.raises(OSError, match="Input/output"):
            file.append([b"abcdef"])
        torn = file.read(0, 100)
        assert b"abcdef".startswith(torn)
        assert file.size() == 0
        store.capacity = len(torn) + 2
        with pytest.raises(OSError, match="No space"):
            file.append([b"xyz"])
        assert file.read(0, 100).startswith(b"xy")
        assert file.size() == 0
        store.capacity = 100
        file.append([b"z"])
        assert file.read(0, 100).startswith(b"zy")
        assert file.size() == 1
        store.fail_truncates = 1
        with pytest.raises(OSError, match="Input/output"):
            file.truncate(1)
        file.truncate(1)
        assert file.read(0, 100) == b"z"

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
        assert content.startswith(b"synced") and len(content) <= len(b"synced-lost")
        # Pages are written in any order: what was not synced is there, is cut off, or has a hole.
        assert all(found in (0, written) for found, written in zip(content, b"synced-lost", strict=False))

    run(loop, story())


@pytest.mark.parametrize("seed", range(8))
def test_names_outlive_a_power_cut_once_their_folder_is_synced(seed: int) -> None:
    loop = SimLoop()
    store = PowerLossDisk(loop, random.Random(seed))
    disk = store.mount(SimProcess("a"))

    async def write() -> None:
        for name in ("f/gone", "f/old", "f/kept"):
            disk.open(name, create=True)
        await disk.sync_folder("f")
        disk.remove("f/gone")
        disk.rename("f/old", "f/new")
        disk.open("g/elsewhere", create=True)
        await disk.sync_folder("f")

    run(loop, write())
    store.power_cut()
    assert disk.list("f") == ["kept", "new"]
    assert store.names == store.durable_names


def test_a_name_that_was_never_synced_may_be_lost() -> None:
    def survives(seed: int) -> bool:
        store = PowerLossDisk(SimLoop(), random.Random(seed))
        store.mount(SimProcess("a")).open("f/new", create=True)
        store.power_cut()
        return "f/new" in store.names

    assert {survives(seed) for seed in range(16)} == {True, False}
