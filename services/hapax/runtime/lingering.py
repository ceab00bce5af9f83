"""How a process ends, and how a node stays a little after others have taken over its work.

A client that has a node's address may connect for some time after other nodes lead in its place. If the process is gone
by then, the connection is refused at best. On Kubernetes it is not even refused: for about a second after a pod's end,
connections still go to its former address, where nothing answers, and librdkafka waits 30 s for each by default. So a
node that has handed over *lingers*: its registration is gone and nothing can be assigned to it, but its listeners
answer every call by saying who has taken over, as long as its clients need to call once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Final, Protocol, TypeVar, runtime_checkable

from hapax.codec.metadata import ShardKind
from hapax.core.types import NO_NODE, NodeId, ShardId, TopicIdPartition
from hapax.runtime import telemetry
from hapax.runtime.cluster import ClusterView
from hapax.runtime.registration import Registration

log = telemetry.logger("lingering")

_HEARD_S: Final = 1.0

K = TypeVar("K")


@runtime_checkable
class HandsOver(Protocol):
    """A service whose work other nodes take over when it drains."""

    def handed_over(self) -> bool:
        """After its drain: whether it has ended everything in order, and another node does some of what it did. Only
        then its listeners have something to tell."""
        ...


class Ending:
    """Called with the reason why the process must end, empty if it was asked to. The first call ends it. Any further
    one ends a process that lingers at once."""

    def __init__(self) -> None:
        self.reason: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Of the first call."""
        self.fault = ""
        """The first reason that is not empty: a disk may fail while the process ends because it was asked to."""
        self._now = asyncio.Event()

    def __call__(self, reason: str) -> None:
        self.fault = self.fault or reason
        if self.reason.done():
            self._now.set()
        else:
            self.reason.set_result(reason)

    async def linger(self, service: object, seconds: float) -> None:
        """Returns when the drained service may close its listeners."""
        if self._now.is_set() or seconds <= 0 or not isinstance(service, HandsOver) or not service.handed_over():
            return
        log.info("handed over; tells clients where to go", seconds=seconds)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._now.wait()


async def left(registration: Registration | None, view: ClusterView) -> bool:
    """After the registration was closed: whether it is gone, so that nothing can be assigned to this node, and the
    node's own view, by which it answers, says so too."""
    if registration is None or registration.lease:
        return False
    node_id, epoch = registration.record.node_id, registration.epoch

    def gone(view: ClusterView) -> bool:
        node = view.node(node_id)
        return node is None or node.registration != epoch

    try:
        return await view.wait_for(gone, _HEARD_S)
    except TimeoutError:
        return False


def leaders(view: ClusterView) -> dict[TopicIdPartition, NodeId]:
    return {partition.id: partition.record.leader for partition in view.partitions()}


def owners(view: ClusterView) -> dict[tuple[ShardKind, ShardId], NodeId]:
    kinds: tuple[ShardKind, ...] = ("txn", "group")
    return {(kind, number): shard.record.owner for kind in kinds for number, shard in view.shards(kind).items()}


def taken_over(node: NodeId, before: Mapping[K, NodeId], now: Mapping[K, NodeId]) -> bool:
    """Whether another node does anything that the node did before."""
    return any(owner == node and now.get(key, NO_NODE) not in (node, NO_NODE) for key, owner in before.items())
