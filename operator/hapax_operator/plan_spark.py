"""Plans the next step for a Spark job, from its record, its pods and the clock. Pure.

There are never two drivers at a time, with any number of operators, wherever one of them dies or freezes, and however
late its requests are carried out. Three rules ensure this:

- A driver's pod is made with a gate, which keeps it from being scheduled. The gate is lifted only for the one pod whose
  uid the record names, and every change of the record compares the version that it was planned from.
- The record goes on to the next run only where the pods, listed after the record was read, show that the named one has
  ended (or it is given up, see `plan_start`). A pod that somebody makes late is not named, and so never runs.
- Between the two, whatever could still write is fenced by `plan_start`.

A plan has one step. The next observation shows its effect. A plan made from watch events may be out of date, so the
step is planned again from a fresh read of the API server before it is taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, NamedTuple

from hapax_operator.conditions import Condition, Note, from_millis
from hapax_operator.plan_producer import Fence, ProducerSeen
from hapax_operator.plan_start import EndFormer, FenceAll, Intent, WriteDown, plan_start
from hapax_operator.plan_start import Wait as StartWaits
from hapax_operator.spark_resource import REPLACE, BackOff
from hapax_operator.spark_schedule import Due, due_of
from hapax_operator.spark_work import HINDRANCES, SparkWork

STARTING, STARTED, ENDING, ENDED = "Starting", "Started", "Ending", "Ended"
"""Stages of a run: its predecessor is being fenced; one pod may run; that pod is being ended; it has ended."""

_VANISHED_S: Final = 10.0
"""Seconds that a pod which was deleted by force may continue to run, until its kubelet ends it."""
_LOOK_S: Final = 5.0
_AHEAD_MS: Final = 86_400_000
"""A time that is later than now by more than this was written by a wrong clock. Clocks of operators differ by less."""
_NEVER: Final = -1

OTHER_PRODUCER: Final = "OtherProducer"
COMPLETED, DELETED, VANISHED, GIVEN_UP = "Completed", "Deleted", "Vanished", "GivenUp"
_BY_WISH: Final = {
    "Suspended": "suspend is set", "Changed": "its specification has changed",
    "Removed": "the resource was deleted, or spec.spark was removed",
    "ResourceConflict": "an older resource takes precedence",
    "OutsidePolicy": "its namespace may not own the ids",
    "Replaced": "the next run of its schedule is due",
    OTHER_PRODUCER: "its TransactionalProducer was replaced by one with other ids", **HINDRANCES}
"""Reasons for which the operator ends a run."""
_NO_CHECKPOINT: Final = (
    "no run starts: its checkpoint would be deleted with the pod, and the next run would write every record again. In "
    "checkpoint, set claimName (a PersistentVolumeClaim), or path to an object store's address, or, if this "
    "is intended, ephemeral: true")


class PodSeen(NamedTuple):
    """Times are wall-clock times in ms; -1: not yet, or unknown."""

    name: str
    uid: str
    owner: str
    """The uid of its SparkJob or TransactionalProducer."""
    run: int
    driver: bool
    fingerprint: str = ""
    phase: str = "Pending"
    gated: bool = False
    told_ms: int = _NEVER
    """When it was told to end."""
    reason: str = ""
    """Kubernetes' reason why it waits or has ended."""
    message: str = ""
    exit_code: int | None = None
    address: str = ""
    cluster: str = ""
    """The cluster whose operator made it; empty: of a former release."""
    report: str = ""
    """What a driver that has ended left of its last batch (`spark_progress.read_report`)."""

    @property
    def live(self) -> bool:
        return self.phase not in ("Succeeded", "Failed")


class Exit(NamedTuple):
    """How a run ended."""

    run: int
    reason: str
    at_ms: int
    code: int | None = None
    message: str = ""
    seen: bool = True
    """False: its pod disappeared before its end was observed."""


@dataclass(frozen=True, slots=True)
class RunRecord:
    """The stored record (a field of the status, see `Form`). It is written only if it has not changed since it was
    read."""

    run: int = 0
    stage: str = ENDED
    driver: str = ""
    uid: str = ""
    """Uid of the pod that may run."""
    fingerprint: str = ""
    intent: Intent | None = None
    started_ms: int = _NEVER
    running_ms: int = _NEVER
    failures: int = 0
    next_ms: int = _NEVER
    ending: str = ""
    """Why it is being ended."""
    exit: Exit | None = None
    identity: str = ""
    """Of the ids that it writes under, while there may be pods."""
    scheduled_ms: int = -1
    """The time of the schedule that the run was started for. It is written before the run, so no time has two runs."""
    missed: int = 0
    """How many times of the schedule have had no run of their own."""
    rerun: int = 0
    """`rerun` of the specification when the run was started."""
    history: tuple[Exit, ...] = ()
    """Ends of runs, the last one at the end."""

    def encode(self) -> dict[str, Any]:
        """Fields without a value are left out."""
        told: dict[str, Any] = {
            "run": self.run, "stage": self.stage, "driver": self.driver, "driverUid": self.uid,
            "fingerprint": self.fingerprint, "failures": self.failures, "ending": self.ending,
            "identity": self.identity,
            "startedAt": _text(self.started_ms), "runningSince": _text(self.running_ms),
            "nextStartAt": _text(self.next_ms), "scheduledAt": _text(self.scheduled_ms),
            "missed": self.missed or None, "rerun": self.rerun or None,
            "history": [_told_of(each, 256) for each in self.history] or None,
            "fencing": None if self.intent is None else self.intent.encode()}
        if self.exit is not None:
            told["lastExit"] = _told_of(self.exit, 1024)
        return {name: value for name, value in told.items() if value not in (None, "")}

    @classmethod
    def decode(cls, status: Mapping[str, Any] | None) -> RunRecord:
        if not status:
            return cls()
        return cls(
            run=status.get("run", 0), stage=status.get("stage", ENDED), driver=status.get("driver", ""),
            uid=status.get("driverUid", ""), fingerprint=status.get("fingerprint", ""),
            intent=Intent.decode(status.get("fencing")), started_ms=_millis(status.get("startedAt")),
            running_ms=_millis(status.get("runningSince")), failures=status.get("failures", 0),
            next_ms=_millis(status.get("nextStartAt")), ending=status.get("ending", ""),
            exit=_exit(status.get("lastExit")), identity=status.get("identity", ""),
            scheduled_ms=_millis(status.get("scheduledAt")), missed=status.get("missed", 0),
            rerun=status.get("rerun", 0),
            history=tuple(each for told in status.get("history") or () if (each := _exit(told)) is not None))

    @property
    def pinned(self) -> str:
        """The identity whose pods must be looked at, even if the producer is gone or has another one. Empty: none."""
        return "" if self.stage == ENDED else self.identity


def _told_of(last: Exit, longest: int) -> dict[str, Any]:
    told = {"run": last.run, "reason": last.reason, "time": from_millis(last.at_ms), "exitCode": last.code,
            "message": last.message[:longest], "endSeen": None if last.seen else False}
    return {name: value for name, value in told.items() if value not in (None, "")}


def _exit(told: Mapping[str, Any] | None) -> Exit | None:
    if not told:
        return None
    return Exit(
        told["run"], told["reason"], _millis(told.get("time")), told.get("exitCode"), told.get("message", ""),
        told.get("endSeen", True))


class Write(NamedTuple):
    """Writes the record, unless it has changed since it was read, and then records `notes` as events."""

    record: RunRecord
    notes: tuple[Note, ...] = ()


class Delete(NamedTuple):
    """Deletes these pods, by uid."""

    pods: tuple[PodSeen, ...]


class LookAtIds(NamedTuple):
    """Plan again with a description of each id."""


class FenceIds(NamedTuple):
    fences: tuple[Fence, ...]


class Make(NamedTuple):
    """Creates a driver's pod for this run, with a scheduling gate."""

    run: int


class Lift(NamedTuple):
    pod: PodSeen


class Finalize(NamedTuple):
    """Adds or removes the finalizer, with which the resource waits for its driver's end."""

    wanted: bool


Step = Write | Delete | LookAtIds | FenceIds | Make | Lift | Finalize


@dataclass(frozen=True, slots=True)
class SparkPlan:
    step: Step | None
    conditions: tuple[Condition, ...] = ()
    again_s: float = 0.0
    """Seconds until the next look; 0: when something changes."""
    running: PodSeen | None = None
    due: Due | None = None
    """What the schedule says; None: there is none."""


def plan_spark(
    resource: SparkWork, finalized: bool, pods: Sequence[PodSeen], ids: Sequence[ProducerSeen] | None,
    now_ms: int, conflict: str = "",
) -> SparkPlan:
    """`pods`: all pods of the identity (the record's `pinned` one, or the work's), of any resource. `ids`: None if
    they were not described. `conflict`: the older resource that describes the ids."""
    look = _Look(resource, finalized, pods, ids, now_ms, conflict)
    planned = replace(look.plan(), due=look.due)
    if planned.step is None and look.due is not None and look.due.next_ms >= 0 and not look.unwanted:
        left_s = max(1.0, (look.due.next_ms - now_ms) / 1000)
        planned = replace(planned, again_s=min(planned.again_s or left_s, left_s))
    return planned


class _Look:
    def __init__(
        self, resource: SparkWork, finalized: bool, pods: Sequence[PodSeen],
        ids: Sequence[ProducerSeen] | None, now_ms: int, conflict: str,
    ) -> None:
        self.resource, self.finalized, self.ids, self.now_ms = resource, finalized, ids, now_ms
        self.pods = sorted(pods, key=lambda each: (each.run, each.name, each.uid))
        self.spark = resource.spark
        self.fingerprint = "" if self.spark is None else self.spark.fingerprint
        self.record = RunRecord.decode(resource.record)
        self.give_up_ms = 1000 * (300 if self.spark is None else self.spark.give_up_after_s)
        self.named = next((each for each in self.pods if each.driver and each.uid == self.record.uid), None)
        self.unwanted = ""
        if self.spark is None or resource.meta.deleting:
            self.unwanted = "Removed"
        elif resource.hindered:
            self.unwanted = resource.hindered
        elif self.record.pinned and self.record.pinned != resource.identity:
            self.unwanted = OTHER_PRODUCER
        elif conflict:
            self.unwanted = "ResourceConflict"
        elif self.spark.suspend:
            self.unwanted = "Suspended"
        self.due = None
        if self.spark is not None and self.spark.schedule is not None:
            self.due = due_of(self.spark.schedule, self.record.scheduled_ms, _millis(resource.meta.created), now_ms)
        # A run that was started before this rule existed continues: ending it would lose its checkpoint.
        self.unsafe = self.spark is not None and not (self.spark.outlives_its_pod or self.spark.ephemeral)

    def plan(self) -> SparkPlan:
        if not self.resource.acts:
            release = self.finalized and (not self.resource.managed or self.resource.meta.deleting)
            return SparkPlan(Finalize(False) if release else None, self._shown(), running=self._running())
        if self.record.stage in (STARTED, ENDING):
            return self._going()
        if self.due is not None and self.record.scheduled_ms > self.now_ms + _AHEAD_MS:
            # Of an operator whose clock was wrong. Otherwise no time would be due until then.
            wrong = _text(self.record.scheduled_ms)
            told = Note("Warning", "ClockWasAhead", f"the last run's time, {wrong}, is in the future; its schedule "
                        "goes on from now")
            return self._do(Write(replace(self.record, scheduled_ms=self.now_ms), (told,)))
        return self._resting()

    # --- a run that was let run

    def _going(self) -> SparkPlan:
        record, pod = self.record, self.named
        if pod is None or not pod.live or self._given_up(pod):
            return self._do(self._ended(pod))
        if record.stage == ENDING:
            if pod.told_ms < 0:
                return self._do(Delete((pod,)))
            return SparkPlan(None, self._shown(), _LOOK_S)
        if pod.told_ms >= 0:
            return self._do(Write(replace(record, stage=ENDING, ending=DELETED)))
        ending = self.unwanted or self._overtaken()
        if ending:
            told = Note("Normal", "SparkEnding", f"run {record.run} is being ended: {_BY_WISH[ending]}")
            return self._do(Write(replace(record, stage=ENDING, ending=ending), (told,)))
        if pod.gated:
            return self._do(Lift(pod))
        if pod.phase == "Running" and record.running_ms < 0:
            told = Note("Normal", "SparkRunning", f"run {record.run}: pod {pod.name} runs")
            return self._do(Write(replace(record, running_ms=self.now_ms), (told,)))
        old = self._mine(lambda each: each.driver and not each.live and each.run < record.run - self._kept())
        return SparkPlan(Delete(old) if old else None, self._shown(), running=self._running())

    def _ended(self, pod: PodSeen | None) -> Write:
        record = self.record
        if pod is not None and pod.phase == "Succeeded":
            # Also if it was told to end: a driver that is told before its job is through has another exit code.
            reason = COMPLETED
        elif record.ending in _BY_WISH:
            reason = record.ending if pod is None or not pod.live else GIVEN_UP
        elif pod is None:
            reason = record.ending or VANISHED
        elif pod.live:
            reason = GIVEN_UP
        else:
            reason = record.ending or pod.reason or "Error"
        exit_ = Exit(
            record.run, reason, self.now_ms, None if pod is None else pod.exit_code,
            "its pod disappeared before its end was observed" if pod is None else pod.message, seen=pod is not None)
        history = (*record.history, exit_)[-self._kept():] if self._kept() > 1 else ()
        after = replace(
            record, stage=ENDED, ending="", exit=exit_, intent=None, next_ms=_NEVER, failures=0, history=history)
        if reason == COMPLETED:
            return Write(after, (Note("Normal", "SparkCompleted", f"run {record.run} is complete"),))
        if reason in _BY_WISH or record.ending in _BY_WISH:
            return Write(after, (Note("Normal", "SparkEnded", f"run {record.run} has ended: {reason}"),))
        back_off = BackOff() if self.spark is None else self.spark.back_off
        stable = 0 <= record.running_ms <= self.now_ms - back_off.reset_after_s * 1000
        failures = 1 if stable else record.failures + 1
        wait_s = back_off_s(back_off, failures)
        notes = (
            Note("Warning", "SparkFailed", _failure(exit_)),
            Note("Warning", "BackOff", f"run {record.run + 1} starts in {wait_s} s: {_in_a_row(failures)}"))
        return Write(replace(after, failures=failures, next_ms=self.now_ms + wait_s * 1000), notes)

    # --- none, or one that is about to start

    def _resting(self) -> SparkPlan:
        record = self.record
        starting = record.stage == STARTING
        wanted = not self.unwanted and not self.unsafe and not self._done() and (starting or self._called())
        made = next((each for each in self.pods if self._may_be_named(each)), None) if wanted else None
        others = [each for each in self.pods if each.live and each is not made]
        mine = tuple(each for each in others if each.owner in self.resource.owners and each.told_ms < 0)
        if mine:  # executors without a driver, and pods that were created late or from an older spec
            return self._do(Delete(mine))
        left = [each for each in others if each.told_ms < 0 or not self._given_up(each)]
        if left:
            return SparkPlan(None, self._shown(left), _LOOK_S)
        vanished_s = self._since_vanished()
        if vanished_s < _VANISHED_S:
            return SparkPlan(None, self._shown(), _VANISHED_S - vanished_s)
        if starting and not wanted:  # no pod of this run was named, and none will be
            return self._do(Write(replace(record, stage=ENDED, intent=None)))
        if not wanted:
            release = self.unwanted == "Removed" and self.finalized
            return SparkPlan(Finalize(False) if release else None, self._shown())
        late_s = self._back_off_left()
        if late_s > 0 and not starting:
            return SparkPlan(None, self._shown(), late_s)
        if not self.finalized:
            return self._do(Finalize(True))
        if self.ids is None:
            return self._do(LookAtIds())
        return self._start(record.run if starting else record.run + 1, made)

    def _start(self, run: int, made: PodSeen | None) -> SparkPlan:
        assert self.ids is not None
        step = plan_start(run, None, self.ids, self.record.intent, self.now_ms, self.give_up_ms // 1000)
        match step:
            case WriteDown(intent):
                assert self.spark is not None
                claimed = self.record
                if self.due is not None and self.due.at_ms >= 0:
                    claimed = replace(
                        claimed, scheduled_ms=self.due.at_ms, missed=claimed.missed + self.due.missed)
                return self._do(Write(replace(
                    claimed, rerun=self.spark.rerun, run=run, stage=STARTING, intent=intent,
                    identity=self.resource.identity, uid="", driver="", fingerprint="", started_ms=_NEVER,
                    running_ms=_NEVER, next_ms=_NEVER)))
            case FenceAll(fences):
                return self._do(FenceIds(fences))
            case StartWaits(_) | EndFormer():
                return SparkPlan(None, self._shown(), 1.0)
        if made is None:
            return self._do(Make(run))
        return self._do(Write(replace(
            self.record, stage=STARTED, uid=made.uid, driver=made.name, fingerprint=made.fingerprint,
            started_ms=self.now_ms)))

    def _may_be_named(self, pod: PodSeen) -> bool:
        return (
            self.record.stage == STARTING and pod.driver and pod.gated and pod.live and pod.told_ms < 0
            and pod.owner in self.resource.owners and pod.run == self.record.run
            and pod.fingerprint == self.fingerprint)

    def _overtaken(self) -> str:
        """Why a run that is still wanted ends: a change of the job does not concern a run of a schedule."""
        if self.spark is None or self.spark.schedule is None:
            return "Changed" if self.record.fingerprint != self.fingerprint else ""
        if self.spark.rerun > self.record.rerun:
            return "Changed"
        late = self.due is not None and self.due.at_ms >= 0
        return "Replaced" if late and self.spark.schedule.policy == REPLACE else ""

    def _called(self) -> bool:
        """Whether a run is due: by its schedule, by request, or because the last one was not completed."""
        if self.spark is None or self.spark.schedule is None:
            return True
        record = self.record
        complete = record.exit is not None and record.exit.run == record.run and record.exit.reason == COMPLETED
        due = self.due is not None and self.due.at_ms >= 0
        return due or self.spark.rerun > record.rerun or (record.run > 0 and not complete)

    def _kept(self) -> int:
        return 1 if self.spark is None else self.spark.history_limit

    def _done(self) -> bool:
        """Whether it ended by itself, and its spec is unchanged. A schedule is never done."""
        record = self.record
        if self.spark is not None and self.spark.schedule is not None:
            return False
        return (
            record.stage == ENDED and record.exit is not None and record.exit.reason == COMPLETED
            and record.fingerprint == self.fingerprint)

    def _back_off_left(self) -> float:
        if self.record.next_ms < 0 or self.record.fingerprint != self.fingerprint:
            return 0.0
        left_s = (self.record.next_ms - self.now_ms) / 1000
        longest_s = BackOff().longest_s if self.spark is None else self.spark.back_off.longest_s
        return left_s if left_s <= longest_s else 0.0  # it was made shorter, or a wrong clock wrote the time

    def _since_vanished(self) -> float:
        last = self.record.exit
        if self.record.stage != ENDED or last is None or last.seen:
            return _VANISHED_S
        since_s = (self.now_ms - last.at_ms) / 1000
        return since_s if since_s >= -_VANISHED_S else _VANISHED_S  # a wrong clock wrote the time

    def _given_up(self, pod: PodSeen) -> bool:
        return 0 <= pod.told_ms <= self.now_ms - self.give_up_ms

    def _mine(self, chosen: Any) -> tuple[PodSeen, ...]:
        return tuple(each for each in self.pods if each.owner in self.resource.owners and chosen(each))

    def _running(self) -> PodSeen | None:
        pod = self.named
        return pod if pod is not None and pod.phase == "Running" and self.record.stage == STARTED else None

    # --- what is shown

    def _do(self, step: Step) -> SparkPlan:
        return SparkPlan(step, self._shown(), running=self._running())

    def _shown(self, left: Sequence[PodSeen] = ()) -> tuple[Condition, ...]:
        if self.spark is None:
            return ()
        return (self._running_condition(left), self._failed_condition())

    def _running_condition(self, left: Sequence[PodSeen]) -> Condition:
        record, pod = self.record, self.named
        kind = f"{self.resource.form.condition}Running"
        if record.stage == STARTED and pod is not None and pod.live:
            if pod.phase == "Running":
                return Condition(kind, "True", "Running", f"run {record.run}: pod {pod.name}")
            return Condition(
                kind, "False", pod.reason or "Pending", pod.message or f"run {record.run}: pod {pod.name} is starting")
        if record.stage == ENDING:
            why = _BY_WISH.get(record.ending, "its pod was deleted")
            return Condition(kind, "False", "Ending", f"run {record.run} is ending: {why}")
        if self.unwanted:
            return Condition(kind, "False", self.unwanted, _BY_WISH[self.unwanted])
        if self.unsafe:
            return Condition(kind, "False", "NoCheckpoint", _NO_CHECKPOINT)
        if left:
            return Condition(kind, "False", "FormerRunLeft", f"waiting for the end of {_names(left)}")
        if self._done():
            return Condition(
                kind, "False", COMPLETED, f"run {record.run} is complete; a change of the job starts another")
        if self._back_off_left() > 0:
            return Condition(
                kind, "False", "BackOff", f"run {record.run + 1} starts at {from_millis(record.next_ms)}: "
                f"{_in_a_row(record.failures)}")
        if record.stage != STARTING and not self._called() and self.due is not None:
            if self.due.wrong:
                return Condition(kind, "False", "BadSchedule", self.due.wrong)
            return Condition(kind, "False", "Scheduled", f"run {record.run + 1} starts at {_text(self.due.next_ms)}")
        run = record.run if record.stage == STARTING else record.run + 1
        return Condition(kind, "False", "Starting", f"run {run} is about to start")

    def _failed_condition(self) -> Condition:
        record, last, kind = self.record, self.record.exit, f"{self.resource.form.condition}Failed"
        failed = last is not None and last.reason != COMPLETED and last.reason not in _BY_WISH
        if last is None or not failed:
            return Condition(kind, "False", "None", "the last run did not fail")
        if self._running() is not None:
            return Condition(kind, "False", "RunsAgain", f"{_failure(last)}; run {record.run} runs")
        return Condition(kind, "True", last.reason, _failure(last))


def back_off_s(back_off: BackOff, failures: int) -> int:
    """Seconds to wait after this many failures in a row."""
    return min(back_off.longest_s, back_off.first_s * 2 ** min(max(0, failures - 1), 20))


def _failure(last: Exit) -> str:
    code = "" if last.code is None else f", exit code {last.code}"
    return f"run {last.run} ended: {last.reason}{code}" + (f": {last.message}" if last.message else "")


def _in_a_row(failures: int) -> str:
    return "the last run failed" if failures == 1 else f"the last {failures} runs failed"


def _names(pods: Sequence[PodSeen]) -> str:
    return ", ".join(each.name for each in pods[:3]) + (f" and {len(pods) - 3} others" if len(pods) > 3 else "")


def _text(millis: int) -> str:
    return "" if millis < 0 else from_millis(millis)


def _millis(text: str | None) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000) if text else _NEVER
