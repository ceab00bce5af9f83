"""The controller and several replicas, on virtual time: elections, early revocation, planned stops, preferences."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from hapax.codec.metadata import INTERNAL_TOPICS, PartitionRecord, SilentRecord
from hapax.core.types import NodeId, RegistrationEpoch
from hapax.runtime.cluster import Changes, ClusterView
from hapax.runtime.guarded_writes import GuardedWrite, write_changes
from hapax.runtime.handover import hand_over, partitions_finished, shards_finished
from hapax.runtime.ports import Compare, Put
from unit.control_world import KEYS, ControlWorld, FakeBroker, is_ready, run

FEW = {"transaction_state_log_num_partitions": 2, "offsets_topic_num_partitions": 2}


def records(view: ClusterView, name: str = "t") -> list[PartitionRecord]:
    topic = view.topic(name)
    assert topic is not None
    return [p.record for _, p in sorted(view.partitions_of(topic.topic_id).items())]


def all_led(view: ClusterView, name: str = "t") -> bool:
    topic = view.topic(name)
    return topic is not None and all(view.leader_of(topic.topic_id, i) for i in range(topic.partitions))


async def replicated(
    world: ControlWorld, partitions: int = 12, brokers: int = 3, factor: int = 3, **settings: Any
) -> tuple[ClusterView, list[FakeBroker]]:
    view = await world.view()
    _, controller = await world.controller(**FEW, **settings)
    made = [await world.broker(n, listens=True) for n in range(brokers)]
    await world.coordinator(100)
    await world.ready(view)
    await world.create(controller, factor=factor, t=partitions)
    return view, made


async def join_isr(world: ControlWorld, broker: FakeBroker, name: str = "t") -> None:
    """What the leaders do once the broker has caught up: they take it into the in-sync sets."""
    topic = broker.view.topic(name)
    assert topic is not None
    node = broker.registration.record.node_id
    changes = []
    for partition in broker.view.partitions_of(topic.topic_id).values():
        record = partition.record
        if node in record.replicas and node not in record.isr:
            grown = PartitionRecord(
                record.leader, record.leader_epoch, record.leader_registration, record.replicas, (*record.isr, node),
                record.accepted_epoch, (*record.isr_registrations, broker.registration.epoch), record.adding,
                record.removing)
            key = KEYS.partition(*partition.id)
            compare = Compare(key, "mod_revision", partition.mod_revision)
            changes.append(GuardedWrite((compare,), (Put(key, grown.encode()),)))
    store = world.ports(world.process("leader")).metadata
    outcome = await write_changes(store, broker.registration.fence(), changes)
    assert not outcome.stale


def test_partitions_of_a_killed_broker_are_led_by_others_long_before_its_lease_ends() -> None:
    async def scenario(world: ControlWorld) -> None:
        view, brokers = await replicated(world, 100)
        led = [i for i, r in enumerate(records(view)) if r.leader == 0]
        assert 33 <= len(led) <= 34 and all(set(r.isr) == {0, 1, 2} for r in records(view))
        world.kill(brokers[0].process)
        at = world.loop.time()
        await view.wait_for(lambda v: all(r.leader != 0 for r in records(v)) and all_led(v), 60)
        assert world.loop.time() - at < 0.5
        await view.wait_for(lambda v: all(set(r.isr) == {1, 2} for r in records(v)), 60)
        assert world.loop.time() - at < 2.0  # here the leaders do not see to it themselves
        assert Counter(records(view)[i].leader for i in led).keys() == {1, 2}  # its load is spread
        assert all(r.isr_registrations == tuple(brokers[n].registration.epoch for n in r.isr) for r in records(view))

    run(scenario)


def test_two_thousand_partitions_fail_over_in_few_transactions() -> None:
    async def scenario(world: ControlWorld) -> None:
        view, brokers = await replicated(world, 2000)
        revision = world.model.revision
        world.kill(brokers[1].process)
        at = world.loop.time()
        await view.wait_for(lambda v: all(r.leader != 1 for r in records(v)) and all_led(v), 60)
        assert world.loop.time() - at < 2.0
        await view.wait_for(lambda v: all(1 not in r.isr for r in records(v)), 60)
        assert world.model.revision - revision < 60

    run(scenario)


def test_a_frozen_broker_is_passed_over_and_keeps_its_registration() -> None:
    async def scenario(world: ControlWorld) -> None:
        view, brokers = await replicated(world, 100)
        registration = brokers[0].registration.epoch
        world.loop.freeze(brokers[0].process)
        at = world.loop.time()
        await view.wait_for(lambda v: all(r.leader != 0 for r in records(v)) and all_led(v), 60)
        assert 1.0 < world.loop.time() - at < 1.7, "five heartbeats, not the lease"
        await view.wait_for(lambda v: all(0 not in r.isr for r in records(v)), 60)
        assert world.loop.time() - at < 1.7, "nobody waits for it as a follower either"
        world.loop.thaw(brokers[0].process)
        await view.wait_for(lambda v: not v.silent, 60)
        assert view.node(NodeId(0)) is not None and not world.ended
        assert brokers[0].registration.epoch == registration
        await join_isr(world, brokers[0])
        await view.wait_for(lambda v: 0 in {r.leader for r in records(v)} and all_led(v), 60)

    run(scenario)


def test_a_broker_frozen_beyond_its_lease_ends() -> None:
    async def scenario(world: ControlWorld) -> None:
        view, brokers = await replicated(world)
        world.loop.freeze(brokers[0].process)
        await view.wait_for(lambda v: v.node(NodeId(0)) is None, 60)
        await view.wait_for(lambda v: not v.silent, 60)
        world.loop.thaw(brokers[0].process)
        await world.has_ended("broker-0")

    run(scenario)


@pytest.mark.parametrize("frozen", [True, False])
def test_a_broker_lost_together_with_the_acting_controller_is_replaced_before_any_lease_ends(frozen: bool) -> None:
    """As on a machine that has both: who takes over knows already who does not answer."""

    async def scenario(world: ControlWorld) -> None:
        patient = {**FEW, "broker_session_timeout_ms": 60_000}
        view = await world.view()
        first, acting = await world.controller(300, **patient)
        await view.wait_for(lambda v: v.controller is not None, 60)
        _, standby = await world.controller(301, **patient)
        brokers = [await world.broker(n, listens=True) for n in range(3)]
        await world.coordinator(100)
        await world.ready(view)
        await world.create(acting, factor=3, t=12)
        await asyncio.sleep(2)
        for process in (first, brokers[0].process):
            if frozen:
                world.loop.freeze(process)
            else:
                world.kill(process)
        at = world.loop.time()
        await view.wait_for(lambda v: all(r.leader != 0 for r in records(v)) and all_led(v), 60)
        assert world.loop.time() - at < 2.2, "silence, and no lease"
        assert standby.acts

    run(scenario)


def test_a_controller_that_stood_still_itself_passes_nobody_over() -> None:
    async def scenario(world: ControlWorld) -> None:
        view = await world.view()
        process, controller = await world.controller(**FEW, broker_session_timeout_ms=60_000)
        for n in range(3):
            await world.broker(n, listens=True)
        await world.coordinator(100)
        await world.ready(view)
        await world.create(controller, factor=3, t=12)
        before = records(view)
        world.loop.freeze(process)
        await asyncio.sleep(20)
        world.loop.thaw(process)
        await asyncio.sleep(5)
        assert records(view) == before and not controller.view.silent

    run(scenario)


@pytest.mark.parametrize("how", ["frozen", "killed"])
def test_a_controller_that_is_no_more_is_followed_at_once(how: str) -> None:
    async def scenario(world: ControlWorld) -> None:
        view = await world.view()
        process, first = await world.controller(300, **FEW, broker_session_timeout_ms=60_000)
        _, second = await world.controller(301, **FEW, broker_session_timeout_ms=60_000)
        await world.broker(listens=True)
        await world.coordinator(100)
        await world.ready(view)
        await asyncio.sleep(1)
        assert first.acts and not second.acts
        at = world.loop.time()
        world.loop.freeze(process) if how == "frozen" else world.kill(process)
        await view.wait_for(lambda v: v.controller is not None and v.controller.record.node_id == 301, 60)
        assert world.loop.time() - at < (1.7 if how == "frozen" else 0.5)
        await world.create(second, t=3)
        if how == "frozen":
            world.loop.thaw(process)
            await asyncio.sleep(1)
            assert second.acts and not first.acts and not world.ended

    run(scenario)


def test_a_node_that_fell_silent_twice_while_nobody_acted_does_not_end_the_next_controller() -> None:
    """The store says it of the former process, which is to be deleted, and it is to be said of this one."""
    async def scenario(world: ControlWorld) -> None:
        patient = {**FEW, "broker_session_timeout_ms": 60_000}
        view = await world.view()
        first, _ = await world.controller(300, **patient)
        await view.wait_for(lambda v: v.controller is not None, 60)
        _, second = await world.controller(301, **patient)
        await world.broker(0, listens=True)
        frozen = await world.broker(1, listens=True)
        await world.coordinator(100)
        await world.ready(view)
        await asyncio.sleep(1)
        for process in (first, frozen.process):
            world.loop.freeze(process)
        former = SilentRecord(RegistrationEpoch(frozen.registration.epoch - 1), 0)
        world.model.txn([], [Put(KEYS.silent(NodeId(1)), former.encode())])
        await view.wait_for(lambda v: v.silent.get(NodeId(1)) == frozen.registration.epoch, 2.5)
        assert second.acts and not world.ended

    run(scenario)


def test_who_is_the_only_one_left_leads_on_though_it_is_silent() -> None:
    async def scenario(world: ControlWorld) -> None:
        view, brokers = await replicated(world, 3, brokers=1, factor=1, broker_heartbeat_timeout_ms=400)
        before = records(view)
        world.loop.freeze(brokers[0].process)
        await asyncio.sleep(1.5)
        assert records(view) == before
        world.loop.thaw(brokers[0].process)
        await asyncio.sleep(1)
        assert records(view) == before

    run(scenario)


def test_a_frozen_coordinator_gives_its_shards_away_and_gets_some_back() -> None:
    async def scenario(world: ControlWorld) -> None:
        view = await world.view()
        await world.controller(**FEW)
        await world.broker(listens=True)
        frozen, _ = await world.coordinator(100, listens=True)
        await world.coordinator(101, listens=True)
        await world.ready(view)
        await asyncio.sleep(1)
        world.loop.freeze(frozen)
        at = world.loop.time()
        await view.wait_for(lambda v: {shard.record.owner for shard in v.shards("txn").values()} == {101}, 60)
        assert 1.0 < world.loop.time() - at < 1.7
        world.loop.thaw(frozen)
        await view.wait_for(lambda v: {shard.record.owner for shard in v.shards("txn").values()} == {100, 101}, 60)
        assert not world.ended

    run(scenario)


def test_a_node_that_was_never_reached_is_left_to_its_lease() -> None:
    async def scenario(world: ControlWorld) -> None:
        view, _ = await replicated(world)
        await world.broker(3)  # nobody listens at its address
        await asyncio.sleep(20)
        assert view.node(NodeId(3)) is not None and not world.ended

    run(scenario)


def test_a_killed_coordinator_is_noticed_at_once() -> None:
    async def scenario(world: ControlWorld) -> None:
        view = await world.view()
        await world.controller(**FEW)
        await world.broker(listens=True)
        dying, _ = await world.coordinator(100, listens=True)
        await world.coordinator(101, listens=True)
        await world.ready(view)
        await asyncio.sleep(1)
        world.kill(dying)
        at = world.loop.time()
        await view.wait_for(lambda v: v.node(NodeId(100)) is None and is_ready(v), 60)
        assert world.loop.time() - at < 0.5

    run(scenario)


def test_a_leader_that_stops_hands_over_without_a_leaderless_moment() -> None:
    async def scenario(world: ControlWorld) -> None:
        view, brokers = await replicated(world, 120)
        stopping = brokers[2]
        leaderless: list[int] = []
        view.on_change(lambda changes: leaderless.extend(1 for r in records(view) if r.leader == -1))
        before = [r.leader_epoch for r in records(view)]
        slices: list[int] = []

        def look(changes: Changes) -> None:
            slices.append(sum(r.leader_epoch != epoch and not r.accepted for r, epoch in zip(
                records(view), before, strict=True)))

        view.on_change(look)
        at = world.loop.time()
        await world.inside(stopping.process, hand_over(
            stopping.registration, stopping.view, partitions_finished(stopping.view), 10.0))
        assert world.loop.time() - at < 0.5
        assert 0 < max(slices) <= 16  # none waits for all the others to be taken over
        await view.reached(stopping.view.revision)
        assert all(r.leader != 2 and set(r.isr) == {0, 1} and r.accepted for r in records(view))
        await world.inside(stopping.process, stopping.registration.close())
        epochs = [r.leader_epoch for r in records(view)]
        await asyncio.sleep(1)
        assert [r.leader_epoch for r in records(view)] == epochs and not leaderless

    run(scenario)


def test_the_last_broker_does_not_wait_for_anybody() -> None:
    async def scenario(world: ControlWorld) -> None:
        view, brokers = await replicated(world, brokers=1, factor=1)
        revision = world.model.revision
        at = world.loop.time()
        await world.inside(brokers[0].process, hand_over(
            brokers[0].registration, brokers[0].view, partitions_finished(brokers[0].view), 10.0))
        assert (world.loop.time(), world.model.revision) == (at, revision)
        assert all(r.leader == 0 for r in records(view))

    run(scenario)


def test_a_coordinator_that_stops_gives_its_shards_away_while_it_serves() -> None:
    async def scenario(world: ControlWorld) -> None:
        view = await world.view()
        await world.controller()
        await world.broker()
        process, registration = await world.coordinator(100)
        await world.coordinator(101)
        await world.ready(view)
        own = await world.view("own")
        at = world.loop.time()
        await world.inside(process, hand_over(registration, own, shards_finished, 10.0))
        assert world.loop.time() - at < 0.5
        assert all(s.record.owner == 101 for kind in ("txn", "group") for s in own.shards(kind).values())
        assert view.node(NodeId(100)) is not None

    run(scenario)


def test_a_broker_with_a_full_disk_gives_its_leaderships_up_and_gets_them_back() -> None:
    async def scenario(world: ControlWorld) -> None:
        view, brokers = await replicated(world)
        before = [r.leader for r in records(view)]
        brokers[0].registration.declare("full disk")
        await view.wait_for(lambda v: all(r.leader != 0 for r in records(v)) and all_led(v), 5)
        assert all(set(r.isr) == {0, 1, 2} for r in records(view))  # it may follow, as far as it can
        brokers[0].registration.declare("")
        steps: list[int] = []
        view.on_change(lambda changes: steps.append(sum(
            p.topic_id == view.topic("t").topic_id for p in changes.partitions)))  # type: ignore[union-attr]
        await view.wait_for(lambda v: [r.leader for r in records(v)] == before and all_led(v), 60)
        assert max(steps) <= 2  # a few at a time

    run(scenario)


def test_a_broker_that_came_back_leads_only_after_it_caught_up() -> None:
    async def scenario(world: ControlWorld) -> None:
        view, brokers = await replicated(world)
        before = [r.leader for r in records(view)]
        world.kill(brokers[0].process)
        await view.wait_for(lambda v: all(r.leader != 0 for r in records(v)) and all_led(v), 60)
        again = await world.broker(0, listens=True)
        await asyncio.sleep(10)
        assert all(0 not in r.isr and r.leader != 0 for r in records(view))
        await join_isr(world, again)
        await view.wait_for(lambda v: [r.leader for r in records(v)] == before and all_led(v), 60)

    run(scenario)


@pytest.mark.parametrize("allowed", [False, True])
def test_a_partition_without_a_live_member_waits_or_is_saved_uncleanly(allowed: bool) -> None:
    async def scenario(world: ControlWorld) -> None:
        view, brokers = await replicated(
            world, partitions=1, factor=2, unclean_leader_election_enable=allowed)
        (record,) = records(view)
        first, second = record.replicas
        world.kill(brokers[second].process)
        await view.wait_for(lambda v: records(v)[0].isr == (first,), 60)
        world.kill(brokers[first].process)
        await view.wait_for(lambda v: records(v)[0].leader == -1, 60)
        await world.broker(second, listens=True)
        if allowed:
            await view.wait_for(lambda v: records(v)[0].leader == second, 60)
            assert records(view)[0].isr == (second,)
            assert records(view)[0].unclean_epoch == records(view)[0].leader_epoch
            assert records(view)[0].unclean_ms >= 0
        else:
            await asyncio.sleep(30)
            assert (records(view)[0].leader, records(view)[0].isr) == (-1, (first,))
            await world.broker(first, listens=True)
            await view.wait_for(lambda v: records(v)[0].leader == first, 60)
            assert records(view)[0].unclean_ms == -1

    run(scenario)


def test_internal_topics_get_their_replicas_when_the_brokers_are_there() -> None:
    async def scenario(world: ControlWorld) -> None:
        view = await world.view()
        await world.controller(
            **FEW, transaction_state_log_replication_factor=3, offsets_topic_replication_factor=3)
        brokers = [await world.broker(0)]
        await world.coordinator()
        await world.ready(view)
        assert all(r.replicas == (0,) for name in INTERNAL_TOPICS for r in records(view, name))
        brokers += [await world.broker(1), await world.broker(2)]
        await view.wait_for(lambda v: all(len(r.adding) == 2 for n in INTERNAL_TOPICS for r in records(v, n)), 60)
        for name in INTERNAL_TOPICS:
            for broker in brokers[1:]:
                await broker.view.reached(world.model.revision)
                await join_isr(world, broker, name)
                await broker.view.reached(world.model.revision)

        def grown(view: ClusterView, name: str) -> bool:
            topic = view.topic(name)
            assert topic is not None
            return all(not r.adding and len(r.replicas) == len(r.isr) == 3 for r in records(view, name)) and (
                topic.config.get("min.insync.replicas"), topic.record.replication_factor) == ("2", 3)

        await view.wait_for(lambda v: all(grown(v, name) for name in INTERNAL_TOPICS), 60)

    run(scenario)


def test_a_new_cluster_of_three_gets_safe_internal_topics_from_the_start() -> None:
    async def scenario(world: ControlWorld) -> None:
        view = await world.view()
        await world.controller(
            **FEW, transaction_state_log_replication_factor=3, offsets_topic_replication_factor=3)
        await asyncio.gather(*(world.broker(n) for n in range(3)))
        await world.coordinator()
        await world.ready(view)
        for name in INTERNAL_TOPICS:
            topic = view.topic(name)
            assert topic is not None and topic.config["min.insync.replicas"] == "2"
            assert all(len(r.replicas) == len(r.isr) == 3 for r in records(view, name))

    run(scenario)
