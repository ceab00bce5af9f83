"""The PID allocator on virtual time: blocks, leases, fences, progress."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

import hapax.pid.service
from hapax.codec.metadata import PidCounterRecord, PidLeaseRecord
from hapax.controller.service import ControllerService
from hapax.core.errors import ErrorCode
from hapax.core.partition.machine import ProducerView
from hapax.core.producer.leases import LAST_GENERATION
from hapax.core.types import NodeId, PartitionIndex, ProducerEpoch, ProducerId, TopicIdPartition
from hapax.pid.service import PidService
from hapax.rpc.gen.hapax.internal.v1 import pid_pb2
from hapax.rpc.gen.hapax.v1 import cluster_admin_pb2
from hapax.rpc.gen.hapax.v1 import lease_pb2 as pb
from hapax.runtime.cluster import ClusterView
from hapax.runtime.ports import Put, RpcError
from hapax.runtime.producer_ids import ProducerIds, ProducerIdsUnavailable
from hapax.runtime.telemetry import Metrics
from unit.control_world import CLUSTER, KEYS, ControlWorld, FakeBroker, run


class Lab:
    """One allocator, one or two brokers, a topic `t` of four partitions."""

    def __init__(
        self, world: ControlWorld, view: ClusterView, controller: ControllerService, service: PidService,
        brokers: list[FakeBroker],
    ) -> None:
        self.world, self.view, self.service, self.brokers = world, view, service, brokers
        self.controller = controller
        topic = view.topic("t")
        assert topic is not None
        self.partitions = [TopicIdPartition(topic.topic_id, PartitionIndex(i)) for i in range(4)]

    def leader(self, partition: int) -> FakeBroker:
        return next(broker for broker in self.brokers if broker.leads(self.partitions[partition]))

    def write(self, lease: pb.LeasePidResponse, partition: int, records: int) -> bool:
        leased = lease.partitions[0]
        return self.leader(partition).write(
            self.partitions[partition], leased.producer_id, leased.generation, records, self.now_ms)

    @property
    def now_ms(self) -> int:
        return self.world.clocks["pid-0"].now_ms()

    def held(self, partition: int, producer_id: int) -> ProducerView:
        """What the partition knows of a producer."""
        found = self.leader(partition).machine(self.partitions[partition]).describe_producer(producer_id)
        assert found is not None
        return found

    async def lease(self, *partitions: int, name: str = "loader", expire_ms: int = 60_000, **fields: Any) -> Any:
        request = pb.LeasePidRequest(
            name=name, expire_ms=expire_ms, partitions=[pb.Partition(topic="t", partition=p) for p in partitions],
            **fields)
        return await self.world.call(self.service, "LeasePid", request, pb.LeasePidResponse)

    async def renew(self, lease: pb.LeasePidResponse, expire_ms: int = 60_000) -> Any:
        first = lease.partitions[0]
        return await self.world.call(self.service, "RenewLease", pb.RenewLeaseRequest(
            name=lease.name, producer_id=first.producer_id, generation=first.generation, expire_ms=expire_ms,
        ), pb.RenewLeaseResponse)

    async def release(self, lease: pb.LeasePidResponse) -> Any:
        first = lease.partitions[0]
        return await self.world.call(self.service, "ReleaseLease", pb.ReleaseLeaseRequest(
            name=lease.name, producer_id=first.producer_id, generation=first.generation), pb.ReleaseLeaseResponse)

    async def progress(self, *partitions: int, **fields: Any) -> Any:
        return await self.world.call(self.service, "GetProducerProgress", pb.GetProducerProgressRequest(
            partitions=[pb.Partition(topic="t", partition=p) for p in partitions], **fields),
            pb.GetProducerProgressResponse)

    def days_pass(self, days: float) -> None:
        """Of every clock; brokers forget what may be forgotten then."""
        self.world.clocks["pid-0"].skew_ms += int(days * 86_400_000)
        for broker in self.brokers:
            broker.days_pass(self.now_ms)

    async def stored(self, name: str = "loader") -> PidLeaseRecord:
        kv = self.world.model.get(KEYS.pid_lease(name))
        assert kv is not None
        return PidLeaseRecord.decode(kv.value)

    def store(self, lease: PidLeaseRecord) -> None:
        self.world.model.txn([], [Put(KEYS.pid_lease(lease.name), lease.encode())])


def in_lab(scenario: Callable[[Lab], Awaitable[None]], brokers: int = 2, **settings: object) -> None:
    async def inside(world: ControlWorld) -> None:
        view = await world.view()
        _, controller = await world.controller(transaction_state_log_num_partitions=1, offsets_topic_num_partitions=1)
        fakes = [await world.broker(node_id) for node_id in range(brokers)]
        await world.coordinator()
        await world.ready(view)
        await world.create(controller, t=4)
        _, service = await world.allocator(**settings)
        await service.view.reached(world.model.revision)
        await scenario(Lab(world, view, controller, service, fakes))

    run(inside)


# --- blocks


def test_blocks_never_meet_however_many_allocate() -> None:
    async def scenario(world: ControlWorld) -> None:
        services = [(await world.allocator(200 + i))[1] for i in range(4)]
        request = pid_pb2.AllocateBlockRequest(node_id=0, size=7)
        answers = await asyncio.gather(*(
            world.call(services[i % 4], "AllocateBlock", request, pid_pb2.AllocateBlockResponse) for i in range(80)))
        firsts = sorted(answer.first for answer in answers)
        assert firsts == list(range(0, 80 * 7, 7))

    run(scenario)


def test_a_counter_behind_an_id_in_use_is_refused() -> None:
    async def scenario(world: ControlWorld) -> None:
        _, service = await world.allocator()
        view = await world.view()
        await world.call(service, "AllocateBlock", pid_pb2.AllocateBlockRequest(size=10), pid_pb2.AllocateBlockResponse)

        world.model.txn([], [Put(KEYS.pid_next, PidCounterRecord(ProducerId(5)).encode())])
        ids = ProducerIds(world.network.network(world.process("node")), view, NodeId(0), world.random, 10)
        ids.start()
        try:
            await ids.next(timeout=1.0)
        except ProducerIdsUnavailable:
            pass
        else:
            raise AssertionError("an id in use was given out again")
        # Another allocator knows nothing, but the caller tells it what it has seen.
        _, other = await world.allocator(201)
        try:
            await world.call(other, "AllocateBlock", pid_pb2.AllocateBlockRequest(size=1, in_use_below=10),
                             pid_pb2.AllocateBlockResponse)
        except Exception as refused:
            assert "FAILED_PRECONDITION" in str(refused) and "9 is in use" in str(refused)
        else:
            raise AssertionError("a counter behind a node was served")
        await ids.close()

    run(scenario)


def test_a_node_of_another_cluster_gets_no_block_and_what_it_has_seen_does_not_count() -> None:
    """An address may have become another cluster's since it was registered: pods' addresses are given out again."""
    async def scenario(world: ControlWorld) -> None:
        _, service = await world.allocator()
        try:
            await world.call(
                service, "AllocateBlock", pid_pb2.AllocateBlockRequest(size=1, in_use_below=1_000_000),
                pid_pb2.AllocateBlockResponse, cluster_id="another")
        except RpcError as refused:
            assert f"belongs to cluster {KEYS.cluster_id}, not to another" in str(refused)
            assert refused.status == "UNAVAILABLE"  # clients look for another one then
        else:
            raise AssertionError("another cluster's node got ids of this one")
        # Else it would take its own counter for one that fell behind, and end.
        answer = await world.call(
            service, "AllocateBlock", pid_pb2.AllocateBlockRequest(size=1),
            pid_pb2.AllocateBlockResponse)
        assert answer.first == 0

    run(scenario)


@pytest.mark.parametrize(("method", "request_type"), [
    ("LeasePid", pb.LeasePidRequest), ("RenewLease", pb.RenewLeaseRequest), ("ReleaseLease", pb.ReleaseLeaseRequest),
    ("ListLeases", pb.ListLeasesRequest), ("GetProducerProgress", pb.GetProducerProgressRequest),
])
def test_leases_of_another_cluster_are_not_asked_for_here(method: str, request_type: Any) -> None:
    async def scenario(world: ControlWorld) -> None:
        _, service = await world.allocator()
        with pytest.raises(RpcError, match="not to another") as refused:
            await world.call(service, method, request_type(), pb.LeasePidResponse, cluster_id="another")
        assert refused.value.status == "UNAVAILABLE"
        with pytest.raises(RpcError, match="names no cluster") as refused:
            await world.call(service, method, request_type(), pb.LeasePidResponse, cluster_id="")
        assert refused.value.status == "FAILED_PRECONDITION"

    run(scenario)


def test_a_counter_that_another_history_moved_to_the_same_revision_is_read_anew() -> None:
    async def scenario(world: ControlWorld) -> None:
        _, service = await world.allocator()
        first = await service.blocks.allocate(10)
        kv = world.model.get(KEYS.pid_next)
        assert kv is not None
        # The store was restored from a backup, and other allocators have moved the counter since.
        world.model._kvs[KEYS.pid_next] = replace(kv, value=PidCounterRecord(ProducerId(40)).encode())
        assert (first.first, (await service.blocks.allocate(10)).first) == (0, 40)

    run(scenario)


def test_nobody_waits_at_the_end_of_a_block() -> None:
    async def scenario(world: ControlWorld) -> None:
        await world.allocator()
        view = await world.view()
        ids = ProducerIds(world.network.network(world.process("node")), view, NodeId(0), world.random, 100)
        given = [await ids.next()]  # the first one has to wait
        for _ in range(20):
            at = world.loop.time()
            given += [await ids.next() for _ in range(25)]
            assert world.loop.time() == at
            await asyncio.sleep(1)
        assert given == sorted(set(given))
        await ids.close()

    run(scenario)


def test_ids_come_from_another_allocator_when_one_dies() -> None:
    async def scenario(world: ControlWorld) -> None:
        first, _ = await world.allocator(200)
        second, _ = await world.allocator(201)
        view = await world.view()
        ids = ProducerIds(world.network.network(world.process("node")), view, NodeId(0), world.random, 4)
        given = [await ids.next() for _ in range(10)]
        world.kill(first)
        given += [await ids.next(timeout=10) for _ in range(20)]
        await world.allocator(200)
        world.kill(second)
        given += [await ids.next(timeout=10) for _ in range(20)]
        assert given == sorted(set(given))
        await ids.close()

    run(scenario)


# --- leases


def test_a_lease_its_progress_and_its_take_over() -> None:
    async def scenario(lab: Lab) -> None:
        first = await lab.lease(0, 2, holder="a")
        assert (first.error, first.former_holder) == (0, "")
        assert [(p.generation, p.next_sequence, p.record_count, p.error) for p in first.partitions] == [
            (0, 0, 0, 0)] * 2
        assert lab.write(first, 0, 10) and lab.write(first, 2, 20)

        second = await lab.lease(0, 2, holder="b")
        assert second.former_holder == "a"
        assert {p.producer_id for p in second.partitions} == {p.producer_id for p in first.partitions}
        assert [(p.generation, p.next_sequence, p.record_count) for p in second.partitions] == [(1, 0, 10), (1, 0, 20)]
        assert not lab.write(first, 0, 1)
        assert lab.write(second, 0, 5)
        progress = await lab.progress(name="loader")
        assert [(p.partition.partition, p.record_count, p.generation) for p in progress.partitions] == [
            (0, 15, 1), (2, 20, 1)]
        by_id = await lab.progress(0, 1, producer_id=second.partitions[0].producer_id)
        assert [(p.record_count, p.last_sequence) for p in by_id.partitions] == [(15, 4), (0, -1)]

    in_lab(scenario)


def test_a_take_over_fences_partitions_that_it_does_not_ask_for() -> None:
    async def scenario(lab: Lab) -> None:
        first = await lab.lease(0, 1)
        second = await lab.lease(3)
        assert [p.partition.partition for p in second.partitions] == [3, 0, 1]
        assert not lab.write(first, 0, 1) and not lab.write(first, 1, 1)

    in_lab(scenario)


def test_a_holder_resumes_where_it_was() -> None:
    async def scenario(lab: Lab) -> None:
        first = await lab.lease(0, holder="a")
        lab.write(first, 0, 10)
        pid = first.partitions[0].producer_id
        resumed = await lab.lease(0, 1, holder="a", resume_producer_id=pid, resume_generation=0)
        assert [(p.generation, p.next_sequence, p.record_count) for p in resumed.partitions] == [(0, 10, 10), (0, 0, 0)]
        await lab.lease(0, holder="b")
        late = await lab.lease(0, holder="a", resume_producer_id=pid, resume_generation=0)
        assert late.error == ErrorCode.PRODUCER_FENCED and "'b'" in late.reason
        unknown = await lab.lease(0, name="other", resume_producer_id=pid, resume_generation=0)
        assert unknown.error == ErrorCode.INVALID_PRODUCER_ID_MAPPING

    in_lab(scenario)


def test_a_careful_taker_fences_nobody() -> None:
    metrics = Metrics()

    async def scenario(lab: Lab) -> None:
        first = await lab.lease(0, holder="a", unless_held=True)
        refused = await lab.lease(0, holder="b", unless_held=True)
        assert refused.error == ErrorCode.INVALID_REQUEST and "held by 'a'" in refused.reason
        assert lab.write(first, 0, 1)
        assert metrics.values()['hapax_pid_leases_refused_total{code="INVALID_REQUEST"}'] == 1

    in_lab(scenario, metrics=metrics)


def test_renewal_moves_the_end_everywhere_and_stops_at_it() -> None:
    async def scenario(lab: Lab) -> None:
        lease = await lab.lease(0, 1, expire_ms=10_000)
        await asyncio.sleep(6)
        renewed = await lab.renew(lease, 10_000)
        assert renewed.error == 0 and renewed.expires_at_ms > lease.partitions[0].expires_at_ms
        for index in (0, 1):
            assert lab.held(index, lease.partitions[0].producer_id).keep_until_ms == renewed.expires_at_ms
        await asyncio.sleep(11)
        assert (await lab.renew(lease)).error == ErrorCode.INVALID_PRODUCER_EPOCH
        again = await lab.lease(0)
        assert (again.partitions[0].generation, again.former_holder) == (1, "")

    in_lab(scenario)


def test_a_released_lease_ends_at_once_and_keeps_its_counts() -> None:
    async def scenario(lab: Lab) -> None:
        lease = await lab.lease(0, holder="a")
        lab.write(lease, 0, 3)
        assert (await lab.release(lease)).error == 0
        assert (await lab.renew(lease)).error == ErrorCode.INVALID_PRODUCER_EPOCH
        again = await lab.lease(0, holder="b")
        assert (again.former_holder, again.partitions[0].record_count) == ("", 3)
        assert (await lab.release(lease)).error == ErrorCode.PRODUCER_FENCED

    in_lab(scenario)


def test_fences_are_sent_again_until_the_leader_answers() -> None:
    async def scenario(lab: Lab) -> None:
        for broker in lab.brokers:
            broker.refuse_fences = 3
        lease = await lab.lease(0, 1, 2, 3)
        assert [p.error for p in lease.partitions] == [0] * 4
        assert sum(len(broker.fences) for broker in lab.brokers) == 4

    in_lab(scenario)


def test_a_partition_without_a_leader_fails_alone_and_later_succeeds() -> None:
    async def scenario(lab: Lab) -> None:
        first = await lab.lease(0, 1)
        lab.write(first, 0, 5)
        dead = lab.leader(0)
        alive = lab.leader(1)
        assert dead is not alive
        lab.world.kill(dead.process)
        await lab.view.wait_for(lambda v: v.leader_of(*lab.partitions[0]) is None)
        second = await lab.lease(0, 1, holder="b")
        errors = {p.partition.partition: p.error for p in second.partitions}
        assert errors == {0: ErrorCode.REQUEST_TIMED_OUT, 1: 0}

        # It comes back with its log; the fence that it missed is made up for before the holder goes on.
        back = await lab.world.broker(dead.registration.record.node_id)
        back.machines = dead.machines
        lab.brokers.append(back)
        pid = second.partitions[1].producer_id
        third = await lab.lease(0, 1, holder="b", resume_producer_id=pid, resume_generation=1)
        assert [(p.error, p.generation, p.record_count) for p in third.partitions] == [(0, 1, 5), (0, 1, 0)]
        assert not lab.write(first, 0, 1)

    in_lab(scenario)


def test_the_allocator_may_die_between_generation_and_fences() -> None:
    async def scenario(lab: Lab) -> None:
        first = await lab.lease(0, holder="a")
        # Persisted by an allocator that died before its fences left:
        stored = await lab.stored()
        lab.store(PidLeaseRecord(
            "loader", stored.producer_id, ProducerEpoch(1), "b", stored.held_since_ms, stored.expires_at_ms,
            stored.partitions))
        assert lab.write(first, 0, 4)  # nobody was answered yet, so nobody relies on its being fenced
        third = await lab.lease(0, holder="c")
        assert (third.partitions[0].generation, third.partitions[0].record_count) == (2, 4)
        assert not lab.write(first, 0, 1)

    in_lab(scenario)


def test_an_allocator_takes_a_lease_over_before_it_is_registered_itself() -> None:
    """It listens first, and its node id may be another's until that one's lease has ended."""
    async def scenario(lab: Lab) -> None:
        world = lab.world
        first = await lab.lease(0, holder="first")
        assert lab.write(first, 0, 3)
        process = world.process("pid-1")
        starting = asyncio.ensure_future(world.inside(process, hapax.pid.service.start(
            world.ports(process), world.settings(200, public_rpc_listen="127.0.0.1:7300"), on_lost=pytest.fail)))
        channel = world.network.network(world.process("caller")).public_channel("127.0.0.1:7300", CLUSTER)
        request = pb.LeasePidRequest(
            name="loader", expire_ms=60_000, holder="second", partitions=[pb.Partition(topic="t", partition=0)])
        while True:
            try:
                answer = await channel.call("/hapax.v1.ProducerLeases/LeasePid", request.SerializeToString(), 60)
                break
            except RpcError as error:
                assert error.status == "UNAVAILABLE", error
                await asyncio.sleep(0.01)
        assert not starting.done()
        second = pb.LeasePidResponse.FromString(answer)
        assert (second.error, second.former_holder, second.partitions[0].record_count) == (0, "first", 3)
        assert not lab.write(first, 0, 1)
        world.kill(next(each for each in world.processes if each.name == "pid-0"))
        await starting

    in_lab(scenario)


def test_of_concurrent_take_overs_the_last_one_holds() -> None:
    async def scenario(lab: Lab) -> None:
        await lab.lease(0)
        answers = await asyncio.gather(*(lab.lease(0, holder=str(i)) for i in range(8)))
        granted = [a for a in answers if a.error == 0]
        assert {a.error for a in answers} <= {0, ErrorCode.PRODUCER_FENCED}
        generations = [a.partitions[0].generation for a in granted]
        assert len(set(generations)) == len(generations) and max(generations) == 8
        writers = [a for a in granted if lab.write(a, 0, 1)]
        assert [a.partitions[0].generation for a in writers] == [8]

    in_lab(scenario)


def test_progress_goes_on_when_generations_run_out() -> None:
    async def scenario(lab: Lab) -> None:
        first = await lab.lease(0, 1, holder="a")
        lab.write(first, 0, 10)
        stored = await lab.stored()
        old = stored.producer_id
        lab.store(PidLeaseRecord(
            "loader", old, LAST_GENERATION, "a", stored.held_since_ms, stored.expires_at_ms, stored.partitions))
        lab.leader(0).write(lab.partitions[0], old, LAST_GENERATION, 7)

        second = await lab.lease(0, holder="b")
        assert second.error == 0
        assert [(p.generation, p.record_count, p.next_sequence) for p in second.partitions] == [(0, 17, 0), (0, 0, 0)]
        new = second.partitions[0].producer_id
        assert new != old
        assert not lab.leader(0).write(lab.partitions[0], old, LAST_GENERATION, 1)
        assert lab.write(second, 0, 3)
        progress = await lab.progress(name="loader")
        assert [p.record_count for p in progress.partitions] == [20, 0]
        third = await lab.lease(0)
        assert (third.partitions[0].producer_id, third.partitions[0].record_count) == (new, 20)

    in_lab(scenario)


def test_a_long_expired_lease_rests_with_its_counts_and_keeps_them() -> None:
    async def scenario(lab: Lab) -> None:
        first = await lab.lease(0, 1, expire_ms=1_000)
        lab.write(first, 0, 10)
        lab.days_pass(1 / 24)
        await lab.service.leases.tidy()
        assert not (await lab.stored()).rests  # half of the partitions' memory is not over yet
        lab.days_pass(0.5)
        await lab.service.leases.tidy()
        assert (await lab.stored()).rests
        await lab.service.leases.tidy()  # the partitions hear that it is counted
        lab.days_pass(2)
        for index in (0, 1):
            assert lab.leader(index).machine(lab.partitions[index]).may_have_forgotten(
                first.partitions[0].producer_id)
        assert [p.record_count for p in (await lab.progress(name="loader")).partitions] == [10, 0]
        again = await lab.lease(0)
        assert again.partitions[0].record_count == 10
        assert again.partitions[0].producer_id != first.partitions[0].producer_id
        lab.days_pass(400)
        for _ in range(3):  # counted, told, and no more: a loader that comes back once a year goes on at the right line
            await lab.service.leases.tidy()
        assert (await lab.lease(0)).partitions[0].record_count == 10

    in_lab(scenario)


def test_a_name_at_rest_is_forgotten_once_its_count_is_gone_with_its_topic() -> None:
    async def scenario(lab: Lab) -> None:
        first = await lab.lease(0, 1, expire_ms=1_000)
        await lab.lease(2, name="idle", expire_ms=1_000)
        lab.write(first, 0, 10)
        lab.days_pass(1)
        for _ in range(2):  # counted, told
            await lab.service.leases.tidy()
        lab.days_pass(40)
        await lab.service.leases.tidy()
        assert lab.world.model.get(KEYS.pid_lease("idle")) is None, "it never wrote: 0 is the truth"
        assert (await lab.stored()).carried[lab.partitions[0]] == 10
        await lab.world.call(
            lab.controller, "DeleteTopics", cluster_admin_pb2.DeleteTopicsRequest(names=["t"], timeout_ms=5000),
            cluster_admin_pb2.DeleteTopicsResponse)
        await lab.service.view.reached(lab.world.model.revision)
        await lab.service.leases.tidy()
        assert lab.world.model.get(KEYS.pid_lease("loader")) is None

    in_lab(scenario)


@pytest.mark.parametrize("expire_ms", [1_000, 3 * 86_400_000])
def test_progress_outlives_an_allocator_that_is_away_for_days(expire_ms: int) -> None:
    """Nothing closes and counts the lease before the partitions forget idle producers."""
    async def scenario(lab: Lab) -> None:
        first = await lab.lease(0, 1, expire_ms=expire_ms)
        lab.write(first, 0, 10)
        lab.days_pass(3)
        lab.days_pass(10)
        told = await lab.progress(name="loader")
        assert [(p.error, p.record_count) for p in told.partitions] == [(0, 10), (0, 0)]
        by_id = await lab.progress(0, producer_id=first.partitions[0].producer_id)
        assert [(p.error, p.record_count) for p in by_id.partitions] == [(0, 10)]
        again = await lab.lease(0)
        assert (again.error, again.partitions[0].error, again.partitions[0].record_count) == (0, 0, 10)

    in_lab(scenario)


def test_a_long_lease_is_counted_before_its_partitions_forget_it() -> None:
    async def scenario(lab: Lab) -> None:
        first = await lab.lease(0, expire_ms=3 * 86_400_000)
        lab.write(first, 0, 10)
        for _ in range(40):  # beyond its end, then its closing and its counting
            lab.days_pass(0.25)
            await lab.service.leases.tidy()
        assert (await lab.stored()).rests
        again = await lab.lease(0)
        assert (again.error, again.partitions[0].error, again.partitions[0].record_count) == (0, 0, 10)

    in_lab(scenario)


def test_a_lease_whose_closing_takes_days_keeps_the_counts_of_the_partitions_that_were_closed() -> None:
    async def scenario(lab: Lab) -> None:
        first = await lab.lease(0, 1, expire_ms=1_000)
        lab.write(first, 0, 10)
        lab.write(first, 1, 5)
        away = lab.leader(1)
        assert away is not lab.leader(0)
        lab.world.kill(away.process)
        lab.brokers.remove(away)
        await lab.view.wait_for(lambda v: v.leader_of(*lab.partitions[1]) is None)
        lab.days_pass(1)
        await lab.service.leases.tidy()  # closes partition 0 and waits for partition 1; then no allocator is there
        assert (await lab.stored()).closing
        lab.days_pass(3)
        lab.days_pass(3)
        back = await lab.world.broker(away.registration.record.node_id)
        back.machines = away.machines
        lab.brokers.append(back)
        await lab.view.wait_for(lambda v: v.leader_of(*lab.partitions[1]) is not None)
        again = await lab.lease(0, 1)
        assert [(p.error, p.record_count) for p in again.partitions] == [(0, 10), (0, 5)]

    in_lab(scenario)


@pytest.mark.filterwarnings("error::RuntimeWarning", "error::pytest.PytestUnraisableExceptionWarning")
def test_a_partition_that_was_away_hears_later_that_it_may_forget() -> None:
    """The time ends while it is asked: no coroutine is left that nobody awaits."""
    async def scenario(lab: Lab) -> None:
        first = await lab.lease(0, 1, expire_ms=1_000)
        pid = first.partitions[0].producer_id
        lab.days_pass(1)
        await lab.service.leases.tidy()
        assert (await lab.stored()).rests and (await lab.stored()).counted == (pid,)
        away = lab.leader(1)
        away.refuse_fences = 1_000_000
        await lab.service.leases.tidy()
        assert (await lab.stored()).counted == (pid,)
        away.refuse_fences = 0
        await lab.service.leases.tidy()
        assert (await lab.stored()).counted == ()
        lab.days_pass(2)
        for index in (0, 1):
            assert lab.leader(index).machine(lab.partitions[index]).may_have_forgotten(pid)

    in_lab(scenario)


def test_a_producer_that_a_partition_may_have_forgotten_has_no_progress_of_zero() -> None:
    async def scenario(lab: Lab) -> None:
        stranger = 4_711
        lab.leader(0).write(lab.partitions[0], stranger, 0, 7, lab.now_ms)
        before = await lab.progress(0, producer_id=stranger)
        assert [(p.error, p.record_count) for p in before.partitions] == [(0, 7)]
        lab.days_pass(2)
        after = await lab.progress(0, 1, producer_id=stranger)  # nothing was ever written to the second
        assert [(p.error, p.record_count) for p in after.partitions] == [(ErrorCode.UNKNOWN_PRODUCER_ID, 0), (0, 0)]

    in_lab(scenario)


def test_two_renewals_out_of_order_do_not_shorten_a_lease() -> None:
    async def scenario(lab: Lab) -> None:
        lease = await lab.lease(0, expire_ms=10_000)
        pid = lease.partitions[0].producer_id
        arrived, released = lab.leader(0).hold_fence = asyncio.Event(), asyncio.Event()
        first = asyncio.ensure_future(lab.renew(lease, 20_000))
        await arrived.wait()
        second = await lab.renew(lease, 60_000)
        released.set()
        await first
        assert lab.held(0, pid).keep_until_ms == second.expires_at_ms
        third = await lab.renew(lease, 5_000)
        assert third.expires_at_ms == second.expires_at_ms == (await lab.stored()).expires_at_ms
        lab.world.clocks["pid-0"].skew_ms += 50_000
        assert lab.write(lease, 0, 1)

    in_lab(scenario)


def test_a_renewal_that_arrives_after_the_release_does_not_bring_the_lease_back() -> None:
    async def scenario(lab: Lab) -> None:
        lease = await lab.lease(0, expire_ms=10_000)
        arrived, released = lab.leader(0).hold_fence = asyncio.Event(), asyncio.Event()
        renewal = asyncio.ensure_future(lab.renew(lease, 60_000))
        await arrived.wait()
        assert (await lab.release(lease)).error == 0
        released.set()
        await renewal
        assert not lab.write(lease, 0, 1)
        assert (await lab.lease(0)).partitions[0].error == 0

    in_lab(scenario)


def test_the_other_topics_of_a_lease_go_on_when_one_is_deleted() -> None:
    async def scenario(lab: Lab) -> None:
        await lab.world.create(lab.controller, other=1)
        await lab.service.view.reached(lab.world.model.revision)
        request = pb.LeasePidRequest(name="loader", expire_ms=60_000, partitions=[
            pb.Partition(topic="t", partition=0), pb.Partition(topic="other", partition=0)])
        await lab.world.call(lab.service, "LeasePid", request, pb.LeasePidResponse)
        await lab.world.call(
            lab.controller, "DeleteTopics", cluster_admin_pb2.DeleteTopicsRequest(names=["other"], timeout_ms=5000),
            cluster_admin_pb2.DeleteTopicsResponse)
        await lab.service.view.reached(lab.world.model.revision)
        again = await lab.lease(0)  # as a client reads it: one partition with an error refuses the whole
        assert [(p.partition.topic, p.error) for p in again.partitions] == [("t", 0)]
        progress = await lab.progress(name="loader")
        assert [(p.partition.topic, p.error) for p in progress.partitions] == [("t", 0)]

    in_lab(scenario)


def test_a_lease_in_use_is_left_alone_by_tidying() -> None:
    async def scenario(lab: Lab) -> None:
        lease = await lab.lease(0, expire_ms=7 * 86_400_000)
        lab.days_pass(3)
        await lab.service.leases.tidy()
        assert lab.write(lease, 0, 1) and not (await lab.stored()).rests

    in_lab(scenario)


def test_unknown_names_and_bad_requests() -> None:
    async def scenario(lab: Lab) -> None:
        mixed = await lab.lease(0, 9)
        assert [(p.error, p.producer_id >= 0) for p in mixed.partitions] == [
            (0, True), (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, False)]
        assert (await lab.lease(0, expire_ms=0)).error == ErrorCode.INVALID_REQUEST
        assert (await lab.lease(0, expire_ms=2**40)).error == ErrorCode.INVALID_REQUEST
        assert (await lab.lease(0, name="x" * 300)).error == ErrorCode.INVALID_REQUEST
        assert (await lab.lease(0, holder="x" * 1001)).error == ErrorCode.INVALID_REQUEST
        assert (await lab.progress(name="nobody")).error == ErrorCode.INVALID_PRODUCER_ID_MAPPING
        generated = await lab.lease(0, name="")
        assert generated.error == 0 and generated.name
        listed = await lab.world.call(
            lab.service, "ListLeases", pb.ListLeasesRequest(prefix="load"), pb.ListLeasesResponse)
        assert [(lease.name, lease.generation, lease.partitions[0].topic) for lease in listed.leases] == [
            ("loader", 0, "t")]

    in_lab(scenario)


def test_a_deleted_topic_does_not_hold_a_lease_up() -> None:
    async def scenario(lab: Lab) -> None:
        await lab.lease(0)
        deleted = await lab.world.call(
            lab.controller, "DeleteTopics", cluster_admin_pb2.DeleteTopicsRequest(names=["t"], timeout_ms=5000),
            cluster_admin_pb2.DeleteTopicsResponse)
        assert deleted.topics[0].error == 0
        await lab.service.view.reached(lab.world.model.revision)
        at = lab.world.loop.time()
        again = await lab.lease(name="loader")
        assert again.error == 0 and not again.partitions, "what is left of it is a lease without partitions"
        assert (await lab.stored()).partitions == ()
        progress = await lab.progress(name="loader")
        assert (progress.error, list(progress.partitions)) == (0, [])
        assert lab.world.loop.time() - at < 2

    in_lab(scenario)
