"""Shows some of a partition's records to a person. Time and size are bounded, and a bad batch hides no good one."""

from __future__ import annotations

import base64
from typing import Any, Final, NamedTuple

from hapax.client.errors import FatalError
from hapax.client.offsets import OffsetAdmin, PartitionOffsets
from hapax.client.raw_fetch import fetch_raw
from hapax.codec.batch import crc_matches
from hapax.codec.bounded import decode_bounded
from hapax.codec.compression import Compression
from hapax.codec.control import decode_control
from hapax.codec.records import Record
from hapax.core.batch import LOG_APPEND_TIME, BatchHeader
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.types import TopicPartition

_DECOMPRESSED_MAX: Final = 8 << 20
_FIELDS: Final = (
    "base_offset", "last_offset", "bytes", "records", "leader_epoch", "kind", "compression", "producer_id",
    "producer_epoch", "base_sequence", "max_timestamp_ms", "hidden", "error", "control",
)  # fmt: skip
_FIRST_FETCH: Final = 16 << 10
"""Enough for most previews. The rest is fetched in larger pieces."""
_FETCHES: Final = 8
"""Limits the work where little of what is read can be shown."""


class Bounds(NamedTuple):
    records: int = 50
    fetch_bytes: int = 256 << 10
    field_bytes: int = 4 << 10
    """Bytes shown of a key, a value or a header."""


async def preview(
    admin: OffsetAdmin, partition: TopicPartition, offset: int, *, committed: bool, bounds: Bounds
) -> dict[str, Any]:
    """Returns the records from an offset on as a JSON document: `batches` with the defects of each, `records`, and
    `next_offset`, at which the next preview starts. Raises HapaxError."""
    batches: list[dict[str, Any]] = []
    records: list[dict[str, Any]] = []
    following, left, at_once = offset, bounds.fetch_bytes, _FIRST_FETCH
    ends: PartitionOffsets | None = None
    for _ in range(_FETCHES):
        try:
            found = await fetch_raw(
                admin._cluster, partition, following, committed=committed, max_bytes=min(left, at_once),
                timeout_ms=admin._timeout)
        except FatalError as error:
            if error.code != ErrorCode.CORRUPT_MESSAGE:
                raise
            batches.append(_nothing() | {"base_offset": following, "error": str(error)})
            break
        ends = ends or PartitionOffsets(found.first, found.last_stable, found.high_watermark)
        left -= len(found.data)
        at_once *= 4
        before = following
        following = _look_at(found.data, found.aborted if committed else (), following, bounds, batches, records)
        if following == before or left <= 0 or len(records) >= bounds.records:
            break
    if ends is None:
        ends = (await admin.partition_offsets([partition]))[partition]
    return {
        "topic": partition.topic, "partition": partition.partition,
        "isolation": "read_committed" if committed else "read_uncommitted", "first": ends.first,
        "last_stable": ends.last_stable, "high_watermark": ends.high_watermark, "next_offset": following,
        "at_end": following >= (ends.last_stable if committed else ends.high_watermark),
        "batches": batches, "records": records,
    }


def _look_at(
    data: bytes, aborted: tuple[tuple[int, int], ...], start: int, bounds: Bounds, batches: list[dict[str, Any]],
    records: list[dict[str, Any]],
) -> int:
    """Adds the content of one fetch answer. Returns the offset at which to continue."""
    from hapax.client.readings import Chunk

    following = start
    try:
        for header, position, visible in Chunk(data, aborted, False).batches():
            if header.last_offset < start:
                continue
            room = bounds.records - len(records)
            if room <= 0:
                return following
            described = _batch(header)
            batches.append(described)
            following = header.next_offset
            if not crc_matches(data, header, position):
                described["error"] = "CORRUPT_MESSAGE: its CRC is not that of its bytes"
                continue
            try:
                if header.is_control:
                    described["control"] = _control(data, header, position)
                    continue
                if not visible:
                    described["hidden"] = "aborted"
                    continue
                shown = _records(data, header, position, start, bounds, room)
                records += shown
                if len(shown) == room:
                    return int(shown[-1]["offset"]) + 1
            except Refusal as refusal:
                described["error"] = str(refusal)
    except Refusal as refusal:  # the length is impossible, so the next batch cannot be found either
        batches.append(_nothing() | {"base_offset": following, "error": str(refusal)})
    return following


def _batch(header: BatchHeader) -> dict[str, Any]:
    codec = header.attributes & 7
    return {
        "base_offset": header.base_offset, "last_offset": header.last_offset, "bytes": header.size,
        "records": header.record_count, "leader_epoch": header.leader_epoch,
        "kind": "control" if header.is_control else "transactional" if header.is_transactional else "data",
        "compression": Compression(codec).name.lower() if codec in set(Compression) else f"unknown ({codec})",
        "producer_id": header.producer_id, "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence, "max_timestamp_ms": header.max_timestamp, "hidden": None, "error": None,
        "control": None,
    }


def _nothing() -> dict[str, Any]:
    """A batch that cannot be decoded."""
    return {**dict.fromkeys(_FIELDS), "kind": "unreadable"}


def _control(data: bytes, header: BatchHeader, position: int) -> str:
    return str(decode_control(data, header, position))


def _records(
    data: bytes, header: BatchHeader, position: int, start: int, bounds: Bounds, room: int
) -> list[dict[str, Any]]:
    skipped = max(0, start - header.base_offset)
    found = decode_bounded(data, header, position, _DECOMPRESSED_MAX, room + skipped)
    kind = "append" if header.attributes & LOG_APPEND_TIME else "create"
    return [_record(each, kind, bounds.field_bytes) for each in found if each.offset >= start][:room]


def _record(record: Record, kind: str, field_bytes: int) -> dict[str, Any]:
    return {
        "offset": record.offset, "timestamp_ms": record.timestamp, "timestamp_kind": kind,
        "key": shown(record.key, field_bytes), "value": shown(record.value, field_bytes),
        "headers": [{"name": name[:field_bytes], "value": shown(value, field_bytes)}
                    for name, value in record.headers[:100]],
    }


def shown(data: bytes | None, most: int) -> dict[str, Any] | None:
    """Encodes bytes safely: always as base64, and also as text where they are printable UTF-8. None stays None."""
    if data is None:
        return None
    part = bytes(data[:most])
    return {
        "size": len(data), "truncated": len(part) < len(data), "base64": base64.b64encode(part).decode(),
        "text": _text(part, len(part) < len(data)),
    }


def _text(part: bytes, cut: bool) -> str | None:
    for end in range(len(part), max(len(part) - 4, -1), -1):  # the cut may fall within a character
        try:
            text = part[:end].decode()
        except UnicodeDecodeError:
            if cut:
                continue
            return None
        return text if all(each.isprintable() or each in "\t\r\n" for each in text) else None
    return None
