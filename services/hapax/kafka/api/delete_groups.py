"""DeleteGroups (42): deletes groups that have no members, and their offsets."""

from __future__ import annotations

from typing import Any, Final, Protocol

from hapax.core.access.resources import DELETE_GROUP
from hapax.core.errors import ErrorCode, Refusal
from hapax.kafka.group_calls import each_of
from hapax.kafka.needs import each, own_name
from hapax.kafka.table import NAMES_FRAME_BYTES, ApiRow, ApiTable, RequestContext, Role
from hapax.wire.messages import DeleteGroupsResponse

ROW: Final = ApiRow(
    key=42, name="DeleteGroups", versions=(0, 2), flexible_from=2, max_frame_bytes=NAMES_FRAME_BYTES,
    answered_by=Role.COORDINATOR, elsewhere=ErrorCode.NOT_COORDINATOR,
    need=each(DELETE_GROUP, "groups_names", "results", own_name))

Result = DeleteGroupsResponse.DeletableGroupResult


class DeletesGroups(Protocol):
    async def delete_group(self, group_id: str) -> ErrorCode:
        """Returns once the deletion is durable. Raises Refusal: 68, 69; 14, 15, 16."""
        ...


def register(table: ApiTable, coordinator: DeletesGroups) -> None:
    async def deleted(group_id: str) -> ErrorCode:
        try:
            return await coordinator.delete_group(group_id)
        except Refusal as refusal:
            return refusal.code

    async def handle(ctx: RequestContext, request: Any) -> Any:
        names = list(dict.fromkeys(request.groups_names))
        codes = await each_of(names, deleted)
        for name, code in zip(names, codes, strict=True):
            if code in (ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT):
                table.tell(ctx, "group_deleted", "unknown" if code else "done", group=name, old=None, new=None)
        return DeleteGroupsResponse(throttle_time_ms=0, results=[
            Result(group_id=name, error_code=int(code)) for name, code in zip(names, codes, strict=True)
        ])

    table.on(ROW, handle)


def refused(request: Any, version: int, code: ErrorCode) -> Any:
    return DeleteGroupsResponse(throttle_time_ms=0, results=[
        Result(group_id=name, error_code=int(code)) for name in dict.fromkeys(request.groups_names)
    ])
