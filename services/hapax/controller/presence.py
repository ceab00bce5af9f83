"""Detects that a node's process is dead or does not answer, before the node's lease expires (rule 19).

One connection is kept to each node, and a question is asked on it every `broker.heartbeat.interval.ms`.

Dead: the connection breaks, and a new connection to the address is refused. The process is taken to have ended, and its
registration is deleted by compare-and-swap. That is a hint only: if the process is alive after all, the epochs fence
its writes, and it ends when it sees that its registration is gone.

Silent: no answer for `broker.heartbeat.timeout.ms`, because the process stands still or cannot be reached. It keeps its
registration, but is passed over until it answers again; whatever it does meanwhile is fenced by the epochs. A node that
this process never reached is not judged, for its address may be wrong.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from hapax.core.types import NodeId
from hapax.runtime import supervision, telemetry
from hapax.runtime.addresses import Address
from hapax.runtime.cluster import Changes, ClusterView, NodeView
from hapax.runtime.ports import FrameConnection, FrameLimits, MetadataUnavailable, Network, Randomness, RpcError, Task
from hapax.runtime.rpc import HEALTH_CHECK
from hapax.runtime.settings import Settings
from hapax.wire.peer import api_versions_question

log = telemetry.logger("presence")

_CONNECT_S: Final = 1.0
_PAUSE_FIRST_S: Final = 0.02
_PAUSE_MAX_S: Final = 1.0
_LIMITS: Final = FrameLimits(max_frame_bytes=1 << 16, idle_ms=1 << 50)
_QUESTION: Final = api_versions_question("controller")
"""Every node with a Kafka listener answers it. What the answer says does not matter."""
_NO_ANSWER: Final = ("UNAVAILABLE", "DEADLINE_EXCEEDED")


@dataclass(slots=True, eq=False)
class _Watched:
    """One process of a node, as long as it concerns."""

    node: NodeView
    task: Task | None = None
    connection: FrameConnection | None = None
    met: bool = False
    missed: int = 0
    """Turns in which no answer was there, one after the other."""
    silent: bool | None = None
    """None: it has not had the time to answer yet."""


class Presence:
    """`revoke` deletes a dead node's registration and raises MetadataUnavailable; `concerns` says whom to watch;
    `judged` hears of a node that fell silent (True), or answers, for the first time or again (False)."""

    def __init__(
        self, network: Network, view: ClusterView, random: Randomness, settings: Settings,
        revoke: Callable[[NodeView], Awaitable[None]], concerns: Callable[[NodeView], bool],
        judged: Callable[[NodeView, bool], None],
    ) -> None:
        self._network = network
        self._view = view
        self._random = random
        self._revoke = revoke
        self._concerns = concerns
        self._judged = judged
        self._interval_s = settings.broker_heartbeat_interval_ms / 1000
        self._missed_at_most = max(
            1, round(settings.broker_heartbeat_timeout_ms / settings.broker_heartbeat_interval_ms))
        self._watching: dict[NodeId, _Watched] = {}
        self._asking: Task | None = None
        self._unsubscribe: Callable[[], None] | None = None

    def start(self) -> None:
        self._unsubscribe = self._view.on_change(self._changed)
        self._asking = supervision.keep(self._ask, "presence", self._random)
        self.look()

    def look(self) -> None:
        """Called when the nodes to watch may have changed."""
        self._changed(Changes(nodes=dict.fromkeys([*self._watching, *(n.node_id for n in self._view.nodes())])))

    def silent(self) -> list[NodeView]:
        return [watched.node for watched in self._watching.values() if watched.silent]

    def hears(self, node: NodeView) -> bool:
        """It concerns, and has answered within the time allowed."""
        watched = self._watching.get(node.node_id)
        return watched is not None and watched.node.registration == node.registration and watched.silent is False

    async def close(self) -> None:
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None
        tasks = [self._asking, *(watched.task for watched in self._watching.values())]
        self._watching.clear()
        await supervision.end(*tasks)

    def _changed(self, changes: Changes) -> None:
        for node_id in changes.nodes:
            node = self._view.node(node_id)
            if node is not None and not self._concerns(node):
                node = None
            watched = self._watching.get(node_id)
            if watched is not None and (node is None or node.registration != watched.node.registration):
                del self._watching[node_id]
                assert watched.task is not None
                watched.task.cancel()
                watched = None
            if node is not None and watched is None:
                watched = self._watching[node_id] = _Watched(node)
                watched.task = supervision.keep(
                    partial(self._watch, watched), "presence-of-node", self._random, node_id)

    # --- dead

    async def _watch(self, watched: _Watched) -> None:
        """Ends when the registration does, by cancellation."""
        pause = _PAUSE_FIRST_S
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            try:
                await (self._hold(watched) if watched.node.port else self._call(watched))
                if loop.time() - began > _PAUSE_MAX_S:
                    pause = _PAUSE_FIRST_S
                    continue
            except ConnectionRefusedError:
                if watched.met:
                    await self._declare_dead(watched.node)
            except (OSError, TimeoutError):
                pass  # it cannot be reached: silence, or its lease, will tell
            await asyncio.sleep(pause * (0.5 + self._random.random()))
            pause = min(2 * pause, _PAUSE_MAX_S)

    async def _hold(self, watched: _Watched) -> None:
        """Returns when the connection has broken. Raises OSError, TimeoutError."""
        node = watched.node
        held = _Held(lambda: self._heard(watched))
        async with asyncio.timeout(_CONNECT_S):
            connection = await self._network.connect(
                node.host, node.port, held.opened, _LIMITS, self._network.node_tls(node.role, node.node_id))
        watched.met = True
        watched.connection = connection
        connection.send([_QUESTION])
        try:
            await held.broken
        finally:
            watched.connection = None
            connection.drop()

    async def _call(self, watched: _Watched) -> None:
        """As `_hold`, of a node without a Kafka listener: its gRPC health is asked, and every answer counts. Returns
        when a call fails; raises ConnectionRefusedError where the process is gone."""
        address = Address.parse(watched.node.record.rpc_address)
        channel = self._network.rpc_channel(watched.node.rpc_address)
        while True:
            try:
                await channel.call(HEALTH_CHECK, b"", _CONNECT_S)
            except RpcError as error:
                if error.status in _NO_ANSWER:
                    async with asyncio.timeout(_CONNECT_S):
                        connection = await self._network.connect(
                            address.host, address.port, _Held(lambda: None).opened, _LIMITS)
                    connection.drop()
                    return
            watched.met = True
            self._heard(watched)
            await asyncio.sleep(self._interval_s)

    async def _declare_dead(self, node: NodeView) -> None:
        try:
            await self._revoke(node)
        except MetadataUnavailable as error:
            log.warning("could not revoke a dead node's registration", node=node.node_id, error=error)

    # --- silent

    async def _ask(self) -> None:
        """Counts turns, not seconds: a pause of this process must not make other nodes look silent."""
        while True:
            await asyncio.sleep(self._interval_s)
            for watched in list(self._watching.values()):
                if watched.missed == 0 and watched.connection is not None:
                    watched.connection.send([_QUESTION])
                watched.missed += watched.met
                if watched.missed > self._missed_at_most:
                    self._judge(watched, silent=True)

    def _heard(self, watched: _Watched) -> None:
        watched.missed = 0
        if self._watching.get(watched.node.node_id) is watched:
            self._judge(watched, silent=False)

    def _judge(self, watched: _Watched, *, silent: bool) -> None:
        if watched.silent == silent:
            return
        if silent:
            log.warning("a node does not answer", node=watched.node.node_id)
        elif watched.silent is not None:
            log.info("a node answers again", node=watched.node.node_id)
        watched.silent = silent
        self._judged(watched.node, silent)


class _Held:
    """The handler of a connection on which nothing counts but that there are answers."""

    def __init__(self, heard: Callable[[], None]) -> None:
        self.broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._heard = heard

    def opened(self, connection: FrameConnection) -> _Held:
        return self

    def on_frame(self, frame: memoryview) -> None:
        self._heard()

    def on_drained(self) -> None: ...
    def on_closed(self, reason: str) -> None:
        if not self.broken.done():
            self.broken.set_result(None)
