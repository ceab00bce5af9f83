"""The client's errors. Each says what to do next.

    HapaxError
    +- RetriableError    nothing is decided against the call: it may succeed later
    +- AbortableError    the open transaction cannot commit: abort it and begin a new one
    |  +- ConditionFailedError  a conditional append came too late: read on, decide again
    +- MembershipLostError  the consumer is no longer in its group: poll again; nothing was committed
    +- FencedError       another instance has this identity: stop; says by whom, when and from where, if the peer did
    +- FatalError        this producer, consumer or call cannot succeed as it is
       +- SettingsError  a setting's name or value is wrong
       +- AuthenticationError  no certificate to trust, or no proof of the password
          +- SaslAuthenticationFailed  the server refuses the login
       +- NotHapaxError  the call needs a Hapax cluster and the peer is another system
       +- WrongState     the call does not fit the calls before it

`code` is Kafka's error code, or 0 if the client itself found the fault. `maybe_written` on a delivery's error: the
records may be in the log all the same.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Final, NamedTuple

from hapax.core.errors import ErrorCode
from hapax.core.producer.error_kinds import LOGIN_REFUSALS, TRANSIENT, ErrorKind
from hapax.core.producer.states import Trouble
from hapax.runtime.ports import RpcError


class HapaxError(Exception):
    """The base class. `message` says what happened, `advice` what to do (may be empty); `str()` gives both."""

    advice = ""

    def __init__(self, message: str, *, code: int = 0, advice: str | None = None, maybe_written: bool = False) -> None:
        self.message = message
        self.code = code
        self.maybe_written = maybe_written
        if advice is not None:
            self.advice = advice
        super().__init__(f"{message}. {self.advice}" if self.advice else message)


class RetriableError(HapaxError):
    advice = "Try again"


class AbortableError(HapaxError):
    advice = "Abort the transaction and begin a new one"


class ConditionFailedError(AbortableError):
    """Nothing was appended, because records that the condition excludes may have been appended since. `position`: the
    offset up to which the partition has to be read before another attempt can succeed."""

    advice = (
        "Abort the transaction if one is open, read the partition up to there, decide again, and append again with the"
        " new position")

    def __init__(
        self, message: str, *, code: int = 0, maybe_written: bool = False, advice: str | None = None
    ) -> None:
        super().__init__(message, code=code, maybe_written=maybe_written, advice=advice)
        told = _READ_UP_TO.search(message)
        self.position = -1 if told is None else int(told.group(1))


class MembershipLostError(HapaxError):
    """The consumer's group has given the partitions to other members, or is about to. Raised by commits; nothing was
    committed."""

    advice = (
        "Poll again: the consumer joins the group again, and the owners of the partitions read the records since the"
        " last commit once more")


class FatalError(HapaxError):
    pass


class SettingsError(FatalError):
    pass


class AuthenticationError(FatalError):
    """The server's certificate is not the expected one, or it does not prove that it knows the password."""

    advice = "Check the certificates and the settings that begin with ssl., and the addresses"


class SaslAuthenticationFailed(AuthenticationError):
    """The server refuses the login: the credential is wrong, or the mechanism is not offered (`code`
    UNSUPPORTED_SASL_MECHANISM; the message names those that are)."""

    advice = "Check the settings that begin with sasl."


class NotHapaxError(FatalError):
    advice = "This call needs a Hapax cluster"


class WrongState(FatalError):
    pass


class FencedError(HapaxError):
    """`by`: the new holder; `when_ms`: milliseconds since 1970; `where`: the new holder's address. Each is None if the
    peer did not say. `timed_out`: there is no new holder, the cluster has aborted a transaction that took too long.

    Kafka's protocol carries a message only in answers to Produce. Hapax adds one to its coordinators' answers.
    """

    advice = "Stop this instance: another one holds its transactional id or lease"

    def __init__(
        self, message: str, *, code: int = 0, maybe_written: bool = False, advice: str | None = None
    ) -> None:
        late = "The transaction took longer than transaction.timeout.ms: make a new producer, allow more time"
        self.timed_out = "timed out and was aborted" in message
        if advice is None and self.timed_out:
            advice = late
        super().__init__(message, code=code, maybe_written=maybe_written, advice=advice)
        by, when, where = _BY.search(message), _WHEN.search(message), _WHERE.search(message)
        self.by = None if by is None else by.group(1) or by.group(2)
        self.where = None if where is None else where.group(1)
        self.when_ms: int | None = None
        if when is not None:
            written = when.group(1)
            self.when_ms = int(written) if written.isdigit() else _milliseconds(written)


# The wording of Hapax's services: "... was initialised again at 2026-01-02T03:04:05.678+00:00 by NAME from HOST:PORT",
# "lease 'x' was taken over by 'NAME' at 1767323045678 (ms since the epoch)", "instance id 'x' was taken by 'NAME' from
# ADDRESS, as member 'y'".
# "... have been appended since offset 3: read up to offset 7", the wording of the partition's leader.
_READ_UP_TO = re.compile(r"read up to offset (\d+)")
_BY = re.compile(r"\bby (?!epoch\b|a client without)(?:'([^']*)'|(\S+))")
_WHEN = re.compile(r"\bat (\d{4}-\d\d-\d\dT[\d:.]+\+00:00|\d{12,})")
_WHERE = re.compile(r"\bfrom (\S+:\d+|\d+(?:\.\d+){3})")


def _milliseconds(iso: str) -> int:
    return int(datetime.fromisoformat(iso).timestamp() * 1000)


def name_of(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"error {code}"


class _Explanation(NamedTuple):
    meaning: str
    """Used where the server gave no reason of its own."""
    advice: str


_NO_ACCESS: Final = "Ask the cluster's administrator for this permission"
_CHECK_TOPIC: Final = "Check the name and the partition's number; a topic created just now may not be visible yet"
_EXPLANATIONS: Final[Mapping[int, _Explanation]] = {
    ErrorCode.UNKNOWN_SERVER_ERROR: _Explanation(
        "the server failed unexpectedly", "Try again; if it fails again, read the server's log"),
    ErrorCode.OFFSET_OUT_OF_RANGE: _Explanation(
        "the log begins after this offset or ends before it", "Read from an offset that the log holds"),
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: _Explanation("there is no such topic or partition", _CHECK_TOPIC),
    ErrorCode.UNKNOWN_TOPIC_ID: _Explanation(
        "there is no topic with this id", "The topic was deleted, and perhaps created again: list the topics"),
    ErrorCode.LEADER_NOT_AVAILABLE: _Explanation(
        "the partition has no leader at the moment",
        "Try again; if it fails again, check that a broker with an in-sync replica is running"),
    ErrorCode.NETWORK_EXCEPTION: _Explanation(
        "the connection failed", "Check that the cluster is running and can be reached, then try again"),
    ErrorCode.COORDINATOR_NOT_AVAILABLE: _Explanation(
        "no coordinator is available at the moment",
        "Try again; if it fails again, check that a coordinator is running"),
    ErrorCode.NOT_ENOUGH_REPLICAS: _Explanation(
        "fewer replicas are in sync than min.insync.replicas requires",
        "Check that the brokers are running, then try again"),
    ErrorCode.KAFKA_STORAGE_ERROR: _Explanation(
        "the node cannot use its disk", "Check the node's disk; try again once another replica leads"),
    ErrorCode.REQUEST_TIMED_OUT: _Explanation(
        "the cluster did not finish in time, and may still finish", "Check the result before trying again"),
    ErrorCode.NOT_CONTROLLER: _Explanation(
        "no controller is active at the moment", "Check that a controller is running, then try again"),
    ErrorCode.THROTTLING_QUOTA_EXCEEDED: _Explanation(
        "this client changes partitions faster than its quota", "Try again later, with fewer at a time"),
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: _Explanation("this client may not use the topic", _NO_ACCESS),
    ErrorCode.GROUP_AUTHORIZATION_FAILED: _Explanation("this client may not use the group", _NO_ACCESS),
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: _Explanation("this client may not administer the cluster", _NO_ACCESS),
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: _Explanation(
        "this client may not use the transactional id", _NO_ACCESS),
    ErrorCode.TOPIC_ALREADY_EXISTS: _Explanation(
        "a topic of this name exists", "Choose another name, or use the topic that exists"),
    ErrorCode.INVALID_CONFIG: _Explanation(
        "a configuration's name or value is not valid", "Correct the configuration"),
    ErrorCode.UNKNOWN_MEMBER_ID: _Explanation(
        "the group accepts offsets from its members only, and this client is not one of them",
        "If the group is in use, stop its members first"),
    ErrorCode.ILLEGAL_GENERATION: _Explanation(
        "the group has begun another generation since",
        "Abort, poll, and process the records of the partitions that are assigned now"),
    ErrorCode.STALE_MEMBER_EPOCH: _Explanation(
        "the member has another epoch in its group, or the partition another owner",
        "Abort, poll, and process the records of the partitions that are assigned now"),
    ErrorCode.FENCED_MEMBER_EPOCH: _Explanation(
        "the group has given up on this member", "Poll again: the consumer joins the group again"),
    ErrorCode.FENCED_INSTANCE_ID: _Explanation(
        "another consumer has joined the group with this group.instance.id",
        "Stop this instance, or give it a group.instance.id of its own"),
    ErrorCode.UNRELEASED_INSTANCE_ID: _Explanation(
        "another consumer is in the group with this group.instance.id",
        "Stop the other instance, or give this one a group.instance.id of its own"),
    ErrorCode.GROUP_MAX_SIZE_REACHED: _Explanation(
        "the group has as many members as the cluster allows", "Stop another member, or raise group.max.size"),
    ErrorCode.INVALID_SESSION_TIMEOUT: _Explanation(
        "the cluster does not allow this session.timeout.ms",
        "Choose one from group.min.session.timeout.ms to group.max.session.timeout.ms"),
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: _Explanation(
        "the group's members have no partition assignor in common with this consumer, or another protocol",
        "Give all members of the group the same partition.assignment.strategy and group.protocol"),
    ErrorCode.UNSUPPORTED_ASSIGNOR: _Explanation(
        "the cluster has no assignor of this name", "Choose another group.remote.assignor: uniform or range"),
    ErrorCode.INVALID_REGULAR_EXPRESSION: _Explanation(
        "the pattern is not a valid RE2 regular expression", "Correct the pattern"),
    ErrorCode.NON_EMPTY_GROUP: _Explanation(
        "the group has active members", "Stop the group's members, then try again"),
    ErrorCode.GROUP_ID_NOT_FOUND: _Explanation("no offsets are committed for this group", "Check the group's name"),
    ErrorCode.UNSTABLE_OFFSET_COMMIT: _Explanation(
        "an open transaction is about to change these offsets", "Try again once the transaction has ended"),
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: _Explanation(
        "no producer has used this transactional id, or it has expired", "Check the transactional id"),
    ErrorCode.INVALID_UPDATE_VERSION: _Explanation(
        "another client has changed it since it was read", "Read it again, then repeat the change"),
    ErrorCode.UNSUPPORTED_VERSION: _Explanation("the cluster's version does not support this", ""),
}
"""What a code means to the person who sees it, and what helps. Other codes have the advice of their error class."""
_UNEXPLAINED: Final = _Explanation("", "")
_NOT_ANSWERED: Final = ("UNAVAILABLE", "DEADLINE_EXCEEDED")
_SERVER_FAILED: Final = ("INTERNAL", "UNKNOWN")
"""gRPC's statuses."""


def connection_failed(message: str) -> RetriableError:
    code = ErrorCode.NETWORK_EXCEPTION
    return RetriableError(message, code=code, advice=_EXPLANATIONS[code].advice)


def from_status(error: RpcError, what: str) -> HapaxError:
    """The error for a failed call of Hapax's own. RetriableError where the server did not answer, or failed: the call
    may have taken effect. FatalError where the server refused it; SaslAuthenticationFailed where it does not know the
    caller."""
    if error.status in _NOT_ANSWERED:
        return connection_failed(f"{what}: {error}")
    if error.status == "UNAUTHENTICATED":
        return SaslAuthenticationFailed(f"{what}: {error}", code=ErrorCode.SASL_AUTHENTICATION_FAILED)
    if error.status in _SERVER_FAILED:
        return from_code(ErrorCode.UNKNOWN_SERVER_ERROR, what, str(error))
    return FatalError(f"{what}: {error}")


def from_code(code: int, what: str, reason: str | None = None) -> HapaxError:
    """The error for an answer outside transactions (reading, administration). `reason`: the server's."""
    meaning, advice = _EXPLANATIONS.get(code, _UNEXPLAINED)
    said = reason or meaning
    text = f"{what}: {name_of(code)}" + (f": {said}" if said else "")
    if code in _RETRIABLE:
        return RetriableError(text, code=code, advice=advice or None)
    if code in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH):
        return FencedError(text, code=code)
    return FatalError(text, code=code, advice=advice)


def group_error(group: str, code: int, reason: str | None, instance_id: str | None) -> HapaxError:
    """The error by which a membership has ended for good."""
    name = f"group {group!r}" + (f", group.instance.id {instance_id!r}" if instance_id is not None else "")
    meaning, advice = _EXPLANATIONS.get(code, _UNEXPLAINED)
    if code == ErrorCode.GROUP_ID_NOT_FOUND:
        meaning, advice = "the group has members of the classic protocol", "Set group.protocol=classic or auto"
    said = reason or meaning
    text = f"{name}: {name_of(code)}" + (f": {said}" if said else "")
    if code == ErrorCode.FENCED_INSTANCE_ID:
        return FencedError(text, code=code, advice=advice)
    return FatalError(text, code=code, advice=advice)


_STALE_EPOCH: Final = (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_TXN_STATE)
"""Answers to a former instance's records, whose transaction its successor has ended (KIP-588)."""
_ABORT_TELLS: Final = (
    "Abort the transaction: abort() raises FencedError if another instance has taken over; otherwise begin a new one")


def from_trouble(trouble: Trouble, *, maybe_written: bool = False, transactional: bool = False) -> HapaxError:
    """The error for what stopped the producer machine or one of its batches."""
    code = int(trouble.code)
    meaning, advice = _EXPLANATIONS.get(code, _UNEXPLAINED)
    said = trouble.reason or meaning
    text = f"{name_of(code)}: {said}" if said else name_of(code)
    if trouble.kind is ErrorKind.FENCED:
        return FencedError(text, code=code, maybe_written=maybe_written)
    if code == ErrorCode.OPERATION_NOT_ATTEMPTED and _READ_UP_TO.search(text):
        if maybe_written:  # without idempotence, a former attempt may itself be what the condition excludes
            return RetriableError(text, code=code, maybe_written=True, advice=(
                "Read the partition up to there: it tells whether the records were appended"))
        return ConditionFailedError(text, code=code)
    if code in LOGIN_REFUSALS:
        return SaslAuthenticationFailed(text, code=code, maybe_written=maybe_written)
    if trouble.kind is ErrorKind.ABORT or (transactional and trouble.kind in (ErrorKind.RETRY, ErrorKind.REFUSED)):
        return AbortableError(
            text, code=code, maybe_written=maybe_written, advice=_ABORT_TELLS if code in _STALE_EPOCH else None)
    if trouble.kind is ErrorKind.FATAL and code in _RETRIABLE:
        # What failed may pass, but this producer has ended: a repeated call would fail for ever.
        return FatalError(text, code=code, maybe_written=maybe_written, advice="Make a new producer")
    if trouble.kind is ErrorKind.RETRY or code in _RETRIABLE:
        if maybe_written:
            advice = "It may or may not have been written: ask for the producer's progress before sending it again"
        return RetriableError(text, code=code, maybe_written=maybe_written, advice=advice or None)
    return FatalError(text, code=code, maybe_written=maybe_written, advice=advice)


_RETRIABLE = frozenset(TRANSIENT) | {
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.THROTTLING_QUOTA_EXCEEDED,
}
"""Codes after which the same call may succeed. 45 is one of them: the application may send a lost batch again."""


def is_retriable(code: int) -> bool:
    return code in _RETRIABLE
