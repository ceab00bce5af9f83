"""Many writers, one transaction; commit tokens of many writers and of one (rules 6 and 7)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hapax.core.errors import ErrorCode, Refusal
from hapax.core.transaction.fencing import Fenced
from hapax.core.transaction.policy import TransactionPolicy
from hapax.core.transaction.record import FencingCause, PartitionSet, Token
from hapax.core.transaction.requests import (
    CheckWinners,
    Decision,
    Ended,
    EndOutcome,
    Held,
    Limits,
    NeedProducerId,
    WinnerCheck,
)
from hapax.core.transaction.states import State
from unit.core.transaction.driver import ID, Driver, Ids, partition, winner

COMMITTED, ABORTED, ALREADY = EndOutcome.COMMITTED, EndOutcome.ABORTED, EndOutcome.ALREADY_COMMITTED


def refused(call, *arguments, **more) -> Refusal:
    with pytest.raises(Refusal) as caught:
        call(*arguments, **more)
    return caught.value


def markers(driver: Driver) -> list[str]:
    """`1000@1 commit t-0 t-1`, one line for each marker."""
    return [
        f"{marker.producer_id}@{marker.producer_epoch} {'commit' if marker.commit else 'abort'} "
        + " ".join(f"{each.topic}-{each.partition}" for each in marker.partitions)
        for marker in driver.markers[ID].markers
    ]


def committed(driver: Driver, value: int = 0, count: int = 10) -> None:
    """One committed batch by one member."""
    member = driver.run_join(value)
    driver.run_verify(member.identity, partition(0))
    driver.run_end_token(value, winners=(winner(member.identity, partition(0)),), record_count=count)
    driver.mark()


# --- joining ------------------------------------------------------------------------------------------------------


def test_joining_registers_the_partition_that_is_written_first() -> None:
    """In the record by which the member joins. It gets a marker, whatever the member writes."""
    driver = Driver()
    first, second = driver.run_join(key="a", partition=partition(0)), driver.run_join(key="b", partition=partition(1))
    assert first.registered and second.registered
    assert [member.partitions for member in driver.txn().members] == [
        PartitionSet.of((partition(0),)), PartitionSet.of((partition(1),))]
    assert driver.run_join(key="a", partition=partition(0)).registered, "a retry"
    assert not driver.run_join(key="a", partition=partition(1)).registered, "this one is not in the record"
    driver.run_end_token(winners=(winner(first.identity, partition(0)),), record_count=10)
    assert sorted(markers(driver)) == ["1000@1 commit t-0", "1001@1 abort t-1"]


def test_a_member_may_win_without_the_partition_that_it_named() -> None:
    driver = Driver()
    member = driver.run_join(partition=partition(0))
    driver.run_verify(member.identity, partition(1))
    driver.run_end_token(winners=(winner(member.identity, partition(1)),), record_count=10)
    assert sorted(markers(driver)) == ["1000@1 abort t-0", "1000@1 commit t-1"]


def test_a_partition_that_the_policy_forbids_is_not_registered() -> None:
    """The write is refused, with the reason; joining is not."""
    driver = Driver()
    driver.policies.put(TransactionPolicy(ID, allowed_topics=("other",), uid="1"))
    member = driver.run_join(partition=partition(0))
    assert not member.registered and driver.txn().members[0].partitions == PartitionSet.of(())


def test_members_get_identities_of_their_own_and_a_retry_the_same() -> None:
    driver = Driver()
    first, second, again = driver.run_join(key="a"), driver.run_join(key="b"), driver.run_join(key="a")
    assert (first.identity, second.identity) == ((1000, 0), (1001, 0))
    assert again == first and first.serial == 1 and first.remaining_ms == 60_000
    assert driver.txn().producer_id == -1, "the single writer has no producer id yet"
    driver.take_over()
    assert driver.run_join(key="a") == first


def test_identities_return_to_the_pool_under_a_raised_epoch() -> None:
    driver = Driver()
    for batch in range(3):
        identities = [driver.run_join(batch, key=f"{batch}-{task}").identity for task in range(2)]
        assert sorted(identities) == [(1000, batch), (1001, batch)]
        driver.run_end_token(batch)
    assert driver.ids.next == 1002, "no more ids than writers at once"


def test_an_exhausted_identity_leaves_the_pool() -> None:
    driver = Driver()
    member = driver.run_join()
    epochs = (replace(driver.txn().members[0], producer_epoch=32765),)
    driver.shard.load(replace(driver.txn(), members=epochs))
    driver.run_end_token(0)
    last = driver.run_join(1).identity
    assert last == (member.identity.producer_id, 32766)
    driver.run_verify(last)
    driver.run_end_token(1, winners=(winner(last, partition(0)),))
    assert markers(driver) == ["1000@32767 commit t-0"]
    driver.mark()
    assert driver.run_join(2).identity == (1001, 0)


def test_joining_is_validated() -> None:
    driver = Driver(limits=Limits(max_members=1))
    for change in ({"member_key": ""}, {"transactional_id": ""}, {"token": Token("", 0)}, {"token": Token("q", -1)}):
        request = replace(driver.join(), **change)
        assert refused(driver.shard.join_transaction, request, driver.now).code is ErrorCode.INVALID_REQUEST
    for timeout_ms in (-1, 900_001):
        assert refused(driver.run_join, timeout_ms=timeout_ms).code is ErrorCode.INVALID_TRANSACTION_TIMEOUT
    driver.run_join(timeout_ms=0)
    assert driver.txn().limit_ms == 60_000
    refusal = refused(driver.run_join, key="b")
    assert refusal.code is ErrorCode.INVALID_REQUEST and "transaction.max.members" in refusal.reason


def test_joining_waits_for_ids() -> None:
    driver = Driver(ids=Ids(left=0))
    assert isinstance(driver.shard.join_transaction(driver.join(), driver.now), NeedProducerId)
    assert driver.shard.transactions == {}


def test_a_newer_token_aborts_the_open_transaction_of_an_older_one() -> None:
    driver = Driver()
    old = driver.run_join(0)
    driver.run_verify(old.identity)
    request = driver.join(1, key="b", allow_unknown_history=True)
    decision = driver.shard.join_transaction(request, driver.now)
    assert isinstance(decision, Decision) and decision.reply is None
    driver.persist(decision)
    assert markers(driver) == ["1000@1 abort t-0"]
    refusal = refused(driver.run_verify, old.identity)
    assert isinstance(refusal, Fenced) and refusal.fencing is not None
    assert refusal.fencing.cause is FencingCause.NEWER_TOKEN and "by client from 10.0.0.1:5000" in refusal.reason
    driver.mark()
    new = driver.run("join_transaction", request)
    assert (new.serial, new.identity) == (2, (1000, 1))
    stale = refused(driver.run_join, 0)
    assert stale.code is ErrorCode.PRODUCER_FENCED and "older than the open transaction's" in stale.reason


def test_another_scope_takes_the_id_over() -> None:
    driver = Driver()
    driver.run_join(0)
    assert driver.run_join(0, scope="other").serial == 2
    assert driver.txn().open_token == Token("other", 0)


def test_joining_ends_the_single_writers_transaction_and_the_other_way_round() -> None:
    driver = Driver()
    me = driver.run_init()
    driver.run_verify(me)
    member = driver.run_join()
    assert member.serial == 2
    assert refused(driver.run_verify, me).code == 90
    current = driver.txn().identity
    assert refused(driver.run_verify, current).code is ErrorCode.INVALID_TXN_STATE
    assert refused(driver.run_end, current).code is ErrorCode.INVALID_TXN_STATE
    driver.run_verify(member.identity)
    assert driver.run_init() == (1000, 2)
    assert refused(driver.run_verify, member.identity).code == 90


def test_the_single_writer_gets_its_first_producer_id_later() -> None:
    driver = Driver()
    committed(driver)
    assert driver.run_init() == (1001, 0)
    assert driver.txn().committed_token("q") is not None


def test_who_joins_after_the_decision_is_told_that_it_is_committed() -> None:
    driver = Driver()
    member = driver.run_join()
    driver.run_verify(member.identity)
    driver.run_end_token(0, winners=(winner(member.identity, partition(0)),), record_count=10)
    late = driver.run_join(key="speculative")
    assert late.already_committed and late.identity == (-1, -1)
    assert late.committed.value == 0 and late.committed.record_count == 10
    assert isinstance(driver.shard.join_transaction(driver.join(1), driver.now), Held)
    assert refused(driver.run_verify, member.identity).code == 90, "and whoever writes is refused"


# --- registration -------------------------------------------------------------------------------------------------


def test_members_register_partitions_of_their_own() -> None:
    driver = Driver()
    a, b = driver.run_join(key="a").identity, driver.run_join(key="b").identity
    driver.run_verify(a, partition(0), partition(1))
    driver.run_verify(b, partition(1), partition(0, "u", 2))
    assert [int(each.error) for each in driver.run_verify(b, partition(0), add=False).results] == [120]
    assert [(each.topic, each.partition) for each in driver.txn().every_partition] == [
        ("t", 0), ("t", 1), ("u", 0),
    ]  # fmt: skip
    driver.policies.put(TransactionPolicy(ID, allowed_topics=("t",), uid="1"))
    results = driver.run_verify(b, partition(5), partition(1, "u", 2)).results
    assert [int(each.error) for each in results] == [29, 55]
    assert [int(each.error) for each in driver.run_verify(b, partition(0, "u", 2)).results] == [0]  # it is in it
    driver.take_over()
    assert driver.run_verify(a, partition(1), add=False).results[0].error is ErrorCode.NONE


def test_an_old_epoch_of_a_member_is_refused() -> None:
    driver = Driver()
    member = driver.run_join().identity
    driver.run_end_token(0)
    assert refused(driver.run_verify, member).code == 90
    driver.run_join(1)
    assert refused(driver.run_verify, member).code == 90


# --- ending -------------------------------------------------------------------------------------------------------


def test_winners_are_committed_and_the_rest_aborted() -> None:
    driver = Driver()
    a, b, orphan = (driver.run_join(key=key).identity for key in "abc")
    driver.run_verify(a, partition(0), partition(1))
    driver.run_verify(b, partition(1))
    driver.run_verify(orphan, partition(0), partition(2))
    winners = (winner(a, partition(0)), winner(b, partition(1)))
    check = driver.shard.end_transaction(driver.end_token(0, winners=winners), driver.now)
    assert check == CheckWinners(
        1, (WinnerCheck(partition(0), *a, 9), WinnerCheck(partition(1), *b, 9))  # type: ignore[arg-type]
    )
    reply = driver.run_end_token(0, winners=winners, record_count=20)
    assert reply == Ended(COMMITTED, (-1, -1), 1, 20)  # type: ignore[arg-type]
    expected = ["1000@1 commit t-0", "1000@1 abort t-1", "1001@1 commit t-1", "1002@1 abort t-0 t-2"]
    assert markers(driver) == expected
    driver.take_over()
    assert markers(driver) == expected, "winners and losers are persisted"
    driver.mark()
    assert driver.txn().state is State.COMPLETE_COMMIT and driver.txn().members == ()


def test_the_order_in_which_a_commit_names_partitions_does_not_enter_the_state() -> None:
    driver = Driver()
    member = driver.run_join()
    registered = (partition(1), partition(0), partition(0, "u", 2))
    driver.run_verify(member.identity, *registered)
    driver.run_end_token(winners=(winner(member.identity, registered[0], registered[2], registered[1]),))
    live = driver.txn()
    assert live.members[0].won == live.members[0].partitions == PartitionSet.of(registered)
    driver.take_over()
    assert driver.txn().members == live.members


def test_a_missing_record_fails_the_commit_and_decides_nothing() -> None:
    driver = Driver()
    member = driver.run_join().identity
    driver.run_verify(member, partition(0))
    request = driver.end_token(0, winners=(winner(member, partition(0)),))
    check = driver.shard.end_transaction(request, driver.now)
    assert isinstance(check, CheckWinners)
    refusal = refused(driver.shard.end_transaction, replace(request, missing=check.checks), driver.now)
    assert refusal.code is ErrorCode.TRANSACTION_ABORTABLE
    assert refusal.reason == "t-0 does not hold the records of producer 1000 up to sequence 9"
    never_written = driver.end_token(0, winners=(winner(member, partition(1)),))
    assert refused(driver.shard.end_transaction, never_written, driver.now).code is ErrorCode.TRANSACTION_ABORTABLE
    assert driver.txn().state is State.ONGOING
    assert driver.run_end_token(0, commit=False).outcome is ABORTED


def test_winners_must_be_members_each_once() -> None:
    driver = Driver()
    member = driver.run_join().identity
    driver.run_verify(member, partition(0))
    for identity in ((1000, 1), (999, 0)):
        request = driver.end_token(0, winners=(winner(identity, partition(0)),))
        assert refused(driver.shard.end_transaction, request, driver.now).code == 90
    twice = (winner(member, partition(0)), winner(member, partition(0)))
    assert refused(driver.run_end_token, 0, winners=twice).code is ErrorCode.INVALID_REQUEST


def test_a_commit_that_was_timed_out_while_its_winners_were_checked_fails() -> None:
    driver = Driver()
    member = driver.run_join().identity
    driver.run_verify(member, partition(0))
    request = driver.end_token(0, winners=(winner(member, partition(0)),), serial=1)
    assert isinstance(driver.shard.end_transaction(request, driver.now), CheckWinners)
    driver.monotonic = 60_000
    driver.persist(driver.shard.time_out(ID, driver.now))  # type: ignore[arg-type]
    driver.mark()
    request = replace(request, caller=driver.caller(), missing=())
    refusal = refused(driver.shard.end_transaction, request, driver.now)
    assert refusal.code is ErrorCode.INVALID_TXN_STATE and "timed out and was aborted at" in refusal.reason
    again = driver.run_join()
    assert again.serial == 2, "the batch can be written again"
    assert refused(driver.run, "end_transaction", request).code is ErrorCode.INVALID_TXN_STATE


def test_an_empty_batch_keeps_its_token() -> None:
    driver = Driver()
    assert driver.run_end_token(0).outcome is COMMITTED
    assert ID not in driver.markers
    driver.run_join(1)
    assert driver.run_end_token(1).outcome is COMMITTED
    assert driver.run("get_commit_token", driver.token()).token.value == 1
    assert driver.txn().serial == 2


def test_an_empty_batch_ends_what_was_open_before() -> None:
    driver = Driver()
    member = driver.run_join(0).identity
    driver.run_verify(member)
    assert driver.run_end_token(1, allow_unknown_history=True).serial == 2
    assert driver.run_join(0).already_committed


def test_an_abort_does_nothing_once_committed_nor_to_another_transaction() -> None:
    driver = Driver()
    committed(driver)
    assert driver.run_end_token(0, commit=False).outcome is ALREADY
    first = driver.run_join(1)
    assert driver.run_end_token(1, commit=False, serial=first.serial).outcome is ABORTED
    second = driver.run_join(1)
    assert driver.run_end_token(1, commit=False, serial=first.serial).outcome is ABORTED
    assert driver.txn().state is State.ONGOING and driver.txn().serial == second.serial
    assert driver.run_end_token(7, commit=False).outcome is ABORTED
    assert Driver().run_end_token(0, commit=False).outcome is ABORTED


def test_only_a_commit_stores_a_token() -> None:
    driver = Driver()
    member = driver.run_join(0).identity
    driver.run_verify(member)
    driver.run_end_token(0, commit=False, record_count=10)
    driver.mark()
    assert driver.run("get_commit_token", driver.token()).token is None
    assert not driver.run_join(0).already_committed


# --- replays ------------------------------------------------------------------------------------------------------


def test_a_replayed_batch_is_told_that_it_is_committed_and_writes_nothing() -> None:
    driver = Driver()
    committed(driver, 0, count=10)
    committed(driver, 1, count=11)
    for value in (0, 1):
        joined = driver.run_join(value)
        assert joined.already_committed and joined.committed.value == 1
    reply = driver.run_end_token(1, record_count=11)
    assert (reply.outcome, reply.committed_records, reply.serial) == (ALREADY, 11, 2)
    assert driver.run_end_token(1, record_count=11, serial=2).outcome is COMMITTED, "its own retry"
    assert driver.run_end_token(0, record_count=99).outcome is ALREADY, "only the newest number is kept"


def test_a_replay_with_another_number_of_records_fails_loudly() -> None:
    driver = Driver()
    committed(driver, 0, count=10)
    refusal = refused(driver.run_end_token, 0, record_count=9)
    assert refusal.code is ErrorCode.INVALID_TXN_STATE
    assert refusal.reason == "commit token 0 of q was committed with 10 records, this replay has 9"
    assert driver.run_end_token(0, record_count=9, allow_other_count=True).outcome is ALREADY


def test_a_token_above_0_needs_a_history() -> None:
    driver = Driver()
    for call in (driver.run_join, driver.run_end_token):
        refusal = refused(call, 5)
        assert refusal.code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND and "no history" in refusal.reason
    driver.run_join(5, allow_unknown_history=True)
    assert driver.run_end_token(5, allow_unknown_history=True).outcome is COMMITTED
    assert driver.run_join(7).serial == 2, "now it has one"
    assert refused(driver.run_join, 1, scope="other").code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


def test_scopes_are_bounded() -> None:
    driver = Driver(limits=Limits(max_scopes=2))
    for scope in "ab":
        driver.run_end_token(0, scope=scope)
    assert refused(driver.run_end_token, 0, scope="c").code is ErrorCode.INVALID_REQUEST
    assert driver.run_end_token(1, scope="a").outcome is COMMITTED


def test_single_use_scopes_leave_nothing_behind() -> None:
    """As many writes as one likes under one id; the last ones can be asked for again, in case an answer was lost."""
    driver = Driver(limits=Limits(max_scopes=2))
    driver.run_end_token(3, allow_unknown_history=True)
    for number in range(50):
        driver.monotonic += 1000
        scope = f"write-{number}"
        joined = driver.run_join(0, scope=scope)
        driver.run_verify(joined.identity)
        ended = {"scope": scope, "single_use": True, "winners": (winner(joined.identity, partition(0)),),
                 "serial": joined.serial}  # fmt: skip
        assert driver.run_end_token(0, **ended).outcome is COMMITTED
        driver.mark()
        driver.take_over()
        assert driver.run_end_token(0, **ended).outcome is COMMITTED, "asked again"
        assert driver.run_end_token(0, commit=False, scope=scope).outcome is ALREADY
        assert driver.run_join(0, scope=scope).already_committed
        assert len(driver.txn().tokens) <= 21
    assert driver.run_join(3).already_committed, "the scope that lasts is kept"


def test_a_single_use_scope_is_dropped_once_nobody_can_ask_again() -> None:
    driver = Driver()
    for scope in ("write-1", "write-2"):
        driver.run_end_token(0, scope=scope, single_use=True)
        driver.monotonic += driver.shard.limits.single_use_keep_ms
    assert [token.scope for token in driver.txn().tokens] == ["write-2"]


# --- one writer with a token --------------------------------------------------------------------------------------


def test_one_writer_commits_with_a_token_and_goes_on_under_the_next_epoch() -> None:
    driver = Driver()
    me = driver.run_init()
    driver.run_verify(me)
    reply = driver.run_end_token(0, identity=me, record_count=10)
    assert (reply.outcome, reply.identity, reply.serial, reply.committed_records) == (COMMITTED, (1000, 1), 1, 10)
    driver.take_over()
    assert driver.run_end_token(0, identity=me, record_count=10) == reply, "retried"
    assert refused(driver.run_end_token, 0, identity=me, record_count=9).code == 48
    assert refused(driver.run_end_token, 1, identity=me).code == 48, "another token under the last epoch"


def test_one_writer_that_replays_is_aborted_and_told_so() -> None:
    driver = Driver()
    me = driver.run_init()
    driver.run_verify(me)
    me = driver.run_end_token(0, identity=me, record_count=10).identity
    driver.run_verify(me)
    reply = driver.run_end_token(0, identity=me, record_count=10)
    assert (reply.outcome, reply.identity, reply.committed_records) == (ALREADY, (1000, 2), 10)
    assert markers(driver) == ["1000@2 abort t-0"]
    assert driver.run_end_token(0, identity=me, record_count=10).outcome is ALREADY, "retried"
    assert driver.run_end_token(0, identity=(1000, 2), record_count=10).outcome is ALREADY, "nothing open"
    assert driver.txn().committed_token("q").serial == 1  # type: ignore[union-attr]


def test_one_writer_keeps_the_token_of_an_empty_batch() -> None:
    driver = Driver()
    me = driver.run_init()
    reply = driver.run_end_token(0, identity=me)
    assert (reply.outcome, reply.identity) == (COMMITTED, (1000, 1))
    assert driver.run_end_token(0, identity=me) == reply
    assert driver.run_end_token(1, identity=reply.identity).identity == (1000, 2)


def test_one_writer_without_a_token_is_an_ordinary_end() -> None:
    driver = Driver()
    me = driver.run_init()
    assert refused(driver.run_end_token, None, identity=me).code == 48
    driver.run_verify(me)
    reply = driver.run_end_token(None, commit=False, identity=me)
    assert (reply.outcome, reply.identity) == (ABORTED, (1000, 1))
    assert driver.run_end_token(None, commit=False, identity=me) == reply
    assert refused(driver.run_end_token, None, identity=(1000, 7)).code == 90
    assert refused(driver.run_end_token, None).code is ErrorCode.INVALID_REQUEST
    assert refused(driver.run_end_token, 0, record_count=-1).code is ErrorCode.INVALID_REQUEST


def test_one_writers_abort_stores_no_token() -> None:
    driver = Driver()
    me = driver.run_init()
    driver.run_verify(me)
    assert driver.run_end_token(0, commit=False, identity=me).outcome is ABORTED
    driver.mark()
    assert driver.txn().tokens == ()


# --- renewal ------------------------------------------------------------------------------------------------------


def test_a_renewal_moves_the_deadline_out_and_at_most_to_the_maximum() -> None:
    driver = Driver()
    driver.run_join(timeout_ms=1000)
    driver.monotonic = 900
    assert driver.run("renew_transaction", driver.renew(1, 5000)).remaining_ms == 5000
    assert driver.run("renew_transaction", driver.renew(1, 10)).remaining_ms == 5000, "never in"
    assert driver.run("renew_transaction", driver.renew(1, 10_000_000, Token("q", 0))).remaining_ms == 900_000
    strange = replace(driver.renew(1), transactional_id="x")
    for request in (driver.renew(2), driver.renew(1, token=Token("q", 1)), strange):
        assert refused(driver.run, "renew_transaction", request).code is ErrorCode.INVALID_TXN_STATE
    assert refused(driver.run, "renew_transaction", driver.renew(1, 0)).code is ErrorCode.INVALID_TRANSACTION_TIMEOUT
