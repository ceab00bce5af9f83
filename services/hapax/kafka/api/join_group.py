"""JoinGroup (11): a member of the classic protocol joins, or takes part in the next round.

The answer waits until the round is complete. Version 0 has no rebalance timeout; the session timeout is used instead.
From version 4 a new member first gets its id (MEMBER_ID_REQUIRED). The machine decides that, as it decides everything
except the length of names. From version 5 a member may be static. From version 7 the answer has the type of the
protocol, and null if there is no protocol. From version 9 it can tell the leader to keep the assignment.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

from hapax.core.access.resources import READ_GROUP
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.group.values import SUPERSEDED_JOIN, JoinAnswer, JoinGroup, ProtocolOffer
from hapax.kafka.group_calls import check_group_id, check_names, client_host, fresh_id
from hapax.kafka.needs import whole
from hapax.kafka.table import ApiRow, ApiTable, CloseConnection, RequestContext, Role
from hapax.runtime.ports import Randomness
from hapax.wire.messages import JoinGroupResponse
from hapax.wire.reasons import with_reason, with_text

ROW: Final = ApiRow(
    key=11, name="JoinGroup", versions=(0, 9), flexible_from=6, max_frame_bytes=4 << 20,
    answered_by=Role.COORDINATOR, elsewhere=ErrorCode.NOT_COORDINATOR,
    need=whole(READ_GROUP, "group_id"))
"""A member offers several protocols, each with its metadata. The chosen one must fit into a record."""

Member = JoinGroupResponse.JoinGroupResponseMember

STATIC_FROM = 5
PROTOCOL_TYPE_FROM = 7
"""The first version with the protocol's type, and with null as a protocol's name."""


class JoinsGroups(Protocol):
    async def join_group(self, request: JoinGroup) -> JoinAnswer:
        """Raises Refusal: 14, 15, 16."""
        ...


def register(table: ApiTable, random: Randomness, coordinator: JoinsGroups) -> None:
    """`random`: for the ids of new members."""

    async def handle(ctx: RequestContext, request: Any) -> Any:
        version = ctx.api_version
        try:
            check_group_id(request.group_id)
            join = JoinGroup(
                version, request.group_id, request.member_id,
                request.group_instance_id if version >= STATIC_FROM else None,
                request.protocol_type,
                tuple(ProtocolOffer(offer.name, offer.metadata) for offer in request.protocols),
                request.session_timeout_ms,
                request.rebalance_timeout_ms if version >= 1 else request.session_timeout_ms,
                ctx.client_id or "", client_host(ctx), "" if request.member_id else fresh_id(random),
                ctx.connection.serial)
            check_names(
                join.member_id, join.instance_id, join.protocol_type, join.client_id,
                *(offer.name for offer in join.protocols))
            ctx.release_memory()  # a round may last for minutes, and the group keeps the metadata even longer
            return _response(await coordinator.join_group(join), version)
        except Refusal as refusal:
            return with_reason(refused(request, version, refusal.code), refusal)

    table.on(ROW, handle)


def refused(request: Any, version: int, code: ErrorCode) -> Any:
    return _response(JoinAnswer(code, request.member_id), version)


def _response(answer: JoinAnswer, version: int) -> Any:
    if answer is SUPERSEDED_JOIN:
        raise CloseConnection("the member has joined over a newer connection")
    protocol = answer.protocol
    return with_text(JoinGroupResponse(
        throttle_time_ms=0, error_code=int(answer.error), generation_id=answer.generation,
        protocol_type=answer.protocol_type,
        protocol_name=protocol or "" if version < PROTOCOL_TYPE_FROM else protocol,
        leader=answer.leader, skip_assignment=answer.skip_assignment, member_id=answer.member_id,
        members=[
            Member(member_id=each.member_id, group_instance_id=each.instance_id, metadata=each.metadata)
            for each in answer.members
        ]), answer.reason)
