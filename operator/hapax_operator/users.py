"""Makes ACLs, quotas, passwords and Secrets match the User resources: observe, plan and apply, like the reconciler of
topics, with a queue of its own.

Secrets are not watched: that would need the right to list all Secrets of a namespace. Each User's own Secret is read by
its name every half minute, so what was done to it by hand is put right within that time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from hapax.core.access.principal_rules import PrincipalRules
from hapax.core.errors import Refusal
from hapax.runtime import supervision, telemetry
from hapax.runtime.administration import Administration
from hapax.runtime.cluster import Changes, ClusterView
from hapax.runtime.ports import Clock, MetadataUnavailable, Randomness, Task
from hapax_operator import orphans
from hapax_operator.access_file import AccessFile
from hapax_operator.api import KubeApi, KubeRefused, KubeUnavailable
from hapax_operator.apply_user import (
    apply_to_cluster,
    apply_to_user,
    fresh_password,
    read_authority,
    secret_path,
)
from hapax_operator.clusters import Clusters
from hapax_operator.conditions import Condition, camel
from hapax_operator.event_writer import EventWriter
from hapax_operator.metrics import USERS_FAILED, USERS_RECONCILED
from hapax_operator.observe_users import UserObserver
from hapax_operator.plan_user import UserPlan, plan_orphan, plan_user
from hapax_operator.resources import USERS, BadResource, Meta, Ref
from hapax_operator.status import StatusWriter
from hapax_operator.user_resource import USER_FINALIZER, UserResource, read_owner, read_user
from hapax_operator.user_secret import SecretSeen, read_secret
from hapax_operator.work_queue import WorkQueue

log = telemetry.logger("users")

_WORKERS: Final = 8
_ROUNDS: Final = 10
_SETTLE_S: Final = 0.2
_MISSED_S: Final = 0.5
_EVERY_S: Final = 30.0
_PER_S: Final = 4.0
"""Looks at Secrets, for all Users together: the API server has other users."""
_FORBIDDEN: Final = 403


class Orphan(NamedTuple):
    """The owner of something in the cluster, whose resource may be gone."""

    owner: str


@dataclass(frozen=True, slots=True)
class ClusterAccess:
    """What the operator's file and settings say."""

    file: AccessFile
    authorises: bool
    """Whether the cluster has an authoriser."""
    rules: PrincipalRules
    """Those by which certificates become principals."""
    home: str = ""
    """The operator's own namespace; empty: it has none."""


class UserReconciler:
    """As `Reconciler`: runs from `start()` to `close()`, while this process leads."""

    def __init__(
        self, view: ClusterView, administration: Administration, api: KubeApi, clock: Clock, random: Randomness,
        metrics: telemetry.Metrics, access: ClusterAccess,
        clusters: Clusters | None = None,
    ) -> None:
        self._clusters = clusters or Clusters()
        self._view = view
        self._administration = administration
        self._api = api
        self._clock = clock
        self._random = random
        self._access = access
        self._all: dict[Ref, UserResource] = {}
        self._by_name: dict[str, set[Ref]] = {}
        """By the user's name and by the principal's."""
        self._observer = UserObserver(view)
        self._statuses = StatusWriter(api, clock, self._written, self._clusters.own)
        self._events = EventWriter(api)
        self._queue: WorkQueue[Ref | Orphan] = WorkQueue()
        self._tasks: list[Task] = []
        self._unsubscribe: Callable[[], None] | None = None
        self._count = metrics.counter(USERS_RECONCILED)
        self._failed = metrics.counter(USERS_FAILED)

    def start(self) -> None:
        self._unsubscribe = self._view.on_change(self._changed)
        self._tasks = [supervision.keep(self._work, "users", self._random, index) for index in range(_WORKERS)]
        for owner in self._observer.owners():
            self._queue.add_after(Orphan(owner), orphans.AFTER_S)

    async def close(self) -> None:
        if self._unsubscribe is not None:
            self._unsubscribe()
        await supervision.end(*self._tasks)
        self._queue.close()

    def get(self, ref: Ref) -> UserResource | None:
        return self._all.get(ref)

    def metas(self) -> list[Meta]:
        return [each.meta for each in self._all.values()]

    # --- what wakes it

    def seen(self, body: Mapping[str, Any]) -> None:
        try:
            resource = read_user(body, self._access.rules)
        except BadResource as error:
            log.warning("a User cannot be read", body=str(body.get("metadata", {}).get("name")), error=error)
            return
        self._known_as(resource)
        self._queue.add(resource.meta.ref)

    def look_again(self) -> None:
        """As of `Reconciler`."""
        for ref in self._all:
            self._queue.add(ref)

    def gone(self, ref: Ref, uid: str) -> None:
        """As of `Reconciler`."""
        known = self._all.get(ref)
        if known is None or known.meta.uid != uid:
            return
        del self._all[ref]
        self._forget(known)

    def _known_as(self, resource: UserResource) -> None:
        former = self._all.get(resource.meta.ref)
        if former is not None:
            for name in _names(former):
                self._by_name[name].discard(former.meta.ref)
        self._all[resource.meta.ref] = resource
        for name in _names(resource):
            self._by_name.setdefault(name, set()).add(resource.meta.ref)
        if former is not None and former.meta.uid != resource.meta.uid:
            self._forget(former)
        elif former is not None and former.name != resource.name:
            self._wake(_names(former))

    def _forget(self, former: UserResource) -> None:
        for name in _names(former):
            refs = self._by_name.get(name, set())
            known = self._all.get(former.meta.ref)
            if known is None or name not in _names(known):
                refs.discard(former.meta.ref)
            if not refs:
                self._by_name.pop(name, None)
        self._statuses.forget(former.meta.uid)
        self._events.forget(former.meta.uid)
        self._observer.forget(former.meta.uid)
        self._wake(_names(former))
        self._queue.add(Orphan(former.owner))

    def _wake(self, names: set[str]) -> None:
        for name in names:
            for ref in self._by_name.get(name, ()):
                self._queue.add_after(ref, _SETTLE_S)

    def _changed(self, changes: Changes) -> None:
        self._wake(set(changes.users))
        for name in changes.users:
            for owner in self._observer.owners(name):
                told = read_owner(owner)
                if told is not None and not self._is_here(told):
                    self._queue.add_after(Orphan(owner), orphans.AFTER_S)

    def _is_here(self, told: tuple[str, str, str]) -> bool:
        namespace, name, uid = told
        known = self._all.get(Ref(USERS, namespace, name))
        return known is not None and known.meta.uid == uid

    # --- work

    async def _work(self) -> None:
        await self._queue.serve(
            self._look, self._count, self._failed, log,
            (KubeUnavailable, KubeRefused, Refusal, MetadataUnavailable, TimeoutError))

    async def _look(self, key: Ref | Orphan) -> None:
        await (self._orphan(key) if isinstance(key, Orphan) else self._user(key))

    async def _user(self, ref: Ref) -> None:
        """Repeats until the plan is empty."""
        confirmed = False
        for _ in range(_ROUNDS):
            resource = self._all.get(ref)
            if resource is None:
                return
            if not self._clusters.owns(resource.meta):
                if self._clusters.unnamed(resource.meta):
                    fields = {} if resource.meta.cluster else {"cluster": None}
                    await self._statuses.write(
                        resource, fields, [self._clusters.question(resource.meta)], taken=False)
                return
            claimants = self._claimants(resource)
            planned, seen = await self._plan(resource, claimants)
            if resource != self._all.get(ref):
                continue
            changes = bool(planned.actions) or planned.finalizer is not None
            # A watch that was interrupted does not report a deletion, which no finalizer makes wait here.
            unheld = USER_FINALIZER not in resource.meta.finalizers
            if not confirmed and (changes or unheld or len(claimants) > 1):
                for each in claimants:
                    await self._refresh(each.meta.ref)
                confirmed = True
                continue
            if planned.finalizer is not None:
                await self._api.set_finalizer(resource.meta, planned.finalizer, USER_FINALIZER)
                await self._refresh(ref)
                continue
            if not planned.actions:
                await self._write(resource, planned)
                return
            await self._carry_out(resource, planned, seen)
            confirmed = False
        self._queue.add_after(ref, _MISSED_S)

    async def _plan(self, resource: UserResource, claimants: list[UserResource]) -> tuple[UserPlan, Any]:
        secret, refused = await self._secret(resource)
        listeners = self._access.file.listeners
        authority = read_authority(_folder(listeners.authority_folder))
        seen = replace(
            await self._observer.seen(resource, secret), secret=secret, secret_refused=refused,
            authorises=self._access.authorises, listeners=listeners, ca=_read(listeners.ca_file),
            authority=None if authority is None else authority.seen,
            at_home=resource.meta.ref.namespace == self._access.home)
        planned = plan_user(
            resource, claimants, seen, self._access.file.policy, self._clock.now_ms(), fresh_password())
        return planned, (seen, authority)

    async def _secret(self, resource: UserResource) -> tuple[SecretSeen | None, str]:
        """And why it cannot be seen; empty: it can."""
        try:
            body = await self._api.read(secret_path(resource))
        except KubeRefused as refused:
            if refused.code != _FORBIDDEN:
                raise
            return None, f"{refused} (users.namespaces of the chart grants the right)"
        return None if body is None else read_secret(body, resource), ""

    async def _carry_out(self, resource: UserResource, planned: UserPlan, observed: Any) -> None:
        """Raises Refusal, which the status then has."""
        seen, authority = observed
        for action in planned.actions:
            try:
                if not await apply_to_user(
                    self._administration, self._api, resource, action, seen, authority, self._clock.now_ms()
                ):
                    return
            except (Refusal, KubeRefused) as refused:
                reason = camel(refused.code.name) if isinstance(refused, Refusal) else "Refused"
                if planned.status is not None:
                    await self._statuses.write(
                        resource, {}, [Condition("Ready", "False", reason, str(refused)), *planned.conditions[1:]])
                raise
            log.info("changed", user=resource.name, resource=str(resource.meta.ref), action=type(action).__name__)
        for note in planned.notes:  # not before: what is refused now may be refused at each try
            await self._events.record(resource.meta, note)

    async def _write(self, resource: UserResource, planned: UserPlan) -> None:
        ref = resource.meta.ref
        if planned.status is None:
            return
        await self._events.tell(resource.meta, planned.notes)
        late = await self._statuses.write(resource, planned.status, planned.conditions, urgent=True)
        if late is None:
            await self._missed(resource)
            return
        again = max(_EVERY_S, len(self._all) / _PER_S)
        if planned.again_at_ms is not None:
            again = min(again, max(planned.again_at_ms - self._clock.now_ms(), 0) / 1000 + _SETTLE_S)
        self._queue.add_after(ref, again)

    async def _orphan(self, key: Orphan) -> None:
        """Removes what a resource that is gone left in the cluster."""
        told = read_owner(key.owner)
        if told is None or self._is_here(told) or not _anything(seen := self._observer.owned(key.owner)):
            return
        namespace, name, uid = told
        gone = await orphans.is_orphan(self._api, Ref(USERS, namespace, name), uid)
        if gone is None:
            self._queue.add_after(key, orphans.EVERY_S)
        if not gone:
            return
        for action in plan_orphan(key.owner, seen):
            await apply_to_cluster(self._administration, key.owner, action)
        log.info("what a User that is gone had left was removed", owner=key.owner)

    # --- resources

    def _claimants(self, resource: UserResource) -> list[UserResource]:
        """All of the same user, or of the same principal: rules for certificates may give it to several names."""
        refs = {ref for name in _names(resource) for ref in self._by_name.get(name, ())}
        found = (self._all[ref] for ref in refs if self._clusters.owns(self._all[ref].meta))
        return sorted((each for each in found if not _names(each).isdisjoint(_names(resource))),
                      key=lambda each: each.meta.age)

    async def _refresh(self, ref: Ref) -> None:
        known = self._all.get(ref)
        body = await self._api.get(ref)
        if body is not None:
            self._answered(read_user(body, self._access.rules), known)
        elif known is not None:
            self.gone(ref, known.meta.uid)

    def _answered(self, resource: UserResource, asked: UserResource | None) -> None:
        """As of `Reconciler`."""
        known = self._all.get(resource.meta.ref)
        if not resource.meta.is_overtaken(None if asked is None else asked.meta, None if known is None else known.meta):
            self._known_as(resource)

    def _written(self, ref: Ref, body: Mapping[str, Any]) -> None:
        if ref in self._all:
            written = read_user(body, self._access.rules)
            self._answered(written, written)

    async def _missed(self, resource: UserResource) -> None:
        """A write was rejected: the resource is gone, replaced or changed."""
        await self._refresh(resource.meta.ref)
        self._queue.add_after(resource.meta.ref, _MISSED_S)


def _names(resource: UserResource) -> set[str]:
    return {resource.name, resource.quota_user}


def _anything(seen: Any) -> bool:
    return bool(seen.bindings or seen.passwords or seen.quotas)


def _folder(path: str) -> Path | None:
    return Path(path) if path else None


def _read(path: str) -> str | None:
    """Empty: no file is asked for. None: it is not there, or not yet, or is empty."""
    try:
        return (Path(path).read_text(encoding="utf-8") or None) if path else ""
    except (OSError, ValueError) as error:
        log.warning("the authority of the listeners cannot be read", file=path, error=error)
        return None
