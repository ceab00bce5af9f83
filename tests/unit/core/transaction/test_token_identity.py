"""A commit token names its work: what is confirmed, what is refused, and to whom."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hapax.core.errors import ErrorCode, Refusal
from hapax.core.transaction.record import Fingerprint, Transaction
from hapax.core.transaction.requests import CommitName, EndOutcome, TokenWork
from hapax.core.transaction.tokens import Conflict, TokenConflict
from unit.core.transaction.driver import ID, Driver, partition, winner


def work(owner: str = "query", digest: bytes = b"a", **more: Any) -> TokenWork:
    more.setdefault("run", "run-1")
    return TokenWork(owner, fingerprints=(Fingerprint("offsets", digest),), **more)


def committed(driver: Driver, value: int, of: TokenWork, count: int = 1, **more: Any) -> Any:
    """One batch of one task, committed."""
    joined = driver.run_join(value, f"task-{value}-{of.owner}", work=of, **more)
    if joined.already_committed:
        return driver.run_end_token(value, record_count=count, work=of, **more)
    driver.run_verify(joined.identity, partition())
    return driver.run_end_token(
        value, record_count=count, work=of, serial=joined.serial, winners=(winner(joined.identity, partition()),),
        **more,
    )  # fmt: skip


def refused(driver: Driver, cause: Conflict, value: int, of: TokenWork, **more: Any) -> TokenConflict:
    with pytest.raises(TokenConflict) as caught:
        committed(driver, value, of, **more)
    assert caught.value.cause is cause
    return caught.value


@pytest.fixture
def driver() -> Driver:
    made = Driver()
    for value in range(3):
        assert committed(made, value, work(digest=b"%d" % value)).outcome is EndOutcome.COMMITTED
    return made


def test_the_newest_is_confirmed_for_the_same_work_and_no_other(driver: Driver) -> None:
    assert committed(driver, 2, work(digest=b"2", run="run-2")).outcome is EndOutcome.ALREADY_COMMITTED
    newest = refused(driver, Conflict.OTHER_WORK, 2, work(digest=b"others")).newest
    assert newest is not None and (newest.number, newest.owner, newest.record_count) == (2, "query", 1)
    assert refused(driver, Conflict.OTHER_COUNT, 2, work(digest=b"2"), count=7).code is ErrorCode.INVALID_TXN_STATE
    allowed = committed(driver, 2, work(digest=b"others", allow_other_work=True))
    assert allowed.outcome is EndOutcome.ALREADY_COMMITTED


def test_what_is_older_than_the_newest_is_refused_even_if_it_is_the_same_work(driver: Driver) -> None:
    refused(driver, Conflict.OLDER, 1, work(digest=b"1"))
    refused(driver, Conflict.OLDER, 1, work(digest=b"1", allow_other_work=True), allow_unknown_history=True)


def test_what_does_not_follow_the_newest_is_refused(driver: Driver) -> None:
    assert refused(driver, Conflict.UNKNOWN_HISTORY, 5, work(follows=4)).code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert committed(driver, 5, work(follows=4), allow_unknown_history=True).outcome is EndOutcome.COMMITTED
    assert committed(driver, 6, work(follows=5)).outcome is EndOutcome.COMMITTED


def test_another_owner_goes_on_from_the_commit_that_it_names_and_counts_for_itself(driver: Driver) -> None:
    refused(driver, Conflict.OTHER_OWNER, 0, work("new"))
    refused(driver, Conflict.OTHER_OWNER, 9, work("new"), allow_unknown_history=True)
    refused(driver, Conflict.OTHER_OWNER, 0, work("new", continue_from=CommitName("query", 1)))
    going_on = CommitName("query", 2)
    for value in range(3):
        outcome = committed(driver, value, work("new", b"%d" % value, continue_from=going_on)).outcome
        assert outcome is EndOutcome.COMMITTED
    token = driver.txn().committed_token("q")
    assert token is not None and (token.value, token.number, token.owner) == (5, 2, "new")
    # The option stays where it is written, and does nothing any more.
    again = committed(driver, 2, work("new", b"2", continue_from=going_on))
    assert again.outcome is EndOutcome.ALREADY_COMMITTED
    refused(driver, Conflict.OLDER, 0, work("new", continue_from=going_on))
    refused(driver, Conflict.OTHER_OWNER, 3, work())
    assert driver.run("get_commit_token", driver.token()).token == token


def test_an_older_copy_goes_on_over_the_newest_commit_that_it_names(driver: Driver) -> None:
    going_on = CommitName("query", 2)
    copy = work(digest=b"again", continue_from=going_on)
    assert committed(driver, 1, copy).outcome is EndOutcome.COMMITTED
    assert committed(driver, 1, copy).outcome is EndOutcome.ALREADY_COMMITTED
    assert committed(driver, 2, work(digest=b"new", continue_from=going_on, follows=1)).outcome is EndOutcome.COMMITTED
    # What was ahead is now the older one.
    refused(driver, Conflict.UNKNOWN_HISTORY, 9, work(follows=8))


def test_naming_the_newest_commit_does_not_write_the_same_work_twice(driver: Driver) -> None:
    copy = work(digest=b"2", continue_from=CommitName("query", 2))
    assert committed(driver, 2, copy).outcome is EndOutcome.ALREADY_COMMITTED
    assert not driver.txn().is_open, "what was written to go on is aborted"
    committing = committed(driver, 2, replace(copy, fingerprints=(Fingerprint("offsets", b"others"),)))
    assert committing.outcome is EndOutcome.COMMITTED


def test_naming_the_newest_commit_does_not_leave_out_what_was_committed_after_it() -> None:
    """An older copy of the cluster was put back, and the option is still in the job: its later batches are gone."""
    driver = Driver()
    going_on = CommitName("query", 0)
    assert committed(driver, 0, work()).outcome is EndOutcome.COMMITTED
    for owner in ("new", "query"):
        newest = refused(driver, Conflict.UNKNOWN_HISTORY, 5, work(owner, continue_from=going_on, follows=4)).newest
        assert newest is not None and newest.owner == "query"
    knowing = work("new", continue_from=going_on, follows=4)
    assert committed(driver, 5, knowing, allow_unknown_history=True).outcome is EndOutcome.COMMITTED
    assert committed(driver, 6, work("new", continue_from=going_on, follows=5)).outcome is EndOutcome.COMMITTED


def ending(at: bytes, number: int, **more: Any) -> TokenWork:
    """Work whose fingerprints say, too, where it ends."""
    prints = (Fingerprint("offsets", b"%d to %s" % (number, at)), Fingerprint("end", at))
    return TokenWork("query", "run-1", number - 1 if number else None, fingerprints=prints, **more)


def test_what_follows_other_work_under_the_newest_number_is_refused() -> None:
    """The files of a checkpoint were mixed, or an older copy of the cluster has gone on otherwise since."""
    driver = Driver()
    assert committed(driver, 0, ending(b"10", 0)).outcome is EndOutcome.COMMITTED
    mixed = ending(b"30", 1, followed=(Fingerprint("end", b"20"),))
    assert refused(driver, Conflict.OTHER_PAST, 1, mixed).code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    driver.run_end_token(1, False, work=mixed)
    following = ending(b"30", 1, followed=(Fingerprint("end", b"10"),))
    assert committed(driver, 1, following).outcome is EndOutcome.COMMITTED
    knowing = ending(b"40", 2, followed=(Fingerprint("end", b"20"),))
    assert committed(driver, 2, knowing, allow_unknown_history=True).outcome is EndOutcome.COMMITTED
    # Where nothing can be compared, the number has to do.
    assert committed(driver, 3, work(follows=2, followed=(Fingerprint("other", b""),))).outcome is EndOutcome.COMMITTED


def planned(number: int, start: int, end: int, **more: Any) -> TokenWork:
    """Batch `number` of the query by Spark's plan: the rows from `start` to `end`."""
    prints = (Fingerprint("offsets", b"%d to %d" % (start, end)), Fingerprint("end", b"%d" % end))
    followed = (Fingerprint("end", b"%d" % start),) if number else ()
    more.setdefault("run", "run-1")
    return TokenWork("query", follows=number - 1 if number else None, fingerprints=prints, followed=followed, **more)


def committed_plans(count: int, driver: Driver | None = None) -> Driver:
    """Batches of ten rows."""
    driver = driver or Driver()
    for number in range(count):
        assert committed(driver, number, planned(number, number * 10, number * 10 + 10)).outcome is EndOutcome.COMMITTED
    return driver


def test_an_older_copy_goes_on_only_after_a_batch_that_was_committed() -> None:
    """Batch 2 of the older copy has more rows than the committed one. It was never committed, but marked as done by
    hand: before a task of it joined, or after, and before or after the person named the newest commit."""
    going_on = CommitName("query", 4)
    for joins in (False, True):
        for named_before in (None, going_on):
            driver = committed_plans(5)
            if joins and named_before is None:
                refused(driver, Conflict.OLDER, 2, planned(2, 20, 60))
            elif joins:
                driver.run_join(2, "task", work=planned(2, 20, 60, continue_from=going_on))
            left_out = planned(3, 60, 70, continue_from=going_on, run="run-2")
            assert refused(driver, Conflict.OTHER_PAST, 3, left_out).code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
            driver.run_end_token(3, False, work=left_out)
            driver.take_over()
            refused(driver, Conflict.OTHER_PAST, 3, left_out)
            # The mark is taken away: Spark runs that batch, and the one after it.
            assert committed(driver, 2, planned(2, 20, 60, continue_from=going_on)).outcome is EndOutcome.COMMITTED
            assert committed(driver, 3, left_out).outcome is EndOutcome.COMMITTED


def test_who_knows_that_no_record_is_missing_goes_on_after_any_batch() -> None:
    driver = committed_plans(5)
    knowing = planned(3, 60, 70, continue_from=CommitName("query", 4))
    assert committed(driver, 3, knowing, allow_unknown_history=True).outcome is EndOutcome.COMMITTED


def test_an_older_copy_may_name_the_newest_commit_again_and_from_elsewhere() -> None:
    """A crash, an abort, another older copy: what counts is what was committed before the batch."""
    driver = committed_plans(5)
    going_on = CommitName("query", 4)
    driver.run_join(3, "task", work=planned(3, 30, 50, continue_from=going_on))
    driver.take_over()
    again = planned(3, 30, 50, continue_from=going_on, run="run-2")
    driver.run_join(3, "task-2", work=again)
    driver.run_end_token(3, False, work=again)
    assert committed(driver, 1, planned(1, 10, 50, continue_from=going_on)).outcome is EndOutcome.COMMITTED
    # The copy that had progressed goes on over that one: all before its batch is in the output.
    forth = planned(4, 40, 60, continue_from=CommitName("query", 5))
    assert refused(driver, Conflict.UNKNOWN_HISTORY, 4, forth).code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    back = planned(1, 10, 20, continue_from=CommitName("query", 5))
    assert committed(driver, 1, back).outcome is EndOutcome.COMMITTED
    begun_afresh = planned(0, 0, 10, continue_from=CommitName("query", 6))
    assert committed(driver, 0, begun_afresh).outcome is EndOutcome.COMMITTED


def test_of_the_older_commits_the_newest_hundred_are_known() -> None:
    """As many batches as Spark keeps in a checkpoint."""
    driver = committed_plans(103)
    going_on = CommitName("query", 102)
    refused(driver, Conflict.OTHER_PAST, 2, planned(2, 20, 30, continue_from=going_on))
    assert committed(driver, 3, planned(3, 30, 40, continue_from=going_on)).outcome is EndOutcome.COMMITTED
    token = driver.txn().committed_token("q")
    assert token is not None and len(token.past) == 800


def test_the_older_commits_are_those_of_one_owner() -> None:
    driver = committed_plans(3)
    assert committed(driver, 0, work("new", continue_from=CommitName("query", 2))).outcome is EndOutcome.COMMITTED
    token = driver.txn().committed_token("q")
    assert token is not None and token.past == b""


def test_an_older_copy_is_compared_by_its_number_where_no_commit_says_where_it_ends() -> None:
    driver = Driver()
    for number in range(3):
        committed(driver, number, work(digest=b"%d" % number))
    copy = planned(1, 15, 20, continue_from=CommitName("query", 2))
    assert committed(driver, 1, copy).outcome is EndOutcome.COMMITTED


def test_a_record_without_older_commits_lets_an_older_copy_go_on_only_knowingly() -> None:
    """A release that did not store them wrote it."""
    driver = committed_plans(5)
    token = driver.txn().committed_token("q")
    assert token is not None
    driver.shard.transactions[ID] = replace(driver.txn(), tokens=(replace(token, past=b""),))
    copy = planned(2, 20, 30, continue_from=CommitName("query", 4))
    refused(driver, Conflict.OTHER_PAST, 2, copy)
    assert committed(driver, 2, copy, allow_unknown_history=True).outcome is EndOutcome.COMMITTED


def test_a_commit_that_is_not_there_cannot_be_gone_on_from() -> None:
    refused(Driver(), Conflict.UNKNOWN_HISTORY, 0, work(continue_from=CommitName("query", 2)))


def test_a_token_stored_without_an_owner_is_confirmed_by_its_count_and_then_has_one() -> None:
    driver = Driver()
    for value in range(2):
        assert driver.run_end_token(value, record_count=4).outcome is EndOutcome.COMMITTED
    refused(driver, Conflict.OTHER_COUNT, 1, work(), count=5)
    refused(driver, Conflict.OLDER, 0, work(), count=4)
    assert committed(driver, 1, work(), count=4).outcome is EndOutcome.ALREADY_COMMITTED
    assert committed(driver, 2, work(follows=1)).outcome is EndOutcome.COMMITTED
    refused(driver, Conflict.OTHER_OWNER, 3, work("another"))
    with pytest.raises(TokenConflict):
        driver.run_end_token(3)  # a caller of the version before cannot say whose work it brings


def test_work_without_an_owner_is_no_work() -> None:
    with pytest.raises(Refusal) as caught:
        Driver().run_join(work=TokenWork(run="run-1"))
    assert caught.value.code is ErrorCode.INVALID_REQUEST


# --- a driver that was taken for dead ---


def two_drivers(driver: Driver) -> tuple[TokenWork, TokenWork]:
    """The former one joined with a task; the live one took the batch up again, and wrote."""
    former, live = work(digest=b"3", run="former", follows=2), work(digest=b"3", run="live", follows=2)
    driver.run_join(3, "former-task", work=former)
    joined = driver.run_join(3, "live-task", work=live)
    driver.run_verify(joined.identity, partition())
    return former, live


def test_a_former_drivers_abort_does_not_end_the_live_ones_transaction(driver: Driver) -> None:
    former, live = two_drivers(driver)
    serial = driver.txn().serial
    for meant in (0, serial):
        assert driver.run_end_token(3, False, serial=meant, work=former).outcome is EndOutcome.ABORTED
        assert driver.txn().is_open
    driver.run_join(3, "former-task-2", work=former)
    driver.run_end_token(3, False, serial=serial, work=former)
    assert driver.txn().is_open, "a task that comes late does not make its driver the live one"
    driver.take_over()
    driver.run_end_token(3, False, serial=serial, work=former)
    assert driver.txn().is_open
    driver.run_end_token(3, False, serial=serial, work=live)
    assert not driver.txn().is_open


def test_a_former_drivers_commit_of_an_empty_batch_does_not_drop_what_the_live_one_writes(driver: Driver) -> None:
    former, live = two_drivers(driver)
    with pytest.raises(TokenConflict) as caught:
        driver.run_end_token(3, work=former)
    assert caught.value.cause is Conflict.OTHER_RUN and driver.txn().is_open
    assert driver.run_end_token(3, work=live).outcome is EndOutcome.COMMITTED


def with_empty_task_of_the_former(driver: Driver, *, rows: bool = True) -> tuple[TokenWork, TokenWork]:
    """The live driver took the batch up. Then the former one went on with a task that joins before it has rows."""
    former, live = work(digest=b"3", run="former", follows=2), work(digest=b"3", run="live", follows=2)
    joined = driver.run_join(3, "live-task", work=live, tentative=True)
    assert joined.noted, "it has opened the transaction"
    if rows:
        driver.run_verify(joined.identity, partition())
    assert not driver.run_join(3, "former-task", work=former, tentative=True).noted
    return former, live


def test_a_former_drivers_empty_task_lets_it_end_nothing(driver: Driver) -> None:
    former, live = with_empty_task_of_the_former(driver)
    driver.run_end_token(3, False, work=former)
    assert driver.txn().is_open and driver.txn().runs == ("live",)
    with pytest.raises(TokenConflict) as caught:
        driver.run_end_token(3, work=former)
    assert caught.value.cause is Conflict.OTHER_RUN and driver.txn().is_open
    driver.take_over()
    driver.run_end_token(3, False, work=former)
    assert driver.txn().is_open
    driver.run_end_token(3, False, work=live)
    assert not driver.txn().is_open


def test_a_former_drivers_empty_task_does_not_spoil_the_live_ones_empty_batch(driver: Driver) -> None:
    _, live = with_empty_task_of_the_former(driver, rows=False)
    assert driver.run_end_token(3, work=live).outcome is EndOutcome.COMMITTED


def test_a_live_driver_counts_from_its_first_rows_on(driver: Driver) -> None:
    """An empty task of the former one opened the transaction."""
    former, live = work(digest=b"3", run="former", follows=2), work(digest=b"3", run="live", follows=2)
    driver.run_join(3, "former-task", work=former, tentative=True)
    first = driver.run_join(3, "live-task", work=live, tentative=True)
    assert not first.noted
    again = driver.run_join(3, "live-task", work=live)
    assert again.noted and again.identity == first.identity and driver.txn().runs == ("former", "live")
    driver.run_verify(again.identity, partition())
    driver.run_end_token(3, False, work=former)
    assert driver.txn().is_open
    driver.run_end_token(3, False, work=live)
    assert not driver.txn().is_open


def test_the_runs_of_a_transaction_end_with_it(driver: Driver) -> None:
    _, live = two_drivers(driver)
    assert driver.txn().runs == ("former", "live")
    driver.run_end_token(3, False, work=live)
    driver.mark()
    assert isinstance(driver.txn(), Transaction) and driver.txn().runs == ()
