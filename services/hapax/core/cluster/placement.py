"""Which node gets what: partitions over brokers, shards over coordinators.

Pure and deterministic: ties go to the lowest node id, so that two controllers that see the same cluster decide the
same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hapax.core.types import NodeId, ShardId


@dataclass(frozen=True, slots=True)
class Site:
    """A broker as a place for replicas."""

    node_id: NodeId
    rack: str = ""
    """Brokers of one rack may fail together; empty: a rack of its own."""
    fit: bool = True
    """False: it is about to leave, or cannot write. It gets replicas only where no fit broker is available."""
    live: bool = True


Replicas = tuple[NodeId, ...]
"""In order of preference: the first one leads where it can."""


def place_replicas(
    count: int, replication_factor: int, sites: Iterable[Site], of_topic: Iterable[Replicas],
    of_cluster: Iterable[Replicas],
) -> list[Replicas]:
    """The replicas of `count` new partitions of one topic; fewer than asked for where there are fewer sites.

    `of_topic` and `of_cluster` name those of each partition that exists. A topic's leaders spread evenly first, because
    its load does, then the cluster's; so do its replicas, each partition's over as many racks as there are. Those that
    share a first replica have different second ones, so that a dead leader's load is spread too.
    """
    load = _Load(of_topic, of_cluster)
    known = sorted(sites, key=lambda site: site.node_id)
    wanted = min(replication_factor, len(known))
    placed = []
    for _ in range(count):
        chosen: list[Site] = []
        for _ in range(wanted):
            chosen.append(min(
                (site for site in known if site not in chosen), key=lambda site: load.cost(site, chosen)))
        replicas = tuple(site.node_id for site in chosen)
        load.add(replicas)
        placed.append(replicas)
    return placed


def add_replicas(
    target: Replicas, count: int, sites: Iterable[Site], of_topic: Iterable[Replicas], of_cluster: Iterable[Replicas],
    current: Replicas = (),
) -> Replicas:
    """`target` with further replicas of one partition, up to `count`, as few as there are sites.

    Sites of `current` that fit as well as any come first: what is there need not be copied.
    """
    load = _Load(of_topic, of_cluster)
    by_id = {site.node_id: site for site in sites}
    chosen = [by_id.get(node, Site(node)) for node in target]
    while len(chosen) < count:
        free = [site for node, site in sorted(by_id.items()) if site not in chosen]
        if not free:
            break
        chosen.append(min(free, key=lambda site: (
            not (site.live and site.fit), site.node_id not in current, load.cost(site, chosen))))
    return tuple(site.node_id for site in chosen)


class _Load:
    """How many replicas each broker has, of one topic and in all."""

    def __init__(self, of_topic: Iterable[Replicas], of_cluster: Iterable[Replicas]) -> None:
        self._in_topic: Counter[NodeId] = Counter()
        self._in_cluster: Counter[NodeId] = Counter()
        self._led_in_topic: Counter[NodeId] = Counter()
        self._led_in_cluster: Counter[NodeId] = Counter()
        self._pairs: Counter[tuple[NodeId, NodeId]] = Counter()
        for replicas in of_topic:
            self._count(replicas, self._led_in_topic, self._in_topic)
            if len(replicas) > 1:
                self._pairs[replicas[0], replicas[1]] += 1
        for replicas in of_cluster:
            self._count(replicas, self._led_in_cluster, self._in_cluster)

    @staticmethod
    def _count(replicas: Replicas, led: Counter[NodeId], held: Counter[NodeId]) -> None:
        led.update(replicas[:1])
        held.update(replicas)

    def add(self, replicas: Replicas) -> None:
        self._count(replicas, self._led_in_topic, self._in_topic)
        self._count(replicas, self._led_in_cluster, self._in_cluster)
        if len(replicas) > 1:
            self._pairs[replicas[0], replicas[1]] += 1

    def cost(self, site: Site, chosen: Sequence[Site]) -> tuple[object, ...]:
        """The least is the best; the node id comes last, so that there is always one."""
        node = site.node_id
        unfit = not site.live, not site.fit
        if not chosen:
            return (*unfit, self._led_in_topic[node], self._in_topic[node], self._led_in_cluster[node],
                    self._in_cluster[node], node)
        crowd = sum(bool(site.rack) and other.rack == site.rack for other in chosen)
        pair = self._pairs[chosen[0].node_id, node] if len(chosen) == 1 else 0
        return *unfit, crowd, self._in_topic[node], pair, self._in_cluster[node], node


class ShardPlan(NamedTuple):
    assign: dict[ShardId, NodeId]
    """New owners of shards whose owner is gone, or that never had one. These shards are unavailable: do all at once."""
    move: dict[ShardId, NodeId]
    """Moves that only balance. Each interrupts a shard that works: do a few at a time."""


def place_shards(owners: Mapping[ShardId, NodeId], coordinators: Sequence[NodeId]) -> ShardPlan:
    """`owners` holds every shard with its current owner, which may be dead, or -1 for none.

    Without a live coordinator the plan is empty: a shard keeps its last owner's id until there is another.
    """
    if not coordinators:
        return ShardPlan({}, {})
    load = {node: 0 for node in sorted(coordinators)}
    for owner in owners.values():
        if owner in load:
            load[owner] += 1
    assign: dict[ShardId, NodeId] = {}
    for shard in sorted(owners):
        if owners[shard] not in load:
            assign[shard] = _least(load)
            load[assign[shard]] += 1
    # The busiest nodes keep the odd shards, so that no more move than must.
    share, odd = divmod(len(owners), len(load))
    busiest = sorted(load, key=lambda node: (-load[node], node))
    quota = {node: share + (rank < odd) for rank, node in enumerate(busiest)}
    move: dict[ShardId, NodeId] = {}
    for shard in sorted(owners, reverse=True):
        owner = owners[shard]
        if shard not in assign and load[owner] > quota[owner]:
            move[shard] = min(load, key=lambda node: (load[node] - quota[node], node))
            load[owner] -= 1
            load[move[shard]] += 1
    return ShardPlan(assign, move)


def _least(load: Mapping[NodeId, int]) -> NodeId:
    return min(load, key=lambda node: (load[node], node))
