"""States of a transaction, the events that move it, and the one table of what each event does in each state.

Everything else in this package follows from four rules:

1. **Decided once.** PREPARE_COMMIT and PREPARE_ABORT are decisions. A coordinator that finds one in its log finishes
   it. Nothing turns one into the other. A transaction without partitions to mark skips PREPARE: its one COMPLETE record
   is decision and completion together.
2. **The epoch names the transaction.** Under transactions version 2 (KIP-890) every decision raises the producer's
   epoch. A late request carries the epoch of an earlier transaction, so it can only be answered and never decides
   anything. Clients of version 1 keep their epoch, so the connection takes its place (`connection_fencing`).
3. **One record at a time.** While a record of an id is being persisted, the id is *pending* and other calls are held.
4. **Fencing is a decision too.** When another caller or the clock ends an open transaction (initialisation, time-out, a
   newer commit token), it is aborted under a raised epoch. The id is in PREPARE_EPOCH_FENCE while that abort is being
   persisted.

Source: Kafka's transaction coordinator and KIP-98, KIP-360, KIP-890. `COMMIT_AGAIN` and `ABORT_AGAIN` are KIP-890's
retry of a decision under the epoch before it.
"""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import Final

from hapax.core.errors import ErrorCode


class State(IntEnum):
    """The status byte of the transaction log, with Kafka's values. A prepared transaction of two-phase commit (KIP-939)
    is ONGOING: only its producer knows that it is prepared."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def kafka_name(self) -> str:
        """As DescribeTransactions and ListTransactions spell it, e.g. `PrepareCommit`."""
        return "".join(word.capitalize() for word in self.name.split("_"))


class Event(Enum):
    """What can happen to a transactional id, after the caller's identity was checked."""

    INITIALIZE = "InitProducerId, or a newer commit token"
    KEEP = "InitProducerId that keeps an open transaction (KIP-939)"
    ADD = "partitions or offsets are registered"
    VERIFY = "a broker asks whether partitions are registered"
    COMMIT_V1 = "EndTxn(commit), transactions version 1"
    ABORT_V1 = "EndTxn(abort), transactions version 1"
    COMMIT_V2 = "EndTxn(commit) under the current epoch, transactions version 2"
    ABORT_V2 = "EndTxn(abort) under the current epoch, transactions version 2"
    COMMIT_AGAIN = "EndTxn(commit) under the epoch before the last decision"
    ABORT_AGAIN = "EndTxn(abort) under the epoch before the last decision"
    TIME_OUT = "the transaction's time limit passed"
    MARKED = "every marker is stored"
    EXPIRE = "the id was not used for its expiry time"


class Step(Enum):
    """What the table answers where no state is entered and no error fits."""

    HOLD = "wait for the markers of the last transaction"
    ANSWER = "write nothing and answer from the state"
    IGNORE = "do nothing: the event came too late or too early"


Outcome = State | Step | ErrorCode

_EMPTY, _OPEN, _DEAD, _FENCE = State.EMPTY, State.ONGOING, State.DEAD, State.PREPARE_EPOCH_FENCE
_P_COMMIT, _P_ABORT, _COMMIT, _ABORT = (
    State.PREPARE_COMMIT, State.PREPARE_ABORT, State.COMPLETE_COMMIT, State.COMPLETE_ABORT,
)  # fmt: skip
_HOLD, _ANSWER, _IGNORE = Step.HOLD, Step.ANSWER, Step.IGNORE
_INVALID, _FENCED = ErrorCode.INVALID_TXN_STATE, ErrorCode.PRODUCER_FENCED

_COLUMNS: Final = (_EMPTY, _OPEN, _P_COMMIT, _P_ABORT, _COMMIT, _ABORT)
_ROWS: Final[dict[Event, tuple[Outcome, ...]]] = {
    #                    EMPTY     ONGOING    PREPARE_COMMIT  PREPARE_ABORT  COMPLETE_COMMIT  COMPLETE_ABORT
    Event.INITIALIZE:   (_EMPTY,   _FENCE,    _HOLD,          _HOLD,         _EMPTY,          _EMPTY),
    Event.KEEP:         (_EMPTY,   _OPEN,     _HOLD,          _HOLD,         _EMPTY,          _EMPTY),
    Event.ADD:          (_OPEN,    _OPEN,     _HOLD,          _HOLD,         _OPEN,           _OPEN),
    Event.VERIFY:       (_ANSWER,  _ANSWER,   _HOLD,          _HOLD,         _ANSWER,         _ANSWER),
    Event.COMMIT_V1:    (_INVALID, _P_COMMIT, _HOLD,          _INVALID,      _ANSWER,         _INVALID),
    Event.ABORT_V1:     (_INVALID, _P_ABORT,  _INVALID,       _HOLD,         _INVALID,        _ANSWER),
    Event.COMMIT_V2:    (_INVALID, _P_COMMIT, _HOLD,          _HOLD,         _INVALID,        _INVALID),
    Event.ABORT_V2:     (_ABORT,   _P_ABORT,  _HOLD,          _HOLD,         _ABORT,          _ABORT),
    Event.COMMIT_AGAIN: (_FENCED,  _FENCED,   _HOLD,          _INVALID,      _ANSWER,         _INVALID),
    Event.ABORT_AGAIN:  (_FENCED,  _FENCED,   _INVALID,       _HOLD,         _INVALID,        _ANSWER),
    Event.TIME_OUT:     (_IGNORE,  _FENCE,    _IGNORE,        _IGNORE,       _IGNORE,         _IGNORE),
    Event.MARKED:       (_IGNORE,  _IGNORE,   _COMMIT,        _ABORT,        _IGNORE,         _IGNORE),
    Event.EXPIRE:       (_DEAD,    _IGNORE,   _IGNORE,        _IGNORE,       _DEAD,           _DEAD),
}  # fmt: skip

TABLE: Final[dict[tuple[State, Event], Outcome]] = {
    (state, event): outcomes[column]
    for event, outcomes in _ROWS.items()
    for column, state in enumerate(_COLUMNS)
}
"""PREPARE_EPOCH_FENCE and DEAD have no column: an id in one of them is pending, so its calls are held before they reach
this table."""

LEGAL_RECORDS: Final[dict[State | None, frozenset[State]]] = {
    None: frozenset({_EMPTY, _OPEN, _COMMIT}),
    _EMPTY: frozenset({_EMPTY, _OPEN, _COMMIT, _ABORT}),
    _OPEN: frozenset({_OPEN, _P_COMMIT, _P_ABORT, _COMMIT, _ABORT}),
    _P_COMMIT: frozenset({_COMMIT}),
    _P_ABORT: frozenset({_ABORT}),
    _COMMIT: frozenset({_EMPTY, _OPEN, _COMMIT, _ABORT}),
    _ABORT: frozenset({_EMPTY, _OPEN, _COMMIT, _ABORT}),
}
"""Which record may follow which while a shard serves (a compacted log has gaps). Another sequence is a bug in this
program."""


class IllegalTransition(Exception):
    """A record that the table does not allow was about to be applied. It is a bug in this program, never an error of a
    client."""
