"""Leaders and followers as brokers: what is acknowledged, who is in sync, and what becomes of other histories."""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hapax.broker.copying import Copying
from hapax.broker.waiters import Waiters
from hapax.core.control import Marker
from hapax.core.errors import ErrorCode
from hapax.core.partition.values import WriteResult
from hapax.core.types import NodeId, RegistrationEpoch
from hapax.kafka.api.produce import ProduceCall, ProduceRequest
from hapax.log.reading import Cold
from hapax.runtime.network import TcpNetwork
from hapax.wire.messages import FetchRequest
from hapax.wire.peer import Peer
from hapax.wire.replica_fetch import FETCH_VERSION, Naming, decode_response, encode_request
from unit.broker.broker_fixtures import batch
from unit.broker.replicas_world import TOPIC, World

Make = Callable[..., Awaitable[World]]


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Make]:
    made: list[World] = []

    async def make(*nodes: int, **settings: object) -> World:
        world = World(tmp_path, **settings)
        made.append(world)
        await world.start(*nodes)
        return world

    yield make
    for world in made:
        await world.close()


async def led(world: World, node: int = 0, **topic: object) -> World:
    world.make_topic(**topic)  # type: ignore[arg-type]
    await world.until(lambda: world.leads(node))
    return world


# --- copies ---------------------------------------------------------------------------------------------------------


async def test_what_is_acknowledged_is_on_every_replica_in_the_same_bytes(make: Make) -> None:
    world = await led(await make(0, 1, 2))
    for number in range(20):
        result = await world.produced(0, batch(5, producer_id=7, epoch=0, sequence=5 * number))
        assert (result.error, result.base_offset) == (0, 5 * number)
        assert all(world.replica(node).log.synced_offset >= 5 * number + 5 for node in (0, 1, 2))
    await world.until(lambda: world.equal(0, 1, 2))
    assert world.record.isr == (0, 1, 2)


async def test_transactions_and_their_ends_are_copied(make: Make) -> None:
    world = await led(await make(0, 1, transaction_partition_verification_enable=False))
    leader = world.replica(0)
    for producer_id, commit in ((1, True), (2, False), (3, None)):
        world.produce(0, batch(3, producer_id=producer_id, epoch=0, sequence=0, transactional=True))
        if commit is not None:
            leader.append_control(Marker(producer_id, 1, commit, 5, 1, 0, -1, 2))
    await leader.committed(leader.machine.log_end_offset)
    await world.until(lambda: world.equal(0, 1))
    assert len(world.replica(1).machine.open_transactions()) == len(world.replica(1).machine.aborted) == 1


async def test_acks_all_waits_for_the_slowest_member_and_acks_1_does_not(make: Make) -> None:
    world = await led(await make(0, 1, 2))
    await world.produced(0, batch())
    slow = world.syncs(2)
    slow.hold_syncs()
    everywhere = world.produce(0, batch())
    here = world.produce(0, batch(), local=True)
    await world.until(here.done)
    await world.until(lambda: world.replica(1).log.synced_offset == 3)
    assert not everywhere.done()
    assert world.replica(0).machine.high_watermark == 1, "nobody may read what could be lost"
    Copying(world.replica(1), NodeId(0), 0).heard(1, 0)
    assert world.replica(1).machine.high_watermark == 1, "what it has is not what is committed"
    slow.release()
    await world.until(everywhere.done)
    assert everywhere.result().error == 0


async def test_acks_1_is_answered_when_the_last_other_replica_goes(make: Make) -> None:
    """It waits for the leader's disk alone, whoever has a part when it comes and when it is synced."""
    world = await led(await make(0, 1), replicas=(0, 1))
    await world.produced(0, batch())
    world.syncs(0).hold_syncs()
    here = world.produce(0, batch(), local=True)
    world.change(replicas=(NodeId(0),), isr=(NodeId(0),), isr_registrations=(world.registration(0),))
    await world.until(lambda: world.replica(0).replication is None)
    world.syncs(0).release()
    await world.until(here.done)
    assert here.result().error == 0


async def test_acks_1_does_not_wait_for_a_replica_that_comes_meanwhile(make: Make) -> None:
    world = await led(await make(0, 1), replicas=(0,))
    await world.produced(0, batch())
    world.syncs(0).hold_syncs()
    here = world.produce(0, batch(), local=True)
    world.syncs(1).hold_syncs()
    both = (NodeId(0), NodeId(1))
    world.change(replicas=both, isr=both, isr_registrations=tuple(world.registration(node) for node in both))
    await world.until(lambda: world.replica(0).replication is not None)
    world.syncs(0).release()
    await world.until(here.done)
    assert here.result().error == 0
    assert world.replica(0).machine.high_watermark == 1
    world.syncs(1).release()


# --- who is in sync -------------------------------------------------------------------------------------------------


async def test_a_dead_member_leaves_and_a_returned_one_catches_up_and_joins(make: Make) -> None:
    world = await led(await make(0, 1, 2))
    await world.produced(0, batch())
    await world.kill(2)
    for _ in range(5):
        assert (await world.produced(0, batch())).error == 0
    assert world.record.isr == (0, 1)
    await world.start(2)
    await world.until(lambda: world.record.isr == (0, 1, 2))
    assert world.record.isr_registrations[2] == world.registration(2)
    await world.until(lambda: world.equal(0, 1, 2))


async def test_a_member_that_stands_still_leaves_after_the_lag_time(make: Make) -> None:
    world = await led(await make(0, 1, 2, replica_lag_time_max_ms=400))
    await world.produced(0, batch())
    slow = world.syncs(1)
    slow.hold_syncs()
    stuck = world.produce(0, batch())
    await world.until(stuck.done)
    assert stuck.result().error == 0
    assert world.record.isr == (0, 2)
    await world.until(lambda: world.brokers[1].in_sync() == "1 replicas to catch up")
    assert [world.brokers[node].in_sync() for node in (0, 2)] == ["", ""]
    slow.release()
    await world.until(lambda: world.record.isr == (0, 1, 2))
    await world.until(lambda: world.brokers[1].in_sync() == "")


async def test_who_was_passed_over_may_begin_anew_once_nobody_counts_on_it(make: Make) -> None:
    world = await led(await make(0, 1), replicas=(0, 1), segment_bytes="10000", min_insync_replicas="2")
    for number in range(40):
        await world.produced(0, batch(producer_id=6, epoch=0, sequence=number, value=b"x" * 1000))
    leader = world.replica(0)
    leader.log.drop_first(2)
    leader.machine.advance_log_start(leader.log.start_offset)
    named = ((NodeId(1), world.record.isr_registrations[1]),)
    await world.kill(1)
    shutil.rmtree(world.folder / "broker-1")
    world.unregister(1)
    await world.until(lambda: world.record.isr == (0,))
    assert world.record.passed_over == named
    await world.start(1)
    await world.until(lambda: world.record.isr == (0, 1) and not world.record.passed_over)
    await world.until(lambda: world.equal(0, 1))


async def test_who_was_passed_over_is_looked_at_even_where_nothing_happens(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await led(await make(0, 1, 2, replica_lag_time_max_ms=400))
    named = (NodeId(2), world.record.isr_registrations[2])
    await world.kill(2)
    await world.until(lambda: world.record.isr == (0, 1) and not world.record.passed_over)
    with monkeypatch.context() as deaf:
        deaf.setattr(world.brokers[0].partitions.in_sync, "reconsider", lambda *_: None)
        world.change(passed_over=(named,))
        replication = world.replica(0).replication
        assert replication is not None
        await world.until(lambda: bool(replication.passed_over))
        waiting = world.produce(0, batch())
    await world.until(waiting.done)
    assert waiting.result().error == 0
    assert not world.record.passed_over


async def test_acks_all_is_refused_below_min_insync_replicas(make: Make) -> None:
    world = await led(await make(0, 1), replicas=(0, 1), min_insync_replicas="2")
    assert (await world.produced(0, batch(producer_id=1, epoch=0, sequence=0))).error == 0
    slow = world.syncs(1)
    slow.hold_syncs()
    waiting = world.produce(0, batch(producer_id=1, epoch=0, sequence=1))
    world.unregister(1)
    await world.until(waiting.done)
    assert waiting.result().error == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    assert world.replica(0).too_few_in_sync
    slow.release()
    assert world.replica(0).machine.high_watermark == 1, "one replica alone commits nothing"


async def test_a_retry_of_what_was_appended_waits_as_its_original_did(make: Make) -> None:
    world = await led(await make(0, 1))
    slow = world.syncs(1)
    slow.hold_syncs()
    original = world.produce(0, batch(producer_id=1, epoch=0, sequence=0))
    await world.until(lambda: world.replica(0).log.synced_offset == 1)
    retry = world.produce(0, batch(producer_id=1, epoch=0, sequence=0))
    assert not retry.done()
    slow.release()
    await world.until(retry.done)
    assert original.result().base_offset == retry.result().base_offset == 0


# --- failover -------------------------------------------------------------------------------------------------------


async def test_a_new_leader_knows_the_producers_and_answers_retries_with_their_offsets(make: Make) -> None:
    world = await led(await make(0, 1, 2))
    for number in range(7):
        await world.produced(0, batch(2, producer_id=9, epoch=1, sequence=2 * number))
    await world.kill(0)
    world.elect(1, isr=(1, 2))
    await world.until(lambda: world.leads(1))
    retry = await world.produced(1, batch(2, producer_id=9, epoch=1, sequence=12))
    assert (retry.error, retry.base_offset) == (0, 12)
    zombie = await world.produced(1, batch(producer_id=9, epoch=0, sequence=0))
    assert zombie.error == ErrorCode.INVALID_PRODUCER_EPOCH
    following = await world.produced(1, batch(producer_id=9, epoch=1, sequence=14))
    assert (following.error, following.base_offset) == (0, 14)
    await world.start(0)
    await world.until(lambda: set(world.record.isr) == {0, 1, 2})
    await world.until(lambda: world.equal(0, 1, 2))


async def test_what_only_the_old_leader_had_is_cut_and_its_producers_with_it(make: Make) -> None:
    world = await led(await make(0, 1, 2), min_insync_replicas="2")
    await world.produced(0, batch(3, producer_id=1, epoch=0, sequence=0))
    for node in (1, 2):
        await world.stop(node)
    for producer_id, sequence in ((2, 0), (1, 3)):
        alone = world.produce(0, batch(4, producer_id=producer_id, epoch=0, sequence=sequence), local=True)
        await world.until(alone.done)
        assert alone.result().error == 0, "with acks=1"
    assert world.end(0) == 11
    await world.kill(0)
    world.change(isr=(NodeId(1), NodeId(2)))
    await world.start(1, 2)
    world.elect(1, isr=(1, 2))
    await world.until(lambda: world.leads(1))
    assert (await world.produced(1, batch(5, producer_id=1, epoch=0, sequence=3))).base_offset == 3
    await world.start(0)
    await world.until(lambda: set(world.record.isr) == {0, 1, 2})
    await world.until(lambda: world.equal(0, 1, 2))
    assert world.replica(0).machine.describe_producer(2) is None
    world.elect(0)
    await world.until(lambda: world.leads(0))
    again = await world.produced(0, batch(5, producer_id=1, epoch=0, sequence=3))
    assert again.base_offset == 3


async def test_a_leader_that_gives_way_answers_its_waiters_and_follows(make: Make) -> None:
    world = await led(await make(0, 1))
    await world.produced(0, batch())
    world.syncs(1).hold_syncs()
    waiting = world.produce(0, batch())
    await world.until(lambda: world.end(1) == 2)
    world.elect(1)
    await world.until(waiting.done)
    assert waiting.result().error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    world.syncs(1).release()
    await world.until(lambda: world.leads(1))
    assert (await world.produced(1, batch())).base_offset == 2
    await world.until(lambda: world.equal(0, 1))


async def test_leaders_may_change_quickly_and_often(make: Make) -> None:
    world = await led(await make(0, 1, 2))
    sequence = 0
    for turn in range(12):
        leader = turn % 3
        world.elect(leader)
        await world.until(lambda leader=leader: world.leads(leader))  # type: ignore[misc]
        for _ in range(3):
            result = await world.produced(leader, batch(2, producer_id=4, epoch=0, sequence=sequence))
            if result.error == 0:
                sequence += 2
        world.produce(leader, batch(1, producer_id=100 + turn, epoch=0, sequence=0), local=True)
    await world.until(lambda: set(world.record.isr) == {0, 1, 2})
    await world.until(lambda: world.equal(0, 1, 2))
    view = world.replica(0).machine.describe_producer(4)
    assert view is not None and view.record_count == sequence == 72


@pytest.mark.parametrize(("durability", "survives_a_kill"), [("fsync", True), ("page-cache", False)])
async def test_a_broker_says_since_when_its_folder_has_lost_nothing(
    make: Make, durability: str, survives_a_kill: bool
) -> None:
    world = await led(await make(0, 1, durability=durability), replicas=(0, 1))
    first = world.registration(1)
    assert world.intact_since(1) == 0, "a new folder has only what it gets from now on"
    for _ in range(3):
        assert (await world.produced(0, batch())).error == 0
    await world.stop(1)
    await world.start(1)
    assert world.intact_since(1) == first
    await world.kill(1)
    await world.start(1)
    assert world.intact_since(1) == (first if survives_a_kill else 0)
    await world.until(lambda: world.record.isr == (0, 1) and world.equal(0, 1))


async def test_what_a_crash_may_have_taken_goes_by_the_former_process_durability(make: Make) -> None:
    """The setting is changed over a restart: only the process that acknowledged knows how."""
    world = await led(await make(0, 1, durability="page-cache"), replicas=(0, 1))

    async def started(durability: str) -> int:
        world.settings = replace(world.settings, durability=durability)
        await world.start(1)
        return world.intact_since(1)

    first = world.registration(1)
    await world.kill(1)
    assert await started("fsync") == 0, "what was acknowledged from the page cache may be gone"
    first = world.registration(1)
    await world.kill(1)
    assert await started("page-cache") == first, "what was acknowledged was synced"
    await world.stop(1)
    assert await started("fsync") == first, "a clean stop syncs everything"
    await world.kill(1)
    assert await started("fsync") == first
    world.disks[1].open("intact-since.json").truncate(3)
    await world.kill(1)
    assert await started("fsync") == 0


# --- new replicas ---------------------------------------------------------------------------------------------------


async def test_a_new_replica_inherits_producers_whose_records_are_gone(make: Make) -> None:
    world = await led(await make(0, 1, 2), replicas=(0, 1), segment_bytes="10000")
    await world.produced(0, batch(3, producer_id=5, epoch=2, sequence=0))
    for number in range(40):
        await world.produced(0, batch(producer_id=6, epoch=0, sequence=number, value=b"x" * 1000))
    leader = world.replica(0)
    leader.log.drop_first(2)
    leader.machine.advance_log_start(leader.log.start_offset)
    world.change(replicas=(NodeId(0), NodeId(1), NodeId(2)), adding=(NodeId(2),))
    await world.until(lambda: set(world.record.isr) == {0, 1, 2})
    assert (await world.produced(0, batch(producer_id=6, epoch=0, sequence=40))).error == 0
    await world.until(lambda: world.equal(0, 1, 2) and world.replica(1).log.start_offset == leader.log.start_offset)
    view = world.replica(2).machine.describe_producer(5)
    assert view is not None and view.producer_epoch == 2, "its records are in no log any more"
    await world.stop(2)
    await world.start(2)
    await world.until(lambda: world.equal(0, 2))


async def test_a_long_dead_replica_begins_anew_where_the_leaders_log_begins(make: Make) -> None:
    world = await led(await make(0, 1), replicas=(0, 1), segment_bytes="10000")
    await world.produced(0, batch(producer_id=5, epoch=2, sequence=0))
    await world.kill(1)
    for number in range(40):
        await world.produced(0, batch(producer_id=6, epoch=0, sequence=number, value=b"x" * 1000))
    leader = world.replica(0)
    leader.log.drop_first(2)
    leader.machine.advance_log_start(leader.log.start_offset)
    await world.start(1)
    await world.until(lambda: world.record.isr == (0, 1))
    await world.until(lambda: world.equal(0, 1))


async def test_catching_up_is_throttled_and_then_not_any_more(make: Make) -> None:
    world = await led(
        await make(0, 1, leader_replication_throttled_rate=1 << 20, replica_fetch_max_bytes=100), replicas=(0, 1))
    await world.kill(1)
    for _ in range(8):
        await world.produced(0, batch(value=b"x" * 100_000))
    await world.start(1)
    lags: list[int] = []

    def joined() -> bool:
        if 1 in world.brokers and world.brokers[1].partitions.replicas:
            lags.append(world.brokers[1].partitions.fetchers.lag())
        return world.record.isr == (0, 1)

    await world.until(joined)
    assert any(0 < lag < 8 for lag in lags), "its progress shows"
    await world.until(lambda: world.equal(0, 1))


async def test_a_read_for_a_replica_that_fails_unexpectedly_is_tried_again(
    make: Make, monkeypatch: pytest.MonkeyPatch, task_failures: Counter[str]
) -> None:
    world = await led(await make(0, 1), replicas=(0, 1))
    await world.kill(1)
    for _ in range(8):
        await world.produced(0, batch(value=b"x" * 100_000))
    leading = world.replica(0).log
    warm = leading.warm

    async def fails(cold: Cold) -> None:
        monkeypatch.setattr(leading, "warm", warm)
        raise RuntimeError("unexpected")

    leading.opened()
    monkeypatch.setattr(leading.active.file, "is_cached", lambda *_: False, raising=False)
    monkeypatch.setattr(leading, "warm", fails)
    await world.start(1)
    await world.until(lambda: world.record.isr == (0, 1))
    await world.until(lambda: world.equal(0, 1))
    assert sum(task_failures.values()) == 1


# --- trust ------------------------------------------------------------------------------------------------------------


async def fetch_as(
    world: World, node_id: int, registration: int, session: bytes, offset: int, synced_end: int | None = None
) -> Any:
    """What the leader, node 0, answers to a Fetch in the name of a replica, over a connection of its own."""
    address = world.brokers[0].kafka_address
    peer = await Peer.connect(TcpNetwork(), address.host, address.port)
    try:
        return await peer.submit_raw(FetchRequest, FETCH_VERSION, encode_request(
            NodeId(node_id), RegistrationEpoch(registration), session, session_id=0, session_epoch=0, max_wait_ms=0,
            max_bytes=1000, forgotten=[],
            named=[Naming(TOPIC, 0, 0, offset, -1, 0, 1000, offset if synced_end is None else synced_end)],
        ), decode=lambda body: decode_response(memoryview(bytes(body))))
    finally:
        peer.close()


async def test_a_fetch_in_the_name_of_a_replica_must_prove_it(make: Make) -> None:
    world = await led(await make(0, 1, 2), replicas=(0, 1))
    world.syncs(1).hold_syncs()
    waiting = world.produce(0, batch())
    await world.until(lambda: world.replica(0).log.synced_offset == 1)
    own = {node: world.brokers[node].registration for node in (1, 2)}
    for node_id, registration, session, error in (
        (1, own[1].epoch, b"guessed session!", ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (1, own[1].epoch - 1, own[1].record.session, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (1, own[2].epoch, own[2].record.session, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (2, own[2].epoch, own[2].record.session, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ):
        answer = await fetch_as(world, node_id, registration, session, 1)
        assert [(p.error, bytes(p.records)) for p in answer.partitions] == [(error, b"")]
    assert not waiting.done(), "nobody but the member itself speaks for it"
    world.syncs(1).release()
    await world.until(waiting.done)


async def waiting_for_a_sync(make: Make) -> tuple[World, asyncio.Future[WriteResult]]:
    """A second write that node 0, the leader, has synced and node 1 has only fetched."""
    world = await led(await make(0, 1), replicas=(0, 1))
    await world.produced(0, batch())
    world.syncs(1).hold_syncs()
    waiting = world.produce(0, batch())
    await world.until(lambda: world.replica(0).log.synced_offset == 2)
    return world, waiting


async def test_a_replica_cannot_claim_more_than_its_leader_has(make: Make) -> None:
    world, waiting = await waiting_for_a_sync(make)
    own = world.brokers[1].registration
    await fetch_as(world, 1, own.epoch, own.record.session, 1, synced_end=100)
    assert not waiting.done()
    world.syncs(1).release()
    await world.until(waiting.done)


async def test_what_a_replica_has_but_has_not_synced_does_not_count(make: Make) -> None:
    world, waiting = await waiting_for_a_sync(make)
    own = world.brokers[1].registration
    await fetch_as(world, 1, own.epoch, own.record.session, 2, synced_end=1)
    assert not waiting.done()
    assert world.replica(0).machine.high_watermark == 1
    world.syncs(1).release()
    await world.until(waiting.done)


async def test_a_store_that_went_backwards_is_refused_by_what_the_log_has(make: Make) -> None:
    world = await make(0)
    world.make_topic(replicas=(0,))
    world.elect(0)
    await world.until(lambda: world.leads(0))
    await world.produced(0, batch())
    world.change(leader_epoch=0)
    await world.until(lambda: bool(world.ended))
    assert "records of epoch 1" in world.ended[0]
    assert not world.replica(0).serving


async def test_what_an_unclean_election_took_back_is_said_by_offset(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    world = await led(await make(0, 1))
    await world.produced(0, batch(3))
    await world.stop(1)
    await world.until(lambda: world.record.isr == (0,))
    await world.produced(0, batch(4))
    await world.stop(0)
    await world.start(1)
    world.elect(1, isr=(1,))
    await world.until(lambda: world.leads(1))
    await world.start(0)
    await world.until(lambda: set(world.record.isr) == {0, 1})
    await world.produced(1, batch(2))
    await world.until(lambda: world.equal(0, 1))
    assert world.end(0) == 5
    assert [line for line in caplog.messages if "records were lost" in line]
    (record,) = [record for record in caplog.records if "records were lost" in record.getMessage()]
    assert (record.fields["from_offset"], record.fields["to_offset"]) == (3, 7)  # type: ignore[attr-defined]


async def test_the_producer_of_records_that_an_unclean_election_took_back_is_refused_with_a_line_that_says_so(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    world = await led(await make(0, 1))
    producer = {"producer_id": 7, "epoch": 0}
    await world.produced(0, batch(3, sequence=0, **producer))
    await world.stop(1)
    await world.until(lambda: world.record.isr == (0,))
    await world.produced(0, batch(4, sequence=3, **producer))
    await world.stop(0)
    await world.start(1)
    world.elect_uncleanly(1, 1_767_225_600_000)
    await world.until(lambda: world.leads(1))
    assert (await world.produced(1, batch(1, sequence=7, **producer))).error == (
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    (line,) = [record for record in caplog.records if record.getMessage() == "refused a batch out of order"]
    fields = line.fields  # type: ignore[attr-defined]
    assert fields["reason"] == "producer 7, epoch 0: sequence 7, expected 3"
    assert fields["unclean_election_epoch"] == world.record.leader_epoch == fields["leader_epoch"]
    assert fields["unclean_election_at"] == "2026-01-01T00:00:00Z"


async def test_a_repeated_write_is_answered_with_its_original(make: Make) -> None:
    """Although a newer write waits longer."""
    waiters = Waiters()
    answered: list[int] = []

    class Call(ProduceCall):
        def settle(self, number: int, result: WriteResult) -> None:
            answered.append(number)

    def wait(end: int, number: int, timeout_ms: int = 1000) -> None:
        call = Call(None, ProduceRequest(None, -1, timeout_ms, [], None))  # type: ignore[arg-type]
        waiters.append((end, call, number, WriteResult(0)))

    wait(5, 0)
    wait(9, 1)
    wait(5, 2)
    wait(7, 3, 400)
    waiters.settle(5)
    assert answered == [0, 2]
    waiters.expire(10_000, 9)
    waiters.expire(10_400, 9)
    assert answered == [0, 2, 3]
    waiters.settle(9)
    assert answered == [0, 2, 3, 1]


class Timed:
    """Writes that wait, and when each was answered with a time-out."""

    def __init__(self) -> None:
        self.waiters = Waiters()
        self.now = 10_000
        self.log_end = 0
        self.answered: dict[int, int] = {}

    def wait(self, end: int, number: int, timeout_ms: int) -> None:
        world = self

        class Call(ProduceCall):
            def settle(self, number: int, result: WriteResult) -> None:
                assert number not in world.answered, "answered twice"
                assert result.error == ErrorCode.REQUEST_TIMED_OUT
                world.answered[number] = world.now

        self.log_end = max(self.log_end, end)
        self.waiters.append((
            end, Call(None, ProduceRequest(None, -1, timeout_ms, [], None)), number,  # type: ignore[arg-type]
            WriteResult(0)))

    def until(self, end_ms: int) -> None:
        while self.now < end_ms:
            self.now += 500
            self.waiters.expire(self.now, self.log_end)


async def test_a_repeated_write_waits_its_own_time(make: Make) -> None:
    """However long its original has waited; and it is answered although the original is not, or no longer waits."""
    timed = Timed()
    timed.wait(5, 0, 3000)
    timed.wait(9, 1, 60_000)
    timed.until(12_000)
    timed.wait(5, 2, 3000)  # behind its original, before a newer write
    timed.wait(5, 3, 500)
    timed.until(14_000)
    timed.wait(5, 4, 3000)  # its original has had its answer
    timed.wait(9, 5, 1000)
    timed.until(20_000)
    assert timed.answered == {0: 13_500, 3: 13_000, 2: 15_500, 5: 15_500, 4: 17_500}
    timed.until(71_000)
    assert timed.answered[1] == 70_500 and not timed.waiters and not timed.waiters.repeated


@pytest.mark.parametrize("settled", [True, False])
async def test_a_repeated_write_that_is_settled_leaves_nothing_behind(make: Make, settled: bool) -> None:
    timed = Timed()
    timed.wait(5, 0, 3000)
    timed.until(11_000)
    timed.wait(5, 1, 3000)
    timed.until(12_000)
    answered: list[int] = []
    for _, call, _, _ in timed.waiters:
        call.settle = lambda number, result: answered.append(number)  # type: ignore[method-assign]
    if settled:
        timed.waiters.settle(5)
    else:
        timed.waiters.fail(WriteResult(ErrorCode.NOT_LEADER_OR_FOLLOWER))
    assert answered == [0, 1] and not timed.waiters and not timed.waiters.repeated


async def test_a_client_in_a_hurry_is_answered_before_a_patient_one_that_came_earlier(make: Make) -> None:
    timed = Timed()
    timed.wait(5, 0, 60_000)
    timed.until(11_000)
    timed.wait(9, 1, 1000)
    timed.until(20_000)
    assert timed.answered == {1: 12_500}


async def test_a_write_waits_for_replicas_no_longer_than_its_client_wants(make: Make) -> None:
    waiters = Waiters()
    answers: list[int] = []

    class Call(ProduceCall):
        def settle(self, number: int, result: WriteResult) -> None:
            answers.append(number if result.error == ErrorCode.REQUEST_TIMED_OUT else -1)

    for number, timeout_ms in enumerate((1000, 400, 5000)):
        call = Call(None, ProduceRequest(None, -1, timeout_ms, [], None))  # type: ignore[arg-type]
        waiters.append((number + 1, call, number, WriteResult(0)))
    waiters.expire(10_000, 2)
    waiters.expire(10_399, 3)
    assert answers == []
    waiters.expire(10_400, 3)
    assert answers == [1]
    waiters.expire(11_000, 3)
    assert answers == [1, 0]
    waiters.settle(3)
    assert answers == [1, 0, -1]
