"""A planned stop: a node says that it is about to end, and others take over what they can while it still serves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from hapax.codec.metadata import STANDING_STOPPING
from hapax.core.cluster.failover import STOPPING, settle
from hapax.core.types import NodeId
from hapax.runtime import telemetry
from hapax.runtime.cluster import ClusterView
from hapax.runtime.ports import MetadataLeaseGone, MetadataUnavailable
from hapax.runtime.registration import Registration

log = telemetry.logger("handover")


async def hand_over(
    registration: Registration, view: ClusterView, finished: Callable[[ClusterView, NodeId], bool], timeout_s: float
) -> None:
    """Returns once `finished(view, node id)`, or no controller acts, or the time has passed."""
    node = registration.record.node_id

    def nothing_to_wait_for(view: ClusterView) -> bool:
        return view.controller is None or finished(view, node)

    if nothing_to_wait_for(view):
        return
    loop = asyncio.get_running_loop()
    began = loop.time()
    try:
        async with asyncio.timeout(timeout_s):
            await registration.stand(STANDING_STOPPING)
            await view.wait_for(nothing_to_wait_for)
    except (TimeoutError, MetadataUnavailable, MetadataLeaseGone) as error:
        log.warning("not everything was taken over in time", error=error or f"{timeout_s} s have passed")
    else:
        log.info("handed over", ms=round(1000 * (loop.time() - began)))


def partitions_finished(view: ClusterView) -> Callable[[ClusterView, NodeId], bool]:
    """Whether others lead, and accept, whatever this broker leads now and others can, and nobody waits for it."""
    led = {partition.id: partition.record.leader for partition in view.partitions()}

    def finished(view: ClusterView, node: NodeId) -> bool:
        brokers = dict(view.live_brokers())
        if node not in brokers:
            return True
        brokers[node] = brokers[node]._replace(rank=STOPPING)
        for partition in view.partitions():
            record = partition.record
            if node not in record.replicas:
                continue
            if node in record.isr and settle(record, brokers) is not record:
                return False
            if record.leader not in (node, -1) and led.get(partition.id) == node and not record.accepted:
                return False
        return True

    return finished


def shards_finished(view: ClusterView, node: NodeId) -> bool:
    """Whether a coordinator owns nothing that another one would take."""
    others = any(other.node_id != node and view.rank(other) > STOPPING for other in view.nodes("coordinator"))
    return not others or not any(
        shard.record.owner == node for kind in ("txn", "group") for shard in view.shards(kind).values())
