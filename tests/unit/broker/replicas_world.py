"""Several brokers in one process, on loopback and real folders, with a metadata store in memory. The test plays the
controller."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from crc32c import crc32c

from hapax.broker import service
from hapax.broker.replica import Replica
from hapax.broker.service import BrokerService
from hapax.broker.waiters import WriteFuture
from hapax.codec.batch import read_header
from hapax.codec.metadata import ClusterRecord, Keys, NodeRecord, PartitionRecord, PidCounterRecord, TopicRecord
from hapax.codec.snapshot import encode_replicated_state
from hapax.core.batch import TRANSACTIONAL
from hapax.core.cluster.failover import mark_unclean, settle
from hapax.core.partition.values import WriteResult
from hapax.core.types import LeaderEpoch, NodeId, PartitionIndex, ProducerId, TopicId, TopicIdPartition
from hapax.log.config import LogConfig
from hapax.runtime.clock import SystemClock
from hapax.runtime.disk import RealDisk, open_folder
from hapax.runtime.network import TcpNetwork
from hapax.runtime.ports import Delete, Ports, Put
from hapax.runtime.rpc import RpcIdentity
from hapax.runtime.settings import Settings
from hapax_sim.metadata import MemoryMetadata, MetadataModel
from unit.broker.broker_fixtures import FaultyDisk

KEYS = Keys("c")
TOPIC = TopicId(b"t" * 16)
OTHER_TOPIC = TopicId(b"u" * 16)
PARTITION = TopicIdPartition(TOPIC, PartitionIndex(0))
KEY = KEYS.partition(*PARTITION)


class World:
    """`brokers[n]` are those that run."""

    def __init__(self, folder: Path, **settings: object) -> None:
        self.folder = folder
        self.settings = Settings(**{  # type: ignore[arg-type]
            "cluster_id": "c", "listeners": "127.0.0.1:0", "replica_fetch_wait_max_ms": 100,
            "replica_fetch_backoff_ms": 100, "log_segment_bytes": 1 << 20, **settings,
        })
        self.model = MetadataModel()
        self.stores: dict[int, MemoryMetadata] = {}
        self.brokers: dict[int, BrokerService] = {}
        self.disks: dict[int, RealDisk] = {}
        self.faults: dict[int, FaultyDisk] = {}
        self.ended: list[str] = []
        self.racks: dict[int, str] = {}
        self.machines: dict[int, str] = {}
        self.model.txn([], [
            Put(KEYS.cluster, ClusterRecord("c", 1, 1, 0).encode()),
            Put(KEYS.pid_next, PidCounterRecord(ProducerId(1_000_000)).encode()),
        ])

    # --- brokers ----------------------------------------------------------------------------------------------------

    async def start(self, *nodes: int) -> None:
        for node in nodes:
            self.disks[node] = open_folder(str(self.folder / f"broker-{node}"))
            self.stores[node] = MemoryMetadata(self.model)
            self.faults[node] = FaultyDisk(self.disks[node])
            ports = Ports(
                SystemClock(), TcpNetwork(RpcIdentity("c", f"broker/{node}")), self.stores[node], random.Random(node),
                self.faults[node],  # type: ignore[arg-type]
            )
            settings = replace(
                self.settings, node_id=node, broker_rack=self.racks.get(node),
                broker_machine=self.machines.get(node, ""))
            self.brokers[node] = await service.start(ports, settings, on_lost=self.ended.append)

    async def kill(self, node: int) -> None:
        """Ends a broker without order; what it has written stays (the page cache survives a process)."""
        broker = self.brokers.pop(node)
        self.faults[node].release()
        await broker.close()
        self.disks.pop(node).close()

    async def stop(self, node: int) -> None:
        """Ends a broker in order."""
        broker = self.brokers.pop(node)
        self.faults[node].release()
        await broker.drain()
        await broker.close()
        self.disks.pop(node).close()

    async def close(self) -> None:
        for node in list(self.brokers):
            await self.kill(node)

    # --- the controller's part --------------------------------------------------------------------------------------

    def make_topic(self, replicas: Sequence[int] = (0, 1, 2), isr: Sequence[int] | None = None, **config: str) -> None:
        """`t`, one partition, led by the first of its replicas."""
        self._make_topic("t", TOPIC, replicas, isr, config)

    def make_other_topic(self, replicas: Sequence[int]) -> None:
        """`u`, likewise. Only `leads_other` looks at it."""
        self._make_topic("u", OTHER_TOPIC, replicas, None, {})

    def _make_topic(
        self, name: str, topic_id: TopicId, replicas: Sequence[int], isr: Sequence[int] | None, config: dict[str, str]
    ) -> None:
        config = {name.replace("_", "."): value for name, value in config.items()}
        nodes, members = _nodes(replicas), _nodes(replicas if isr is None else isr)
        self.model.txn([], [
            Put(KEYS.topic(name), TopicRecord(topic_id, name, 1, len(nodes), config).encode()),
            Put(KEYS.partition(topic_id, PartitionIndex(0)), PartitionRecord(
                nodes[0], LeaderEpoch(0), self.registration(replicas[0]), nodes, members,
                isr_registrations=tuple(self.registration(node) for node in members),
            ).encode()),
        ])

    def registration(self, node: int) -> int:
        kv = self.model.get(KEYS.node(NodeId(node)))
        return 1 if kv is None else kv.create_revision  # type: ignore[return-value]

    def intact_since(self, node: int) -> int:
        """As its registration says."""
        kv = self.model.get(KEYS.node(NodeId(node)))
        assert kv is not None
        return NodeRecord.decode(kv.value).intact_since

    @property
    def record(self) -> PartitionRecord:
        kv = self.model.get(KEY)
        assert kv is not None
        return PartitionRecord.decode(kv.value)

    def change(self, **fields: object) -> None:
        self.model.txn([], [Put(KEY, replace(self.record, **fields).encode())])  # type: ignore[arg-type]

    def elect(self, leader: int, isr: Sequence[int] | None = None) -> None:
        members = self.record.isr if isr is None else _nodes(isr)
        self.change(
            leader=NodeId(leader), leader_epoch=LeaderEpoch(self.record.leader_epoch + 1),
            leader_registration=self.registration(leader), isr=members,
            isr_registrations=tuple(self.registration(node) for node in members),
        )

    def elect_uncleanly(self, asked: int, now_ms: int) -> None:
        """As the controller does it where no member is alive: whoever is there leads, and the record says so.
        `asked` has the image that is gone by."""
        brokers, before = self.brokers[asked].view.live_brokers(), self.record
        after = mark_unclean(before, settle(before, brokers, unclean=True), now_ms)
        self.change(**{name: getattr(after, name) for name in (
            "leader", "leader_epoch", "leader_registration", "isr", "isr_registrations", "unclean_epoch",
            "unclean_ms")})

    def unregister(self, node: int) -> None:
        self.model.txn([], [Delete(KEYS.node(NodeId(node)))])

    # --- partitions -------------------------------------------------------------------------------------------------

    def replica(self, node: int) -> Replica:
        return self.brokers[node].partitions.replicas[PARTITION]

    def has(self, node: int) -> bool:
        return PARTITION in self.brokers[node].partitions.replicas

    def syncs(self, node: int) -> FaultyDisk:
        """Its disk: `hold_syncs`, `release`."""
        return self.faults[node]

    def leads(self, node: int) -> bool:
        replica = self.brokers[node].partitions.replicas.get(PARTITION)
        return (
            replica is not None and replica.serving and self.record.accepted
            and replica.leader_epoch == self.record.leader_epoch
        )

    def leads_other(self, node: int) -> bool:
        replica = self.brokers[node].partitions.replicas.get(TopicIdPartition(OTHER_TOPIC, PartitionIndex(0)))
        return replica is not None and replica.serving

    def produce(self, node: int, batch: bytes | bytearray, *, local: bool = False) -> asyncio.Future[WriteResult]:
        """To the replica of a node, as acks=all or (`local`) acks=1."""
        settled = WriteFuture()
        header = read_header(batch)
        name = f"id-{header.producer_id}" if header.attributes & TRANSACTIONAL else ""
        self.replica(node).produce(memoryview(bytearray(batch)), settled, 0, name, local=local)
        return settled.future

    async def produced(self, node: int, batch: bytes | bytearray) -> WriteResult:
        async with asyncio.timeout(60):
            return await self.produce(node, batch)

    def end(self, node: int) -> int:
        return self.replica(node).machine.log_end_offset

    def log_bytes(self, node: int) -> bytes:
        return b"".join(segment.file.read(0, segment.size) for segment in self.replica(node).log.segments)

    def state(self, node: int) -> bytes:
        return encode_replicated_state(self.replica(node).machine.snapshot())

    def equal(self, *nodes: int) -> bool:
        """Committed to the end, with the same bytes and the same state."""
        if not all(self.has(node) for node in nodes):
            return False
        replicas = [self.replica(node) for node in nodes]
        return (
            all(r.machine.high_watermark == r.machine.log_end_offset for r in replicas)
            and len({self.log_bytes(node) for node in nodes}) == 1
            and len({self.state(node) for node in nodes}) == 1
            and len({tuple(r.machine.leader_epochs.entries()) for r in replicas}) == 1
            and len({tuple(r.machine.aborted) for r in replicas}) == 1
        )

    def differences(self, *nodes: int) -> str:
        """What `equal` looks at, for the message of a failed test."""
        lines = [str(self.record)]
        for node in nodes:
            replica = self.replica(node)
            machine = replica.machine
            lines.append(
                f"{node}: {machine.log_start_offset}..{machine.log_end_offset} committed {machine.high_watermark} "
                f"synced {replica.log.synced_offset} bytes {crc32c(self.log_bytes(node))} state "
                f"{crc32c(self.state(node))} epochs {machine.leader_epochs.entries()} aborted "
                f"{list(machine.aborted)} copies {replica.copying} open {machine.open_transactions()} producers "
                f"{list(machine.describe_producers())} undecided {machine.snapshot().undecided}"
            )
        return "\n".join(lines)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Conditions that follow from what brokers tell each other: looked at every few milliseconds."""
        async with asyncio.timeout(60):
            while not condition():  # noqa: ASYNC110 - nothing announces what several brokers have come to
                await asyncio.sleep(0.002)

    def set_config(self, node: int, config: LogConfig) -> None:
        self.replica(node).log.config = config


def _nodes(nodes: Sequence[int]) -> tuple[NodeId, ...]:
    return tuple(NodeId(node) for node in nodes)
