"""LeaveGroup (13): members leave a classic group.

Versions 0-2 name one member, whose error is that of the answer. From version 3 there are several, each with its own
error. A tool removes a static member by its instance id, without a member id.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

from hapax.core.access.resources import READ_GROUP
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.group.values import LeaveAnswer, LeaveGroup, LeavingMember
from hapax.kafka.group_calls import check_group_id
from hapax.kafka.needs import whole
from hapax.kafka.table import ApiRow, ApiTable, RequestContext, Role
from hapax.wire.messages import LeaveGroupResponse
from hapax.wire.reasons import with_reason

ROW: Final = ApiRow(
    key=13, name="LeaveGroup", versions=(0, 5), flexible_from=4,
    answered_by=Role.COORDINATOR, elsewhere=ErrorCode.NOT_COORDINATOR,
    need=whole(READ_GROUP, "group_id"))

Member = LeaveGroupResponse.MemberResponse

SEVERAL_FROM = 3


class LeavesGroups(Protocol):
    async def leave_group(self, request: LeaveGroup) -> LeaveAnswer:
        """Raises Refusal: 14, 15, 16."""
        ...


def register(table: ApiTable, coordinator: LeavesGroups) -> None:
    async def handle(ctx: RequestContext, request: Any) -> Any:
        version = ctx.api_version
        if version >= SEVERAL_FROM:
            members = tuple(LeavingMember(each.member_id, each.group_instance_id) for each in request.members)
        else:
            members = (LeavingMember(request.member_id, None),)
        try:
            check_group_id(request.group_id)
            answer = await coordinator.leave_group(LeaveGroup(version, request.group_id, members))
        except Refusal as refusal:
            return with_reason(refused(request, version, refusal.code), refusal)
        if answer.error or version < SEVERAL_FROM:
            return refused(request, version, answer.error or next(iter(answer.members), ErrorCode.NONE))
        return LeaveGroupResponse(throttle_time_ms=0, error_code=0, members=[
            Member(member_id=each.member_id, group_instance_id=each.instance_id, error_code=int(code))
            for each, code in zip(members, answer.members, strict=True)
        ])

    table.on(ROW, handle)


def refused(request: Any, version: int, code: ErrorCode) -> Any:
    return LeaveGroupResponse(throttle_time_ms=0, error_code=int(code), members=[])
