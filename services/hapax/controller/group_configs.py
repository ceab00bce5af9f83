"""Configurations of consumer groups: checked against the cluster's bounds, written under the controller's fence.

A group need not exist to be configured, as in Kafka. Its coordinator reads the configuration in its image of the
metadata store (`coordinator/members.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from hapax.codec.metadata import GroupConfigRecord
from hapax.controller.fenced import Fence, Told, differences, write_fenced
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.group.configs import Bounds, check_group_config, check_group_name
from hapax.core.group.values import GroupLimits
from hapax.rpc.gen.hapax.v1 import cluster_admin_pb2 as pb
from hapax.runtime.audit_events import SILENT, Audit
from hapax.runtime.cluster import ClusterView
from hapax.runtime.guarded_writes import GuardedWrite
from hapax.runtime.ports import Compare, Delete, MetadataStore, Put

_CHANGED: Final = Refusal(
    ErrorCode.REQUEST_TIMED_OUT, "another call changed the group's configuration at the same time")


class GroupConfigs:
    def __init__(
        self, store: MetadataStore, view: ClusterView, bounds: Bounds, limits: GroupLimits, fence: Fence,
        audit: Audit = SILENT,
    ) -> None:
        """`limits`: what holds for a group without a configuration of its own."""
        self._store = store
        self._view = view
        self._bounds = bounds
        self._limits = limits
        self._fence = fence
        self._audit = audit

    async def alter(self, request: pb.AlterGroupConfigsRequest) -> list[pb.GroupResult]:
        results = [pb.GroupResult(group=change.group) for change in request.changes]
        changes: dict[int, GuardedWrite] = {}
        told = Told[int](self._audit)
        counts = Counter(change.group for change in request.changes)
        for position, change in enumerate(request.changes):
            try:
                self._fence()
                if counts[change.group] > 1:
                    raise Refusal(ErrorCode.INVALID_REQUEST, "the group is named twice in the request")
                former, config, write = self._altered(change)
            except Refusal as refusal:
                _refuse(results[position], refusal)
                continue
            if write is not None:
                changes[position] = write
                old, new = differences(former, config)
                told.of(position, "group_config_changed", group=change.group, old=old, new=new)
        if not request.validate_only:
            for position, why in (
                await write_fenced(self._store, self._view, self._fence, changes, _CHANGED, told)
            ).items():
                _refuse(results[position], why)
        return results

    def _altered(
        self, change: pb.GroupConfigChange
    ) -> tuple[Mapping[str, str], Mapping[str, str], GuardedWrite | None]:
        """The configuration before and after; None: nothing changes. Raises Refusal."""
        check_group_name(change.group)
        known = self._view.group_config(change.group)
        former = {} if known is None else known.config
        kept = {} if change.replace else former
        config = {name: value for name, value in kept.items() if name not in change.reset} | dict(change.set)
        changed = {name for name in {**former, **config} if former.get(name) != config.get(name)} | set(change.set)
        check_group_config(config, self._bounds, self._limits, changed)
        if config == former:
            return former, config, None
        key = self._view.keys.group_config(change.group)
        return former, config, GuardedWrite(
            (Compare(key, "mod_revision", 0 if known is None else known.mod_revision),),
            (Put(key, GroupConfigRecord(config).encode()) if config else Delete(key),))


def _refuse(result: pb.GroupResult, refusal: Refusal) -> None:
    result.error, result.reason = refusal.code, refusal.reason
