"""What the calls that every node answers are made of: each of their modules has `register(table, node)`."""

from __future__ import annotations

from typing import NamedTuple

from hapax.core.types import NodeId
from hapax.runtime.administration import Administration
from hapax.runtime.cluster import ClusterView
from hapax.runtime.ports import Network
from hapax.runtime.settings import Settings


class NodeContext(NamedTuple):
    node_id: NodeId
    view: ClusterView
    network: Network
    settings: Settings
    administration: Administration
    broker: bool
    """Topics have this node's settings where they have none of their own."""
