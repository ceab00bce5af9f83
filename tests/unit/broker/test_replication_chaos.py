"""Brokers that are killed, stalled and deposed at random, under idempotent and transactional producers: whatever was
acknowledged with acks=all is on every replica in the end, where the answer said, once."""

from __future__ import annotations

import asyncio
import os
import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hapax.codec.batch import iterate_batches, patch_prefix
from hapax.core.cluster.failover import settle
from hapax.core.control import Marker
from hapax.core.errors import ErrorCode, Refusal
from hapax.runtime.ports import Compare, Put
from unit.broker.broker_fixtures import batch
from unit.broker.replicas_world import KEY, World

NODES = (0, 1, 2)
STEPS = 60
SEEDS = range(int(os.environ.get("HAPAX_TEST_SEEDS", "3")))
_AGAIN = frozenset({
    ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
})


@dataclass
class Run:
    world: World
    chance: random.Random
    acknowledged: dict[int, bytes] = field(default_factory=dict)
    """Offset -> batch, without what the leader puts into it."""
    markers: int = 0
    over: bool = False

    # --- the controller -------------------------------------------------------------------------------------------

    def elect(self) -> None:
        brokers = next(iter(self.world.brokers.values())).view.live_brokers()
        self._write(settle(self.world.record, brokers))

    def depose(self) -> None:
        """Another member leads, for no reason."""
        record = self.world.record
        members = [node for node in record.isr if node in self.world.brokers and node != record.leader]
        if members and record.leader in self.world.brokers:
            self.world.elect(self.chance.choice(members))

    def _write(self, record: object) -> None:
        kv = self.world.model.get(KEY)
        assert kv is not None
        if record is not self.world.record:
            self.world.model.txn(
                [Compare(KEY, "mod_revision", kv.mod_revision)], [Put(KEY, record.encode())])  # type: ignore[attr-defined]

    async def control(self) -> None:
        while not self.over:
            if self.world.brokers:
                self.elect()
            await asyncio.sleep(0.01)

    # --- the producers --------------------------------------------------------------------------------------------

    async def produce(self, producer_id: int, *, transactional: bool) -> None:
        sequence = epoch = serial = 0
        while not self.over:
            sent = batch(
                1 + self.chance.randrange(4), producer_id=producer_id, epoch=epoch, sequence=sequence,
                transactional=transactional, value=b"%d-%d" % (producer_id, self.chance.randrange(1 << 30)),
            )
            offset = await self._until_acknowledged(sent)
            if offset < 0:
                return
            self.acknowledged[offset] = bytes(sent)
            sequence += next(iterate_batches(sent))[1].record_count
            if transactional and self.chance.random() < 0.3:
                serial += 1
                if not await self._until_marked(
                        Marker(producer_id, epoch + 1, self.chance.random() < 0.5, 1, serial, 0, -1, 2)):
                    return
                epoch, sequence = epoch + 1, 0

    async def _until_acknowledged(self, sent: bytearray) -> int:
        """The offset that the answer said; -1: it is over."""
        while not self.over:
            leader = self.world.record.leader
            if leader in self.world.brokers and self.world.leads(leader):
                replica = self.world.replica(leader)
                if replica.too_few_in_sync:
                    await asyncio.sleep(0.005)
                    continue
                answer = self.world.produce(leader, sent)
                done, _ = await asyncio.wait([answer], timeout=0.5)
                if done and answer.result().error == 0:
                    assert answer.result().base_offset >= 0
                    return answer.result().base_offset
                if done:
                    assert answer.result().error in _AGAIN, answer.result()
            await asyncio.sleep(0.005)
        return -1

    async def _until_marked(self, marker: Marker) -> bool:
        while not self.over:
            leader = self.world.record.leader
            if leader in self.world.brokers and self.world.leads(leader):
                replica = self.world.replica(leader)
                try:
                    ((end, refused),) = replica.write_markers([marker])
                    if refused is None:
                        async with asyncio.timeout(0.5):
                            await replica.committed(end)
                        self.markers += 1
                        return True
                    assert refused.code in _AGAIN, refused
                except (Refusal, TimeoutError):
                    pass
            await asyncio.sleep(0.005)
        return False

    # --- the faults -----------------------------------------------------------------------------------------------

    async def fault(self) -> None:
        world, chance = self.world, self.chance
        node = chance.choice(NODES)
        match chance.choice(["kill", "stop", "start", "start", "stall", "flow", "flow", "depose", "checkpoint"]):
            case "kill" if len(world.brokers) > 1 and node in world.brokers:
                await world.kill(node)
            case "stop" if len(world.brokers) > 1 and node in world.brokers:
                await world.stop(node)
            case "start" if node not in world.brokers:
                await world.start(node)
            case "stall" if node in world.brokers and chance.random() < 0.5:
                world.syncs(node).hold_syncs()
            case "flow" if node in world.brokers:
                world.syncs(node).release()
            case "depose":
                self.depose()
            case "checkpoint" if node in world.brokers and world.has(node):
                world.replica(node).maintenance.begin_checkpoint()

    async def heal(self) -> None:
        for node in NODES:
            if node not in self.world.brokers:
                await self.world.start(node)
            self.world.syncs(node).release()


@pytest.mark.parametrize("seed", SEEDS)
async def test_nothing_acknowledged_is_lost_or_doubled(tmp_path: Path, seed: int) -> None:
    world = World(
        tmp_path, replica_lag_time_max_ms=300, log_snapshot_interval_bytes=3000,
        transaction_partition_verification_enable=False,
    )
    await world.start(*NODES)
    run = Run(world, random.Random(seed))
    try:
        world.make_topic(NODES, min_insync_replicas="2", segment_bytes="4000")
        await world.until(lambda: world.leads(0))
        tasks = [asyncio.ensure_future(t) for t in (
            run.control(), run.produce(1, transactional=False), run.produce(2, transactional=True),
            run.produce(3, transactional=True),
        )]
        for _ in range(STEPS):
            await asyncio.sleep(run.chance.random() * 0.04)
            await run.fault()
            for task in tasks:
                if task.done():
                    task.result()
        await run.heal()
        await world.until(lambda: len(world.record.isr) == 3 and world.leads(world.record.leader))
        before = len(run.acknowledged)
        await world.until(lambda: len(run.acknowledged) >= before + 10)
        run.over = True
        await asyncio.gather(*tasks)
        try:
            await world.until(lambda: world.equal(*NODES))
        except TimeoutError:
            pytest.fail(world.differences(*NODES))
        check(run)
        assert not world.ended
    finally:
        run.over = True
        await world.close()


def check(run: Run) -> None:
    stored: dict[int, bytes] = {}
    sequences: dict[tuple[int, int], int] = {}
    log = run.world.log_bytes(0)
    for position, header in iterate_batches(log):
        found = bytearray(log[position : position + header.size])
        patch_prefix(found, 0, -1)
        stored[header.base_offset] = bytes(found)
        if not header.is_control:
            key = (header.producer_id, header.producer_epoch)
            assert header.base_sequence == sequences.get(key, 0), f"a gap or a double at {header.base_offset}"
            sequences[key] = header.base_sequence + header.record_count
    for offset, sent in run.acknowledged.items():
        expected = bytearray(sent)
        patch_prefix(expected, 0, -1)
        assert stored.get(offset) == bytes(expected), f"acknowledged at {offset}"
