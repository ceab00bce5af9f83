"""Work by the clock: retention, expiry, compaction, and transactions that hang."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from hapax.broker.hanging_transactions import ABORT_HANGING, HangingWatch
from hapax.broker.periodic_tasks import PeriodicTasks
from hapax.codec.control import encode_control
from hapax.core.control import Marker, ShardFence
from hapax.core.errors import ErrorCode
from hapax.rpc.gen.hapax.internal.v1 import coordinator_pb2
from hapax.runtime.disk import RealDisk
from hapax.runtime.rollback_guard import RollbackGuard
from hapax.runtime.settings import Settings
from unit.broker.broker_fixtures import Harness, batch

HOUR = 3_600_000


class Network:
    """Keeps what coordinators are asked."""

    def __init__(self) -> None:
        self.asked: list[coordinator_pb2.AbortHangingRequest] = []
        self.answer = coordinator_pb2.AbortHangingResponse()

    def rpc_channel(self, address: str) -> Any:
        async def call(method: str, request: bytes, timeout: float) -> bytes:
            assert (address, method) == ("coordinator:1", ABORT_HANGING)
            self.asked.append(coordinator_pb2.AbortHangingRequest.FromString(request))
            return self.answer.SerializeToString()

        return SimpleNamespace(call=call)


def partitions(harness: Harness) -> Any:
    view = SimpleNamespace(rollback_guard=RollbackGuard("c"))
    return SimpleNamespace(replicas={harness.replica.id: harness.replica}, context=harness.context, view=view)


def periodic_tasks(harness: Harness) -> PeriodicTasks:
    nothing: Any = None
    return PeriodicTasks(partitions(harness), harness.settings, harness.clock, random.Random(1), nothing)


def watch(harness: Harness, network: Network) -> HangingWatch:
    owner = SimpleNamespace(rpc_address="coordinator:1")
    view: Any = SimpleNamespace(cluster=SimpleNamespace(txn_shards=50), txn_shard_owner=lambda shard: owner)
    return HangingWatch(partitions(harness), view, network, harness.clock, harness.settings)  # type: ignore[arg-type]


async def begin_transaction(harness: Harness, producer_id: int = 7) -> None:
    number = harness.produce(
        batch(producer_id=producer_id, epoch=0, sequence=0, transactional=True), transactional_id="x"
    )
    harness.verify()
    await harness.calls.result(number)


async def test_a_transaction_is_hanging_once_it_is_open_past_every_limit(harness: Harness) -> None:
    network = Network()
    looking = watch(harness, network)
    late = harness.settings.transaction_max_timeout_ms + harness.settings.transaction_late_after_ms
    await begin_transaction(harness)
    await looking.check()
    harness.clock.now += late - 1
    await looking.check()
    assert network.asked == []
    harness.clock.now += 1
    await looking.check()
    (asked,) = network.asked
    assert (asked.transactional_id, asked.producer_id, asked.first_offset) == ("x", 7, 0)
    await looking.check()
    assert len(network.asked) == 1, "asked again only after a while"
    harness.clock.now += 30_000
    await looking.check()
    assert len(network.asked) == 2
    harness.replica.write_markers([Marker(7, 0, False, 0)])
    harness.clock.now += 30_000
    await looking.check()
    assert len(network.asked) == 2


async def test_a_coordinator_that_is_not_there_is_asked_again_soon(harness: Harness) -> None:
    """Another takes over within seconds: what hangs need not hang for half a minute more."""
    network = Network()
    network.answer = coordinator_pb2.AbortHangingResponse(error=ErrorCode.COORDINATOR_NOT_AVAILABLE)
    looking = watch(harness, network)
    late = harness.settings.transaction_max_timeout_ms + harness.settings.transaction_late_after_ms
    await begin_transaction(harness)
    await looking.check()
    harness.clock.now += late
    await looking.check()
    await looking.check()
    assert len(network.asked) == 1
    network.answer = coordinator_pb2.AbortHangingResponse()
    harness.clock.now += 3_000
    await looking.check()
    assert len(network.asked) == 2 and len(looking.late) == 1
    harness.clock.now += 3_000
    await looking.check()
    assert len(network.asked) == 2, "it has answered"


async def test_a_transaction_under_two_phase_commit_is_not_late(harness: Harness) -> None:
    network = Network()
    network.answer = coordinator_pb2.AbortHangingResponse(error=ErrorCode.CONCURRENT_TRANSACTIONS, no_limit=True)
    looking = watch(harness, network)
    late = harness.settings.transaction_max_timeout_ms + harness.settings.transaction_late_after_ms
    await begin_transaction(harness)
    await looking.check()
    harness.clock.now += late
    await looking.check()
    assert len(network.asked) == 1 and not looking.late
    harness.clock.now += 30_000
    await looking.check()
    assert len(network.asked) == 2 and not looking.late
    network.answer = coordinator_pb2.AbortHangingResponse(error=ErrorCode.CONCURRENT_TRANSACTIONS)
    harness.clock.now += 30_000
    await looking.check()
    harness.clock.now += 30_000
    await looking.check()
    assert len(looking.late) == 1, "it hangs after all: its coordinator no longer has it"


async def test_the_next_transaction_of_a_producer_has_its_own_time(harness: Harness) -> None:
    network = Network()
    looking = watch(harness, network)
    late = harness.settings.transaction_max_timeout_ms + harness.settings.transaction_late_after_ms
    await begin_transaction(harness)
    await looking.check()
    harness.clock.now += late - 1
    harness.replica.write_markers([Marker(7, 0, True, 0)])
    number = harness.produce(batch(producer_id=7, epoch=0, sequence=1, transactional=True), transactional_id="x")
    harness.verify()
    await harness.calls.result(number)
    harness.clock.now += 1
    await looking.check()
    assert network.asked == []


async def test_idle_producers_expire_by_a_record_that_recovery_replays(harness: Harness) -> None:
    await harness.produced(batch(producer_id=7, epoch=0, sequence=0))
    keep = periodic_tasks(harness)
    await keep.expire()
    harness.clock.now += 25 * HOUR
    await harness.produced(batch(producer_id=8, epoch=0, sequence=0))
    await keep.expire()
    await harness.committer.drain()
    assert [p.producer_id for p in harness.replica.machine.describe_producers()] == [8]
    assert keep._partitions.view.rollback_guard.producer_id == 8, "ids in use are remembered (rule 12)"
    harness.crash()
    await harness.open()
    assert [p.producer_id for p in harness.replica.machine.describe_producers()] == [8]


async def test_a_copy_removes_what_its_leader_has_forgotten(harness: Harness) -> None:
    await harness.produced(batch(producer_id=7, epoch=0, sequence=0))
    keep = periodic_tasks(harness)
    await keep.expire()
    harness.clock.now += 25 * HOUR
    await harness.produced(batch(producer_id=8, epoch=0, sequence=0))
    await keep.expire()
    await harness.committer.drain()
    assert harness.replica.machine.producers.count == 2, "the next round would remove it"
    harness.replica.resign()
    await keep.expire()
    assert harness.replica.machine.producers.count == 1


async def test_producers_of_offsets_are_forgotten_once_their_transactional_ids_are_and_shards_never(
    folder: RealDisk,
) -> None:
    harness = Harness(folder)
    await harness.open(internal=True)
    harness.produce_internal(encode_control(ShardFence(5, 100), 0), 5)
    for producer_id in (7, 8):
        offsets = batch(producer_id=producer_id, epoch=0, sequence=-1, transactional=True)
        harness.produce_internal(offsets, 5)
    harness.produce_internal(encode_control(Marker(7, 0, True, 0, serial=1), 0), 5)
    keep = periodic_tasks(harness)
    await keep.expire()
    harness.clock.now += 7 * 24 * HOUR - 1
    await keep.expire()
    assert [p.producer_id for p in harness.replica.machine.describe_producers()] == [7, 8]
    harness.clock.now += 1
    for _ in range(2):
        await keep.expire()
    await harness.committer.drain()
    assert [p.producer_id for p in harness.replica.machine.describe_producers()] == [8], "its transaction is open"
    assert harness.replica.machine.producers.count == 1
    harness.crash()
    await harness.open(internal=True)
    assert [p.producer_id for p in harness.replica.machine.describe_producers()] == [8]
    assert harness.replica.machine.shard_epoch == 5
    late = harness.produce_internal(batch(producer_id=9, epoch=0, sequence=-1, transactional=True), 4)
    assert (await harness.calls.result(late)).error == ErrorCode.TRANSACTION_COORDINATOR_FENCED


async def test_retention_moves_the_start_of_the_log(folder: RealDisk) -> None:
    harness = Harness(folder, Settings(log_segment_bytes=500, log_retention_ms=HOUR))
    await harness.open()
    for _ in range(20):
        await harness.produced(batch(timestamp=harness.clock.now))
    harness.clock.now += 2 * HOUR
    await harness.produced(batch(timestamp=harness.clock.now))
    while harness.replica.maintenance.checkpoint is not None:  # what no snapshot covers stays
        await harness.replica.maintenance.checkpoint
    await periodic_tasks(harness).retire()
    machine = harness.replica.machine
    start = machine.log_start_offset
    assert 10 < start < 20, "the segment that holds the newest record stays"
    assert harness.replica.read(start, 1000, committed=True, at_least_one=True).next_offset == 21
    harness.crash()
    await harness.open()
    assert harness.replica.machine.log_start_offset == start


async def test_retention_spares_what_an_open_transaction_needs(folder: RealDisk) -> None:
    harness = Harness(folder, Settings(log_segment_bytes=500, log_retention_ms=HOUR))
    await harness.open()
    await harness.produced(batch(timestamp=harness.clock.now))
    await begin_transaction(harness)
    for _ in range(20):
        await harness.produced(batch(timestamp=harness.clock.now))
    harness.clock.now += 2 * HOUR
    await periodic_tasks(harness).retire()
    assert harness.replica.machine.log_start_offset == 0


async def test_a_full_disk_stops_no_upkeep(folder: RealDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Harness(folder, Settings(log_cleanup_policy="compact", log_segment_bytes=500))
    await harness.open()
    for n in range(40):
        await harness.produced(batch(producer_id=7, epoch=0, sequence=n))
        if harness.replica.maintenance.checkpoint is not None:
            await harness.replica.maintenance.checkpoint
    harness.disk.full = True
    keep = periodic_tasks(harness)
    await keep.compact()
    harness.clock.now += 25 * HOUR
    await keep.expire()
    await keep.retire()
    assert (await harness.produced(batch())).error == ErrorCode.KAFKA_STORAGE_ERROR
    assert harness.fatal == []
