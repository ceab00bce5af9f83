"""Conditional appends (rule 21) on every way that a client's batch takes to the log."""

from __future__ import annotations

from typing import Any

import pytest

from hapax.core.errors import ErrorCode
from hapax.core.partition.values import Condition
from hapax.runtime.disk import RealDisk
from hapax.runtime.settings import load
from hapax.wire.conditions import encode_conditions
from unit.broker.broker_fixtures import Harness, batch
from unit.broker.test_kafka_api import Partitions, call, error

REFUSED = ErrorCode.OPERATION_NOT_ATTEMPTED
NOW = 1_700_000_000_000


async def appended(harness: Harness, scope: int, expected: int, **how: Any) -> int:
    """The answer's error."""
    return (await harness.produced(batch(**how), condition=Condition(scope, expected))).error


def in_transaction(producer_id: int) -> bytearray:
    return batch(producer_id=producer_id, epoch=0, sequence=0, transactional=True)


async def test_a_parked_write_is_judged_when_it_is_released(harness: Harness) -> None:
    number = harness.produce(in_transaction(7), transactional_id="x", condition=Condition(1, 0))
    assert await appended(harness, 1, 0) == 0
    harness.verify()
    result = await harness.calls.result(number)
    assert result.error == REFUSED and "read up to offset 1" in result.reason


async def test_the_scope_of_a_parked_write_is_known(harness: Harness) -> None:
    assert await appended(harness, 2, 0) == 0
    number = harness.produce(in_transaction(7), transactional_id="x", condition=Condition(1, 0))
    harness.verify()
    assert (await harness.calls.result(number)).error == 0
    assert await appended(harness, 2, 1) == 0
    assert await appended(harness, 1, 1) == REFUSED


@pytest.mark.parametrize("compression", [0, 1])
async def test_a_write_that_is_looked_at_keeps_its_condition(folder: RealDisk, compression: int) -> None:
    harness = Harness(folder, load(["log.cleanup.policy=compact"], environment={}))
    harness.clock.now = NOW
    await harness.open()
    assert await appended(harness, 1, 0, compression=compression) == 0
    assert await appended(harness, 1, 0, compression=compression) == REFUSED
    assert await appended(harness, 2, 0, compression=compression) == 0
    number = harness.produce(in_transaction(7), transactional_id="x", condition=Condition(2, 1))
    harness.verify()
    assert (await harness.calls.result(number)).error == REFUSED


async def test_a_retry_is_answered_as_the_first_time(harness: Harness) -> None:
    for _ in range(2):
        again = await harness.produced(
            batch(producer_id=7, epoch=0, sequence=0), condition=Condition(1, 0))
        assert (again.error, again.base_offset) == (0, 0)
    assert await appended(harness, 1, 0) == REFUSED


async def test_a_new_leadership_knows_no_scopes(harness: Harness) -> None:
    assert await appended(harness, 1, 0) == 0
    assert await appended(harness, 2, 0) == 0
    harness.replica.resign()
    harness.replica.lead(2, -1)
    assert await appended(harness, 3, 1) == REFUSED
    assert await appended(harness, 3, 2) == 0


async def test_a_restart_and_a_truncation_forget_the_scopes(harness: Harness) -> None:
    assert await appended(harness, 1, 0) == 0
    assert await appended(harness, 2, 0) == 0
    machine = harness.replica.machine
    machine.truncate_to(0, None, 0)
    for header in harness.log_headers():
        machine.replay(header)
    assert await appended(harness, 3, 1) == REFUSED
    harness.crash()
    await harness.open()
    assert await appended(harness, 3, 1) == REFUSED
    assert await appended(harness, 3, 2) == 0


async def test_a_condition_belongs_to_its_partition_of_the_request(harness: Harness) -> None:
    partitions: Any = Partitions(harness.replica)
    call(partitions, batch(), conditions=encode_conditions({0: Condition(1, 0)}))
    assert error(call(partitions, batch(), conditions=encode_conditions({0: Condition(1, 0)}))) == REFUSED
    call(partitions, batch(), conditions=encode_conditions({}))
    await harness.committer.drain()
    assert len(harness.log_headers()) == 2


@pytest.mark.parametrize(("conditions", "code"), [
    (b"\1", ErrorCode.UNSUPPORTED_VERSION), (encode_conditions({1: Condition(1, 0)}), ErrorCode.INVALID_REQUEST)])
async def test_a_condition_that_is_not_understood_refuses_the_write(
    harness: Harness, conditions: bytes, code: ErrorCode
) -> None:
    partitions: Any = Partitions(harness.replica)
    assert error(call(partitions, batch(), conditions=conditions)) == code
    assert harness.log_headers() == []
