"""One partition that is copied from its leader: what a follower does to its own log.

Batches are appended byte for byte and replayed into the same machine as the leader's, so that either can lead. What
the leader does not have is cut (KIP-101, KIP-595), and the machine is rebuilt from the newest snapshot below the cut.
A replica that lacks what the leader has already removed or compacted begins anew at the leader's log start; the
producers it can no longer learn of from the log it inherits as a snapshot of the leader's (rule 5), which takes the
place of what it has replayed when the copy comes to its offset. Until then it counts as having synced nothing where
that could make it a leader: see `core.partition.replication`.
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
    """The producers as of `offset`."""
    aborted: bytes
    """The aborted transactions below it, as in a `.txnindex`."""
    log_start_offset: int
    compacted: bool
    """A tombstone may be gone from the leader's log, whatever the topic's policy is now."""


class LostRange(NamedTuple):
    """Committed records that this replica had and its new leader does not: an unclean election took them back."""

    from_offset: int
    to_offset: int
    leader_epoch: int


FetchSnapshot = Callable[[Replica, NodeId, int, Registration], Awaitable[LeaderSnapshot]]
"""(replica, leader, leader epoch, this node's registration). Raises Refusal."""


class Overtaken(Exception):
    """The leader has compacted what comes next."""


class CopySource(Protocol):
    """Whatever feeds copyings: `hapax.broker.fetcher.Fetcher`."""

    def synced(self, copying: Copying) -> None:
        """More of its log is durable."""
        ...

    def drop(self, copying: Copying) -> None: ...


class Copying:
    """Of one replica, under one leader epoch. Its fetcher feeds it; `stop` ends it."""

    __slots__ = (
        "_done", "backoff_s", "busy", "ended", "fetcher", "leader", "leader_epoch", "leader_high_watermark", "named_in",
        "quiet", "replica", "reported", "silenced_in", "waits_for_disk",
    )  # fmt: skip

    def __init__(self, replica: Replica, leader: NodeId, leader_epoch: int) -> None:
        self.replica = replica
        self.leader = leader
        self.leader_epoch = leader_epoch
        self.fetcher: CopySource | None = None
        self.named_in = -1
        """The request that entitles to the next records; -1: none does."""
        self.reported = -1
        """Synced end that the leader has been told."""
        self.waits_for_disk = False
        """What was fetched last is named as soon as it is durable."""
        self.backoff_s = 0.0
        self.leader_high_watermark = 0
        self.busy = False
        """The log is being cut or begun anew: nothing may be appended."""
        self.ended = False
        self.silenced_in = -1
        """The request that told the leader to forget what it knows of this copy; -1: none did."""
        self.quiet = replica.halted
        """The leader has forgotten it, or never knew it."""
        self._done: list[Callable[[], None]] = []

    @property
    def key(self) -> tuple[bytes, int]:
        return self.replica.id

    def synced(self) -> None:
        """`replica.CopySubscriber`."""
        if self.fetcher is not None:
            self.fetcher.synced(self)

    # --- records ----------------------------------------------------------------------------------------------------

    def append(self, records: memoryview) -> None:
        """Appends what the leader sent. Raises Refusal (what is there is no log of this leader), Overtaken, OSError."""
        replica = self.replica
        machine, segment_log = replica.machine, replica.log
        known_epoch = machine.leader_epochs.latest
        end = 0
        try:
            for position, header in iterate_batches(records):
                end = position + header.size
                if header.next_offset <= machine.log_end_offset:
                    continue  # fetched twice
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
                raise Refusal(ErrorCode.CORRUPT_MESSAGE, f"{len(records) - end} bytes that are no batch")
        finally:
            replica.copied(new_epoch=machine.leader_epochs.latest > known_epoch)

    def heard(self, high_watermark: int, log_start_offset: int) -> None:
        """What every answer says. Raises OSError."""
        machine = self.replica.machine
        self.leader_high_watermark = high_watermark
        machine.advance_high_watermark(min(high_watermark, machine.log_end_offset))
        if log_start_offset > machine.log_start_offset and log_start_offset <= machine.log_end_offset:
            machine.advance_log_start(log_start_offset)
            self.replica.drop_removed()

    # --- cut --------------------------------------------------------------------------------------------------------

    def begin(
        self, change: Coroutine[Any, Any, LostRange | None],
        done: Callable[[LostRange | None, BaseException | None], None],
    ) -> None:
        """Runs `truncate` or `inherit`; `done` hears of its outcome unless the copying has ended meanwhile."""
        self.busy = True

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
        """Calls back, later, when nothing is at work in the log; to be asked while `busy`."""
        self._done.append(callback)

    async def truncate(self, epoch: int, end: int) -> LostRange | None:
        """The leader's log and this one part where `epoch` ends at the leader, at `end`, or before. Raises OSError,
        SyncFailed, and Refusal where the cut lies below what is left of this log."""
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
            # Compaction stays below a snapshot, and what the last process knew as committed may be older than that.
            replica.inheritance.lacking = True
        try:
            await self._rebuild(cut)
        finally:
            replica.maintenance.resume()
        log.info(
            "cut what the leader does not have", partition=replica.name, from_offset=cut, to_offset=former_end,
            leader_epoch=self.leader_epoch,
        )
        return LostRange(cut, committed, self.leader_epoch) if cut < committed else None

    async def _rebuild(self, cut: int) -> None:
        replica, segment_log = self.replica, self.replica.log
        await segment_log.truncate_to(cut)
        while (newest := read_newest_snapshot(segment_log)) is not None:
            content, offset = newest
            try:
                replica.machine.truncate_to(cut, decode_snapshot(content, offset))
                break
            except DamagedSnapshot as error:
                log.warning("a damaged snapshot is passed over", partition=replica.name, offset=offset, error=error)
                segment_log.folder.remove(offset_name(offset, SNAPSHOT))
                segment_log.snapshot_offsets.remove(offset)
                await segment_log.truncate_to(cut)
        else:
            replica.machine.truncate_to(cut, None)
            replica.inheritance.lacking |= segment_log.start_offset > 0
        await replay_again(segment_log, replica.machine.log_end_offset, replica.replay)
        replica.machine.log_end_offset = cut
        replica.copied(new_epoch=True)

    async def inherit(self, asked: Awaitable[LeaderSnapshot], *, anew: bool) -> LostRange | None:
        """Takes the leader's producers, and the log from its start again (`anew`) or from where it ends here, as far
        as it is known to be the leader's. Where either log was compacted it is taken from its start: this one may hold
        a value whose tombstone is gone there, or lack one whose successor was cut. Raises Refusal, OSError, SyncFailed.
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
            if anew or handed.compacted or replica.log.was_compacted or former_end > inherited.offset:
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
            "takes the leader's producers", partition=replica.name, from_offset=replica.machine.log_end_offset,
            former_end_offset=former_end, producers_as_of=inherited.offset,
        )
        return None

    async def _begin_at(self, start: int) -> None:
        """Removes everything. A crash before `_is_begun` leaves a folder that is rebuilt at the next start."""
        replica = self.replica
        await replica.log.folder.write_atomically(BEGINS_ANEW, b"")
        replica.inheritance.inherited = None
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
        """Nothing is appended any more. What is at work in the log goes on to its end: see `busy`."""
        self.ended = True
        if self.fetcher is not None:
            self.fetcher.drop(self)
            self.fetcher = None

    @property
    def lag(self) -> int:
        """Offsets below the leader's high watermark that are missing."""
        return max(0, self.leader_high_watermark - self.replica.machine.log_end_offset)
