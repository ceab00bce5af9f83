"""A member's first batch with the coordinator's pass: it is appended without a question, and only where the answer to
the question would be the same (rules 3, 6 and 24)."""

from __future__ import annotations

from typing import Any

import pytest

from hapax.core.control import Marker
from hapax.core.errors import ErrorCode
from hapax.core.partition.verification import LONGEST_ADMISSION_MS, Admission
from hapax.core.types import RegistrationEpoch
from hapax.kafka.api.produce import ProduceCall
from hapax.wire.write_pass import sign
from unit.broker.broker_fixtures import TOPIC_ID, Harness, batch
from unit.broker.test_kafka_api import SESSION, Partitions, call, error

SHARD, SHARD_EPOCH = 3, 5


@pytest.fixture
def partitions(harness: Harness) -> Any:
    return Partitions(harness.replica)


def write(
    partitions: Any, *, sequence: int = 0, epoch: int = 0, session: bytes = SESSION, version: int = 13,
    transactional_id: str = "x", **of_pass: Any,
) -> ProduceCall:
    """The batch of producer 7 with a pass for transaction 4, which differs from the one that fits in `of_pass`."""
    now = partitions.by_name["t", 0].context.clock.now_ms()
    fits = Admission("x", TOPIC_ID, 0, 7, 0, 4, SHARD, SHARD_EPOCH, now)
    made = call(
        partitions, batch(producer_id=7, epoch=epoch, sequence=sequence, transactional=True),
        transactional_id=transactional_id, version=version,
        write_pass=sign(fits._replace(**of_pass), RegistrationEpoch(5), session))
    made.answer_or_defer()
    return made


def marker(serial: int = 4, shard_epoch: int = SHARD_EPOCH) -> Marker:
    return Marker(7, 0, False, shard_epoch, serial=serial, shard=SHARD)


async def test_the_coordinator_is_not_asked(harness: Harness, partitions: Any) -> None:
    made = write(partitions)
    await harness.committer.drain()
    assert error(made) == 0 and harness.questions == []
    (opened,) = harness.replica.machine.open_transactions()
    assert opened.serial == 4, "the partition knows the transaction by its name"
    assert harness.replica.parked.transactional_ids == {7: "x"}
    later = write(partitions, sequence=1)
    await harness.committer.drain()
    assert error(later) == 0 and harness.questions == []


@pytest.mark.parametrize("of_pass", [
    {"session": b"guessed by chance"[:16]}, {"transactional_id": "y"}, {"topic_id": bytes(16)}, {"partition": 1},
    {"producer_id": 8}, {"producer_epoch": 1}, {"version": 11},
    {"issued_ms": 0},
])  # fmt: skip
async def test_a_pass_that_does_not_fit_is_ignored(harness: Harness, partitions: Any, of_pass: dict[str, Any]) -> None:
    made = write(partitions, **of_pass)
    assert made.results == [None] and len(harness.questions) == 1


async def test_an_old_pass_is_ignored(harness: Harness, partitions: Any) -> None:
    """The partition may have forgotten the marker of its transaction."""
    now = harness.replica.context.clock.now_ms()
    for age in (LONGEST_ADMISSION_MS + 1, -LONGEST_ADMISSION_MS - 1):
        write(partitions, issued_ms=now - age)
    assert len(harness.questions) == 1 and harness.replica.log.end_offset == 0


async def test_a_pass_is_old_before_the_partition_forgets_the_marker(harness: Harness, partitions: Any) -> None:
    """producer.id.expiration.ms may be short. Were the batch appended, it would open a transaction that no marker
    ends."""
    clock, machine = harness.clock, harness.replica.machine
    issued, machine.expiry_ms = clock.now, 60_000
    harness.replica.write_markers([marker()])
    while machine.producers.get(7) is not None:
        clock.now += 10_000
        expiry = machine.decide_expiry(clock.now)
        if expiry is not None:
            harness.replica.append_control(expiry)
    assert clock.now - issued < LONGEST_ADMISSION_MS
    assert write(partitions, issued_ms=issued).results == [None]
    assert len(harness.questions) == 1 and machine.open_transactions() == []


async def test_a_marker_ends_it(harness: Harness, partitions: Any) -> None:
    """The transaction timed out before its member's first batch. Were that appended, it would open a transaction that
    no marker ends."""
    harness.replica.write_markers([marker()])
    made = write(partitions)
    assert made.results == [None] and len(harness.questions) == 1
    harness.verify(ErrorCode.PRODUCER_FENCED)
    assert error(made) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert harness.replica.machine.open_transactions() == []


async def test_a_pass_of_a_replaced_coordinator_is_ignored(harness: Harness, partitions: Any) -> None:
    harness.replica.write_markers([Marker(9, 0, False, SHARD_EPOCH + 1, serial=1, shard=SHARD)])
    write(partitions)
    assert len(harness.questions) == 1


async def test_it_does_not_unseal_a_producer(harness: Harness, partitions: Any) -> None:
    """A commit counts the producer's records: until it is decided, only the coordinator can say whether more may
    come."""
    write(partitions)
    harness.replica.parked.seal(7)
    late = write(partitions, sequence=1)
    assert late.results == [None] and len(harness.questions) == 1


async def test_nor_does_it_pass_writes_that_wait(harness: Harness, partitions: Any) -> None:
    first = write(partitions, producer_id=8)
    second = write(partitions, sequence=1)
    assert [first.results, second.results, len(harness.questions)] == [[None], [None], 1]
    harness.verify(serial=4)
    await harness.committer.drain()
    assert [error(first), error(second)] == [0, 0]


async def test_a_new_leadership_asks_about_what_it_finds_open(harness: Harness, partitions: Any) -> None:
    write(partitions)
    await harness.committer.drain()
    harness.replica.parked.lead()
    assert write(partitions, sequence=1).results == [None]
    assert len(harness.questions) == 1
