"""Whether a request is from a node of the cluster (rule 17): it shows the proof of a live registration and, where nodes
prove themselves by certificates, comes on the connection of that very node, or of one of its role where certificates of
the role leave out the id."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hapax.core.types import ShardEpoch
from hapax.runtime.cluster import ClusterView, NodeView
from hapax.wire.internal_writes import read_proof

if TYPE_CHECKING:
    from hapax.kafka.table import RequestContext


class Proven(NamedTuple):
    shard_epoch: ShardEpoch
    node: NodeView


def proven(view: ClusterView, ctx: RequestContext, content: bytes, secured: bool) -> Proven | None:
    """`content`: the request's tagged field. `secured`: the proof, which can be copied, is not enough. None: the
    request counts as a client's."""
    shown = read_proof(content)
    node = None if shown is None else view.registered(shown[1], shown[2])
    if shown is None or node is None:
        return None
    if secured:
        name = ctx.session.service
        if name is None or name.role != node.role or name.node_id not in (-1, node.node_id):
            return None
    return Proven(shown[0], node)
