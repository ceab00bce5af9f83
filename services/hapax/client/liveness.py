"""Closes connections to a node that has stopped answering after other nodes have taken over its work.

Without this, requests in flight to a stopped node would wait for request.timeout.ms, and connections being opened to
it for socket.connection.setup.timeout.ms. Closing the connection lets idempotent batches, fetches and coordinator calls
continue on other nodes. Slowness alone closes nothing: a leader may take its time to answer. The wait ends only when
the cluster's metadata says that the node leads no partition, or when its coordinator's work has moved.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final, Protocol

from hapax.client.errors import HapaxError
from hapax.client.metadata import CoordinatorKind, Purpose, Topic
from hapax.client.settings import Options
from hapax.wire.messages import FetchRequest, ListOffsetsRequest, ProduceRequest
from hapax.wire.peer import Peer

_CHECK_EVERY_S: Final = 1.0
_OVERDUE_AFTER_S: Final = 2.0
_OVERDUE_JOIN_AFTER_S: Final = 10.0
"""A member that joins waits for the other members."""
_COORDINATOR: Final = ("coordinator", "join")
_METADATA_TIMEOUT_MS: Final = 3000
_LEADER_REQUESTS: Final = (ProduceRequest.name, FetchRequest.name, ListOffsetsRequest.name)
"""Requests that only a leader answers. Any node may serve the others, and a slow one (CreateTopics) proves nothing."""


class Connections(Protocol):
    """The part of `ClusterClient` that is used here."""

    @property
    def options(self) -> Options: ...
    @property
    def topics(self) -> Mapping[str, Topic]: ...
    def open_peers(self) -> list[tuple[tuple[int, Purpose], Peer]]: ...
    def connecting(self) -> list[tuple[int, Purpose, float]]: ...
    def give_up_connecting(self, node_id: int, purpose: Purpose) -> None: ...
    async def refreshed(self, timeout_ms: int) -> None: ...
    def coordinated_by(self, node_id: int) -> list[tuple[CoordinatorKind, str]]: ...
    async def coordinator(self, kind: CoordinatorKind, key: str, *, again: bool = False) -> int: ...


class Liveness:
    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    async def run(self) -> None:
        """Never returns."""
        while True:
            await asyncio.sleep(_CHECK_EVERY_S)
            for (node_id, purpose), peer in self._connections.open_peers():
                # Checked twice: the node may have answered while the metadata was requested.
                overdue = self._overdue(peer, purpose) and await self._replaced(node_id, purpose)
                if overdue and self._overdue(peer, purpose):
                    peer.close(f"node {node_id} does not answer, and other nodes have taken over its work")
            now = asyncio.get_running_loop().time()
            for node_id, purpose, since in self._connections.connecting():
                if now - since > _OVERDUE_AFTER_S and await self._replaced(node_id, purpose):
                    self._connections.give_up_connecting(node_id, purpose)

    def _overdue(self, peer: Peer, purpose: Purpose) -> bool:
        request, waiting_s = peer.waiting()
        return waiting_s > self._limit_s(purpose) and (purpose in _COORDINATOR or request in _LEADER_REQUESTS)

    def _limit_s(self, purpose: Purpose) -> float:
        if purpose == "join":
            return _OVERDUE_JOIN_AFTER_S
        long_poll_ms: int = self._connections.options["fetch.max.wait.ms"] if purpose == "fetch" else 0
        return _OVERDUE_AFTER_S + long_poll_ms / 1000

    async def _replaced(self, node_id: int, purpose: Purpose) -> bool:
        if purpose in _COORDINATOR:
            return await self._coordinates_nothing(node_id)
        await self._connections.refreshed(_METADATA_TIMEOUT_MS)
        return all(
            leader.node_id not in (node_id, -1)
            for topic in self._connections.topics.values() for leader in topic.partitions.values()
        )

    async def _coordinates_nothing(self, node_id: int) -> bool:
        find = self._connections.coordinator
        served = self._connections.coordinated_by(node_id)
        try:
            return bool(served) and all([await find(*each, again=True) != node_id for each in served])
        except HapaxError:
            return False
