"""Every state against every event. The expectations stand here once more, in words, and not by asking the code."""

from __future__ import annotations

import pytest

from hapax.core.errors import ErrorCode, Refusal
from hapax.core.transaction.record import Transaction
from hapax.core.transaction.requests import Decision, Held, MarkerResult
from hapax.core.transaction.states import LEGAL_RECORDS, TABLE, Event, IllegalTransition, State, Step
from unit.core.transaction.driver import ID, Driver, partition

STATES = ["EMPTY", "ONGOING", "PREPARE_COMMIT", "PREPARE_ABORT", "COMPLETE_COMMIT", "COMPLETE_ABORT"]

# `X` goes to state X; `held`; `answer`; `nothing`; a number is the error code of the refusal.
V1 = """
                  EMPTY      ONGOING         PREPARE_COMMIT PREPARE_ABORT COMPLETE_COMMIT COMPLETE_ABORT
initialize        EMPTY      PREPARE_ABORT   held           held          EMPTY           EMPTY
keep              EMPTY      ONGOING         held           held          EMPTY           EMPTY
add               ONGOING    ONGOING         held           held          ONGOING         ONGOING
add-same          ONGOING    answer          held           held          ONGOING         ONGOING
verify            answer     answer          held           held          answer          answer
commit            48         PREPARE_COMMIT  held           48            answer          48
abort             48         PREPARE_ABORT   48             held          48              answer
stale-add         47         47              47             47            47              47
stale-commit      47         47              47             47            47              47
strange-commit    49         49              49             49            49              49
join              ONGOING    PREPARE_ABORT   held           held          ONGOING         ONGOING
time-out          nothing    PREPARE_ABORT   nothing        nothing       nothing         nothing
expire            dead       nothing         nothing        nothing       dead            dead
"""

V2 = """
                  EMPTY      ONGOING         PREPARE_COMMIT PREPARE_ABORT COMPLETE_COMMIT COMPLETE_ABORT
initialize        EMPTY      PREPARE_ABORT   held           held          EMPTY           EMPTY
keep              EMPTY      ONGOING         held           held          EMPTY           EMPTY
recover           EMPTY      PREPARE_ABORT   held           held          EMPTY           EMPTY
add               ONGOING    ONGOING         held           held          ONGOING         ONGOING
add-same          ONGOING    answer          held           held          ONGOING         ONGOING
verify            answer     answer          held           held          answer          answer
commit            48         PREPARE_COMMIT  held           held          48              48
abort             COMPLETE_ABORT PREPARE_ABORT held         held          COMPLETE_ABORT  COMPLETE_ABORT
commit-again      90         90              held           48            answer          48
abort-again       90         90              48             held          48              answer
stale-add         90         90              90             90            90              90
stale-commit      90         90              90             90            90              90
strange-commit    49         49              49             49            49              49
join              ONGOING    PREPARE_ABORT   held           held          ONGOING         ONGOING
time-out          nothing    PREPARE_ABORT   nothing        nothing       nothing         nothing
expire            dead       nothing         nothing        nothing       dead            dead
"""


def in_state(state: str, version: int) -> Driver:
    """A driver whose id is in this state. The producer has made two transactions before, so epochs have a past."""
    driver = Driver()
    me = driver.run_init()
    me = driver.run_init(me)
    for _ in range(2):
        driver.run_verify(me, add=True) if version == 2 else driver.run_add(me)
        me = driver.run_end(me, commit=True, version=version)
        driver.mark()
    if state == "EMPTY":
        driver.run_init(me)
        return driver
    driver.run_verify(me, add=True) if version == 2 else driver.run_add(me)
    if state == "ONGOING":
        return driver
    driver.run_end(me, commit="COMMIT" in state, version=version)
    if state.startswith("COMPLETE"):
        driver.mark()
    assert driver.txn().state.name == state
    return driver


def outcome(driver: Driver, event: str, version: int) -> str:
    txn = driver.txn()
    me, last = txn.identity, (txn.producer_id, txn.last_producer_epoch)
    stale = (me.producer_id, max(0, min(me.producer_epoch, txn.last_producer_epoch if version == 2 else 99) - 1))
    # The calls of version 1 that are checked here are so old that they know no PRODUCER_FENCED.
    old = driver.caller(version=1 if version == 1 else 9)
    shard, now = driver.shard, driver.now
    try:
        match event:
            case "initialize":
                answer = shard.init_producer_id(driver.init(), now)
            case "keep":
                answer = shard.init_producer_id(driver.init(keep_prepared=True), now)
            case "recover":
                answer = shard.init_producer_id(driver.init(me), now)
            case "add" if version == 1:
                answer = shard.add_partitions_to_txn(driver.add(me, partition(7)), now)
            case "add-same" if version == 1:
                answer = shard.add_partitions_to_txn(driver.add(me), now)
            case "add" | "add-same":
                index = 7 if event == "add" else 0
                answer = shard.verify_partitions(driver.verify(me, partition(index)), now)
            case "verify":
                answer = shard.verify_partitions(driver.verify(me, add=False), now)
            case "commit" | "abort":
                answer = shard.end_txn(driver.end(me, event == "commit", version), now)
            case "commit-again" | "abort-again":
                answer = shard.end_txn(driver.end(last, event == "commit-again", 2), now)
            case "stale-add" if version == 1:
                answer = shard.add_partitions_to_txn(driver.add(stale, caller=old), now)
            case "stale-add":
                answer = shard.verify_partitions(driver.verify(stale), now)
            case "stale-commit":
                request = driver.end(stale, True, version)
                request = type(request)(ID, *stale, True, old, version)  # type: ignore[arg-type]
                answer = shard.end_txn(request, now)
            case "strange-commit":
                answer = shard.end_txn(driver.end((77, 0), True, version), now)
            case "join":
                answer = shard.join_transaction(driver.join(), now)
            case "time-out":
                driver.monotonic += 60_000
                answer = shard.time_out(ID, driver.now)
            case "expire":
                driver.monotonic += 8 * 86_400_000
                answer = shard.expire(ID, driver.now)
    except Refusal as refusal:
        return str(int(refusal.code))
    if answer is None:
        return "nothing"
    if isinstance(answer, Held):
        return "held"
    assert isinstance(answer, Decision)
    if answer.record is None:
        return "answer"
    return answer.record.state.name if isinstance(answer.record, Transaction) else "dead"


def cells(table: str, version: int) -> list[tuple[int, str, str, str]]:
    head, *rows = table.strip().splitlines()
    states = head.split()
    return [
        (version, row.split()[0], state, expected)
        for row in rows
        for state, expected in zip(states, row.split()[1:], strict=True)
    ]


@pytest.mark.parametrize("version, event, state, expected", cells(V1, 1) + cells(V2, 2))
def test_each_event_in_each_state(version: int, event: str, state: str, expected: str) -> None:
    assert outcome(in_state(state, version), event, version) == expected


EVENTS = [(version, event) for version, event, state, _ in cells(V1, 1) + cells(V2, 2) if state == "EMPTY"]


@pytest.mark.parametrize("version, event", EVENTS)
@pytest.mark.parametrize("state", STATES)
def test_an_id_with_a_pending_record_holds_every_call(version: int, event: str, state: str) -> None:
    driver = in_state(state, version)
    # Something is decided in each state, and its record does not come back yet.
    if state.startswith("PREPARE"):
        sent = driver.markers[ID]
        done = [MarkerResult(m.producer_id, p.by_id, ErrorCode.NONE) for m in sent.markers for p in m.partitions]
        assert driver.shard.markers_answered(ID, sent.serial, done, driver.now).decision is not None
    else:
        assert isinstance(driver.shard.init_producer_id(driver.init(), driver.now), Decision)
    assert outcome(driver, event, version) == ("nothing" if event in ("time-out", "expire") else "held")


@pytest.mark.parametrize("event", ["initialize", "add", "verify", "commit"])
def test_an_id_that_is_being_removed_holds_every_call(event: str) -> None:
    driver = in_state("EMPTY", 2)
    driver.monotonic += 8 * 86_400_000
    assert driver.shard.expire(ID, driver.now) is not None
    assert outcome(driver, event, 2) == "held"


def test_the_table_names_every_pair_and_leads_only_to_legal_records() -> None:
    states = [state for state in State if state not in (State.DEAD, State.PREPARE_EPOCH_FENCE)]
    assert set(TABLE) == {(state, event) for state in states for event in Event}
    for (state, event), entered in TABLE.items():
        if isinstance(entered, State) and entered not in (State.DEAD, State.PREPARE_EPOCH_FENCE):
            assert entered in LEGAL_RECORDS[state], (state, event)
    decisions = {State.PREPARE_COMMIT: State.COMPLETE_COMMIT, State.PREPARE_ABORT: State.COMPLETE_ABORT}
    for decided, completed in decisions.items():
        assert LEGAL_RECORDS[decided] == {completed}, "a decision is final"
        entered_from = {each for (state, _), each in TABLE.items() if state is decided and isinstance(each, State)}
        assert entered_from == {completed}
    assert Step.HOLD not in {outcome for (state, _), outcome in TABLE.items() if state is State.EMPTY}


def test_a_record_that_no_decision_made_is_a_fault() -> None:
    driver = in_state("PREPARE_COMMIT", 2)
    before = driver.txn()
    with pytest.raises(IllegalTransition):
        driver.shard.replay(before, driver.now)
    assert driver.txn() is before


def test_kafka_spells_states_in_camel_case() -> None:
    assert [state.kafka_name for state in State] == [
        "Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Dead",
        "PrepareEpochFence",
    ]  # fmt: skip
