"""Opens a partition's log: after a clean stop from its last snapshot, after a crash by scanning what follows it.

The scan checks the CRC of every batch from the snapshot on, and cuts the log at the first batch that is not whole. The
kept batches are written again and synced before they count: after a failed sync, the page cache shows bytes that no
later sync would bring to the disk (rule 13).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from hapax.codec.batch import CURRENT_MAGIC, HEADER_SIZE, LENGTH_END, crc_matches, iterate_batches, read_header
from hapax.core.batch import BatchHeader
from hapax.core.partition.machine import AbortedTransaction
from hapax.core.types import Offset
from hapax.log.aborted import aborted_transactions
from hapax.log.compaction import finish_swaps
from hapax.log.config import LogConfig
from hapax.log.layout import (
    DELETED,
    INDEX,
    LEADER_EPOCH_CHECKPOINT,
    LOG,
    LOG_START,
    SEGMENT_SUFFIXES,
    SNAPSHOT,
    TXN_INDEX,
    LayoutError,
    decode_leader_epochs,
    decode_log_start,
    encode_log_start,
    offset_name,
    parse_offset_name,
)
from hapax.log.segment import Segment
from hapax.log.segment_log import SegmentLog
from hapax.log.soundness import Damaged
from hapax.log.txn_index import cut_aborted
from hapax.runtime import telemetry
from hapax.runtime.ports import Disk, Folder, OpenFolder

_logger = telemetry.logger("recovery")

_CHUNK: Final = 512 << 10
"""Bytes scanned without a pause for the loop. A larger batch is read as a whole."""
_MAX_BATCH: Final = 1 << 30
_ANY_EPOCH: Final = 2**31 - 1


class State(Protocol):
    """The state rebuilt from the log: the partition's machine, wrapped by its replica."""

    def restore(
        self, snapshot: bytes | None, offset: int, start_offset: int, aborted: Sequence[AbortedTransaction],
        leader_epochs: Sequence[tuple[int, int]],
    ) -> None:
        """Starts from a snapshot taken at `offset` or, if None, empty at the log's start.

        `aborted` and `leader_epochs` may contain later entries than the snapshot; the replay adds those again. Raises
        ValueError for a damaged snapshot.
        """
        ...

    def replay(self, header: BatchHeader, buffer: memoryview, position: int) -> None:
        """One batch of the log, in order."""
        ...


@dataclass(slots=True)
class Recovery:
    """The result of opening a log."""

    clean: bool = False
    from_offset: int = 0
    scanned_bytes: int = 0
    scanned_batches: int = 0
    truncated_bytes: int = 0
    truncated_why: str = ""
    end_offset: int = 0
    incomplete: bool = False
    """The state may lack records that the log has removed and no snapshot contains."""


async def open_log(
    disk: Disk, folder: str | OpenFolder, config: LogConfig, state: State, *, clean: bool,
    known_epoch: int = _ANY_EPOCH,
) -> tuple[SegmentLog, Recovery]:
    """Opens the log of an existing folder, given by its name or its handle, which is closed with the log.

    `clean`: the last stop was clean, so no scan is needed. `known_epoch`: the partition's current leader epoch. No CRC
    covers a batch's epoch; an epoch above this one and above the checkpoint's is damage. Raises OSError, SyncFailed.
    """
    log = SegmentLog(disk, folder, config)
    try:
        return log, await _open(log, state, clean=clean, known_epoch=known_epoch)
    except BaseException:
        log.close()
        raise


async def _open(log: SegmentLog, state: State, *, clean: bool, known_epoch: int) -> Recovery:
    folder, config = log.folder, log.config
    finish_swaps(folder)
    names = _swept(folder)
    parsed = [p for p in map(parse_offset_name, names) if p is not None]
    bases = sorted(offset for offset, suffix in parsed if suffix == LOG)
    log.snapshot_offsets = sorted(offset for offset, suffix in parsed if suffix == SNAPSHOT)
    present = set(names)
    for base in bases:
        segment = Segment(folder, base, config.index_interval_bytes, create=False)
        log.add_segment(segment)
        segment.load_max_timestamp()
    if not bases:
        log.create([])
    recovery = Recovery()
    leader_epochs = await _read_leader_epochs(log)
    aborted = await aborted_transactions(log)
    scan_from = _restore_newest(log, state, recovery, leader_epochs, aborted, clean=clean)
    if scan_from is None:
        log.end_offset = log.synced_offset = recovery.from_offset
        log.active.load_indexes()
    else:
        checkpointed = leader_epochs[-1][0] if leader_epochs else -1
        await _Scan(log, state, recovery, max(known_epoch, checkpointed)).run(*scan_from)
    if log.active.time_index.timestamps:
        log.active.first_timestamp = log.active.time_index.timestamps[0]
    log.opened()
    recovery.end_offset = log.end_offset
    await _read_declared_start(log)
    for segment in log.segments:
        if segment.size > config.index_interval_bytes and offset_name(segment.base_offset, INDEX) not in present:
            segment.load_indexes()
            if not len(segment.index):
                segment.index.suspect = True
                await log.surveys.run(segment)
    return recovery


def _swept(folder: Folder) -> list[str]:
    """Removes what interrupted operations left behind. Returns the names of the other files."""
    names = folder.list()
    logs = {name.removesuffix(LOG) for name in names if name.endswith(LOG)}
    kept = []
    for name in names:
        parsed = parse_offset_name(name)
        orphan = parsed is not None and parsed[1] in SEGMENT_SUFFIXES and name.partition(".")[0] not in logs
        if orphan or name.endswith((".tmp", DELETED)):
            folder.remove(name)
        else:
            kept.append(name)
    return kept


def _restore_newest(
    log: SegmentLog, state: State, recovery: Recovery, leader_epochs: list[tuple[int, int]],
    aborted: list[AbortedTransaction], *, clean: bool,
) -> tuple[int, int] | None:
    """Restores the newest usable snapshot. Returns the (segment number, position) from which to scan. None: no scan is
    needed."""
    start_offset = log.start_offset
    for offset in reversed(log.snapshot_offsets):
        path = offset_name(offset, SNAPSHOT)
        newest = offset == log.snapshot_offsets[-1]
        found = (len(log.segments) - 1, log.active.size) if clean and newest else _place_of(log, offset)
        if found is not None and offset >= log.active.base_offset * (clean and newest):
            try:
                state.restore(_read(log.folder, path), offset, start_offset, aborted, leader_epochs)
            except ValueError:
                found = None
        if found is None:
            log.folder.remove(path)  # beyond the end of the log, or damaged: an older one is used
            log.snapshot_offsets.remove(offset)
            continue
        recovery.from_offset = offset
        recovery.clean = clean and newest
        return None if recovery.clean else found
    recovery.from_offset = start_offset
    recovery.incomplete = start_offset > 0
    state.restore(None, start_offset, start_offset, aborted, leader_epochs)
    return 0, 0


def _place_of(log: SegmentLog, offset: int) -> tuple[int, int] | None:
    """(segment number, position) of the batch boundary at `offset`. None: the log ends below it."""
    at = max((i for i, s in enumerate(log.segments) if s.base_offset <= offset), default=-1)
    if at < 0:
        return None
    segment = log.segments[at]
    segment.load_indexes()
    if offset == segment.base_offset:
        return at, 0
    position = segment.index.position_before(offset)
    while (place := segment.place_at(position)) is not None:
        if place.base_offset >= offset:
            return (at, position)
        if place.size <= LENGTH_END or place.end > segment.size:
            return None
        if place.last_offset + 1 == offset:
            return (at, place.end)
        position = place.end
    return (at, position) if at + 1 < len(log.segments) else None


async def replay_again(log: SegmentLog, offset: int, replay: Callable[[BatchHeader, memoryview, int], None]) -> None:
    """Replays the log from `offset`, a boundary of batches, to its end, after a cut. Raises OSError, Damaged."""
    found = _place_of(log, offset)
    at, position = (len(log.segments), 0) if found is None else found
    for segment in log.segments[at:]:
        want = _CHUNK
        while position < segment.size:
            await segment.file.read_ahead(position, want)
            chunk = memoryview(segment.file.read(position, want))
            done = 0
            for start, header in iterate_batches(chunk):
                if not crc_matches(chunk, header, start):
                    raise Damaged(segment.file.path, header.base_offset)
                replay(header, chunk, start)
                done = start + header.size
            position += done
            larger = 0 if done else read_header(chunk).size
            if not done and not want < larger <= segment.size - position:
                raise Damaged(segment.file.path, segment.base_offset)
            want = max(_CHUNK, larger)
        position = 0


def read_newest_snapshot(log: SegmentLog) -> tuple[bytes, int] | None:
    """(content, offset) of the newest snapshot in the folder. None: there is none, or records after it have been
    removed, since a newer one covered them."""
    if not log.snapshot_offsets or log.snapshot_offsets[-1] < log.start_offset:
        return None
    offset = log.snapshot_offsets[-1]
    return _read(log.folder, offset_name(offset, SNAPSHOT)), offset


def _read(folder: Folder, path: str) -> bytes:
    file = folder.open(path)
    try:
        return file.read(0, file.size())
    finally:
        file.close()


async def _read_leader_epochs(log: SegmentLog) -> list[tuple[int, int]]:
    """From the checkpoint. If a power cut tore it while it was written with a new epoch, from the batches."""
    path = LEADER_EPOCH_CHECKPOINT
    if not log.folder.exists(path):
        return []
    try:
        return decode_leader_epochs(_read(log.folder, path))
    except ValueError:
        return await _epochs_of_batches(log)


async def _epochs_of_batches(log: SegmentLog) -> list[tuple[int, int]]:
    epochs: list[tuple[int, int]] = []
    for segment in log.segments:
        position, seen = 0, 0
        while position + HEADER_SIZE <= segment.size:
            header = read_header(segment.file.read(position, HEADER_SIZE))
            if header.magic != CURRENT_MAGIC or header.batch_length < HEADER_SIZE - LENGTH_END:
                break  # the scan will cut here
            if header.leader_epoch > (epochs[-1][0] if epochs else -1):
                epochs.append((header.leader_epoch, header.base_offset))
            position += header.size
            seen += 1
            if seen % 256 == 0:
                await asyncio.sleep(0)
    return epochs


async def _read_declared_start(log: SegmentLog) -> None:
    """Raises OSError."""
    if not log.folder.exists(LOG_START):
        return
    try:
        declared = decode_log_start(_read(log.folder, LOG_START))
    except LayoutError as error:
        _logger.error("the log start cannot be read: deleted records are back", path=log.folder.path, error=error)
        return
    if declared > log.end_offset:
        # A power cut took records that were not synced. Other records will get their offsets, and are not deleted.
        declared = Offset(log.end_offset)
        await log.folder.write_atomically(LOG_START, encode_log_start(declared))
    log.declared_start = declared


class _Scan:
    """The walk over everything after the snapshot."""

    def __init__(self, log: SegmentLog, state: State, recovery: Recovery, known_epoch: int) -> None:
        self.log = log
        self.state = state
        self.recovery = recovery
        self.expected = recovery.from_offset
        self.leader_epoch = -1
        self.known_epoch = known_epoch

    async def run(self, at: int, position: int) -> None:
        log, recovery = self.log, self.recovery
        scanned: list[Segment] = []
        for segment in list(log.segments[at:]):
            if scanned and segment.base_offset != self.expected and not log.was_compacted:
                recovery.truncated_why = f"offsets {self.expected} to {segment.base_offset} are missing"
                self._drop_after(scanned[-1])
                break
            if scanned:
                scanned[-1].close_for_writing()  # the crash came after its roll, before its indexes were written
            segment.load_indexes()
            segment.forget_indexed_from(position, self.expected)
            segment.note_again(position)
            segment.sound.cut(position)  # checked and written again
            cut_aborted(log.folder, segment.path(TXN_INDEX), self.expected)
            scanned.append(segment)
            whole = await self._scan_segment(segment, position)
            position = 0
            if not whole:
                self._drop_after(segment)
                break
        log.end_offset = self.expected
        await log.recovered(scanned)
        recovery.end_offset = log.end_offset

    async def _scan_segment(self, segment: Segment, position: int) -> bool:
        """False: the segment had to be cut."""
        file, size = segment.file, segment.size
        want = _CHUNK
        while position < size:
            await file.read_ahead(position, want)
            chunk = memoryview(file.read(position, want))
            done = self._scan_chunk(segment, chunk, position, size)
            if done:
                file.write_at(position, bytes(chunk[:done]))
                position += done
                want = _CHUNK
            elif (needed := self._whole_size(chunk)) > len(chunk) and position + needed <= size:
                want = needed  # a batch larger than the chunk
            else:
                self.recovery.truncated_bytes += size - position
                self.recovery.truncated_why = self._why(segment, chunk, position, size)
                segment.truncate(position, self.expected)
                return False
        return True

    def _scan_chunk(self, segment: Segment, chunk: memoryview, position: int, size: int) -> int:
        """Replays the whole, undamaged batches at the start of the chunk. Returns their size in bytes."""
        at, limit, state = 0, len(chunk), self.state
        while at + HEADER_SIZE <= limit:
            header = read_header(chunk, at)
            end = at + header.batch_length + LENGTH_END
            if (
                end > limit
                or header.batch_length < HEADER_SIZE - LENGTH_END
                or header.magic != CURRENT_MAGIC
                or header.base_offset < self.expected
                or header.last_offset_delta < 0
                or not self.leader_epoch <= header.leader_epoch <= self.known_epoch
                or not crc_matches(chunk, header, at)
                or (header.base_offset > self.expected and not self._is_gap(segment, header, position + end))
            ):
                break
            if header.base_offset > self.expected or header.record_count <= header.last_offset_delta:
                self.recovery.incomplete = True  # compacted, and a later snapshot was lost
            segment.note(position + at, header.size, header.last_offset, header.max_timestamp)
            state.replay(header, chunk, at)
            self.expected, self.leader_epoch = header.next_offset, header.leader_epoch
            self.recovery.scanned_batches += 1
            at = end
        self.recovery.scanned_bytes += at
        return at

    def _is_gap(self, segment: Segment, header: BatchHeader, end: int) -> bool:
        """Whether offsets are missing before a batch because compaction removed them. Otherwise the batch's own offset
        is damaged, which no CRC covers, and then its range reaches beyond the start of the next batch."""
        after = segment.file.read(end, HEADER_SIZE)
        if len(after) == HEADER_SIZE:
            following = read_header(after)
            batch = segment.file.read(end, following.size) if HEADER_SIZE <= following.size <= _MAX_BATCH else b""
            if following.magic == CURRENT_MAGIC and len(batch) == following.size and crc_matches(batch, following):
                return header.last_offset < following.base_offset
        behind = self.log.segments[self.log.segments.index(segment) + 1 :]
        return self.log.was_compacted and (not behind or header.last_offset < behind[0].base_offset)

    @staticmethod
    def _whole_size(chunk: memoryview) -> int:
        if len(chunk) < HEADER_SIZE:
            return 0
        size = read_header(chunk).size
        return size if HEADER_SIZE <= size <= _MAX_BATCH else 0

    def _why(self, segment: Segment, chunk: memoryview, position: int, size: int) -> str:
        if self._whole_size(chunk) == 0 or position + self._whole_size(chunk) > size:
            return "a torn batch"
        header = read_header(chunk)
        if header.base_offset != self.expected:
            return f"a batch with offset {header.base_offset}, but {self.expected} was expected"
        if header.leader_epoch < self.leader_epoch:
            return f"a batch of leader epoch {header.leader_epoch} after one of {self.leader_epoch}: it had been cut"
        if header.leader_epoch > self.known_epoch:
            return f"a batch of leader epoch {header.leader_epoch}, where the newest was {self.known_epoch}"
        return "a batch whose CRC does not match"

    def _drop_after(self, segment: Segment) -> None:
        """Drops the segments after a cut, because they no longer continue the log."""
        log = self.log
        later = [s for s in log.segments if s.base_offset > segment.base_offset]
        self.recovery.truncated_bytes += sum(s.size for s in later)
        log.drop_last(len(later))
