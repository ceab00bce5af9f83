"""ListGroups (16): the groups of a coordinator's shards.

From version 4 the request filters them by state, from version 5 by type (classic or consumer). Filters ignore case; an
unknown state or type matches nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

from hapax.core.access.resources import DESCRIBE_CLUSTER, DESCRIBE_GROUP
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.group.descriptions import GroupListing
from hapax.kafka.needs import Asking, Need, Outcome, Passing
from hapax.kafka.table import SMALL_FRAME_BYTES, ApiRow, ApiTable, RequestContext, Role
from hapax.wire.messages import ListGroupsResponse
from hapax.wire.reasons import with_reason

ROW: Final = ApiRow(
    key=16, name="ListGroups", versions=(0, 5), flexible_from=3, max_frame_bytes=SMALL_FRAME_BYTES,
    answered_by=Role.COORDINATOR, elsewhere=ErrorCode.NONE,
    need=Need(
        "Describe Cluster, or lists the groups with Describe Group", lambda asking, request: _check(asking)))

Group = ListGroupsResponse.ListedGroup

STATES_FROM = 4
TYPES_FROM = 5


class ListsGroups(Protocol):
    async def list_groups(self) -> Sequence[GroupListing]:
        """All groups of this coordinator's shards, including those that only have offsets. Raises Refusal: 14, 15 while
        a shard cannot answer."""
        ...


def register(table: ApiTable, coordinator: ListsGroups) -> None:
    async def handle(ctx: RequestContext, request: Any) -> Any:
        version = ctx.api_version
        states = _lower(request.states_filter) if version >= STATES_FROM else frozenset()
        types = _lower(request.types_filter) if version >= TYPES_FROM else frozenset()
        try:
            listed = await coordinator.list_groups()
        except Refusal as refusal:
            return with_reason(refused(request, version, refusal.code), refusal)
        return ListGroupsResponse(throttle_time_ms=0, error_code=0, groups=[
            Group(group_id=each.group_id, protocol_type=each.protocol_type, group_state=each.state,
                  group_type=each.group_type)
            for each in listed
            if (not states or each.state.lower() in states) and (not types or each.group_type.lower() in types)
        ])

    table.on(ROW, handle)


def _check(asking: Asking) -> Outcome:
    if asking.rights.may_in_cluster(DESCRIBE_CLUSTER):
        return None

    def finish(answer: Any) -> Any:
        answer.groups = [each for each in answer.groups if asking.rights.may(DESCRIBE_GROUP, each.group_id)]
        return answer

    return Passing(finish)


def refused(request: Any, version: int, code: ErrorCode) -> Any:
    return ListGroupsResponse(throttle_time_ms=0, error_code=int(code), groups=[])


def _lower(names: Sequence[str]) -> frozenset[str]:
    return frozenset(name.lower() for name in names)
