"""SyncGroup (14): the leader of a classic group hands in the assignment, and every member fetches its own.

The answer waits for the leader. From version 5 the request names the protocol that the member believes was chosen. A
request without a protocol is refused here (INCONSISTENT_GROUP_PROTOCOL) before all other checks, as in Kafka. The
machine checks whether the names are right.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

from hapax.core.access.resources import READ_GROUP
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.group.values import SyncAnswer, SyncGroup
from hapax.kafka.group_calls import check_group_id
from hapax.kafka.needs import whole
from hapax.kafka.table import ApiRow, ApiTable, RequestContext, Role
from hapax.wire.messages import SyncGroupResponse
from hapax.wire.reasons import with_reason, with_text

ROW: Final = ApiRow(
    key=14, name="SyncGroup", versions=(0, 5), flexible_from=4, max_frame_bytes=16 << 20,
    answered_by=Role.COORDINATOR, elsewhere=ErrorCode.NOT_COORDINATOR,
    need=whole(READ_GROUP, "group_id"))
"""A leader's request has the assignments of all members. Assignments that do not fit into a record are refused with an
error; if the connection were closed instead, the client would retry for ever."""

STATIC_FROM = 3
PROTOCOL_FROM = 5


class SyncsGroups(Protocol):
    async def sync_group(self, request: SyncGroup) -> SyncAnswer:
        """Raises Refusal: 14, 15, 16."""
        ...


def register(table: ApiTable, coordinator: SyncsGroups) -> None:
    async def handle(ctx: RequestContext, request: Any) -> Any:
        version = ctx.api_version
        named = version >= PROTOCOL_FROM
        try:
            if named and (request.protocol_type is None or request.protocol_name is None):
                raise Refusal(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "the request names no protocol")
            check_group_id(request.group_id)
            sync = SyncGroup(
                version, request.group_id, request.generation_id, request.member_id,
                request.group_instance_id if version >= STATIC_FROM else None,
                request.protocol_type if named else None, request.protocol_name if named else None,
                tuple((each.member_id, each.assignment) for each in request.assignments))
            if not sync.assignments:
                ctx.release_memory()  # a follower waits for the leader's request, for up to a whole round
            answer = await coordinator.sync_group(sync)
        except Refusal as refusal:
            return with_reason(refused(request, version, refusal.code), refusal)
        return _response(answer)

    table.on(ROW, handle)


def refused(request: Any, version: int, code: ErrorCode) -> Any:
    return _response(SyncAnswer(code))


def _response(answer: SyncAnswer) -> Any:
    return with_text(SyncGroupResponse(
        throttle_time_ms=0, error_code=int(answer.error), protocol_type=answer.protocol_type,
        protocol_name=answer.protocol, assignment=answer.assignment), answer.reason)
