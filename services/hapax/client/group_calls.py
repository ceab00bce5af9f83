"""Encodes a member's calls as messages of the Kafka protocol, and decodes their answers."""

from __future__ import annotations

import uuid
from typing import Any, Final

from hapax.client import membership as m
from hapax.client.settings import Options
from hapax.core.group.subscription import PROTOCOL_TYPE
from hapax.wire import messages
from hapax.wire.peer import Capabilities
from hapax.wire.reasons import reason_of

_FEATURE: Final = "group.version"
_MEMBERS_MAKE_THEIR_IDS: Final = 1
"""The version of ConsumerGroupHeartbeat from which members generate their ids."""
_BATCHED_LEAVE: Final = 3
_INSTANCE_IDS: Final = {messages.JoinGroupRequest: 5, messages.SyncGroupRequest: 3, messages.HeartbeatRequest: 3}
"""The first version of each request that has instance ids."""


def has_consumer_protocol(capabilities: Capabilities) -> bool:
    """Whether the node has KIP-848 in the version that this client uses."""
    _, highest = capabilities.versions.get(messages.ConsumerGroupHeartbeatRequest.API_KEY, (0, -1))
    return highest >= _MEMBERS_MAKE_THEIR_IDS and capabilities.features.get(_FEATURE, 0) >= 1


def encode(group: str, options: Options, call: m.Call, capabilities: Capabilities) -> tuple[Any, int]:
    """(message, version). Raises PeerUnsupported."""
    instance_id = options["group.instance.id"]
    if isinstance(call, m.ConsumerBeat):
        return _consumer_beat(group, call, capabilities)
    if isinstance(call, m.Join):
        Request = messages.JoinGroupRequest
        message = Request(
            group_id=group, session_timeout_ms=options["session.timeout.ms"],
            rebalance_timeout_ms=options["max.poll.interval.ms"], member_id=call.member_id,
            group_instance_id=instance_id, protocol_type=PROTOCOL_TYPE,
            protocols=[Request.JoinGroupRequestProtocol(name=name, metadata=data) for name, data in call.protocols])
    elif isinstance(call, m.Sync):
        Request = messages.SyncGroupRequest
        message = Request(
            group_id=group, generation_id=call.generation, member_id=call.member_id, group_instance_id=instance_id,
            protocol_type=PROTOCOL_TYPE, protocol_name=call.protocol,
            assignments=[
                Request.SyncGroupRequestAssignment(member_id=member_id, assignment=data)
                for member_id, data in call.assignments])
    elif isinstance(call, m.Beat):
        Request = messages.HeartbeatRequest
        message = Request(
            group_id=group, generation_id=call.generation, member_id=call.member_id, group_instance_id=instance_id)
    else:
        assert isinstance(call, m.Leave)
        Request = messages.LeaveGroupRequest
        version = capabilities.pick(Request)
        members = [Request.MemberIdentity(member_id=call.member_id, group_instance_id=None)]
        return Request(
            group_id=group, member_id=call.member_id, members=members if version >= _BATCHED_LEAVE else []), version
    least = _INSTANCE_IDS[Request] if instance_id is not None else 0
    return message, capabilities.pick(Request, at_least=least)


def _consumer_beat(group: str, call: m.ConsumerBeat, capabilities: Capabilities) -> tuple[Any, int]:
    Request = messages.ConsumerGroupHeartbeatRequest
    version = capabilities.pick(Request, at_least=_MEMBERS_MAKE_THEIR_IDS)
    owned = None
    if call.owned is not None:
        topics: dict[bytes, list[int]] = {}
        for topic_id, partition in call.owned:
            topics.setdefault(topic_id, []).append(partition)
        owned = [
            Request.TopicPartitions(topic_id=uuid.UUID(bytes=topic_id), partitions=partitions)
            for topic_id, partitions in topics.items()]
    return Request(
        group_id=group, member_id=call.member_id, member_epoch=call.epoch, instance_id=call.instance_id,
        rebalance_timeout_ms=-1 if call.rebalance_timeout_ms is None else call.rebalance_timeout_ms,
        subscribed_topic_names=None if call.names is None else list(call.names), subscribed_topic_regex=call.regex,
        server_assignor=call.assignor, topic_partitions=owned), version


def decode(call: m.Call, response: Any) -> m.Answer:
    if isinstance(call, m.ConsumerBeat):
        given = response.assignment
        assignment = None if given is None else frozenset(
            (topic.topic_id.bytes, partition) for topic in given.topic_partitions for partition in topic.partitions)
        return m.ConsumerBeaten(
            response.error_code, response.error_message, response.member_epoch, response.heartbeat_interval_ms,
            assignment)
    if isinstance(call, m.Join):
        return m.Joined(
            response.error_code, response.member_id, response.generation_id, response.protocol_name or "",
            response.leader, bool(response.skip_assignment),
            tuple((each.member_id, each.group_instance_id, bytes(each.metadata)) for each in response.members),
            reason_of(response))
    if isinstance(call, m.Sync):
        return m.Synced(response.error_code, bytes(response.assignment or b""), reason_of(response))
    return m.Beaten(response.error_code, reason_of(response))
