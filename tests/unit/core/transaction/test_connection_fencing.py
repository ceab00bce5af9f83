"""Newest connection wins (rule 4), alone and in the transaction machine."""

from __future__ import annotations

from typing import Any

import pytest

from hapax.core.errors import Refusal
from hapax.core.transaction.connection_fencing import ConnectionFencing, Superseded
from hapax.core.transaction.machine import TransactionShard
from hapax.core.transaction.requests import CloseConnection, Decision, Held
from hapax.core.transaction.states import State
from unit.core.transaction.driver import ID, Driver, partition


def admitted(fencing: ConnectionFencing, connection: int, epoch: int = 0, producer_id: int = 1) -> bool:
    return fencing.admit(ID, producer_id, epoch, connection) is None  # type: ignore[arg-type]


def test_an_older_connection_is_dropped_once_a_newer_one_has_spoken() -> None:
    fencing = ConnectionFencing()
    assert admitted(fencing, 5) and admitted(fencing, 7) and admitted(fencing, 7)
    assert not admitted(fencing, 5)
    assert isinstance(fencing.superseded(ID, 6), Superseded)
    assert fencing.superseded("other", 6) is None
    fencing.forget(ID)
    assert admitted(fencing, 5)


def test_a_fenced_producer_supersedes_nobody_and_a_new_one_starts_afresh() -> None:
    fencing = ConnectionFencing()
    assert admitted(fencing, 9, epoch=0)
    assert admitted(fencing, 4, epoch=1), "a restarted producer may write over an older connection"
    assert admitted(fencing, 5, epoch=1)
    assert admitted(fencing, 12, epoch=0), "left to the epoch check"
    assert not admitted(fencing, 4, epoch=1), "and not remembered"
    assert admitted(fencing, 3, producer_id=2)


def test_connections_from_before_the_load_are_dropped() -> None:
    fencing = ConnectionFencing(newest_at_load=6)
    assert not admitted(fencing, 6) and not admitted(fencing, 0)
    assert admitted(fencing, 7)
    assert fencing.admit(ID, 1, 0, -1) is None, "other services are not connections"  # type: ignore[arg-type]


def speak(fencing: ConnectionFencing, name: str, connection: int) -> bool:
    return fencing.admit(name, 1, 0, connection) is None  # type: ignore[arg-type]


def test_memory_is_bounded_and_what_is_forgotten_lets_no_older_connection_through() -> None:
    fencing = ConnectionFencing(limit=100)
    for connection in range(1000):
        assert speak(fencing, f"id-{connection}", connection)
        assert len(fencing) <= 100
    assert not speak(fencing, "id-500", 400), "connection 500 had spoken for it, and that is forgotten"
    assert fencing.superseded("id-500", 400) is not None
    assert speak(fencing, "id-999", 999) and not speak(fencing, "id-999", 998), "the newest are remembered"


def test_ids_in_use_are_not_forgotten_before_those_that_have_gone() -> None:
    fencing = ConnectionFencing(limit=100)
    for connection in range(1000):
        assert speak(fencing, f"gone-{connection}", connection)
        assert speak(fencing, "living", connection)
    assert fencing.superseded("living", 998) is not None
    assert speak(fencing, "living", 999)


# --- in the machine -----------------------------------------------------------------------------------------------


def on(driver: Driver, connection: int) -> Driver:
    driver.connection = connection
    return driver


def old_producer() -> tuple[Driver, Any]:
    """A version-1 producer on connection 1, with one committed transaction."""
    driver = on(Driver(), 1)
    me = driver.run_init()
    driver.run_add(me)
    driver.run_end(me, version=1)
    driver.mark()
    return driver, me


@pytest.mark.parametrize("commit", [True, False])
def test_a_delayed_end_on_an_abandoned_connection_decides_nothing(commit: bool) -> None:
    """KAFKA-17754 with a client of version 1: same epoch, so the connection tells."""
    driver, me = old_producer()
    driver.run_add(me)
    delayed = on(driver, 1).end(me, commit, version=1)
    on(driver, 2).run_end(me, commit, version=1)
    driver.mark()
    driver.run_add(me)
    assert isinstance(driver.shard.end_txn(delayed, driver.now), CloseConnection)
    assert driver.txn().state is State.ONGOING and driver.txn().serial == 3


def test_nothing_is_answered_fatally_on_an_abandoned_connection() -> None:
    driver, me = old_producer()
    driver.run_add(me)
    delayed = on(driver, 1).end(me, commit=False, version=1)
    on(driver, 2).run_end(me, commit=True, version=1)
    driver.mark()
    on(driver, 2).run_end(me, commit=True, version=1)
    assert isinstance(driver.shard.end_txn(delayed, driver.now), CloseConnection), "48 would kill a living client"


def test_a_call_that_was_held_is_superseded_while_it_waits() -> None:
    driver, me = old_producer()
    driver.run_add(me)
    driver.run_end(me, version=1)
    waiting = on(driver, 1).add(me)
    assert isinstance(driver.shard.add_partitions_to_txn(waiting, driver.now), Held)
    retried = on(driver, 2).add(me)
    driver.mark()
    driver.run("add_partitions_to_txn", retried)
    assert isinstance(driver.shard.add_partitions_to_txn(waiting, driver.now), CloseConnection)


def test_a_fenced_producer_does_not_drop_its_successor() -> None:
    driver, old = old_producer()
    new = on(driver, 2).run_init()
    driver.run_add(new)
    with pytest.raises(Refusal):
        on(driver, 3).run_end(old, version=1)
    assert on(driver, 2).run_end(new, version=1) == new


def test_a_delayed_initialisation_does_not_fence_its_own_retry() -> None:
    driver = on(Driver(), 1)
    delayed = driver.init()
    me = on(driver, 2).run_init()
    driver.run_add(me)
    assert isinstance(driver.shard.init_producer_id(delayed, driver.now), CloseConnection)
    assert on(driver, 2).run_end(me, version=1) == me


def test_after_a_load_only_new_connections_count_for_version_1() -> None:
    driver, me = old_producer()
    driver.run_add(me)
    loaded = TransactionShard(driver.limits, driver.ids, newest_connection=4)
    loaded.load(driver.txn())
    driver.shard = loaded
    for connection in (1, 4):
        for call, request in (
            (loaded.end_txn, on(driver, connection).end(me, version=1)),
            (loaded.end_txn, driver.end((me.producer_id, 99), version=1)),
            (loaded.add_partitions_to_txn, driver.add(me, partition(1))),
        ):
            assert isinstance(call(request, driver.now), CloseConnection)
    assert on(driver, 5).run_end(me, version=1) == me


def test_version_2_is_not_told_apart_by_connections() -> None:
    driver = on(Driver(), 3)
    me = driver.run_init()
    on(driver, 5).run_verify(me)
    assert isinstance(driver.shard.end_txn(on(driver, 2).end(me), driver.now), Decision)
