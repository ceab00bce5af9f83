"""What a client does with each refusal: the tables that the producer machine decides by.

A refusal of a Produce has two sides. *What now*: resend, give the batch up, give the transaction up, give the
producer up. *Is it in the log?* A refusal may be sent after the append (a time-out waiting for replicas, a leader
that stepped down meanwhile), so a batch counts as possibly written unless its code stands in `NOT_WRITTEN`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final

from hapax.core.errors import ErrorCode


class ErrorKind(Enum):
    RETRY = auto()
    """Send the same again, after a pause; the batch keeps its sequence."""
    DUPLICATE = auto()
    """It is in the log already: success."""
    GAP = auto()
    """The leader misses a batch before this one."""
    REFUSED = auto()
    """This batch (or call) will never be taken; the producer may go on."""
    ABORT = auto()
    """The transaction cannot commit any more; abort it and begin a new one."""
    FENCED = auto()
    """Another instance has taken over the producer's identity."""
    FATAL = auto()
    """This producer cannot go on."""


TRANSIENT: Final[dict[int, ErrorKind]] = {
    code: ErrorKind.RETRY
    for code in (
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    )
}

"""Codes that pass by themselves, whatever was asked."""

LOGIN_REFUSALS: Final = (
    ErrorCode.SASL_AUTHENTICATION_FAILED, ErrorCode.UNSUPPORTED_SASL_MECHANISM, ErrorCode.ILLEGAL_SASL_STATE)
"""The server does not let the client in, so that the request does not leave."""

PRODUCE: Final[Mapping[int, ErrorKind]] = TRANSIENT | {
    ErrorCode.DUPLICATE_SEQUENCE_NUMBER: ErrorKind.DUPLICATE,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: ErrorKind.GAP,
    ErrorCode.UNKNOWN_PRODUCER_ID: ErrorKind.GAP,
    # 47 tells a transactional producer only that its epoch is old: the coordinator decides, when the transaction
    # is aborted, whether somebody else holds the id (KIP-588).
    ErrorCode.INVALID_PRODUCER_EPOCH: ErrorKind.ABORT,
    ErrorCode.INVALID_TXN_STATE: ErrorKind.ABORT,
    ErrorCode.TRANSACTION_ABORTABLE: ErrorKind.ABORT,
    ErrorCode.PRODUCER_FENCED: ErrorKind.FENCED,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING: ErrorKind.FATAL,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: ErrorKind.FATAL,
    **dict.fromkeys(LOGIN_REFUSALS, ErrorKind.FATAL),
}
"""Answers to a batch. A code that is not here refuses the batch and nothing more."""

COORDINATOR: Final[Mapping[int, ErrorKind]] = TRANSIENT | {
    ErrorCode.TRANSACTION_ABORTABLE: ErrorKind.ABORT,
    ErrorCode.OPERATION_NOT_ATTEMPTED: ErrorKind.ABORT,
    # As in Kafka's clients: another topic or group may be allowed, so the producer lives.
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: ErrorKind.ABORT,
    ErrorCode.GROUP_AUTHORIZATION_FAILED: ErrorKind.ABORT,
    ErrorCode.INVALID_TOPIC_EXCEPTION: ErrorKind.ABORT,
    ErrorCode.ILLEGAL_GENERATION: ErrorKind.ABORT,
    ErrorCode.UNKNOWN_MEMBER_ID: ErrorKind.ABORT,
    ErrorCode.FENCED_INSTANCE_ID: ErrorKind.ABORT,
    ErrorCode.STALE_MEMBER_EPOCH: ErrorKind.ABORT,
    ErrorCode.OFFSET_METADATA_TOO_LARGE: ErrorKind.ABORT,
    ErrorCode.INVALID_COMMIT_OFFSET_SIZE: ErrorKind.ABORT,
    ErrorCode.INVALID_GROUP_ID: ErrorKind.ABORT,
    ErrorCode.PRODUCER_FENCED: ErrorKind.FENCED,
    ErrorCode.INVALID_PRODUCER_EPOCH: ErrorKind.FENCED,
}
"""Answers of the transaction and group coordinators inside a transaction. A code that is not here is fatal."""

NOT_WRITTEN: Final = frozenset(
    {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.INVALID_REQUIRED_ACKS,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.INVALID_TIMESTAMP,
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
        ErrorCode.INVALID_RECORD,
        ErrorCode.OPERATION_NOT_ATTEMPTED,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.TRANSACTION_ABORTABLE,
        *LOGIN_REFUSALS,
    }
)
"""Refusals of a Produce that come before anything is appended: this attempt is not in the log."""


def produce_error_kind(code: int) -> ErrorKind:
    return PRODUCE.get(code, ErrorKind.RETRY if code == ErrorCode.UNKNOWN_SERVER_ERROR else ErrorKind.REFUSED)


def coordinator_error_kind(code: int) -> ErrorKind:
    return COORDINATOR.get(code, ErrorKind.FATAL)
