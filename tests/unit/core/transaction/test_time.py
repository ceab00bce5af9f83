"""Time-outs, expiry, markers and their answers, self-healing, take-over (rules 2, 7, 9, 10 and 14)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hapax.core.errors import ErrorCode, Refusal
from hapax.core.transaction.fencing import Fenced
from hapax.core.transaction.record import FencingCause
from hapax.core.transaction.requests import (
    Decision,
    Held,
    Marker,
    MarkerResult,
    MarkersProgress,
    PartitionResults,
    ReportFencing,
    SendMarkers,
    StartTimer,
    StopTimer,
)
from hapax.core.transaction.states import State
from unit.core.transaction.driver import ID, Driver, partition

HOUR = 3_600_000
DAY = 24 * HOUR


def refused(call, *arguments, **more) -> Refusal:
    with pytest.raises(Refusal) as caught:
        call(*arguments, **more)
    return caught.value


def open_transaction(timeout_ms: int = 60_000) -> Driver:
    driver = Driver()
    driver.run_verify(driver.run_init(timeout_ms=timeout_ms))
    return driver


def result(each: Marker, index: int = 0, error: ErrorCode = ErrorCode.NONE) -> MarkerResult:
    return MarkerResult(each.producer_id, each.partitions[index].by_id, error)


def set_again(at: int) -> Decision:
    return Decision(None, reply=None, effects=(StartTimer(ID, at),))  # type: ignore[arg-type]


# --- time-outs ----------------------------------------------------------------------------------------------------


def test_a_transaction_is_aborted_at_its_limit_under_a_raised_epoch() -> None:
    driver = open_transaction(timeout_ms=5000)
    assert driver.effects == [StartTimer(ID, 5000)]  # type: ignore[arg-type]
    me = driver.txn().identity
    driver.monotonic = 5000
    decision = driver.shard.time_out(ID, driver.now)
    assert decision is not None
    effects = driver.persist(decision)
    sent = SendMarkers(ID, 1, 2, (Marker(1000, 1, False, (partition(),)),))  # type: ignore[arg-type]
    assert effects == [ReportFencing(ID), StopTimer(ID), sent]
    assert driver.txn().elapsed_ms == 5000, "for whoever asks how long it was open"
    driver.mark()
    refusal = refused(driver.run_end, me)
    assert isinstance(refusal, Fenced) and refusal.fencing is not None
    assert refusal.fencing.cause is FencingCause.TIMED_OUT
    assert refusal.reason.endswith("app timed out and was aborted at 2023-11-14T22:13:25.000+00:00")
    assert driver.run_init() == (1000, 2)


def test_more_partitions_do_not_move_the_deadline_but_a_renewal_does() -> None:
    driver = open_transaction()
    driver.monotonic = 100
    driver.run_verify(driver.txn().identity, partition(1))
    assert driver.effects == [StartTimer(ID, 60_000)]  # type: ignore[arg-type]
    driver.run("renew_transaction", driver.renew(1, 60_000))
    assert driver.effects[-1] == StartTimer(ID, 60_100)  # type: ignore[arg-type]
    driver.monotonic = 60_000
    assert driver.shard.time_out(ID, driver.now) == set_again(60_100)


@pytest.mark.parametrize("pending", [False, True])
def test_a_timer_that_fires_early_is_set_again(pending: bool) -> None:
    """Loops round their timers, and their clock is another one than the machine's."""
    driver = open_transaction(timeout_ms=5000)
    driver.monotonic = 4999
    if pending:
        driver.shard.verify_partitions(driver.verify(driver.txn().identity, partition(1)), driver.now)
    assert driver.shard.time_out(ID, driver.now) == set_again(5000)
    assert driver.shard.time_out(ID, driver.now) == set_again(5000), "as often as it is early"


def test_a_take_over_goes_on_from_the_elapsed_time_that_was_persisted() -> None:
    driver = open_transaction()
    driver.monotonic = 20_000
    driver.run_verify(driver.txn().identity, partition(1))
    driver.monotonic = 1_000_000_000
    assert driver.take_over() == [StartTimer(ID, 1_000_040_000)]  # type: ignore[arg-type]
    driver.monotonic += 40_000
    assert driver.shard.time_out(ID, driver.now) is not None


def test_a_time_out_that_meets_a_pending_record_goes_first_afterwards() -> None:
    driver = open_transaction()
    me = driver.txn().identity
    pending = driver.shard.verify_partitions(driver.verify(me, partition(1)), driver.now)
    assert isinstance(pending, Decision) and pending.record is not None
    driver.monotonic = 60_000
    assert driver.shard.time_out(ID, driver.now) is None
    effects = driver.persist(pending)
    assert effects == [StartTimer(ID, 60_000)], "at once"  # type: ignore[comparison-overlap,arg-type]
    commit = driver.end(me)
    assert isinstance(driver.shard.end_txn(commit, driver.now), Held)
    decision = driver.shard.time_out(ID, driver.now)
    assert decision is not None
    driver.persist(decision)
    assert refused(driver.run, "end_txn", commit).code == 90


def test_a_time_out_whose_record_is_withdrawn_is_started_again() -> None:
    driver = open_transaction()
    driver.monotonic = 60_000
    decision = driver.shard.time_out(ID, driver.now)
    assert decision is not None and decision.record is not None
    assert driver.shard.withdraw(decision.record, driver.now) == [StartTimer(ID, 60_000)]  # type: ignore[arg-type]
    assert driver.shard.time_out(ID, driver.now) is not None


def test_an_ended_transaction_stops_its_timer_and_the_next_starts_its_own() -> None:
    driver = open_transaction()
    driver.monotonic = 10
    me = driver.run_end(driver.txn().identity)
    assert StopTimer(ID) in driver.effects
    driver.mark()
    driver.run_verify(me)
    assert driver.effects[-1] == StartTimer(ID, 60_010)  # type: ignore[arg-type]
    assert driver.shard.time_out("nobody", driver.now) is None


# --- expiry -------------------------------------------------------------------------------------------------------


def test_an_unused_id_is_removed_after_its_time() -> None:
    driver = open_transaction()
    driver.monotonic = 100 * DAY
    assert driver.shard.expired(driver.now) == [], "not while a transaction is open"
    driver.run_end(driver.txn().identity)
    driver.monotonic += 100 * DAY
    assert driver.shard.expired(driver.now) == [], "nor while its markers are on their way"
    driver.mark()
    driver.monotonic += 7 * DAY - 1
    assert driver.shard.expired(driver.now) == [] and driver.shard.expire(ID, driver.now) is None
    driver.monotonic += 1
    assert driver.shard.expired(driver.now) == [ID]
    decision = driver.shard.expire(ID, driver.now)
    assert decision is not None and driver.shard.expired(driver.now) == []
    with pytest.raises(Refusal, match="no transactional id"):
        driver.shard.describe(ID)
    assert driver.persist(decision) == []
    driver.take_over()
    assert driver.shard.transactions == {}
    assert driver.run_init() == (1001, 0)


def test_an_id_with_a_token_lives_by_its_own_setting() -> None:
    driver = Driver()
    driver.run_end_token(0)
    driver.monotonic = 300 * DAY
    assert driver.shard.expired(driver.now) == []
    driver.monotonic = 365 * DAY
    assert driver.shard.expired(driver.now) == [ID]


def test_an_id_that_only_single_use_scopes_used_goes_when_none_of_them_can_be_asked_for_again() -> None:
    driver = Driver()
    driver.run_end_token(0, scope="write-1", single_use=True)
    driver.monotonic = HOUR // 4 - 1
    assert driver.shard.expired(driver.now) == []
    driver.take_over()
    driver.monotonic += 1
    assert driver.shard.expired(driver.now) == [ID]


def test_an_id_with_another_use_outlives_its_single_use_scopes() -> None:
    driver = Driver()
    driver.run_init()
    driver.run_end_token(0, scope="write-1", single_use=True)
    driver.monotonic = HOUR
    assert driver.shard.expired(driver.now) == [], "a single writer has it"
    driver.run_end_token(0)
    driver.run_end_token(0, scope="write-2", single_use=True)
    driver.monotonic = 300 * DAY
    assert driver.shard.expired(driver.now) == [], "a scope that lasts has it"


# --- markers ------------------------------------------------------------------------------------------------------


def test_completion_waits_for_every_partition_and_asks_again_without_end() -> None:
    driver = Driver()
    me = driver.run_init()
    driver.run_verify(me, *(partition(index) for index in range(3)))
    driver.run_end(me)
    (marker,) = driver.markers[ID].markers

    def answered(*results: MarkerResult) -> MarkersProgress:
        return driver.shard.markers_answered(ID, 1, results, driver.now)  # type: ignore[arg-type]

    trouble = ErrorCode.NOT_LEADER_OR_FOLLOWER
    progress = answered(result(marker, 0), result(marker, 1, trouble), result(marker, 2, trouble))
    assert progress.decision is None and progress.retry is not None
    assert progress.retry.markers[0].partitions == (partition(1), partition(2))
    progress = answered(result(marker, 1, ErrorCode.UNKNOWN_TOPIC_ID))
    assert progress == MarkersProgress(None, None), "a topic that is gone is done (rule 10); the other is under way"
    assert answered(result(marker, 0, trouble)).retry is None, "what is stored stays stored"
    progress = answered(result(marker, 2), result(marker, 2))
    assert progress.decision is not None
    assert answered(result(marker, 2)) == MarkersProgress(None, None), "late, while the completion is pending"
    driver.persist(progress.decision)
    assert driver.txn().state is State.COMPLETE_COMMIT
    assert answered(result(marker, 2)) == MarkersProgress(None, None), "late, after it"


def test_a_late_answer_of_the_last_transaction_does_not_complete_the_next() -> None:
    driver = open_transaction()
    following = driver.run_end(driver.txn().identity)
    late = [result(driver.markers[ID].markers[0])]
    driver.mark()
    driver.run_verify(following)
    driver.run_end(following)
    progress = driver.shard.markers_answered(ID, 1, late, driver.now)  # type: ignore[arg-type]
    assert progress == MarkersProgress(None, None)
    assert driver.txn().state is State.PREPARE_COMMIT


def test_a_take_over_sends_every_marker_again_and_completes() -> None:
    driver = Driver()
    me = driver.run_init()
    driver.run_verify(me, partition(0), partition(1))
    driver.run_end(me, commit=False)
    sent = driver.markers[ID]
    driver.shard.markers_answered(ID, sent.serial, [result(sent.markers[0])], driver.now)
    assert driver.take_over() == [sent], "what one coordinator knew of answers, the next does not"
    driver.mark()
    assert driver.txn().state is State.COMPLETE_ABORT
    assert driver.take_over() == []


# --- self-healing -------------------------------------------------------------------------------------------------


def test_a_hanging_transaction_is_aborted_by_a_conditional_marker() -> None:
    driver = open_transaction()
    me = driver.txn().identity
    driver.run_end(me)
    driver.mark()
    decision = driver.shard.abort_hanging(driver.hanging(me, partition(5)), driver.now)
    assert isinstance(decision, Decision) and decision.record is None and decision.confirm
    (sent,) = decision.effects
    assert isinstance(sent, SendMarkers)
    assert (sent.first_offset, sent.serial, sent.markers) == (17, -1, (Marker(1000, 1, False, (partition(5),)),))  # type: ignore[arg-type]
    by_pid = driver.shard.abort_hanging(driver.hanging(me, partition(5), ""), driver.now)
    assert isinstance(by_pid, Decision)
    assert refused(driver.shard.abort_hanging, driver.hanging((7, 0), partition(5), ""), driver.now).code == 105


def test_a_living_transaction_is_left_alone() -> None:
    driver = open_transaction()
    me = driver.txn().identity
    alive = driver.hanging(me, partition(0))
    elsewhere = driver.hanging(me, partition(1))
    for _ in range(2):
        assert refused(driver.shard.abort_hanging, alive, driver.now).code is ErrorCode.CONCURRENT_TRANSACTIONS
        assert isinstance(driver.shard.abort_hanging(elsewhere, driver.now), Decision)
        if driver.txn().state is State.ONGOING:
            driver.run_end(me)
    driver.mark()
    assert isinstance(driver.shard.abort_hanging(alive, driver.now), Decision)


def test_self_healing_goes_by_the_transactions_name_where_it_is_known() -> None:
    """The producer is in its next transaction on that very partition; what is older than that hangs."""
    driver = Driver()
    me = driver.run_init()
    for _ in range(2):
        driver.run_verify(me, partition(0))
        me = driver.run_end(me)
        driver.mark()
    driver.run_verify(me, partition(0))
    assert driver.txn().serial == 3
    asked = driver.hanging(me, partition(0))
    for serial in (0, 3):
        alive = replace(asked, serial=serial)
        assert refused(driver.shard.abort_hanging, alive, driver.now).code is ErrorCode.CONCURRENT_TRANSACTIONS
    older = replace(driver.hanging((me.producer_id, me.producer_epoch - 1), partition(0)), serial=2, last_offset=21)
    decision = driver.shard.abort_hanging(older, driver.now)
    assert isinstance(decision, Decision)
    (send,) = decision.effects
    assert isinstance(send, SendMarkers)
    assert (send.first_offset, send.last_offset, send.serial) == (17, 21, -1)


def test_self_healing_leaves_a_version_1_producers_next_transaction_alone() -> None:
    """It has the same epoch, so its records go on in the one that hangs, and the broker has seen them there."""
    driver = Driver()
    me = driver.run_init()
    driver.run_add(me, partition(0))
    driver.run_end(me, version=1)
    driver.mark()
    driver.run_add(me, partition(0))
    assert driver.txn().serial == 2 and driver.txn().identity == me
    asked = replace(driver.hanging(me, partition(0)), serial=1, last_offset=21)
    assert refused(driver.shard.abort_hanging, asked, driver.now).code is ErrorCode.CONCURRENT_TRANSACTIONS


def test_a_question_tells_a_deposed_coordinator_that_it_was_replaced() -> None:
    """It names the last transaction that is decided where it is asked; one that is no younger is not the answer."""
    driver = Driver()
    me = driver.run_init()
    driver.run_verify(me, partition(0))
    asked = driver.verify(me, partition(0), add=False)
    assert isinstance(driver.shard.verify_partitions(replace(asked, after_serial=0), driver.now), Decision)
    refusal = refused(driver.shard.verify_partitions, replace(asked, after_serial=1), driver.now)
    assert refusal.code is ErrorCode.NOT_COORDINATOR
    me = driver.run_end(me)
    driver.mark()
    add = driver.verify(me, partition(0))
    assert refused(driver.shard.verify_partitions, replace(add, after_serial=2), driver.now).code == 16
    assert isinstance(driver.shard.verify_partitions(replace(add, after_serial=1), driver.now), Decision)


def test_a_question_that_was_held_is_not_answered_about_the_next_transaction() -> None:
    """A version-1 write that came late: its transaction has its marker there, and waits for another partition's. The
    next one has the same epoch and adds the same partition before the question is looked at again (rule 24)."""
    driver = Driver()
    me = driver.run_init()
    driver.run_add(me, partition(0))
    late = driver.verify(me, partition(0), add=False, serial=driver.shard.serial_of(ID))
    driver.persist(driver.shard.end_txn(driver.end(me, False, version=1), driver.now))  # type: ignore[arg-type]
    assert isinstance(driver.shard.verify_partitions(late, driver.now), Held)
    driver.mark()
    driver.run_add(me, partition(0))
    decision = driver.shard.verify_partitions(late, driver.now)
    assert isinstance(decision, Decision) and isinstance(decision.reply, PartitionResults)
    assert [result.error for result in decision.reply.results] == [ErrorCode.TRANSACTION_ABORTABLE]
    current = driver.verify(me, partition(0), add=False, serial=driver.shard.serial_of(ID))
    decision = driver.shard.verify_partitions(current, driver.now)
    assert isinstance(decision, Decision) and isinstance(decision.reply, PartitionResults)
    assert [result.error for result in decision.reply.results] == [ErrorCode.NONE]


def test_a_members_hanging_transaction_is_judged_by_its_own_partitions() -> None:
    driver = Driver()
    a, b = driver.run_join(key="a").identity, driver.run_join(key="b").identity
    driver.run_verify(a, partition(0))
    assert refused(driver.shard.abort_hanging, driver.hanging(a, partition(0)), driver.now).code == 51
    decision = driver.shard.abort_hanging(driver.hanging(b, partition(0)), driver.now)
    assert isinstance(decision, Decision) and isinstance(decision.effects[0], SendMarkers)
    driver.run_end_token(0)
    driver.mark()
    decision = driver.shard.abort_hanging(replace(driver.hanging(b, partition(0)), transactional_id=""), driver.now)
    assert isinstance(decision, Decision) and isinstance(decision.effects[0], SendMarkers)
    assert decision.effects[0].markers[0].producer_epoch == 1, "the epoch the coordinator knows"
