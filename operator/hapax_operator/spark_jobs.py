"""Looks after SparkJobs and the `spark` sections of TransactionalProducers, and carries the one over into the other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

from hapax.runtime import telemetry
from hapax_operator.api import KubeApi, KubeRefused
from hapax_operator.conditions import Condition, Note, from_millis
from hapax_operator.resource_index import ResourceIndex
from hapax_operator.resources import (
    GROUP,
    KINDS,
    PRODUCERS,
    SPARK_FINALIZER,
    SPARK_JOBS,
    BadResource,
    ProducerResource,
    Ref,
    SparkJobResource,
    read_spark_job,
    version_of,
)
from hapax_operator.spark_resource import same_job
from hapax_operator.spark_runs import PodsForbidden, SparkRuns, SparkView
from hapax_operator.spark_work import (
    HINDRANCES,
    JOB,
    SECTION,
    Clear,
    Copy,
    DropFinalizer,
    HandOver,
    SparkWork,
    TakeFinalizer,
    heir,
    of_job,
    of_section,
    plan_handover,
)
from hapax_operator.status import StatusWriter, difference

log = telemetry.logger("spark")

_ROUNDS: Final = 10
"""Steps of a hand-over in one look."""
_AGAIN_S: Final = 2.0


class JobCalls(NamedTuple):
    """Callbacks into the reconciler. They raise errors after which the reconciler tries again."""

    refresh: Callable[[Ref], Awaitable[None]]
    """Reads the resource from the API server."""
    listed: Callable[[Mapping[str, Any]], None]
    """Takes a resource's body from a list."""
    written: Callable[[Ref, Mapping[str, Any]], None]
    note: Callable[[ProducerResource | SparkJobResource, Note], Awaitable[None]]
    conflict: Callable[[ProducerResource], str]
    """The older resource that describes the same ids; empty: none."""
    taken: Callable[[ProducerResource], bool]
    """Whether the producer counts for its ids. One that may not adopt them has no policy."""
    wake: Callable[[Ref], None]


class JobLook(NamedTuple):
    again_s: float | None
    """Seconds until the next look; 0: at the reconciler's own pace. None: the status was not written, because the
    resource has changed."""
    refused: KubeRefused | None = None


class SparkJobs:
    """The reconciler's workers call it, never concurrently for the same resource."""

    def __init__(
        self, api: KubeApi, resources: ResourceIndex, runs: SparkRuns, statuses: StatusWriter, calls: JobCalls
    ) -> None:
        self._api = api
        self._resources = resources
        self._runs = runs
        self._statuses = statuses
        self._calls = calls

    async def work(self, ref: Ref) -> SparkWork | None:
        """The current state at the API server: first the producer's, then the job's. Raises KubeUnavailable."""
        if ref.plural == PRODUCERS:
            await self._calls.refresh(ref)
            producer = self._resources.get(ref)
            if not isinstance(producer, ProducerResource) or await self._has_heir(producer):
                return None
            return of_section(producer)
        job = self._resources.get(ref)
        if isinstance(job, SparkJobResource):
            await self._calls.refresh(job.producer_ref)
            await self._calls.refresh(ref)
        return self._known(ref)

    def _known(self, ref: Ref) -> SparkWork | None:
        job = self._resources.get(ref)
        if not isinstance(job, SparkJobResource):
            return None
        return of_job(job, self._producer(job), self._resources.jobs_of(job.producer_ref))

    def _producer(self, job: SparkJobResource) -> ProducerResource | None:
        producer = self._resources.get(job.producer_ref)
        return producer if isinstance(producer, ProducerResource) else None

    # --- SparkJobs

    async def look(self, job: SparkJobResource) -> JobLook:
        """Raises KubeUnavailable, HapaxError."""
        ref = job.meta.ref
        if self._producer(job) is None:
            await self._calls.refresh(job.producer_ref)  # it may not have been listed yet
        if not await self._handed_over(ref):
            return JobLook(_AGAIN_S)
        work = self._known(ref)
        if work is None:
            return JobLook(0.0)
        producer, refused = work.producer, None
        if producer is not None and not (job.meta.deleting or work.hindered or self._calls.taken(producer)):
            # Before a run starts, its former ids' holders are fenced: only those of a producer that owns them.
            why = f"the TransactionalProducer {job.producer} has not taken its ids; its condition Ready says why"
            waits = (Condition("Ready", "False", "ProducerNotReady", why),)
            late = await self._statuses.write(job, {}, waits)
            return JobLook(_AGAIN_S if late is not None else None)
        try:
            view = await self._runs.look(work, "" if producer is None else self._calls.conflict(producer))
        except PodsForbidden as error:
            view = _refused(work, error)
        except KubeRefused as error:
            view, refused = _refused(work, error), error
        known = self._resources.get(ref)
        if not isinstance(known, SparkJobResource) or known.meta.uid != job.meta.uid:
            return JobLook(0.0)
        late = await self._statuses.write(known, self._fields(known, view), self._conditions(known, view))
        if late is None:
            return JobLook(None, refused)
        return JobLook(min(each for each in (late, view.again_s) if each > 0) if late or view.again_s else 0.0, refused)

    def _fields(self, job: SparkJobResource, view: SparkView) -> Mapping[str, Any]:
        producer = self._producer(job)
        of = {} if producer is None else producer.status
        return {
            JOB.progress: view.progress,
            "transactionalId": None if producer is None else producer.transactional_id or producer.prefix,
            "nextRunAt": from_millis(view.next_ms) if view.next_ms >= 0 else None,
            "lastToken": of.get("lastToken"), "lastOutcome": of.get("lastOutcome")}

    def _conditions(self, job: SparkJobResource, view: SparkView) -> tuple[Condition, ...]:
        work = self._known(job.meta.ref)
        assert work is not None
        ready = Condition("Ready", "True", "Accepted", f"it writes under the TransactionalProducer {job.producer}")
        if work.hindered:
            why = HINDRANCES.get(work.hindered, "an older SparkJob writes under the same TransactionalProducer")
            if work.producer is not None and work.producer.outside:
                why = work.producer.outside
            ready = Condition("Ready", "False", work.hindered, why)
        conditions = (ready, *view.conditions)
        if job.meta.paused:
            conditions += (Condition("Paused", "True", "Annotated", "the annotation hapax.dev/pause is set"),)
        return conditions

    # --- sections

    async def look_at_section(
        self, producer: ProducerResource, conflict: str
    ) -> tuple[SparkView | None, KubeRefused | None]:
        """None if it has no job. A refusal of the API server is shown in the status, and then raised by the caller.
        That pods may not be listed is no error, but how the chart was installed: it is only shown."""
        if not producer.has_runs:
            return None, None
        work = of_section(producer)
        try:
            wanted = producer.meta.carry_over and producer.spark is not None and producer.acts and not conflict
            if await self._has_heir(producer) or (wanted and await self._carried_over(producer)):
                return SparkView((), None, 0.0), None
            return await self._runs.look(work, conflict), None
        except PodsForbidden as refused:
            return _refused(work, refused), None
        except KubeRefused as refused:
            return _refused(work, refused), refused

    async def end(self, producer: ProducerResource) -> float:
        """Ends the driver of a deleted producer, which then loses its finalizer."""
        if SPARK_FINALIZER not in producer.meta.finalizers:
            return 0.0
        return (await self._runs.look(of_section(producer), "")).again_s

    async def _has_heir(self, producer: ProducerResource) -> bool:
        """Whether a SparkJob takes over the runs. The watch may not have reported it yet, and without it they would be
        ended. Raises KubeUnavailable, KubeRefused."""
        if producer.spark is not None or producer.meta.deleting:
            return False
        namespace = producer.meta.ref.namespace
        try:
            found = await self._api.listed(
                f"/apis/{GROUP}/{version_of(SPARK_JOBS)}/namespaces/{namespace}/{SPARK_JOBS}", "")
        except KubeRefused as refused:
            # Not to be told is not to have none: without an heir, the runs end.
            if refused.code != 404 or await self._api.serves(SPARK_JOBS):
                raise
            found = {"items": []}
        for body in found["items"]:
            self._calls.listed(body)
        chosen = heir(producer, self._resources.jobs_of(producer.meta.ref))
        if chosen is not None:
            self._calls.wake(chosen.meta.ref)
        return chosen is not None

    async def _carried_over(self, producer: ProducerResource) -> bool:
        """Creates a SparkJob of the section, and then removes the section. The SparkJob's look takes over the run.
        False: another SparkJob has the name."""
        ref = producer.meta.ref
        body = await self._api.get(ref)
        if body is None or body["metadata"]["uid"] != producer.meta.uid or "spark" not in body["spec"]:
            return True  # it has changed, and is looked at again
        version, target = body["metadata"]["resourceVersion"], Ref(SPARK_JOBS, ref.namespace, ref.name)
        collection = f"/apis/{GROUP}/{version_of(SPARK_JOBS)}/namespaces/{ref.namespace}/{SPARK_JOBS}"
        await self._api.create(collection, {
            "apiVersion": f"{GROUP}/{version_of(SPARK_JOBS)}", "kind": KINDS[SPARK_JOBS],
            "metadata": {"name": ref.name, "ownerReferences": [{
                "apiVersion": f"{GROUP}/{version_of(PRODUCERS)}", "kind": KINDS[PRODUCERS], "name": ref.name,
                "uid": producer.meta.uid}]},
            "spec": {**body["spec"]["spark"], "producer": {"name": ref.name}}})
        made = await self._api.get(target)
        if made is None:
            return True
        try:
            job = read_spark_job(made)
        except BadResource:
            job = None
        if job is None or not same_job(job.spark, producer.spark) or job.producer != ref.name or job.meta.deleting:
            await self._calls.note(producer, Note(
                "Warning", "CarryOverRefused", f"the SparkJob {ref.name} exists with other settings than spec.spark"))
            return False
        self._calls.listed(made)
        if await self._api.take_out(producer.meta, "/spec/spark", version):
            log.info("spec.spark became a SparkJob", resource=str(ref))
            await self._calls.note(producer, Note(
                "Normal", "CarriedOver", f"spec.spark became the SparkJob {ref.name}; its run goes on"))
        await self._calls.refresh(ref)
        self._calls.wake(target)
        self._calls.wake(ref)
        return True

    # --- handing over

    async def _handed_over(self, ref: Ref) -> bool:
        """Whether no run of the producer's section is left to hand over to this job."""
        for _ in range(_ROUNDS):
            job, step = self._next_step(ref)
            if job is None or step is None:
                return True
            await self._calls.refresh(job.producer_ref)
            await self._calls.refresh(ref)
            job, step = self._next_step(ref)
            if job is None or step is None:
                return True
            await self._take(job, step)
        return False

    def _next_step(self, ref: Ref) -> tuple[SparkJobResource | None, HandOver | None]:
        job = self._resources.get(ref)
        if not isinstance(job, SparkJobResource):
            return None, None
        producer = self._producer(job)
        if producer is None or not (job.acts and producer.acts):
            return job, None
        chosen = heir(producer, self._resources.jobs_of(producer.meta.ref))
        return job, plan_handover(job, producer) if chosen is not None and chosen.meta.uid == job.meta.uid else None

    async def _take(self, job: SparkJobResource, step: HandOver) -> None:
        producer = self._producer(job)
        assert producer is not None
        match step:
            case TakeFinalizer():
                await self._api.set_finalizer(job.meta, True, SPARK_FINALIZER)
            case Copy(record):
                told = difference({JOB.record: job.status.get(JOB.record)}, {JOB.record: record})
                body = await self._api.put_record(job.meta, told)
                if body is not None:
                    self._calls.written(job.meta.ref, body)
            case Clear():
                body = await self._api.put_record(producer.meta, {SECTION.record: None})
                if body is not None:
                    self._calls.written(producer.meta.ref, body)
                    await self._calls.note(job, Note(
                        "Normal", "RunTaken", f"the runs of {producer.meta.ref.name}'s spec.spark are continued here"))
            case DropFinalizer():
                await self._api.set_finalizer(producer.meta, False, SPARK_FINALIZER)
        await self._calls.refresh(producer.meta.ref)
        await self._calls.refresh(job.meta.ref)


def _refused(work: SparkWork, refused: KubeRefused) -> SparkView:
    message = f"the API server refuses the driver's pod: {refused}"
    if refused.code == 403:
        message += " (spark.enabled of the chart grants the right)"
    told = Condition(f"{work.form.condition}Running", "False", "Refused", message)
    return SparkView((told,) if work.spark is not None else (), work.progress or None, 0.0)
