"""The Spark job of a TransactionalProducer: what is done next, and that two drivers never run at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hapax_operator.plan_producer import ProducerSeen
from hapax_operator.plan_spark import (
    ENDED,
    ENDING,
    STARTED,
    STARTING,
    Delete,
    Exit,
    FenceIds,
    Finalize,
    Lift,
    LookAtIds,
    Make,
    PodSeen,
    RunRecord,
    SparkPlan,
    Write,
    back_off_s,
    plan_spark,
)
from hapax_operator.plan_start import Intent
from hapax_operator.resources import PRODUCERS, Meta, ProducerResource, Ref
from hapax_operator.spark_resource import BackOff, SparkSpec, read_spark
from hapax_operator.spark_work import of_section

NOW = 1_800_000_000_000
SPEC = SparkSpec(image="spark:1", job="jobs.one", checkpoint_claim="claim")
FREE = [ProducerSeen("loader", 7, 3, "Empty", instance="one")]
HELD = [ProducerSeen("loader", 7, 3, "Ongoing", opened_ms=NOW - 5, instance="one")]
INTENT = Intent(1, {"loader": "one"})


def resource(record: RunRecord | None = None, spec: SparkSpec | None = SPEC, **fields: Any) -> ProducerResource:
    meta = Meta(
        ref=Ref(PRODUCERS, "team", "loader"), uid="owner", generation=1, created="2026-01-01T00:00:00Z",
        paused=fields.pop("paused", False), deleting=fields.pop("deleting", False))
    status = {} if record is None else {"spark": record.encode()}
    return ProducerResource(meta=meta, transactional_id="loader", spark=spec, status=status, **fields)


def driver(run: int = 1, **fields: Any) -> PodSeen:
    return PodSeen(**{
        "name": f"loader-driver-{run}", "uid": f"d{run}", "owner": "owner", "run": run, "driver": True,
        "fingerprint": SPEC.fingerprint, "phase": "Running", **fields})


def executor(run: int = 1, **fields: Any) -> PodSeen:
    return driver(run, **{"name": f"exec-{run}", "uid": f"e{run}", "driver": False, **fields})


def started(run: int = 1, **fields: Any) -> RunRecord:
    return RunRecord(**{
        "run": run, "stage": STARTED, "driver": f"loader-driver-{run}", "uid": f"d{run}",
        "fingerprint": SPEC.fingerprint, "started_ms": NOW - 60_000, "running_ms": NOW - 50_000, **fields})


def look(
    described: ProducerResource, *pods: PodSeen, ids: Any = None, finalized: bool = True, now: int = NOW,
    conflict: str = "",
) -> SparkPlan:
    return plan_spark(of_section(described), finalized, pods, ids, now, conflict)


def reason(planned: SparkPlan, kind: str = "SparkRunning") -> tuple[str, str]:
    return next((each.status, each.reason) for each in planned.conditions if each.type == kind)


def written(planned: SparkPlan) -> RunRecord:
    assert isinstance(planned.step, Write), planned
    return planned.step.record


def notes(planned: SparkPlan) -> list[str]:
    return [each.reason for each in planned.step.notes] if isinstance(planned.step, Write) else []


def test_a_run_starts_step_by_step() -> None:
    assert look(resource(), finalized=False).step == Finalize(True)
    assert look(resource()).step == LookAtIds()
    record = written(look(resource(), ids=FREE))
    assert (record.run, record.stage, record.intent) == (1, STARTING, INTENT)
    fencing = look(resource(record), ids=HELD).step
    assert isinstance(fencing, FenceIds) and fencing.fences[0].instance == "one"
    assert look(resource(record), ids=FREE).step == Make(1)
    gated = driver(phase="Pending", gated=True)
    named = written(look(resource(record), gated, ids=FREE))
    assert (named.stage, named.uid, named.fingerprint) == (STARTED, "d1", SPEC.fingerprint)
    assert look(resource(named), gated).step == Lift(gated)
    assert reason(look(resource(named), driver(phase="Pending"))) == ("False", "Pending")
    pulling = driver(phase="Pending", reason="ImagePullBackOff", message="no such image")
    assert reason(look(resource(named), pulling)) == ("False", "ImagePullBackOff")
    runs = look(resource(named), driver())
    assert notes(runs) == ["SparkRunning"] and written(runs).running_ms == NOW
    idle = look(resource(written(runs)), driver(), executor())
    assert idle.step is None and reason(idle) == ("True", "Running") and idle.running == driver()
    assert reason(idle, "SparkFailed") == ("False", "None")


def test_a_record_is_read_as_it_was_written() -> None:
    record = started(
        failures=3, next_ms=NOW, ending="Changed", intent=INTENT, exit=Exit(0, "OOMKilled", NOW, 137, "too much"))
    assert RunRecord.decode(record.encode()) == record
    assert RunRecord.decode(None) == RunRecord()


def test_a_failure_is_told_with_the_pod_s_reason_and_the_next_run_waits() -> None:
    failed = look(resource(started()), driver(phase="Failed", reason="OOMKilled", exit_code=137))
    record = written(failed)
    assert notes(failed) == ["SparkFailed", "BackOff"]
    assert (record.stage, record.failures, record.next_ms) == (ENDED, 1, NOW + 10_000)
    waits = look(resource(record), driver(phase="Failed"), now=NOW + 9_000)
    assert waits.step is None and waits.again_s == 1.0 and reason(waits) == ("False", "BackOff")
    assert reason(waits, "SparkFailed") == ("True", "OOMKilled")
    assert look(resource(record), driver(phase="Failed"), now=NOW + 10_000).step == LookAtIds()
    mended = replace(SPEC, job="jobs.two")
    assert look(resource(record, mended), driver(phase="Failed")).step == LookAtIds(), "a new job does not wait"
    again = written(look(resource(started(failures=3, running_ms=NOW - 1)), driver(phase="Failed")))
    assert (again.failures, again.next_ms) == (4, NOW + 80_000)
    stable = written(look(resource(started(failures=9, running_ms=NOW - 600_000)), driver(phase="Failed")))
    assert stable.failures == 1
    runs_again = look(resource(started(2, exit=record.exit)), driver(2))
    assert reason(runs_again, "SparkFailed") == ("False", "RunsAgain")


def test_the_back_off_is_bounded() -> None:
    waits = [back_off_s(BackOff(10, 300), failures) for failures in range(1, 1000)]
    assert waits[:6] == [10, 20, 40, 80, 160, 300] and max(waits) == 300


def test_a_job_that_ends_by_itself_is_done_until_it_changes() -> None:
    done = look(resource(started()), driver(phase="Succeeded", exit_code=0))
    record = written(done)
    assert notes(done) == ["SparkCompleted"]
    rests = look(resource(record), driver(phase="Succeeded"))
    assert rests.step is None and rests.again_s == 0 and reason(rests) == ("False", "Completed")
    for toggled in (replace(SPEC, suspend=True), replace(SPEC, back_off=BackOff(1))):
        assert look(resource(record, toggled), driver(phase="Succeeded")).step is None
    for changed in (replace(SPEC, rerun=1), replace(SPEC, arguments=("x",))):
        assert look(resource(record, changed), driver(phase="Succeeded")).step == LookAtIds()
    left = executor()
    assert look(resource(record), driver(phase="Succeeded"), left).step == Delete((left,))


@pytest.mark.parametrize(("change", "why"), [
    ({"spec": replace(SPEC, suspend=True)}, "Suspended"), ({"spec": replace(SPEC, image="spark:2")}, "Changed"),
    ({"spec": None}, "Removed"), ({"deleting": True}, "Removed")])
def test_an_end_is_written_down_then_told_then_awaited(change: dict[str, Any], why: str) -> None:
    planned = look(resource(started(), **change), driver(), executor())
    assert notes(planned) == ["SparkEnding"]
    ending = written(planned)
    assert (ending.stage, ending.ending) == (ENDING, why)
    assert look(resource(ending, **change), driver(), executor()).step == Delete((driver(),))
    told = driver(told_ms=NOW - 5)
    assert look(resource(ending, **change), told, executor()).step is None
    ended = written(look(resource(ending, **change), executor(told_ms=NOW - 5)))
    assert (ended.stage, ended.failures, ended.next_ms) == (ENDED, 0, -1)
    assert look(resource(ended, **change), executor(told_ms=NOW - 5)).step is None, "executors can write, too"
    if why != "Removed":
        assert look(resource(ended, **change)).again_s == 10.0, "deleted by force it might live on for moments"
    seen = written(look(resource(ending, **change), driver(told_ms=NOW - 5, phase="Failed")))
    after = look(resource(seen, **change)).step
    assert after == {"Removed": Finalize(False), "Suspended": None, "Changed": LookAtIds()}[why]


def test_what_cannot_be_seen_to_end_is_given_up_and_fenced() -> None:
    stuck = driver(told_ms=NOW - 300_000)
    ending = started(stage=ENDING, ending="Changed")
    assert look(resource(ending), driver(told_ms=NOW - 299_000)).step is None
    ended = written(look(resource(ending), stuck))
    assert ended.exit is not None and ended.exit.reason == "GivenUp"
    assert look(resource(ended), stuck, executor(told_ms=NOW - 1)).step is None
    assert look(resource(ended), stuck).step == LookAtIds()
    intent = written(look(resource(ended), stuck, ids=HELD))
    assert intent.intent == Intent(2, {"loader": "one"})
    assert isinstance(look(resource(intent), stuck, ids=HELD).step, FenceIds)


def test_a_pod_deleted_by_force_may_live_on_for_moments() -> None:
    vanished = look(resource(started(fingerprint="old")))
    record = written(vanished)
    assert notes(vanished) == ["SparkFailed", "BackOff"] and record.exit is not None
    assert record.exit.reason == "Vanished"
    assert look(resource(record), now=NOW + 9_000).step is None
    assert look(resource(record), now=NOW + 10_000).step == LookAtIds()
    assert written(look(resource(started()), driver(told_ms=NOW))).ending == "Deleted"


def test_what_was_made_late_or_for_an_older_spec_never_runs() -> None:
    starting = RunRecord(run=2, stage=STARTING, intent=Intent(2, {"loader": "one"}))
    late, old = driver(1, gated=True, phase="Pending"), driver(2, gated=True, phase="Pending", fingerprint="old")
    assert look(resource(starting), late, ids=FREE).step == Delete((late,))
    assert look(resource(starting), old, ids=FREE).step == Delete((old,))
    other = driver(2, gated=True, phase="Pending", owner="another")
    assert look(resource(starting), other, ids=FREE).step is None, "what is another's is waited for, not ended"
    assert reason(look(resource(starting), other, ids=FREE)) == ("False", "FormerRunLeft")


def test_pause_and_unmanaged_do_nothing_and_hold_nothing_up() -> None:
    both: list[dict[str, Any]] = [{"paused": True}, {"managed": False}]
    for fields in both:
        for record in (None, started(), started(fingerprint="old"), started(stage=ENDING, ending="Changed")):
            planned = look(resource(record, **fields), driver(), finalized=False)
            assert planned.step is None
    assert look(resource(started(), paused=True), driver()).step is None
    assert look(resource(started(), paused=True, deleting=True), driver()).step == Finalize(False)
    assert look(resource(started(), managed=False), driver()).step == Finalize(False)


def test_an_older_resource_for_the_ids_counts() -> None:
    assert reason(look(resource(), conflict="team/older")) == ("False", "ResourceConflict")
    assert written(look(resource(started()), driver(), conflict="team/older")).ending == "ResourceConflict"


def test_a_start_that_is_no_longer_wanted_is_taken_back() -> None:
    starting = RunRecord(run=2, stage=STARTING, intent=Intent(2, {}))
    suspended = replace(SPEC, suspend=True)
    gated = driver(2, gated=True, phase="Pending")
    assert look(resource(starting, suspended), gated).step == Delete((gated,))
    record = written(look(resource(starting, suspended)))
    assert record.stage == ENDED and record.intent is None
    assert written(look(resource(record), ids=FREE)).run == 3


def test_old_drivers_logs_are_kept_for_one_run() -> None:
    old, last = driver(1, phase="Failed"), driver(2, phase="Failed")
    assert look(resource(started(3)), driver(3), last, old).step == Delete((old,))
    assert look(resource(started(3)), driver(3), last).step is None


@pytest.mark.parametrize(("checkpoint", "runs"), [
    ({}, False), ({"path": "/own"}, False), ({"ephemeral": True}, True), ({"claimName": "claim"}, True),
    ({"path": "s3a://bucket/jobs"}, True)])
def test_a_checkpoint_that_goes_with_the_pod_has_to_be_wanted(checkpoint: dict[str, Any], runs: bool) -> None:
    spec = read_spark({"spark": {"image": "i", "job": "j", "checkpoint": checkpoint}})
    planned = look(resource(None, spec), ids=FREE)
    assert (planned.step is not None) is runs
    if not runs:
        (told,) = (each for each in planned.conditions if each.type == "SparkRunning")
        assert (told.status, told.reason) == ("False", "NoCheckpoint")
        assert "set claimName" in told.message and "ephemeral: true" in told.message


def test_a_run_from_before_the_rule_goes_on_and_no_other_starts() -> None:
    spec = replace(SPEC, checkpoint_claim="")
    record = started(1, fingerprint=spec.fingerprint)
    assert look(resource(record, spec), driver(1)).step is None
    ended = written(look(resource(record, spec), driver(1, phase="Failed", reason="Error")))
    late = NOW + 3_600_000
    planned = plan_spark(of_section(resource(ended, spec)), True, [], FREE, late)
    assert planned.step is None
    assert any(each.reason == "NoCheckpoint" for each in planned.conditions)


def test_to_say_that_the_checkpoint_is_ephemeral_ends_no_run() -> None:
    """The pod it describes is the same."""
    spec = replace(SPEC, checkpoint_claim="")
    assert replace(spec, ephemeral=True).fingerprint == spec.fingerprint


def test_a_field_of_a_later_version_starts_nothing_anew() -> None:
    plain = {"image": "i", "job": "j"}
    full = {**plain, "suspend": True, "rerun": 0, "arguments": [], "driver": {"memory": "1g"}, "executors": {},
            "backOff": {"firstSeconds": 3}, "giveUpAfterSeconds": 60}
    one, other = read_spark({"spark": plain}), read_spark({"spark": full})
    assert one is not None and other is not None and one.fingerprint == other.fingerprint
    assert read_spark({}) is None


@pytest.mark.parametrize("why", ["Suspended", "Removed", "Deleted", "ResourceConflict"])
def test_a_job_that_is_through_before_it_is_told_to_end_is_through(why: str) -> None:
    """Exit code 0 says so: a driver that was told to end first has another one. It would write everything again."""
    ended = look(resource(started(stage=ENDING, ending=why)), driver(phase="Succeeded", exit_code=0, told_ms=NOW - 1))
    assert isinstance(ended.step, Write)
    record = ended.step.record
    assert record.exit is not None and record.exit.reason == "Completed"
    again = look(resource(record), now=NOW + 100_000, ids=FREE)
    assert again.step is None and again.conditions[0].reason == "Completed"
