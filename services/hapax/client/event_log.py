"""Reads the events in `__hapax_events`: forwards to follow them, backwards for the newest."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any, Final, NamedTuple

from hapax.client.offsets import OffsetAdmin
from hapax.client.raw_fetch import fetch_raw
from hapax.codec.batch import crc_matches, iterate_batches
from hapax.codec.bounded import decode_bounded
from hapax.codec.metadata import EVENTS_TOPIC
from hapax.core.errors import Refusal
from hapax.core.types import PartitionIndex, TopicPartition

EVENTS: Final = TopicPartition(EVENTS_TOPIC, PartitionIndex(0))
_WINDOW: Final = 500
_SCANNED: Final = 5_000
_FETCH_BYTES: Final = 1 << 20
_EVENT_MAX: Final = 1 << 20


class Found(NamedTuple):
    events: list[dict[str, Any]]
    """Newest first."""
    before: int | None
    """Older events are below this offset; None: there are none."""


def as_event(offset: int, timestamp_ms: int, value: bytes | None) -> dict[str, Any]:
    """The record's JSON object with its offset. A value that is not JSON becomes text."""
    try:
        content = json.loads(value or b"null")
    except ValueError:
        content = None
    if not isinstance(content, dict):
        content = {"event": "unknown", "text": (value or b"").decode(errors="backslashreplace")}
    return {"offset": offset, "at_ms": timestamp_ms, "event": "unknown", **content}


async def newest_events(
    admin: OffsetAdmin, *, most: int, kinds: Collection[str] = (), before: int | None = None, since_ms: int = 0
) -> Found:
    """The newest events, at most `most`; with `before`, those below that offset. Reads at most 5,000 offsets;
    `Found.before` is where to continue. Raises HapaxError."""
    ends = (await admin.partition_offsets([EVENTS]))[EVENTS]
    upper = ends.high_watermark if before is None else min(before, ends.high_watermark)
    found: list[dict[str, Any]] = []
    scanned = 0
    while upper > ends.first and scanned < _SCANNED:
        lower = max(ends.first, upper - _WINDOW)
        for event in reversed(await _window(admin, lower, upper)):
            if event["at_ms"] < since_ms:
                return Found(found, None)
            if not kinds or event["event"] in kinds:
                found.append(event)
                if len(found) == most:
                    return Found(found, event["offset"] if event["offset"] > ends.first else None)
        scanned += upper - lower
        upper = lower
    return Found(found, upper if upper > ends.first else None)


async def _window(admin: OffsetAdmin, lower: int, upper: int) -> list[dict[str, Any]]:
    """Events in [lower, upper), oldest first."""
    events: list[dict[str, Any]] = []
    position = lower
    while position < upper:
        raw = await fetch_raw(
            admin._cluster, EVENTS, position, committed=True, max_bytes=_FETCH_BYTES, timeout_ms=admin._timeout)
        before = position
        for at, header in iterate_batches(raw.data):
            if header.base_offset >= upper:
                return events
            position = max(position, header.next_offset)
            if header.is_control or not crc_matches(raw.data, header, at):
                continue
            try:
                records = decode_bounded(raw.data, header, at, _EVENT_MAX, header.record_count)
            except Refusal:
                continue
            events += [
                as_event(each.offset, each.timestamp, each.value) for each in records if lower <= each.offset < upper]
        if position == before:
            break
    return events
