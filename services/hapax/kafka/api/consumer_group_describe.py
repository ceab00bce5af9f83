"""ConsumerGroupDescribe (69): the state and the members of groups of the consumer protocol (KIP-848).

Version 1 distinguishes members that use the classic protocol. Partitions of deleted topics are left out, because they
have no name.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from typing import Any, Final, Protocol
from uuid import UUID

from hapax.core.access.resources import DESCRIBE_GROUP, DESCRIBE_TOPIC, ResourceType
from hapax.core.access.rights import operations_asked
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.group.descriptions import ConsumerDescription, DescribedConsumer
from hapax.core.group.values import Partitions
from hapax.core.types import TopicId
from hapax.kafka.group_calls import check_group_id, each_of
from hapax.kafka.needs import Asking, Need, Outcome, Passing, each, own_name
from hapax.kafka.table import NAMES_FRAME_BYTES, ApiRow, ApiTable, RequestContext, Role
from hapax.wire.messages import ConsumerGroupDescribeResponse

ROW: Final = ApiRow(
    key=69, name="ConsumerGroupDescribe", versions=(0, 1), flexible_from=0, max_frame_bytes=NAMES_FRAME_BYTES,
    answered_by=Role.COORDINATOR, elsewhere=ErrorCode.NOT_COORDINATOR,
    need=each(DESCRIBE_GROUP, "group_ids", "groups", own_name).then(
        Need("Describe Topic for the assigned topics", lambda asking, request: _check(asking, request))))

Group = ConsumerGroupDescribeResponse.DescribedGroup
Member = Group.Member
CurrentAssignment = Member.Assignment
Topic = CurrentAssignment.TopicPartitions

CLASSIC_MEMBER: Final = 0
CONSUMER_MEMBER: Final = 1
"""Values of the published schema's field MemberType."""

TopicName = Callable[[TopicId], str | None]


class DescribesConsumerGroups(Protocol):
    async def consumer_group_describe(self, group_id: str) -> ConsumerDescription:
        """Raises Refusal: 69 for an unknown group or one of the other protocol; 14, 15, 16."""
        ...

    def topic_name(self, topic_id: TopicId) -> str | None:
        """None if the topic does not exist."""
        ...


def register(table: ApiTable, coordinator: DescribesConsumerGroups) -> None:
    async def handle(ctx: RequestContext, request: Any) -> Any:
        operations = operations_asked(None, request.include_authorized_operations, ResourceType.GROUP)

        async def described(group_id: str) -> Any:
            try:
                check_group_id(group_id)
                found = await coordinator.consumer_group_describe(group_id)
                return _group(group_id, found, coordinator.topic_name, operations)
            except Refusal as refusal:
                return _refused(group_id, refusal.code, refusal.reason or None)

        return ConsumerGroupDescribeResponse(
            throttle_time_ms=0, groups=await each_of(request.group_ids, described))

    table.on(ROW, handle)


def _check(asking: Asking, request: Any) -> Outcome:
    def finish(answer: Any) -> Any:
        answer.groups = [_shown(asking, each, request.include_authorized_operations) for each in answer.groups]
        return answer

    return Passing(finish)


def _shown(asking: Asking, group: Any, operations: bool) -> Any:
    """A group with an assigned topic that the client may not describe is refused as a whole, as in Kafka."""
    if group.error_code:
        return group
    topics = {
        topic.topic_name for member in group.members for assignment in (member.assignment, member.target_assignment)
        for topic in assignment.topic_partitions}
    if not all(asking.may(DESCRIBE_TOPIC, name) for name in sorted(topics)):
        return _refused(group.group_id, ErrorCode.TOPIC_AUTHORIZATION_FAILED, None)
    group.authorized_operations = operations_asked(asking.rights, operations, ResourceType.GROUP, group.group_id)
    return group


def refused(request: Any, version: int, code: ErrorCode) -> Any:
    groups = [_refused(group_id, code, None) for group_id in request.group_ids]
    return ConsumerGroupDescribeResponse(throttle_time_ms=0, groups=groups)


def _group(group_id: str, found: ConsumerDescription, name: TopicName, operations: frozenset[int] | None) -> Any:
    return Group(
        error_code=0, error_message=None, group_id=group_id, group_state=found.state, group_epoch=found.epoch,
        assignment_epoch=found.target_epoch, assignor_name=found.assignor,
        members=[_member(each, name) for each in found.members], authorized_operations=operations)


def _member(member: DescribedConsumer, name: TopicName) -> Any:
    value = member.value
    return Member(
        member_id=member.member_id, instance_id=value.instance_id, rack_id=value.rack_id, member_epoch=member.epoch,
        client_id=value.client_id, client_host=value.client_host, subscribed_topic_names=list(value.subscribed_names),
        subscribed_topic_regex=value.subscribed_regex, assignment=_assignment(member.assigned, name),
        target_assignment=_assignment(member.target, name),
        member_type=CONSUMER_MEMBER if value.classic is None else CLASSIC_MEMBER)


def _assignment(partitions: Partitions, name: TopicName) -> Any:
    topics = []
    for topic_id, of_topic in groupby(sorted(partitions), key=lambda each: each[0]):
        named = name(topic_id)
        if named is not None:
            topics.append(Topic(
                topic_id=UUID(bytes=topic_id), topic_name=named, partitions=[index for _, index in of_topic]))
    return CurrentAssignment(topic_partitions=topics)


def _refused(group_id: str, code: ErrorCode, message: str | None) -> Any:
    return Group(
        error_code=int(code), error_message=message, group_id=group_id, group_state="", group_epoch=0,
        assignment_epoch=0, assignor_name="", members=[], authorized_operations=None)
