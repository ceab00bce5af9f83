"""ConsumerGroupHeartbeat (68): a member of the consumer protocol (KIP-848) joins, stays, changes or leaves.

In version 0 the coordinator generates the member's id. In version 1 the member does, and it may subscribe with a
regular expression. The machine checks the request, except for the length of names.
"""

from __future__ import annotations

from collections.abc import Awaitable
from itertools import groupby
from typing import Any, Final, Protocol
from uuid import UUID

from hapax.core.access.resources import DESCRIBE_TOPIC, READ_GROUP, ResourceType
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.group.values import (
    SUPERSEDED,
    ConsumerGroupHeartbeat,
    ConsumerHeartbeatAnswer,
    OwnedTopic,
    Partitions,
)
from hapax.core.types import TopicId
from hapax.kafka.group_calls import check_names, client_host, fresh_id
from hapax.kafka.needs import Asking, Need, Outcome, Refused, whole
from hapax.kafka.table import ApiRow, ApiTable, CloseConnection, RequestContext, Role
from hapax.runtime.ports import Randomness
from hapax.wire.messages import ConsumerGroupHeartbeatResponse, id_bytes

ROW: Final = ApiRow(
    key=68, name="ConsumerGroupHeartbeat", versions=(0, 1), flexible_from=0,
    answered_by=Role.COORDINATOR, elsewhere=ErrorCode.NOT_COORDINATOR,
    need=whole(READ_GROUP, "group_id").then(
        Need("Describe Topic for the topics named", lambda asking, request: _check(asking, request))))

Assignment = ConsumerGroupHeartbeatResponse.Assignment
Topic = Assignment.TopicPartitions

REGEX_FROM = 1
"""The first version with regular expressions, and with ids that members generate."""


class HearsConsumers(Protocol):
    def consumer_group_heartbeat(
        self, request: ConsumerGroupHeartbeat
    ) -> ConsumerHeartbeatAnswer | Awaitable[ConsumerHeartbeatAnswer]:
        """Raises Refusal, as the awaitable does: 14, 15, 16."""
        ...


def register(table: ApiTable, random: Randomness, coordinator: HearsConsumers) -> None:
    """`random`: for the ids of new members."""

    def handle(ctx: RequestContext, request: Any) -> Any:
        version = ctx.api_version
        names, owned = request.subscribed_topic_names, request.topic_partitions
        unnamed = version < REGEX_FROM and not request.member_id
        heartbeat = ConsumerGroupHeartbeat(
            version, request.group_id, request.member_id, request.member_epoch, request.instance_id, request.rack_id,
            request.rebalance_timeout_ms, None if names is None else tuple(names),
            request.subscribed_topic_regex if version >= REGEX_FROM else None, request.server_assignor,
            None if owned is None else tuple(
                OwnedTopic(TopicId(id_bytes(each.topic_id)), tuple(each.partitions)) for each in owned),
            ctx.client_id or "", client_host(ctx), fresh_id(random) if unnamed else "",
            ctx.connection.serial, ctx.principal)
        try:
            check_names(
                heartbeat.group_id, heartbeat.member_id, heartbeat.instance_id, heartbeat.rack_id,
                heartbeat.subscribed_regex)
            answer = coordinator.consumer_group_heartbeat(heartbeat)
        except Refusal as refusal:
            return _refused(refusal)
        return _response(answer) if isinstance(answer, ConsumerHeartbeatAnswer) else later(answer)

    async def later(answer: Awaitable[ConsumerHeartbeatAnswer]) -> Any:
        try:
            return _response(await answer)
        except Refusal as refusal:
            return _refused(refusal)

    table.on(ROW, handle)


def _check(asking: Asking, request: Any) -> Outcome:
    if all(asking.may(DESCRIBE_TOPIC, name) for name in request.subscribed_topic_names or ()):
        return None
    return Refused(asking.refused(request, ResourceType.TOPIC))


def refused(request: Any, version: int, code: ErrorCode) -> Any:
    return _response(ConsumerHeartbeatAnswer(code))


def _refused(refusal: Refusal) -> Any:
    return _response(ConsumerHeartbeatAnswer(refusal.code, refusal.reason or None))


def _response(answer: ConsumerHeartbeatAnswer) -> Any:
    if answer is SUPERSEDED:
        raise CloseConnection("the member has sent heartbeats over a newer connection")
    if answer.error:
        return ConsumerGroupHeartbeatResponse(
            throttle_time_ms=0, error_code=int(answer.error), error_message=answer.message, member_id=None,
            member_epoch=0, heartbeat_interval_ms=0, assignment=None)
    return ConsumerGroupHeartbeatResponse(
        throttle_time_ms=0, error_code=0, error_message=None, member_id=answer.member_id,
        member_epoch=answer.member_epoch, heartbeat_interval_ms=answer.heartbeat_interval_ms,
        assignment=None if answer.assignment is None else Assignment(topic_partitions=_topics(answer.assignment)))


def _topics(partitions: Partitions) -> list[Any]:
    return [
        Topic(topic_id=UUID(bytes=topic_id), partitions=[index for _, index in of_topic])
        for topic_id, of_topic in groupby(sorted(partitions), key=lambda each: each[0])
    ]
