"""Notices within milliseconds that a node's process is dead, so that nobody waits for its lease (rule 19).

One idle connection is kept to each node. When it breaks and nobody listens there any more, the process has ended: its
registration is deleted by compare-and-swap. That is a hint only: whatever a process does that lives on after all is
fenced by the epochs, and it ends when it sees that its registration is gone. A node that is frozen, or cannot be
reached, keeps its registration until the lease ends; so does one that was never reached, for its address may be wrong.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from hapax.core.types import NodeId, RegistrationEpoch
from hapax.runtime import telemetry
from hapax.runtime.cluster import Changes, ClusterView, Node
from hapax.runtime.ports import FrameConnection, FrameLimits, MetadataUnavailable, Network, Randomness, Task
from hapax.runtime.settings import Address

log = telemetry.logger("presence")

_CONNECT_S: Final = 1.0
_PAUSE_FIRST_S: Final = 0.02
_PAUSE_MAX_S: Final = 1.0
_LIMITS: Final = FrameLimits(max_frame_bytes=1 << 16, idle_ms=1 << 50)


class Presence:
    """`revoke` deletes a dead node's registration and raises MetadataUnavailable; `concerns` says whom to watch."""

    def __init__(
        self, network: Network, view: ClusterView, random: Randomness, revoke: Callable[[Node], Awaitable[None]],
        concerns: Callable[[Node], bool],
    ) -> None:
        self._network = network
        self._view = view
        self._random = random
        self._revoke = revoke
        self._concerns = concerns
        self._watching: dict[NodeId, tuple[RegistrationEpoch, Task]] = {}
        self._unsubscribe: Callable[[], None] | None = None

    def start(self) -> None:
        self._unsubscribe = self._view.on_change(self._changed)
        self.look()

    def look(self) -> None:
        """Whom it concerns may have changed."""
        self._changed(Changes(nodes=dict.fromkeys([*self._watching, *(n.node_id for n in self._view.nodes())])))

    async def close(self) -> None:
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None
        tasks = [task for _, task in self._watching.values()]
        self._watching.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _changed(self, changes: Changes) -> None:
        for node_id in changes.nodes:
            node = self._view.node(node_id)
            if node is not None and not self._concerns(node):
                node = None
            watched = self._watching.get(node_id)
            if watched is not None and (node is None or node.registration != watched[0]):
                del self._watching[node_id]
                watched[1].cancel()
                watched = None
            if node is not None and watched is None:
                task = asyncio.get_running_loop().create_task(self._watch(node), name=f"presence-{node_id}")
                self._watching[node_id] = (node.registration, task)

    async def _watch(self, node: Node) -> None:
        """Ends when the registration does, by cancellation."""
        met = False
        pause = _PAUSE_FIRST_S
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            try:
                await self._hold(node)
                met = True
                if loop.time() - began > _PAUSE_MAX_S:
                    pause = _PAUSE_FIRST_S
                    continue
            except ConnectionRefusedError:
                if met:
                    await self._declare_dead(node)
            except (OSError, TimeoutError):
                pass  # it cannot be reached: its lease will tell
            await asyncio.sleep(pause * (0.5 + self._random.random()))
            pause = min(2 * pause, _PAUSE_MAX_S)

    async def _hold(self, node: Node) -> None:
        """Returns when the connection has broken. Raises OSError, TimeoutError."""
        address = Address((node.host, node.port)) if node.port else Address.parse(node.rpc_address)
        held = _Held()
        async with asyncio.timeout(_CONNECT_S):
            connection = await self._network.connect(address.host, address.port, held.opened, _LIMITS)
        try:
            await held.broken
        finally:
            connection.drop()

    async def _declare_dead(self, node: Node) -> None:
        try:
            await self._revoke(node)
        except MetadataUnavailable as error:
            log.warning("could not revoke a dead node's registration", node=node.node_id, error=error)


class _Held:
    """The handler of a connection on which nothing is said."""

    def __init__(self) -> None:
        self.broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def opened(self, connection: FrameConnection) -> _Held:
        return self

    def on_frame(self, frame: memoryview) -> None: ...
    def on_drained(self) -> None: ...
    def on_closed(self, reason: str) -> None:
        if not self.broken.done():
            self.broken.set_result(None)
