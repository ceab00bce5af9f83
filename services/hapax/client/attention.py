"""Notices a node that does not answer while others have taken over from it.

Without this, what was in flight to a node that stands still would wait for request.timeout.ms, and whoever connects to
one for socket.connection.setup.timeout.ms. The connection is closed instead, so that idempotent batches, fetches and
calls to a coordinator go on elsewhere. Nothing is concluded from slowness alone: a leader may well take its time, and
only the cluster's word that it leads no more ends the wait.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from hapax.client.errors import HapaxError
from hapax.wire.messages import FetchRequest, ListOffsetsRequest, ProduceRequest

if TYPE_CHECKING:
    from hapax.client.cluster import Cluster, Purpose
    from hapax.wire.peer import Peer

_LOOK_EVERY_S: Final = 1.0
_PATIENCE_S: Final = 2.0
_ANSWER_MS: Final = 3000
_FOR_LEADERS: Final = (ProduceRequest.name, FetchRequest.name, ListOffsetsRequest.name)
"""What only a leader answers. Other requests may go to any node, and a slow one (CreateTopics) proves nothing."""


class Attention:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def run(self) -> None:
        """For ever."""
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            for (node_id, purpose), peer in self._cluster.open_peers():
                # Twice: it may have answered while the cluster was asked.
                overdue = self._overdue(peer, purpose) and await self._replaced(node_id, purpose)
                if overdue and self._overdue(peer, purpose):
                    peer.close(f"node {node_id} does not answer, and others have taken over")
            now = asyncio.get_running_loop().time()
            for node_id, purpose, since in self._cluster.connecting():
                if now - since > _PATIENCE_S and await self._replaced(node_id, purpose):
                    self._cluster.give_up_connecting(node_id, purpose)

    def _overdue(self, peer: Peer, purpose: Purpose) -> bool:
        request, waiting_s = peer.waiting()
        return waiting_s > self._patience_s(purpose) and (purpose == "coordinator" or request in _FOR_LEADERS)

    def _patience_s(self, purpose: Purpose) -> float:
        long_poll_ms: int = self._cluster.options["fetch.max.wait.ms"] if purpose == "fetch" else 0
        return _PATIENCE_S + long_poll_ms / 1000

    async def _replaced(self, node_id: int, purpose: Purpose) -> bool:
        cluster = self._cluster
        if purpose == "coordinator":
            return await self._coordinates_nothing(node_id)
        await cluster.refreshed(_ANSWER_MS)
        return all(
            leader.node_id not in (node_id, -1)
            for topic in cluster.topics.values() for leader in topic.partitions.values()
        )

    async def _coordinates_nothing(self, node_id: int) -> bool:
        cluster = self._cluster
        served = cluster.coordinated_by(node_id)
        try:
            return bool(served) and all([await cluster.coordinator(*each, again=True) != node_id for each in served])
        except HapaxError:
            return False
