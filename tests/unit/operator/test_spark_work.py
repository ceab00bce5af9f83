"""SparkJobs and the producers they write under: which of them runs, and how a run is handed over."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from hapax_operator.conditions import Condition
from hapax_operator.plan_producer import ProducerSeen
from hapax_operator.plan_spark import (
    ENDED,
    STARTED,
    Delete,
    Exit,
    LookAtIds,
    Make,
    PodSeen,
    RunRecord,
    SparkPlan,
    Write,
    plan_spark,
)
from hapax_operator.resources import (
    PRODUCERS,
    SPARK_FINALIZER,
    SPARK_JOBS,
    LeaseSpec,
    Meta,
    ProducerResource,
    Ref,
    SparkJobResource,
    read_producer,
    read_spark_job,
)
from hapax_operator.spark_pods import driver_pod
from hapax_operator.spark_resource import SparkSpec, same_job
from hapax_operator.spark_work import (
    Clear,
    Copy,
    DropFinalizer,
    HandOver,
    TakeFinalizer,
    heir,
    identity_of,
    of_job,
    of_section,
    plan_handover,
)

NOW = 1_800_000_000_000
SPEC = SparkSpec(image="spark:1", job="jobs.one", checkpoint_claim="claim")


def meta(plural: str, name: str, **fields: Any) -> Meta:
    return Meta(**{
        "ref": Ref(plural, "team", name), "uid": f"u-{name}", "generation": 1, "created": "2026-01-01T00:00:00Z",
        **fields})


def producer(record: RunRecord | None = None, spec: SparkSpec | None = None, **fields: Any) -> ProducerResource:
    about = {each: fields.pop(each) for each in ("finalizers", "deleting", "paused") if each in fields}
    fields = fields if "lease" in fields or "prefix" in fields else {"transactional_id": "loader", **fields}
    return ProducerResource(
        meta=meta(PRODUCERS, "p", **about), spark=spec, status={} if record is None else {"spark": record.encode()},
        **fields)


def job(record: RunRecord | None = None, name: str = "j", **about: Any) -> SparkJobResource:
    return SparkJobResource(
        meta=meta(SPARK_JOBS, name, **about), producer="p", spark=SPEC,
        status={} if record is None else {"record": record.encode()})


def pod(run: int = 1, **fields: Any) -> PodSeen:
    return PodSeen(**{
        "name": f"j-spark-{run}", "uid": f"d{run}", "owner": "u-j", "run": run, "driver": True,
        "fingerprint": SPEC.fingerprint, "phase": "Running", **fields})


def started(run: int = 1, **fields: Any) -> RunRecord:
    return RunRecord(**{
        "run": run, "stage": STARTED, "uid": f"d{run}", "driver": f"j-spark-{run}", "fingerprint": SPEC.fingerprint,
        "identity": identity_of(producer()), "started_ms": NOW - 1000, "running_ms": NOW - 1000, **fields})


def look(
    one: SparkJobResource, of: ProducerResource | None, *pods: PodSeen, rivals: tuple[SparkJobResource, ...] = (),
    ids: list[ProducerSeen] | None = None,
) -> SparkPlan:
    return plan_spark(of_job(one, of, rivals), True, pods, ids, NOW)


def running(planned: SparkPlan) -> Condition:
    return next(each for each in planned.conditions if each.type == "Running")


def test_a_spark_job_s_driver_writes_under_the_producer_s_ids() -> None:
    body = driver_pod(of_job(job(), producer(prefix="team-")), SPEC, 2)
    assert body["metadata"]["name"] == "j-spark-2"
    (owner,) = body["metadata"]["ownerReferences"]
    assert (owner["apiVersion"], owner["kind"], owner["uid"]) == ("hapax.dev/v1alpha2", "SparkJob", "u-j")
    told = {each["name"]: each.get("value") for each in body["spec"]["containers"][0]["env"]}
    assert told["HAPAX_SPARK_TRANSACTIONAL_ID_PREFIX"] == "team-"
    assert body["metadata"]["labels"]["hapax.dev/identity"] == identity_of(producer(prefix="team-"))


@pytest.mark.parametrize(("of", "rivals", "reason"), [
    (None, (), "NoProducer"),
    (producer(lease=LeaseSpec("l", ("t-0",), 60)), (), "LeaseProducer"),
    (producer(outside="it may not"), (), "OutsidePolicy"),
    (producer(spec=SPEC), (), "ProducerHasJob"),
    (producer(started()), (), "ProducerHasJob"),
    (producer(), (job(name="older", created="2025-01-01T00:00:00Z"),), "ResourceConflict"),
])
def test_what_keeps_a_job_from_running(
    of: ProducerResource | None, rivals: tuple[SparkJobResource, ...], reason: str
) -> None:
    rests = look(job(), of, rivals=rivals)
    assert rests.step is None and running(rests)[1:3] == ("False", reason)
    ends = look(job(started()), of, pod(), rivals=rivals)
    assert isinstance(ends.step, Write) and ends.step.record.ending == reason, "a run that goes on is ended"


def test_a_younger_rival_and_itself_hinder_no_job() -> None:
    rivals = (job(), job(name="younger", created="2026-01-02T00:00:00Z"))
    assert look(job(), producer(), rivals=rivals).step == LookAtIds()


def test_a_producer_that_was_replaced_by_one_with_other_ids_ends_the_run_under_the_former_ones() -> None:
    other = producer(transactional_id="other")
    ends = look(job(started()), other, pod())
    assert isinstance(ends.step, Write) and ends.step.record.ending == "OtherProducer"
    ending = ends.step.record
    assert look(job(ending), other, pod()).step == Delete((pod(),))
    ended = look(job(ending), other, pod(phase="Failed")).step
    assert isinstance(ended, Write) and (ended.record.stage, ended.record.pinned) == (ENDED, "")
    assert look(job(ended.record), other).step == LookAtIds(), "and the next one starts under the new ones"


def test_a_producer_that_is_paused_or_not_managed_keeps_its_job_as_it_is() -> None:
    for of in (producer(paused=True), producer(managed=False)):
        assert look(job(started(fingerprint="old")), of, pod()).step is None
        assert look(job(), of).step is None


def test_a_run_that_was_handed_over_goes_on_and_its_pods_are_the_job_s() -> None:
    old = pod(owner="u-p", name="p-driver-1")
    assert look(job(started()), producer(), old).step is None
    stray = pod(7, owner="u-p", driver=False)
    assert look(job(RunRecord(run=7)), producer(), stray).step == Delete((stray,))
    foreign = look(job(RunRecord(run=7)), producer(spec=SPEC), stray)
    assert foreign.step is None, "the pods of a section that still is there belong to the producer"


def test_a_section_that_is_removed_is_handed_over_step_by_step() -> None:
    left = producer(started(3), finalizers=(SPARK_FINALIZER,))
    assert heir(left, [job()]) == job()
    assert plan_handover(job(), left) == TakeFinalizer()
    one = job(finalizers=(SPARK_FINALIZER,))
    copied = plan_handover(one, left)
    assert isinstance(copied, Copy) and RunRecord.decode(copied.record) == started(3)
    one = replace(one, status={"record": dict(copied.record)})
    assert plan_handover(one, left) == Clear()
    assert isinstance(plan_handover(one, producer(started(4), finalizers=(SPARK_FINALIZER,))), Copy)
    assert plan_handover(one, producer(finalizers=(SPARK_FINALIZER,))) == DropFinalizer()
    assert plan_handover(one, producer()) is None


def test_numbers_of_runs_never_go_back_by_a_hand_over() -> None:
    one = job(RunRecord(run=9), finalizers=(SPARK_FINALIZER,))
    copied = plan_handover(one, producer(started(3)))
    assert isinstance(copied, Copy) and copied.record["run"] == 9
    assert plan_handover(replace(one, status={"record": dict(copied.record)}), producer(started(3))) == Clear()


def test_who_inherits() -> None:
    jobs = [job(name="a", created="2026-02-01T00:00:00Z"), job(name="b")]
    assert heir(producer(started()), jobs) == jobs[1], "the oldest"
    assert heir(producer(started(), spec=SPEC), jobs) is None, "the section is there"
    assert heir(producer(), jobs) is None, "nothing is left"
    assert heir(producer(started(), deleting=True), jobs) is None, "the producer ends its run with itself"
    assert heir(producer(started()), [job(deleting=True)]) is None


def test_a_job_that_was_complete_as_a_section_is_complete() -> None:
    record = RunRecord(
        run=2, stage=ENDED, fingerprint=SPEC.fingerprint, exit=Exit(2, "Completed", NOW, 0),
        identity=identity_of(producer()))
    assert running(look(job(record), producer())).reason == "Completed"


@dataclass
class World:
    """Two resources whose writes compare versions; operators may stand still between reading and writing."""

    producer: ProducerResource
    job: SparkJobResource
    versions: dict[str, int] = field(default_factory=lambda: {"p": 0, "j": 0})
    truth: dict[str, Any] = field(default_factory=dict)
    """The newest record."""

    def apply(self, step: HandOver, read: dict[str, int]) -> None:
        match step:
            case TakeFinalizer():
                self.job = replace(self.job, meta=replace(self.job.meta, finalizers=(SPARK_FINALIZER,)))
                self.versions["j"] += 1
            case Copy(record) if read["j"] == self.versions["j"]:
                self.job = replace(self.job, status={"record": dict(record)})
                self.versions["j"] += 1
            case Clear() if read["p"] == self.versions["p"]:
                assert RunRecord.decode(self.job.status["record"]) == RunRecord.decode(self.truth)
                self.producer = replace(self.producer, status={})
                self.versions["p"] += 1
            case DropFinalizer():
                self.producer = replace(self.producer, meta=replace(self.producer.meta, finalizers=()))
                self.versions["p"] += 1

    def former_operator(self) -> None:
        """It still follows the producer's record, which goes on to the next run."""
        if self.producer.record:
            self.write_producer(started(self.producer.record["run"] + 1))

    def write_producer(self, record: RunRecord) -> None:
        self.truth = record.encode()
        self.producer = replace(self.producer, status={"spark": dict(self.truth)})
        self.versions["p"] += 1

    def job_goes_on(self) -> None:
        """The job writes its record when it may act: it never does while the producer has one."""
        if of_job(self.job, self.producer).hindered:
            return
        self.truth = started(self.job.status["record"]["run"] + 1).encode()
        self.job = replace(self.job, status={"record": dict(self.truth)})
        self.versions["j"] += 1


def test_a_hand_over_loses_no_run_whoever_dies_or_stands_still() -> None:
    done = 0
    for seed in range(300):
        chance = random.Random(seed)
        world = World(producer(finalizers=(SPARK_FINALIZER,)), job())
        world.write_producer(started())
        flying: list[tuple[HandOver, dict[str, int]]] = []
        for _ in range(40):
            match chance.randrange(6):
                case 0:
                    world.former_operator()
                case 1 if flying:
                    world.apply(*flying.pop(chance.randrange(len(flying))))
                case 2 if world.job.status.get("record") and not world.producer.has_runs:
                    world.job_goes_on()
                case 3 if flying:
                    flying.pop(0)
                case _:
                    of, one, read = world.producer, world.job, dict(world.versions)
                    if heir(of, [one]) and (step := plan_handover(one, of)) is not None:
                        flying.append((step, read))
                        if chance.random() < 0.7:
                            world.apply(*flying.pop())
            counts = world.producer.record or world.job.status.get("record") or {}
            assert RunRecord.decode(counts) == RunRecord.decode(world.truth), seed
        done += not world.producer.has_runs
    assert done > 100, "where little is handed over, little is tried"


def test_a_spark_job_s_body_is_read_as_the_section_is() -> None:
    spark = {"image": "spark:1", "job": "jobs.one", "arguments": ["--x"], "checkpoint": {"claimName": "c"}}
    about = {"metadata": {"namespace": "team", "name": "n", "uid": "u"}}
    section = read_producer({**about, "spec": {"transactionalId": "a", "spark": spark}}).spark
    read = read_spark_job({**about, "spec": {**spark, "producer": {"name": "p"}, "historyLimit": 5}}).spark
    assert same_job(read, section) and not same_job(replace(read, suspend=True), section)
    assert not same_job(read, None)


def test_no_upgrade_of_the_operator_changes_a_fingerprint() -> None:
    """As the first release computed it: another one would restart every job."""
    spec = SparkSpec(
        image="spark:1", job="jobs.one", arguments=("--x",), executors=2, checkpoint_claim="claim",
        conf={"spark.a": "b"})
    assert spec.fingerprint == FIRST
    stored = replace(spec, account="hapax-spark")
    assert stored.fingerprint == FIRST, "with the default of its definition, which the API server stored"


FIRST = "5c04587b56bd772c"


def test_a_start_names_the_ids_that_its_pods_are_found_by() -> None:
    free = [ProducerSeen("loader", 7, 3, "Empty", instance="one")]
    step = look(job(), producer(), ids=free).step
    assert isinstance(step, Write) and step.record.pinned == identity_of(producer())
    assert look(job(step.record), producer(), ids=free).step == Make(1)
    assert of_section(producer(spec=SPEC)).identity == step.record.identity
