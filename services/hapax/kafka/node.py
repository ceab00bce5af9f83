"""The part of the table that every node answers in the same way."""

from __future__ import annotations

from hapax.core.types import NodeId
from hapax.kafka.context import NodeContext
from hapax.kafka.registry import all_apis, register_common
from hapax.kafka.server import ServerLimits
from hapax.kafka.table import ApiTable
from hapax.runtime.administration import Administration
from hapax.runtime.cluster import ClusterView
from hapax.runtime.ports import FrameLimits, Network
from hapax.runtime.settings import Settings


def node_table(
    node_id: NodeId, view: ClusterView, network: Network, settings: Settings, *, broker: bool
) -> ApiTable:
    """A table that answers ApiVersions, Metadata, FindCoordinator, DescribeCluster and the topics' administration.
    `broker`: whether topics have this node's settings where they have none of their own.

    The service then registers its own calls, and `registry.register_other_roles` the rest.
    """
    table = ApiTable(all_apis())
    register_common(table, NodeContext(node_id, view, network, settings, Administration(view, network), broker))
    return table


def server_limits(settings: Settings) -> ServerLimits:
    """What a node's listener lets clients do, from the settings."""
    frames = FrameLimits(
        max_frame_bytes=settings.socket_request_max_bytes,
        max_connections=settings.max_connections,
        idle_ms=settings.connections_max_idle_ms if settings.connections_max_idle_ms > 0 else 2**62,
        frame_timeout_ms=settings.connections_frame_timeout_ms,
        max_receiving_bytes=settings.queued_max_request_bytes,
    )
    return ServerLimits(
        frames, max_requests_in_flight=settings.queued_max_requests,
        max_node_bytes=settings.queued_max_request_bytes,
    )
