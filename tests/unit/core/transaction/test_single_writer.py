"""The single writer: initialisation with all its retries, registration, ends under both transactions versions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hapax.core.errors import ErrorCode, Refusal
from hapax.core.transaction.fencing import Fenced
from hapax.core.transaction.machine import TransactionShard
from hapax.core.transaction.policy import TransactionPolicy
from hapax.core.transaction.record import OFFSETS_TOPIC, FencingCause, ProducerIdentity, Transaction
from hapax.core.transaction.requests import (
    Decision,
    Held,
    MarkerResult,
    NeedProducerId,
    PartitionResults,
    SendMarkers,
)
from hapax.core.transaction.states import State
from hapax.core.types import PartitionIndex, TopicPartition
from unit.core.transaction.driver import ID, Driver, Ids, partition, winner

LAST = 32766


def refused(call, *arguments, **more) -> Refusal:
    with pytest.raises(Refusal) as caught:
        call(*arguments, **more)
    return caught.value


def at_epoch(driver: Driver, epoch: int, **more) -> ProducerIdentity:
    """The id as a long life has left it."""
    driver.run_init()
    driver.shard.load(replace(driver.txn(), producer_epoch=epoch, **more))
    return driver.txn().identity


# --- InitProducerId -----------------------------------------------------------------------------------------------


def test_a_new_id_gets_a_new_producer_id_at_epoch_0() -> None:
    driver = Driver()
    assert driver.run_init() == (1000, 0)
    assert driver.txn().state is State.EMPTY
    assert driver.txn().fencing is None


def test_each_initialisation_fences_the_one_before_and_says_so() -> None:
    driver = Driver()
    old = driver.run_init()
    driver.monotonic = 5000
    new = driver.run_init(caller=driver.caller(client_id="second"))
    assert new == (1000, 1)
    refusal = refused(driver.run_add, old)
    assert isinstance(refusal, Fenced)
    assert refusal.fencing is not None and refusal.fencing.cause is FencingCause.INITIALIZED
    assert refusal.fencing.fenced == ("client", "10.0.0.1:5000") and driver.txn().holder == ("second", "10.0.0.1:5000")
    assert refusal.reason == (
        "epoch 0 of producer 1000 is not current: app was initialised again at 2023-11-14T22:13:25.000+00:00 "
        "by second from 10.0.0.1:5000"
    )
    driver.take_over()
    assert refused(driver.run_add, old).reason == refusal.reason, "who fenced whom is persisted"


@pytest.mark.parametrize(
    "change, code",
    [
        ({"timeout_ms": 0}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ({"timeout_ms": 900_001}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ({"keep_prepared": True, "producer_id": 1000, "producer_epoch": 0}, ErrorCode.INVALID_REQUEST),
        ({"enable_two_phase_commit": True}, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        ({"transactional_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"transactional_id": 32_768 * "a"}, ErrorCode.INVALID_REQUEST),
        ({"transactional_id": 16_384 * "\u00e4"}, ErrorCode.INVALID_REQUEST),
        ({"producer_id": 1000}, ErrorCode.INVALID_REQUEST),
        ({"producer_epoch": 1}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_initialisation_is_validated(change: dict, code: ErrorCode) -> None:
    driver = Driver()
    request = replace(driver.init(), **change)
    assert refused(driver.shard.init_producer_id, request, driver.now).code is code
    assert driver.shard.transactions == {}


def test_a_stale_epoch_is_told_by_version() -> None:
    driver = Driver()
    old = driver.run_init()
    driver.run_init()
    for version, code in ((3, 47), (4, 90), (5, 90)):
        request = driver.init(old, caller=driver.caller(version))
        assert refused(driver.run, "init_producer_id", request).code == code
    assert refused(driver.run_init, (999, 0)).code == 90, "another's producer id is fenced too"
    for version, code in ((1, 47), (2, 90)):
        request = driver.add(old, caller=driver.caller(version))
        assert refused(driver.run, "add_partitions_to_txn", request).code == code
        request = replace(driver.end(old, version=1), caller=driver.caller(version))
        assert refused(driver.run, "end_txn", request).code == code


def test_an_open_transaction_is_aborted_under_a_raised_epoch_and_the_call_waits() -> None:
    driver = Driver()
    me = driver.run_init()
    driver.run_verify(me)
    request = driver.init()
    decision = driver.shard.init_producer_id(request, driver.now)
    assert isinstance(decision, Decision) and decision.reply is None
    driver.persist(decision)
    assert driver.markers[ID].markers[0].producer_epoch == 1 and not driver.markers[ID].markers[0].commit
    assert driver.shard.init_producer_id(request, driver.now) == Held(1000)  # type: ignore[arg-type]
    driver.monotonic = 1000
    assert refused(driver.shard.init_producer_id, request, driver.now).code is ErrorCode.CONCURRENT_TRANSACTIONS
    driver.mark()
    assert driver.run("init_producer_id", request) == (1000, 2)


def test_a_producer_that_recovers_gets_the_epoch_of_the_abort() -> None:
    driver = Driver()
    me = driver.run_init()
    driver.run_verify(me)
    assert driver.run_init(me) == (1000, 1)
    assert driver.txn().fencing is None, "nobody fenced it"
    assert driver.run_init(me) == (1000, 1), "its retry is given the same epoch"
    assert driver.run_init((1000, 1)) == (1000, 2)
    assert refused(driver.run_init, me).code == 90


def test_a_retry_after_another_initialisation_is_fenced() -> None:
    driver = Driver()
    me = driver.run_init()
    assert driver.run_init(me) == (1000, 1)
    driver.run_init()
    assert refused(driver.run_init, me).code == 90


def test_a_late_recovery_cannot_abort_what_began_since() -> None:
    driver = Driver()
    me = driver.run_init()
    now_me = driver.run_init(me)
    driver.run_verify(now_me)
    assert refused(driver.run_init, me).code == 90
    assert driver.txn().state is State.ONGOING


def test_a_producer_recovers_where_its_id_is_gone() -> None:
    driver = Driver()
    assert driver.run_init((4711, 3)) == (1000, 0)


def test_exhausted_epochs_bring_a_new_producer_id() -> None:
    driver = Driver()
    at_epoch(driver, LAST - 1)
    assert driver.run_init() == (1000, LAST)
    assert driver.run_init() == (1001, 0)
    assert refused(driver.run_add, (1000, LAST)).code == 49


def test_a_recovery_across_exhaustion_can_be_retried() -> None:
    driver = Driver()
    me = at_epoch(driver, LAST)
    assert driver.run_init(me) == (1001, 0)
    driver.take_over()
    assert driver.run_init(me) == (1001, 0)
    assert driver.run_init((1001, 0)) == (1001, 1)
    assert refused(driver.run_init, me).code == 90


@pytest.mark.parametrize("recovers", [False, True])
def test_fencing_at_the_last_epoch_uses_the_reserved_one(recovers: bool) -> None:
    driver = Driver()
    me = at_epoch(driver, LAST)
    driver.run_verify(me)
    assert driver.run_init(me if recovers else (-1, -1)) == (1001, 0)
    sent = next(effect for effect in driver.effects if isinstance(effect, SendMarkers))
    assert sent.markers[0].producer_epoch == 32767
    if recovers:
        assert driver.run_init(me) == (1001, 0)


def test_an_empty_reserve_asks_for_ids_and_changes_nothing() -> None:
    driver = Driver(ids=Ids(left=0))
    assert isinstance(driver.shard.init_producer_id(driver.init(), driver.now), NeedProducerId)
    driver.ids.left = 1
    assert driver.run_init() == (1000, 0)
    at_epoch_last = replace(driver.txn(), producer_epoch=LAST)
    driver.shard.load(at_epoch_last)
    assert isinstance(driver.shard.init_producer_id(driver.init(), driver.now), NeedProducerId)
    driver.run_verify(at_epoch_last.identity)
    assert isinstance(driver.shard.end_txn(driver.end(at_epoch_last.identity), driver.now), NeedProducerId)
    driver.ids.left = 1
    assert driver.run_end(at_epoch_last.identity) == (1001, 0)


def test_a_policy_limits_the_time_out_and_the_topics() -> None:
    driver = Driver()
    driver.run_init()
    policy = TransactionPolicy(
        ID, allowed_topics=("t", "team-*"), max_timeout_ms=10_000, uid="1", owner="team/loader")
    driver.policies.put(policy)
    refusal = refused(driver.run_init)
    assert refusal.code is ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert "10000 ms, by the policy of team/loader" in refusal.reason
    me = driver.run_init(timeout_ms=10_000)
    results = driver.run_verify(me, partition(0), partition(0, "forbidden"), partition(3, OFFSETS_TOPIC)).results
    assert [(each.topic, int(each.error)) for each in results] == [
        ("forbidden", 29), ("t", 55), (OFFSETS_TOPIC, 55),
    ]  # fmt: skip
    assert results[0].reason == "app may not write to forbidden, by the policy of team/loader"
    assert driver.txn().state is State.EMPTY
    driver.run_verify(me, partition(0), partition(3, OFFSETS_TOPIC), partition(1, "team-a"))
    assert driver.txn().limit_ms == 10_000


def test_a_policy_that_comes_later_limits_the_next_transaction_and_leaves_the_open_one_its_partitions() -> None:
    driver = Driver()
    me = driver.run_init(timeout_ms=60_000)
    driver.run_verify(me, partition(0))
    driver.policies.put(TransactionPolicy(ID, allowed_topics=("u",), max_timeout_ms=5_000, uid="1"))
    assert [int(each.error) for each in driver.run_verify(me, partition(0)).results] == [0]
    assert [int(each.error) for each in driver.run_verify(me, partition(1)).results] == [29]
    assert driver.txn().limit_ms == 60_000
    me = driver.run_end(me)
    assert [int(each.error) for each in driver.run_verify(me, partition(0)).results] == [29]
    driver.run_verify(me, partition(0, "u", 2))
    assert driver.txn().limit_ms == 5_000
    driver.policies.remove("1")
    assert [int(each.error) for each in driver.run_verify(me, partition(0)).results] == [0]


# --- registration -------------------------------------------------------------------------------------------------


def test_partitions_are_counted_once_and_kept_by_topic_id() -> None:
    driver = Driver()
    me = driver.run_init()
    driver.run_add(me, partition(0), partition(0, "u", 2))
    driver.run_add(me, partition(0), partition(1))
    driver.run_add(me, partition(0, "t", 9))
    assert [(each.topic, each.topic_id[-1], each.partition) for each in driver.txn().partitions] == [
        ("t", 1, 0), ("t", 1, 1), ("u", 2, 0), ("t", 9, 0),
    ]  # fmt: skip
    assert driver.txn().serial == 1


def test_one_unknown_partition_refuses_all() -> None:
    driver = Driver()
    me = driver.run_init()
    unknown = (TopicPartition("gone", PartitionIndex(4)),)
    for results in (
        driver.run("add_partitions_to_txn", driver.add(me, partition(1), unknown=unknown)),
        driver.run("verify_partitions", driver.verify(me, partition(1), unknown=unknown)),
    ):
        assert [(each.topic, each.partition, int(each.error)) for each in results.results] == [
            ("gone", 4, 3), ("t", 1, 55),
        ]  # fmt: skip
    assert driver.txn().state is State.EMPTY


def test_verification_answers_partition_by_partition_and_is_confirmed() -> None:
    driver = Driver()
    me = driver.run_init()
    driver.run_add(me, partition(0))
    request = driver.verify(me, partition(0), partition(1), add=False)
    decision = driver.shard.verify_partitions(request, driver.now)
    assert isinstance(decision, Decision) and decision.confirm and decision.record is None
    assert isinstance(decision.reply, PartitionResults) and decision.reply.serial == 1
    assert [int(each.error) for each in decision.reply.results] == [0, 120]
    again = driver.shard.verify_partitions(driver.verify(me, partition(0)), driver.now)
    assert isinstance(again, Decision) and again.record is None and again.confirm


def test_a_late_write_of_the_last_transaction_is_not_verified() -> None:
    """KAFKA-9144: a produce request that arrives after the abort must open nothing."""
    driver = Driver()
    me = driver.run_init()
    driver.run_verify(me)
    driver.run_end(me, commit=False)
    assert refused(driver.run_verify, me).code == 90
    driver.mark()
    assert refused(driver.run_verify, me).code == 90
    old = driver.run_init()
    driver.run_add(old)
    driver.run_end(old, commit=False, version=1)
    driver.mark()
    results = driver.run_verify(old, add=False)
    assert [int(each.error) for each in results.results] == [120]


def test_unknown_ids_have_no_producer() -> None:
    driver = Driver()
    for call in (driver.run_add, driver.run_verify, driver.run_end):
        assert refused(call, (1, 0)).code is ErrorCode.INVALID_PRODUCER_ID_MAPPING


# --- EndTxn -------------------------------------------------------------------------------------------------------


def test_version_2_raises_the_epoch_with_every_decision() -> None:
    driver = Driver()
    me = driver.run_init()
    for serial in (1, 2, 3):
        driver.run_verify(me)
        following = driver.run_end(me, commit=serial != 2)
        assert following == (1000, serial)
        marker = driver.markers[ID].markers[0]
        assert (marker.producer_epoch, marker.commit) == (serial, serial != 2)
        assert (driver.markers[ID].serial, driver.markers[ID].transaction_version) == (serial, 2)
        driver.mark()
        me = following


def test_version_1_keeps_the_epoch() -> None:
    driver = Driver()
    me = driver.run_init()
    for serial in (1, 2):
        driver.run_add(me)
        assert driver.run_end(me, version=1) == me
        assert driver.markers[ID].markers[0].producer_epoch == 0
        assert (driver.markers[ID].serial, driver.markers[ID].transaction_version) == (serial, 1)
        driver.mark()


def test_the_version_of_the_end_says_what_its_markers_demand() -> None:
    """A marker of version 2 must raise the epoch, or partitions refuse it for ever."""
    driver = Driver()
    me = driver.run_init()
    for registered in (driver.run_add, driver.run_verify):
        registered(me)
        driver.run_end(me, version=1)
        assert driver.markers[ID].transaction_version == 1
        driver.mark()
        registered(me)
        me = driver.run_end(me, version=2)
        assert driver.markers[ID].transaction_version == 2
        driver.mark()


def test_a_delayed_end_cannot_decide_a_later_transaction() -> None:
    """KAFKA-17754 under version 2: the epoch alone refuses it."""
    driver = Driver()
    me = driver.run_init()
    driver.run_verify(me)
    following = driver.run_end(me)
    driver.mark()
    driver.run_verify(following)
    assert refused(driver.run_end, me, commit=True).code == 90
    assert refused(driver.run_end, me, commit=False).code == 90
    assert driver.txn().state is State.ONGOING


def test_an_empty_abort_does_not_fence_its_own_producer() -> None:
    """KAFKA-18464: abort of a transaction without a write, at once after a commit, while its markers are under way."""
    driver = Driver()
    me = driver.run_init()
    driver.run_verify(me)
    following = driver.run_end(me)
    request = driver.end(following, commit=False)
    assert isinstance(driver.shard.end_txn(request, driver.now), Held)
    driver.mark()
    after_abort = driver.run("end_txn", request)
    assert after_abort == (1000, 2)
    assert driver.run_end(following, commit=False) == after_abort, "retried"
    assert ID not in driver.markers, "nothing to mark"
    driver.run_verify(after_abort)
    assert driver.run_end(after_abort) == (1000, 3)


def test_an_end_that_races_the_last_teardown_is_not_answered_early() -> None:
    """ydb#52731: not success but a wait, and after it what is true then."""
    driver = Driver()
    me = driver.run_init()
    driver.run_add(me)
    driver.run_end(me, version=1)
    request = driver.end(me, version=1)
    assert isinstance(driver.shard.end_txn(request, driver.now), Held)
    driver.monotonic = 1000
    assert refused(driver.shard.end_txn, request, driver.now).code is ErrorCode.CONCURRENT_TRANSACTIONS


def test_a_lost_answer_is_given_again_across_a_take_over() -> None:
    driver = Driver()
    me = driver.run_init()
    driver.run_verify(me)
    following = driver.run_end(me)
    driver.take_over()
    assert driver.run_end(me) == following
    assert refused(driver.run_end, me, commit=False).code == 48


def test_the_last_epoch_commits_into_a_new_producer_id() -> None:
    driver = Driver()
    me = at_epoch(driver, LAST)
    driver.run_verify(me)
    following = driver.run_end(me)
    assert following == (1001, 0), "told with the decision"
    marker = driver.markers[ID].markers[0]
    assert (marker.producer_id, marker.producer_epoch) == (1000, 32767)
    assert isinstance(driver.shard.verify_partitions(driver.verify(following), driver.now), Held)
    assert isinstance(driver.shard.end_txn(driver.end(me), driver.now), Held), "a retry waits with it"
    assert refused(driver.run_verify, (1000, 32767)).code == 90, "the reserved epoch is nobody's"
    driver.take_over()
    driver.mark()
    assert driver.txn().identity == following
    assert driver.run_end(me) == following, "a retry after completion"
    driver.run_verify(following)
    assert driver.run_end(following) == (1001, 1)


def test_a_fenced_producer_cannot_learn_the_raised_epoch_by_a_retry() -> None:
    driver = Driver()
    me = driver.run_init()
    driver.run_verify(me)
    driver.persist(driver.shard.init_producer_id(driver.init(), driver.now))  # type: ignore[arg-type]
    for _ in range(2):
        assert refused(driver.run_end, me, commit=False).code == 90
        if ID in driver.markers:
            driver.mark()


# --- pending ------------------------------------------------------------------------------------------------------


def test_a_record_that_was_not_written_leaves_everything_as_it_was() -> None:
    driver = Driver()
    me = driver.run_init()
    driver.run_verify(me)
    before = driver.txn()
    decision = driver.shard.end_txn(driver.end(me), driver.now)
    assert isinstance(decision, Decision) and decision.record is not None
    assert isinstance(driver.shard.end_txn(driver.end(me), driver.now), Held)
    driver.shard.withdraw(decision.record, driver.now)
    assert driver.txn() is before
    assert driver.run_end(me) == (1000, 1)


def test_a_withdrawn_completion_sends_its_markers_again() -> None:
    driver = Driver()
    me = driver.run_init()
    driver.run_verify(me)
    driver.run_end(me)
    sent = driver.markers[ID]
    stored = [MarkerResult(each.producer_id, each.partitions[0].by_id, ErrorCode.NONE) for each in sent.markers]
    progress = driver.shard.markers_answered(ID, sent.serial, stored, driver.now)
    assert progress.decision is not None and progress.decision.record is not None
    assert driver.shard.withdraw(progress.decision.record, driver.now) == [sent]


def test_describe_and_list() -> None:
    driver = Driver()
    me = driver.run_init()
    driver.run_verify(me, partition(0), partition(1))
    driver.monotonic = 500
    shard: TransactionShard = driver.shard
    assert shard.describe(ID) is driver.txn()
    assert refused(shard.describe, "other").code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert refused(shard.describe, "").code is ErrorCode.INVALID_REQUEST

    def listed(**filters) -> list[str]:
        return [each.transactional_id for each in shard.list(driver.now, **filters)]

    assert listed() == listed(states=["Ongoing"]) == listed(producer_ids=[1000]) == listed(duration_ms=499) == [ID]
    assert listed(states=["Empty"]) == listed(producer_ids=[1]) == listed(duration_ms=500) == []
    assert shard.transactional_id_of(1000) == ID  # type: ignore[arg-type]
    assert isinstance(driver.txn(), Transaction)


def test_an_id_at_rest_costs_no_memory_beyond_its_state() -> None:
    driver = Driver()
    identity = driver.run_init()
    assert not driver.shard._in_progress
    for commit in (True, False):
        driver.run_verify(identity, partition())
        assert list(driver.shard._in_progress) == [ID]
        identity = driver.run_end(identity, commit)
        driver.mark()
        assert not driver.shard._in_progress
    driver.run_verify(identity, partition())
    driver.monotonic += 60_000
    driver.persist(driver.shard.time_out(ID, driver.now))
    driver.mark()
    assert not driver.shard._in_progress
    refused(driver.run_end, identity)
    assert not driver.shard._in_progress, "neither does a refused call leave an entry"


def test_a_multi_writer_id_at_rest_costs_no_memory_beyond_its_state() -> None:
    driver = Driver()
    identity = driver.run_join().identity
    driver.run_verify(identity, partition())
    driver.run_end_token(winners=(winner(identity, partition()),))
    driver.mark()
    assert driver.txn().state is State.COMPLETE_COMMIT and not driver.shard._in_progress
    driver.take_over()
    assert not driver.shard._in_progress
