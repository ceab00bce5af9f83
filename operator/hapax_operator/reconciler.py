"""Makes the cluster match the resources: observe, plan and apply, repeated until nothing is left to do.

The reconciler is level-triggered. Each wake-up (by a resource, the view of the cluster, a timer or its own failure)
observes everything again; it remembers nothing but the resources themselves. Before it changes anything, it reads the
resources again: a watch that was interrupted does not report the resources that were deleted in the meantime.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from hapax.client import Leases
from hapax.client.errors import HapaxError
from hapax.client.identities import Identities
from hapax.core.errors import Refusal
from hapax.runtime import supervision, telemetry
from hapax.runtime.administration import Administration
from hapax.runtime.cluster import Changes, ClusterView
from hapax.runtime.ports import Clock, MetadataUnavailable, Randomness, Task
from hapax_operator import orphans
from hapax_operator.api import KubeApi, KubeRefused, KubeUnavailable
from hapax_operator.apply import TIMEOUT_MS, PolicyWriter, apply_fence, apply_lease, apply_to_topic
from hapax_operator.clusters import Clusters
from hapax_operator.conditions import Condition, Note, camel
from hapax_operator.event_writer import EventWriter
from hapax_operator.metrics import FAILED, RECONCILES
from hapax_operator.namespace_policy import UNRESTRICTED, NamespacePolicy
from hapax_operator.observe import lease_seen, producers_seen, topic_seen
from hapax_operator.plan_lease import Take, owner_before, plan_lease
from hapax_operator.plan_policy import must_ask, must_store, policy_of, standing, touched
from hapax_operator.plan_producer import Fence, ProducerPlan, ProducerSeen, untaken
from hapax_operator.plan_producer import plan as plan_producer
from hapax_operator.plan_topic import Delete, TopicPlan, TopicSeen
from hapax_operator.plan_topic import plan as plan_topic
from hapax_operator.resource_index import ResourceIndex
from hapax_operator.resources import (
    PRODUCERS,
    SPARK_JOBS,
    BadResource,
    Meta,
    ProducerResource,
    Ref,
    Resource,
    SparkJobResource,
    TopicResource,
    read,
)
from hapax_operator.spark_jobs import JobCalls, SparkJobs
from hapax_operator.spark_resource import DEFAULT_ACCOUNT
from hapax_operator.spark_runs import ReconcilerCalls, SparkRuns
from hapax_operator.spark_work import SparkWork
from hapax_operator.status import StatusWriter
from hapax_operator.topic_making import TopicMaker
from hapax_operator.work_queue import WorkQueue

log = telemetry.logger("operator")

_WORKERS: Final = 32
"""They mostly wait for the API server and the controller. Topics requested together are created by one call."""
_ROUNDS: Final = 10
"""Create, add partitions, configure, change replicas, observe; before each of them the resources are read again."""
_SETTLE_S: Final = 0.2
"""Delay after a change of the view of the cluster, because related changes arrive together."""
_MISSED_S: Final = 0.5
_PRODUCER_EVERY_S: Final = 10.0
_PRODUCERS_PER_S: Final = 4.0
"""For all producers together: their statuses change with every transaction, and the API server has other users."""


_CONNECT_S: Final = 20.0
_CLIENT: Final = {"request.timeout.ms": "10000", "default.api.timeout.ms": "20000"}
"""The next look asks again, and the status says meanwhile what does not answer."""


class PolicyUid(NamedTuple):
    """The key of a policy whose resource may be gone."""

    uid: str


_Client = TypeVar("_Client", Identities, Leases)

Key = Ref | PolicyUid | str
"""A TransactionalProducer, a SparkJob, a policy, or a topic's name: all resources that name a topic are reconciled
together."""


class Reconciler:
    """Runs from `start()` to `close()`, while this process leads. `seen` and `gone` are called on its event loop."""

    def __init__(
        self, view: ClusterView, administration: Administration, api: KubeApi, clock: Clock, random: Randomness,
        metrics: telemetry.Metrics, policies: PolicyWriter, policy: NamespacePolicy = UNRESTRICTED,
        client: Mapping[str, str] | None = None, spark_account: str = DEFAULT_ACCOUNT,
        clusters: Clusters | None = None,
    ) -> None:
        """`client`: settings by which clients reach the cluster; without `bootstrap.servers` in it, they connect to the
        nodes' own listeners."""
        self._clusters = clusters or Clusters()
        self.resources = ResourceIndex(self._clusters)
        self._view = view
        self._administration = administration
        self._maker = TopicMaker(administration, TIMEOUT_MS)
        self._api = api
        self._clock = clock
        self._random = random
        self._policies = policies
        self._policy = policy
        self._client = client or {}
        self._statuses = StatusWriter(api, clock, self._written, self._clusters.own)
        self._events = EventWriter(api)
        self._queue: WorkQueue[Key] = WorkQueue()
        self._runs = SparkRuns(api, clock, random, ReconcilerCalls(
            refresh=self._work_of, seen=self._written, note=self._note, ids=self._ids_of,
            fence=self._fence_former, wake=lambda ref: self._queue.add_after(ref, _SETTLE_S)), spark_account,
            self._clusters.own)
        self._jobs = SparkJobs(api, self.resources, self._runs, self._statuses, JobCalls(
            refresh=self._refresh, listed=partial(self.seen, SPARK_JOBS), written=self._written, note=self._note,
            conflict=self._conflict_of, taken=self._has_taken, wake=self._queue.add))
        self._tasks: list[Task] = []
        self._unsubscribe: Callable[[], None] | None = None
        self._clients: dict[type[Identities | Leases], Identities | Leases] = {}
        self._clients_lock = asyncio.Lock()
        self._known_policies = {each.policy.uid: each.policy for each in view.policies}
        self._count = metrics.counter(RECONCILES)
        self._failed = metrics.counter(FAILED)

    def start(self) -> None:
        self._unsubscribe = self._view.on_change(self._changed)
        self._tasks = [
            supervision.keep(self._work, "reconciler", self._random, index) for index in range(_WORKERS)]
        for stored in self._view.policies:
            self._queue.add_after(PolicyUid(stored.policy.uid), orphans.AFTER_S)

    async def close(self) -> None:
        if self._unsubscribe is not None:
            self._unsubscribe()
        await supervision.end(*self._tasks)
        self._queue.close()
        await self._maker.close()
        await self._runs.close()
        for client in self._clients.values():
            await client.close()

    # --- what wakes it

    def seen(self, plural: str, body: Mapping[str, Any]) -> None:
        """Takes a resource's state from a watch or a list."""
        try:
            resource = read(plural, body, self._policy)
        except BadResource as error:
            log.warning("a resource cannot be read", body=str(body.get("metadata", {}).get("name")), error=error)
            return
        self._known_as(resource)
        self._queue.add(_key(resource))

    def look_again(self) -> None:
        """Looks at all resources: other clusters have come or gone."""
        for resource in self.resources.all():
            self._queue.add(_key(resource))

    def gone(self, ref: Ref, uid: str) -> None:
        """`uid`: uid of the deleted resource. A later resource of the same name may have been seen before this call."""
        known = self.resources.get(ref)
        if known is None or known.meta.uid != uid:
            return
        self.resources.pop(ref)
        self._forget(known)

    def _known_as(self, resource: Resource) -> None:
        """Stores the resource's current state. A resource that was replaced by another of the same name while no watch
        ran has no deletion event, so it is forgotten here."""
        former = self.resources.put(resource)
        if former is None or _outline(former) != _outline(resource):
            # The look at another resource may have found it, and no list then shows that a watch has missed it.
            self._queue.add(_key(resource))
            for job in self._jobs_beside(resource):
                self._queue.add(job.meta.ref)
        if former is None:
            return
        if former.meta.uid != resource.meta.uid:
            self._forget(former)
        elif _key(former) != _key(resource):
            self._queue.add(_key(former))

    def _forget(self, former: Resource) -> None:
        """Wakes everything that depended on a resource that is gone."""
        self._statuses.forget(former.meta.uid)
        self._events.forget(former.meta.uid)
        self._queue.add(_key(former))
        self._queue.add(PolicyUid(former.meta.uid))
        for job in self._jobs_beside(former):
            self._queue.add(job.meta.ref)
        if isinstance(former, SparkJobResource):
            self._runs.forget(former.meta.ref, former.status.get("record"))
        if isinstance(former, ProducerResource):
            self._runs.forget(former.meta.ref, former.record)
            if former.lease is not None:
                for heir in self.resources.lessees(former.lease.name):
                    self._queue.add(heir.meta.ref)

    def _jobs_beside(self, resource: Resource) -> list[SparkJobResource]:
        """The SparkJobs that a change of this resource may concern."""
        if isinstance(resource, ProducerResource):
            return self.resources.jobs_of(resource.meta.ref)
        if isinstance(resource, SparkJobResource):
            return self.resources.jobs_of(resource.producer_ref)
        return []

    def _changed(self, changes: Changes) -> None:
        names = dict.fromkeys(changes.topics)
        for partition in changes.partitions:
            topic = self._view.topic_by_id(partition.topic_id)
            if topic is not None:
                names[topic.name] = None
        for name in names:
            self._queue.add_after(name, _SETTLE_S)
        for uid in changes.policies:
            stored = self._view.policies.get(uid)
            former = self._known_policies.pop(uid, None)
            if stored is not None:
                self._known_policies[uid] = stored.policy
                # It may have been stored while its resource was deleted.
                self._queue.add_after(PolicyUid(uid), orphans.AFTER_S)
            changed = former if stored is None else stored.policy
            if changed is not None:
                for producer in touched(self.resources.producers(), changed):
                    self._queue.add_after(producer.meta.ref, _SETTLE_S)
        if changes.nodes:  # the death of a leader changes no partition's record until there is a new leader
            for name in self.resources.topics():
                self._queue.add_after(name, _SETTLE_S)

    # --- work

    async def _work(self) -> None:
        while True:
            key = await self._queue.get()
            self._count.add()
            try:
                await self._look(key)
                self._queue.succeeded(key)
            except (KubeUnavailable, Refusal, HapaxError, MetadataUnavailable, TimeoutError) as error:
                log.warning("reconciling failed, trying again", what=str(key), error=error)
                self._failed.add()
                self._queue.again(key)
            except KubeRefused as error:
                log.error("the API server refuses", what=str(key), error=error)
                self._failed.add()
                self._queue.again(key)
            except Exception as error:
                log.error("reconciling failed", what=str(key), exc_info=error)
                self._failed.add()
                self._queue.again(key)
            except asyncio.CancelledError:  # possibly of a task that was awaited: then this task starts again
                self._queue.again(key)
                raise
            finally:
                self._queue.done(key)

    async def _look(self, key: Key) -> None:
        if isinstance(key, Ref) and key.plural == SPARK_JOBS:
            await self._spark_job(key)
        elif isinstance(key, Ref):
            await self._producer(key)
        elif isinstance(key, PolicyUid):
            await self._orphan(key)
        else:
            await self._topic(key)

    async def _topic(self, topic: str) -> None:
        """What is refused for one resource holds up none of the others: one of them may be waiting to be deleted."""
        refused: Refusal | KubeRefused | None = None
        for unnamed in self.resources.unnamed(topic):
            await self._ask(unnamed, unnamed.meta)
        for resource in self.resources.claimants(topic):
            try:
                await self._topic_resource(topic, resource.meta.ref)
            except (Refusal, KubeRefused) as error:
                refused = refused or error
        if refused is not None:
            raise refused

    async def _ask(self, resource: Resource, belongs: Meta) -> None:
        """Which cluster it means."""
        await self._statuses.write(
            resource, {} if belongs.cluster else {"cluster": None}, [self._clusters.question(belongs)], taken=False)

    async def _topic_resource(self, topic: str, ref: Ref) -> None:
        """Repeats until the plan for this one resource is empty. Raises Refusal, which the status then has."""
        confirmed = False
        for _ in range(_ROUNDS):
            claimants = self.resources.claimants(topic)
            resource = next((each for each in claimants if each.meta.ref == ref), None)
            if resource is None:
                return
            planned = plan_topic(resource, claimants, self._topic_seen(topic))
            if not confirmed and (planned.actions or planned.finalizer is not None or len(claimants) > 1):
                await self._confirm(claimants)
                confirmed = True
                continue
            if planned.finalizer is not None:
                if not await self._api.set_finalizer(resource.meta, planned.finalizer):
                    return  # it has changed, and the watch will report that
                await self._refresh(ref)
                if not planned.actions and planned.status is None:
                    return
            if not planned.actions:
                await self._write(resource, planned)
                return
            if not await self._apply(topic, resource, planned):
                return
            confirmed = False  # it may have taken long

    def _topic_seen(self, name: str) -> TopicSeen | None:
        seen = topic_seen(self._view, name)
        if seen is None or seen.made_by:
            return seen
        return replace(seen, made_by=self._maker.made_for(seen.topic_id))

    async def _apply(self, topic: str, resource: TopicResource, planned: TopicPlan) -> bool:
        """False: the resource waits for another event. Raises Refusal, which the status then has."""
        await self._events.tell(resource.meta, planned.notes)
        for action in planned.actions:
            try:
                done = await apply_to_topic(
                    self._administration, self._maker, self._view, topic, action, resource.meta.uid)
            except Refusal as refusal:
                if planned.status is not None:
                    await self._write(resource, planned, Condition(
                        "Ready", "False", camel(refusal.code.name), refusal.reason or refusal.code.name))
                raise
            log.info(done.message, resource=str(resource.meta.ref))
            await self._note(resource, done)
            if isinstance(action, Delete):
                await self._view.wait_for(lambda view: topic_seen(view, topic) is None, 5.0)
        return True

    async def _write(self, resource: Resource, planned: TopicPlan, ready: Condition | None = None) -> None:
        """`ready` replaces the plan's condition Ready."""
        if planned.status is None:
            return
        if ready is None:
            await self._events.tell(resource.meta, planned.notes)
        conditions = [ready if ready is not None and each.type == "Ready" else each for each in planned.conditions]
        late = await self._statuses.write(resource, planned.status, conditions)
        if late:
            self._queue.add_after(_key(resource), late)
        elif late is None:
            await self._missed(resource)

    async def _missed(self, resource: Resource) -> None:
        """Called when a write was rejected: the resource is gone, replaced by another of its name, or changes
        continually. A resource that still exists must not be forgotten, because no further event may report it."""
        await self._refresh(resource.meta.ref)
        if resource.meta.ref in self.resources:
            self._queue.add_after(_key(resource), _MISSED_S)

    async def _confirm(self, claimants: list[TopicResource]) -> None:
        for each in claimants:
            await self._refresh(each.meta.ref)

    async def _refresh(self, ref: Ref) -> None:
        """Reads the resource again. If it is gone, does what the watch's deletion event would do later."""
        known = self.resources.get(ref)  # before: the answer says nothing of one that the watch reports meanwhile
        body = await self._api.get(ref)
        if body is not None:
            self._answered(read(ref.plural, body, self._policy), known)
        elif known is not None:
            self.gone(ref, known.meta.uid)

    async def _is_current(self, resource: ProducerResource) -> bool:
        """Whether the API server still has the resource as it is known here. If not, it is looked at again, or is
        forgotten: a watch that is late or was interrupted must not fence a producer for a resource that is gone,
        paused or changed."""
        ref = resource.meta.ref
        await self._refresh(ref)
        if self.resources.get(ref) == resource:
            return True
        self._queue.add(ref)
        return False

    def _written(self, ref: Ref, body: Mapping[str, Any]) -> None:
        if ref in self.resources:
            written = read(ref.plural, body, self._policy)
            self._answered(written, written)

    def _answered(self, resource: Resource, asked: Resource | None) -> None:
        """Takes the API server's answer, unless the watch has reported a later state since the question, when the
        resource was known as `asked`."""
        known = self.resources.get(resource.meta.ref)
        if not resource.meta.is_overtaken(None if asked is None else asked.meta, None if known is None else known.meta):
            self._known_as(resource)

    async def _note(self, resource: Resource | SparkWork, note: Note) -> None:
        await self._events.record(resource.meta, note)

    # --- producers

    async def _orphan(self, key: PolicyUid) -> None:
        """Deletes a policy whose resource is gone, for example since a time when no operator ran."""
        stored = self._view.policies.get(key.uid)
        if stored is None or any(each.meta.uid == key.uid for each in self.resources.producers()):
            return
        namespace, _, name = stored.policy.owner.partition("/")
        gone = await orphans.is_orphan(self._api, Ref(PRODUCERS, namespace, name), key.uid)
        if gone is None:
            self._queue.add_after(key, orphans.EVERY_S)
        elif gone:
            await self._policies.store(key.uid, None)
            log.info("a policy was deleted because its resource is gone", owner=stored.policy.owner)

    async def _untaken(self, resource: ProducerResource) -> ProducerPlan | None:
        """The plan for a resource that may not take the ids, because producers have used them; None: it may."""
        if resource.meta.paused or not must_ask(resource, self._view.policies.get(resource.meta.uid)):
            return None
        async with self._asking(resource):
            seen = await producers_seen(await self._connected(Identities), resource)
        stands = standing(resource, self._view.policies)
        if stands.conflict is None:
            seen = [each for each in seen if stands.counts_for(each.transactional_id)]
        if not seen:
            return None
        return plan_producer(resource, (), 0, stands) if stands.conflict is not None else untaken(resource, seen)

    async def _stored_policy(self, resource: ProducerResource) -> None:
        stored = self._view.policies.get(resource.meta.uid)
        if not must_store(resource, stored):
            return
        await self._refresh(resource.meta.ref)
        current = self.resources.get(resource.meta.ref)
        if not isinstance(current, ProducerResource) or not must_store(current, stored):
            return
        wanted = policy_of(current)
        await self._policies.store(current.meta.uid, wanted)
        limits = wanted is not None and (wanted.allowed_topics is not None or wanted.max_timeout_ms)
        if limits or (stored is not None and (stored.policy.allowed_topics or stored.policy.max_timeout_ms)):
            told = "coordinators now enforce it" if limits else "it now allows everything"
            await self._note(current, Note("Normal", "PolicyStored", f"the policy has changed: {told}"))

    async def _producer(self, ref: Ref) -> None:
        resource = self.resources.get(ref)
        if not isinstance(resource, ProducerResource):
            return
        if not self._clusters.owns(resource.meta):
            if self._clusters.unnamed(resource.meta):
                await self._ask(resource, resource.meta)
            return
        if resource.meta.deleting:
            if again_s := await self._jobs.end(resource):
                self._queue.add_after(ref, again_s)
            return
        refusal = await self._untaken(resource)
        if refusal is not None:
            late = await self._statuses.write(resource, refusal.status, refusal.conditions)
            for note in refusal.notes:
                await self._note(resource, note)
            if late is None:
                await self._missed(resource)
            else:
                self._later(ref, late)
            return
        await self._stored_policy(resource)
        resource = self.resources.get(ref)
        if not isinstance(resource, ProducerResource) or resource.meta.deleting:
            return
        if resource.lease is not None:
            await self._lease(resource)
            return
        stands = standing(resource, self._view.policies)
        spark, refused = await self._jobs.look_at_section(resource, self._conflict_of(resource))
        resource = self.resources.get(ref)
        if not isinstance(resource, ProducerResource):
            return
        hidden = stands.conflict is not None or resource.outside
        async with self._asking(resource):
            identities = await self._connected(Identities)
            seen = [] if hidden else await producers_seen(identities, resource)
        planned = plan_producer(resource, seen, self._clock.now_ms(), stands)
        if (planned.fences or planned.ensure) and not await self._is_current(resource):
            return
        await self._events.tell(resource.meta, planned.notes)
        status = dict(planned.status)
        if planned.ensure:
            producer_id, _ = await identities.ensure(resource.transactional_id)
            await self._note(resource, Note(
                "Normal", "IdentityMade", f"{resource.transactional_id} has producer id {producer_id}"))
        for number, fence in enumerate(planned.fences):
            # The former fence may have taken long: its coordinator may have been away.
            if number and not await self._is_current(resource):
                break
            await self._fence(identities, resource, fence, status)
        urgent = bool(planned.fences) or planned.intends
        conditions = planned.conditions
        if spark is not None:
            status["sparkProgress"] = spark.progress
            conditions = (*conditions, *spark.conditions)
        late = await self._statuses.write(resource, status, conditions, urgent=urgent)
        if refused is not None:
            raise refused
        if spark is not None and spark.again_s > 0:
            self._queue.add_after(ref, spark.again_s)
        if late is None:
            await self._missed(resource)
        elif planned.intends:
            self._queue.add(ref)
        else:
            self._later(ref, 0.5 if planned.fences or planned.ensure else late)

    # --- Spark

    async def _spark_job(self, ref: Ref) -> None:
        job = self.resources.get(ref)
        if not isinstance(job, SparkJobResource):
            return
        if job.producer_ref not in self.resources:
            await self._refresh(job.producer_ref)
        producer = self.resources.get(job.producer_ref)
        belongs = job.meta if producer is None else producer.meta  # a job writes where its producer is
        if not self._clusters.owns(belongs):
            if self._clusters.unnamed(belongs):
                await self._ask(job, belongs)
            return
        look = await self._jobs.look(job)
        if look.refused is not None:
            raise look.refused
        if look.again_s is None:
            await self._missed(job)
        else:
            self._queue.add_after(ref, look.again_s or _PRODUCER_EVERY_S)

    def _has_taken(self, producer: ProducerResource) -> bool:
        return policy_of(producer) is None or self._view.policies.get(producer.meta.uid) is not None

    def _conflict_of(self, producer: ProducerResource) -> str:
        conflict = standing(producer, self._view.policies).conflict
        return "" if conflict is None else conflict.owner

    async def _work_of(self, ref: Ref) -> SparkWork | None:
        return await self._jobs.work(ref)

    async def _ids_of(self, work: SparkWork) -> Sequence[ProducerSeen]:
        resource = work.producer
        assert resource is not None
        seen = await producers_seen(await self._connected(Identities), resource, closely=True)
        stands = standing(resource, self._view.policies)
        return [each for each in seen if stands.counts_for(each.transactional_id)]

    async def _fence_former(self, work: SparkWork, fence: Fence) -> None:
        resource = work.producer
        assert resource is not None
        status: dict[str, Any] = {}
        await self._fence(await self._connected(Identities), resource, fence, status)
        await self._api.put_status(resource.meta, status)

    async def _fence(
        self, identities: Identities, resource: ProducerResource, fence: Fence, status: dict[str, Any]
    ) -> None:
        epoch = await apply_fence(identities, resource, fence)
        if epoch is None:
            log.info("the transaction ended before its producer was fenced", id=fence.transactional_id)
            return
        told = f"the producer of {fence.transactional_id} is fenced: {fence.reason}"
        log.info(told, epoch=epoch, fenced=fence.epoch)
        await self._note(resource, Note("Normal", "ProducerFenced", told))
        status["lastFence"] = {
            "time": self._statuses.now(), "reason": fence.reason, "fencedEpoch": fence.epoch, "epoch": epoch}
        if fence.request is not None:
            status |= {"fenced": fence.request, "fencing": None}

    async def _lease(self, resource: ProducerResource) -> None:
        lease = resource.lease
        assert lease is not None
        async with self._asking(resource):
            leases = await self._connected(Leases)
        older = owner_before(resource, self.resources.lessees(lease.name))
        if older is not None:  # it may be gone without an event, if the watch was interrupted
            await self._refresh(older.meta.ref)
            older = owner_before(resource, self.resources.lessees(lease.name))
        async with self._asking(resource):
            seen = None if older is not None or resource.outside else await lease_seen(leases, lease.name)
        planned = plan_lease(resource, seen, self._clock.now_ms(), older)
        if planned.action is not None and not await self._is_current(resource):
            return
        await self._events.tell(resource.meta, planned.notes)
        conditions = planned.conditions
        if planned.action is not None:
            try:
                await apply_lease(leases, planned.action)
            except HapaxError as error:
                refused = Condition("Ready", "False", "LeaseRefused", str(error))
                await self._statuses.write(resource, planned.status, [refused, *conditions[1:]])
                raise
            if isinstance(planned.action, Take):
                await self._note(resource, Note("Normal", "LeaseTaken", f"the operator took the lease {lease.name}"))
            self._queue.add(resource.meta.ref)
            return
        late = await self._statuses.write(resource, planned.status, conditions, urgent=planned.intends)
        if late is None:
            await self._missed(resource)
        elif planned.intends and self._notes_lease(resource.meta.ref, lease.name):
            self._queue.add(resource.meta.ref)
        else:
            self._later(resource.meta.ref, late)

    def _notes_lease(self, ref: Ref, name: str) -> bool:
        """Whether the status says now that the lease is the resource's."""
        resource = self.resources.get(ref)
        if isinstance(resource, ProducerResource) and resource.status.get("ownedLease") != name:
            log.error("the definition of TransactionalProducer is of an earlier release: install this release's",
                      resource=str(ref))
            return False
        return True

    def _later(self, ref: Ref, late: float) -> None:
        """Reconciles again after `late` seconds, but no sooner than the common pace of all producers. A `late` below
        1 s, for work in progress, ignores the pace."""
        pace = max(_PRODUCER_EVERY_S, len(self.resources.producers()) / _PRODUCERS_PER_S)
        self._queue.add_after(ref, late if 0 < late < 1 else max(late, pace))

    def _bootstrap(self) -> str:
        nodes = [node for node in self._view.nodes() if node.port > 0]
        return ",".join(f"{node.host}:{node.port}" for node in nodes[:5])

    @asynccontextmanager
    async def _asking(self, resource: ProducerResource) -> AsyncIterator[None]:
        """The cluster, for how the resource's ids stand. What it does not answer is shown in the status, and raised:
        HapaxError, MetadataUnavailable, TimeoutError."""
        try:
            yield
        except (HapaxError, MetadataUnavailable, TimeoutError) as error:
            known = self.resources.get(resource.meta.ref)
            if isinstance(known, ProducerResource) and known.meta.uid == resource.meta.uid:
                why = f"the cluster does not say how the ids stand; the operator goes on asking: {error}"
                others = [Condition(each["type"], each["status"], each["reason"], each["message"])
                          for each in known.status.get("conditions") or () if each["type"] != "Ready"]
                await self._statuses.write(known, {}, [Condition("Ready", "False", "NotAnswered", why), *others])
            raise

    async def _connected(self, kind: type[_Client]) -> _Client:
        """Raises HapaxError; TimeoutError if no node of the cluster is known, or none takes a connection."""
        try:
            async with asyncio.timeout(_CONNECT_S), self._clients_lock:
                known = self._clients.get(kind)
                if known is None:
                    await self._view.wait_for(lambda view: any(node.port > 0 for node in view.nodes()))
                    known = self._clients[kind] = await kind({
                        **_CLIENT, "bootstrap.servers": self._bootstrap(), **self._client,
                        "client.id": "hapax-operator"}).start()
                assert isinstance(known, kind)
                return known
        except TimeoutError:
            nodes = self._bootstrap() or "none is registered"
            raise TimeoutError(f"no connection to the cluster's nodes ({nodes}) within {_CONNECT_S:.0f} s") from None


def _key(resource: Resource) -> Key:
    return resource.topic if isinstance(resource, TopicResource) else resource.meta.ref


def _outline(resource: Resource) -> tuple[object, ...]:
    """What a SparkJob depends on: not the state of the ids, which changes with every transaction."""
    meta = resource.meta
    record = resource.has_runs if isinstance(resource, ProducerResource) else False
    return meta.uid, meta.generation, meta.paused, meta.deleting, record
