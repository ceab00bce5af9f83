"""What a handler that runs on every node needs: the argument of its module's `register(table, node)`."""

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
    """The node is a broker, so its settings are the defaults of topics' configurations."""
