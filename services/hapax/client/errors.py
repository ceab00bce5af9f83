"""The client's errors. Each says what to do next.

    HapaxError
    +- RetriableError    nothing is decided against the call: it may succeed later
    +- AbortableError    the open transaction cannot commit: abort it and begin a new one
    +- FencedError       another instance has this identity: stop; says by whom, when and from where, if the peer did
    +- FatalError        this producer, consumer or call cannot succeed as it is
       +- SettingsError  a setting's name or value is wrong
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
from hapax.core.producer.error_kinds import TRANSIENT, ErrorKind
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


class FatalError(HapaxError):
    pass


class SettingsError(FatalError):
    pass


class NotHapaxError(FatalError):
    advice = "This call needs a Hapax cluster"


class WrongState(FatalError):
    pass


class FencedError(HapaxError):
    """`by`: the new holder; `when_ms`: milliseconds since 1970; `where`: the new holder's address. Each is None if the
    peer did not say.

    Kafka's protocol carries a message only in answers to Produce. Hapax adds one to its coordinators' answers.
    """

    advice = "Stop this instance: another one holds its transactional id or lease"

    def __init__(self, message: str, *, code: int = 0, maybe_written: bool = False) -> None:
        late = "The transaction took longer than transaction.timeout.ms: make a new producer, allow more time"
        advice = late if "timed out and was aborted" in message else None
        super().__init__(message, code=code, maybe_written=maybe_written, advice=advice)
        by, when, where = _BY.search(message), _WHEN.search(message), _WHERE.search(message)
        self.by = None if by is None else by.group(1) or by.group(2)
        self.where = None if where is None else where.group(1)
        self.when_ms: int | None = None
        if when is not None:
            written = when.group(1)
            self.when_ms = int(written) if written.isdigit() else _milliseconds(written)


# The wording of Hapax's services: "... was initialised again at 2026-01-02T03:04:05.678+00:00 by NAME from HOST:PORT",
# "lease 'x' was taken over by 'NAME' at 1767323045678 (ms since the epoch)".
_BY = re.compile(r"\bby (?!epoch\b|a client without)(?:'([^']*)'|(\S+))")
_WHEN = re.compile(r"\bat (\d{4}-\d\d-\d\dT[\d:.]+\+00:00|\d{12,})")
_WHERE = re.compile(r"\bfrom (\S+:\d+)")


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
    may have taken effect. FatalError where the server refused it."""
    if error.status in _NOT_ANSWERED:
        return connection_failed(f"{what}: {error}")
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


def from_trouble(trouble: Trouble, *, maybe_written: bool = False, transactional: bool = False) -> HapaxError:
    """The error for what stopped the producer machine or one of its batches."""
    code = int(trouble.code)
    meaning, advice = _EXPLANATIONS.get(code, _UNEXPLAINED)
    said = trouble.reason or meaning
    text = f"{name_of(code)}: {said}" if said else name_of(code)
    if trouble.kind is ErrorKind.FENCED:
        return FencedError(text, code=code, maybe_written=maybe_written)
    if trouble.kind is ErrorKind.ABORT or (transactional and trouble.kind in (ErrorKind.RETRY, ErrorKind.REFUSED)):
        return AbortableError(text, code=code, maybe_written=maybe_written)
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
}
"""Codes after which the same call may succeed. 45 is one of them: the application may send a lost batch again."""


def is_retriable(code: int) -> bool:
    return code in _RETRIABLE
