"""Every version of the calls about consumer groups, from the request's bytes to the response's bytes."""

from __future__ import annotations

import inspect
import random
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from hapax.core.errors import ErrorCode, Refusal
from hapax.core.group.descriptions import (
    CLASSIC_TYPE,
    CONSUMER_TYPE,
    ClassicDescription,
    ConsumerDescription,
    DescribedClassicMember,
    DescribedConsumer,
    GroupListing,
)
from hapax.core.group.values import (
    SUPERSEDED,
    SUPERSEDED_JOIN,
    ClassicFacade,
    ConsumerHeartbeatAnswer,
    HeartbeatAnswer,
    JoinAnswer,
    JoinedMember,
    LeaveAnswer,
    LeavingMember,
    MemberValue,
    OwnedTopic,
    ProtocolOffer,
    SyncAnswer,
)
from hapax.core.types import TopicId
from hapax.kafka.api import (
    consumer_group_describe,
    consumer_group_heartbeat,
    delete_groups,
    describe_groups,
    heartbeat,
    join_group,
    leave_group,
    list_groups,
    offset_delete,
    sync_group,
)
from hapax.kafka.registry import all_apis
from hapax.kafka.table import ApiTable, CloseConnection
from hapax.wire import messages
from hapax.wire.reasons import reason_of

A, B, GONE = (TopicId(bytes([number]) * 16) for number in (1, 2, 3))
LONG = "x" * 40_000
"""No record can hold it as a name."""

VALUE = MemberValue("i-1", "rack", "client", "/10.0.0.1", ("a", "b"), "a.*", 45_000, "uniform")
LISTED = (
    GroupListing("g-1", "consumer", "Stable", CLASSIC_TYPE),
    GroupListing("g-2", "", "Empty", CLASSIC_TYPE),
    GroupListing("g-3", "consumer", "Reconciling", CONSUMER_TYPE),
)


class Coordinator:
    """Remembers what it was asked, and answers what it was given; with a code it refuses everything."""

    def __init__(self, answer: Any = None) -> None:
        self.answer = answer
        self.asked: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        async def called(*request: Any) -> Any:
            self.asked.append((name, *request))
            if isinstance(self.answer, ErrorCode):
                raise Refusal(self.answer, "the reason")
            return self.answer

        return called

    def topic_name(self, topic_id: TopicId) -> str | None:
        return {A: "a", B: "b"}.get(topic_id)


async def call(api: Any, version: int, request: Any, answer: Any, peer: str = "127.0.0.1:5000") -> tuple[Any, Any]:
    """Through the bytes both ways. Returns what the coordinator was asked, and the response."""
    table = ApiTable(all_apis())
    coordinator = Coordinator(answer)
    more = (random.Random(7),) if api in (join_group, consumer_group_heartbeat) else ()
    api.register(table, *more, coordinator)
    handler = table.apis[api.ROW.key].handler
    assert handler is not None
    decoded = type(request).decode(request.encode(version=version), version=version)
    context = SimpleNamespace(
        api_version=version, client_id="client", principal="User:alice",
        connection=SimpleNamespace(peer=peer, serial=7),
        release_memory=lambda: None)
    response = handler(context, decoded)  # type: ignore[arg-type]
    if inspect.isawaitable(response):
        response = await response
    kind = type(response)
    asked = coordinator.asked[0] if coordinator.asked else None
    return asked, kind.decode(response.encode(version=version), version=version)


def every_version(api: Any) -> Any:
    return pytest.mark.parametrize("version", range(api.ROW.versions[0], api.ROW.versions[1] + 1))


def join_request(**fields: Any) -> Any:
    kind = messages.JoinGroupRequest
    offer = kind.JoinGroupRequestProtocol
    return kind(**{
        "group_id": "g", "session_timeout_ms": 10_000, "rebalance_timeout_ms": 60_000, "member_id": "m-1",
        "group_instance_id": "i-1", "protocol_type": "consumer", "reason": "new",
        "protocols": [offer(name="range", metadata=b"R"), offer(name="sticky", metadata=b"S")]} | fields)


@every_version(join_group)
async def test_join_group(version: int) -> None:
    answer = JoinAnswer(
        ErrorCode.NONE, "m-1", 4, "consumer", "range", "m-1", True,
        (JoinedMember("m-1", "i-1", b"R"), JoinedMember("m-2", None, b"")))
    asked, response = await call(join_group, version, join_request(), answer)
    name, join = asked
    assert name == "join_group"
    assert (join.version, join.group_id, join.member_id, join.protocol_type) == (version, "g", "m-1", "consumer")
    assert join.instance_id == ("i-1" if version >= 5 else None)
    assert (join.session_timeout_ms, join.rebalance_timeout_ms) == (10_000, 60_000 if version >= 1 else 10_000)
    assert join.protocols == (ProtocolOffer("range", b"R"), ProtocolOffer("sticky", b"S"))
    assert (join.client_id, join.client_host, join.fresh_id, join.connection) == ("client", "/127.0.0.1", "", 7)
    assert (response.error_code, response.generation_id, response.protocol_name) == (0, 4, "range")
    assert response.protocol_type == ("consumer" if version >= 7 else None)
    assert (response.leader, response.member_id) == ("m-1", "m-1")
    assert response.skip_assignment is (version >= 9)
    assert [(m.member_id, m.group_instance_id, m.metadata) for m in response.members] == [
        ("m-1", "i-1" if version >= 5 else None, b"R"), ("m-2", None, b"")]


@every_version(join_group)
async def test_a_refused_join_names_no_protocol(version: int) -> None:
    answer = JoinAnswer(ErrorCode.MEMBER_ID_REQUIRED, "client-1")
    asked, response = await call(join_group, version, join_request(member_id=""), answer)
    assert UUID(asked[1].fresh_id).version == 4
    assert (response.error_code, response.generation_id, response.member_id) == (79, -1, "client-1")
    assert (response.protocol_name, response.protocol_type) == (None if version >= 7 else "", None)
    assert (response.leader, response.members) == ("", [])


async def test_ids_of_new_members_are_made_from_the_randomness_that_is_given() -> None:
    answer = JoinAnswer(ErrorCode.MEMBER_ID_REQUIRED, "")
    first, _ = await call(join_group, 9, join_request(member_id=""), answer)
    again, _ = await call(join_group, 9, join_request(member_id=""), answer)
    assert first[1].fresh_id == again[1].fresh_id


async def test_the_host_of_a_client_with_a_long_address() -> None:
    answer = JoinAnswer(ErrorCode.MEMBER_ID_REQUIRED, "")
    asked, _ = await call(join_group, 9, join_request(), answer, peer="2001:db8::1:5000")
    assert asked[1].client_host == "/2001:db8::1"


@every_version(join_group)
async def test_a_join_that_the_shard_refuses(version: int) -> None:
    _, response = await call(join_group, version, join_request(), ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    assert (response.error_code, response.member_id) == (14, "m-1")
    assert reason_of(response) == ("the reason" if version >= 6 else "")


@pytest.mark.parametrize("field, code", [
    ("group_id", 24), ("member_id", 42), ("group_instance_id", 42), ("protocol_type", 42)])
async def test_a_join_with_a_name_that_no_record_can_hold(field: str, code: int) -> None:
    asked, response = await call(join_group, 9, join_request(**{field: LONG}), None)
    assert (asked, response.error_code) == (None, code)


async def test_a_join_with_a_protocol_that_no_record_can_hold() -> None:
    offer = messages.JoinGroupRequest.JoinGroupRequestProtocol(name=LONG, metadata=b"")
    asked, response = await call(join_group, 9, join_request(protocols=[offer]), None)
    assert (asked, response.error_code) == (None, 42)


async def test_a_join_of_a_million_protocols_is_no_request() -> None:
    empty = messages.JoinGroupRequest.JoinGroupRequestProtocol(name="", metadata=b"")
    data = join_request(protocols=[empty] * 1_001).encode(version=9)
    with pytest.raises(ValueError, match="more than 1000 elements"):
        messages.JoinGroupRequest.decode(data, version=9)
    assert len(messages.JoinGroupRequest.decode(
        join_request(protocols=[empty] * 1_000).encode(version=9), version=9).protocols) == 1_000


def sync_request(**fields: Any) -> Any:
    kind = messages.SyncGroupRequest
    return kind(**{
        "group_id": "g", "generation_id": 4, "member_id": "m-1", "group_instance_id": "i-1",
        "protocol_type": "consumer", "protocol_name": "range",
        "assignments": [kind.SyncGroupRequestAssignment(member_id="m-1", assignment=b"A")]} | fields)


@every_version(sync_group)
async def test_sync_group(version: int) -> None:
    answer = SyncAnswer(ErrorCode.NONE, "consumer", "range", b"A")
    asked, response = await call(sync_group, version, sync_request(), answer)
    name, sync = asked
    assert name == "sync_group"
    assert (sync.version, sync.group_id, sync.generation, sync.member_id) == (version, "g", 4, "m-1")
    assert sync.instance_id == ("i-1" if version >= 3 else None)
    assert (sync.protocol_type, sync.protocol) == (("consumer", "range") if version >= 5 else (None, None))
    assert sync.assignments == (("m-1", b"A"),)
    assert (response.error_code, response.assignment) == (0, b"A")
    assert (response.protocol_type, response.protocol_name) == (
        ("consumer", "range") if version >= 5 else (None, None))


@every_version(sync_group)
@pytest.mark.parametrize("field", ["protocol_type", "protocol_name"])
async def test_a_sync_that_names_no_protocol_is_refused_before_anything_else(version: int, field: str) -> None:
    request = sync_request(**{field: None}, group_id="")
    asked, response = await call(sync_group, version, request, None)
    assert (asked, response.error_code, response.assignment) == (None, 23 if version >= 5 else 24, b"")


@every_version(sync_group)
async def test_a_sync_that_the_shard_refuses(version: int) -> None:
    _, response = await call(sync_group, version, sync_request(), ErrorCode.NOT_COORDINATOR)
    assert (response.error_code, response.assignment, response.protocol_name) == (16, b"", None)


@pytest.mark.parametrize("api, request_, answer", [
    (join_group, join_request(), JoinAnswer(ErrorCode.FENCED_INSTANCE_ID, "m-1", reason="by whom")),
    (sync_group, sync_request(), SyncAnswer(ErrorCode.FENCED_INSTANCE_ID, reason="by whom")),
    (heartbeat, messages.HeartbeatRequest(
        group_id="g", generation_id=4, member_id="m-1", group_instance_id="i-1"),
     HeartbeatAnswer(ErrorCode.FENCED_INSTANCE_ID, "by whom")),
], ids=["join", "sync", "heartbeat"])
async def test_a_fenced_member_is_told_by_whom(api: Any, request_: Any, answer: Any) -> None:
    _, response = await call(api, api.ROW.versions[1], request_, answer)
    assert (response.error_code, reason_of(response)) == (ErrorCode.FENCED_INSTANCE_ID, "by whom")


@every_version(heartbeat)
async def test_heartbeat(version: int) -> None:
    request = messages.HeartbeatRequest(group_id="g", generation_id=4, member_id="m-1", group_instance_id="i-1")
    asked, response = await call(heartbeat, version, request, HeartbeatAnswer(ErrorCode.REBALANCE_IN_PROGRESS))
    name, beat = asked
    assert name == "heartbeat"
    assert (beat.group_id, beat.generation, beat.member_id) == ("g", 4, "m-1")
    assert beat.instance_id == ("i-1" if version >= 3 else None)
    assert response.error_code == 27


@pytest.mark.parametrize("code, answered", [
    (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, 0), (ErrorCode.NOT_COORDINATOR, 16),
    (ErrorCode.COORDINATOR_NOT_AVAILABLE, 15)])
async def test_a_heartbeat_at_a_shard_that_loads_is_no_error(code: ErrorCode, answered: int) -> None:
    request = messages.HeartbeatRequest(group_id="g", generation_id=4, member_id="m-1", group_instance_id=None)
    _, response = await call(heartbeat, 4, request, code)
    assert response.error_code == answered


@every_version(leave_group)
async def test_leave_group(version: int) -> None:
    kind = messages.LeaveGroupRequest
    request = kind(group_id="g", member_id="m-1", members=[
        kind.MemberIdentity(member_id="m-1", group_instance_id=None, reason="bye"),
        kind.MemberIdentity(member_id="", group_instance_id="i-2", reason=None)])
    codes = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.NONE)
    asked, response = await call(leave_group, version, request, LeaveAnswer(ErrorCode.NONE, codes))
    name, leave = asked
    assert name == "leave_group"
    assert (leave.version, leave.group_id) == (version, "g")
    if version < 3:
        assert leave.members == (LeavingMember("m-1", None),)
        assert response.error_code == 25
    else:
        assert leave.members == (LeavingMember("m-1", None), LeavingMember("", "i-2"))
        assert response.error_code == 0
        assert [(m.member_id, m.group_instance_id, m.error_code) for m in response.members] == [
            ("m-1", None, 25), ("", "i-2", 0)]


@every_version(leave_group)
async def test_a_leave_that_is_refused_as_a_whole(version: int) -> None:
    kind = messages.LeaveGroupRequest
    request = kind(group_id="g", member_id="m-1", members=[kind.MemberIdentity(member_id="m-1")])
    for answer in (ErrorCode.NOT_COORDINATOR, LeaveAnswer(ErrorCode.NOT_COORDINATOR)):
        _, response = await call(leave_group, version, request, answer)
        assert (response.error_code, list(response.members or ())) == (16, [])


@pytest.mark.parametrize("api, request_", [
    (join_group, join_request(group_id="")), (sync_group, sync_request(group_id="")),
    (heartbeat, messages.HeartbeatRequest(group_id="", generation_id=4, member_id="m", group_instance_id=None)),
    (leave_group, messages.LeaveGroupRequest(group_id="", members=[])),
    (offset_delete, messages.OffsetDeleteRequest(group_id="", topics=[])),
], ids=lambda value: getattr(value, "__name__", ""))
async def test_an_empty_group_id_is_refused_whatever_the_state_of_a_shard(api: Any, request_: Any) -> None:
    asked, response = await call(api, api.ROW.versions[1], request_, ErrorCode.NOT_COORDINATOR)
    assert (asked, response.error_code) == (None, 24)


DESCRIBED = ClassicDescription("Stable", "consumer", "range", (
    DescribedClassicMember("m-1", "i-1", "client", "/10.0.0.1", b"R", b"A"),))


@every_version(describe_groups)
async def test_describe_groups(version: int) -> None:
    request = messages.DescribeGroupsRequest(groups=["g", "g"], include_authorized_operations=True)
    asked, response = await call(describe_groups, version, request, DESCRIBED)
    assert asked == ("describe_group", "g")
    assert len(response.groups) == 2
    group = response.groups[0]
    assert (group.error_code, group.group_id, group.group_state) == (0, "g", "Stable")
    assert (group.protocol_type, group.protocol_data) == ("consumer", "range")
    (member,) = group.members
    assert (member.member_id, member.client_id, member.client_host) == ("m-1", "client", "/10.0.0.1")
    assert member.group_instance_id == ("i-1" if version >= 4 else None)
    assert (member.member_metadata, member.member_assignment) == (b"R", b"A")


@every_version(describe_groups)
async def test_a_group_that_is_not_there_is_dead(version: int) -> None:
    request = messages.DescribeGroupsRequest(groups=["g"])
    _, response = await call(describe_groups, version, request, ErrorCode.GROUP_ID_NOT_FOUND)
    (group,) = response.groups
    assert (group.error_code, group.group_id, group.group_state) == (69 if version >= 6 else 0, "g", "Dead")
    assert group.error_message == ("the reason" if version >= 6 else None)
    _, response = await call(describe_groups, version, request, ErrorCode.NOT_COORDINATOR)
    assert [(g.error_code, g.group_state) for g in response.groups] == [(16, "")]


@pytest.mark.parametrize("states, types, listed", [
    ([], [], ["g-1", "g-2", "g-3"]),
    (["stable"], [], ["g-1"]),
    (["EMPTY", "Reconciling"], [], ["g-2", "g-3"]),
    (["nonsense"], [], []),
    ([], ["Classic"], ["g-1", "g-2"]),
    (["Empty", "Reconciling"], ["CONSUMER"], ["g-3"]),
    ([], ["nonsense"], []),
])
@every_version(list_groups)
async def test_list_groups(version: int, states: list[str], types: list[str], listed: list[str]) -> None:
    request = messages.ListGroupsRequest(states_filter=states, types_filter=types)
    _, response = await call(list_groups, version, request, LISTED)
    if version < 4:
        listed = ["g-1", "g-2", "g-3"]
    elif version == 4:
        listed = [each.group_id for each in LISTED if not states or each.state.lower() in map(str.lower, states)]
    assert response.error_code == 0
    expected = [each for each in LISTED if each.group_id in listed]
    assert [(g.group_id, g.protocol_type) for g in response.groups] == [(e.group_id, e.protocol_type) for e in expected]
    if version >= 4:
        assert [g.group_state for g in response.groups] == [each.state for each in expected]
    if version >= 5:
        assert [g.group_type for g in response.groups] == [each.group_type for each in expected]


@every_version(list_groups)
async def test_a_shard_that_cannot_tell_fails_the_list(version: int) -> None:
    request = messages.ListGroupsRequest(states_filter=[], types_filter=[])
    _, response = await call(list_groups, version, request, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    assert (response.error_code, list(response.groups)) == (14, [])


@every_version(delete_groups)
async def test_delete_groups(version: int) -> None:
    request = messages.DeleteGroupsRequest(groups_names=["g", "h", "g"])
    asked, response = await call(delete_groups, version, request, ErrorCode.NON_EMPTY_GROUP)
    assert asked == ("delete_group", "g")
    assert [(r.group_id, r.error_code) for r in response.results] == [("g", 68), ("h", 68)]


async def test_many_groups_are_asked_about_in_order() -> None:
    names = [f"g-{number}" for number in range(1_234)]
    request = messages.DescribeGroupsRequest(groups=names)
    _, response = await call(describe_groups, 6, request, DESCRIBED)
    assert [group.group_id for group in response.groups] == names


async def test_offset_delete() -> None:
    kind = messages.OffsetDeleteRequest
    topic, partition = kind.OffsetDeleteRequestTopic, kind.OffsetDeleteRequestTopic.OffsetDeleteRequestPartition
    request = kind(group_id="g", topics=[
        topic(name="a", partitions=[partition(partition_index=0), partition(partition_index=2)]),
        topic(name="b", partitions=[partition(partition_index=0)])])
    codes = (ErrorCode.NONE, ErrorCode.NONE, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)
    asked, response = await call(offset_delete, 0, request, codes)
    assert asked == ("offset_delete", "g", [("a", 0), ("a", 2), ("b", 0)])
    assert response.error_code == 0
    assert [(t.name, [(p.partition_index, p.error_code) for p in t.partitions]) for t in response.topics] == [
        ("a", [(0, 0), (2, 0)]), ("b", [(0, 86)])]
    _, response = await call(offset_delete, 0, request, ErrorCode.GROUP_ID_NOT_FOUND)
    assert (response.error_code, list(response.topics)) == (69, [])


def consumer_request(**fields: Any) -> Any:
    kind = messages.ConsumerGroupHeartbeatRequest
    return kind(**{
        "group_id": "g", "member_id": "m-1", "member_epoch": 3, "instance_id": "i-1", "rack_id": "r",
        "rebalance_timeout_ms": 45_000, "subscribed_topic_names": ["a", "b"], "subscribed_topic_regex": "a.*",
        "server_assignor": "uniform",
        "topic_partitions": [kind.TopicPartitions(topic_id=UUID(bytes=A), partitions=[2, 0])]} | fields)


@every_version(consumer_group_heartbeat)
async def test_consumer_group_heartbeat(version: int) -> None:
    answer = ConsumerHeartbeatAnswer(
        ErrorCode.NONE, None, "m-1", 4, 5_000, frozenset({(B, 1), (A, 2), (A, 0)}))
    asked, response = await call(consumer_group_heartbeat, version, consumer_request(), answer)
    name, beat = asked
    assert name == "consumer_group_heartbeat"
    assert (beat.version, beat.group_id, beat.member_id, beat.member_epoch) == (version, "g", "m-1", 3)
    assert (beat.instance_id, beat.rack_id, beat.rebalance_timeout_ms) == ("i-1", "r", 45_000)
    assert (beat.subscribed_names, beat.server_assignor) == (("a", "b"), "uniform")
    assert beat.subscribed_regex == ("a.*" if version >= 1 else None)
    assert beat.owned == (OwnedTopic(A, (2, 0)),)
    assert (beat.client_id, beat.client_host, beat.fresh_id, beat.connection) == ("client", "/127.0.0.1", "", 7)
    assert beat.principal == "User:alice"
    assert (response.error_code, response.error_message, response.member_id) == (0, None, "m-1")
    assert (response.member_epoch, response.heartbeat_interval_ms) == (4, 5_000)
    assert [(t.topic_id.bytes, list(t.partitions)) for t in response.assignment.topic_partitions] == [
        (A, [0, 2]), (B, [1])]


async def test_a_member_that_owns_a_topic_with_the_id_zero() -> None:
    """The library decodes this id to None."""
    kind = messages.ConsumerGroupHeartbeatRequest
    request = consumer_request(topic_partitions=[kind.TopicPartitions(topic_id=UUID(int=0), partitions=[2])])
    asked, _ = await call(consumer_group_heartbeat, 1, request, ConsumerHeartbeatAnswer(ErrorCode.NONE))
    assert asked[1].owned == (OwnedTopic(TopicId(bytes(16)), (2,)),)


async def test_a_join_over_an_older_connection_closes_it() -> None:
    with pytest.raises(CloseConnection, match="newer connection"):
        await call(join_group, 9, join_request(), SUPERSEDED_JOIN)


async def test_a_heartbeat_over_an_older_connection_closes_it() -> None:
    with pytest.raises(CloseConnection, match="newer connection"):
        await call(consumer_group_heartbeat, 1, consumer_request(), SUPERSEDED)


@every_version(consumer_group_heartbeat)
async def test_what_a_member_leaves_unchanged_is_none(version: int) -> None:
    request = consumer_request(
        instance_id=None, rack_id=None, rebalance_timeout_ms=-1, subscribed_topic_names=None,
        subscribed_topic_regex=None, server_assignor=None, topic_partitions=None)
    answer = ConsumerHeartbeatAnswer(ErrorCode.NONE, None, "m-1", 3, 5_000, None)
    asked, response = await call(consumer_group_heartbeat, version, request, answer)
    beat = asked[1]
    assert (beat.instance_id, beat.rack_id, beat.rebalance_timeout_ms, beat.subscribed_names, beat.subscribed_regex,
            beat.server_assignor, beat.owned) == (None, None, -1, None, None, None, None)
    assert response.assignment is None


async def test_nothing_owned_and_nothing_assigned_are_not_the_same_as_unchanged() -> None:
    request = consumer_request(subscribed_topic_names=[], subscribed_topic_regex="", topic_partitions=[])
    answer = ConsumerHeartbeatAnswer(ErrorCode.NONE, None, "m-1", 3, 5_000, frozenset())
    asked, response = await call(consumer_group_heartbeat, 1, request, answer)
    assert (asked[1].subscribed_names, asked[1].subscribed_regex, asked[1].owned) == ((), "", ())
    assert list(response.assignment.topic_partitions) == []


@every_version(consumer_group_heartbeat)
async def test_the_coordinator_makes_ids_for_members_of_version_0_only(version: int) -> None:
    answer = ConsumerHeartbeatAnswer(ErrorCode.INVALID_REQUEST, "no id", "m-1", 3, 5_000, frozenset())
    asked, response = await call(consumer_group_heartbeat, version, consumer_request(member_id=""), answer)
    assert (asked[1].fresh_id != "") is (version == 0)
    assert (response.error_code, response.error_message, response.member_id) == (42, "no id", None)
    assert (response.member_epoch, response.heartbeat_interval_ms, response.assignment) == (0, 0, None)


@pytest.mark.parametrize("field", ["group_id", "member_id", "instance_id", "rack_id", "subscribed_topic_regex"])
async def test_a_heartbeat_with_a_name_that_no_record_can_hold(field: str) -> None:
    asked, response = await call(consumer_group_heartbeat, 1, consumer_request(**{field: LONG}), None)
    assert (asked, response.error_code) == (None, 42)
    assert "longer" in response.error_message


async def test_a_consumers_heartbeat_at_a_shard_that_loads() -> None:
    _, response = await call(
        consumer_group_heartbeat, 1, consumer_request(), ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    assert (response.error_code, response.error_message) == (14, "the reason")


@every_version(consumer_group_describe)
async def test_consumer_group_describe(version: int) -> None:
    classic = VALUE._replace(classic=ClassicFacade(10_000, ()), subscribed_regex=None)
    found = ConsumerDescription("Reconciling", 7, 6, "uniform", (
        DescribedConsumer("m-1", VALUE, 5, frozenset({(A, 1), (A, 0), (GONE, 0)}), frozenset({(B, 0)})),
        DescribedConsumer("m-2", classic, 6, frozenset(), frozenset())))
    request = messages.ConsumerGroupDescribeRequest(group_ids=["g"], include_authorized_operations=False)
    asked, response = await call(consumer_group_describe, version, request, found)
    assert asked == ("consumer_group_describe", "g")
    (group,) = response.groups
    assert (group.error_code, group.group_id, group.group_state) == (0, "g", "Reconciling")
    assert (group.group_epoch, group.assignment_epoch, group.assignor_name) == (7, 6, "uniform")
    first, second = group.members
    assert (first.member_id, first.instance_id, first.rack_id, first.member_epoch) == ("m-1", "i-1", "rack", 5)
    assert (first.client_id, first.client_host) == ("client", "/10.0.0.1")
    assert (list(first.subscribed_topic_names), first.subscribed_topic_regex) == (["a", "b"], "a.*")
    assert [(t.topic_id.bytes, t.topic_name, list(t.partitions)) for t in first.assignment.topic_partitions] == [
        (A, "a", [0, 1])]
    assert [(t.topic_id.bytes, t.topic_name, list(t.partitions)) for t in first.target_assignment.topic_partitions
            ] == [(B, "b", [0])]
    assert second.subscribed_topic_regex is None
    assert (first.member_type, second.member_type) == ((1, 0) if version >= 1 else (-1, -1))


@every_version(consumer_group_describe)
async def test_a_consumer_group_that_is_not_there(version: int) -> None:
    request = messages.ConsumerGroupDescribeRequest(group_ids=["g", ""], include_authorized_operations=False)
    _, response = await call(consumer_group_describe, version, request, ErrorCode.GROUP_ID_NOT_FOUND)
    assert [(g.error_code, g.error_message, g.group_id) for g in response.groups] == [
        (69, "the reason", "g"), (24, "the group id is empty", "")]


ELSEWHERE = {
    join_group: join_request(), sync_group: sync_request(),
    heartbeat: messages.HeartbeatRequest(group_id="g", generation_id=4, member_id="m", group_instance_id=None),
    leave_group: messages.LeaveGroupRequest(group_id="g", members=[]),
    offset_delete: messages.OffsetDeleteRequest(group_id="g", topics=[]),
    consumer_group_heartbeat: consumer_request(),
}


@pytest.mark.parametrize("api", ELSEWHERE, ids=lambda api: api.ROW.name)
def test_a_node_of_another_role_names_the_mistake(api: Any) -> None:
    for version in range(api.ROW.versions[0], api.ROW.versions[1] + 1):
        response = api.refused(ELSEWHERE[api], version, api.ROW.elsewhere)
        assert type(response).decode(response.encode(version=version), version=version).error_code == 16


def test_a_node_of_another_role_has_no_groups() -> None:
    assert list_groups.ROW.elsewhere is ErrorCode.NONE
    answer = list_groups.refused(None, 5, list_groups.ROW.elsewhere)
    assert (answer.error_code, answer.groups) == (0, [])
    for api, request in (
        (describe_groups, messages.DescribeGroupsRequest(groups=["g"])),
        (delete_groups, messages.DeleteGroupsRequest(groups_names=["g", "g"])),
        (consumer_group_describe, messages.ConsumerGroupDescribeRequest(group_ids=["g"])),
    ):
        answer = api.refused(request, api.ROW.versions[1], api.ROW.elsewhere)
        each = answer.results if api is delete_groups else answer.groups
        assert [(one.error_code, one.group_id) for one in each] == [(16, "g")]


# --- bytes --------------------------------------------------------------------------------------------------------
# By hand, from the published schemas: the messages whose classes are generated from schemas of our own.


def test_bytes_of_a_consumers_heartbeat() -> None:
    head = b"\x02g" + b"\x04m-1" + (3).to_bytes(4, "big") + b"\x04i-1" + b"\x02r" + (45_000).to_bytes(4, "big")
    names, assignor = b"\x03\x02a\x02b", b"\x08uniform"
    owned = b"\x02" + A + b"\x03" + (2).to_bytes(4, "big") + bytes(4) + b"\0"
    request = consumer_request()
    assert bytes(request.encode(version=0)) == head + names + assignor + owned + b"\0"
    assert bytes(request.encode(version=1)) == head + names + b"\x04a.*" + assignor + owned + b"\0"


def test_bytes_of_the_answer_to_a_consumers_heartbeat() -> None:
    kind = messages.ConsumerGroupHeartbeatResponse
    topic = kind.Assignment.TopicPartitions(topic_id=UUID(bytes=A), partitions=[1])
    fields = {"throttle_time_ms": 0, "error_code": 0, "error_message": None, "member_id": "m", "member_epoch": 4,
              "heartbeat_interval_ms": 5_000}
    head = bytes(4) + bytes(2) + b"\0" + b"\x02m" + (4).to_bytes(4, "big") + (5_000).to_bytes(4, "big")
    response = kind(**fields, assignment=kind.Assignment(topic_partitions=[topic]))
    assert bytes(response.encode(version=1)) == (
        head + b"\x01" + b"\x02" + A + b"\x02" + (1).to_bytes(4, "big") + b"\0" + b"\0" + b"\0")
    assert bytes(kind(**fields, assignment=None).encode(version=1)) == head + b"\xff" + b"\0"


def test_bytes_of_a_described_consumer_group() -> None:
    kind = messages.ConsumerGroupDescribeResponse
    member_kind = kind.DescribedGroup.Member
    topic = member_kind.Assignment.TopicPartitions(topic_id=UUID(bytes=A), topic_name="a", partitions=[1])
    assigned = member_kind.Assignment(topic_partitions=[topic])
    none = member_kind.Assignment(topic_partitions=[])
    member = member_kind(
        member_id="m", instance_id=None, rack_id=None, member_epoch=4, client_id="c", client_host="/h",
        subscribed_topic_names=["a"], subscribed_topic_regex=None, assignment=assigned, target_assignment=none,
        member_type=1)
    response = kind(throttle_time_ms=0, groups=[kind.DescribedGroup(
        error_code=0, error_message=None, group_id="g", group_state="Stable", group_epoch=5, assignment_epoch=6,
        assignor_name="range", members=[member], authorized_operations=None)])
    described = (
        b"\x02m" + b"\0" + b"\0" + (4).to_bytes(4, "big") + b"\x02c" + b"\x03/h" + b"\x02\x02a" + b"\0"
        + b"\x02" + A + b"\x02a" + b"\x02" + (1).to_bytes(4, "big") + b"\0" + b"\0" + b"\x01\0")
    for version, member_type in ((0, b""), (1, b"\x01")):
        assert bytes(response.encode(version=version)) == (
            bytes(4) + b"\x02" + bytes(2) + b"\0" + b"\x02g" + b"\x07Stable" + (5).to_bytes(4, "big")
            + (6).to_bytes(4, "big") + b"\x06range" + b"\x02" + described + member_type + b"\0"
            + (1 << 31).to_bytes(4, "big") + b"\0" + b"\0")


def test_bytes_of_the_question_about_consumer_groups() -> None:
    request = messages.ConsumerGroupDescribeRequest(group_ids=["g"], include_authorized_operations=True)
    for version in (0, 1):
        assert bytes(request.encode(version=version)) == b"\x02\x02g\x01\0"


@pytest.mark.parametrize("name, array, element, most", [
    ("SyncGroupRequest", "assignments", {"member_id": "", "assignment": b""}, 20_000),
    ("LeaveGroupRequest", "members", {"member_id": "", "group_instance_id": None, "reason": None}, 10_000),
])
def test_a_long_frame_of_tiny_elements_is_no_request(
    name: str, array: str, element: dict[str, Any], most: int
) -> None:
    kind = getattr(messages, name)
    tiny = kind.fields[array](**element)

    def encoded(count: int) -> bytes:
        fields = {"group_id": "g", "generation_id": 1, "member_id": "m", "group_instance_id": None,
                  "protocol_type": "p", "protocol_name": "n", array: [tiny] * count}
        request = kind(**{field: value for field, value in fields.items() if field in kind.fields})
        return bytes(request.encode(version=kind.max_version))

    assert len(getattr(kind.decode(encoded(most), version=kind.max_version), array)) == most
    with pytest.raises(ValueError, match=f"more than {most} elements"):
        kind.decode(encoded(most + 1), version=kind.max_version)
