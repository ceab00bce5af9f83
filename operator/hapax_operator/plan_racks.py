"""Which rack each machine is in, by a label of the Kubernetes nodes, and which brokers have none. Pure.

The record lists machines, not brokers: a broker knows on which machine it runs, so it never takes a rack that was found
for a place that it has left. A machine that no pod is on stays in the record, because a pod may come back to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from hapax.codec.metadata import RacksRecord
from hapax_operator.conditions import Condition

_NAMED: Final = 5
_AT_A_TIME: Final = 3


class BrokerPod(NamedTuple):
    name: str
    machine: str
    """Empty: it has none yet."""


@dataclass(frozen=True, slots=True)
class RacksPlan:
    record: RacksRecord
    unknown: Mapping[int, str]
    """Broker whose machine has no rack -> a phrase that says which pod, and why."""


def plan_racks(
    label: str, pods: Iterable[BrokerPod], found: Mapping[str, str | None], former: RacksRecord
) -> RacksPlan:
    """`found`: machines that were asked about -> the value of the label, empty without it; None: there is no such
    node. What is known of a node that is gone stays while a pod names it: it says nothing else about the place."""
    pods = list(pods)
    known = dict(former.machines) if former.label == label else {}
    named = {each.machine for each in pods}
    for machine, rack in found.items():
        if rack is not None:
            known[machine] = rack
        elif machine not in named:
            known.pop(machine, None)
    unknown = {}
    for each in pods:
        if each.machine and not known.get(each.machine):
            why = f"has no label {label}" if each.machine in known else "is not known"
            unknown[int(each.name.rpartition("-")[2])] = f"{each.name}: node {each.machine} {why}"
    return RacksPlan(RacksRecord(label, known), unknown)


def next_to_ask(machines: Iterable[str], known: Iterable[str], asked_at: Mapping[str, float]) -> list[str]:
    """All of `machines` that were never asked about, and the three of all that were asked about longest ago.
    `asked_at`: when they were."""
    needed = set(machines)
    first = sorted(each for each in needed if each not in asked_at)
    rest = sorted((asked_at.get(each, 0.0), each) for each in {*needed, *known} if each not in first)
    return [*first, *(each for _, each in rest[:_AT_A_TIME])]


def racks_condition(unknown: Mapping[int, str], racks: Mapping[int, str]) -> Condition:
    """`racks`: those that the live brokers have told."""
    phrases = {**{broker: f"broker {broker} has not taken its rack" for broker, rack in racks.items() if not rack},
               **unknown}
    if not phrases:
        return Condition("RacksKnown", "True", "Labelled", "each broker has the rack of its node")
    found = [phrases[broker] for broker in sorted(phrases)]
    more = f", and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return Condition("RacksKnown", "False", "RackUnknown", f"{'; '.join(found[:_NAMED])}{more}")
