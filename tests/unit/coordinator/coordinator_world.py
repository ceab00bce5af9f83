"""A whole simulated cluster on virtual time, and a client that says exactly what a test wants said."""

from __future__ import annotations

import asyncio
import json
import random
import struct
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from crc32c import crc32c

from hapax.codec.batch import iterate_batches
from hapax.codec.internal_records import decode_batch, encode_batch
from hapax.codec.metadata import EVENTS_TOPIC, OFFSETS_TOPIC, TXN_STATE_TOPIC
from hapax.codec.transaction_log import decode_key, decode_value
from hapax.coordinator.service import CoordinatorService
from hapax.coordinator.transactions import TxnShard
from hapax.core.batch import BatchHeader
from hapax.core.errors import ErrorCode
from hapax.core.hashing import shard_of
from hapax.core.transaction.record import Transaction
from hapax.core.types import ShardEpoch
from hapax.runtime.cluster import ClusterView
from hapax.wire import messages
from hapax.wire.internal_writes import proof
from hapax.wire.peer import INTERNAL_WRITE_TAG, Peer, PeerError
from hapax_sim.cluster import SimCluster
from hapax_sim.loop import SimLoop, SimProcess

SHARDS = 4
RECORD = bytes(encode_batch([(b"k", b"v")], 0))
MOVING = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE)


class CoordinatorWorld:
    def __init__(self, loop: SimLoop, seed: int, **options: Any) -> None:
        self.loop = loop
        self.cluster = SimCluster(loop, seed, **options)
        self.cluster.world.weather.slow_share = 0.0
        self.process = SimProcess("client")
        self.ports = self.cluster.ports(self.process, random.Random(seed))
        self.peers: dict[tuple[str, int], Peer] = {}
        self.gone = ""
        """A coordinator whose own view of the cluster does not count."""

    async def start(self, *topics: tuple[str, int]) -> None:
        self.cluster.start_all()
        await self.cluster.wait_until(self.cluster.ready, "the cluster serves")
        if topics:
            await self.create_topics(*topics)

    async def create_topics(self, *topics: tuple[str, int]) -> None:
        topic = messages.CreateTopicsRequest.CreatableTopic
        request = messages.CreateTopicsRequest(timeout_ms=10_000, validate_only=False, topics=[
            topic(name=name, num_partitions=partitions, replication_factor=1, assignments=[], configs=[])
            for name, partitions in topics
        ])
        response = await (await self.broker()).call(request, version=7)
        self.peers.popitem()[1].close()  # connections from before a leadership do not count (rule 4)
        assert [t.error_code for t in response.topics] == [0] * len(topics)
        await self.cluster.wait_until(
            lambda: all(self.view(name).topic(topic) for name in self.coordinators() for topic, _ in topics),
            "the coordinators know the topics",
        )

    # --- the cluster ---

    def coordinators(self) -> list[str]:
        return [
            node.name for node in self.cluster.nodes.values()
            if node.role == "coordinator" and node.service is not None and node.name != self.gone
            and node.process is not None and node.process.alive
        ]

    def coordinator(self, name: str) -> CoordinatorService:
        service = self.cluster.nodes[name].service
        assert isinstance(service, CoordinatorService)
        return service

    def view(self, name: str) -> ClusterView:
        return self.coordinator(name).view

    def owner_of(self, transactional_id: str) -> str:
        """Name of the coordinator that owns the id's shard."""
        return self._owner("txn", shard_of(transactional_id, SHARDS))

    def owner_of_group(self, group: str) -> str:
        return self._owner("group", shard_of(group, SHARDS))

    def _owner(self, kind: Any, shard: int) -> str:
        node = self.view(self.coordinators()[0]).shard_owner(kind, shard)
        assert node is not None
        return f"coordinator-{node.node_id - 100}"

    def txn_shard(self, transactional_id: str) -> TxnShard:
        return self.coordinator(self.owner_of(transactional_id)).shards.txn_shard(transactional_id)

    @contextmanager
    def cut(self, source: str, target: str) -> Iterator[None]:
        """Messages from one process to another break their connection instead of arriving."""
        self.cluster.world.blocked.add((source, target))
        try:
            yield
        finally:
            self.cluster.world.blocked.discard((source, target))

    async def moved_from(self, former: str, transactional_id: str) -> None:
        """Waits until another coordinator serves the id's shard."""
        def moved() -> bool:
            survivors = [name for name in self.coordinators() if name != former]
            shard = shard_of(transactional_id, SHARDS)
            owner = self.view(survivors[0]).shard_owner("txn", shard)
            if owner is None or owner.node_id - 100 != int(survivors[0].split("-")[1]):
                return False
            return self.coordinator(survivors[0]).shards.txn_shard(transactional_id).serving

        await self.cluster.wait_until(moved, "the shard has moved")

    async def group_moved_from(self, former: str, group: str) -> None:
        """Waits until another coordinator serves the group's shard."""
        def moved() -> bool:
            (survivor,) = [name for name in self.coordinators() if name != former]
            owner = self.view(survivor).shard_owner("group", shard_of(group, SHARDS))
            return (
                owner is not None and owner.node_id - 100 == int(survivor.split("-")[1])
                and self.coordinator(survivor).shards.group_shard(group).serving
            )

        self.gone = former
        await self.cluster.wait_until(moved, "the shard has moved")

    def group_apart_from(self, transactional_id: str) -> str:
        """A group whose coordinator is not that of the transactional id."""
        owner = self.owner_of(transactional_id)
        return next(f"g{n}" for n in range(100) if self.owner_of_group(f"g{n}") != owner)

    async def settled(self, group: str, topic: str) -> None:
        """Waits until no transaction holds an offset of the group."""
        async def stable() -> bool:
            return (await self.committed(group, topic, 0, stable=True))[1] == 0

        await self.cluster.wait_until(stable, "the markers of the offsets are stored")

    async def stop(self, name: str) -> None:
        """SIGTERM: drains and ends."""
        node = self.cluster.nodes[name]
        node.wanted = False
        process, service = node.process, node.service
        assert process is not None

        async def end() -> None:
            await service.drain()
            await service.close()

        await self.loop.spawn(process, end(), "stop")
        node.service = None
        self.loop.crash(process)

    def proof_of(self, name: str, epoch: int) -> bytes:
        """What the coordinator shows with an internal write."""
        registration = self.coordinator(name).registration
        assert registration is not None
        return proof(registration.epoch, registration.record.session, ShardEpoch(epoch))

    async def write_internal(self, topic: str, shard: int, shown: bytes | None, batch: bytes = RECORD) -> int:
        """The error code of a Produce to an internal partition, with the tagged field of internal writers or not."""
        found = self.view(self.coordinators()[0]).topic(topic)
        assert found is not None
        kind = messages.ProduceRequest
        request = kind(transactional_id=None, acks=-1, timeout_ms=10_000, topic_data=[
            kind.TopicProduceData(topic_id=UUID(bytes=found.topic_id), partition_data=[
                kind.TopicProduceData.PartitionProduceData(index=shard, records=batch)])])
        tags = None if shown is None else {INTERNAL_WRITE_TAG: shown}
        response = await (await self.broker()).call(request, version=13, tags=tags)
        return int(response.responses[0].partition_responses[0].error_code)

    # --- reading ---

    async def fetch(
        self, topic: str, partition: int, *, committed: bool, waits: bool = True
    ) -> tuple[list[tuple[BatchHeader, bytes]], list[Any]]:
        """(header, batch) of every batch, and the aborted transactions. `waits`: for the end of open ones."""
        kind = messages.FetchRequest
        batches: list[tuple[BatchHeader, bytes]] = []
        aborted: dict[tuple[int, int], Any] = {}
        offset = 0
        while True:
            answer = await (await self.broker()).call(
                kind(
                    replica_id=-1, max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, isolation_level=int(committed),
                    session_id=0, session_epoch=-1, forgotten_topics_data=[], rack_id="", topics=[kind.FetchTopic(
                        topic=topic, partitions=[kind.FetchTopic.FetchPartition(
                            partition=partition, current_leader_epoch=-1, fetch_offset=offset, last_fetched_epoch=-1,
                            log_start_offset=-1, partition_max_bytes=1 << 20)])]),
                version=12,
            )
            found = answer.responses[0].partitions[0]
            assert found.error_code == 0, found.error_code
            if committed and waits and found.last_stable_offset < found.high_watermark:
                await asyncio.sleep(0.02)  # a decided transaction's markers are still on their way
                continue
            data = bytes(found.records or b"")
            for at, header in iterate_batches(data):
                batches.append((header, data[at : at + header.size]))
                offset = header.next_offset
            for one in found.aborted_transactions or ():
                aborted[one.producer_id, one.first_offset] = one
            if not data:
                return batches, list(aborted.values())

    async def read_committed_now(self, topic: str, partition: int) -> list[bytes]:
        """As `read_committed`, while a transaction is open."""
        return await self.read_committed(topic, partition, waits=False)

    async def read_committed(self, topic: str, partition: int, *, waits: bool = True) -> list[bytes]:
        """Values that a reader sees who filters what is aborted, as clients do."""
        batches, aborted = await self.fetch(topic, partition, committed=True, waits=waits)
        open_aborts: set[int] = set()
        values: list[bytes] = []
        for header, batch in batches:
            open_aborts |= {a.producer_id for a in aborted if a.first_offset == header.base_offset}
            if header.is_control:
                open_aborts.discard(header.producer_id)
            elif not header.is_transactional or header.producer_id not in open_aborts:
                values += [value or b"" for _, _, value in decode_batch(batch, header)]
        return values

    async def logged(self, topic: str, shard: int) -> list[tuple[bytes, bytes | None]]:
        """Keys and values of an internal partition."""
        batches, _ = await self.fetch(topic, shard, committed=False)
        return [
            (key, value) for header, batch in batches if not header.is_control
            for _, key, value in decode_batch(batch, header)
        ]

    async def transactions_logged(self, transactional_id: str) -> list[Transaction]:
        records = []
        for key, value in await self.logged(TXN_STATE_TOPIC, shard_of(transactional_id, SHARDS)):
            if decode_key(key) == transactional_id:
                record = decode_value(transactional_id, value)
                assert isinstance(record, Transaction)
                records.append(record)
        return records

    async def events(self) -> list[dict[str, Any]]:
        return [json.loads(value or b"") for _, value in await self.logged(EVENTS_TOPIC, 0)]

    # --- calls ---

    async def broker(self) -> Peer:
        return await self.peer("broker-0")

    async def peer(self, name: str, fresh: bool = False) -> Peer:
        port = 9000 + int(name.split("-")[1]) + (100 if name.startswith("coordinator") else 0)
        peer = self.peers.get(("sim", port))
        if fresh or peer is None or peer.closed:
            peer = self.peers["sim", port] = await Peer.connect(
                self.ports.network, "sim", port, client_id="test", request_timeout_ms=60_000
            )
        return peer

    async def to_coordinator(self, transactional_id: str, request: Any, version: int) -> Any:
        return await (await self.peer(self.owner_of(transactional_id))).call(request, version=version)

    async def to_group(self, group: str, request: Any, version: int) -> Any:
        return await (await self.peer(self.owner_of_group(group))).call(request, version=version)

    async def until_answered(self, call: Callable[[], Coroutine[Any, Any, Any]], code: Callable[[Any], int]) -> Any:
        """Repeats while the answer is that the shard moves or loads, or the connection broke: as clients do."""
        async with asyncio.timeout(60):
            while True:
                try:
                    response = await call()
                    if code(response) not in MOVING:
                        return response
                except PeerError:
                    pass
                await asyncio.sleep(0.05)

    async def init(self, transactional_id: str, timeout_ms: int = 60_000) -> tuple[int, int]:
        request = messages.InitProducerIdRequest(
            transactional_id=transactional_id, transaction_timeout_ms=timeout_ms, producer_id=-1, producer_epoch=-1
        )
        response = await self.until_answered(
            lambda: self.to_coordinator(transactional_id, request, 4), lambda r: int(r.error_code)
        )
        assert response.error_code == 0, response.error_code
        return response.producer_id, response.producer_epoch

    async def add(self, transactional_id: str, identity: tuple[int, int], topic: str, *partitions: int) -> list[int]:
        kind = messages.AddPartitionsToTxnRequest
        request = kind(
            v3_and_below_transactional_id=transactional_id, v3_and_below_producer_id=identity[0],
            v3_and_below_producer_epoch=identity[1],
            v3_and_below_topics=[kind.AddPartitionsToTxnTopic(name=topic, partitions=list(partitions))],
        )
        response = await self.to_coordinator(transactional_id, request, 3)
        return [p.partition_error_code for p in response.results_by_topic_v3_and_below[0].results_by_partition]

    async def end(self, transactional_id: str, identity: tuple[int, int], commit: bool, version: int = 3) -> Any:
        request = messages.EndTxnRequest(
            transactional_id=transactional_id, producer_id=identity[0], producer_epoch=identity[1], committed=commit
        )
        return await self.to_coordinator(transactional_id, request, version)

    async def produce(
        self, transactional_id: str, identity: tuple[int, int], topic: str, partition: int, value: bytes,
        sequence: int = 0, version: int = 11,
    ) -> Any:
        batch = bytearray(encode_batch([(b"k", value)], 0, producer_id=identity[0], producer_epoch=identity[1]))
        batch = _with_sequence(batch, sequence)
        kind = messages.ProduceRequest
        request = kind(transactional_id=transactional_id, acks=-1, timeout_ms=10_000, topic_data=[
            kind.TopicProduceData(name=topic, partition_data=[
                kind.TopicProduceData.PartitionProduceData(index=partition, records=bytes(batch))])])
        response = await (await self.broker()).call(request, version=version)
        return response.responses[0].partition_responses[0]

    async def produce_v2(
        self, transactional_id: str, identity: tuple[int, int], topic: str, partition: int, value: bytes,
        sequence: int = 0,
    ) -> Any:
        """Registers the partition by itself."""
        return await self.produce(transactional_id, identity, topic, partition, value, sequence, version=12)

    async def delete_topic(self, name: str) -> None:
        request = messages.DeleteTopicsRequest(topic_names=[name], timeout_ms=10_000)
        response = await (await self.broker()).call(request, version=5)
        assert response.responses[0].error_code == 0
        await self.cluster.wait_until(
            lambda: all(self.view(each).topic(name) is None for each in self.coordinators()), "the topic is gone"
        )

    async def committed(self, group: str, topic: str, partition: int, stable: bool = False) -> tuple[int, int]:
        """(offset, error)"""
        kind = messages.OffsetFetchRequest
        request = kind(group_id=group, require_stable=stable, topics=[
            kind.OffsetFetchRequestTopic(name=topic, partition_indexes=[partition])])
        response = await self.until_answered(
            lambda: self.to_group(group, request, 7), lambda r: int(r.error_code)
        )
        found = response.topics[0].partitions[0]
        return found.committed_offset, found.error_code

    async def commit_offset(self, group: str, topic: str, partition: int, offset: int) -> int:
        kind = messages.OffsetCommitRequest
        part = kind.OffsetCommitRequestTopic.OffsetCommitRequestPartition
        request = kind(group_id=group, generation_id_or_member_epoch=-1, member_id="", topics=[
            kind.OffsetCommitRequestTopic(name=topic, partitions=[part(
                partition_index=partition, committed_offset=offset, committed_leader_epoch=-1,
                committed_metadata="")])])
        response = await self.to_group(group, request, 8)
        return int(response.topics[0].partitions[0].error_code)

    async def txn_commit_offset(
        self, transactional_id: str, identity: tuple[int, int], group: str, topic: str, offset: int,
        version: int = 5,
    ) -> int:
        kind = messages.TxnOffsetCommitRequest
        part = kind.TxnOffsetCommitRequestTopic.TxnOffsetCommitRequestPartition
        request = kind(
            transactional_id=transactional_id, group_id=group, producer_id=identity[0], producer_epoch=identity[1],
            generation_id=-1, member_id="", group_instance_id=None, topics=[kind.TxnOffsetCommitRequestTopic(
                name=topic, partitions=[part(partition_index=0, committed_offset=offset, committed_leader_epoch=-1,
                                             committed_metadata="")])])
        response = await self.to_group(group, request, version)
        return int(response.topics[0].partitions[0].error_code)


def _with_sequence(batch: bytearray, sequence: int) -> bytearray:
    struct.pack_into(">i", batch, 53, sequence)
    struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[21:]))
    return batch


def run(
    scenario: Callable[[CoordinatorWorld], Coroutine[Any, Any, None]], seed: int = 1, limit_s: float = 600,
    exits_allowed: bool = False, **options: Any,
) -> None:
    """Plays a scenario on virtual time. No process may end by itself unless that is `exits_allowed`."""
    loop = SimLoop()
    world = CoordinatorWorld(loop, seed, **options)

    async def limited() -> None:
        async with asyncio.timeout(limit_s):
            await scenario(world)

    try:
        loop.run_until_complete(loop.spawn(world.process, limited(), "scenario"))
        assert exits_allowed or not world.cluster.exits(), world.cluster.exits()
    finally:
        for node in world.cluster.nodes.values():
            if node.process is not None:
                loop.crash(node.process)


__all__ = ["OFFSETS_TOPIC", "TXN_STATE_TOPIC", "CoordinatorWorld", "run"]
