"""DescribeGroups (15): the state and the members of groups of the classic protocol.

A group that does not exist or uses the other protocol is described as dead: without an error below version 6, with
GROUP_ID_NOT_FOUND from version 6 on.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

from hapax.core.access.resources import DESCRIBE_GROUP, ResourceType
from hapax.core.access.rights import operations_asked
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.group.descriptions import DEAD, ClassicDescription
from hapax.kafka.group_calls import each_of
from hapax.kafka.needs import Asking, Need, Outcome, Passing, each, own_name
from hapax.kafka.table import NAMES_FRAME_BYTES, ApiRow, ApiTable, RequestContext, Role
from hapax.wire.messages import DescribeGroupsResponse

ROW: Final = ApiRow(
    key=15, name="DescribeGroups", versions=(0, 6), flexible_from=5, max_frame_bytes=NAMES_FRAME_BYTES,
    answered_by=Role.COORDINATOR, elsewhere=ErrorCode.NOT_COORDINATOR,
    need=each(DESCRIBE_GROUP, "groups", "groups", own_name).then(
        Need("", lambda asking, request: _operations(asking, request))))

Group = DescribeGroupsResponse.DescribedGroup
Member = Group.DescribedGroupMember

NOT_FOUND_FROM = 6
OPERATIONS_FROM = 3


class DescribesGroups(Protocol):
    async def describe_group(self, group_id: str) -> ClassicDescription:
        """Raises Refusal: 69 for an unknown group or one of the other protocol; 14, 15, 16."""
        ...


def register(table: ApiTable, coordinator: DescribesGroups) -> None:
    async def handle(ctx: RequestContext, request: Any) -> Any:
        async def described(group_id: str) -> Any:
            try:
                return _group(
                    group_id, await coordinator.describe_group(group_id),
                    ctx.api_version >= OPERATIONS_FROM and request.include_authorized_operations)
            except Refusal as refusal:
                return _refused(group_id, ctx.api_version, refusal.code, refusal.reason or None)

        return DescribeGroupsResponse(throttle_time_ms=0, groups=await each_of(request.groups, described))

    table.on(ROW, handle)


def _operations(asking: Asking, request: Any) -> Outcome:
    if asking.ctx.api_version < OPERATIONS_FROM or not request.include_authorized_operations:
        return None

    def finish(answer: Any) -> Any:
        for group in answer.groups:
            if not group.error_code:
                group.authorized_operations = asking.rights.operations(ResourceType.GROUP, group.group_id)
        return answer

    return Passing(finish)


def refused(request: Any, version: int, code: ErrorCode) -> Any:
    groups = [_refused(group_id, version, code, None) for group_id in request.groups]
    return DescribeGroupsResponse(throttle_time_ms=0, groups=groups)


def _group(group_id: str, found: ClassicDescription, operations: bool) -> Any:
    return Group(
        error_code=0, error_message=None, group_id=group_id, group_state=found.state,
        protocol_type=found.protocol_type, protocol_data=found.protocol,
        authorized_operations=operations_asked(None, operations, ResourceType.GROUP),
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
