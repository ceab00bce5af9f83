"""DescribeGroups (15): the state and the members of groups of the classic protocol.

A group that does not exist or uses the other protocol is described as dead: without an error below version 6, with
GROUP_ID_NOT_FOUND from version 6 on.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

from hapax.core.errors import ErrorCode, Refusal
from hapax.core.group.descriptions import DEAD, ClassicDescription
from hapax.kafka.group_calls import each_of
from hapax.kafka.table import NAMES_FRAME_BYTES, ApiRow, ApiTable, RequestContext, Role
from hapax.wire.messages import DescribeGroupsResponse

ROW: Final = ApiRow(
    key=15, name="DescribeGroups", versions=(0, 6), flexible_from=5, max_frame_bytes=NAMES_FRAME_BYTES,
    answered_by=Role.COORDINATOR, elsewhere=ErrorCode.NOT_COORDINATOR)

Group = DescribeGroupsResponse.DescribedGroup
Member = Group.DescribedGroupMember

NOT_FOUND_FROM = 6


class DescribesGroups(Protocol):
    async def describe_group(self, group_id: str) -> ClassicDescription:
        """Raises Refusal: 69 for an unknown group or one of the other protocol; 14, 15, 16."""
        ...


def register(table: ApiTable, coordinator: DescribesGroups) -> None:
    async def handle(ctx: RequestContext, request: Any) -> Any:
        async def described(group_id: str) -> Any:
            try:
                return _group(group_id, await coordinator.describe_group(group_id))
            except Refusal as refusal:
                return _refused(group_id, ctx.api_version, refusal.code, refusal.reason or None)

        return DescribeGroupsResponse(throttle_time_ms=0, groups=await each_of(request.groups, described))

    table.on(ROW, handle)


def refused(request: Any, version: int, code: ErrorCode) -> Any:
    groups = [_refused(group_id, version, code, None) for group_id in request.groups]
    return DescribeGroupsResponse(throttle_time_ms=0, groups=groups)


def _group(group_id: str, found: ClassicDescription) -> Any:
    return Group(
        error_code=0, error_message=None, group_id=group_id, group_state=found.state,
        protocol_type=found.protocol_type, protocol_data=found.protocol, authorized_operations=None,
        members=[
            Member(
                member_id=each.member_id, group_instance_id=each.instance_id, client_id=each.client_id,
                client_host=each.client_host, member_metadata=each.metadata, member_assignment=each.assignment)
            for each in found.members
        ])


def _refused(group_id: str, version: int, code: ErrorCode, message: str | None) -> Any:
    missing = code is ErrorCode.GROUP_ID_NOT_FOUND
    return Group(
        error_code=0 if missing and version < NOT_FOUND_FROM else int(code), error_message=message, group_id=group_id,
        group_state=DEAD if missing else "", protocol_type="", protocol_data="", members=[],
        authorized_operations=None)
