"""A transactional id of a backup, in the restored cluster."""

from __future__ import annotations

from dataclasses import replace

from hapax.core.errors import ErrorCode
from hapax.core.transaction.admin import restored
from hapax.core.transaction.record import CommittedToken, Transaction
from hapax.core.transaction.requests import NeedProducerId, RestoreTransactionalId
from hapax.core.transaction.states import State
from hapax.core.types import ProducerEpoch, ProducerId, Serial, TimestampMs
from unit.core.transaction.driver import ID, Driver, Ids
from unit.core.transaction.test_single_writer import refused

TOKEN = CommittedToken("query", 5, 7, Serial(4), TimestampMs(1))
STORED = Transaction(
    transactional_id=ID, state=State.ONGOING, producer_id=ProducerId(3), producer_epoch=ProducerEpoch(9),
    serial=Serial(5), tokens=(TOKEN,))


def restore(driver: Driver, former: Transaction = STORED, floor: int = 1000) -> object:
    return driver.run(
        "restore_transactional_id", RestoreTransactionalId(ID, restored(former), floor, driver.caller()))


def test_it_has_its_tokens_and_another_producer_id() -> None:
    driver = Driver()
    assert restore(driver) == (1000, 0)
    txn = driver.txn()
    assert (txn.state, txn.serial, txn.tokens, txn.holder) == (State.EMPTY, 5, (TOKEN,), None)
    driver.take_over()
    assert driver.txn() == txn
    assert driver.run_init() == (1000, 1)


def test_ids_below_the_floor_are_passed_over() -> None:
    assert restore(Driver(), floor=1005) == (1005, 0)
    driver = Driver(ids=Ids(left=3))
    request = RestoreTransactionalId(ID, restored(STORED), 1005, driver.caller())
    assert isinstance(driver.shard.restore_transactional_id(request, driver.now), NeedProducerId)


def test_a_repeated_restore_changes_nothing() -> None:
    driver = Driver()
    first = restore(driver)
    before = driver.txn()
    assert restore(driver) == first and driver.txn() is before


def test_an_id_in_use_is_refused() -> None:
    driver = Driver()
    driver.run_init()
    assert refused(restore, driver).code is ErrorCode.INVALID_REQUEST
    other = Driver()
    restore(other)
    assert refused(restore, other, replace(STORED, tokens=())).code is ErrorCode.INVALID_REQUEST
    other.run_init()
    assert refused(restore, other).code is ErrorCode.INVALID_REQUEST
