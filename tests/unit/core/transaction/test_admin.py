"""Making sure that an id is there, and fencing whoever holds it: conditional, and asked again without harm."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hapax.core.errors import ErrorCode
from hapax.core.transaction.admin import NO_INSTANCE, instance_of
from hapax.core.transaction.requests import EnsureTransactionalId, FenceProducer, NeedProducerId
from hapax.core.transaction.states import State
from hapax.core.types import ProducerEpoch
from unit.core.transaction.driver import ID, Driver, Ids, partition
from unit.core.transaction.test_single_writer import refused


def ensure(driver: Driver) -> Any:
    return driver.run("ensure_transactional_id", EnsureTransactionalId(ID, driver.caller()))


def fence(driver: Driver, instance: str) -> Any:
    return driver.run("fence_producer", FenceProducer(ID, instance, driver.caller(client_id="operator"))).identity


def test_a_fencing_that_names_a_transaction_reaches_no_other() -> None:
    """An administrator's abort that is asked for again, since nobody knows what became of it (rule 24)."""
    driver = Driver()
    me = driver.run_init()
    driver.run_verify(me, partition(0))
    named = driver.txn().serial
    instance = instance_of(driver.txn())

    def abort(serial: int) -> Any:
        return driver.run("fence_producer", FenceProducer(ID, instance, driver.caller(), serial))  # type: ignore[arg-type]

    driver.run_end(me)
    driver.mark()
    assert refused(abort, named).code is ErrorCode.INVALID_TXN_STATE
    me = driver.txn().identity
    driver.run_verify(me, partition(0))
    assert refused(abort, named).code is ErrorCode.INVALID_TXN_STATE
    assert driver.txn().is_open and driver.txn().identity == me, "the successor goes on, and nobody is fenced"
    abort(named + 1)
    assert driver.txn().state is State.COMPLETE_ABORT
    assert abort(named + 1).identity == driver.txn().identity, "asked again, it is done"


def test_an_unknown_id_is_made_once_and_held_by_nobody() -> None:
    driver = Driver()
    assert ensure(driver) == (1000, 0) == ensure(driver)
    made = driver.txn()
    assert (made.state, made.holder, instance_of(made)) == (State.EMPTY, None, NO_INSTANCE)
    driver.take_over()
    assert ensure(driver) == (1000, 0)
    assert driver.run_init() == (1000, 1)


def test_an_id_in_use_is_left_as_it_is() -> None:
    driver = Driver()
    me = driver.run_init()
    driver.run_verify(me, partition(0))
    before = driver.txn()
    assert ensure(driver) == me
    assert driver.txn() is before
    assert driver.run_end(me)


def test_an_empty_reserve_asks_for_ids() -> None:
    driver = Driver(ids=Ids(left=0))
    request = EnsureTransactionalId(ID, driver.caller())
    assert isinstance(driver.shard.ensure_transactional_id(request, driver.now), NeedProducerId)


def test_an_instance_lasts_from_one_initialisation_to_the_next() -> None:
    driver = Driver()
    me = driver.run_init()
    first = instance_of(driver.txn())
    for _ in range(3):
        driver.run_verify(me, partition(0))
        me = driver.run_end(me)
        assert instance_of(driver.txn()) == first
    driver.take_over()
    assert instance_of(driver.txn()) == first
    driver.run_init()
    second = instance_of(driver.txn())
    driver.monotonic += 1
    driver.run_init()
    assert len({first, second, instance_of(driver.txn())}) == 3


@pytest.mark.parametrize("opened", [True, False])
def test_whoever_holds_the_id_is_fenced_and_told_by_whom(opened: bool) -> None:
    driver = Driver()
    me = driver.run_init()
    driver.run_verify(me, partition(0))
    me = driver.run_end(me)
    if opened:
        driver.run_verify(me, partition(0))
    instance = instance_of(driver.txn())
    after = fence(driver, instance)
    assert after.producer_epoch > me.producer_epoch
    refusal = refused(driver.run_verify, me, partition(0))
    assert refusal.code is ErrorCode.PRODUCER_FENCED and "by operator from 10.0.0.1:5000" in refusal.reason
    assert driver.txn().state is (State.COMPLETE_ABORT if opened else State.COMPLETE_COMMIT)
    assert driver.txn().holder is None
    assert fence(driver, instance) == after  # again: nothing is left to fence
    assert driver.run_init().producer_epoch > after.producer_epoch


def test_another_instance_is_left_alone() -> None:
    driver = Driver()
    driver.run_init()
    seen = instance_of(driver.txn())
    successor = driver.run_init()
    driver.run_verify(successor, partition(0))
    assert fence(driver, seen) == successor
    assert driver.txn().is_open and driver.run_end(successor)


def test_members_are_fenced_with_their_transaction() -> None:
    driver = Driver()
    member = driver.run_join().identity
    driver.run_verify(member, partition(0))
    fence(driver, instance_of(driver.txn()))
    assert driver.txn().state is State.COMPLETE_ABORT
    assert refused(driver.run_verify, member, partition(0)).code is ErrorCode.PRODUCER_FENCED
    fence(driver, instance_of(driver.txn()))  # idle members: there is nothing to raise


def test_the_last_epoch_can_be_fenced_and_an_unknown_id_cannot() -> None:
    driver = Driver()
    assert refused(fence, driver, NO_INSTANCE).code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    driver.run_init()
    driver.shard.load(replace(driver.txn(), producer_epoch=ProducerEpoch(32766)))
    assert fence(driver, instance_of(driver.txn())).producer_epoch == 32767
    assert fence(driver, instance_of(driver.txn())).producer_epoch == 32767
    assert driver.run_init() == (1001, 0)


def test_the_outcome_of_the_last_transaction_stays() -> None:
    driver = Driver()
    me = driver.run_init()
    assert driver.txn().outcome is None
    driver.run_verify(me, partition(0))
    me = driver.run_end(me)
    decided = driver.txn().outcome
    assert decided is not None and decided.committed
    driver.monotonic += 1000
    driver.run_verify(me, partition(0))
    driver.take_over()
    assert driver.txn().outcome == decided
    driver.run_end(me, commit=False)
    aborted = driver.txn().outcome
    assert aborted is not None and not aborted.committed and aborted.at_ms == decided.at_ms + 1000
