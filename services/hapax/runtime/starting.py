"""Starts a service that is a node of the cluster: its data folder, its image of the metadata, then the service."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from hapax.runtime.cluster import ClusterView
from hapax.runtime.node_ids import claim_folder, fixed_id
from hapax.runtime.ports import Ports
from hapax.runtime.rollback_guard import RollbackGuard
from hapax.runtime.settings import Settings


class NodeService(Protocol):
    async def serve(self, identity: str, http_address: str) -> None:
        """Listens and registers. `identity` is the data folder's; empty where the process has no disk."""
        ...

    async def close(self) -> None:
        """Ends what was started, the image among it."""
        ...


_Service = TypeVar("_Service", bound=NodeService)


async def start_node(
    ports: Ports, settings: Settings, http_address: str, on_lost: Callable[[str], None],
    compose: Callable[[ClusterView], _Service],
) -> _Service:
    """Returns once the service listens and is registered. `on_lost` is called with one sentence when the service must
    end. Raises FolderRefused, StoreRefused, NodeIdTaken, OSError."""
    identity = ""
    if ports.disk is not None:
        folder = await claim_folder(ports.disk, settings.cluster_id, fixed_id(settings), ports.random)
        identity = folder.directory_id
    view = ClusterView(
        ports.metadata, settings.cluster_id, ports.random, RollbackGuard(settings.cluster_id, ports.disk),
        on_refused=lambda refusal: on_lost(str(refusal)),
    )
    service = compose(view)
    try:
        await view.start()
        await service.serve(identity, http_address)
    except BaseException:
        await service.close()
        raise
    return service
