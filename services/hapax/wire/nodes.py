"""Connections of the cluster's nodes to each other, on the listener that they use among themselves."""

from __future__ import annotations

from typing import Any

from hapax.runtime.cluster import NodeView
from hapax.runtime.ports import Network
from hapax.wire.peer import Peer


async def connect_to(network: Network, node: NodeView, **options: Any) -> Peer:
    """As `Peer.connect`. Where nodes prove themselves, the other end must be this very node."""
    return await Peer.connect(
        network, node.host, node.port, tls=network.node_tls(node.role, node.node_id), **options)
