"""OffsetFetch (9): the committed offsets of consumer groups.

Version 1 can neither ask for all partitions of a group (null) nor report an error of the group. Versions 2-7 ask for
one group, 8 and later for several, 10 by topic id. From version 7 on, `require_stable` refuses an offset that an open
transaction is about to replace.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final, NamedTuple, Protocol
from uuid import UUID

from hapax.core.access.resources import DESCRIBE_GROUP, DESCRIBE_TOPIC, ResourceType
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.group.offsets import NO_TOPIC_ID
from hapax.core.types import TopicId
from hapax.kafka.needs import Asking, Need, Outcome, Passing, Refused, name_or_id, split
from hapax.kafka.table import ApiRow, ApiTable, RequestContext, Role
from hapax.wire.messages import OffsetFetchResponse, id_bytes

ROW: Final = ApiRow(
    key=9, name="OffsetFetch", versions=(1, 10), flexible_from=6,
    answered_by=Role.COORDINATOR, elsewhere=ErrorCode.NOT_COORDINATOR,
    need=Need(
        "Describe Group each; Describe Topic each; of all topics, those with Describe Topic",
        lambda asking, request: _check(asking, request)))

Topic = OffsetFetchResponse.OffsetFetchResponseTopic
Partition = Topic.OffsetFetchResponsePartition
Group = OffsetFetchResponse.OffsetFetchResponseGroup
GroupTopic = Group.OffsetFetchResponseTopics
GroupPartition = GroupTopic.OffsetFetchResponsePartitions

GROUPS_FROM = 8
TOPIC_IDS_FROM = 10


class OffsetAsked(NamedTuple):
    topic: str
    """Empty if the client names the topic by its id."""
    topic_id: TopicId
    partition: int


@dataclass(frozen=True, slots=True)
class GroupAsked:
    group_id: str
    member_id: str
    member_epoch: int
    partitions: tuple[OffsetAsked, ...] | None
    """None for every partition of which the group has an offset."""
    by_id: bool
    """Whether the answer names topics by id too. It then omits the offset of a topic whose id is unknown."""


class OffsetAnswer(NamedTuple):
    """`offset` is -1 if none is committed."""

    topic: str
    topic_id: TopicId
    partition: int
    offset: int
    leader_epoch: int
    metadata: str
    error: ErrorCode


class FetchesOffsets(Protocol):
    async def offset_fetch(self, group: GroupAsked, require_stable: bool) -> Sequence[OffsetAnswer]:
        """Returns the offsets in the order of the request. Raises Refusal for the whole group."""
        ...


def register(table: ApiTable, coordinator: FetchesOffsets) -> None:
    async def handle(ctx: RequestContext, request: Any) -> Any:
        version = ctx.api_version
        stable = version >= 7 and request.require_stable
        if version >= GROUPS_FROM:
            groups = []
            for group in request.groups:
                asked = _group_asked(group, version)
                try:
                    answers = await coordinator.offset_fetch(asked, stable)
                    groups.append(_group(asked.group_id, answers, ErrorCode.NONE))
                except Refusal as refusal:
                    groups.append(_group(asked.group_id, (), refusal.code))
            return OffsetFetchResponse(throttle_time_ms=0, groups=groups)
        partitions = None
        if request.topics is not None:
            partitions = _asked(request.topics, by_id=False)
        asked = GroupAsked(request.group_id, "", -1, partitions, False)
        try:
            return _response(await coordinator.offset_fetch(asked, stable), ErrorCode.NONE)
        except Refusal as refusal:
            return refused(request, version, refusal.code)

    table.on(ROW, handle)


def _check(asking: Asking, request: Any) -> Outcome:
    version = asking.ctx.api_version
    if version < GROUPS_FROM:
        if not asking.may(DESCRIBE_GROUP, request.group_id):
            return Refused(asking.refused(request, ResourceType.GROUP))
        hidden = _hide_topics(asking, request)
        return Passing(lambda answer: _with_hidden(asking, answer, hidden))
    outcome = split(
        asking, request, "groups", "groups", ResourceType.GROUP,
        lambda asking, group: asking.may(DESCRIBE_GROUP, group.group_id))
    if isinstance(outcome, Refused):
        return outcome
    hidden_of = {group.group_id: _hide_topics(asking, group) for group in request.groups}

    def finish(answer: Any) -> Any:
        for group in answer.groups:
            _with_hidden(asking, group, hidden_of[group.group_id])
        return answer if outcome is None else outcome.finish(answer)

    return Passing(finish)


def _hide_topics(asking: Asking, asked: Any) -> list[Any]:
    """Takes the topics that the client may not describe out of a group's question."""
    hidden: list[Any] = []
    if asked.topics is not None:
        kept: list[Any] = []
        for topic in asked.topics:
            name = name_or_id(asking, topic)
            (kept if name is None or asking.may(DESCRIBE_TOPIC, name) else hidden).append(topic)
        asked.topics = kept
    return hidden


def _with_hidden(asking: Asking, answer: Any, hidden: list[Any]) -> Any:
    """`answer`: of one group. Where the client asked for all topics, those that it may not describe are left out."""
    if answer.error_code:
        return answer
    kind, partition = (GroupTopic, GroupPartition) if isinstance(answer, Group) else (Topic, Partition)
    shown = [topic for topic in answer.topics if _may_describe(asking, topic)]
    for topic in hidden:
        named = {"name": topic.name} if kind is Topic else {"name": topic.name, "topic_id": topic.topic_id}
        shown.append(kind(**named, partitions=[
            partition(
                partition_index=index, committed_offset=-1, committed_leader_epoch=-1, metadata="",
                error_code=int(ErrorCode.TOPIC_AUTHORIZATION_FAILED))
            for index in topic.partition_indexes]))
    answer.topics = shown
    return answer


def _may_describe(asking: Asking, topic: Any) -> bool:
    name = topic.name or asking.topic_name(getattr(topic, "topic_id", None))
    return not name or asking.rights.may(DESCRIBE_TOPIC, name)


def refused(request: Any, version: int, code: ErrorCode) -> Any:
    if version >= GROUPS_FROM:
        groups = [_group(group.group_id, (), code) for group in request.groups]
        return OffsetFetchResponse(throttle_time_ms=0, groups=groups)
    # Version 1 has no field for an error of the group, so each partition carries the error.
    asked = _asked(request.topics, by_id=False) if version < 2 and request.topics else ()
    return _response([OffsetAnswer(a.topic, a.topic_id, a.partition, -1, -1, "", code) for a in asked], code)


def _group_asked(group: Any, version: int) -> GroupAsked:
    by_id = version >= TOPIC_IDS_FROM
    return GroupAsked(
        group.group_id, (group.member_id or "") if version >= 9 else "", group.member_epoch if version >= 9 else -1,
        None if group.topics is None else _asked(group.topics, by_id), by_id,
    )


def _asked(topics: Any, by_id: bool) -> tuple[OffsetAsked, ...]:
    return tuple(
        OffsetAsked("" if by_id else topic.name, TopicId(id_bytes(topic.topic_id)) if by_id else NO_TOPIC_ID, index)
        for topic in topics
        for index in topic.partition_indexes
    )


def _response(answers: Sequence[OffsetAnswer], code: ErrorCode) -> Any:
    topics = [
        Topic(name=name, partitions=[
            Partition(
                partition_index=a.partition, committed_offset=a.offset, committed_leader_epoch=a.leader_epoch,
                metadata=a.metadata, error_code=int(a.error),
            )
            for a in of_topic
        ])
        for name, of_topic in groupby(answers, key=lambda a: a.topic)
    ]
    return OffsetFetchResponse(throttle_time_ms=0, topics=topics, error_code=int(code))


def _group(group_id: str, answers: Sequence[OffsetAnswer], code: ErrorCode) -> Any:
    topics = [
        GroupTopic(name=name, topic_id=UUID(bytes=topic_id), partitions=[
            GroupPartition(
                partition_index=a.partition, committed_offset=a.offset, committed_leader_epoch=a.leader_epoch,
                metadata=a.metadata, error_code=int(a.error),
            )
            for a in of_topic
        ])
        for (name, topic_id), of_topic in groupby(answers, key=lambda a: (a.topic, a.topic_id))
    ]
    return Group(group_id=group_id, topics=topics, error_code=int(code))
