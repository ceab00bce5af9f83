"""A planned stop: the node announces it, and other nodes take over its work while it still serves."""

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
    """Returns when `finished(view, node id)` is true, no controller acts, or `timeout_s` seconds have passed."""
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
        log.warning("the handover did not finish in time", error=error or f"{timeout_s} s have passed")
    else:
        log.info("handed over", ms=round(1000 * (loop.time() - began)))


def partitions_finished(view: ClusterView) -> Callable[[ClusterView, NodeId], bool]:
    """True when other brokers lead and accept each partition that this broker leads now and that they can lead, and no
    in-sync set still waits for it."""
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
    """True when the coordinator owns no shard, or no other coordinator can take one."""
    others = any(other.node_id != node and view.rank(other) > STOPPING for other in view.nodes("coordinator"))
    return not others or not any(
        shard.record.owner == node for kind in ("txn", "group") for shard in view.shards(kind).values())
