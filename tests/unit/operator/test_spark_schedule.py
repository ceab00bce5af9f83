"""SparkJobs with a schedule: each time has one run at most, and none is lost that is due."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from hapax_operator.plan_producer import ProducerSeen
from hapax_operator.plan_spark import (
    COMPLETED,
    ENDED,
    ENDING,
    STARTED,
    STARTING,
    Delete,
    Exit,
    Lift,
    LookAtIds,
    Make,
    PodSeen,
    RunRecord,
    SparkPlan,
    Write,
    plan_spark,
)
from hapax_operator.resources import PRODUCERS, SPARK_JOBS, Meta, ProducerResource, Ref, SparkJobResource
from hapax_operator.spark_resource import REPLACE, Schedule, SparkSpec
from hapax_operator.spark_schedule import due_of
from hapax_operator.spark_work import identity_of, of_job

HOUR = 3_600_000
CREATED = int(datetime(2026, 1, 1, 0, 30, tzinfo=UTC).timestamp() * 1000)
FREE = [ProducerSeen("loader", 7, 3, "Empty", instance="one")]
SPEC = SparkSpec(
    image="spark:1", job="jobs.one", checkpoint_claim="claim", schedule=Schedule("0 * * * *"), history_limit=3)
PRODUCER = ProducerResource(
    meta=Meta(ref=Ref(PRODUCERS, "team", "p"), uid="u-p", generation=1, created=""), transactional_id="loader")


def at(hour: int, minute: int = 0) -> int:
    return CREATED - HOUR // 2 + hour * HOUR + minute * 60_000


def look(
    record: RunRecord | None, now: int, *pods: PodSeen, ids: list[ProducerSeen] | None = None, spec: SparkSpec = SPEC
) -> SparkPlan:
    meta = Meta(ref=Ref(SPARK_JOBS, "team", "j"), uid="u-j", generation=1, created="2026-01-01T00:30:00Z")
    job = SparkJobResource(
        meta=meta, producer="p", spark=spec, status={} if record is None else {"record": record.encode()})
    return plan_spark(of_job(job, PRODUCER), True, pods, ids, now)


def written(planned: SparkPlan) -> RunRecord:
    assert isinstance(planned.step, Write)
    return planned.step.record


def pod(run: int, **fields: Any) -> PodSeen:
    return PodSeen(**{
        "name": f"j-spark-{run}", "uid": f"d{run}", "owner": "u-j", "run": run, "driver": True,
        "fingerprint": SPEC.fingerprint, "phase": "Running", **fields})


def running(run: int = 1, **fields: Any) -> RunRecord:
    return RunRecord(**{
        "run": run, "stage": STARTED, "uid": f"d{run}", "driver": f"j-spark-{run}", "fingerprint": SPEC.fingerprint,
        "identity": identity_of(PRODUCER), "started_ms": at(1), "running_ms": at(1), "scheduled_ms": at(1), **fields})


def complete(run: int = 1, **fields: Any) -> RunRecord:
    return running(run, **{"stage": ENDED, "exit": Exit(run, "Completed", at(1, 5), 0), **fields})


def reason(planned: SparkPlan) -> str:
    return next(each.reason for each in planned.conditions if each.type == "Running")


def test_nothing_starts_before_the_first_time_after_the_creation() -> None:
    waits = look(None, at(0, 40))
    assert (waits.step, reason(waits), waits.again_s) == (None, "Scheduled", 20 * 60)
    assert waits.due is not None and waits.due.next_ms == at(1)
    assert look(None, at(1)).step == LookAtIds()


def test_a_time_is_claimed_before_its_run_and_has_no_second_one() -> None:
    claimed = written(look(None, at(1), ids=FREE))
    assert (claimed.stage, claimed.run, claimed.scheduled_ms) == (STARTING, 1, at(1))
    assert look(claimed, at(1, 1), ids=FREE).step == Make(1), "an operator that starts again goes on with it"
    gated = pod(1, gated=True, phase="Pending")
    named = written(look(claimed, at(1, 1), gated, ids=FREE))
    assert look(named, at(1, 1), gated).step == Lift(gated)
    done = written(look(named, at(1, 9), pod(1, phase="Succeeded", exit_code=0)))
    for minute in (9, 30, 59):
        rests = look(done, at(1, minute), pod(1, phase="Succeeded"))
        assert (rests.step, reason(rests)) == (None, "Scheduled")
    assert written(look(done, at(2), pod(1, phase="Succeeded"), ids=FREE)).scheduled_ms == at(2)


def test_a_run_that_goes_on_is_let_end_or_replaced() -> None:
    assert look(running(), at(2, 1), pod(1)).step is None, "Forbid"
    after = written(look(running(), at(2, 9), pod(1, phase="Succeeded")))
    assert written(look(after, at(2, 9), ids=FREE)).scheduled_ms == at(2), "the next one starts after it"
    spec = replace(SPEC, schedule=Schedule("0 * * * *", policy=REPLACE))
    assert look(running(), at(1, 59), pod(1), spec=spec).step is None
    ending = written(look(running(), at(2), pod(1), spec=spec))
    assert (ending.stage, ending.ending) == (ENDING, "Replaced")
    assert look(ending, at(2), pod(1), spec=spec).step == Delete((pod(1),))
    ended = written(look(ending, at(2), pod(1, phase="Failed"), spec=spec))
    assert ended.exit is not None and ended.exit.reason == "Replaced"
    assert written(look(ended, at(2), ids=FREE, spec=spec)).scheduled_ms == at(2)


def test_of_missed_times_the_last_one_has_a_run_and_the_others_are_counted() -> None:
    late = written(look(complete(), at(5, 20), ids=FREE))
    assert (late.scheduled_ms, late.missed) == (at(5), 3)
    spec = replace(SPEC, schedule=Schedule("0 * * * *", deadline_s=600))
    assert look(complete(), at(5, 11), spec=spec).step is None, "too late for its run"
    assert written(look(complete(), at(5, 10), ids=FREE, spec=spec)).scheduled_ms == at(5)


def test_a_run_that_failed_is_repeated_for_its_time() -> None:
    failed = written(look(running(), at(1, 5), pod(1, phase="Failed", reason="Error")))
    assert look(failed, at(1, 5)).again_s == 10.0
    again = written(look(failed, at(1, 6), ids=FREE))
    assert (again.run, again.scheduled_ms) == (2, at(1))


def test_a_claimed_time_whose_run_never_began_is_not_lost() -> None:
    claimed = written(look(complete(), at(2), ids=FREE))
    dropped = written(look(claimed, at(2, 1), spec=replace(SPEC, suspend=True)))
    assert (dropped.stage, dropped.scheduled_ms) == (ENDED, at(2))
    assert written(look(dropped, at(2, 5), ids=FREE)).stage == STARTING


def test_a_change_concerns_the_next_run_and_a_request_starts_one_at_once() -> None:
    other = replace(SPEC, arguments=("--other",))
    assert look(running(), at(1, 30), pod(1), spec=other).step is None
    assert look(complete(), at(1, 30), spec=other).step is None
    asked = replace(SPEC, rerun=1)
    assert written(look(running(), at(1, 30), pod(1), spec=asked)).ending == "Changed"
    claimed = written(look(complete(), at(1, 30), ids=FREE, spec=asked))
    assert (claimed.rerun, claimed.scheduled_ms) == (1, at(1))
    assert look(complete(2, rerun=1), at(1, 40), spec=asked).step is None, "once for a request"


def test_a_schedule_that_cannot_be_read_starts_nothing_and_says_why() -> None:
    wrong = look(None, at(9), spec=replace(SPEC, schedule=Schedule("0 0 0 * *")))
    assert (wrong.step, reason(wrong)) == (None, "BadSchedule")
    assert look(running(), at(9), pod(1), spec=replace(SPEC, schedule=Schedule("* * *"))).step is None


def test_the_last_ends_are_kept_with_their_pods() -> None:
    record = running(9, history=tuple(Exit(run, "Completed", at(1), 0) for run in (6, 7, 8)))
    ended = written(look(record, at(1, 5), pod(9, phase="Failed", reason="OOMKilled", exit_code=137)))
    assert [(each.run, each.reason) for each in ended.history] == [
        (7, "Completed"), (8, "Completed"), (9, "OOMKilled")]
    assert RunRecord.decode(ended.encode()).history == ended.history
    old = [pod(run, phase="Succeeded") for run in (4, 5, 6, 7, 8)]
    assert look(running(9), at(1, 1), pod(9), *old).step == Delete((old[0], old[1]))


@pytest.mark.parametrize(("cron", "hours", "found"), [("0 * * * *", 0, (-1, 0)), ("0 * * * *", 300, (299, 100))])
def test_the_count_of_missed_times_is_bounded(cron: str, hours: int, found: tuple[int, int]) -> None:
    due = due_of(Schedule(cron), -1, at(-1, 30), at(hours) - 60_000)
    assert (due.at_ms, due.missed) == (at(found[0]) if found[0] >= 0 else -1, found[1])


def test_operators_that_die_anywhere_start_one_run_for_a_time() -> None:
    """Two operators whose looks and writes interleave; a write lands only on the version that it was planned from."""
    for seed in range(200):
        chance, stored, version, now = random.Random(seed), None, 0, at(1)
        begun: list[int] = []
        flying: list[tuple[RunRecord, int]] = []
        for _ in range(60):
            now += chance.choice((0, 1, 10)) * 60_000
            pods = [pod(stored.run)] if stored is not None and stored.stage == STARTED else []
            if stored is not None and stored.stage == STARTED and chance.random() < 0.4:
                pods = [pod(stored.run, phase="Succeeded", exit_code=0)]
            if stored is not None and stored.stage == STARTING:
                pods = [pod(stored.run, gated=True, phase="Pending")]
            step = look(stored, now, *pods, ids=FREE).step
            if isinstance(step, Write):
                flying.append((step.record, version))
            if flying and chance.random() < 0.7:
                record, of = flying.pop(chance.randrange(len(flying)))
                if of == version:
                    if record.stage == STARTING and (stored is None or stored.run != record.run):
                        begun.append(record.scheduled_ms)
                    stored, version = record, version + 1
        assert len(begun) == len(set(begun)), seed
        assert begun == sorted(begun)
        assert len(begun) > 1, seed


def test_a_clock_that_was_ahead_for_a_while_stops_no_schedule() -> None:
    """An operator's clock was a month ahead when it started a run, whose time is thereby in the future."""
    done = RunRecord(
        run=4, stage=ENDED, exit=Exit(4, COMPLETED, at(30 * 24)), scheduled_ms=at(30 * 24),
        fingerprint=SPEC.fingerprint)
    corrected = look(done, at(2, 10))
    after = written(corrected)
    assert after.scheduled_ms == at(2, 10) and corrected.step is not None
    assert [note.reason for note in corrected.step.notes] == ["ClockWasAhead"]
    assert look(after, at(2, 59)).step is None, "no time has passed since"
    assert look(after, at(3)).step == LookAtIds(), "and the next one has a run"


def test_a_clock_that_is_a_little_behind_gives_no_time_two_runs() -> None:
    """That of another operator than the one that started the run."""
    done = RunRecord(
        run=4, stage=ENDED, exit=Exit(4, COMPLETED, at(3)), scheduled_ms=at(3), fingerprint=SPEC.fingerprint)
    for minute in (0, 30, 59):
        assert look(done, at(2, minute)).step is None
    assert look(done, at(3, 1)).step is None


@pytest.mark.parametrize("record", [
    RunRecord(run=4, stage=ENDED, exit=Exit(4, "Error", at(3)), failures=1, next_ms=at(30 * 24), scheduled_ms=at(3),
              fingerprint=SPEC.fingerprint),
    RunRecord(run=4, stage=ENDED, exit=Exit(4, "Vanished", at(30 * 24), seen=False), failures=1, scheduled_ms=at(3),
              fingerprint=SPEC.fingerprint)], ids=["back-off", "vanished"])
def test_a_clock_that_was_ahead_for_a_while_delays_no_start(record: RunRecord) -> None:
    assert look(record, at(3, 10)).step == LookAtIds()


def test_every_minute_is_cheap_however_many_were_missed() -> None:
    """The operator's event loop serves all resources, and looks at each of them every ten seconds."""
    began = time.process_time()
    for zone in ("UTC", "Europe/Berlin"):
        found = due_of(Schedule("* * * * *", zone), -1, CREATED, at(24 * 300))
        assert (found.at_ms, found.missed) == (at(24 * 300), 100)
    assert time.process_time() - began < 0.3
