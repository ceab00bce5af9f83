"""Records are deleted while brokers are killed, stalled and deposed at random: what an answer said is deleted never
comes back, and everything else that was acknowledged is there, with the same producers' state on every replica."""

from __future__ import annotations

import asyncio
import os
import random
from dataclasses import dataclass
from pathlib import Path

import pytest

from hapax.broker.kafka_api import DeletionService
from hapax.codec.batch import iterate_batches, patch_prefix
from hapax.codec.snapshot import encode_replicated_state
from hapax.core.errors import ErrorCode, Refusal
from unit.broker.replicas_world import World
from unit.broker.test_replication_chaos import NODES, STEPS, Run

SEEDS = range(int(os.environ.get("HAPAX_TEST_SEEDS", "3")))
_OPEN = frozenset({
    ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.OFFSET_OUT_OF_RANGE,
})


@dataclass
class Deletions(Run):
    deleted: int = 0
    """Everything below is, as an answer said."""
    asked: int = 0
    """Nothing from here on may be."""
    answers: int = 0

    async def delete(self) -> None:
        while not self.over:
            await asyncio.sleep(self.chance.random() * 0.02)
            leader = self.world.record.leader
            if leader not in self.world.brokers or not self.world.leads(leader):
                continue
            machine = self.world.replica(leader).machine
            offset = machine.high_watermark - self.chance.randrange(20)
            if self.chance.random() < 0.3:
                offset = -1
            elif offset <= machine.log_start_offset:
                continue
            deletion = DeletionService(self.world.brokers[leader].partitions)
            self.asked = max(self.asked, offset)
            before = machine.log_start_offset
            try:
                low = await deletion.delete_records("t", 0, offset, 500)
            except Refusal as refusal:
                assert refusal.code in _OPEN, refusal
                if offset == -1:
                    self.asked = max(self.asked, machine.high_watermark)
                continue
            assert low >= max(before, offset) and low >= self.deleted
            self.asked = max(self.asked, low)
            self.deleted = low
            self.answers += 1


def left(world: World, node: int, start: int) -> bytes:
    """The batches that hold records from `start` on."""
    log = world.log_bytes(node)
    return b"".join(
        log[position : position + header.size] for position, header in iterate_batches(log)
        if header.last_offset >= start)


def same(world: World) -> bool:
    if not all(world.has(node) for node in NODES):
        return False
    machines = [world.replica(node).machine for node in NODES]
    starts = {machine.log_start_offset for machine in machines}
    return (
        len(starts) == 1 and all(machine.high_watermark == machine.log_end_offset for machine in machines)
        and len({left(world, node, max(starts)) for node in NODES}) == 1
        and len({encode_replicated_state(machine.snapshot()) for machine in machines}) == 1
    )


@pytest.mark.parametrize("seed", SEEDS)
async def test_what_is_deleted_stays_deleted_and_nothing_else_goes(tmp_path: Path, seed: int) -> None:
    world = World(
        tmp_path, replica_lag_time_max_ms=300, log_snapshot_interval_bytes=3000,
        transaction_partition_verification_enable=False,
    )
    await world.start(*NODES)
    run = Deletions(world, random.Random(seed))
    try:
        world.make_topic(NODES, min_insync_replicas="2", segment_bytes="4000")
        await world.until(lambda: world.leads(0))
        tasks = [asyncio.ensure_future(t) for t in (
            run.control(), run.produce(1, transactional=False), run.produce(2, transactional=True), run.delete(),
        )]
        for _ in range(STEPS):
            await asyncio.sleep(run.chance.random() * 0.04)
            await run.fault()
            for task in tasks:
                if task.done():
                    task.result()
        await run.heal()
        await world.until(lambda: len(world.record.isr) == 3 and world.leads(world.record.leader))
        before, answers = len(run.acknowledged), run.answers
        await world.until(lambda: len(run.acknowledged) >= before + 10 and run.answers > answers)
        run.over = True
        await asyncio.gather(*tasks)
        try:
            await world.until(lambda: same(world))
        except TimeoutError:
            pytest.fail(world.differences(*NODES))
        check(run)
        for node in NODES:  # and after a restart
            await world.kill(node)
        await world.start(*NODES)
        for node in NODES:
            await world.until(lambda node=node: world.has(node))  # type: ignore[misc]
            assert world.replica(node).machine.log_start_offset >= run.deleted
        assert not world.ended
    finally:
        run.over = True
        await world.close()


def check(run: Deletions) -> None:
    start = run.world.replica(0).machine.log_start_offset
    assert run.deleted <= start <= run.asked
    assert run.answers > 3, "the deletions are of no use"
    stored: dict[int, bytes] = {}
    log = left(run.world, 0, start)
    for position, header in iterate_batches(log):
        found = bytearray(log[position : position + header.size])
        patch_prefix(found, 0, -1)
        stored[header.base_offset] = bytes(found)
    for offset, sent in run.acknowledged.items():
        expected = bytearray(sent)
        patch_prefix(expected, 0, -1)
        last = offset + next(iterate_batches(sent))[1].last_offset_delta
        assert last < start or stored.get(offset) == bytes(expected), f"acknowledged at {offset}"
