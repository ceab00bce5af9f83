"""What has to be done before the next run of a workload may start: never two writers at a time. Pure.

The order is: the former run is told to end and is seen to be gone, or is given up; the instances to fence are written
down; they are fenced, which aborts their open transactions; only then the next run starts. Fencing comes after the end
of the former run, because a fenced program that is still running may initialise its producer again. A run whose end
cannot be seen (its machine is cut off) is given up after a while: once fenced, it can neither write nor commit. If it
comes back and initialises its producer, the newer run is fenced and its supervisor restarts it; commit tokens keep the
output of both runs from counting twice.

Each step is found again from what is stored, whenever the operator died: `Intent` is a field of the resource's status,
and fencing names the instance that was seen, so that the run which starts is never fenced for its predecessor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from hapax_operator.plan_producer import Fence, ProducerSeen


class FormerRun(NamedTuple):
    """`since_ms`: when it was told to end, wall clock; -1: it was not."""

    since_ms: int = -1


@dataclass(frozen=True, slots=True)
class Intent:
    """For run number `run`: which instances are fenced before it, by transactional id."""

    run: int
    instances: Mapping[str, str]

    def encode(self) -> dict[str, Any]:
        return {"run": self.run, "instances": [
            {"transactionalId": name, "instance": instance} for name, instance in sorted(self.instances.items())]}

    @classmethod
    def decode(cls, status: Mapping[str, Any] | None) -> Intent | None:
        if not status:
            return None
        return cls(status["run"], {each["transactionalId"]: each["instance"] for each in status["instances"]})


class EndFormer(NamedTuple):
    """Tell the former run to end."""


class Wait(NamedTuple):
    """Look again; `why` is for people."""

    why: str


class WriteDown(NamedTuple):
    """Store this before anything else."""

    intent: Intent


class FenceAll(NamedTuple):
    """Then look again."""

    fences: tuple[Fence, ...]


class Start(NamedTuple):
    run: int


Step = EndFormer | Wait | WriteDown | FenceAll | Start


def plan_start(
    run: int, former: FormerRun | None, seen: Sequence[ProducerSeen], intent: Intent | None, now_ms: int,
    give_up_after_s: int,
) -> Step:
    """The next step towards run number `run`. `former`: a run that is still there. `seen`: every id of the workload,
    each looked at closely (with its instance)."""
    if former is not None and former.since_ms < 0:
        return EndFormer()
    if former is not None and now_ms - former.since_ms < give_up_after_s * 1000:
        return Wait("the former run has not ended yet")
    if intent is None or intent.run != run:
        return WriteDown(Intent(run, {each.transactional_id: each.instance for each in seen}))
    left = [each for each in seen if intent.instances.get(each.transactional_id) == each.instance and _held(each)]
    if left:
        return FenceAll(tuple(
            Fence(each.transactional_id, each.epoch, each.instance, None, f"run {run} is about to start")
            for each in left))
    if any(each.opened_ms >= 0 and each.transactional_id in intent.instances for each in seen):
        return Wait("what the former run had open is being aborted")
    return Start(run)


def _held(each: ProducerSeen) -> bool:
    """Somebody may write under it. An id that was only made has no holder, nor has one that was fenced."""
    return bool(each.holder) or each.opened_ms >= 0
