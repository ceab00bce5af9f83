"""A control plane on virtual time: the real controller and PID allocator, with brokers and coordinators that do no
more than register, accept what they are assigned, and keep counts of producers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import hapax.controller.service
import hapax.pid.service
from hapax.codec.batch import read_header
from hapax.codec.control import encode_control
from hapax.codec.metadata import Keys, NodeRecord, Role
from hapax.controller.service import ControllerService
from hapax.core.batch import BatchHeader
from hapax.core.control import Control, ProducerFence
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.partition.machine import PartitionMachine, ProducerView
from hapax.core.types import NodeId, PartitionIndex, TopicId, TopicIdPartition
from hapax.pid.service import PidService
from hapax.rpc.gen.hapax.internal.v1 import broker_pb2
from hapax.rpc.gen.hapax.v1 import cluster_admin_pb2, partitions_pb2
from hapax.runtime.audit_events import Audit
from hapax.runtime.cluster import ClusterView
from hapax.runtime.guarded_writes import accept_partitions
from hapax.runtime.ports import FrameConnection, FrameLimits, MetadataStore, Ports, RpcPeer
from hapax.runtime.registration import Registration, register
from hapax.runtime.settings import Settings
from hapax.runtime.telemetry import Metrics
from hapax_sim.clock import SimClock
from hapax_sim.loop import SimLoop, SimProcess
from hapax_sim.metadata import MemoryMetadata, MetadataModel
from hapax_sim.network import World

T = TypeVar("T")
CLUSTER = "test"
_PASSER_BY = 1 << 40
KEYS = Keys(CLUSTER)


def run(scenario: Callable[[ControlWorld], Coroutine[Any, Any, None]], seed: int = 1, limit_s: float = 600) -> None:
    """Runs a scenario on virtual time, which costs next to nothing."""
    loop = SimLoop()
    world = ControlWorld(loop, seed)

    async def limited() -> None:
        async with asyncio.timeout(limit_s):
            await scenario(world)

    main = SimProcess("test")
    try:
        loop.run_until_complete(loop.spawn(main, limited(), "scenario"))
    finally:
        for process in world.processes:
            loop.crash(process)


@dataclass
class FakeBroker:
    """Accepts partitions; answers FenceProducer and DescribeProducers from the partitions' real machines, without logs:
    what a machine decides it replays at once."""

    process: SimProcess
    view: ClusterView
    registration: Registration
    machines: dict[TopicIdPartition, PartitionMachine] = field(default_factory=dict)
    fences: list[tuple[TopicIdPartition, int, int]] = field(default_factory=list)
    refuse_fences: int = 0
    """So many fences are answered NOT_LEADER_OR_FOLLOWER first."""
    hold_fence: tuple[asyncio.Event, asyncio.Event] | None = None
    """The next fence sets the first of them, and is carried out once the second one is set."""

    def leads(self, partition: TopicIdPartition) -> bool:
        leader = self.view.leader_of(*partition)
        return leader is not None and leader.registration == self.registration.epoch

    def machine(self, partition: TopicIdPartition) -> PartitionMachine:
        return self.machines.setdefault(partition, PartitionMachine())

    def write(
        self, partition: TopicIdPartition, producer_id: int, epoch: int, records: int, now_ms: int = 0
    ) -> bool:
        """A batch; False where it is refused."""
        machine = self.machine(partition)
        known = machine.describe_producer(producer_id)
        going_on = known is not None and known.producer_epoch == epoch
        header = BatchHeader(
            machine.log_end_offset, 100, 0, 2, 0, 0, records - 1, 0, now_ms, producer_id, epoch,
            known.last_sequence + 1 if known is not None and going_on else 0, records)
        try:
            machine.decide_append(header, now_ms)
        except Refusal:
            return False
        machine.replay(header)
        return True

    def days_pass(self, now_ms: int) -> None:
        """The broker's clock for the expiry of producers goes on to `now_ms`, and a round is made then. A passer-by
        wrote before, so there always is somebody to forget."""
        for partition, machine in self.machines.items():
            self.write(partition, _PASSER_BY, 0, 1, now_ms)
            machine.decide_expiry(now_ms - machine.expiry_ms)
            expiry = machine.decide_expiry(now_ms)
            if expiry is not None:
                self._append(machine, expiry)
            machine.sweep_dead()

    @staticmethod
    def _append(machine: PartitionMachine, control: Control) -> None:
        batch = encode_control(control, 0)
        header = read_header(batch)
        machine.replay_control(header._replace(base_offset=machine.log_end_offset), control)

    async def fence(self, payload: bytes, peer: RpcPeer) -> bytes:
        request = broker_pb2.FenceProducerRequest.FromString(payload)
        partition = TopicIdPartition(
            TopicId(request.partition.topic_id), PartitionIndex(request.partition.partition))
        if self.hold_fence is not None:
            (arrived, released), self.hold_fence = self.hold_fence, None
            arrived.set()
            await released.wait()
        if self.refuse_fences or not self.leads(partition):
            self.refuse_fences = max(0, self.refuse_fences - 1)
            return broker_pb2.FenceProducerResponse(error=ErrorCode.NOT_LEADER_OR_FOLLOWER).SerializeToString()
        self.fences.append((partition, request.producer_id, request.producer_epoch))
        machine = self.machine(partition)
        try:
            self._append(machine, machine.decide_producer_fence(ProducerFence(
                request.producer_id, request.producer_epoch, request.keep_until_ms)))
        except Refusal as refusal:
            return broker_pb2.FenceProducerResponse(error=refusal.code, reason=refusal.reason).SerializeToString()
        view = machine.describe_producer(request.producer_id)
        assert view is not None
        return broker_pb2.FenceProducerResponse(state=self._state(view)).SerializeToString()

    async def describe(self, payload: bytes, peer: RpcPeer) -> bytes:
        request = broker_pb2.DescribeProducersRequest.FromString(payload)
        response = partitions_pb2.DescribeProducersResponse()
        for named in request.partitions:
            partition = TopicIdPartition(TopicId(named.topic_id), PartitionIndex(named.partition))
            result = response.partitions.add(partition=partitions_pb2.PartitionOfTopicId(
                topic_id=named.topic_id, partition=named.partition))
            if not self.leads(partition):
                result.error = ErrorCode.NOT_LEADER_OR_FOLLOWER
                continue
            machine = self.machine(partition)
            for producer_id in request.producer_ids:
                view = machine.describe_producer(producer_id)
                if view is not None:
                    result.producers.append(self._state(view))
                elif machine.may_have_forgotten(producer_id):
                    result.unknown_producer_ids.append(producer_id)
        return response.SerializeToString()

    @staticmethod
    def _state(view: ProducerView) -> partitions_pb2.ProducerState:
        return partitions_pb2.ProducerState(
            producer_id=view.producer_id, producer_epoch=view.producer_epoch, last_sequence=view.last_sequence,
            last_offset=view.last_offset, record_count=view.record_count)


class Answering:
    """A listener's end of a connection on which only signs of life are asked for."""

    def __init__(self, connection: FrameConnection) -> None:
        self._connection = connection

    def on_frame(self, frame: memoryview) -> None:
        self._connection.send([b"alive"])

    def on_drained(self) -> None: ...
    def on_closed(self, reason: str) -> None: ...


class Recorded(Audit):
    """What the audit log of all processes is told: (event, principal, address, fields)."""

    enabled = True

    def __init__(self) -> None:
        self.events: list[tuple[str, str | None, str, dict[str, object]]] = []

    def record(self, event: str, principal: str | None, address: str, **fields: object) -> None:
        self.events.append((event, principal, address, fields))


class ControlWorld:
    def __init__(self, loop: SimLoop, seed: int) -> None:
        self.audit = Recorded()
        self.loop = loop
        self.random = random.Random(seed)
        self.network = World(loop, self.random)
        self.network.cluster_id = CLUSTER
        self.model = MetadataModel()
        self.processes: list[SimProcess] = []
        self.ended: dict[str, str] = {}
        """Process name -> why its service said that it must end."""
        self._end = asyncio.Event()
        self.clocks: dict[str, SimClock] = {}
        """Of each process, by its name: to let the wall clock jump, where days pass but nothing happens."""

    # --- processes

    def process(self, name: str) -> SimProcess:
        process = SimProcess(name)
        self.processes.append(process)
        return process

    def ports(self, process: SimProcess) -> Ports:
        store = MemoryMetadata(self.model)
        process.watch(store.abandon)
        clock = self.clocks[process.name] = SimClock(self.loop)
        return Ports(
            clock, self.network.network(process), store, random.Random(self.random.randrange(0, 1 << 30)),
            audit=self.audit)

    async def inside(self, process: SimProcess, coro: Coroutine[Any, Any, T]) -> T:
        """Awaits a coroutine that runs as part of a process."""
        return await self.loop.spawn(process, coro, process.name)

    def kill(self, process: SimProcess) -> None:
        self.loop.crash(process)

    # --- services

    async def view(self, name: str = "observer") -> ClusterView:
        process = self.process(name)
        store: MetadataStore = self.ports(process).metadata
        view = ClusterView(store, CLUSTER, self.random)
        await self.inside(process, view.start())
        return view

    async def controller(self, node_id: int = 300, **settings: object) -> tuple[SimProcess, ControllerService]:
        process = self.process(f"controller-{node_id - 300}")
        service = await self.inside(process, hapax.controller.service.start(
            self.ports(process), self.settings(node_id, **settings), on_lost=self._on_lost(process)))
        return process, service

    async def allocator(
        self, node_id: int = 200, metrics: Metrics | None = None, **settings: object
    ) -> tuple[SimProcess, PidService]:
        process = self.process(f"pid-{node_id - 200}")
        service = await self.inside(process, hapax.pid.service.start(
            self.ports(process), self.settings(node_id, **settings), on_lost=self._on_lost(process), metrics=metrics))
        return process, service

    def settings(self, node_id: int, **settings: object) -> Settings:
        return replace(
            Settings(
                node_id=node_id, cluster_id=CLUSTER, broker_session_timeout_ms=3000, broker_heartbeat_interval_ms=200,
                broker_heartbeat_timeout_ms=1000,
            ), **settings)  # type: ignore[arg-type]

    def _on_lost(self, process: SimProcess) -> Callable[[str], None]:
        def lost(reason: str) -> None:
            self.ended.setdefault(process.name, reason)
            self._end.set()

        return lost

    async def has_ended(self, name: str) -> str:
        """Why the process's service said that it must end, once it did."""
        while name not in self.ended:
            self._end.clear()
            await self._end.wait()
        return self.ended[name]

    async def broker(
        self, node_id: int = 0, *, accepts: bool = True, listens: bool = False, **record: Any
    ) -> FakeBroker:
        """`listens`: it has a Kafka listener, so that the controller keeps a connection to it. `record`: further fields
        of its NodeRecord."""
        process = self.process(f"broker-{node_id}")
        return await self.inside(process, self._broker(process, node_id, accepts, listens, record))

    async def _broker(
        self, process: SimProcess, node_id: int, accepts: bool, listens: bool, record: dict[str, Any]
    ) -> FakeBroker:
        ports = self.ports(process)
        if listens:
            await ports.network.listen("127.0.0.1", 9000 + node_id, Answering, FrameLimits())
        view = ClusterView(ports.metadata, CLUSTER, ports.random)
        await view.start()
        handlers: dict[str, Any] = {}
        server = await ports.network.serve_rpc("127.0.0.1", 0, handlers)
        registration = await self._register(process, ports, node_id, "broker", server.address, **record)
        broker = FakeBroker(process, view, registration)
        handlers["/hapax.internal.v1.PartitionBroker/FenceProducer"] = broker.fence
        handlers["/hapax.internal.v1.PartitionBroker/DescribeProducers"] = broker.describe
        if accepts:
            asyncio.get_running_loop().create_task(self._accept(broker, ports), name="accept")
        return broker

    @staticmethod
    async def _accept(broker: FakeBroker, ports: Ports) -> None:
        changed = asyncio.Event()
        broker.view.on_change(lambda changes: changed.set() if changes.partitions else None)
        while True:
            await accept_partitions(
                ports.metadata, broker.view, broker.registration, [p.id for p in broker.view.partitions()])
            await changed.wait()
            changed.clear()

    async def coordinator(
        self, node_id: int = 100, *, listens: bool = False, **record: Any
    ) -> tuple[SimProcess, Registration]:
        process = self.process(f"coordinator-{node_id - 100}")
        ports = self.ports(process)
        if listens:
            await self.inside(process, ports.network.listen(
                "127.0.0.1", 9000 + node_id, Answering, FrameLimits()))
        registration = await self.inside(
            process, self._register(process, ports, node_id, "coordinator", f"127.0.0.1:{node_id}", **record))
        return process, registration

    async def _register(
        self, process: SimProcess, ports: Ports, node_id: int, role: Role, address: str, **fields: Any
    ) -> Registration:
        fields = {"public_rpc_address": address, **fields}
        record = NodeRecord(
            NodeId(node_id), role, "127.0.0.1", 9000 + node_id, address, identity=f"folder-{node_id}", **fields)
        return await register(
            ports.metadata, KEYS, record, random=ports.random, on_lost=self._on_lost(process), ttl_s=3.0)

    # --- what tests wait for

    async def cluster(self, brokers: int = 1, **settings: object) -> tuple[ClusterView, ControllerService]:
        """A controller with these settings, `brokers` brokers from id 0 on and a coordinator, ready to serve."""
        view = await self.view()
        _, controller = await self.controller(**settings)  # type: ignore[arg-type]
        for node_id in range(brokers):
            await self.broker(node_id)
        await self.coordinator()
        await self.ready(view)
        return view, controller

    async def ready(self, view: ClusterView) -> None:
        """Every internal partition is led and every shard owned."""
        await view.wait_for(is_ready, 60)

    async def create(
        self, service: ControllerService, timeout_ms: int = 5000, factor: int = 1, **topics: int
    ) -> None:
        response = await self.call(service, "CreateTopics", cluster_admin_pb2.CreateTopicsRequest(
            timeout_ms=timeout_ms,
            topics=[
                cluster_admin_pb2.TopicSpec(name=n, partitions=p, replication_factor=factor)
                for n, p in topics.items()],
        ), cluster_admin_pb2.CreateTopicsResponse)
        assert [result.error for result in response.topics] == [0] * len(topics), response

    async def call(
        self, service: Any, method: str, request: Any, response: Any, cluster_id: str = CLUSTER
    ) -> Any:
        """A call from a process of its own, which names `cluster_id`, to a service."""
        name = request.DESCRIPTOR.file.package
        owner = {"pid": "PidAllocator", "cluster_admin": "ClusterAdmin", "lease": "ProducerLeases",
                 "restore": "Restore"}[
            request.DESCRIPTOR.file.name.rpartition("/")[2].removesuffix(".proto")]
        process = self.process("caller")
        address = service.rpc_address if "internal" in name else service.public_rpc_address
        channel = self.network.network(process).public_channel(address, cluster_id)
        answer = await self.inside(
            process, channel.call(f"/{name}.{owner}/{method}", request.SerializeToString(), 60))
        return response.FromString(answer)


def is_ready(view: ClusterView) -> bool:
    internal = [topic for topic in view.topics() if topic.internal]
    return len(internal) == 3 and all(
        view.leader_of(topic.topic_id, index) is not None for topic in internal for index in range(topic.partitions)
    ) and view.cluster is not None and all(
        view.shard_owner(kind, shard) is not None
        for kind, count in (("txn", view.cluster.txn_shards), ("group", view.cluster.group_shards))
        for shard in range(count)
    )
