"""The part of the table that every node answers in the same way."""

from __future__ import annotations

from hapax.core.types import NodeId
from hapax.kafka import (
    api_versions,
    create_partitions,
    create_topics,
    delete_topics,
    describe_cluster,
    find_coordinator,
    metadata,
)
from hapax.kafka.administration import Administration
from hapax.kafka.apis import all_apis
from hapax.kafka.table import ApiTable
from hapax.runtime.cluster import ClusterView
from hapax.runtime.ports import Network


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
    find_coordinator.register(table, view, administration)
    describe_cluster.register(table, node_id, view)
    create_topics.register(table, view, administration)
    delete_topics.register(table, view, administration, delete_enabled)
    create_partitions.register(table, view, administration)
    return table
