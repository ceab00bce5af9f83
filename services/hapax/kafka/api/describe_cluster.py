"""DescribeCluster (60): the nodes and, in tagged fields of Hapax's own, the addresses of their gRPC servers.

Each broker entry carries tag 10000, `host:port` (UTF-8) of the node's public gRPC listener. A node that should lead no
partition and receive no replica carries tag 10001, a word that says why. The response carries tag 10001, the public
address of a PID allocator (for leases); tag 10002, that of the acting controller; and tag 10003, the nodes without a
Kafka listener, as JSON. A peer without these tags is not Hapax (rule 11).
"""

from __future__ import annotations

import json
from typing import Any, Final

from hapax.core.access.resources import ResourceType
from hapax.core.access.rights import operations_asked
from hapax.core.errors import ErrorCode
from hapax.kafka.api.metadata import administrator, client_nodes
from hapax.kafka.context import NodeContext
from hapax.kafka.needs import Asking, Need, Outcome, Passing
from hapax.kafka.table import SMALL_FRAME_BYTES, ApiRow, ApiTable, RequestContext, Role
from hapax.runtime.cluster import ClusterView, NodeView
from hapax.wire.messages import DescribeClusterResponse, set_unknown_tag

ROW: Final = ApiRow(
    key=60, name="DescribeCluster", versions=(0, 2), flexible_from=0, max_frame_bytes=SMALL_FRAME_BYTES,
    answered_by=Role.EVERY_NODE,
    need=Need("nothing", lambda asking, request: _check(asking, request)))

_Broker = DescribeClusterResponse.DescribeClusterBroker

NODE_RPC_TAG: Final = 10000
NODE_STANDING_TAG: Final = 10001
ALLOCATOR_RPC_TAG: Final = 10001
CONTROLLER_RPC_TAG: Final = 10002
OTHER_NODES_TAG: Final = 10003
_BROKERS: Final = 1
"""Endpoint type 1 selects brokers. Type 2 selects KRaft controllers, which Hapax does not have."""


def register(table: ApiTable, node: NodeContext) -> None:
    node_id, view = node.node_id, node.view

    def handle(ctx: RequestContext, request: Any) -> Any:
        if ctx.api_version >= 1 and request.endpoint_type != _BROKERS:
            return DescribeClusterResponse(
                throttle_time_ms=0, error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE,
                error_message="this listener answers as a broker", endpoint_type=_BROKERS, cluster_id="",
                controller_id=-1, brokers=[], authorized_operations=None,
            )
        cluster = view.cluster
        response = DescribeClusterResponse(
            throttle_time_ms=0, error_code=0, error_message=None, endpoint_type=_BROKERS,
            cluster_id="" if cluster is None else cluster.cluster_id,
            controller_id=administrator(view, node_id),
            brokers=[
                _broker(view, each, address) for each in client_nodes(view)
                if (address := view.address(each, ctx.listener)) is not None],
            authorized_operations=operations_asked(
                None, request.include_cluster_authorized_operations, ResourceType.CLUSTER),
        )
        allocators = [each for each in view.nodes("pid") if each.public_rpc_address]
        if allocators:
            chosen = allocators[node_id % len(allocators)]
            set_unknown_tag(response, ALLOCATOR_RPC_TAG, chosen.public_rpc_address.encode())
        acting = None if view.controller is None else view.node(view.controller.record.node_id)
        if acting is not None and acting.public_rpc_address:
            set_unknown_tag(response, CONTROLLER_RPC_TAG, acting.public_rpc_address.encode())
        set_unknown_tag(response, OTHER_NODES_TAG, _others(view))
        return response

    table.on(ROW, handle)


def _check(asking: Asking, request: Any) -> Outcome:
    if not request.include_cluster_authorized_operations:
        return None

    def finish(answer: Any) -> Any:
        if not answer.error_code:
            answer.authorized_operations = asking.rights.operations(ResourceType.CLUSTER)
        return answer

    return Passing(finish)


def _broker(view: ClusterView, node: NodeView, address: tuple[str, int]) -> Any:
    host, port = address
    entry = _Broker(broker_id=node.node_id, host=host, port=port, rack=node.record.rack or None, is_fenced=False)
    if node.public_rpc_address:
        set_unknown_tag(entry, NODE_RPC_TAG, node.public_rpc_address.encode())
    standing = node.record.standing or ("draining" if view.is_draining(node.node_id) else "")
    if standing:
        set_unknown_tag(entry, NODE_STANDING_TAG, standing.encode())
    return entry


def _others(view: ClusterView) -> bytes:
    acting = None if view.controller is None else view.controller.record.node_id
    return json.dumps([
        {"node_id": node.node_id, "role": node.role, "rpc_address": node.public_rpc_address, "rack": node.record.rack,
         "standing": node.record.standing, "acts": node.node_id == acting}
        for node in (*view.nodes("pid"), *view.nodes("controller"))]).encode()
