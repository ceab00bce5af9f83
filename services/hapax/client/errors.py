"""The client's errors: a small tree, and each error says what to do.

    HapaxError
    +- RetriableError    nothing is decided against you: the same call may succeed later
    +- AbortableError    the open transaction cannot commit: abort it, then begin again
    +- FencedError       another instance has your identity: stop; who, when and from where are told where known
    +- FatalError        this producer, consumer or call cannot succeed as it is
       +- SettingsError  a setting's name or value is wrong
       +- NotHapaxError  the call needs a Hapax cluster and the peer is another
       +- WrongState     the call does not fit what was called before

`code` is Kafka's error code (0 where the client itself found the fault). `maybe_written` on a delivery's error: the
records may be in the log all the same.
"""

from __future__ import annotations

import re
from datetime import datetime

from hapax.core.errors import ErrorCode
from hapax.core.producer.error_kinds import TRANSIENT, ErrorKind
from hapax.core.producer.states import Trouble


class HapaxError(Exception):
    """The root. `advice` is one sentence on what to do."""

    advice = ""

    def __init__(self, message: str, *, code: int = 0, advice: str | None = None, maybe_written: bool = False) -> None:
        self.code = code
        self.maybe_written = maybe_written
        if advice is not None:
            self.advice = advice
        super().__init__(f"{message}. {self.advice}" if self.advice else message)


class RetriableError(HapaxError):
    advice = "Try the same call again"


class AbortableError(HapaxError):
    advice = "Abort the transaction and begin a new one"


class FatalError(HapaxError):
    advice = ""


class SettingsError(FatalError):
    advice = ""


class NotHapaxError(FatalError):
    advice = "Connect to a Hapax cluster, or do without this call"


class WrongState(FatalError):
    advice = ""


class FencedError(HapaxError):
    """`by`: the holder that took over, `when_ms`: wall clock, `where`: its address; None where the peer did not say.

    Kafka's protocol carries a message only in the answer to a Produce; Hapax adds one to its coordinator's answers.
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


# As Hapax's services word it: "... was initialised anew at 2026-01-02T03:04:05.678+00:00 by NAME from HOST:PORT",
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


def from_code(code: int, what: str, reason: str | None = None) -> HapaxError:
    """The error for an answer outside transactions (reading, administration)."""
    text = f"{what}: {name_of(code)}" + (f": {reason}" if reason else "")
    if code in _RETRIABLE:
        return RetriableError(text, code=code)
    if code in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH):
        return FencedError(text, code=code)
    return FatalError(text, code=code)


def from_trouble(trouble: Trouble, *, maybe_written: bool = False, transactional: bool = False) -> HapaxError:
    """The error for what the producer machine says went wrong."""
    code = int(trouble.code)
    text = f"{name_of(code)}: {trouble.reason}" if trouble.reason else name_of(code)
    if trouble.kind is ErrorKind.FENCED:
        return FencedError(text, code=code, maybe_written=maybe_written)
    if trouble.kind is ErrorKind.ABORT or (transactional and trouble.kind in (ErrorKind.RETRY, ErrorKind.REFUSED)):
        return AbortableError(text, code=code, maybe_written=maybe_written)
    if trouble.kind is ErrorKind.RETRY or code in _RETRIABLE:
        advice = "It may or may not have been written: ask for the producer's progress before sending it again"
        return RetriableError(text, code=code, maybe_written=maybe_written, advice=advice if maybe_written else None)
    return FatalError(text, code=code, maybe_written=maybe_written)


_RETRIABLE = frozenset(TRANSIENT) | {
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.REBALANCE_IN_PROGRESS,
}
"""Codes after which the same call may succeed. 45 among them: a lost batch may be sent anew by the application."""


def is_retriable(code: int) -> bool:
    return code in _RETRIABLE
