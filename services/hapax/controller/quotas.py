"""Client quotas: written under the controller's fence, a key for each entity. Every node follows them in its image."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Final

from hapax.codec.metadata import QuotaRecord
from hapax.controller.fenced import Fence, Told, write_fenced
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.quota.entities import Entity, changed, checked_change, checked_entity
from hapax.rpc.gen.hapax.internal.v1 import controller_pb2 as pb
from hapax.runtime.audit_events import SILENT, Audit
from hapax.runtime.cluster import ClusterView
from hapax.runtime.guarded_writes import GuardedWrite
from hapax.runtime.ports import Compare, Delete, MetadataStore, Put

_CHANGED: Final = Refusal(ErrorCode.REQUEST_TIMED_OUT, "another call changed the quotas at the same time")


class Quotas:
    def __init__(self, store: MetadataStore, view: ClusterView, fence: Fence, audit: Audit = SILENT) -> None:
        self._store = store
        self._view = view
        self._fence = fence
        self._audit = audit
        self._turn = asyncio.Lock()
        """Changes of one entity that came at the same time follow one another: each keeps what the other has set."""

    async def alter(self, request: pb.AlterQuotasRequest) -> pb.AlterQuotasResponse:
        async with self._turn:
            return await self._alter(request)

    async def _alter(self, request: pb.AlterQuotasRequest) -> pb.AlterQuotasResponse:
        results = [pb.QuotaResult() for _ in request.entries]
        entities: dict[int, Entity] = {}
        for at, entry in enumerate(request.entries):
            try:
                entities[at] = _entity(entry)
            except Refusal as refusal:
                _refuse(results[at], refusal)
        counts = Counter(entities.values())
        changes: dict[int, GuardedWrite] = {}
        told = Told[int](self._audit)
        for at, entity in entities.items():
            try:
                self._fence()
                if counts[entity] > 1:
                    raise Refusal(ErrorCode.INVALID_REQUEST, "the request names this entity twice")
                former, quotas, write = self._altered(entity, request.entries[at], request.owner)
            except Refusal as refusal:
                _refuse(results[at], refusal)
                continue
            if write is not None:
                changes[at] = write
                told.of(at, "quota_changed", entity=[{"type": kind, "name": name} for kind, name in entity],
                        old=former, new=quotas)
        if not request.validate_only:
            failed = await write_fenced(self._store, self._view, self._fence, changes, _CHANGED, told)
            for at, why in failed.items():
                _refuse(results[at], why)
        return pb.AlterQuotasResponse(results=results, revision=self._view.revision)

    def _altered(
        self, entity: Entity, entry: pb.EntityQuotas, owner: str
    ) -> tuple[Mapping[str, float], Mapping[str, float], GuardedWrite | None]:
        """The entity's quotas before and after; None: nothing changes. Raises Refusal."""
        change = checked_change(
            entity, ((each.key, each.value if each.HasField("value") else None) for each in entry.changes))
        key = self._view.keys.quota(entity)
        stored = self._view.quotas.stored.get(key)
        if owner and stored is not None and stored.record.owner != owner:
            raise Refusal(ErrorCode.POLICY_VIOLATION, f"the quotas do not belong to {owner}")
        former = {} if stored is None else stored.record.quotas
        quotas = changed(former, change)
        if quotas == former:
            return former, quotas, None
        record = QuotaRecord(entity, quotas, owner if stored is None else stored.record.owner)
        return former, quotas, GuardedWrite(
            (Compare(key, "mod_revision", 0 if stored is None else stored.mod_revision),),
            (Put(key, record.encode()) if quotas else Delete(key),))


def _entity(entry: pb.EntityQuotas) -> Entity:
    """Raises Refusal."""
    return checked_entity((each.type, each.name if each.HasField("name") else None) for each in entry.entity)


def _refuse(result: pb.QuotaResult, refusal: Refusal) -> None:
    result.error, result.reason = refusal.code, refusal.reason
