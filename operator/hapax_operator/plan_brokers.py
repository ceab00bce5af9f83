"""What to do about the number of brokers, given the BrokerPool, its StatefulSet and what the brokers hold. Pure.

- A StatefulSet that is told to have fewer replicas deletes the highest ordinals at once. So it is told last: first the
  leaving brokers are marked as draining, then what they hold moves, and the number falls when they hold nothing.
- A broker that holds something has its place, wanted or not: where it has none it gets it back, to hand it over there.
- Nothing begins that cannot end: where the remaining brokers are too few for what there is, everything stays.
- The volume of a broker that is wanted, or that still holds something, is kept (an admission policy sees to it, by the
  status). One at a time may be given up while the broker stays: that of a bad disk, as long as nothing on it is the
  last copy in sync.
- Nothing is remembered but the status: which brokers *this* drains (a drain that a person began is not taken back),
  and for how many brokers the topics were last spread. It is written before what it tells of is done, so an operator
  that is killed anywhere in between goes on from what it finds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from hapax.core.cluster.moves import ImpossiblePlan, Partitions, Targets, drain, spread
from hapax.core.cluster.placement import Site
from hapax.core.types import NodeId, TopicPartition
from hapax_operator.conditions import Condition
from hapax_operator.plan_topic import Note
from hapax_operator.resources import ON_SCALE_UP, PoolResource

_NAMED: Final = 5
_MOST: Final = 100
"""Brokers; the next node ids are the coordinators'."""


# --- as it is -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class StatefulSetSeen:
    uid: str
    replicas: int
    chart_replicas: int | None
    selector: str
    """Finds the pods."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokersSeen:
    partitions: Partitions = field(default_factory=dict)
    """Without those replicas that a running move removes; in sync: those of them that are alive."""
    held: Mapping[int, int] = field(default_factory=dict)
    """Broker -> replicas that it has, also those that a running move adds or removes."""
    removing: Mapping[TopicPartition, tuple[int, ...]] = field(default_factory=dict)
    """Partitions that move -> the brokers that they leave."""
    fit: Mapping[int, str] = field(default_factory=dict)
    """Live brokers that are fit by their own word -> their racks."""
    live: frozenset[int] = frozenset()
    draining: frozenset[int] = frozenset()


# --- what to do -----------------------------------------------------------------------------------------------------


class Follow(NamedTuple):
    """The chart's values have changed: the resource becomes what they say."""

    replicas: int


class SetReplicas(NamedTuple):
    replicas: int


class Drain(NamedTuple):
    brokers: tuple[int, ...]


class Undrain(NamedTuple):
    brokers: tuple[int, ...]
    cancel: tuple[TopicPartition, ...]
    """Moves that would empty them."""


class Move(NamedTuple):
    targets: Targets


PoolAction = Follow | SetReplicas | Drain | Undrain | Move


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """The status is written first, then the actions are done in order; then a new plan is made."""

    actions: tuple[PoolAction, ...] = ()
    conditions: tuple[Condition, ...] = ()
    status: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[Note, ...] = ()


class _Step(NamedTuple):
    ready: Condition
    actions: tuple[PoolAction, ...] = ()
    notes: tuple[Note, ...] = ()
    balanced_for: int | None = None


def plan(pool: PoolResource, workload: StatefulSetSeen, seen: BrokersSeen) -> PoolPlan:
    if workload.chart_replicas is not None and workload.chart_replicas != pool.chart_replicas:
        return PoolPlan((Follow(workload.chart_replicas),))
    wanted = pool.replicas
    known = {*range(workload.replicas), *seen.live, *(broker for broker, count in seen.held.items() if count)}
    leaving = tuple(sorted(broker for broker in known if broker >= wanted))
    drained = {int(broker) for broker in pool.status.get("leaving") or ()}
    balanced_for = int(pool.status.get("balancedFor") or workload.replicas)
    status: dict[str, Any] = {
        "replicas": workload.replicas, "selector": workload.selector, "moving": len(seen.removing),
        "serving": sum(broker in seen.fit for broker in range(wanted)),
        "leaving": sorted(drained), "balancedFor": balanced_for,
    }
    status["volumesKeptOf"], volumes = _volumes(pool, workload, seen)
    if pool.meta.paused:
        state = Condition("Ready", "Unknown", "Paused", "the annotation hapax.dev/pause is set, so nothing is changed")
        paused = Condition("Paused", "True", "Annotated", state.message)
        return PoolPlan((), (state, paused, *volumes), status)
    back = drained - set(leaving)
    if marked := tuple(sorted(back & seen.draining)):
        step = _taken_back(marked, seen, wanted, balanced_for)
    elif workload.replicas < (needed := max(wanted, *(b + 1 for b in known if b < _MOST and seen.held.get(b)), 0)):
        why = f"from {workload.replicas} to {needed} brokers"
        if needed > wanted:  # a smaller value was installed over the volumes of a larger cluster
            why += f": {wanted} are wanted, and the replicas of broker {needed - 1} must move first"
        step = _Step(
            Condition("Ready", "False", "Scaling", why), (SetReplicas(needed),), (Note("Normal", "ScalingUp", why),))
    elif leaving:
        step = _shrink(pool, workload, seen, leaving)
    else:
        step = _settle(pool, seen, balanced_for)
    if not marked:
        begun = any(isinstance(action, Drain) for action in step.actions)
        status["leaving"] = list(leaving) if begun else sorted(drained - back)
    if step.balanced_for is not None:
        status["balancedFor"] = step.balanced_for
    return PoolPlan(step.actions, (step.ready, *volumes), status, step.notes)


def _taken_back(marked: tuple[int, ...], seen: BrokersSeen, wanted: int, balanced_for: int) -> _Step:
    """Brokers that were drained for leaving: they stay after all, or are gone."""
    cancel = tuple(name for name, leaving in sorted(seen.removing.items()) if set(leaving) & set(marked))
    ready = Condition("Ready", "False", "Scaling", f"brokers {_list(marked)} are no longer drained")
    staying = [broker for broker in marked if broker < wanted]  # they have lost something
    return _Step(ready, (Undrain(marked, cancel),), balanced_for=min(staying, default=balanced_for))


def _shrink(
    pool: PoolResource, workload: StatefulSetSeen, seen: BrokersSeen, leaving: tuple[int, ...]
) -> _Step:
    staying = _sites(seen, {*leaving, *seen.draining})
    try:
        targets = drain(seen.partitions, set(map(NodeId, leaving)), staying)
    except ImpossiblePlan as error:
        why = f"brokers {_list(leaving)} cannot leave: {error}"
        return _Step(Condition("Ready", "False", "Refused", why), (), _once(pool, Note("Warning", "Refused", why)))
    actions: list[PoolAction] = []
    notes: tuple[Note, ...] = ()
    if unmarked := tuple(broker for broker in leaving if broker not in seen.draining):
        actions.append(Drain(unmarked))
        notes = (Note("Normal", "Draining", f"brokers {_list(leaving)} leave after their replicas have moved"),)
    if targets:
        actions.append(Move(targets))
    if not actions:
        empty = workload.replicas
        while empty > pool.replicas and not seen.held.get(empty - 1):
            empty -= 1
        if empty < workload.replicas:
            why = f"brokers {_list(range(empty, workload.replicas))} hold no replicas and are removed"
            actions.append(SetReplicas(empty))
            notes = (Note("Normal", "ScalingDown", why),)
    return _Step(_draining(leaving, seen), tuple(actions), notes)


def _draining(leaving: tuple[int, ...], seen: BrokersSeen) -> Condition:
    left = sum(seen.held.get(broker, 0) for broker in leaving)
    alone = sorted(name for name in seen.removing if name in seen.partitions and not seen.partitions[name].isr)
    why = f"brokers {_list(leaving)} will be removed and still hold {left} replicas"
    if not left:
        why = f"brokers {_list(leaving)} hold no replicas and are removed"
    elif alone:
        names = ", ".join(f"{name.topic}-{name.partition}" for name in alone[:_NAMED])
        why += f"; {len(alone)} partitions have no other replica in sync yet: {names}"
    return Condition("Ready", "False", "Draining", why)


def _settle(pool: PoolResource, seen: BrokersSeen, balanced_for: int) -> _Step:
    """As many as wanted; do they serve, and has each its share?"""
    wanted = pool.replicas
    missing = [broker for broker in range(wanted) if broker not in seen.live]
    unfit = [broker for broker in range(wanted) if broker in seen.live and broker not in seen.fit]
    if missing or unfit:
        why = f"brokers {_list(missing)} are not alive" if missing else f"brokers {_list(unfit)} are not fit to lead"
        return _Step(Condition("Ready", "False", "BrokersMissing", why))
    if balanced_for == wanted:
        why = f"{len(seen.removing)} partitions are being moved" if seen.removing else f"{wanted} brokers serve"
        return _Step(Condition("Ready", "True", "Moving" if seen.removing else "AsDescribed", why))
    if balanced_for > wanted or pool.rebalance != ON_SCALE_UP:
        return _Step(Condition("Ready", "True", "AsDescribed", f"{wanted} brokers serve"), balanced_for=wanted)
    if seen.removing:
        return _Step(Condition("Ready", "False", "Rebalancing", f"{len(seen.removing)} partitions are being moved"))
    try:
        topics = {name.topic for name in seen.partitions}
        targets = spread(seen.partitions, topics, _sites(seen, seen.draining))
    except ImpossiblePlan:  # more replicas than brokers are fit: these came from elsewhere, and stay where they are
        targets = {}
    if not targets:
        return _Step(Condition("Ready", "True", "AsDescribed", f"{wanted} brokers serve"), balanced_for=wanted)
    why = f"{len(targets)} partitions are moved, so that each broker has an equal share"
    return _Step(
        Condition("Ready", "False", "Rebalancing", why), (Move(targets),), (Note("Normal", "Rebalancing", why),))


def _volumes(
    pool: PoolResource, workload: StatefulSetSeen, seen: BrokersSeen
) -> tuple[list[int], tuple[Condition, ...]]:
    """Whose volumes must not be deleted, and what becomes of the one that somebody wants replaced."""
    kept = {*range(max(workload.replicas, pool.replicas)), *(broker for broker, count in seen.held.items() if count)}
    asked = pool.replace_volume_of
    if asked is None:
        return sorted(kept), ()
    only = [
        f"{name.topic}-{name.partition}" for name, held in sorted(seen.partitions.items())
        if asked in (*held.replicas, *seen.removing.get(name, ())) and not set(held.isr) - {asked}]
    if only:
        why = f"{len(only)} partitions of broker {asked} have no other replica in sync: {', '.join(only[:_NAMED])}"
        return sorted(kept), (Condition("VolumeReplaceable", "False", "LastCopy", why),)
    why = f"every replica on the volume of broker {asked} has another one in sync; the claim and the pod may be deleted"
    return sorted(kept - {asked}), (Condition("VolumeReplaceable", "True", "Replicated", why),)


def _sites(seen: BrokersSeen, without: Collection[int]) -> list[Site]:
    return [Site(NodeId(broker), rack) for broker, rack in sorted(seen.fit.items()) if broker not in without]


def _list(brokers: Iterable[int]) -> str:
    return ", ".join(map(str, brokers))


def _once(pool: PoolResource, note: Note) -> tuple[Note, ...]:
    """Unless the condition says so already."""
    known = any(each.get("message") == note.message for each in pool.status.get("conditions") or ())
    return () if known else (note,)
