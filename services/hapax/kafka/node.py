"""Composes the table of a node, and the limits of its listener."""

from __future__ import annotations

from hapax.core.types import NodeId
from hapax.kafka.context import NodeContext
from hapax.kafka.quotas import Quotas
from hapax.kafka.registry import all_apis, register_common
from hapax.kafka.server import ServerLimits
from hapax.kafka.table import ApiTable
from hapax.runtime.access import access_of
from hapax.runtime.administration import Administration
from hapax.runtime.audit_events import SILENT, Audit
from hapax.runtime.cluster import ClusterView
from hapax.runtime.ports import FrameLimits, Network
from hapax.runtime.settings import Settings


def node_table(
    node_id: NodeId, view: ClusterView, network: Network, settings: Settings, *, broker: bool,
    audit: Audit = SILENT,
) -> ApiTable:
    """A table with handlers for the calls that every node answers, such as Metadata and CreateTopics.

    `broker`: the node's settings are the defaults of topics' configurations. `audit`: where refusals are recorded. The
    service then registers the calls of its role, and `registry.register_other_roles` those of other roles.
    """
    table = ApiTable(all_apis(), access_of(settings, view, audit), Quotas(settings, view))
    table.audit = audit
    register_common(table, NodeContext(node_id, view, network, settings, Administration(view, network), broker))
    return table


def server_limits(settings: Settings) -> ServerLimits:
    """The limits of a node's listener, from its settings."""
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
