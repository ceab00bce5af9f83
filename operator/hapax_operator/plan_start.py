"""The steps before the next run of a workload may start, so that there are never two writers at a time. Pure.

The order is: the former run is told to end, and its end is observed, or it is given up; the instances to fence are
stored; they are fenced, which aborts their open transactions; only then the next run starts. Fencing comes after the
end of the former run, because a fenced program that is still running may initialise its producer again. A run whose end
cannot be observed (its machine is cut off) is given up after a time: once fenced, it can neither write nor commit. If
it comes back and initialises its producer, the newer run is fenced and its supervisor restarts it; commit tokens keep
the output of both runs from counting twice.

After a crash of the operator, the next step follows from stored state: `Intent` is a field of the resource's status.
Fencing names the observed instance, so that the new run is never fenced in place of its predecessor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from hapax_operator.plan_producer import Fence, ProducerSeen


class FormerRun(NamedTuple):
    """`since_ms`: the wall-clock time at which it was told to end; -1 if it was not."""

    since_ms: int = -1


@dataclass(frozen=True, slots=True)
class Intent:
    """The instances to fence before run number `run`, by transactional id."""

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
    """Look again later; `why` is shown to users."""

    why: str


class WriteDown(NamedTuple):
    """Store the intent before anything else."""

    intent: Intent


class FenceAll(NamedTuple):
    """Fence these, then look again."""

    fences: tuple[Fence, ...]


class Start(NamedTuple):
    run: int


Step = EndFormer | Wait | WriteDown | FenceAll | Start


def plan_start(
    run: int, former: FormerRun | None, seen: Sequence[ProducerSeen], intent: Intent | None, now_ms: int,
    give_up_after_s: int,
) -> Step:
    """The next step towards run number `run`. `former`: a run that still exists. `seen`: every id of the workload, with
    its instance."""
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
    if any(
        each.opened_ms >= 0 and not each.two_phase and each.transactional_id in intent.instances for each in seen
    ):
        return Wait("the open transactions of the former run are being aborted")
    return Start(run)


def _held(each: ProducerSeen) -> bool:
    """Whether a program may write under the id. An id that was only allocated or was fenced has no holder.

    A transaction under two-phase commit is left alone. It may be prepared, and the new run's producer keeps it, which
    fences the former run's."""
    return not each.two_phase and (bool(each.holder) or each.opened_ms >= 0)
