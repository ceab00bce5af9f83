"""The part of the table that every node answers in the same way."""

from __future__ import annotations

from hapax.core.types import NodeId
from hapax.kafka import (
    alter_partition_reassignments,
    api_versions,
    create_partitions,
    create_topics,
    delete_topics,
    describe_cluster,
    elect_leaders,
    find_coordinator,
    incremental_alter_configs,
    list_partition_reassignments,
    metadata,
)
from hapax.kafka.administration import Administration
from hapax.kafka.apis import all_apis
from hapax.kafka.server import ServerLimits
from hapax.kafka.table import ApiTable
from hapax.runtime.cluster import ClusterView
from hapax.runtime.ports import FrameLimits, Network
from hapax.runtime.settings import Settings


def node_table(
    node_id: NodeId, view: ClusterView, network: Network, *, auto_create: bool = True, delete_enabled: bool = True
) -> ApiTable:
    """A table that answers ApiVersions, Metadata, FindCoordinator, DescribeCluster and the topics' administration.

    The service then registers its own calls, and `roles.register_other_roles` the rest.
    """
    administration = Administration(view, network)
    table = ApiTable(all_apis())
    api_versions.register(table)
    metadata.register(table, node_id, view, administration, auto_create)
    find_coordinator.register(table, view)
    describe_cluster.register(table, node_id, view)
    create_topics.register(table, view, administration)
    delete_topics.register(table, view, administration, delete_enabled)
    create_partitions.register(table, view, administration)
    alter_partition_reassignments.register(table, administration)
    list_partition_reassignments.register(table, view)
    elect_leaders.register(table, administration)
    incremental_alter_configs.register(table, administration)
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
