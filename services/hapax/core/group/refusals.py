"""Answers that refuse a call of a group's member."""

from __future__ import annotations

from typing import Final

from hapax.core.errors import ErrorCode
from hapax.core.group.values import (
    Answer,
    ConsumerHeartbeatAnswer,
    Heartbeat,
    HeartbeatAnswer,
    JoinAnswer,
    JoinGroup,
    LeaveAnswer,
    LeaveGroup,
    Request,
    SyncAnswer,
    SyncGroup,
)

APPEND_REFUSALS: Final = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.UNKNOWN_SERVER_ERROR,
}
"""The append's error -> the error that the group's member gets."""


def refusal(request: Request, code: ErrorCode, message: str | None = None) -> Answer:
    """The answer that refuses the whole call."""
    if isinstance(request, JoinGroup):
        return JoinAnswer(code, request.member_id, reason=message or "")
    if isinstance(request, SyncGroup):
        return SyncAnswer(code, reason=message or "")
    if isinstance(request, Heartbeat):
        return HeartbeatAnswer(code, message or "")
    if isinstance(request, LeaveGroup):
        return LeaveAnswer(code)
    return ConsumerHeartbeatAnswer(code, message, request.member_id)


def joined_again(instance_id: str, member_id: str, client_id: str, client_host: str) -> str:
    """By whom a static member was fenced."""
    return f"instance id {instance_id!r} was taken {by_client(client_id, client_host)}, as member {member_id!r}"


def by_client(client_id: str, client_host: str) -> str:
    """In the words of other fencings, so that clients find the names. `client_host` is as Kafka describes it, with a
    slash before the address."""
    return f"by {client_id!r} from {client_host.removeprefix('/')}"


def instead_of(answer: Answer, append_error: ErrorCode) -> Answer:
    """The answer to send if the record on which `answer` depends was refused."""
    code = APPEND_REFUSALS.get(append_error, append_error)
    if isinstance(answer, ConsumerHeartbeatAnswer):
        return ConsumerHeartbeatAnswer(code, None, answer.member_id)
    if isinstance(answer, JoinAnswer):
        return JoinAnswer(code, answer.member_id)
    return type(answer)(code)
