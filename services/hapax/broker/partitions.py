"""The partitions of a broker: which of them it leads or copies, and their folders.

The metadata store says which node leads a partition and which nodes have replicas; this module follows it. A broker
serves a partition only if the store names the broker *and* its present registration, so a restarted process never
serves under an old leader epoch (rule 5). A replica that does not lead is copied from its leader. The folder of a
deleted topic is removed and never comes back, because folders carry the topic's id (rule 10). The folder of a replica
that was moved to another broker is removed too.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Final, NamedTuple

from hapax.broker.copying import Copying
from hapax.broker.early_writes import EarlyWrites
from hapax.broker.fetcher import Fetchers
from hapax.broker.high_watermarks import HighWatermarks
from hapax.broker.in_sync import InSync
from hapax.broker.inheritance import Inherited
from hapax.broker.intact_since import read_intact_since
from hapax.broker.opening import open_replica
from hapax.broker.replica import Replica
from hapax.broker.replica_context import ReplicaContext
from hapax.codec.snapshot import decode_snapshot
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.partition.replication import Replication
from hapax.core.types import PartitionIndex, TopicId, TopicIdPartition, TopicPartition
from hapax.log.config import LogConfig
from hapax.log.durable import SyncFailed
from hapax.log.layout import (
    BEGINS_ANEW,
    CLEAN_SHUTDOWN,
    INHERITED,
    LOG,
    PARTITION_METADATA,
    LayoutError,
    decode_inherited,
    decode_partition_metadata,
    encode_partition_metadata,
    gone_folder,
    is_gone_folder,
    parse_partition_folder,
    partition_folder,
)
from hapax.log.segment_log import SegmentLog
from hapax.log.txn_index import decode_aborted
from hapax.runtime import supervision, telemetry
from hapax.runtime.cluster import Changes, ClusterView, PartitionView, TopicView
from hapax.runtime.guarded_writes import accept_partitions
from hapax.runtime.ports import Disk, Folder, MetadataStore, MetadataUnavailable, Task
from hapax.runtime.registration import Registration
from hapax.runtime.settings import Settings, SettingsError

log = telemetry.logger("partitions")

_OPEN_AT_ONCE: Final = 4
_RETRY_S: Final = 0.1
_REOPEN_S: Final = 1.0


class PendingRemoval(NamedTuple):
    """A folder that was renamed, and is removed once nothing writes to it."""

    replica: Replica | None
    folder: str
    """Its former name."""
    gone: str
    """Its new name."""
    whose: str
    """For the log line: why it is removed."""


class PartitionSet:
    """See above. `start`, then `follow` once the node is registered; `close` ends cleanly."""

    def __init__(
        self, context: ReplicaContext, view: ClusterView, store: MetadataStore, settings: Settings,
        newest_connection: Callable[[], int], fetchers: Fetchers,
    ) -> None:
        """`newest_connection`: the greatest serial of a client's connection so far (rule 4)."""
        self.context = context
        self.view = view
        self.settings = settings
        self.by_name: dict[tuple[str, int], Replica] = {}
        self.by_id: dict[tuple[bytes, int], Replica] = {}
        self.replicas: dict[TopicIdPartition, Replica] = {}
        """Open replicas, whether they serve or not."""
        self.early_writes = EarlyWrites(context.clock)
        self.fetchers = fetchers
        self.random: Final = fetchers.context.random
        self.in_sync = InSync(view, store, context.clock, self.random, self.led, settings.replica_lag_time_max_ms)
        self.high_watermarks = HighWatermarks(context.disk)
        self.intact_since = 0
        """The data folder has lost no acknowledged record since this registration epoch; 0: it may have."""
        self.leaderships = 0
        self._new_leaderships: list[Replica] = []
        """New leaderships that are not logged yet."""
        self._newest_connection = newest_connection
        self._newest_at_end = -1
        """Serial of the newest connection when a leadership last ended here."""
        self._store = store
        self._registration: Registration | None = None
        self._folders: dict[TopicIdPartition, str] = {}
        self._clean: dict[str, int] = {}
        """Folder that the last stop left clean -> size of its newest segment then."""
        self._changed: dict[TopicIdPartition, None] = {}
        self._unopened: set[TopicIdPartition] = set()
        self._discarded: dict[TopicIdPartition, Replica] = {}
        self._pending_removals: dict[TopicIdPartition, PendingRemoval] = {}
        self._wake = asyncio.Event()
        self._follower: Task | None = None
        self._checkpoints: Task | None = None
        self._unfollow: Callable[[], None] | None = None

    # --- find -----------------------------------------------------------------------------------------------------

    def find(self, topic: str | bytes, partition: int) -> Replica:
        """The replica that this broker serves. Raises Refusal: UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID,
        NOT_LEADER_OR_FOLLOWER."""
        replica = (
            self.by_name.get((topic, partition)) if isinstance(topic, str) else self.by_id.get((topic, partition))
        )
        if replica is None:
            raise self.refusal(topic, partition)
        return replica

    def refusal(self, topic: str | bytes, partition: int) -> Refusal:
        """Why this broker does not serve the partition."""
        found = self.view.topic(topic) if isinstance(topic, str) else self.view.topic_by_id(TopicId(topic))
        if found is None:
            return Refusal(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if isinstance(topic, str) else ErrorCode.UNKNOWN_TOPIC_ID
            )
        if not 0 <= partition < found.partitions:
            return Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return Refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def led(self) -> list[Replica]:
        """The replicas that this broker serves."""
        return [replica for replica in self.replicas.values() if replica.serving]

    def settled(self) -> bool:
        """All partitions that the store assigns to this node are open, those that it leads are served under this
        registration, and no partition without a leader waits for this node."""
        registration = self._registration
        return registration is not None and all(
            self._settled(assigned, registration)
            for assigned in self.view.partitions()
            if registration.record.node_id in assigned.record.replicas
        )

    def _settled(self, assigned: PartitionView, registration: Registration) -> bool:
        record, node_id = assigned.record, registration.record.node_id
        replica = self.replicas.get(assigned.id)
        if replica is None:
            return False
        if record.leader == node_id:
            return record.accepted and record.leader_registration == registration.epoch and replica.serving
        return record.leader >= 0 or node_id not in record.isr

    def behind(self) -> int:
        """Number of replicas here that are not in sync with a live leader. Replicas that a reassignment adds or removes
        do not count."""
        if self._registration is None:
            return 0
        node_id = self._registration.record.node_id
        return sum(
            node_id in record.replicas and node_id not in (*record.isr, *record.adding, *record.removing)
            and self.view.leader_of(*each.id) is not None
            for each in self.view.partitions() for record in (each.record,))

    # --- start ----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Reads the data folder."""
        disk = self.context.disk
        clean = disk.exists(CLEAN_SHUTDOWN)
        if clean:
            self._clean = _read_clean_shutdown(disk)
            disk.remove(CLEAN_SHUTDOWN)
            await disk.sync_folder("")
        self.intact_since = read_intact_since(disk, clean=clean)
        self.high_watermarks.load()
        for name in disk.list(""):
            if is_gone_folder(name, "delete"):
                disk.discard(name)
            elif parse_partition_folder(name) is not None and disk.list(name):
                self._found(name)

    def _found(self, folder: str) -> None:
        disk = self.context.disk
        path = f"{folder}/{PARTITION_METADATA}"
        parsed = parse_partition_folder(folder)
        assert parsed is not None
        try:
            file = disk.open(path)
            topic_id = decode_partition_metadata(file.read(0, file.size()))
            file.close()
        except (FileNotFoundError, LayoutError) as error:
            if _holds_records(disk, folder):
                log.warning("ignoring a folder without a readable topic id", folder=folder, reason=error)
            else:
                disk.remove_tree(folder)  # a crash interrupted its creation
            return
        partition = TopicIdPartition(topic_id, parsed.partition)
        self._folders[partition] = folder

    def follow(self, registration: Registration) -> None:
        """Begins to serve and copy the partitions that the store assigns to this registration."""
        self._registration = self.fetchers.registration = registration
        self.in_sync.start(registration)
        self._unfollow = self.view.on_change(self._on_change)
        for partition in [*self._folders, *(p.id for p in self.view.partitions())]:
            self._changed[partition] = None
        self._wake.set()
        self._follower = supervision.vital(self._follow(), "partitions", self._follower_failed)
        self._checkpoints = supervision.keep(self._checkpoint, "high-watermarks", self.random)

    def _follower_failed(self, error: BaseException) -> None:
        """Ends the process: without the follower this node would look alive, but open and accept no partition."""
        self.context.committer.fatal(f"a fault of this program: {error!r}")

    def _on_change(self, changes: Changes) -> None:
        for name in changes.topics:
            topic = self.view.topic(name)
            if topic is not None:
                self._reconfigure(topic)
        for topic_id in changes.deleted_topics:
            for partition in [*self.replicas, *self._folders]:
                if partition.topic_id == topic_id:
                    self._changed[partition] = None
        for partition in changes.partitions:
            self._changed[partition] = None
            replica = self.replicas.get(partition)
            if replica is not None:  # an open replica does not wait for those that have to be opened
                self._assume(replica)
        if changes.nodes:
            self.fetchers.nodes_changed()
            self.in_sync.nodes_changed()
        if self._changed:
            self._wake.set()

    def _reconfigure(self, topic: TopicView) -> None:
        settings = self._settings_of(topic)
        for index in range(topic.partitions):
            replica = self.replicas.get(TopicIdPartition(topic.topic_id, PartitionIndex(index)))
            if replica is not None:
                replica.set_settings(settings)
                replica.log.config = LogConfig.from_settings(settings, internal=topic.internal)
                if replica.replication is not None:
                    self.in_sync.reconsider(replica)

    def _settings_of(self, topic: TopicView) -> Settings:
        try:
            return self.settings.for_topic(topic.config)
        except SettingsError as error:
            log.warning("a topic's configuration is invalid; the defaults apply", topic=topic.name, error=error)
            return self.settings

    # --- follow ---------------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            changed, self._changed = list(self._changed), {}
            limit = asyncio.Semaphore(_OPEN_AT_ONCE)
            try:
                await self._accept(changed)  # partitions that serve already do not wait for those to be opened
                await asyncio.gather(*(self._reconcile(partition, limit) for partition in changed))
                await self._accept(changed)
            except MetadataUnavailable as error:
                log.warning("the store did not accept the new leaderships; trying again", error=error)
                self._changed.update(dict.fromkeys(changed))
                self._wake.set()
                await asyncio.sleep(_RETRY_S)

    async def _accept(self, changed: list[TopicIdPartition]) -> None:
        assert self._registration is not None
        serving = [p for p in changed if p in self.replicas and self.replicas[p].serving]
        if self._new_leaderships:  # one line for all of them
            led, self._new_leaderships = self._new_leaderships, []
            log.info("leads", partitions=len(led), first=led[0].name, leader_epoch=led[0].leader_epoch,
                     log_end_offset=led[0].machine.log_end_offset)
            for replica in led:
                log.debug("leads", partition=replica.name, leader_epoch=replica.leader_epoch)
        if serving:
            await accept_partitions(self._store, self.view, self._registration, serving, self._least)

    def _least(self, partition: PartitionView) -> int:
        """Minimum number of in-sync replicas at which the leader commits."""
        return min(self.replicas[partition.id].settings.min_insync_replicas, len(partition.record.replicas))

    def _mine(self, partition: TopicIdPartition) -> PartitionView | None:
        """The partition's record if this registration leads it."""
        assert self._registration is not None
        assigned = self.view.partition(*partition)
        if (
            assigned is None
            or assigned.record.leader != self._registration.record.node_id
            or assigned.record.leader_registration != self._registration.epoch
        ):
            return None
        return assigned

    def _assume(self, replica: Replica) -> None:
        """Makes the replica do what the metadata says: lead, copy, or neither."""
        assigned = self.view.partition(*replica.id)
        if assigned is None or not self._believable(replica, assigned):
            self._withdraw(replica)
            self.fetchers.leave(replica)
        elif self._mine(replica.id) is not None:
            if self.fetchers.leave(replica):
                self._lead(replica, assigned)
            else:
                self._when_idle(replica)
        else:
            if replica.serving:
                log.info("no longer the leader", partition=replica.name, leader_epoch=replica.leader_epoch)
            self._withdraw(replica)
            if not self._is_replica(assigned):
                self.fetchers.leave(replica)  # `_reconcile` removes it
            elif not self.fetchers.follow(replica, assigned.record):
                self._when_idle(replica)

    def _when_idle(self, replica: Replica) -> None:
        """The log is being cut: reconciles the replica afterwards."""
        if isinstance(replica.copying, Copying):
            replica.copying.when_idle(lambda: self._reconcile_later(replica.id))

    def _believable(self, replica: Replica, assigned: PartitionView) -> bool:
        """False: the leader epoch is below that of the log's records, so the store went back in time (rule 12)."""
        latest = replica.machine.leader_epochs.latest
        if assigned.record.leader_epoch >= latest:
            return True
        self.view.refuse(
            f"the metadata store gives {replica.name} the leader epoch {assigned.record.leader_epoch}, but its log "
            f"here has records of epoch {latest}: it was restored from an old backup or lost writes; refusing to "
            "follow it"
        )
        return False

    def _is_replica(self, assigned: PartitionView) -> bool:
        assert self._registration is not None
        return self._registration.record.node_id in assigned.record.replicas

    def _withdraw(self, replica: Replica) -> None:
        if self.by_name.pop((replica.topic, replica.index), None) is not None:
            self._newest_at_end = self._newest_connection()
        self.by_id.pop((replica.id.topic_id, replica.index), None)
        replica.resign()

    async def _reconcile(self, partition: TopicIdPartition, limit: asyncio.Semaphore) -> None:
        async with limit:
            try:
                await self._clear_away(partition)
                if self.view.is_deleted(partition.topic_id):
                    await self._remove(partition, "a deleted topic's")
                    return
                topic, assigned = self.view.topic_by_id(partition.topic_id), self.view.partition(*partition)
                if topic is None or assigned is None:
                    return
                if not self._is_replica(assigned) and self._mine(partition) is None:
                    await self._remove(partition, "a reassigned replica's")
                    return
                replica = self.replicas.get(partition)
                if replica is not None and self._discarded.get(partition) is replica:
                    await self._remove(partition, "a damaged replica's")
                    del self._discarded[partition]
                    replica = None
                if replica is None:
                    replica = await self._open(topic, assigned)
                    await asyncio.sleep(0)  # opening a thousand partitions must not delay the registration's renewal
            except SyncFailed as error:
                self.context.committer.failed(error)
                return
            except (OSError, ValueError) as error:  # ValueError: one damaged folder must not end all others
                self._cannot_open(partition, error)
                return
        self._unopened.discard(partition)
        if await self.view.check_producer_id(replica.machine.producers.highest):
            self._assume(replica)

    def _cannot_open(self, partition: TopicIdPartition, error: OSError | ValueError) -> None:
        """Usually the disk is full. Logs once, and tries again every second."""
        if partition not in self._unopened:
            self._unopened.add(partition)
            log.error("a partition cannot be opened; trying again", partition=self._name_of(partition), error=error)
        asyncio.get_running_loop().call_later(_REOPEN_S, self._reconcile_later, partition)

    def _reconcile_later(self, partition: TopicIdPartition) -> None:
        self._changed[partition] = None
        self._wake.set()

    def _name_of(self, partition: TopicIdPartition) -> str:
        topic = self.view.topic_by_id(partition.topic_id)
        return partition_folder("?" if topic is None else topic.name, partition.partition)

    def _lead(self, replica: Replica, assigned: PartitionView) -> None:
        """Serves under the record's epoch, or takes over the changes within the same epoch."""
        record, now_ms = assigned.record, self.context.clock.monotonic_ms()
        replication = replica.replication
        log_end = replica.machine.log_end_offset
        if not replica.serving or replica.leader_epoch != record.leader_epoch:
            replica.resign()
            # Epoch 0 is the first leadership of all, and has one process. Its empty log has had no other leader who
            # could have seen a newer connection. But its topic may have been made again, and what was sent to the
            # former one may come late over a connection from before its end.
            first = replica.leader_epoch < 0 and record.leader_epoch == 0 and log_end == 0
            newest_connection = self._newest_at_end if first else self._newest_connection()
            replica.lead(record.leader_epoch, newest_connection, self._replication(replica, assigned))
            self.early_writes.hand_over(replica)
            self.leaderships += 1
            self._new_leaderships.append(replica)
            self.by_name[replica.topic, replica.index] = replica
            self.by_id[replica.id.topic_id, replica.index] = replica
        elif replication is None:
            replica.replication = self._replication(replica, assigned)
            replica.members_changed()
            replica.advance(replica.durable_end)
        else:
            replication.stored(
                record.replicas, record.isr, assigned.mod_revision, log_end=log_end, now_ms=now_ms,
                passed_over=[node for node, _ in record.passed_over], accepted=record.accepted)
            replica.members_changed()
            if replication.sole:
                replica.replication = None
                replica.advance(replica.durable_end)
        if replica.replication is not None:
            self.in_sync.reconsider(replica)

    def _replication(self, replica: Replica, assigned: PartitionView) -> Replication | None:
        """None: this node has the only replica."""
        assert self._registration is not None
        record, me = assigned.record, self._registration.record.node_id
        if record.replicas == (me,) and record.isr == (me,):
            return None
        made = Replication(
            me, record.replicas, record.isr, assigned.mod_revision, log_end=replica.machine.log_end_offset,
            min_insync=replica.settings.min_insync_replicas, now_ms=self.context.clock.monotonic_ms(),
            passed_over=[node for node, _ in record.passed_over], accepted=record.accepted,
        )
        made.deleted_below = replica.maintenance.log_start.noted_below
        return made

    async def _open(self, topic: TopicView, assigned: PartitionView) -> Replica:
        partition = assigned.id
        replica = Replica(self.context, topic.name, partition, self._settings_of(topic), internal=topic.internal)
        path = self._folders.get(partition)
        if path is not None and self.context.disk.exists(f"{path}/{BEGINS_ANEW}"):
            await self._remove(partition, "a half removed replica's")
            path = None
        if path is None:
            await self._make(replica, topic)
        else:
            await self._reopen(replica, assigned, path)
        self.replicas[partition] = replica
        return replica

    async def _reopen(self, replica: Replica, assigned: PartitionView, path: str) -> None:
        started = asyncio.get_running_loop().time()
        folder = self.context.disk.folder(path)
        try:
            clean = self._clean.get(path, -1) == _newest_log_size(folder)
            self._read_inherited(replica, folder)
            if not clean:  # as the log itself: a killed process may not have synced it, so it is written again
                await folder.write_atomically(PARTITION_METADATA, encode_partition_metadata(assigned.topic_id))
            recovery = await open_replica(
                replica, folder, clean=clean,
                high_watermark=self.high_watermarks.of(TopicPartition(replica.topic, replica.id.partition)),
                known_epoch=assigned.record.leader_epoch,
            )
        except BaseException:
            folder.close()
            raise
        if replica.inheritance.inherited is not None:
            replica.copied(new_epoch=False)
        if not recovery.clean:
            log.info(
                "recovered after an unclean stop", partition=replica.name, from_offset=recovery.from_offset,
                scanned_bytes=recovery.scanned_bytes, scanned_batches=recovery.scanned_batches,
                truncated_bytes=recovery.truncated_bytes, truncated_because=recovery.truncated_why or "-",
                end_offset=recovery.end_offset, ms=round(1000 * (asyncio.get_running_loop().time() - started)),
            )

    @staticmethod
    def _read_inherited(replica: Replica, folder: Folder) -> None:
        """The leader's producers, if the copy had not reached their offset when it was stopped."""
        if not folder.exists(INHERITED):
            return
        file = folder.open(INHERITED)
        try:
            offset, leader_epoch, snapshot, aborted = decode_inherited(file.read(0, file.size()))
            replica.inheritance.take(Inherited(
                leader_epoch, decode_snapshot(snapshot, offset), decode_aborted(aborted)))
        except ValueError as error:  # any kind of damage
            log.error("the inherited producers cannot be read", partition=replica.name, error=error)
            replica.inheritance.lacking = True
        finally:
            file.close()

    async def _make(self, replica: Replica, topic: TopicView) -> None:
        disk = self.context.disk
        await self.high_watermarks.forget(TopicPartition(replica.topic, replica.id.partition))
        folder = partition_folder(topic.name, replica.index)
        if disk.exists(folder):
            for other, name in list(self._folders.items()):
                if name != folder:
                    continue
                if self.view.is_deleted(other.topic_id):
                    self._set_aside(other, "a deleted topic's")
                    self._reconcile_later(other)
                else:
                    log.warning("renamed the folder of another topic with the same name", folder=folder)
                    disk.rename(folder, gone_folder(folder, other.topic_id, "stray"))
                    del self._folders[other]
                await disk.sync_folder("")
            if _holds_records(disk, folder):
                raise OSError(f"{folder} holds records of an unknown topic: {PARTITION_METADATA} is damaged")
            disk.remove_tree(folder)
        segment_log = SegmentLog(
            disk, folder, LogConfig.from_settings(replica.settings, internal=replica.internal)
        )
        segment_log.create([(PARTITION_METADATA, encode_partition_metadata(topic.topic_id))])
        await segment_log.sync_names()  # before any record: after a power cut they must not lie there without a name
        replica.restore(None, 0, 0, (), ())
        replica.opened(segment_log)
        self._folders[replica.id] = folder

    def discard(self, replica: Replica) -> None:
        """Removes a damaged copy that does not count any more, and copies from the start."""
        self._discarded[replica.id] = replica
        self._reconcile_later(replica.id)

    async def _remove(self, partition: TopicIdPartition, whose: str) -> None:
        self._set_aside(partition, whose)
        await self._clear_away(partition)

    def _set_aside(self, partition: TopicIdPartition, whose: str) -> None:
        """Ends a replica and frees its folder's name at once: a topic of the same name may be created before the
        replica is closed. Writes still in progress use the folder's handle. Raises OSError."""
        replica, folder = self.replicas.get(partition), self._folders.get(partition)
        if replica is not None:
            self._withdraw(replica)
            self.fetchers.leave(replica)
        if folder is not None:
            gone = gone_folder(folder, partition.topic_id, "delete")
            self.context.disk.rename(folder, gone)
            self._pending_removals[partition] = PendingRemoval(replica, folder, gone, whose)
            del self._folders[partition]
        self.replicas.pop(partition, None)

    async def _clear_away(self, partition: TopicIdPartition) -> None:
        """Removes the renamed folder, unless its log is being cut: then this is called again. Raises OSError."""
        leaving = self._pending_removals.get(partition)
        if leaving is None:
            return
        if leaving.replica is not None:
            if not self.fetchers.leave(leaving.replica):
                self._when_idle(leaving.replica)
                return
            await leaving.replica.close(checkpoint=False)
        del self._pending_removals[partition]
        await self.context.disk.sync_folder("")
        self.context.disk.discard(leaving.gone)
        log.info(f"removed {leaving.whose} folder", folder=leaving.folder)

    # --- high watermarks ------------------------------------------------------------------------------------------

    async def _checkpoint(self) -> None:
        while True:
            await asyncio.sleep(self.settings.replica_high_watermark_checkpoint_interval_ms / 1000)
            try:
                await self._write_high_watermarks()
            except OSError as error:
                log.warning("the high watermarks were not written", error=error)

    async def _write_high_watermarks(self) -> None:
        await self.high_watermarks.write(lambda: {
            TopicPartition(replica.topic, replica.id.partition): replica.machine.high_watermark
            for replica in self.replicas.values() if replica.machine.high_watermark
        })

    # --- end ------------------------------------------------------------------------------------------------------

    def stop_serving(self) -> None:
        """Stops leading and copying. Waiting calls are answered NOT_LEADER_OR_FOLLOWER."""
        self._stop_hearing()
        for replica in list(self.replicas.values()):
            self.fetchers.leave(replica)
        for replica in list(self.replicas.values()):
            self._withdraw(replica)

    async def close_cleanly(self) -> None:
        """Checkpoints and closes all logs, so that the next start reads none. Raises SyncFailed, OSError."""
        await self._stop_following()
        await asyncio.gather(*(_idle(replica) for replica in self.replicas.values()))
        await self._write_high_watermarks()
        limit = asyncio.Semaphore(_OPEN_AT_ONCE)

        async def close(replica: Replica) -> None:
            async with limit:
                await replica.close()

        await asyncio.gather(*(close(replica) for replica in self.replicas.values()))
        clean = {
            folder: _newest_log_size(self.context.disk, folder) if partition in self.replicas else self._clean[folder]
            for partition, folder in self._folders.items()
            if partition in self.replicas or folder in self._clean  # not opened by this process: as clean as before
        }
        self.replicas.clear()
        content = {"version": 0, "brokerEpoch": -1, "sizes": clean}
        await self.context.disk.write_atomically(CLEAN_SHUTDOWN, json.dumps(content).encode())

    async def abandon(self) -> None:
        """Ends without writing to the disk. The next start recovers the logs."""
        await self._stop_following()

    def _stop_hearing(self) -> None:
        if self._unfollow is not None:
            self._unfollow()
            self._unfollow = None

    async def _stop_following(self) -> None:
        self._stop_hearing()
        follower, checkpoints = self._follower, self._checkpoints
        self._follower = self._checkpoints = None
        await supervision.end(follower, checkpoints)
        await self.in_sync.close()
        await self.fetchers.close()


async def _idle(replica: Replica) -> None:
    """Returns once the log is no longer being cut."""
    if isinstance(replica.copying, Copying) and replica.copying.busy:
        idle = asyncio.Event()
        replica.copying.when_idle(idle.set)
        await idle.wait()


def _read_clean_shutdown(disk: Disk) -> dict[str, int]:
    file = disk.open(CLEAN_SHUTDOWN)
    try:
        sizes = json.loads(file.read(0, file.size())).get("sizes", {})
    except ValueError:
        return {}
    finally:
        file.close()
    return {str(folder): int(size) for folder, size in sizes.items()}


def _newest_log_size(folder: Folder, path: str = "") -> int:
    logs = [name for name in folder.list(path) if name.endswith(LOG)]
    return _size(folder, f"{path}/{logs[-1]}" if path else logs[-1]) if logs else 0


def _holds_records(disk: Disk, folder: str) -> bool:
    return any(_size(disk, f"{folder}/{name}") for name in disk.list(folder) if name.endswith(LOG))


def _size(folder: Folder, path: str) -> int:
    file = folder.open(path)
    try:
        return file.size()
    finally:
        file.close()
