"""Batches of the source as batches for the target: their bytes are passed on, except for the header.

A batch is passed on as it is, compression included, wherever a client may write such a batch. Batches that only a
broker writes (compacted, with log-append time or a delete horizon) are decoded and encoded again with the same
compression, and so are a batch that is copied from its middle on, and small batches, of which many become one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from hapax.client.partitioner import partition_of
from hapax.codec.batch import CURRENT_MAGIC, check_batch, iterate_batches, patch_prefix, read_batch_size
from hapax.codec.control import decode_control
from hapax.codec.records import RecordBatchBuilder, decode_batch, encode_records
from hapax.core.batch import DELETE_HORIZON, LOG_APPEND_TIME, BatchHeader
from hapax.core.control import Marker
from hapax.core.copy.cut import Piece
from hapax.core.errors import ErrorCode, Refusal

_MAGIC_AT: Final = 16
_OLD_HEADER: Final = 17
_SMALL_BYTES: Final = 2 << 10
_WORTH_MERGING: Final = 4
"""Number of small batches."""
MERGED_BYTES: Final = 64 << 10
"""Of a batch that small ones are merged to, before compression, where the target takes batches of that size."""
_ONLY_BROKERS: Final = LOG_APPEND_TIME | DELETE_HORIZON


class Held(NamedTuple):
    """A batch that was read."""

    piece: Piece
    header: BatchHeader
    data: memoryview | None
    """None: there is nothing to copy, because it is a control batch, empty, or of an aborted transaction."""

    @property
    def size(self) -> int:
        return 0 if self.data is None else len(self.data)


class Damage(NamedTuple):
    offset: int
    following: int
    """The offset after the damaged batch; -1: unknown."""
    reason: str
    code: int


def parse(
    data: bytearray, aborted: Iterable[tuple[int, int]], start: int
) -> tuple[list[Held], int, Damage | None]:
    """The whole batches of a fetch answer from the offset `start` on, the offset after them, and what ends them early.
    `aborted`: (producer id, first offset) of the transactions that a read_committed reader leaves out."""
    found: list[Held] = []
    following = start
    try:
        for held in _held(data, aborted, start):
            if isinstance(held, Damage):
                return found, following, held
            found.append(held)
            following = held.header.next_offset
    except Refusal as refusal:
        return found, following, Damage(following, -1, refusal.reason, refusal.code)
    return found, following, None


def _held(data: bytearray, aborted: Iterable[tuple[int, int]], start: int) -> Iterator[Held | Damage]:
    view = memoryview(data)
    ahead = deque(sorted(aborted, key=lambda each: each[1]))
    dropping: set[int] = set()
    if len(data) > _MAGIC_AT and data[_MAGIC_AT] != CURRENT_MAGIC and _is_whole(data):
        yield _of_other_format(data, start)
        return
    batches = iterate_batches(data)
    for position, header in batches:
        if header.magic != CURRENT_MAGIC:
            yield _of_other_format(data, header.base_offset)
            return
        try:
            check_batch(data, header, position)
        except Refusal as refusal:
            offset = max(header.base_offset, start)
            following = header.next_offset if header.base_offset >= start and header.last_offset_delta >= 0 else -1
            yield Damage(offset, _next_sound(data, batches, offset, following), refusal.reason, refusal.code)
            return
        if header.last_offset < start:
            continue
        while ahead and ahead[0][1] <= header.last_offset:
            dropping.add(ahead.popleft()[0])
        writer = (header.producer_id, header.producer_epoch)
        if header.is_control:
            marker = _marker(data, header, position)
            if marker is None:
                yield Held(Piece(header.base_offset, header.next_offset), header, None)
                continue
            if not marker.commit:
                dropping.discard(header.producer_id)
            piece = Piece(header.base_offset, header.next_offset, writer, marker.commit, header.max_timestamp)
            yield Held(piece, header, None)
            continue
        is_aborted = header.is_transactional and header.producer_id in dropping
        piece = Piece(header.base_offset, header.next_offset, writer if header.is_transactional else None)
        hidden = is_aborted or header.record_count == 0
        yield Held(piece, header, None if hidden else view[position : position + header.size])


def _next_sound(data: bytearray, batches: Iterator[tuple[int, BatchHeader]], offset: int, otherwise: int) -> int:
    """Where the batch after a damaged one begins. The offsets that the damaged one names may be the damage."""
    try:
        position, header = next(batches)
        check_batch(data, header, position)
    except (StopIteration, Refusal):
        return otherwise
    return header.base_offset if header.base_offset > offset else -1


def _is_whole(data: bytearray) -> bool:
    """Whether the first entry of an old format is there; its length field is where a batch has it."""
    return len(data) >= _OLD_HEADER and read_batch_size(data) <= len(data)


def _of_other_format(data: bytearray, offset: int) -> Damage:
    return Damage(
        offset, -1, "it has message format 0 or 1", ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT)


def _marker(data: bytearray, header: BatchHeader, position: int) -> Marker | None:
    try:
        control = decode_control(data, header, position)
    except Refusal:
        return None  # a control record of a later version, which decides no transaction
    return control if isinstance(control, Marker) else None


class Outgoing(NamedTuple):
    """A batch for the target, without a producer."""

    data: bytearray | memoryview
    records: int
    spans: tuple[tuple[int, int], ...]
    """(first offset in the source, number of records) of records that follow each other there."""


def for_target(held: Held, start: int) -> Outgoing | None:
    """The records at offset `start` or later. None: there are none. Changes the held bytes. Raises Refusal if the
    records cannot be decoded."""
    header, data = held.header, held.data
    if data is None:
        return None
    passes = (
        header.base_offset >= start
        and not header.attributes & _ONLY_BROKERS
        and header.last_offset_delta == header.record_count - 1)
    if passes:
        patch_prefix(data, 0, -1)
        return Outgoing(data, header.record_count, ((header.base_offset, header.record_count),))
    records = [each for each in decode_batch(data, 0, header.size) if each.offset >= start]
    if not records:
        return None
    batch = encode_records(
        ((each.timestamp, each.key, each.value, each.headers) for each in records), compression=header.compression)
    return Outgoing(batch, len(records), _spans(each.offset for each in records))


def _spans(offsets: Iterable[int]) -> tuple[tuple[int, int], ...]:
    found: list[tuple[int, int]] = []
    for offset in offsets:
        if found and sum(found[-1]) == offset:
            found[-1] = found[-1][0], found[-1][1] + 1
        else:
            found.append((offset, 1))
    return tuple(found)


def merged(held: Sequence[Held], start: int, limit: int = MERGED_BYTES) -> Iterator[Outgoing]:
    """As `for_target` of each, where small batches that follow each other become larger ones, with the compression of
    the first: each batch costs a place in a request of its own. `limit`: of a larger one, in bytes before compression.
    Raises Refusal if records cannot be decoded."""
    small: list[Held] = []
    for each in held:
        if each.data is None:
            continue
        if each.size < _SMALL_BYTES:
            if small and small[0].header.compression != each.header.compression:
                yield from _one_of(small, start, limit)
                small = []
            small.append(each)
            continue
        yield from _one_of(small, start, limit)
        small = []
        if (outgoing := for_target(each, start)) is not None:
            yield outgoing
    yield from _one_of(small, start, limit)


def _one_of(small: list[Held], start: int, limit: int) -> Iterator[Outgoing]:
    if len(small) < _WORTH_MERGING:
        for each in small:
            if (outgoing := for_target(each, start)) is not None:
                yield outgoing
        return
    compression = small[0].header.compression
    builder, offsets = RecordBatchBuilder(compression=compression, limit=limit), list[int]()
    for each in small:
        assert each.data is not None
        for record in decode_batch(each.data, 0, each.header.size):
            if record.offset < start:
                continue
            content = (record.timestamp, record.key, record.value, record.headers)
            if not builder.append(*content):
                yield Outgoing(builder.build(), builder.count, _spans(offsets))
                builder, offsets = RecordBatchBuilder(compression=compression, limit=limit), []
                builder.append(*content)
            offsets.append(record.offset)
    if offsets:
        yield Outgoing(builder.build(), builder.count, _spans(offsets))


def by_key(
    held: Iterable[tuple[Held, int]], partition: int, partitions: int, limit: int
) -> dict[int, list[Outgoing]]:
    """The records as batches for the partitions of the target that a producer would choose: by key, and for records
    without a key by the partition of the source. `held`: batches, each with the first offset that is copied. `limit`:
    of a batch, in bytes before compression. Raises Refusal if records cannot be decoded."""
    open_: dict[int, RecordBatchBuilder] = {}
    found: dict[int, list[Outgoing]] = {}

    def close(number: int) -> None:
        builder = open_.pop(number)
        found.setdefault(number, []).append(Outgoing(builder.build(), builder.count, ()))

    for each, start in held:
        for record in decode_batch(each.data, 0, each.header.size) if each.data is not None else ():
            if record.offset < start:
                continue
            number = partition % partitions if record.key is None else partition_of(record.key, partitions)
            content = (record.timestamp, record.key, record.value, record.headers)
            if number in open_:
                if open_[number].append(*content):
                    continue
                close(number)
            open_[number] = RecordBatchBuilder(compression=each.header.compression, limit=limit)
            open_[number].append(*content)
    for number in list(open_):
        close(number)
    return found
