"""The tree of errors: which refusal becomes which, and what a fenced client is told."""

from __future__ import annotations

import pytest

from hapax.client.errors import (
    AbortableError,
    FatalError,
    FencedError,
    HapaxError,
    RetriableError,
    from_code,
    from_trouble,
)
from hapax.core.errors import ErrorCode
from hapax.core.producer.error_kinds import ErrorKind
from hapax.core.producer.states import Trouble


@pytest.mark.parametrize(
    ("kind", "error_type"),
    [
        (ErrorKind.RETRY, RetriableError),
        (ErrorKind.ABORT, AbortableError),
        (ErrorKind.FENCED, FencedError),
        (ErrorKind.FATAL, FatalError),
        (ErrorKind.REFUSED, FatalError),
    ],
)
def test_each_kind_has_its_error_type(kind: ErrorKind, error_type: type[HapaxError]) -> None:
    error = from_trouble(Trouble(kind, ErrorCode.MESSAGE_TOO_LARGE, "why"))
    assert type(error) is error_type
    assert error.code == 10 and "MESSAGE_TOO_LARGE: why" in str(error)


def test_a_fenced_producer_is_not_simply_told_to_begin_anew() -> None:
    """The broker that refuses its records does not know of its successor; the coordinator does (KIP-588)."""
    error = from_trouble(Trouble(ErrorKind.ABORT, ErrorCode.INVALID_PRODUCER_EPOCH, "epoch 0 was fenced"))
    assert isinstance(error, AbortableError) and "abort() raises FencedError" in str(error)


def test_a_lost_record_is_retriable_outside_a_transaction_and_abortable_inside() -> None:
    trouble = Trouble(ErrorKind.REFUSED, ErrorCode.REQUEST_TIMED_OUT, "")
    outside = from_trouble(trouble, maybe_written=True)
    assert isinstance(outside, RetriableError) and outside.maybe_written and "progress" in str(outside)
    assert isinstance(from_trouble(trouble, transactional=True), AbortableError)


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER])
def test_a_producer_that_has_ended_does_not_ask_to_be_called_again(code: ErrorCode) -> None:
    error = from_trouble(Trouble(ErrorKind.FATAL, code, "why"), maybe_written=True)
    assert isinstance(error, FatalError) and error.maybe_written and "new producer" in str(error)


def test_codes_of_other_calls() -> None:
    assert isinstance(from_code(ErrorCode.NOT_COORDINATOR, "x"), RetriableError)
    assert isinstance(from_code(ErrorCode.INVALID_PRODUCER_EPOCH, "x"), FencedError)
    assert isinstance(from_code(ErrorCode.INVALID_TOPIC_EXCEPTION, "x", "no"), FatalError)
    assert "error 999" in str(from_code(999, "x"))


@pytest.mark.parametrize(
    ("message", "by", "when", "where"),
    [
        (
            "epoch 3 of producer 7 is not current: x was initialised again at 2026-01-02T03:04:05.678+00:00"
            " by app-2 from 10.0.0.7:50412",
            "app-2",
            1767323045678,
            "10.0.0.7:50412",
        ),
        ("lease 'x' was taken over by 'host 1' at 1767323045678 (ms since the epoch)", "host 1", 1767323045678, None),
        ("producer 7: epoch 0 was fenced by epoch 1 at offset 6", None, None, None),
        ("x timed out and was aborted at 2026-01-02T03:04:05.678+00:00", None, 1767323045678, None),
        ("", None, None, None),
    ],
)
def test_a_fenced_client_is_told_by_whom(message: str, by: str | None, when: int | None, where: str | None) -> None:
    error = FencedError(message)
    assert (error.by, error.when_ms, error.where) == (by, when, where)
    assert ("make a new producer" if "timed out" in message else "Stop this instance") in str(error)
