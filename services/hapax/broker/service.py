"""The partition broker: stores partitions, checks producers, serves reads up to the last stable offset."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from typing import Final

from hapax.broker.commit import Committer
from hapax.broker.copying import LostRange
from hapax.broker.fenced_by import FencedBy
from hapax.broker.fetch import FetchService
from hapax.broker.fetcher import FetcherContext, Fetchers
from hapax.broker.followers import Followers
from hapax.broker.hanging_transactions import HangingWatch
from hapax.broker.healing import Healing
from hapax.broker.intact_since import write_intact_since
from hapax.broker.kafka_api import DeletionService, OffsetService, ProducerService, ProduceService
from hapax.broker.metrics import LOST_RECORDS, BrokerParts
from hapax.broker.observing import Refusals, observe_broker
from hapax.broker.own_rack import OwnRack
from hapax.broker.partitions import PartitionSet
from hapax.broker.periodic_tasks import PeriodicTasks
from hapax.broker.read_replicas import ReadReplicas
from hapax.broker.replica import Replica
from hapax.broker.replica_context import ReplicaContext
from hapax.broker.rpc_api import BrokerRpc
from hapax.broker.scrubber import Scrubber
from hapax.broker.snapshots import SnapshotSource
from hapax.broker.storage import StorageGuard
from hapax.broker.stored_replicas import StoredReplicas
from hapax.broker.sweep import Sweep
from hapax.broker.throttle import Throttle
from hapax.broker.verifier import Verifier
from hapax.broker.waiters import Settles
from hapax.codec.batch import read_header
from hapax.codec.metadata import NodeRecord
from hapax.core.batch import BatchHeader
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.fetch_sessions import FetchSessions
from hapax.core.partition.verification import ShardEpochs
from hapax.core.types import NodeId, RegistrationEpoch, TopicId, TopicIdPartition
from hapax.kafka.api import (
    alter_replica_log_dirs,
    delete_records,
    describe_log_dirs,
    describe_producers,
    fetch,
    init_producer_id,
    list_offsets,
    offset_for_leader_epoch,
    produce,
    write_txn_markers,
)
from hapax.kafka.api.fetch import FetchPartition
from hapax.kafka.node import node_table, server_limits
from hapax.kafka.registry import register_other_roles
from hapax.kafka.security import listener_securities
from hapax.kafka.server import KafkaServer
from hapax.kafka.table import ApiTable
from hapax.log.durable import SyncFailed
from hapax.runtime import telemetry
from hapax.runtime.addresses import Address
from hapax.runtime.call_listeners import CallListeners, listen_for_calls
from hapax.runtime.cluster import ClusterView
from hapax.runtime.handover import hand_over, partitions_finished
from hapax.runtime.incidents import Incidents
from hapax.runtime.lingering import leaders, left, taken_over
from hapax.runtime.ports import Ports
from hapax.runtime.producer_ids import ProducerIds
from hapax.runtime.registration import Registration, register
from hapax.runtime.settings import Settings
from hapax.runtime.starting import start_node
from hapax.wire.events import EventLog

log = telemetry.logger("broker")

_RPC_GRACE_S: Final = 1.0
_ZOMBIES_REMEMBERED: Final = 10_000


class BrokerService:
    """Composed by `start`. `drain` ends it cleanly, `close` at once."""

    def __init__(
        self, ports: Ports, settings: Settings, view: ClusterView, on_lost: Callable[[str], None],
        metrics: telemetry.Metrics,
    ) -> None:
        assert ports.disk is not None
        self.view = view
        self.registration: Registration | None = None
        self.settings = settings
        self._ports = ports
        self._on_lost = on_lost
        self._failed = False
        self._ending = False
        self._drained = False
        self._left = False
        self._led: Mapping[TopicIdPartition, NodeId] = {}
        """Who led what when this broker was asked to end."""
        self.events: EventLog | None = None
        self._zombies: set[tuple[TopicIdPartition, int, int]] = set()
        self._bound: Mapping[str, Address] = {}
        self._calls: CallListeners | None = None
        self.node_id = NodeId(settings.node_id)
        self.verifier = Verifier(ports.network, view)
        self.fenced_by = FencedBy(ports.network, view)
        self.storage = StorageGuard(ports.disk, ports.random, self._stand)
        self.committer = Committer(ports.disk, self._fatal, self.storage.slow, settings.log_flush_slow_ms / 1000)
        self._snapshots = SnapshotSource(ports.network, view)
        self.partitions = PartitionSet(
            self._replica_context(), view, ports.metadata, settings, self._newest_connection,
            Fetchers(self._fetcher_context()),
        )
        self.healing = Healing(self.partitions, ports.metadata)
        self.scrubber = Scrubber(self.partitions, settings, ports.clock)
        self.producer_ids = ProducerIds(
            ports.network, view, self.node_id, ports.random, block_size=settings.pid_block_size
        )
        self.hanging = HangingWatch(self.partitions, view, ports.network, ports.clock, settings)
        self.periodic_tasks = PeriodicTasks(self.partitions, settings, ports.clock, ports.random, self.hanging)
        self._incidents = Incidents(log, asyncio.get_running_loop().time)
        self._metrics = metrics
        self._refusals = Refusals(metrics, self.partitions, self._incidents)
        self._lost_records = metrics.counter(LOST_RECORDS)
        self.rack = OwnRack(view, settings)
        read_replicas = ReadReplicas(self.partitions, settings, self.rack)
        self.followers = Followers(
            self.partitions, self._incidents,
            Throttle(
                lambda: self._copying_rate(settings.leader_replication_throttled_rate), ports.clock.monotonic_ms),
            metrics, prompt=read_replicas.enabled,
        )
        self.fetches = FetchService(
            read_replicas.find, read_replicas.preferred, self._leader_of, settings.fetch_max_bytes,
            self.followers.fetch, metrics,
            FetchSessions(
                lambda: ports.random.randrange(1, 2**31), settings.max_incremental_fetch_session_cache_slots,
                settings.max_incremental_fetch_session_cache_bytes),
            ports.clock.monotonic_ms,
        )
        self.sweep = Sweep(self.partitions, self.fetches, ports.random)
        observe_broker(metrics, BrokerParts(
            partitions=self.partitions, committer=self.committer, healing=self.healing, scrubber=self.scrubber,
            hanging=self.hanging,
        ))
        self.server = KafkaServer(
            ports.network, self._table(metrics), server_limits(settings), metrics,
            listener_securities(settings, view.scram, ports), ports.random, ports.audit)

    def _replica_context(self) -> ReplicaContext:
        """Made before the parts that its callbacks call."""
        ports = self._ports
        assert ports.disk is not None
        return ReplicaContext(
            disk=ports.disk, clock=ports.clock, committer=self.committer, storage=self.storage,
            shard_epochs=ShardEpochs(), ask=self.verifier.ask, refused=self._refused, node_id=self.node_id,
            settle_refused=self.fenced_by.settle,
            reconsider=lambda replica: self.partitions.in_sync.reconsider(replica),
            damaged=lambda replica, damage: self.healing.found(replica, damage),
            mislisted=lambda replica, segment, count: self.healing.mislisted(replica, segment, count),
            superseded=lambda: self._refusals.older_connections.add(1),
            unreadable=lambda replica, offset, refusal: self.healing.unreadable(replica, offset, refusal),
        )

    def _fetcher_context(self) -> FetcherContext:
        ports, settings = self._ports, self.settings
        return FetcherContext(
            network=ports.network, view=self.view, random=ports.random, settings=settings,
            throttle=Throttle(
                lambda: self._copying_rate(settings.follower_replication_throttled_rate), ports.clock.monotonic_ms),
            fetch_snapshot=self._snapshots.fetch, lost=self._lost, fatal=self.committer.failed,
        )

    def _table(self, metrics: telemetry.Metrics) -> ApiTable:
        settings, partitions = self.settings, self.partitions
        table = node_table(self.node_id, self.view, self._ports.network, settings, broker=True, audit=self._ports.audit)
        producers = ProducerService(partitions, self.hanging.ask_to_abort)
        produce.register(table, ProduceService(partitions, metrics, self._refusals.older_connections))
        fetch.register(table, self.fetches)
        offsets = OffsetService(partitions)
        list_offsets.register(table, offsets)
        offset_for_leader_epoch.register(table, offsets)
        init_producer_id.register(table, self.producer_ids)
        assert self._ports.disk is not None
        folder = StoredReplicas(partitions, os.path.abspath(settings.log_dir), self._ports.disk)
        describe_log_dirs.register_folder(table, folder)
        alter_replica_log_dirs.register_folder(table, folder)
        delete_records.register(table, DeletionService(partitions))
        describe_producers.register(table, producers)
        write_txn_markers.register(table, producers)
        register_other_roles(table)
        return table

    # --- callbacks of the parts --------------------------------------------------------------------------

    def _fatal(self, reason: str) -> None:
        """A sync failed: nothing is acknowledged any more, and the process ends (rule 13)."""
        self._failed = True
        self._on_lost(reason)

    def _copying_rate(self, configured: int) -> int:
        """Bytes per second for replicas that catch up. A reassignment may set a lower rate."""
        throttle = self.view.throttle
        return configured if throttle is None else min(configured, throttle.bytes_per_second)

    def _stand(self, standing: str) -> None:
        """The disk's state has changed. While it is bad, other brokers lead where they can."""
        if self.registration is not None:
            self.registration.declare(standing)

    def _lost(self, replica: Replica, lost: LostRange) -> None:
        """An unclean election discarded committed records: logs it, counts it and records an event."""
        log.error(
            "records were lost: an unclean election gave the partition to a replica without them",
            partition=replica.name, from_offset=lost.from_offset, to_offset=lost.to_offset,
            leader_epoch=lost.leader_epoch,
        )
        self._lost_records.add(lost.to_offset - lost.from_offset)
        if self.events is not None:
            self.events.record(
                "records_lost", topic=replica.topic, partition=replica.index, from_offset=lost.from_offset,
                to_offset=lost.to_offset, leader_epoch=lost.leader_epoch,
            )

    def _newest_connection(self) -> int:
        return max((session.connection.serial for session in self.server.sessions), default=-1)

    def _leader_of(self, partition: FetchPartition) -> tuple[int, int] | None:
        topic = (
            self.view.topic(partition.topic) if isinstance(partition.topic, str)
            else self.view.topic_by_id(TopicId(partition.topic))
        )
        assigned = None if topic is None else self.view.partition(topic.topic_id, partition.partition)
        if assigned is None or not assigned.record.accepted:
            return None
        return assigned.record.leader, assigned.record.leader_epoch

    def _refused(self, replica: Replica, batch: memoryview | bytearray, refusal: Refusal, call: Settles) -> None:
        self._refusals.heard(replica, batch, refusal, call)
        if refusal.code is ErrorCode.INVALID_PRODUCER_EPOCH:
            self._fenced(replica, read_header(batch), call)

    def _fenced(self, replica: Replica, header: BatchHeader, call: Settles) -> None:
        """Records one event for each fenced producer and partition: a zombie may retry without end."""
        zombie = (replica.id, header.producer_id, header.producer_epoch)
        successor = replica.machine.describe_producer(header.producer_id)
        if zombie in self._zombies or successor is None or self.events is None:
            return
        if len(self._zombies) >= _ZOMBIES_REMEMBERED:
            self._zombies.clear()
        self._zombies.add(zombie)
        self.events.record(
            "producer_refused", topic=replica.topic, partition=replica.index, producer_id=header.producer_id,
            producer_epoch=header.producer_epoch, fenced_by_epoch=successor.producer_epoch,
            fenced_at_offset=successor.last_offset,
            transactional_id=replica.parked.transactional_ids.get(header.producer_id, ""),
            peer=call.peer,
        )

    def _transactional_id_of(self, partition: TopicIdPartition, producer_id: int) -> str:
        replica = self.partitions.replicas.get(partition)
        return "" if replica is None else replica.parked.transactional_ids.get(producer_id, "")

    # --- life -----------------------------------------------------------------------------------------------------

    def ready(self) -> str:
        if self.registration is None:
            return "registration"
        if self._ending:
            return "the end of the process"
        return "" if self.partitions.settled() else "partitions"

    def in_sync(self) -> str:
        behind = self.partitions.behind()
        return f"{behind} replicas to catch up" if behind else ""

    @property
    def kafka_address(self) -> Address:
        """Where the listener for other nodes is bound."""
        return next(iter(self._bound.values()))

    async def serve(self, identity: str, http_address: str) -> None:
        ports, settings = self._ports, self.settings
        await self.partitions.start()
        rpc = BrokerRpc(self.partitions, self._transactional_id_of)
        calls = self._calls = await listen_for_calls(
            ports.network, settings, self.ready, internal=rpc.handlers(), public=rpc.public_handlers(),
            access=self.server.table.access, scram=self.view.scram, ports=ports)
        self._bound = await self.server.start_all(settings.kafka_addresses)
        advertised, *further = settings.advertised_kafka(self._bound).items()
        record = NodeRecord(
            self.node_id, "broker", *advertised[1],
            calls.rpc_address, http_address,
            rack=self.rack.name, identity=identity,
            intact_since=RegistrationEpoch(self.partitions.intact_since),
            listeners=tuple((name, *address) for name, address in further), heeds_passed_over=True,
            public_rpc_address=calls.public_rpc_address, frames_address=calls.frames_address,
        )
        self.registration = await register(
            ports.metadata, self.view.keys, record, random=ports.random, on_lost=self._on_lost,
            ttl_s=settings.broker_session_timeout_ms / 1000,
        )
        self.rack.follow(self.registration)
        assert ports.disk is not None
        await write_intact_since(
            ports.disk, self.partitions.intact_since, self.registration.epoch, settings.durability)
        self.events = EventLog(
            ports.network, ports.clock, self.view, ports.random, self.node_id, self.registration.epoch,
            self.registration.record.session, self._metrics,
        )
        self.healing.registration, self.healing.events = self.registration, self.events
        self.partitions.follow(self.registration)
        self.producer_ids.start()
        self.periodic_tasks.start()
        self.scrubber.start()
        self.sweep.start()
        log.info("serving", address=str(advertised[1]), rpc=record.rpc_address)

    async def drain(self) -> None:
        """Hands the leaderships over, answers the calls that wait, and closes every log, so that the next start reads
        none."""
        self._led = leaders(self.view)
        if self.registration is not None and not self._failed:
            await hand_over(
                self.registration, self.view, partitions_finished(self.view), self.settings.drain_timeout_ms / 2000)
        self._ending = True
        await self._close_background_tasks()
        await self.partitions.fetchers.close()
        if self.registration is not None:
            await self.registration.close()
        self.fetches.close()
        self.followers.close()
        await self.committer.drain()
        self.partitions.stop_serving()
        if self._failed:
            return
        try:
            await self.partitions.close_cleanly()
        except (SyncFailed, OSError) as error:
            log.error("the logs could not be closed cleanly; the next start will recover them", error=error)
            return
        self._drained = True
        self._left = await left(self.registration, self.view)

    def handed_over(self) -> bool:
        return self._left and taken_over(self.node_id, self._led, leaders(self.view))

    async def _close_background_tasks(self) -> None:
        await self.sweep.close()
        await self.scrubber.close()
        await self.healing.close()
        await self.periodic_tasks.close()
        if self.events is not None:
            await self.events.close()

    async def close(self) -> None:
        await self._close_background_tasks()
        await self.verifier.close()
        await self.fenced_by.close()
        await self.producer_ids.close()
        if not self._drained:
            await self.partitions.abandon()
        await self.storage.close()
        if self.registration is not None:
            await self.registration.close()
        await self.server.close()
        if self._calls is not None:
            await self._calls.close(grace=0.0 if self._failed else _RPC_GRACE_S)
        await self.view.close()


async def start(
    ports: Ports, settings: Settings, *, on_lost: Callable[[str], None], http_address: str = "",
    metrics: telemetry.Metrics | None = None,
) -> BrokerService:
    """Returns once the broker listens and is registered. It is `ready()` once it serves what is assigned to it.

    `on_lost` is called with one sentence when the broker must end. Raises FolderRefused, StoreRefused, NodeIdTaken,
    OSError.
    """
    assert ports.disk is not None, "a broker needs a data folder"
    collected = metrics or telemetry.Metrics()
    return await start_node(
        ports, settings, http_address, on_lost,
        lambda view: BrokerService(ports, settings, view, on_lost, collected))
