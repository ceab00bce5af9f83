"""Plans changes of the number of brokers, from the BrokerPool, its StatefulSet and the brokers' replicas. Pure.

- A StatefulSet with a smaller `replicas` deletes the pods with the highest ordinals at once. So `replicas` is lowered
  last: the leaving brokers are first marked as draining, then their replicas move, and then they are removed.
- A broker that holds replicas keeps its pod, wanted or not. If it has lost its pod, it gets it back to hand over the
  replicas.
- Nothing starts that cannot be completed: if the remaining brokers are too few for the replicas, no broker leaves.
- The volume of a broker that is wanted or still holds replicas is protected (by an admission policy, which reads the
  status). One volume at a time may be replaced while its broker stays, such as that of a bad disk, if none of its
  replicas is the last one in sync.
- The only memory of the resource is its status: the brokers that *this* drains (a drain that a user started is never
  cancelled), and the number of brokers over which the topics were last spread. The status is written before the action
  that it describes, so an operator that is killed in between continues from the status.
- A mark of draining says that a BrokerPool made it. So a BrokerPool that replaces a deleted one ends its drains too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from hapax.core.cluster.moves import ImpossiblePlan, Partitions, Targets, drain, spread
from hapax.core.cluster.placement import Site
from hapax.core.types import NodeId, TopicPartition
from hapax_operator.conditions import Condition, Note
from hapax_operator.plan_outside import ServiceSeen, addresses_condition
from hapax_operator.plan_racks import racks_condition
from hapax_operator.resources import ON_SCALE_UP, PoolResource

DRAINED_BY: Final = "BrokerPool"
"""In the marks of draining that a BrokerPool makes."""
_NAMED: Final = 5
_MOST: Final = 100
"""Maximum number of brokers: the following node ids are the coordinators'."""


# --- as it is -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class StatefulSetSeen:
    uid: str
    replicas: int
    chart_replicas: int | None
    selector: str
    """Label selector of the pods."""
    scaled: bool = True
    """Whether `replicas` was ever set. Otherwise it is the default of the API server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokersSeen:
    partitions: Partitions = field(default_factory=dict)
    """Without the replicas that a running move removes. In sync: only live ones."""
    held: Mapping[int, int] = field(default_factory=dict)
    """Broker -> number of its replicas, including those that a running move adds or removes."""
    removing: Mapping[TopicPartition, tuple[int, ...]] = field(default_factory=dict)
    """Moving partition -> the brokers from which it is removed."""
    fit: Mapping[int, str] = field(default_factory=dict)
    """Live broker that reports itself as fit -> its rack."""
    live: frozenset[int] = frozenset()
    racks: Mapping[int, str] = field(default_factory=dict)
    """Live broker -> the rack that it has told."""
    rackless: Mapping[int, str] | None = None
    """As `plan_racks.RacksPlan.unknown`; None: racks are not asked for."""
    outside: Sequence[ServiceSeen] | None = None
    """The Services that lead clients outside to nodes. None: they are not looked for."""
    untold: frozenset[int] = frozenset()
    """Live nodes of any role that wait for an address that clients outside are told."""
    draining: frozenset[int] = frozenset()
    drained_by_pool: frozenset[int] = frozenset()
    """Those of them that a BrokerPool drains, this one or one that is gone."""


# --- what to do -----------------------------------------------------------------------------------------------------


class Follow(NamedTuple):
    """The chart's values have changed: sets the resource to them."""

    replicas: int


class SetReplicas(NamedTuple):
    replicas: int


class Drain(NamedTuple):
    brokers: tuple[int, ...]


class Undrain(NamedTuple):
    brokers: tuple[int, ...]
    cancel: tuple[TopicPartition, ...]
    """Moves of replicas off these brokers."""


class Move(NamedTuple):
    targets: Targets


PoolAction = Follow | SetReplicas | Drain | Undrain | Move


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """The status is written first, then the actions are carried out in order, then a new plan is made."""

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
    drained = {int(broker) for broker in pool.status.get("leaving") or ()} | seen.drained_by_pool
    balanced_for = int(pool.status.get("balancedFor") or workload.replicas)
    status: dict[str, Any] = {
        "replicas": workload.replicas, "selector": workload.selector, "moving": len(seen.removing),
        "serving": sum(broker in seen.fit for broker in range(wanted)),
        "leaving": sorted(drained), "balancedFor": balanced_for,
    }
    status["volumesKeptOf"], more = _volumes(pool, workload, seen)
    more += _drained_by_others(seen.draining - drained - {*leaving})
    if seen.rackless is not None:
        more += (racks_condition(seen.rackless, seen.racks),)
    if seen.outside is not None:
        more += (addresses_condition(seen.outside, seen.untold),)
    if pool.meta.paused:
        state = Condition("Ready", "Unknown", "Paused", "the annotation hapax.dev/pause is set, so nothing is changed")
        paused = Condition("Paused", "True", "Annotated", state.message)
        return PoolPlan((), (state, paused, *more), status)
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
        ours = [each for each in leaving if each in drained or each not in seen.draining]
        status["leaving"] = ours if begun else sorted(drained - back)
    if step.balanced_for is not None:
        status["balancedFor"] = step.balanced_for
    return PoolPlan(step.actions, (step.ready, *more), status, step.notes)


def _taken_back(marked: tuple[int, ...], seen: BrokersSeen, wanted: int, balanced_for: int) -> _Step:
    """Ends the draining of brokers that are no longer to be removed, or are gone."""
    cancel = tuple(name for name, leaving in sorted(seen.removing.items()) if set(leaving) & set(marked))
    ready = Condition("Ready", "False", "Scaling", f"brokers {_list(marked)} are no longer drained")
    staying = [broker for broker in marked if broker < wanted]  # some of their replicas have moved away
    return _Step(
        ready, (Undrain(marked, cancel),), (Note("Normal", "Released", ready.message),),
        balanced_for=min(staying, default=balanced_for))


def _drained_by_others(brokers: Collection[int]) -> tuple[Condition, ...]:
    if not brokers:
        return ()
    why = f"brokers {_list(sorted(brokers))} are drained by a person; `hapax drain --cancel` ends that"
    return (Condition("DrainedByOthers", "True", "Marked", why),)


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
    """The number of brokers is the wanted one: checks that they serve, and spreads the topics."""
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
    except ImpossiblePlan:  # some partition has more replicas than there are fit brokers: leave it where it is
        targets = {}
    if not targets:
        return _Step(Condition("Ready", "True", "AsDescribed", f"{wanted} brokers serve"), balanced_for=wanted)
    why = f"{len(targets)} partitions are moved, so that each broker has an equal share"
    return _Step(
        Condition("Ready", "False", "Rebalancing", why), (Move(targets),), (Note("Normal", "Rebalancing", why),))


def _volumes(
    pool: PoolResource, workload: StatefulSetSeen, seen: BrokersSeen
) -> tuple[list[int], tuple[Condition, ...]]:
    """The brokers whose volumes are protected, and the condition of the volume that is to be replaced."""
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
    """The note, unless a condition already has its message."""
    known = any(each.get("message") == note.message for each in pool.status.get("conditions") or ())
    return () if known else (note,)
