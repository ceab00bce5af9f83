"""What a broker does with writes that wait for their transaction's verification, over one partition (rules 3, 4, 24).
The story is tests/scenarios/partition/rule_24_names.txt."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hapax.codec.control import encode_control
from hapax.codec.metadata import TXN_STATE_TOPIC
from hapax.core.control import Marker, ShardFence
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.partition.verification import ShardEpochs
from hapax.kafka.api.produce import ProduceCall
from hapax.runtime.disk import RealDisk
from unit.broker.broker_fixtures import Harness, batch
from unit.broker.test_kafka_api import NOW, Partitions, call, error


@pytest.fixture
def partitions(harness: Harness) -> Any:
    return Partitions(harness.replica)


def write(
    partitions: Any, sequence: int, *, serial: int = 3, version: int = 9, epoch: int = 0, value: bytes = b"v",
) -> ProduceCall:
    """A transactional batch of producer 7 on the connection of that serial."""
    made = call(
        partitions, batch(producer_id=7, epoch=epoch, sequence=sequence, transactional=True, value=value),
        transactional_id="x", serial=serial, version=version)
    made.answer_or_defer()
    return made


async def test_a_parked_write_of_an_ended_transaction_does_not_enter_the_next(
    harness: Harness, partitions: Any
) -> None:
    """A version-1 client gave it up with its connection, aborted, and uses its sequence again in the next transaction:
    were it appended there, the acknowledged record would be taken for its duplicate, and lost."""
    given_up = write(partitions, 0, serial=1, value=b"given up")
    harness.replica.write_markers([Marker(7, 0, False, 5, serial=1, shard=3)])
    assert error(given_up) == ErrorCode.INVALID_TXN_STATE
    acknowledged = write(partitions, 0, serial=2, value=b"acknowledged")
    while harness.questions:
        harness.verify(serial=2, shard_epoch=5)
    await harness.committer.drain()
    assert error(acknowledged) == 0
    assert b"given up" not in harness.log_bytes()
    assert b"acknowledged" in harness.log_bytes()


async def test_a_parked_write_on_a_superseded_connection_is_dropped_with_it(harness: Harness, partitions: Any) -> None:
    heard: list[None] = []
    harness.replica.context = replace(harness.context, superseded=lambda: heard.append(None))
    old, new = write(partitions, 0, serial=4, value=b"old"), write(partitions, 0, serial=6, value=b"new")
    harness.verify(serial=1)
    await harness.committer.drain()
    context: Any = old.ctx
    assert (old.results, context.answers, len(context.failures)) == ([None], [], 1)
    assert "connection 4 gave way to connection 6" in str(context.failures[0])
    assert error(new) == 0
    assert b"old" not in harness.log_bytes()
    assert len(heard) == 1


async def test_a_version_2_write_is_named_by_its_epoch(harness: Harness, partitions: Any) -> None:
    """The next transaction's first batch may be here before the last one's marker, on whichever connection."""
    made = write(partitions, 0, serial=4, version=12, epoch=1)
    write(partitions, 1, serial=6, version=12, epoch=1)
    harness.replica.write_markers([Marker(7, 1, True, 5, serial=1, shard=3, transaction_version=2)])
    harness.verify(serial=2)
    harness.verify(serial=2)
    await harness.committer.drain()
    assert error(made) == 0
    assert harness.replica.log.end_offset == 3


async def test_an_answer_about_a_decided_transaction_is_asked_again(harness: Harness, partitions: Any) -> None:
    harness.replica.write_markers([Marker(7, 0, True, 5, serial=4, shard=3)])
    made = write(partitions, 0)
    assert harness.questions[0].after_serial == 4
    harness.verify(serial=4)
    assert made.results == [None]
    harness.verify(serial=5)
    await harness.committer.drain()
    assert error(made) == 0
    (opened,) = harness.replica.machine.open_transactions()
    assert opened.serial == 5, "the partition knows the transaction by its name"


async def test_who_is_refused_is_not_remembered(harness: Harness, partitions: Any) -> None:
    write(partitions, 0)
    harness.verify(ErrorCode.TRANSACTION_ABORTABLE)
    assert harness.replica.parked.transactional_ids == {}
    write(partitions, 0)
    harness.verify(serial=1)
    assert harness.replica.parked.transactional_ids == {7: "x"}
    harness.replica.write_markers([Marker(7, 0, True, 5, serial=1, shard=3)])
    assert harness.replica.parked.transactional_ids == {}


async def test_nor_is_an_ended_transaction_while_the_next_one_waits(harness: Harness, partitions: Any) -> None:
    write(partitions, 0, version=12)
    harness.verify(serial=1)
    waiting = write(partitions, 0, version=12, epoch=1)
    harness.replica.write_markers([Marker(7, 0, True, 5, serial=1, shard=3)])
    while harness.questions:
        harness.verify(ErrorCode.TRANSACTION_ABORTABLE)
    assert error(waiting) == ErrorCode.TRANSACTION_ABORTABLE
    assert harness.replica.parked.transactional_ids == {}


async def test_a_former_leader_remembers_none(harness: Harness, partitions: Any) -> None:
    """Another leader's markers do not come by here."""
    write(partitions, 0)
    harness.verify(serial=1)
    harness.replica.resign()
    assert harness.replica.parked.transactional_ids == {}


# --- which coordinators were replaced -----------------------------------------------------------------------------


async def test_a_new_leader_knows_from_its_log_which_coordinators_were_replaced(
    harness: Harness, partitions: Any
) -> None:
    harness.replica.write_markers([Marker(8, 0, True, 9, serial=1, shard=0)])
    await harness.committer.drain()
    await lead_elsewhere(harness)
    made = write(Partitions(harness.replica), 0)
    harness.verify(shard_epoch=8, serial=1)
    assert made.results == [None], "its coordinator was deposed before the marker of epoch 9"
    harness.verify(shard_epoch=9, serial=1)
    await harness.committer.drain()
    assert error(made) == 0


async def test_it_knows_it_from_a_snapshot_too(harness: Harness) -> None:
    harness.replica.write_markers([Marker(8, 0, True, 9, serial=1, shard=0)])
    await harness.committer.drain()
    await harness.replica.close()
    await lead_elsewhere(harness, clean=True)
    assert harness.recovery.scanned_batches == 0
    assert harness.context.shard_epochs.highest(0) == 9


async def test_a_shards_fence_counts_like_its_marker(folder: RealDisk) -> None:
    harness = Harness(folder)
    await harness.open(internal=True, topic=TXN_STATE_TOPIC)
    number = harness.produce_internal(encode_control(ShardFence(6, 100), NOW), shard_epoch=6)
    await harness.calls.result(number)
    assert harness.context.shard_epochs.highest(0) == 6
    await lead_elsewhere(harness, internal=True, topic=TXN_STATE_TOPIC)
    assert harness.context.shard_epochs.highest(0) == 6


async def lead_elsewhere(
    harness: Harness, *, clean: bool = False, internal: bool = False, topic: str = "t"
) -> None:
    """The folder's log is led by a process that has heard of nothing."""
    if not clean:
        harness.crash()
    harness.context = replace(harness.context, shard_epochs=ShardEpochs())
    await harness.open(clean=clean, internal=internal, topic=topic)


# --- a commit's winners -------------------------------------------------------------------------------------------


async def test_a_sealed_transaction_takes_nothing_without_its_coordinators_word(
    harness: Harness, partitions: Any
) -> None:
    """A commit names what its winners have written (rule 6). The answer that the partition has by now is older."""
    write(partitions, 0, version=12)
    harness.verify(serial=1)
    harness.replica.parked.seal(7)
    waits = write(partitions, 1, version=12)
    harness.replica.parked.seal(7)
    harness.verify(serial=1)
    assert waits.results == [None], "asked again: the answer may be older than the seal"
    harness.verify(serial=1)
    goes_on = write(partitions, 2, version=12)
    await harness.committer.drain()
    assert (error(waits), error(goes_on), harness.questions) == (0, 0, []), "the commit has failed, so it goes on"


async def test_a_new_leader_asks_about_what_is_open_once(harness: Harness, partitions: Any) -> None:
    """It knows neither what its predecessor has sealed nor what it was told."""
    first = write(partitions, 0)
    harness.verify(serial=1)
    await harness.committer.drain()
    await lead_elsewhere(harness)
    elsewhere = Partitions(harness.replica)
    again = write(elsewhere, 0)
    await harness.committer.drain()
    assert (error(first), error(again), harness.questions) == (0, 0, []), "a duplicate is answered as it was"
    made = write(elsewhere, 1)
    assert made.results == [None]
    harness.verify(serial=1)
    goes_on = write(elsewhere, 2)
    await harness.committer.drain()
    assert (error(made), error(goes_on), harness.questions) == (0, 0, [])
    harness.replica.resign()
    harness.replica.lead(9, -1)
    write(elsewhere, 3)
    assert len(harness.questions) == 1, "also where it has led before"


# --- self-healing -------------------------------------------------------------------------------------------------


async def test_what_hangs_and_goes_on_is_not_aborted(harness: Harness, partitions: Any) -> None:
    """Between the coordinator's decision to abort it and the marker, the producer's next transaction has written into
    it: its version-1 batch has nothing that tells the two apart."""
    write(partitions, 0)
    harness.verify()
    seen = harness.replica.machine.describe_producer(7)
    assert seen is not None
    write(partitions, 1, value=b"of the next transaction")
    marker = Marker(7, 0, False, 5, first_offset=0, last_offset=seen.last_offset)
    ((_, refusal),) = harness.replica.write_markers([marker])
    assert isinstance(refusal, Refusal)
    assert refusal.code is ErrorCode.CONCURRENT_TRANSACTIONS
    seen = harness.replica.machine.describe_producer(7)
    assert seen is not None
    ((end, refused),) = harness.replica.write_markers([replace(marker, last_offset=seen.last_offset)])
    assert (end, refused) == (3, None)
    ((_, refused),) = harness.replica.write_markers([replace(marker, last_offset=seen.last_offset)])
    assert refused is None, "asked again, it is stored already"


# --- whose transaction it is ------------------------------------------------------------------------------------------


async def _open(harness: Harness, partitions: Any) -> None:
    """Producer 7 has a transaction open here, under the transactional id `x`."""
    write(partitions, 0, version=12, value=b"the owner's")
    harness.verify(serial=1)
    await harness.committer.drain()


@pytest.mark.parametrize(("name", "code"), [
    (None, ErrorCode.INVALID_TXN_STATE), ("mine", ErrorCode.INVALID_PRODUCER_ID_MAPPING),
])
async def test_a_write_enters_an_open_transaction_under_its_own_name_alone(
    harness: Harness, partitions: Any, name: str | None, code: ErrorCode
) -> None:
    """Rights are on transactional ids, and producer ids are no secret. Whoever may write the topic could otherwise put
    records into another's transaction, which its holder commits."""
    await _open(harness, partitions)
    made = call(
        partitions, batch(producer_id=7, epoch=0, sequence=1, transactional=True, value=b"a stranger's"),
        transactional_id=name, version=12)
    assert error(made) == code
    assert b"a stranger's" not in harness.log_bytes()
    owner = write(partitions, 1, version=12)
    await harness.committer.drain()
    assert error(owner) == 0


async def test_a_parked_write_is_verified_under_its_own_name(harness: Harness, partitions: Any) -> None:
    """The answer to the owner's question says nothing of a stranger's write of the same producer id and epoch, in
    whichever order they came."""
    owner = write(partitions, 0, version=12, value=b"the owner's")
    stranger = call(
        partitions, batch(producer_id=7, epoch=0, sequence=1, transactional=True, value=b"a stranger's"),
        transactional_id="mine", version=12)
    harness.verify(serial=1)
    assert [question.transactional_id for question in harness.questions] == ["mine"]
    harness.verify(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    await harness.committer.drain()
    assert (error(owner), error(stranger)) == (0, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    assert b"a stranger's" not in harness.log_bytes()


async def test_a_stranger_s_refusal_is_not_the_owner_s(harness: Harness, partitions: Any) -> None:
    stranger = call(
        partitions, batch(producer_id=7, epoch=0, sequence=0, transactional=True, value=b"a stranger's"),
        transactional_id="mine", version=12)
    owner = write(partitions, 0, version=12, value=b"the owner's")
    harness.verify(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    harness.verify(serial=1)
    await harness.committer.drain()
    assert (error(stranger), error(owner)) == (ErrorCode.INVALID_PRODUCER_ID_MAPPING, 0)


async def test_a_write_outside_of_transactions_does_not_name_one(harness: Harness, partitions: Any) -> None:
    """It has waited behind the owner's first batch, and its sequence is the same: it is answered as that one's
    duplicate. Whoever sent it has no right on the owner's transactional id, whatever its request says."""
    owner = write(partitions, 0, version=12, value=b"the owner's")
    plain = call(
        partitions, batch(producer_id=7, epoch=0, sequence=0, value=b"plain"), transactional_id="mine", version=12)
    harness.verify(serial=1)
    stranger = call(
        partitions, batch(producer_id=7, epoch=0, sequence=1, transactional=True, value=b"a stranger's"),
        transactional_id="mine", version=12)
    again = write(partitions, 1, version=12, value=b"the owner's, too")
    await harness.committer.drain()
    assert harness.replica.parked.transactional_ids == {7: "x"}
    assert (error(owner), error(stranger), error(again)) == (0, ErrorCode.INVALID_PRODUCER_ID_MAPPING, 0)
    assert b"a stranger's" not in harness.log_bytes()
    assert plain.results[0] is not None
