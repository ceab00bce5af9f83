"""Connections and calls between simulated processes. A seed decides which ones are delayed, cut or refused.

As with TCP, bytes of one connection arrive in order or not at all: a lost message is a broken connection, whose
remaining bytes are lost. Messages of different connections overtake each other freely.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from hapax.runtime import supervision
from hapax.runtime.ports import (
    Chunk,
    FrameConnection,
    FrameHandler,
    FrameLimits,
    RpcError,
    RpcHandler,
    RpcPeer,
    TlsContexts,
)
from hapax.runtime.rpc import HEALTH_CHECK, check_cluster
from hapax_sim.loop import SimLoop, SimProcess

_CONNECT_TIMEOUT_S: Final = 3.0


@dataclass
class Weather:
    """What the network does to messages. A scenario changes it while it runs."""

    delay: tuple[float, float] = (0.00005, 0.002)
    slow_share: float = 0.01
    """Share of messages that take up to `slow` seconds instead."""
    slow: float = 0.25
    cut_share: float = 0.0
    """Share of messages that are not delivered because the connection breaks."""
    half_open_share: float = 0.3
    """Share of breaks of which only the sender learns. Its last messages may still arrive, seconds later."""


class World:
    """All listeners and connections of one simulation."""

    def __init__(self, loop: SimLoop, rng: random.Random) -> None:
        self.loop, self.rng = loop, rng
        self.weather = Weather()
        self.listeners: dict[int, _Listener] = {}
        self.rpc_servers: dict[int, _RpcServer] = {}
        self.cluster_id = "hapax"
        """The cluster that its processes name in their calls."""
        self.blocked: set[tuple[str, str]] = set()
        """One-way partitions that reset connections: (from process name, to process name)."""
        self.held: dict[tuple[str, str], list[Callable[[], None]]] = {}
        """One-way partitions that drop packets. TCP sends them again, so everything arrives when the partition ends,
        unless one side gave up. So requests arrive long after their sender gave up."""
        self.lag: dict[tuple[str, str], float] = {}
        """Slow links: up to this many additional seconds."""
        self.living: dict[str, SimProcess] = {}
        self.networks: dict[str, SimNetwork] = {}
        """The newest life of each process."""
        self.machines: dict[int, SimProcess] = {}
        """Port -> the last process that listened there."""
        self.blocked_methods: set[str] = set()
        """Calls between services that never arrive, by the last part of the method's name (`WriteMarkers`)."""
        self._port = 10_000
        self._serial = 0

    def network(self, process: SimProcess) -> SimNetwork:
        return SimNetwork(self, process)

    def next_port(self) -> int:
        self._port += 1
        return self._port

    def next_serial(self) -> int:
        self._serial += 1
        return self._serial

    def delay(self) -> float:
        weather, rng = self.weather, self.rng
        least, most = weather.delay
        if rng.random() < weather.slow_share:
            return most + (weather.slow - most) * rng.random()
        return least + (most - least) * rng.random()

    def begin_hold(self, pair: tuple[str, str]) -> None:
        self.held.setdefault(pair, [])

    def end_hold(self, pair: tuple[str, str]) -> None:
        for resume in self.held.pop(pair, ()):
            resume()

    def heal(self) -> None:
        self.weather.cut_share = 0.0
        self.blocked.clear()
        self.lag.clear()
        for pair in sorted(self.held):
            self.end_hold(pair)

    def reset(self, name: str) -> None:
        """Ends all connections that a process opened. Messages in flight on them do not arrive."""
        network = self.networks.get(name)
        for end in [] if network is None else network.opened():
            for one in (end, end.other):
                if one is not None:
                    self.loop.in_process(one.process, one._closed, "connection reset")

    def delay_of(self, source: SimProcess, target: SimProcess) -> float:
        lag = self.lag.get((source.name, target.name)) if self.lag else None
        return self.delay() if lag is None else self.delay() + self.rng.uniform(0, lag)

    def swallows(self, target: SimProcess) -> bool:
        """A machine without power does not answer. Once it is up again, it resets connections that it does not know."""
        return target.vanished and not self.living[target.name].alive

    def passes(self, source: SimProcess, target: SimProcess) -> bool:
        """Whether a message that is sent now arrives. Also False if the seed cuts the connection."""
        if (source.name, target.name) in self.blocked or not target.alive:
            return False
        return self.weather.cut_share == 0.0 or self.rng.random() >= self.weather.cut_share


class _End:
    """One end of a connection: a FrameConnection for its process."""

    def __init__(self, world: World, process: SimProcess, peer: str, limits: FrameLimits) -> None:
        self.world, self.process, self.peer, self.limits = world, process, peer, limits
        self.serial = world.next_serial()
        self.certificate = b""
        self.handler: FrameHandler | None = None
        self.other: _End | None = None
        self.open = True
        self.reading = True
        self.watch: int | None = None
        self._inbox: deque[bytearray] = deque()
        self._arrival = 0.0

    # FrameConnection

    def send(self, chunks: Sequence[Chunk]) -> None:
        frame = bytearray()
        for chunk in chunks:
            if isinstance(chunk, bytes | bytearray | memoryview):
                frame += chunk
            else:
                frame += chunk.read()
                chunk.release()
        other = self.other
        if not self.open or other is None:
            return
        world = self.world
        if not world.passes(self.process, other.process):
            if world.swallows(other.process):
                return
            world.loop.trace(f"cut {self.process.name}->{other.process.name}")
            if other.process.alive and world.rng.random() < world.weather.half_open_share:
                self._break_half(frame)
            else:
                self._break("connection reset")
            return
        self._deliver(other._receive, frame)

    def unsent_bytes(self) -> int:
        return 0

    def limit_frames(self, most_bytes: int | None) -> None: ...

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        if not self.reading:
            self.reading = True
            self.world.loop.in_process(self.process, self._drain)

    def close(self, reason: str = "") -> None:
        self._shut(reason, after_data=True)

    def drop(self) -> None:
        self._shut("dropped", after_data=False)

    # the model

    def _deliver(self, callback: Callable[..., None], *args: object, late: float = 0.0) -> None:
        """In order in each direction: never before messages that were sent earlier."""
        other = self.other
        assert other is not None
        world = self.world
        if world.held:
            held = world.held.get((self.process.name, other.process.name))
            if held is not None:
                held.append(lambda: self._deliver(callback, *args))
                return
        now = world.loop.time()
        # A microsecond apart, because timers with the same due time have no order.
        self._arrival = max(self._arrival + 2e-6, now + world.delay_of(self.process, other.process) + late)
        world.loop.in_process(other.process, callback, *args, delay=self._arrival - now)

    def _receive(self, frame: bytearray) -> None:
        if not self.open:
            return
        self._inbox.append(frame)
        self._drain()

    def _drain(self) -> None:
        inbox = self._inbox
        while inbox and self.reading and self.open and self.handler is not None:
            self.handler.on_frame(memoryview(inbox.popleft()))

    def _shut(self, reason: str, *, after_data: bool) -> None:
        if not self.open:
            return
        self._end()
        if self.other is not None:
            if after_data:
                self._deliver(self.other._closed, reason or "closed by peer")
            else:
                self._break_other(reason)
        if self.handler is not None:
            self.world.loop.in_process(self.process, self.handler.on_closed, reason)

    def _break_other(self, reason: str) -> None:
        other = self.other
        assert other is not None
        if self.world.held:
            self._deliver(other._closed, reason)
        else:
            self.world.loop.in_process(other.process, other._closed, reason, delay=self.world.delay())

    def peer_died(self) -> None:
        """This end's process died. The kernel resets the connection, unless the kernel died too."""
        if self.open:
            self.open = False
            if not self.process.vanished:
                self._break_other("peer died")

    def _break_half(self, frame: bytearray) -> None:
        """Half open: this end is closed. The other end learns of it by a keep-alive, and the frame may arrive late."""
        rng, other = self.world.rng, self.other
        assert other is not None
        self.world.loop.in_process(self.process, self._closed, "connection reset", delay=self.world.delay())
        if rng.random() < 0.5:
            self._deliver(other._receive, frame, late=rng.uniform(0.05, 5.0))
        self._deliver(other._closed, "keep-alive", late=rng.uniform(5.0, 30.0))

    def _break(self, reason: str) -> None:
        """The network cut the connection: both ends learn of it, each at its own time."""
        self._break_other(reason)
        self.world.loop.in_process(self.process, self._closed, reason, delay=self.world.delay())

    def _end(self) -> None:
        self.open = False
        if self.watch is not None:
            self.process.unwatch(self.watch)

    def _closed(self, reason: str) -> None:
        if self.open:
            self._end()
            if self.handler is not None:
                self.handler.on_closed(reason)


class _Listener:
    def __init__(
        self,
        world: World,
        process: SimProcess,
        port: int,
        accept: Callable[[FrameConnection], FrameHandler],
        limits: FrameLimits,
    ) -> None:
        self.world, self.process, self.accept, self.limits = world, process, accept, limits
        self.host, self.port = "sim", port

    async def close(self) -> None:
        if self.world.listeners.get(self.port) is self:
            del self.world.listeners[self.port]


class _Unknown:
    """A call server's answer to a frame that is not a call it knows."""

    def __init__(self, connection: FrameConnection) -> None:
        self._connection = connection

    def on_frame(self, frame: memoryview) -> None:
        self._connection.send([b"UNIMPLEMENTED"])

    def on_drained(self) -> None: ...
    def on_closed(self, reason: str) -> None: ...


class _RpcServer:
    def __init__(
        self, world: World, process: SimProcess, port: int, handlers: dict[str, RpcHandler], cluster_id: str
    ) -> None:
        self.world, self.process, self.port, self.handlers = world, process, port, handlers
        self.cluster_id = cluster_id
        self.address = f"sim:{port}"
        self._listener = _Listener(world, process, port, _Unknown, FrameLimits())
        world.listeners[port] = self._listener

    async def close(self, grace: float = 0.0) -> None:
        await self._listener.close()
        if self.world.rpc_servers.get(self.port) is self:
            del self.world.rpc_servers[self.port]


class SimNetwork:
    """The Network port of one process."""

    def __init__(self, world: World, process: SimProcess) -> None:
        self.world, self.process = world, process
        world.living[process.name] = process
        process.watch(self._died)
        world.networks[process.name] = self
        self.cluster_id = world.cluster_id
        self._ends: list[_End] = []

    async def listen(
        self, host: str, port: int, accept: Callable[[FrameConnection], FrameHandler], limits: FrameLimits,
        tls: TlsContexts | None = None,
    ) -> _Listener:
        listener = _Listener(self.world, self.process, port or self.world.next_port(), accept, limits)
        self.world.listeners[listener.port] = listener
        self.world.machines[listener.port] = self.process
        return listener

    async def connect(
        self, host: str, port: int, opened: Callable[[FrameConnection], FrameHandler], limits: FrameLimits,
        tls: TlsContexts | None = None,
    ) -> FrameConnection:
        world = self.world
        await asyncio.sleep(world.delay())
        listener = world.listeners.get(port)
        if listener is None:
            machine = world.machines.get(port)
            if machine is not None and world.swallows(machine):
                await asyncio.sleep(_CONNECT_TIMEOUT_S)
            raise ConnectionRefusedError(f"nobody listens on {host}:{port}")
        await self._way(listener.process, host, port)
        if not listener.process.alive:
            raise ConnectionRefusedError(f"nobody listens on {host}:{port}")
        lost = not world.passes(self.process, listener.process)
        if lost and world.rng.random() < 0.5:
            raise ConnectionResetError(f"no route to {host}:{port}")
        near = _End(world, self.process, f"{host}:{port}", limits)
        far = _End(world, listener.process, f"{self.process.name}:{near.serial}", listener.limits)
        near.other, far.other = far, near
        world.loop.in_process(listener.process, self._accept, listener, far, delay=0.0)
        if lost:
            # The answer to the handshake was lost: the server has an unused connection in addition to the next one.
            near.open = False
            near._deliver(far._closed, "keep-alive", late=world.rng.uniform(5.0, 30.0))
            raise ConnectionResetError(f"no answer from {host}:{port}")
        self._ends = [end for end in self._ends if end.open]
        self._ends.append(near)
        near.handler = opened(near)
        return near

    async def _way(self, target: SimProcess, host: str, port: int) -> None:
        """A handshake waits for the end of a partition, for a while."""
        world = self.world
        end = world.loop.time() + _CONNECT_TIMEOUT_S
        there, back = (self.process.name, target.name), (target.name, self.process.name)
        while there in world.held or back in world.held:
            if world.loop.time() >= end:
                raise TimeoutError(f"no answer from {host}:{port}")
            await asyncio.sleep(0.1)

    def opened(self) -> list[_End]:
        return [end for end in self._ends if end.open]

    @staticmethod
    def _accept(listener: _Listener, far: _End) -> None:
        far.handler = listener.accept(far)
        far.watch = far.process.watch(far.peer_died)
        far._drain()

    async def serve_rpc(
        self, host: str, port: int, handlers: dict[str, RpcHandler], ready: Callable[[], str] | None = None,
        *, streams: bool = True, logins: object = None, former: object = None,
    ) -> _RpcServer:
        server = _RpcServer(self.world, self.process, port or self.world.next_port(), handlers, self.cluster_id)
        self.world.rpc_servers[server.port] = server
        self.world.machines[server.port] = self.process
        return server

    async def serve_frames(self, host: str, port: int, handlers: dict[str, RpcHandler]) -> _RpcServer:
        return await self.serve_rpc(host, port, handlers)

    def rpc_channel(self, address: str) -> SimRpcChannel:
        return SimRpcChannel(self.world, self.process, address, self.cluster_id)

    def node_tls(self, role: str, node_id: int) -> None:
        return None

    def public_channel(
        self, address: str, cluster_id: str, tls: object = None, login: object = None
    ) -> SimRpcChannel:
        return SimRpcChannel(self.world, self.process, address, cluster_id)

    def _died(self) -> None:
        for end in self._ends:
            end.peer_died()
        world = self.world
        world.listeners = {p: v for p, v in world.listeners.items() if v.process is not self.process}
        world.rpc_servers = {p: v for p, v in world.rpc_servers.items() if v.process is not self.process}


class SimRpcChannel:
    """Calls that may be lost on the way there or back, so that the caller cannot tell which."""

    def __init__(self, world: World, process: SimProcess, address: str, cluster_id: str) -> None:
        self.world, self.process, self.address, self.cluster_id = world, process, address, cluster_id
        role, _, number = process.name.rpartition("-")
        self._peer = RpcPeer(process.name, role, int(number) if number.isdigit() else -1)
        self._port = int(address.rpartition(":")[2])

    async def call(self, method: str, request: bytes, timeout: float) -> bytes:
        world, loop = self.world, self.world.loop
        server = world.rpc_servers.get(self._port)
        if server is None or not server.process.alive or method.rpartition("/")[2] in world.blocked_methods:
            machine = world.machines.get(self._port)
            if machine is not None and world.swallows(machine):
                await asyncio.sleep(timeout)
                raise RpcError("DEADLINE_EXCEEDED", method)
            await asyncio.sleep(world.delay())
            raise RpcError("UNAVAILABLE", f"nobody serves {self.address}")
        answer: asyncio.Future[bytes] = loop.create_future()
        caller = self.process
        if world.passes(caller, server.process):
            self._carry(caller, server.process, self._serve, server, method, request, answer)
        elif world.rng.random() < world.weather.half_open_share:
            # The caller learns that the connection is broken, but the request arrives.
            loop.in_process(caller, _fail, answer, RpcError("UNAVAILABLE", "connection reset"), delay=world.delay())
            late = world.rng.uniform(0.05, 5.0)
            self._carry(caller, server.process, self._serve, server, method, request, answer, late=late)
        else:
            loop.in_process(caller, _fail, answer, RpcError("UNAVAILABLE", "connection reset"), delay=world.delay())

        def died() -> None:
            if not server.process.vanished:
                loop.in_process(caller, _fail, answer, RpcError("UNAVAILABLE", "peer died"), delay=world.delay())

        watch = server.process.watch(died)
        limit = loop.call_later(timeout, _fail, answer, RpcError("DEADLINE_EXCEEDED", method))
        try:
            return await answer
        finally:
            limit.cancel()
            server.process.unwatch(watch)

    def _carry(
        self, source: SimProcess, target: SimProcess, callback: Callable[..., None], *args: object, late: float = 0.0
    ) -> None:
        world = self.world
        held = world.held.get((source.name, target.name)) if world.held else None
        if held is not None:
            held.append(lambda: self._carry(source, target, callback, *args))
        else:
            world.loop.in_process(target, callback, *args, delay=world.delay_of(source, target) + late)

    def _serve(self, server: _RpcServer, method: str, request: bytes, answer: asyncio.Future[bytes]) -> None:
        self.world.loop.spawn(server.process, self._run(server, method, request, answer), f"rpc {method}")

    async def _run(self, server: _RpcServer, method: str, request: bytes, answer: asyncio.Future[bytes]) -> None:
        world, caller = self.world, self.process
        failure: RpcError | None = None
        response = b""
        handler = server.handlers.get(method)
        if method == HEALTH_CHECK:
            pass
        elif handler is None:
            failure = RpcError("UNIMPLEMENTED", method)
        else:
            try:
                check_cluster(server.cluster_id, self.cluster_id)
                response = await handler(request, self._peer)
            except RpcError as error:
                failure = error
            except Exception as error:
                supervision.failed("call", error, method)
                failure = RpcError("INTERNAL", method)
        if not world.passes(server.process, caller):
            failure = RpcError("UNAVAILABLE", "connection reset")
        if failure is not None:
            self._carry(server.process, caller, _fail, answer, failure)
        else:
            self._carry(server.process, caller, _settle, answer, response)

    async def close(self) -> None:
        pass


def _settle(answer: asyncio.Future[bytes], response: bytes) -> None:
    if not answer.done():
        answer.set_result(response)


def _fail(answer: asyncio.Future[bytes], error: RpcError) -> None:
    if not answer.done():
        answer.set_exception(error)
