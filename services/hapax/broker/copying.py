"""What a follower does to its own log when it copies a partition from the leader.

Batches are appended byte for byte and replayed into the same machine as the leader's, so that either replica can lead.
Records that the leader does not have are cut (KIP-101, KIP-595), and the machine is rebuilt from the newest snapshot
below the cut. A replica that lacks records which the leader has already removed or compacted starts over at the
leader's log start. The producers that the log no longer contains come as a snapshot from the leader (rule 5). It
replaces the replayed state when the copy reaches its offset. Until then the replica reports no synced end to that
leader, so that it cannot join the in-sync set: see `core.partition.replication`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NamedTuple, Protocol

from hapax.broker.inheritance import Inherited
from hapax.broker.replica import Replica
from hapax.codec.batch import check_batch, iterate_batches
from hapax.codec.snapshot import DamagedSnapshot, decode_snapshot
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.types import NodeId
from hapax.log.durable import SyncFailed, sync_folder
from hapax.log.layout import BEGINS_ANEW, INHERITED, SNAPSHOT, encode_inherited, offset_name
from hapax.log.recovery import read_newest_snapshot, replay_again
from hapax.log.txn_index import decode_aborted
from hapax.runtime import supervision, telemetry
from hapax.runtime.registration import Registration

log = telemetry.logger("copying")


class LeaderSnapshot(NamedTuple):
    """A leader's answer to FetchSnapshot."""

    offset: int
    snapshot: bytes
    """The encoded producers as of `offset`."""
    aborted: bytes
    """The aborted transactions below `offset`, as in a `.txnindex`."""
    log_start_offset: int
    compacted: bool
    """The leader's log was compacted, so a tombstone may be missing in it, whatever the topic's policy is now."""


class LostRange(NamedTuple):
    """Committed records that this replica had and its new leader does not: an unclean election discarded them."""

    from_offset: int
    to_offset: int
    leader_epoch: int


FetchSnapshot = Callable[[Replica, NodeId, int, Registration], Awaitable[LeaderSnapshot]]
"""(replica, leader, leader epoch, this node's registration). Raises Refusal."""


class Overtaken(Exception):
    """The leader has compacted records that the copy needs next."""


class CopySource(Protocol):
    """Feeds copyings: `hapax.broker.fetcher.Fetcher`."""

    def synced(self, copying: Copying) -> None:
        """More of the copy's log is durable."""
        ...

    def start_noted(self, copying: Copying) -> None:
        """The copy's log start is durable."""
        ...

    def drop(self, copying: Copying) -> None: ...


class Copying:
    """The copying of one replica under one leader epoch. Its fetcher feeds it; `stop` ends it."""

    __slots__ = (
        "_done", "backoff_s", "busy", "ended", "fetcher", "hears", "leader", "leader_epoch", "leader_high_watermark",
        "named_in", "quiet", "replica", "reported", "silenced_in", "waits_for_disk",
    )  # fmt: skip

    def __init__(self, replica: Replica, leader: NodeId, leader_epoch: int) -> None:
        self.replica = replica
        self.leader = leader
        self.leader_epoch = leader_epoch
        self.fetcher: CopySource | None = None
        self.named_in = -1
        """Number of the request that asked for the next records; -1: none did."""
        self.reported = -1
        """Synced end that the leader was told last."""
        self.waits_for_disk = False
        """The next records are asked for once the last ones are durable."""
        self.backoff_s = 0.0
        self.leader_high_watermark = 0
        self.busy = False
        """The log is being cut or started over: nothing may be appended."""
        self.hears = False
        """On the present connection, the leader has found this log's history to be its own, and named its high
        watermark."""
        self.ended = False
        self.silenced_in = -1
        """Number of the request that made the leader forget this copy's reported end; -1: none did."""
        self.quiet = replica.halted
        """The leader knows no reported end of this copy."""
        self._done: list[Callable[[], None]] = []

    @property
    def key(self) -> tuple[bytes, int]:
        return self.replica.id

    def synced(self) -> None:
        """`replica.CopySubscriber`."""
        if self.fetcher is not None:
            self.fetcher.synced(self)

    def start_noted(self) -> None:
        """`replica.CopySubscriber`."""
        if self.fetcher is not None:
            self.fetcher.start_noted(self)

    # --- records ----------------------------------------------------------------------------------------------------

    def append(self, records: memoryview) -> None:
        """Appends the leader's batches. Raises Refusal (they do not continue this log), Overtaken, OSError."""
        replica = self.replica
        machine, segment_log = replica.machine, replica.log
        known_epoch = machine.leader_epochs.latest
        end = 0
        try:
            for position, header in iterate_batches(records):
                end = position + header.size
                if header.next_offset <= machine.log_end_offset:
                    continue  # it was fetched twice
                batch = records[position:end]
                check_batch(batch, header)
                if header.base_offset < machine.log_end_offset or not (
                    machine.leader_epochs.latest <= header.leader_epoch <= self.leader_epoch
                ):
                    raise Refusal(
                        ErrorCode.CORRUPT_MESSAGE,
                        f"a batch at {header.base_offset} of leader epoch {header.leader_epoch} after "
                        f"{machine.log_end_offset} of {machine.leader_epochs.latest}",
                    )
                if replica.inheritance.is_overtaken(header):
                    raise Overtaken
                if header.record_count <= header.last_offset_delta:
                    segment_log.note_gaps()
                segment_log.append(batch, header.base_offset, header.last_offset, header.max_timestamp)
                replica.replay(header, batch, 0)
                machine = replica.machine
            if end != len(records):
                raise Refusal(ErrorCode.CORRUPT_MESSAGE, f"{len(records) - end} bytes are not a batch")
        finally:
            replica.copied(new_epoch=machine.leader_epochs.latest > known_epoch)

    def heard(self, high_watermark: int, log_start_offset: int) -> None:
        """Takes over the offsets that every answer carries. Raises OSError."""
        machine, log_start = self.replica.machine, self.replica.maintenance.log_start
        self.leader_high_watermark = high_watermark
        self.hears = True
        moved = machine.advance_high_watermark(min(high_watermark, machine.log_end_offset))
        if moved and self.replica.readers:
            self.replica.readers.wake()
        if log_start.report < log_start_offset <= machine.log_end_offset:
            log_start.advance(log_start_offset)

    def unheard(self) -> None:
        """The connection to the leader has ended. Consumers read elsewhere."""
        self.hears = False
        self.replica.readers.wake()

    # --- cut --------------------------------------------------------------------------------------------------------

    def begin(
        self, change: Coroutine[Any, Any, LostRange | None],
        done: Callable[[LostRange | None, BaseException | None], None],
    ) -> None:
        """Runs `truncate` or `inherit`. Calls `done` with its outcome unless the copying has ended meanwhile."""
        self.busy = True
        self.unheard()

        def finished(task: asyncio.Task[LostRange | None]) -> None:
            self.busy = False
            error = asyncio.CancelledError() if task.cancelled() else task.exception()
            if not self.ended:
                done(None if error is not None else task.result(), error)
            for callback in self._done:
                callback()
            self._done.clear()

        supervision.once(
            change, "copying", self.replica.name, expected=(OSError, SyncFailed, Refusal)).add_done_callback(finished)

    def when_idle(self, callback: Callable[[], None]) -> None:
        """Calls back once the log is no longer being cut or started over. To be called while `busy`."""
        self._done.append(callback)

    async def truncate(self, epoch: int, end: int) -> LostRange | None:
        """Cuts the log where it diverges from the leader's: at `end`, where `epoch` ends at the leader, or before.
        Raises OSError, SyncFailed, and Refusal if the cut is below the start of this log."""
        replica = self.replica
        machine = replica.machine
        own_epoch, own_end = machine.leader_epochs.end_offset_of(epoch, machine.log_end_offset)
        cut = end if own_end < 0 else min(own_end, end) if own_epoch == epoch else own_end
        cut = min(cut, machine.log_end_offset)
        inherited = replica.inheritance.inherited
        if cut < machine.log_start_offset or (
            inherited is not None and cut < inherited.offset <= machine.log_end_offset
        ):
            raise Refusal(ErrorCode.OFFSET_OUT_OF_RANGE, f"cut at {cut} of a log from {machine.log_start_offset}")
        former_end, committed = machine.log_end_offset, machine.high_watermark
        await replica.maintenance.stop()
        if cut < max(committed, replica.log.covered) and replica.log.was_compacted:
            # Compaction stays below a snapshot. The last process's high watermark may be older than that snapshot.
            replica.inheritance.lacking = True
        try:
            await self._rebuild(cut)
        finally:
            replica.maintenance.resume()
        log.info(
            "cut records that the leader does not have", partition=replica.name, from_offset=cut, to_offset=former_end,
            leader_epoch=self.leader_epoch,
        )
        return LostRange(cut, committed, self.leader_epoch) if cut < committed else None

    async def _rebuild(self, cut: int) -> None:
        replica, segment_log = self.replica, self.replica.log
        await segment_log.truncate_to(cut)
        while (newest := read_newest_snapshot(segment_log)) is not None:
            content, offset = newest
            try:
                replica.machine.truncate_to(cut, decode_snapshot(content, offset), segment_log.start_offset)
                break
            except DamagedSnapshot as error:
                log.warning("ignoring a damaged snapshot", partition=replica.name, offset=offset, error=error)
                segment_log.folder.remove(offset_name(offset, SNAPSHOT))
                segment_log.snapshot_offsets.remove(offset)
                await segment_log.truncate_to(cut)
        else:
            replica.machine.truncate_to(cut, None, segment_log.start_offset)
            replica.inheritance.lacking |= segment_log.start_offset > 0
        await replay_again(segment_log, replica.machine.log_end_offset, replica.replay)
        replica.machine.log_end_offset = cut
        replica.machine.aborted.advance_start(replica.machine.log_start_offset)
        replica.copied(new_epoch=True)

    async def inherit(self, asked: Awaitable[LeaderSnapshot], *, from_start: bool) -> LostRange | None:
        """Takes over the leader's producers. Copies the log from its start (`from_start`), or continues at its end
        here. If either log was compacted, it is copied from its start: this log may hold a value whose tombstone is
        missing at the leader, or lack a value whose successor was cut. Raises Refusal, OSError, SyncFailed.
        """
        replica = self.replica
        handed = await asked
        if self.ended:
            return None
        inherited = Inherited(
            self.leader_epoch, decode_snapshot(handed.snapshot, handed.offset), decode_aborted(handed.aborted))
        former_end = replica.machine.log_end_offset
        await replica.maintenance.stop()
        try:
            if from_start or handed.compacted or replica.log.was_compacted or former_end > inherited.offset:
                await self._begin_at(handed.log_start_offset)
            await replica.log.folder.write_atomically(
                INHERITED,
                encode_inherited(inherited.offset, inherited.leader_epoch, handed.snapshot, handed.aborted),
            )
            replica.inheritance.take(inherited)
            await self._is_begun()
            replica.copied(new_epoch=True)
        finally:
            replica.maintenance.resume()
        log.info(
            "took over the leader's producers", partition=replica.name, from_offset=replica.machine.log_end_offset,
            former_end_offset=former_end, producers_as_of=inherited.offset,
        )
        return None

    async def _begin_at(self, start: int) -> None:
        """Removes all records. A crash before `_is_begun` leaves a folder that is rebuilt at the next start."""
        replica = self.replica
        await replica.log.folder.write_atomically(BEGINS_ANEW, b"")
        replica.inheritance.inherited = None
        replica.maintenance.log_start.begins_anew(start)
        replica.log.restart_at(start)
        replica.restore(None, start, start, (), ())
        replica.inheritance.lacking = start > 0
        await replica.log.sync_names()

    async def _is_begun(self) -> None:
        folder = self.replica.log.folder
        if folder.exists(BEGINS_ANEW):
            folder.remove(BEGINS_ANEW)
            await sync_folder(folder)

    def stop(self) -> None:
        """Stops appending. A cut in progress runs to its end: see `busy`."""
        self.ended = True
        self.unheard()
        if self.fetcher is not None:
            self.fetcher.drop(self)
            self.fetcher = None

    @property
    def lag(self) -> int:
        """Number of offsets below the leader's high watermark that are not copied yet."""
        return max(0, self.leader_high_watermark - self.replica.machine.log_end_offset)
