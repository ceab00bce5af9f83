"""The client producer's states, the one table of its transitions, and the effects it asks its owner for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from hapax.core.errors import ErrorCode
from hapax.core.producer.error_kinds import ErrorKind
from hapax.core.producer.partition_queue import Batch, Identity
from hapax.core.types import Offset, TimestampMs, TopicPartition


class State(Enum):
    UNINITIALIZED = auto()
    INITIALIZING = auto()
    READY = auto()
    IN_TRANSACTION = auto()
    PREPARED_TRANSACTION = auto()
    COMMITTING_TRANSACTION = auto()
    ABORTING_TRANSACTION = auto()
    ABORTABLE_ERROR = auto()
    FATAL_ERROR = auto()


class Event(Enum):
    INITIALIZE = auto()
    INITIALIZED = auto()
    TAKE_UP = auto()
    KEPT = auto()
    BEGIN = auto()
    PREPARE = auto()
    COMMIT = auto()
    ABORT = auto()
    ENDED = auto()
    FAIL_TRANSACTION = auto()
    FAIL = auto()


S, E = State, Event
TRANSITIONS: Final[Mapping[tuple[State, Event], State]] = {
    (S.UNINITIALIZED, E.INITIALIZE): S.INITIALIZING,
    (S.UNINITIALIZED, E.TAKE_UP): S.READY,                  # the identity was given with a place in a transaction
    (S.INITIALIZING, E.INITIALIZED): S.READY,
    (S.INITIALIZING, E.KEPT): S.PREPARED_TRANSACTION,       # two-phase commit: a former instance's transaction is open
    (S.READY, E.INITIALIZE): S.INITIALIZING,                # idempotent: epochs used up; a new producer id
    (S.READY, E.BEGIN): S.IN_TRANSACTION,
    (S.IN_TRANSACTION, E.PREPARE): S.PREPARED_TRANSACTION,
    (S.PREPARED_TRANSACTION, E.COMMIT): S.COMMITTING_TRANSACTION,
    (S.PREPARED_TRANSACTION, E.ABORT): S.ABORTING_TRANSACTION,
    (S.IN_TRANSACTION, E.COMMIT): S.COMMITTING_TRANSACTION,
    (S.IN_TRANSACTION, E.ABORT): S.ABORTING_TRANSACTION,
    (S.IN_TRANSACTION, E.FAIL_TRANSACTION): S.ABORTABLE_ERROR,
    (S.COMMITTING_TRANSACTION, E.ENDED): S.READY,
    (S.COMMITTING_TRANSACTION, E.FAIL_TRANSACTION): S.ABORTABLE_ERROR,
    (S.ABORTABLE_ERROR, E.FAIL_TRANSACTION): S.ABORTABLE_ERROR,
    (S.ABORTABLE_ERROR, E.ABORT): S.ABORTING_TRANSACTION,
    (S.ABORTING_TRANSACTION, E.FAIL_TRANSACTION): S.ABORTING_TRANSACTION,
    (S.ABORTING_TRANSACTION, E.ENDED): S.READY,
    (S.ABORTING_TRANSACTION, E.INITIALIZE): S.INITIALIZING,  # version 1, unresolved sequences: raise the epoch
} | {(state, E.FAIL): S.FATAL_ERROR for state in State}
"""Every transition there is; another one is an IllegalTransition."""

WORDS: Final[Mapping[Event, str]] = {
    E.INITIALIZE: "initialize",
    E.INITIALIZED: "finish the initialisation",
    E.TAKE_UP: "take up an identity",
    E.KEPT: "keep a transaction",
    E.BEGIN: "begin a transaction",
    E.PREPARE: "prepare the transaction",
    E.COMMIT: "commit",
    E.ABORT: "abort",
    E.ENDED: "end the transaction",
    E.FAIL_TRANSACTION: "fail the transaction",
    E.FAIL: "fail",
}


class IllegalTransition(Exception):
    """The caller asked for what the producer's state does not allow. Nothing has changed."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why something failed. `code` is Kafka's; REQUEST_TIMED_OUT, NETWORK_EXCEPTION are this side's reasons too."""

    kind: ErrorKind
    code: ErrorCode | int
    reason: str

    def word(self) -> str:
        name = self.code.name if isinstance(self.code, ErrorCode) else f"error {self.code}"
        return f"{name}: {self.reason}" if self.reason else name


# --- effects: what the owner does next -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SendBatch:
    """Send `batch` under its identity and sequence, then answer with `delivered`, `refused`, `lost` or `unsent`."""

    batch: Batch


@dataclass(frozen=True, slots=True)
class Delivered:
    """`offset` of the first record; NO_OFFSET where the leader no longer knows it (a late duplicate) or acks=0."""

    batch: Batch
    offset: Offset
    timestamp: TimestampMs


@dataclass(frozen=True, slots=True)
class Failed:
    """`maybe_written`: the batch may be in the log, or may yet arrive there."""

    batch: Batch
    trouble: Trouble
    maybe_written: bool


@dataclass(frozen=True, slots=True)
class RequestProducerId:
    """InitProducerId. `current` is the identity whose epoch is to be raised, NO_IDENTITY for a new one."""

    current: Identity


@dataclass(frozen=True, slots=True)
class RequestAddPartitions:
    """AddPartitionsToTxn (transactions version 1), answered with `partitions_added` or `coordinator_refused`."""

    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class RequestEndTransaction:
    commit: bool


@dataclass(frozen=True, slots=True)
class Ended:
    """The transaction is decided (or there was nothing to decide)."""

    committed: bool


Effect = SendBatch | Delivered | Failed | RequestProducerId | RequestAddPartitions | RequestEndTransaction | Ended
