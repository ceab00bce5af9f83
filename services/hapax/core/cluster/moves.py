"""Which replicas to move where: computes the plans that a person sees before anything happens.

Pure and deterministic functions of Metadata: the same cluster gives the same plan. A plan names only the partitions
that change, with their new replicas in order of preference.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from hapax.core.cluster.placement import Replicas, Site, add_replicas
from hapax.core.types import NodeId, TopicPartition


class Held(NamedTuple):
    """A partition as it is now."""

    replicas: Replicas
    """In order of preference, without the replicas that a running reassignment removes."""
    isr: Replicas


Partitions = Mapping[TopicPartition, Held]
Targets = dict[TopicPartition, Replicas]


class ImpossiblePlan(Exception):
    """The request is impossible. The message is one sentence."""


def drain(partitions: Partitions, drained: Collection[NodeId], sites: Iterable[Site]) -> Targets:
    """Moves all replicas away from some brokers. A replica's successor takes its place in the order, so that leaders
    stay spread.

    Raises ImpossiblePlan where there are too few other brokers to keep the number of replicas.
    """
    others = [site for site in sites if site.node_id not in drained]
    after = {name: held.replicas for name, held in partitions.items()}
    targets: Targets = {}
    for name, held in sorted(partitions.items()):
        leaving = [node for node in held.replicas if node in drained]
        if not leaving:
            continue
        kept = tuple(node for node in held.replicas if node not in drained)
        grown = add_replicas(kept, len(held.replicas), others, _of_topic(after, name.topic), after.values())
        if len(grown) < len(held.replicas):
            raise ImpossiblePlan(
                f"{name.topic}-{name.partition} has {len(held.replicas)} replicas and only {len(grown)} brokers would "
                "be left for them: lower its replication factor first, or add a broker")
        successors = dict(zip(leaving, grown[len(kept) :], strict=True))
        after[name] = targets[name] = tuple(successors.get(node, node) for node in held.replicas)
    return targets


def change_factor(partitions: Partitions, topic: str, factor: int, sites: Iterable[Site]) -> Targets:
    """Changes the number of replicas of each partition of a topic. Replicas that are not in sync are dropped first.

    Raises ImpossiblePlan where there are too few brokers.
    """
    known = list(sites)
    if factor > len(known):
        raise ImpossiblePlan(f"{factor} replicas need as many brokers, and {len(known)} are alive and fit")
    after = {name: held.replicas for name, held in partitions.items()}
    targets: Targets = {}
    for name, held in sorted(partitions.items()):
        if name.topic != topic:
            continue
        if len(held.replicas) > factor:
            order = sorted(held.replicas, key=lambda node: node not in held.isr)  # stable: keeps preferred ones
            target = tuple(node for node in held.replicas if node in order[:factor])
        else:
            target = add_replicas(held.replicas, factor, known, _of_topic(after, topic), after.values())
        after[name] = target
        if target != held.replicas:
            targets[name] = target
    return targets


def spread(partitions: Partitions, topics: Collection[str], sites: Iterable[Site]) -> Targets:
    """Spreads the topics' replicas and leaders evenly over these brokers, with as few copies as that needs.

    Raises ImpossiblePlan where a partition has more replicas than there are brokers.
    """
    known = list(sites)
    allowed = {site.node_id for site in known}
    after: Targets = {}
    for topic in sorted(topics):
        chosen: Targets = {}
        for name, held in sorted(partitions.items()):
            if name.topic != topic:
                continue
            if len(held.replicas) > len(known):
                raise ImpossiblePlan(f"{topic}-{name.partition} has {len(held.replicas)} replicas: more than brokers")
            kept = tuple(node for node in held.replicas if node in allowed)
            chosen[name] = add_replicas(kept, len(held.replicas), known, chosen.values(), after.values())
        _level(chosen, known)
        _level_leaders(chosen, allowed)
        after |= chosen
    return {name: target for name, target in after.items() if target != partitions[name].replicas}


def _of_topic(after: Mapping[TopicPartition, Replicas], topic: str) -> list[Replicas]:
    return [replicas for name, replicas in after.items() if name.topic == topic]


def _level(chosen: Targets, sites: list[Site]) -> None:
    """Moves single replicas from the fullest broker to the emptiest, where racks allow it."""
    racks = {site.node_id: site.rack for site in sites}
    while True:
        load = Counter(dict.fromkeys(sorted(racks), 0))
        load.update(node for replicas in chosen.values() for node in replicas)
        pairs = sorted(
            ((full, empty) for full in load for empty in load if load[full] - load[empty] > 1),
            key=lambda pair: (load[pair[1]] - load[pair[0]], pair))
        if not any(_shift(chosen, racks, full, empty) for full, empty in pairs):
            return


def _shift(chosen: Targets, racks: Mapping[NodeId, str], full: NodeId, empty: NodeId) -> bool:
    for name, replicas in chosen.items():
        others = [racks[node] for node in replicas if node != full and racks[node]]
        if full in replicas and empty not in replicas and (racks[empty] not in others or racks[full] in others):
            chosen[name] = tuple(empty if node == full else node for node in replicas)
            return True
    return False


def _level_leaders(chosen: Targets, allowed: Collection[NodeId]) -> None:
    """Changes only the order of replicas, so nothing is copied."""
    while True:
        led = Counter(dict.fromkeys(sorted(allowed), 0))
        led.update(replicas[0] for replicas in chosen.values())
        moves = sorted(
            (led[node] - led[replicas[0]], name, node)
            for name, replicas in chosen.items() for node in replicas if led[replicas[0]] - led[node] > 1)
        if not moves:
            return
        _, name, node = moves[0]
        chosen[name] = (node, *(other for other in chosen[name] if other != node))
