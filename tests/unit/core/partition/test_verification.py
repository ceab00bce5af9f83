"""Corners of verification; its story is tests/scenarios/partition/rule_03_verification.txt."""

from __future__ import annotations

import pytest

from hapax.core.control import Marker
from hapax.core.errors import ErrorCode
from hapax.core.partition.verification import (
    MAX_QUESTIONS,
    Answer,
    Outcome,
    ShardEpochs,
    Verification,
    refusal_for,
)
from scenarios.partition_log import data_header


def first_batch(pid: int = 7, epoch: int = 0, sequence: int = 0) -> tuple[object, str, int, str]:
    header = data_header(pid, epoch, sequence, 1, transactional=True)
    return header, "tx", 12, f"{pid}/{epoch}/{sequence}"


def nothing_decided(producer_id: int) -> int:
    return -1


def test_markers_that_keep_coming_end_in_a_refusal_not_in_a_loop() -> None:
    verification: Verification[str] = Verification(ShardEpochs(), nothing_decided)
    question = verification.park(*first_batch())  # type: ignore[arg-type]
    for _ in range(MAX_QUESTIONS - 1):
        assert question is not None
        verification.marked(Marker(7, 1, False, 0, serial=1))
        question = verification.answer(Answer(question.ticket, shard=0, shard_epoch=1)).question
    assert question is not None
    verification.marked(Marker(7, 1, False, 0, serial=1))
    outcome = verification.answer(Answer(question.ticket, shard=0, shard_epoch=1))
    assert [(write, refusal.code) for write, refusal in outcome.refused] == [
        ("7/0/0", ErrorCode.NOT_ENOUGH_REPLICAS)
    ]
    assert outcome.question is None
    assert not verification.holds(7)


def test_a_replaced_coordinator_is_not_believed_however_often_it_answers() -> None:
    epochs = ShardEpochs()
    assert epochs.admit(4, 9)
    verification: Verification[str] = Verification(epochs, nothing_decided)
    question = verification.park(*first_batch())  # type: ignore[arg-type]
    for _ in range(MAX_QUESTIONS):
        assert question is not None
        outcome = verification.answer(Answer(question.ticket, shard=4, shard_epoch=8))
        assert not outcome.verified
        question = outcome.question
    assert outcome.refused[0][1].code == ErrorCode.NOT_ENOUGH_REPLICAS


def test_an_answer_raises_what_the_broker_has_seen() -> None:
    epochs = ShardEpochs()
    verification: Verification[str] = Verification(epochs, nothing_decided)
    question = verification.park(*first_batch())  # type: ignore[arg-type]
    assert question is not None
    verification.answer(Answer(question.ticket, shard=4, shard_epoch=8))
    assert epochs.highest(4) == 8
    assert not epochs.admit(4, 7)


def test_an_answer_counts_once() -> None:
    verification: Verification[str] = Verification(ShardEpochs(), nothing_decided)
    question = verification.park(*first_batch())  # type: ignore[arg-type]
    assert question is not None
    assert verification.answer(Answer(question.ticket, shard_epoch=0, shard=0)).verified == ["7/0/0"]
    verification.park(*first_batch(sequence=1))  # type: ignore[arg-type]
    assert verification.answer(Answer(question.ticket, shard_epoch=0, shard=0)) == Outcome()
    assert verification.holds(7)


def test_what_is_parked_is_handed_back_when_the_leadership_goes() -> None:
    verification: Verification[str] = Verification(ShardEpochs(), nothing_decided)
    question = verification.park(*first_batch())  # type: ignore[arg-type]
    verification.park(*first_batch(sequence=1))  # type: ignore[arg-type]
    verification.park(*first_batch(pid=8))  # type: ignore[arg-type]
    assert verification.abandon() == ["7/0/0", "7/0/1", "8/0/0"]
    assert question is not None
    assert verification.answer(Answer(question.ticket, shard=0, shard_epoch=0)) == Outcome()


@pytest.mark.parametrize(
    ("error", "version", "code"),
    [
        (ErrorCode.TRANSACTION_ABORTABLE, 10, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.TRANSACTION_ABORTABLE, 11, ErrorCode.TRANSACTION_ABORTABLE),
        (ErrorCode.INVALID_TXN_STATE, 12, ErrorCode.TRANSACTION_ABORTABLE),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, 12, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.REQUEST_TIMED_OUT, 3, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.CONCURRENT_TRANSACTIONS, 11, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.CONCURRENT_TRANSACTIONS, 12, ErrorCode.CONCURRENT_TRANSACTIONS),
        (ErrorCode.PRODUCER_FENCED, 12, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, 12, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
    ],
)
def test_each_client_is_told_what_it_understands(error: ErrorCode, version: int, code: ErrorCode) -> None:
    assert refusal_for(error, "", version).code == code
