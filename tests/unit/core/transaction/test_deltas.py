"""What one member changes is a record of its own: the log gives the live state back, from any place and compacted."""

from __future__ import annotations

import sys
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hapax.codec.internal_records import KeyValue
from hapax.codec.transaction_log import decode_record, encode_key, encode_record
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.transaction.machine import TransactionShard
from hapax.core.transaction.multiwriter import LONGEST_MEMBER_KEY_BYTES
from hapax.core.transaction.record import Delta, Fingerprint, PartitionSet, Tombstone, Transaction
from hapax.core.transaction.requests import CheckWinners, Decision, Held, Limits, StartTimer, TokenWork
from hapax.core.transaction.states import IllegalTransition, State
from unit.codec.test_transaction_log import reference
from unit.core.transaction.driver import ID, Driver, Ids, partition, winner

PARTITIONS = [partition(index, topic, 1 + (topic == "u")) for topic in "tu" for index in (0, 1, 9)]
DAY_MS = 24 * 3600 * 1000


def loaded(log: list[KeyValue]) -> TransactionShard:
    shard = TransactionShard(Limits(), Ids())
    for entry in log:
        record = decode_record(*entry)
        if record is not None:
            shard.load(record)
    return shard


def compacted(log: list[KeyValue], below: int) -> list[KeyValue]:
    last = {key: place for place, (key, _) in enumerate(log[:below])}
    return [entry for place, entry in enumerate(log) if place >= below or last[entry[0]] == place]


def decided(driver: Driver, method: str, request: Any) -> Decision:
    answer = getattr(driver.shard, method)(request, driver.now)
    assert isinstance(answer, Decision)
    return answer


members, sets = st.integers(0, 2), st.lists(st.sampled_from(PARTITIONS), min_size=1, max_size=4)
steps = st.one_of(
    st.tuples(st.just("join"), members), st.tuples(st.just("register"), members, sets),
    st.tuples(st.just("renew"), st.integers(1, 900_000)), st.tuples(st.just("wait"), st.integers(1, 5_000)),
    st.tuples(st.just("end"), st.booleans(), st.lists(members, unique=True)), st.tuples(st.just("expire")),
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.lists(steps, max_size=25), st.data())
def test_any_prefix_of_the_log_compacted_at_any_place_gives_the_state_that_was_live_then(
    plan: list[tuple[Any, ...]], data: st.DataObject
) -> None:
    driver = Driver()
    states: dict[int, tuple[dict[str, Transaction], dict[str, dict[Any, None]]]] = {0: ({}, {})}
    persist = driver.persist

    def persisted(decision: Decision) -> Any:
        effects = persist(decision)
        deltas = {each: dict(keys) for each, keys in driver.shard._deltas.items()}
        states[len(driver.log)] = dict(driver.shard.transactions), deltas
        return effects

    driver.persist = persisted  # type: ignore[method-assign]
    token = 0
    for what, *rest in plan:
        opened = driver.shard.transactions.get(ID)
        members = opened.members if opened is not None and opened.is_open else ()
        if what == "join":
            driver.run_join(token, f"task-{rest[0]}", allow_unknown_history=True)
        elif what == "register" and members:
            member = members[rest[0] % len(members)]
            driver.run_verify((member.producer_id, member.producer_epoch), *rest[1])
        elif what == "renew" and opened is not None and opened.is_open:
            driver.run("renew_transaction", driver.renew(opened.serial, rest[0]))
        elif what == "wait":
            driver.monotonic += rest[0]
        elif what == "end":
            chosen = [members[each] for each in rest[1] if each < len(members)]
            wins = tuple(winner((each.producer_id, each.producer_epoch), *each.partitions) for each in chosen)
            driver.run_end_token(token, rest[0], winners=wins, allow_unknown_history=True)
            token += rest[0]
            if ID in driver.markers:
                driver.mark()
        elif what == "expire":
            driver.monotonic += 400 * DAY_MS
            gone = driver.shard.expire(ID, driver.now)
            if gone is not None:
                driver.persist(gone)
                token = 0
    end = data.draw(st.sampled_from(sorted(states)))
    prefix = driver.log[:end]
    shard = loaded(compacted(prefix, data.draw(st.integers(0, end))))
    transactions, deltas = states[end]
    assert shard.transactions == transactions
    assert {each: set(keys) for each, keys in shard._deltas.items()} == {
        each: set(keys) for each, keys in deltas.items() if keys
    }


def test_members_register_while_others_are_being_written() -> None:
    driver = Driver()
    first, second, third = (driver.run_join(0, f"task-{number}").identity for number in range(3))
    one = decided(driver, "verify_partitions", driver.verify(first, partition(0)))
    two = decided(driver, "verify_partitions", driver.verify(second, partition(0), partition(1)))
    assert isinstance(one.record, Delta) and isinstance(two.record, Delta)
    held = driver.shard.verify_partitions(driver.verify(first, partition(0)), driver.now)
    assert isinstance(held, Held), "what is not stored is not confirmed"
    assert isinstance(driver.shard.join_transaction(driver.join(0, "task-2"), driver.now), Decision)
    wins = (winner(first, partition(0)), winner(second, partition(0), partition(1)))
    assert isinstance(driver.shard.end_transaction(driver.end_token(winners=wins), driver.now), CheckWinners)
    driver.shard.winners_checked(ID)
    end = decided(driver, "end_transaction", driver.end_token(winners=wins, missing=()))
    assert isinstance(driver.shard.verify_partitions(driver.verify(third), driver.now), Held), "it is being decided"
    for each in (one, two, end):
        driver.persist(each)
    assert driver.txn().state is State.PREPARE_COMMIT
    assert [tuple(member.won) for member in driver.txn().members] == [
        (partition(0),), (partition(0), partition(1)), (),
    ]  # fmt: skip
    live = driver.txn()
    driver.take_over()
    assert driver.txn() == live


def test_what_one_member_asks_for_meanwhile_is_one_record() -> None:
    driver = Driver()
    member = driver.run_join().identity
    driver.run_join(0, "task-1")
    first = decided(driver, "verify_partitions", driver.verify(member, partition(0)))
    for index in range(1, 200):
        assert isinstance(driver.shard.verify_partitions(driver.verify(member, partition(index)), driver.now), Held)
    driver.persist(first)
    driver.persist(decided(driver, "verify_partitions", driver.verify(member, partition(1))))
    for index in range(2, 200):
        answer = decided(driver, "verify_partitions", driver.verify(member, partition(index)))
        assert answer.record is None and answer.confirm
    assert len(driver.txn().every_partition) == 200 and len(driver.log) == 4


def test_a_join_that_is_being_written_is_no_place_yet() -> None:
    driver = Driver()
    driver.run_join(0, "task-0")
    joining = decided(driver, "join_transaction", driver.join(0, "task-1"))
    assert isinstance(driver.shard.join_transaction(driver.join(0, "task-1"), driver.now), Held)
    other = decided(driver, "join_transaction", driver.join(0, "task-2"))
    driver.persist(joining)
    driver.persist(other)
    again = decided(driver, "join_transaction", driver.join(0, "task-1"))
    assert again.record is None and again.reply == joining.reply
    ids = [member.producer_id for member in driver.txn().members]
    assert len(set(ids)) == len(ids) == 3


def test_what_the_log_refused_is_not_there() -> None:
    driver = Driver()
    first, second = (driver.run_join(0, f"task-{number}").identity for number in range(2))
    one = decided(driver, "verify_partitions", driver.verify(first, partition(0)))
    two = decided(driver, "verify_partitions", driver.verify(second, partition(1)))
    assert one.record is not None and two.record is not None
    assert driver.shard.withdraw(one.record, driver.now) == []
    again = decided(driver, "verify_partitions", driver.verify(first, partition(0)))
    assert isinstance(again.record, Delta), "it is not there for what is decided meanwhile"
    driver.persist(two)
    assert driver.txn().every_partition == (partition(1),)
    with pytest.raises(IllegalTransition):
        driver.replay(one.record)
    driver.persist(again)
    assert driver.txn().every_partition == (partition(0), partition(1))


def test_a_record_under_way_that_nobody_writes_is_given_up() -> None:
    driver = Driver()
    first = driver.run_join().identity
    decided(driver, "verify_partitions", driver.verify(first))
    assert ("pending_record", ID) in driver.shard.adrift({ID}, (), ())
    assert driver.shard.adrift({ID}, {ID}, ()) == []
    driver.shard.give_up(ID, driver.now)
    assert driver.shard.adrift({ID}, (), ()) == []
    assert isinstance(decided(driver, "verify_partitions", driver.verify(first)).record, Delta)


def test_the_limit_moves_without_the_members_being_written() -> None:
    driver = Driver()
    driver.run_join(timeout_ms=10_000)
    driver.monotonic += 9_000
    size = len(driver.log)
    driver.run("renew_transaction", driver.renew(1, 10_000))
    [(key, value)] = driver.log[size:]
    record = decode_record(key, value)
    assert isinstance(record, Delta) and record.member is None
    assert driver.txn().limit_ms == 19_000 and driver.txn().elapsed_ms == 9_000
    driver.take_over()
    assert driver.txn().limit_ms == 19_000 and driver.txn().elapsed_ms == 9_000


def test_an_expired_id_leaves_no_delta_in_a_compacted_log() -> None:
    driver = Driver()
    for batch in range(2):
        for number in range(3 - batch):
            driver.run_verify(driver.run_join(batch, f"task-{number}").identity)
        driver.run_end_token(batch)
        driver.mark()
    driver.take_over()
    driver.monotonic += 400 * DAY_MS
    gone = driver.shard.expire(ID, driver.now)
    assert gone is not None and gone.record == Tombstone(ID, (1000, 1001, 1002))  # type: ignore[arg-type]
    driver.persist(gone)
    assert all(value is None for _, value in compacted(driver.log, len(driver.log)))


def test_the_log_of_a_large_batch_grows_with_its_members_not_with_their_square() -> None:
    """1,000 tasks in 200 partitions took more than a gigabyte."""
    driver = Driver()
    everywhere = tuple(partition(index) for index in range(200))
    tasks = [driver.run_join(0, f"task-{number}").identity for number in range(1_000)]
    for task in tasks:
        driver.run_verify(task, *everywhere)
    whole = encode_record(driver.txn())[0][1]
    assert whole is not None and len(whole) < 100_000
    assert sum(len(key) + len(value or b"") for key, value in driver.log) < 300_000


partition_sets = st.lists(st.sampled_from(PARTITIONS)).map(PartitionSet.of)


@given(partition_sets, partition_sets)
def test_sets_of_partitions_are_sets(one: PartitionSet, two: PartitionSet) -> None:
    assert set(one | two) == set(one) | set(two) and set(one & two) == set(one) & set(two)
    assert set(one - two) == set(one) - set(two) and (one <= two) == (set(one) <= set(two))
    assert list(one) == sorted(one) and len(one) == len(set(one)) and bool(one) == bool(list(one))
    assert all((each in one) == (each in set(one)) for each in PARTITIONS)
    assert PartitionSet.of(reversed(list(one))) == one


def test_a_member_record_of_an_older_release_is_written_whole_before_a_delta_stands_beside_it() -> None:
    """The release before reads that record, and skips deltas: it would give their members' identities out again."""
    driver = Driver()
    first, second = (driver.run_join(0, f"task-{number}").identity for number in range(2))
    driver.run_verify(first, partition(0))
    driver.log = [(encode_key(ID), value_of_version_1(driver.txn()))]
    driver.take_over()
    changed = decided(driver, "verify_partitions", driver.verify(second, partition(1)))
    assert isinstance(changed.record, Transaction) and changed.record.members[1].partitions == PartitionSet.of(
        [partition(1)])
    assert isinstance(driver.shard.verify_partitions(driver.verify(first, partition(1)), driver.now), Held)
    driver.persist(changed)
    value = driver.log[-1][1]
    assert value is not None and value[:2] == b"\0\2", "which the release before refuses to read"
    third = decided(driver, "join_transaction", driver.join(0, "task-2"))
    assert isinstance(third.record, Delta)
    driver.persist(third)
    driver.run("renew_transaction", driver.renew(1, 120_000))
    live = driver.txn()
    driver.take_over()
    assert driver.txn() == live and live.limit_ms == 120_000 and len(live.members) == 3


def test_what_an_older_release_began_is_renewed_by_a_whole_record() -> None:
    driver = Driver()
    driver.run_join(timeout_ms=10_000)
    driver.log = [(encode_key(ID), value_of_version_1(driver.txn()))]
    driver.take_over()
    driver.run("renew_transaction", driver.renew(1, 120_000))
    assert driver.shard._in_progress[ID].timer_at == 120_000 and driver.txn().limit_ms == 120_000
    assert isinstance(decode_record(*driver.log[-1]), Transaction)
    driver.run_end_token(0)
    assert isinstance(decided(driver, "join_transaction", driver.join(1, "a")).record, Transaction)


def test_a_renewal_that_the_log_refused_moves_no_timer() -> None:
    driver = Driver()
    driver.run_join(timeout_ms=10_000)
    renewal = decided(driver, "renew_transaction", driver.renew(1, 60_000))
    assert renewal.record is not None
    driver.monotonic += 10_000
    late = driver.shard.time_out(ID, driver.now)
    assert late is not None and late.record is None, "the renewal may be stored yet"
    assert driver.shard.withdraw(renewal.record, driver.now) == [StartTimer(ID, 10_000)]  # type: ignore[arg-type]
    aborted = driver.shard.time_out(ID, driver.now)
    assert aborted is not None and aborted.record is not None


def test_no_member_makes_a_decision_too_large_to_be_written() -> None:
    """Each of their records is small enough, but the decision names them all: it would never leave."""
    driver = Driver()
    driver.run_join(0, "k" * LONGEST_MEMBER_KEY_BYTES)
    for key in ("k" * (LONGEST_MEMBER_KEY_BYTES + 1), "\u00fc" * (LONGEST_MEMBER_KEY_BYTES // 2 + 1)):
        with pytest.raises(Refusal, match="member key") as caught:
            driver.run_join(0, key)
        assert caught.value.code is ErrorCode.INVALID_REQUEST
    assert len(driver.txn().members) == 1


def test_a_scope_is_no_longer_than_a_name() -> None:
    driver = Driver()
    with pytest.raises(Refusal, match="scope") as caught:
        driver.run_join(scope="q" * 32_768)
    assert caught.value.code is ErrorCode.INVALID_REQUEST
    for work in (
        TokenWork(owner="o" * 32_768), TokenWork(owner="o", run="r" * 32_768),
        TokenWork("o", fingerprints=(Fingerprint("records", bytes(20_000)), Fingerprint("offsets", bytes(20_000)))),
    ):
        with pytest.raises(Refusal, match="at most 32767"):
            driver.run_join(work=work)
    driver.run_join(scope="q" * 32_767)


def test_the_markers_of_a_decision_are_not_kept_beyond_it() -> None:
    driver = Driver()
    member = driver.run_join().identity
    driver.run_verify(member, *(partition(index) for index in range(1_000)))
    driver.run_end_token(0, winners=(winner(member, *driver.txn().every_partition),))
    won = driver.txn().members[0].won
    driver.mark()
    driver.effects.clear()
    driver.shard = loaded([])
    assert sys.getrefcount(won) == 2, "this function's variable, and the argument"


def value_of_version_1(transaction: Transaction) -> bytes:
    """As the release before wrote it; by the published schema."""
    made = reference("TransactionLogValue")
    topics: dict[tuple[str, bytes], list[int]] = {}
    for topic, topic_id, index in transaction.every_partition:
        topics.setdefault((topic, topic_id), []).append(index)
    assert transaction.open_token is not None
    value = made(
        version=1, producer_id=transaction.producer_id, producer_epoch=transaction.producer_epoch,
        transaction_timeout_ms=transaction.timeout_ms, transaction_status=transaction.state,
        transaction_partitions=[
            made.PartitionsSchema(version=1, topic=topic, partition_ids=indexes)
            for (topic, _), indexes in topics.items()
        ],
        transaction_last_update_timestamp_ms=transaction.last_update_ms,
        transaction_start_timestamp_ms=transaction.start_ms, client_transaction_version=2, serial=transaction.serial,
        topic_ids=[UUID(bytes=topic_id) for _, topic_id in topics],
        limit=made.TransactionLimit(version=1, elapsed_ms=transaction.elapsed_ms, limit_ms=transaction.limit_ms),
        open_token=made.OpenTokenSchema(
            version=1, scope=transaction.open_token.scope, value=transaction.open_token.value),
        members=[
            made.MemberSchema(
                version=1, member_key=member.key, member_producer_id=member.producer_id,
                member_epoch=member.producer_epoch, member_partitions=[
                    made.MemberSchema.MemberPartition(
                        version=1, topic_place=list(topics).index(each[:2]), member_partition_id=each.partition,
                        won=False)
                    for each in member.partitions
                ])
            for member in transaction.members
        ],
    )  # fmt: skip
    return b"\0\1" + value.encode(version=1, compact=True, tagged=True)
