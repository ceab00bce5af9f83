"""Registration under a lease, on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from hapax.codec.metadata import NodeRecord
from hapax.core.types import NodeId
from hapax.runtime.ports import Compare, Delete, MetadataUnavailable, Put, TxnResult
from hapax.runtime.registration import NodeIdTaken, Registration, register
from hapax_sim.loop import SimProcess
from hapax_sim.metadata import MemoryMetadata
from unit.control_world import KEYS, ControlWorld, run

RECORD = NodeRecord(NodeId(100), "coordinator", "127.0.0.1", 9192, "127.0.0.1:7100", identity="folder-a")

ALLOCATOR = NodeRecord(NodeId(200), "pid", "127.0.0.1", 0, "127.0.0.1:7200")


class Nodes:
    def __init__(self, world: ControlWorld) -> None:
        self.world = world

    async def join(
        self, name: str, record: NodeRecord = RECORD, ttl_s: float = 3.0, among: range = range(0),
    ) -> tuple[SimProcess, Registration]:
        process = self.world.process(name)
        ports = self.world.ports(process)
        registration = await self.world.inside(process, register(
            ports.metadata, KEYS, record, random=ports.random, ttl_s=ttl_s, on_lost=self.world._on_lost(process),
            among=among))
        return process, registration

    async def choose(self, name: str, folder: str = "") -> tuple[SimProcess, Registration]:
        return await self.join(name, replace(ALLOCATOR, identity=folder or name), among=range(200, 203))

    def registered(self) -> NodeRecord | None:
        kv = self.world.model.get(KEYS.node(NodeId(100)))
        return None if kv is None else NodeRecord.decode(kv.value)


def test_it_registers_stays_and_goes_at_once() -> None:
    async def scenario(world: ControlWorld) -> None:
        nodes = Nodes(world)
        process, registration = await nodes.join("a")
        kv = world.model.get(KEYS.node(NodeId(100)))
        assert kv is not None and kv.create_revision == registration.epoch and len(registration.record.session) == 16
        await asyncio.sleep(60)
        assert nodes.registered() == registration.record and registration.confirmed and not world.ended
        await world.inside(process, registration.close())
        assert nodes.registered() is None and not world.ended

    run(scenario)


def test_a_restart_on_the_same_folder_replaces_the_dead_process_at_once() -> None:
    async def scenario(world: ControlWorld) -> None:
        nodes = Nodes(world)
        dead, first = await nodes.join("a")
        world.kill(dead)
        at = world.loop.time()
        _, second = await nodes.join("b")
        assert world.loop.time() - at < 0.1
        assert second.epoch > first.epoch and second.record.session != first.record.session
        await asyncio.sleep(10)  # the end of the dead one's lease takes nothing with it
        assert nodes.registered() == second.record

    run(scenario)


def test_the_replaced_process_ends_if_it_lives_after_all() -> None:
    async def scenario(world: ControlWorld) -> None:
        nodes = Nodes(world)
        frozen, _ = await nodes.join("a")
        world.loop.freeze(frozen)
        await nodes.join("b")
        world.loop.thaw(frozen)
        assert "another process registered as node 100" in await world.has_ended("a")

    run(scenario)


def test_a_process_on_another_folder_waits_for_the_lease_of_a_dead_one() -> None:
    async def scenario(world: ControlWorld) -> None:
        nodes = Nodes(world)
        dead, _ = await nodes.join("a")
        world.kill(dead)
        at = world.loop.time()
        _, second = await nodes.join("b", replace(RECORD, identity="folder-b"))
        assert 1.5 < world.loop.time() - at < 3.5
        assert nodes.registered() == second.record

    run(scenario)


@pytest.mark.parametrize("identity", ["folder-b", ""])
def test_a_process_on_another_folder_gives_up_before_a_live_one(identity: str) -> None:
    async def scenario(world: ControlWorld) -> None:
        nodes = Nodes(world)
        _, first = await nodes.join("a", replace(RECORD, identity="folder-a" if identity else ""))
        with pytest.raises(NodeIdTaken, match=r"node id 100 is in use by a live coordinator at 127\.0\.0\.1:9192"):
            await nodes.join("b", replace(RECORD, identity=identity))
        assert nodes.registered() == first.record and not world.ended

    run(scenario)


def test_a_lost_registration_ends_the_service() -> None:
    async def scenario(world: ControlWorld) -> None:
        nodes = Nodes(world)
        process, _ = await nodes.join("a")
        world.model.txn([], [Delete(KEYS.node(NodeId(100)))])
        assert "has ended with its lease" in await world.has_ended("a")
        assert process.alive

    run(scenario)


def test_a_freeze_longer_than_the_lease_ends_the_service() -> None:
    async def scenario(world: ControlWorld) -> None:
        nodes = Nodes(world)
        process, registration = await nodes.join("a")
        world.loop.freeze(process)
        await asyncio.sleep(10)
        assert nodes.registered() is None
        assert not registration.confirmed
        world.loop.thaw(process)
        await world.has_ended("a")

    run(scenario)


def test_an_outage_of_the_store_ends_nobody() -> None:
    async def scenario(world: ControlWorld) -> None:
        nodes = Nodes(world)
        _, registration = await nodes.join("a")
        world.model.stop()
        await asyncio.sleep(30)
        assert not registration.confirmed
        world.model.start()
        await asyncio.sleep(30)
        assert registration.confirmed and nodes.registered() == registration.record and not world.ended

    run(scenario)


@pytest.mark.parametrize("among", [range(0), range(100, 103)], ids=["its id", "an open id"])
def test_an_answer_that_was_lost_is_recognised_as_its_own(among: range) -> None:
    class LosesAnswers:
        """Each second call takes effect, but its answer is lost."""

        calls = 0

        async def request(self) -> None:
            return

        async def response(self) -> None:
            from hapax.runtime.ports import MetadataUnavailable

            self.calls += 1
            if self.calls % 3 == 0:
                raise MetadataUnavailable("lost")

    async def scenario(world: ControlWorld) -> None:
        process = world.process("a")
        store = MemoryMetadata(world.model, LosesAnswers())
        registration = await world.inside(process, register(
            store, KEYS, RECORD, random=world.random, on_lost=world._on_lost(process), among=among))
        assert len(world.model.list(KEYS.nodes)[0]) == 1
        kv = world.model.get(KEYS.node(NodeId(100)))
        assert kv is not None and (kv.create_revision, kv.lease) == (registration.epoch, registration.lease)
        await asyncio.sleep(60)
        assert Nodes(world).registered() == registration.record and not world.ended

    run(scenario)


@pytest.mark.parametrize("steps", range(1, 8))
def test_a_start_that_is_cancelled_leaves_nothing_behind(steps: int) -> None:
    async def scenario(world: ControlWorld) -> None:
        starting = asyncio.ensure_future(Nodes(world).join("a", ttl_s=1000))
        for _ in range(steps):
            await asyncio.sleep(0)
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        for task in world.processes[-1].tasks:
            task.cancel()
        await asyncio.gather(*world.processes[-1].tasks, return_exceptions=True)
        assert Nodes(world).registered() is None

    run(scenario)


def test_the_fence_of_a_registration_refuses_its_writes_once_it_is_replaced() -> None:
    async def scenario(world: ControlWorld) -> None:
        nodes = Nodes(world)
        _, first = await nodes.join("a")
        assert world.model.txn([first.fence()], [Put("k", b"1")]).succeeded
        _, second = await nodes.join("b")
        assert not world.model.txn([first.fence()], [Put("k", b"2")]).succeeded
        assert world.model.txn([second.fence()], [Put("k", b"3")]).succeeded

    run(scenario)


def test_a_node_says_how_fit_it_is_without_registering_anew() -> None:
    async def scenario(world: ControlWorld) -> None:
        nodes = Nodes(world)
        process, registration = await nodes.join("a")
        world.model.stop()
        world.loop.in_process(process, registration.declare, "full disk")  # told once the store is back
        await asyncio.sleep(2)
        world.model.start()
        await asyncio.sleep(1)
        kv = world.model.get(KEYS.node(NodeId(100)))
        assert kv is not None and kv.create_revision == registration.epoch and kv.lease == registration.lease
        assert NodeRecord.decode(kv.value) == replace(RECORD, session=registration.record.session, standing="full disk")
        assert await world.inside(process, registration.stand("stopping"))
        world.loop.in_process(process, registration.declare, "")  # a node that stops stays so
        await asyncio.sleep(10)
        stored = nodes.registered()
        assert stored is not None and stored.standing == "stopping" and not world.ended

    run(scenario)


def test_a_node_that_learns_its_rack_says_so_without_registering_again() -> None:
    async def scenario(world: ControlWorld) -> None:
        nodes = Nodes(world)
        process, registration = await nodes.join("a")
        world.model.stop()
        world.loop.in_process(process, registration.move, "zone-a")
        world.loop.in_process(process, registration.move, "zone-b")
        await asyncio.sleep(2)
        world.model.start()
        await asyncio.sleep(1)
        kv = world.model.get(KEYS.node(NodeId(100)))
        assert kv is not None and kv.create_revision == registration.epoch and kv.lease == registration.lease
        assert NodeRecord.decode(kv.value).rack == "zone-b"
        world.loop.in_process(process, registration.declare, "full disk")
        await asyncio.sleep(1)
        stored = nodes.registered()
        assert stored is not None and (stored.rack, stored.standing) == ("zone-b", "full disk")
        assert registration.record == stored and not world.ended

    run(scenario)


class LateWrites(MemoryMetadata):
    """The first write after `lose` has no known outcome: it takes effect at once or when `arrive` is called, but its
    answer is lost."""

    late: tuple[Sequence[Compare], Sequence[Put | Delete]] | None = None
    losing = ""
    lost: asyncio.Event

    async def txn(self, compares: Sequence[Compare], writes: Sequence[Put | Delete]) -> TxnResult:
        how, self.losing = self.losing, ""
        if how:
            self.late = compares, writes
            self.lost.set()
            if how == "at once":
                self.arrive()
            raise MetadataUnavailable("lost")
        return await super().txn(compares, writes)

    def arrive(self) -> None:
        assert self.late is not None
        self.model.txn(*self.late)


@pytest.mark.parametrize("how", ["at once", "late"])
def test_a_word_that_is_taken_back_before_its_outcome_is_known_does_not_stand(how: str) -> None:
    """The disk was full for a moment. A broker that was held to be unfit would never lead again."""
    async def scenario(world: ControlWorld) -> None:
        process = world.process("a")
        store = LateWrites(world.model)
        registration = await world.inside(process, register(
            store, KEYS, RECORD, random=world.random, on_lost=world._on_lost(process)))
        store.losing, store.lost = how, asyncio.Event()
        world.loop.in_process(process, registration.declare, "full disk")
        await store.lost.wait()
        world.loop.in_process(process, registration.declare, "")
        await asyncio.sleep(5)
        if how == "late":
            store.arrive()
        await asyncio.sleep(5)
        stored = Nodes(world).registered()
        assert stored is not None and stored.standing == "" and stored == registration.record and not world.ended

    run(scenario)


# --- ids that are not given but chosen


def test_each_of_those_who_choose_at_once_gets_an_id_of_its_own() -> None:
    async def scenario(world: ControlWorld) -> None:
        nodes = Nodes(world)
        joined = await asyncio.gather(*(nodes.choose(name) for name in "abc"))
        assert sorted(each.record.node_id for _, each in joined) == [200, 201, 202]
        for _, each in joined:
            kv = world.model.get(KEYS.node(each.record.node_id))
            assert kv is not None and NodeRecord.decode(kv.value) == each.record and kv.create_revision == each.epoch
        with pytest.raises(NodeIdTaken, match="all node ids from 200 to 202 are in use"):
            await nodes.choose("d")

    run(scenario)


def test_a_restart_chooses_its_predecessor_s_id_and_waits_for_nobody() -> None:
    async def scenario(world: ControlWorld) -> None:
        nodes = Nodes(world)
        await nodes.choose("a")
        dead, first = await nodes.choose("b")
        world.kill(dead)
        at = world.loop.time()
        _, second = await nodes.choose("c", folder="b")
        assert (second.record.node_id, world.loop.time() - at < 0.1) == (201, True)
        assert second.epoch > first.epoch

    run(scenario)


def test_who_replaces_a_dead_one_takes_another_id_without_waiting_for_its_lease() -> None:
    async def scenario(world: ControlWorld) -> None:
        nodes = Nodes(world)
        dead, _ = await nodes.choose("a")
        world.kill(dead)
        at = world.loop.time()
        _, second = await nodes.choose("b")
        assert (second.record.node_id, world.loop.time() - at < 0.1) == (201, True)
        await asyncio.sleep(10)
        _, third = await nodes.choose("c")
        assert third.record.node_id == 200  # its lease has ended

    run(scenario)


def test_one_that_was_frozen_while_its_id_was_given_away_ends_and_comes_back_under_another() -> None:
    async def scenario(world: ControlWorld) -> None:
        nodes = Nodes(world)
        frozen, _ = await nodes.choose("a")
        world.loop.freeze(frozen)
        await asyncio.sleep(10)
        _, second = await nodes.choose("b")
        assert second.record.node_id == 200
        world.loop.thaw(frozen)
        assert "another process registered as node 200" in await world.has_ended("a")
        _, again = await nodes.choose("a2", folder="a")
        assert again.record.node_id == 201 and "b" not in world.ended

    run(scenario)
