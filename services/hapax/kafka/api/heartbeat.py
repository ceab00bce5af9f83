"""Heartbeat (12): a member of a classic group shows that it is alive, and learns whether a new round has begun.

While the group's shard loads, the answer is 0, as in Kafka: the member keeps its partitions, and gets a whole session
when the shard is loaded.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Final, Protocol

from hapax.core.access.resources import READ_GROUP
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.group.values import Heartbeat, HeartbeatAnswer
from hapax.kafka.group_calls import check_group_id
from hapax.kafka.needs import whole
from hapax.kafka.table import SMALL_FRAME_BYTES, ApiRow, ApiTable, RequestContext, Role
from hapax.wire.messages import HeartbeatResponse
from hapax.wire.reasons import with_reason, with_text

ROW: Final = ApiRow(
    key=12, name="Heartbeat", versions=(0, 4), flexible_from=4, max_frame_bytes=SMALL_FRAME_BYTES,
    answered_by=Role.COORDINATOR, elsewhere=ErrorCode.NOT_COORDINATOR,
    need=whole(READ_GROUP, "group_id"))

STATIC_FROM = 3


class HearsHeartbeats(Protocol):
    def heartbeat(self, request: Heartbeat) -> HeartbeatAnswer | Awaitable[HeartbeatAnswer]:
        """Raises Refusal, and so does the awaitable: 14, 15, 16."""
        ...


def register(table: ApiTable, coordinator: HearsHeartbeats) -> None:
    def handle(ctx: RequestContext, request: Any) -> Any:
        version = ctx.api_version
        try:
            check_group_id(request.group_id)
            answer = coordinator.heartbeat(Heartbeat(
                request.group_id, request.generation_id, request.member_id,
                request.group_instance_id if version >= STATIC_FROM else None))
        except Refusal as refusal:
            return _refused(request, version, refusal)
        if isinstance(answer, HeartbeatAnswer):
            return _answered(request, version, answer)
        return later(request, version, answer)

    async def later(request: Any, version: int, answer: Awaitable[HeartbeatAnswer]) -> Any:
        try:
            return _answered(request, version, await answer)
        except Refusal as refusal:
            return _refused(request, version, refusal)

    table.on(ROW, handle)


def _answered(request: Any, version: int, answer: HeartbeatAnswer) -> Any:
    return with_text(refused(request, version, answer.error), answer.reason)


def _refused(request: Any, version: int, refusal: Refusal) -> Any:
    if refusal.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
        return refused(request, version, ErrorCode.NONE)
    return with_reason(refused(request, version, refusal.code), refusal)


def refused(request: Any, version: int, code: ErrorCode) -> Any:
    return HeartbeatResponse(throttle_time_ms=0, error_code=int(code))
