"""Reads the aborted transactions of a log from its `.txnindex` files or, if these are damaged, from the log itself.

The files have no checksum. The check uses the entries alone: each marker must lie in the segment, in order, and after
its transaction's first record.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from hapax.codec.batch import HEADER_SIZE, crc_matches, iterate_batches, read_header
from hapax.codec.control import decode_control
from hapax.core.batch import CONTROL
from hapax.core.errors import Refusal
from hapax.core.partition.machine import AbortedTransaction, PartitionMachine
from hapax.log.layout import TXN_INDEX
from hapax.log.segment import Segment
from hapax.log.txn_index import append_aborted, read_aborted

if TYPE_CHECKING:
    from hapax.log.segment_log import SegmentLog

_CHUNK: Final = 512 << 10
_NO_END: Final = 2**63 - 1


async def aborted_transactions(log: SegmentLog) -> list[AbortedTransaction]:
    """All aborted transactions, by their markers' offsets. Rewrites damaged files. Raises OSError, SyncFailed."""
    found: list[AbortedTransaction] = []
    for segment, following in _with_ends(log):
        try:
            entries = read_aborted(log.folder, segment.path(TXN_INDEX))
        except ValueError:
            entries = None
        snapshot = log.snapshot_offsets[-1] if log.snapshot_offsets else _NO_END
        if entries is None or not _plausible(entries, segment.base_offset, following) or not all(
            _is_of_marker(segment, entry) for entry in entries if entry.last_offset >= snapshot
        ):
            log.surveys.found_wrong_index(segment)
            return await _recomputed(log)
        found += entries
    return found


def _with_ends(log: SegmentLog) -> list[tuple[Segment, int]]:
    bases = [segment.base_offset for segment in log.segments[1:]]
    return list(zip(log.segments, [*bases, _NO_END], strict=True))


def _plausible(entries: Sequence[AbortedTransaction], base: int, following: int) -> bool:
    last = base - 1
    for entry in entries:
        if not last < entry.last_offset < following:
            return False
        if not 0 <= entry.first_offset < entry.last_offset or entry.producer_id < 0:
            return False
        if not 0 <= entry.last_stable_offset <= entry.last_offset + 1:
            return False
        last = entry.last_offset
    return True


def _is_of_marker(segment: Segment, entry: AbortedTransaction) -> bool:
    """Whether the log holds the entry's marker. Checked beyond the newest snapshot, where the log may have been cut."""
    segment.load_indexes()
    place = segment.find(entry.last_offset)
    if place is None or place.base_offset != entry.last_offset:
        return False
    header = read_header(segment.file.read(place.position, HEADER_SIZE))
    return bool(header.attributes & CONTROL) and header.producer_id == entry.producer_id


async def _recomputed(log: SegmentLog) -> list[AbortedTransaction]:
    """Reads them from the log, up to the first damaged batch, and rewrites the files."""
    machine = PartitionMachine(log_start_offset=log.start_offset)
    found: list[AbortedTransaction] = []
    for segment in log.segments:
        if not await _replay(segment, machine, found):
            break
    for segment, following in _with_ends(log):
        log.folder.remove(segment.path(TXN_INDEX))
        mine = [entry for entry in found if segment.base_offset <= entry.last_offset < following]
        if mine:
            await append_aborted(log.folder, segment.path(TXN_INDEX), mine)
    return found


async def _replay(segment: Segment, machine: PartitionMachine, found: list[AbortedTransaction]) -> bool:
    """False: the segment is damaged."""
    position, want = 0, _CHUNK
    while position < segment.size:
        await segment.file.read_ahead(position, want)
        chunk = memoryview(segment.file.read(position, want))
        done = 0
        try:
            for at, header in iterate_batches(chunk):
                if not crc_matches(chunk, header, at) or header.base_offset < machine.log_end_offset:
                    return False
                if header.attributes & CONTROL:
                    aborted = machine.replay_control(header, decode_control(chunk, header, at))
                    machine.advance_high_watermark(machine.log_end_offset)
                    if aborted is not None:
                        found.append(aborted)
                else:
                    machine.replay(header)
                done = at + header.size
            larger = 0 if done else read_header(chunk).size
        except Refusal:
            return False
        if not done and not want < larger <= segment.size - position:
            return False
        position += done
        want = max(_CHUNK, larger)
    return True
