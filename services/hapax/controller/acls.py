"""Bindings (ACLs): written under the controller's fence, one key each. Every node follows them in its image."""

from __future__ import annotations

from typing import Final

from hapax.codec.metadata import AclRecord
from hapax.controller.fenced import Fence, Told, write_fenced
from hapax.core.access.bindings import Binding
from hapax.core.access.resources import title
from hapax.core.errors import ErrorCode, Refusal
from hapax.rpc.gen.hapax.internal.v1 import controller_pb2 as pb
from hapax.runtime.acl_messages import acl_message, read_acl, read_filter
from hapax.runtime.audit_events import SILENT, Audit
from hapax.runtime.cluster import ClusterView
from hapax.runtime.guarded_writes import GuardedWrite
from hapax.runtime.ports import Compare, Delete, MetadataStore, Put

_CHANGED: Final = Refusal(ErrorCode.REQUEST_TIMED_OUT, "another call changed the binding at the same time")


class Acls:
    def __init__(self, store: MetadataStore, view: ClusterView, fence: Fence, audit: Audit = SILENT) -> None:
        self._store = store
        self._view = view
        self._fence = fence
        self._audit = audit

    async def alter(self, request: pb.AlterAclsRequest) -> pb.AlterAclsResponse:
        """Additions and removals are judged by the state before the call."""
        added = [pb.AclResult(acl=asked) for asked in request.add]
        removed = [pb.RemovedAcls() for _ in request.remove]
        changes: dict[str, GuardedWrite] = {}
        """By key: a binding that is named twice is written once."""
        places: dict[str, list[pb.AclResult]] = {}
        told = Told[str](self._audit)
        for asked, result in zip(request.add, added, strict=True):
            try:
                self._fence()
                binding = read_acl(asked)
                key, write = self._addition(binding, request.owner)
            except Refusal as refusal:
                result.error, result.reason = refusal.code, refusal.reason
                continue
            if write is not None:
                changes[key] = write
                places.setdefault(key, []).append(result)
                told.of(key, "acl_created", old=None, new=_told(binding))
        for wanted, found in zip(request.remove, removed, strict=True):
            try:
                self._fence()
                matched = self._matched(wanted, request.owner)
            except Refusal as refusal:
                found.error, found.reason = refusal.code, refusal.reason
                continue
            for key, (binding, write) in matched.items():
                changes[key] = write
                told.of(key, "acl_deleted", old=_told(binding), new=None)
                places.setdefault(key, []).append(found.acls.add(acl=acl_message(binding)))
        failed = await write_fenced(self._store, self._view, self._fence, changes, _CHANGED, told)
        for key, why in failed.items():
            for result in places[key]:
                result.error, result.reason = why.code, why.reason
        return pb.AlterAclsResponse(added=added, removed=removed, revision=self._view.revision)

    def _addition(self, binding: Binding, owner: str) -> tuple[str, GuardedWrite | None]:
        """None: the binding exists already, and keeps its owner."""
        key = self._view.keys.acl(binding)
        if key in self._view.access.stored:
            return key, None
        return key, GuardedWrite(
            (Compare(key, "mod_revision", 0),), (Put(key, AclRecord(binding, owner).encode()),))

    def _matched(self, wanted: pb.AclFilter, owner: str) -> dict[str, tuple[Binding, GuardedWrite]]:
        """`owner`: not empty: only what belongs to it. Raises Refusal."""
        selected = read_filter(wanted)
        return {
            key: (stored.binding, GuardedWrite(
                (Compare(key, "mod_revision", stored.mod_revision),), (Delete(key),)))
            for key, stored in self._view.access.stored.items()
            if selected.matches(stored.binding) and owner in ("", stored.owner)}


def _told(binding: Binding) -> dict[str, str]:
    return {
        "permission": title(binding.permission), "principal": binding.principal, "host": binding.host,
        "operation": title(binding.operation), "resource_type": title(binding.kind),
        "pattern": title(binding.pattern), "resource": binding.name,
    }
