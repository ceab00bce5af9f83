"""Two-phase commit (KIP-939): no time limit, transactions that are kept, and identities of their own for their holders.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hapax.core.errors import ErrorCode, Refusal
from hapax.core.transaction.admin import instance_of
from hapax.core.transaction.fencing import Fenced
from hapax.core.transaction.policy import TransactionPolicy
from hapax.core.transaction.record import NO_LIMIT, NO_TIMEOUT_MS, ProducerIdentity
from hapax.core.transaction.requests import (
    CommitPrepared,
    Decision,
    FenceProducer,
    Held,
    Kept,
    Limits,
    NeedProducerId,
    StartTimer,
    StopTimer,
)
from hapax.core.transaction.states import State
from unit.core.transaction.driver import ID, Driver, Ids, partition

DAY = 24 * 3_600_000


def refused(call: Any, *arguments: Any, **more: Any) -> Refusal:
    with pytest.raises(Refusal) as caught:
        call(*arguments, **more)
    return caught.value


def allowed(ids: Ids | None = None) -> Driver:
    return Driver(Limits(two_phase_commit=True), ids)


def prepared(version: int = 2) -> tuple[Driver, ProducerIdentity]:
    """An open transaction under two-phase commit."""
    driver = allowed()
    me = driver.run_init(enable_two_phase_commit=True, timeout_ms=5_000)
    driver.run_verify(me) if version == 2 else driver.run_add(me)
    return driver, me


def kept(version: int = 2) -> tuple[Driver, ProducerIdentity, Kept]:
    driver, former = prepared(version)
    return driver, former, keep(driver)


def keep(driver: Driver, two_phase: bool = True) -> Kept:
    reply = driver.run("init_producer_id", driver.init(keep_prepared=True, enable_two_phase_commit=two_phase))
    assert isinstance(reply, Kept)
    return reply


# --- no time limit ------------------------------------------------------------------------------------------------


def test_a_prepared_transaction_outlives_every_time_limit_and_every_coordinator() -> None:
    driver, me = prepared()
    assert not any(isinstance(each, StartTimer) for each in driver.effects)
    assert (driver.txn().limit_ms, driver.txn().timeout_ms) == (NO_LIMIT, NO_TIMEOUT_MS)
    for _ in range(3):
        driver.monotonic += 400 * DAY
        assert driver.shard.time_out(ID, driver.now) is None
        assert driver.shard.expired(driver.now) == [] and driver.shard.expire(ID, driver.now) is None
        assert driver.shard.adrift(timed=(), writing=(), postponed=()) == []
        refusal = refused(driver.shard.abort_hanging, driver.hanging(me, partition()), driver.now)
        assert refusal.code is ErrorCode.CONCURRENT_TRANSACTIONS
        assert driver.take_over() == []
    assert driver.run_end(me) == (1000, 1) and driver.txn().state is State.PREPARE_COMMIT


def test_the_next_transactions_of_the_producer_have_no_limit_either_until_it_starts_without() -> None:
    driver, me = prepared()
    me = driver.run_end(me)
    driver.mark()
    driver.run_verify(me)
    assert driver.txn().has_no_limit and driver.txn().serial == 2
    me = driver.run_init(me)
    driver.run_verify(me)
    assert driver.txn().limit_ms == 60_000 and not driver.txn().two_phase


def test_a_timer_that_runs_is_stopped_where_the_limit_goes() -> None:
    driver = allowed()
    driver.run_verify(driver.run_init())
    assert driver.effects == [StartTimer(ID, 60_000)]  # type: ignore[arg-type]
    keep(driver)
    assert driver.effects[1:] == [StopTimer(ID)]
    driver.monotonic = 60_000
    assert driver.shard.time_out(ID, driver.now) is None, "it fired already"
    keep(driver)
    assert driver.effects[2:] == [], "there is no timer to stop any more"


def test_a_timer_that_fires_while_the_limit_goes_does_nothing() -> None:
    driver = allowed()
    driver.run_verify(driver.run_init())
    driver.monotonic = 60_000
    decision = driver.shard.init_producer_id(
        driver.init(keep_prepared=True, enable_two_phase_commit=True), driver.now)
    assert isinstance(decision, Decision)
    assert driver.shard.time_out(ID, driver.now) is None, "a record is being written"
    driver.persist(decision)
    assert isinstance(decision.reply, Kept)
    assert driver.run_end(decision.reply.identity) == (1000, 2), "the call is not held for an abort that never comes"


def test_a_kept_transaction_with_a_limit_still_ends_at_it() -> None:
    driver = allowed()
    driver.run_verify(driver.run_init())
    driver.monotonic = 30_000
    keep(driver, two_phase=False)
    driver.take_over()
    driver.monotonic = 60_000
    decision = driver.shard.time_out(ID, driver.now)
    assert decision is not None
    driver.persist(decision)
    assert driver.txn().state is State.PREPARE_ABORT


# --- what is allowed ----------------------------------------------------------------------------------------------


def test_two_phase_commit_must_be_allowed() -> None:
    driver = Driver()
    off = refused(driver.run_init, enable_two_phase_commit=True)
    assert off.code is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert "transaction.two.phase.commit.enable" in off.reason
    driver = allowed()
    driver.policies.put(TransactionPolicy(transactional_id=ID, max_timeout_ms=10_000, uid="u", owner="team/app"))
    limited = refused(driver.run_init, enable_two_phase_commit=True)
    assert limited.code is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED and "team/app" in limited.reason
    driver.policies.put(TransactionPolicy(transactional_id=ID, max_timeout_ms=0, uid="u"))
    none = refused(driver.run_init, enable_two_phase_commit=True, timeout_ms=0)
    assert none.code is ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert driver.run_init(enable_two_phase_commit=True, timeout_ms=2**31 - 1) == (1000, 0), "Kafka bounds it neither"


def test_a_policy_that_comes_later_leaves_what_is_open_open() -> None:
    driver, me = prepared()
    driver.policies.put(TransactionPolicy(transactional_id=ID, max_timeout_ms=10_000, uid="u"))
    driver.take_over()
    driver.monotonic = DAY
    assert driver.shard.time_out(ID, driver.now) is None
    request = driver.init(keep_prepared=True, timeout_ms=10_000)
    assert driver.run("init_producer_id", request).ongoing == me and driver.txn().has_no_limit


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("how", ["policy", "setting"])
def test_what_is_taken_back_is_refused_to_the_next_transaction_of_a_producer_that_runs_on(
    version: int, how: str
) -> None:
    """A limit would be no answer: the producer would prepare a transaction that the limit then ends."""
    driver, me = prepared(version)
    if how == "policy":
        driver.policies.put(TransactionPolicy(transactional_id=ID, max_timeout_ms=10_000, uid="u"))
    else:
        driver.limits = Limits()
        driver.take_over()
    driver.run_verify(me, partition(1)) if version == 2 else driver.run_add(me, partition(1))
    assert driver.txn().has_no_limit, "what is open goes on"
    me = driver.run_end(me, version=version)
    driver.mark()
    refusal = refused(driver.run_verify if version == 2 else driver.run_add, me)
    assert refusal.code is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert not driver.txn().is_open and driver.txn().serial == 1
    me = driver.run_init(timeout_ms=10_000)
    driver.run_verify(me)
    assert driver.txn().limit_ms == 10_000


# --- holders ------------------------------------------------------------------------------------------------------

HOLDER = """
                 by-the-holder   by-a-former-holder  by-the-transaction-s-own
commit           PREPARE_COMMIT  90                  90
abort            PREPARE_ABORT   90                  90
commit-v1        PREPARE_COMMIT  90                  90
add              48              90                  90
verify           48              90                  90
recover          PREPARE_ABORT   90                  90
"""


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("call, who, expected", [
    (row.split()[0], who, expected)
    for row in HOLDER.strip().splitlines()[1:]
    for who, expected in zip(HOLDER.split()[:3], row.split()[1:], strict=True)
])
def test_only_the_newest_holder_can_end_a_kept_transaction(version: int, call: str, who: str, expected: str) -> None:
    driver, own, former = kept(version)
    holder = keep(driver)
    assert (own, former.identity, holder.identity) == ((1000, 0), (1000, 1), (1000, 2))
    assert former.ongoing == holder.ongoing == own
    me = {"by-the-holder": holder.identity, "by-a-former-holder": former.identity}.get(who, own)
    shard, now = driver.shard, driver.now
    try:
        match call:
            case "commit" | "abort":
                answer = shard.end_txn(driver.end(me, call == "commit"), now)
            case "commit-v1":
                answer = shard.end_txn(driver.end(me, True, 1), now)
            case "add":
                answer = shard.add_partitions_to_txn(driver.add(me), now)
            case "verify":
                answer = shard.verify_partitions(driver.verify(me), now)
            case "recover":
                answer = shard.init_producer_id(driver.init(me), now)
    except Refusal as refusal:
        assert str(int(refusal.code)) == expected
        assert driver.txn().is_open
        return
    assert isinstance(answer, Decision) and answer.record is not None
    assert answer.record.state.name == expected  # type: ignore[union-attr]


def test_a_zombie_is_told_who_keeps_its_transaction() -> None:
    driver, me = prepared()
    driver.run("init_producer_id", driver.init(
        keep_prepared=True, enable_two_phase_commit=True, caller=driver.caller(client_id="successor")))
    refusal = refused(driver.run_end, me)
    assert isinstance(refusal, Fenced) and "by successor" in refusal.reason
    assert driver.txn().holder == ("successor", "10.0.0.1:5000")


def test_markers_carry_the_transaction_s_own_identity() -> None:
    for commit in (True, False):
        driver, _, _ = kept()
        holder = keep(driver).identity
        assert driver.run_end(holder, commit) == (1000, 3)
        (marker,) = driver.markers[ID].markers
        assert (marker.producer_id, marker.producer_epoch, marker.commit) == (1000, 1, commit)
        driver.take_over()
        driver.mark()
        assert driver.txn().identity == (1000, 3) and not driver.txn().is_kept
        assert driver.run_end(holder, commit) == (1000, 3), "a retry, also at another coordinator"
        assert refused(driver.run_end, holder, not commit).code is ErrorCode.INVALID_TXN_STATE


def test_a_kept_transaction_without_partitions_is_decided_at_once() -> None:
    driver = allowed()
    me = driver.run_init(enable_two_phase_commit=True)
    record = replace(driver.txn(), state=State.ONGOING, serial=1, limit_ms=NO_LIMIT)
    driver.shard.load(record)
    holder = keep(driver).identity
    assert me == (1000, 0) and driver.run_end(holder) == (1000, 2)
    assert driver.txn().state is State.COMPLETE_COMMIT and driver.txn().identity == (1000, 2)


def test_keeping_needs_a_producer_id_where_the_epochs_end() -> None:
    driver = allowed(Ids(left=1))
    me = driver.run_init(enable_two_phase_commit=True)
    driver.shard.load(replace(driver.txn(), producer_epoch=32_766))  # type: ignore[arg-type]
    driver.run_verify((me.producer_id, 32_766))
    request = driver.init(keep_prepared=True, enable_two_phase_commit=True)
    assert driver.run("init_producer_id", request) == NeedProducerId() and not driver.txn().is_kept
    driver.ids.left = 1
    assert keep(driver).identity == (1001, 0)
    assert driver.shard.highest_producer_id() == 1001
    assert driver.shard.transactional_id_of(1001) == driver.shard.transactional_id_of(1000) == ID  # type: ignore[arg-type]
    assert driver.run_end(ProducerIdentity(1001, 0)) == (1001, 1)  # type: ignore[arg-type]
    (marker,) = driver.markers[ID].markers
    assert (marker.producer_id, marker.producer_epoch) == (1000, 32_767)
    driver.mark()
    assert driver.run_end(ProducerIdentity(1001, 0)) == (1001, 1), "the retry"  # type: ignore[arg-type]


def test_a_holder_that_recovers_aborts_under_its_own_next_epoch() -> None:
    driver, _, former = kept()
    assert driver.run_init(former.identity, enable_two_phase_commit=True) == (1000, 2)
    assert driver.txn().outcome is not None and not driver.txn().outcome.committed
    assert driver.run_init(former.identity, enable_two_phase_commit=True) == (1000, 2), "its retry gets the same"


# --- operators ----------------------------------------------------------------------------------------------------


def commit(driver: Driver, serial: int) -> CommitPrepared:
    return CommitPrepared(ID, serial, driver.caller(client_id="hapax txn commit"))  # type: ignore[arg-type]


def test_an_operator_commits_in_the_place_of_the_producer() -> None:
    driver, me = prepared()
    reply = driver.run("commit_prepared", commit(driver, 1))
    assert reply.identity == (1000, 1)
    assert "by hapax txn commit" in refused(driver.run_end, me, False).reason
    assert driver.txn().outcome is not None and driver.txn().outcome.committed
    assert driver.txn().holder is None
    driver.take_over()
    assert isinstance(driver.shard.commit_prepared(commit(driver, 1), driver.now), Held)
    driver.mark()
    assert driver.run("commit_prepared", commit(driver, 1)).identity == (1000, 1), "repeated"
    assert keep_nothing(driver) == (1000, 2)


def keep_nothing(driver: Driver) -> ProducerIdentity:
    reply = driver.run("init_producer_id", driver.init(keep_prepared=True, enable_two_phase_commit=True))
    assert isinstance(reply, ProducerIdentity)
    return reply


def test_an_operator_commits_only_the_transaction_that_is_named() -> None:
    driver, me = prepared()
    assert refused(driver.run, "commit_prepared", commit(driver, 2)).code is ErrorCode.INVALID_TXN_STATE
    driver.run_end(me, commit=False)
    driver.mark()
    assert refused(driver.run, "commit_prepared", commit(driver, 1)).code is ErrorCode.INVALID_TXN_STATE, "aborted"
    ordinary = Driver()
    ordinary.run_verify(ordinary.run_init())
    assert refused(ordinary.run, "commit_prepared", commit(ordinary, 1)).code is ErrorCode.INVALID_TXN_STATE
    missing = refused(Driver().run, "commit_prepared", commit(driver, 1))
    assert missing.code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


def test_an_operator_aborts_a_kept_transaction() -> None:
    driver, _, former = kept()
    request = FenceProducer(ID, instance_of(driver.txn()), driver.caller(), 1)  # type: ignore[arg-type]
    driver.run("fence_producer", request)
    assert driver.txn().outcome is not None and not driver.txn().outcome.committed
    assert isinstance(refused(driver.run_end, former.identity), Fenced)
    assert driver.txn().identity == (1000, 2)


# --- many writers -------------------------------------------------------------------------------------------------


def test_a_multi_writer_transaction_waits_for_the_outcome_of_a_prepared_one() -> None:
    driver, me = prepared()
    for call in (lambda: driver.run_join(), lambda: driver.run_end_token(0)):
        assert refused(call).code is ErrorCode.INVALID_TXN_STATE
        assert driver.txn().is_open and driver.txn().serial == 1
    me = driver.run_end(me)
    driver.mark()
    driver.run_join(timeout_ms=7_000)
    assert driver.txn().limit_ms == 7_000 and not driver.txn().has_no_limit
    multi = refused(driver.run, "init_producer_id", driver.init(keep_prepared=True, enable_two_phase_commit=True))
    assert multi.code is ErrorCode.INVALID_TXN_STATE
    driver.run_end_token(0, commit=False)
    driver.run_verify(me)
    assert driver.txn().has_no_limit, "the producer takes part in two-phase commit still"


def test_a_renewal_leaves_a_transaction_without_a_limit() -> None:
    driver, _ = prepared()
    driver.run("renew_transaction", driver.renew(1))
    assert driver.txn().has_no_limit
