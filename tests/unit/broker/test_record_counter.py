"""How many records a read_committed reader is given, against what the markers say, from any offset at any time."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest

from hapax.broker import record_counter as record_counter_module
from hapax.codec.batch import iterate_batches
from hapax.codec.control import decode_control
from hapax.codec.records import decode_batch, encode_records
from hapax.core.control import Marker
from hapax.core.errors import Refusal
from hapax.runtime.disk import RealDisk
from hapax.runtime.settings import Settings
from unit.broker.broker_fixtures import Harness

NOW = 1_700_000_000_000
SETTINGS = Settings(log_segment_bytes=4000, log_snapshot_interval_bytes=5000, durability="page-cache")
PLENTY = 1 << 30


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many slices, many points, and more of them than may be remembered."""
    monkeypatch.setattr(record_counter_module, "_SLICE_BYTES", 700)
    monkeypatch.setattr(record_counter_module, "_APART_BYTES", 300)
    monkeypatch.setattr(record_counter_module, "_POINTS_MAX", 16)


class World(Harness):
    def __init__(self, disk: RealDisk, rng: random.Random, settings: Settings = SETTINGS) -> None:
        super().__init__(disk, settings)
        self.rng = rng
        self.step = 0

    async def write(self, steps: int) -> None:
        """Records of three producers' transactions and of nobody's, markers of both kinds."""
        for _ in range(steps):
            self.step += 1
            producer_id = self.rng.randrange(4)
            if producer_id < 3 and self.rng.random() < 0.3:
                self.replica.append_control(
                    Marker(producer_id, 0, self.rng.random() < 0.5, 0, self.step, 0, -1, 0))
                continue
            of_nobody = producer_id == 3
            result = await self.calls.result(self.produce_internal(encode_records(
                [(NOW, b"k%d" % self.rng.randrange(30), b"v", ()) for _ in range(self.rng.randint(1, 5))],
                transactional=not of_nobody, producer_id=-1 if of_nobody else producer_id,
                producer_epoch=-1 if of_nobody else 0, base_sequence=-1)))
            assert result.error == 0
            if self.replica.maintenance.checkpoint is not None:
                await self.replica.maintenance.checkpoint

    def given(self, start: int) -> int:
        """The truth, from the markers alone."""
        data, pending, found = self.log_bytes(), dict[int, list[int]](), list[int]()
        for position, header in iterate_batches(data):
            if header.is_control:
                control = decode_control(data, header, position)
                mine = pending.pop(header.producer_id, [])
                found += mine if isinstance(control, Marker) and control.commit else []
            else:
                offsets = [record.offset for record in decode_batch(data, position, header.size)]
                (pending.setdefault(header.producer_id, []) if header.is_transactional else found).extend(offsets)
        return sum(start <= offset < self.replica.machine.last_stable_offset for offset in found)

    async def counted(self, start: int, max_bytes: int = PLENTY) -> tuple[int, int]:
        """All of it, in as many calls as it takes; and the bytes read."""
        total = read = 0
        while True:
            found = await self.replica.record_counter.count(start, max_bytes)
            total, read = total + found.records, read + found.read_bytes
            if found.counted_to >= self.replica.machine.last_stable_offset:
                return total, read
            assert found.read_bytes, "no progress"
            start = found.counted_to

    async def check(self, times: int) -> None:
        machine = self.replica.machine
        for _ in range(times):
            start = self.rng.randint(machine.log_start_offset, machine.high_watermark)
            max_bytes = self.rng.choice((1, 500, 5000, PLENTY))
            assert (await self.counted(start, max_bytes))[0] == self.given(start), (start, max_bytes)


@pytest.mark.parametrize("seed", range(6))
async def test_every_offset_at_every_time(folder: RealDisk, seed: int) -> None:
    world = World(folder, random.Random(seed))
    await world.open(internal=True)
    for _ in range(12):
        await world.write(world.rng.randint(1, 60))
        await world.check(8)
    assert len(world.replica.log.segments) > 3
    await world.replica.close()
    await world.open(clean=True, internal=True)
    await world.check(8)


@pytest.mark.parametrize("seed", range(4))
async def test_while_its_beginning_is_removed(folder: RealDisk, seed: int) -> None:
    world = World(folder, random.Random(seed))
    await world.open(internal=True)
    for _ in range(6):
        await world.write(80)
        await world.check(5)
        log = world.replica.log
        if world.rng.random() < 0.7:
            log.drop_first(1)
            world.replica.machine.advance_log_start(log.start_offset)
        await world.check(5)


@pytest.mark.parametrize("seed", range(4))
async def test_compaction_removes_what_was_counted(folder: RealDisk, seed: int) -> None:
    world = World(folder, random.Random(seed), replace(SETTINGS, log_cleanup_policy="compact"))
    await world.open(internal=True)
    for _ in range(4):
        await world.write(120)
        await world.check(6)
        await world.replica.maintenance.compact()
        await world.check(6)


async def test_who_asks_again_does_not_read_everything_again(folder: RealDisk) -> None:
    world = World(folder, random.Random(1))
    await world.open(internal=True)
    await world.write(600)
    size = world.replica.log.size()
    assert (await world.counted(0))[1] > 0.8 * size
    assert (await world.counted(0))[1] == 0
    middle = world.replica.machine.last_stable_offset // 2
    assert (await world.counted(middle))[1] < 0.2 * size, "from the nearest point on"
    await world.write(5)
    assert (await world.counted(0))[1] < 0.1 * size


async def test_many_who_ask_at_once_while_it_grows(folder: RealDisk) -> None:
    world = World(folder, random.Random(2))
    await world.open(internal=True)
    await world.write(300)
    counting = world.replica.record_counter
    asked = [asyncio.create_task(counting.count(start, PLENTY)) for start in range(0, 200, 10)]
    await world.write(100)
    end = world.replica.machine.last_stable_offset
    for start, task in zip(range(0, 200, 10), asked, strict=True):
        found = await task
        assert found.records == world.given(start) - world.given(found.counted_to)
    assert (await counting.count(0, PLENTY)).counted_to == end


async def test_a_leader_that_leads_no_longer_counts_no_further(folder: RealDisk) -> None:
    world = World(folder, random.Random(3))
    await world.open(internal=True)
    await world.write(300)
    asked = asyncio.create_task(world.replica.record_counter.count(0, PLENTY))
    await asyncio.sleep(0)
    world.replica.serving = False
    with pytest.raises(Refusal, match="changed while it was counted"):
        await asked
    world.replica.serving = True
    await world.check(3)


async def test_what_was_wrong_about_the_past_is_not_remembered(folder: RealDisk) -> None:
    world = World(folder, random.Random(4))
    await world.open(internal=True)
    await world.write(300)
    asked = asyncio.create_task(world.replica.record_counter.count(0, PLENTY))
    await asyncio.sleep(0)
    world.replica.record_counter.forget()
    with pytest.raises(Refusal, match="changed while it was counted"):
        await asked
    await world.check(3)


async def test_a_leader_that_is_one_again_and_knows_less_counts_no_further(
    folder: RealDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its log is as it was, but it does not know yet how far that is committed."""
    world = World(folder, random.Random(5))
    await world.open(internal=True)
    await world.write(300)
    asked = asyncio.create_task(world.replica.record_counter.count(0, PLENTY))
    await asyncio.sleep(0)
    with monkeypatch.context() as less:
        less.setattr(type(world.replica.machine), "last_stable_offset", property(lambda machine: 5))
        with pytest.raises(Refusal, match="changed while it was counted"):
            await asked
    await world.check(3)
