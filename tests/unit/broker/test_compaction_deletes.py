"""What is deleted from a compacted topic stays deleted, and what a client sent that nobody can read harms nothing else
(rule 26)."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import Any

import pytest

from hapax.broker.replica import Replica
from hapax.codec.batch import assemble_batch, iterate_batches
from hapax.codec.compression import Compression, compress
from hapax.codec.control import encode_control
from hapax.codec.raw_records import raw_records
from hapax.codec.records import decode_batch, encode_records
from hapax.core.batch import COMPRESSION_MASK, DELETE_HORIZON, LOG_APPEND_TIME, BatchHeader
from hapax.core.control import Marker
from hapax.core.errors import ErrorCode, Refusal
from hapax.log.compaction import _Run
from hapax.runtime.disk import RealDisk
from unit.broker.broker_fixtures import Harness
from unit.broker.compaction_fixtures import (
    NOW,
    begin,
    controls,
    image,
    offsets,
    offsets_write,
    records,
    write,
)

DAY = 86_400_000
HOUR = 3_600_000


async def fill(harness: Harness, count: int = 60) -> None:
    """What is written before lies in closed segments then."""
    for n in range(count):
        await write(harness, records({"filler": str(n)}))


async def compact(harness: Harness, after_ms: int = 0) -> None:
    harness.clock.now += after_ms
    await fill(harness)
    assert await harness.replica.maintenance.compact() is not None


def stored(harness: Harness, key: bytes) -> list[tuple[int, int, bytes | None]]:
    """(offset, timestamp, value) of the key's records."""
    data = harness.log_bytes()
    return [
        (record.offset, record.timestamp, record.value)
        for position, header in iterate_batches(data) if not header.is_control
        for record in decode_batch(data, position, header.size) if record.key == key
    ]


# --- deletes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", list(Compression))
async def test_a_deleted_key_of_a_batch_that_stays_does_not_come_back(
    folder: RealDisk, compression: Compression
) -> None:
    harness = await begin(folder)
    await write(harness, records({"deleted": "1", "stays": "1"}, compression=compression))
    await write(harness, records({"deleted": None}, compression=compression))
    await compact(harness)
    await compact(harness, DAY)
    await compact(harness)
    assert stored(harness, b"deleted") == []
    assert [value for _, _, value in stored(harness, b"stays")] == [b"1"]
    first = harness.log_headers()[0]
    assert (first.base_offset, first.last_offset, first.record_count, first.attributes & COMPRESSION_MASK) == (
        0, 1, 1, compression)


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.LZ4])
@pytest.mark.parametrize("at", [-1, 0, NOW - 30 * DAY, NOW + 30 * DAY])
async def test_a_tombstone_stays_from_when_it_was_first_compacted(
    folder: RealDisk, at: int, compression: Compression
) -> None:
    """Whatever time its client says that it is from."""
    harness = await begin(folder)
    await write(harness, records({"gone": "x"}, at))
    await write(harness, records({"gone": None, "other": "y"}, at, compression=compression))
    await compact(harness)
    (header,) = [header for header in harness.log_headers() if header.base_offset == 1]
    assert header.delete_horizon_ms == NOW + DAY
    assert header.max_timestamp == at
    assert stored(harness, b"gone") == [(1, at, None)]
    assert stored(harness, b"other") == [(2, at, b"y")]
    await compact(harness, DAY - 1)
    (header,) = [header for header in harness.log_headers() if header.base_offset == 1]
    assert header.delete_horizon_ms == NOW + DAY, "a later run does not put it off"
    assert stored(harness, b"gone") == [(1, at, None)]
    await compact(harness, 1)
    assert stored(harness, b"gone") == []
    assert stored(harness, b"other") == [(2, at, b"y")]


async def test_a_horizon_outlives_the_process(folder: RealDisk) -> None:
    harness = await begin(folder)
    await write(harness, records({"gone": None}))
    await compact(harness)
    harness.crash()
    await harness.open(internal=True)
    await compact(harness, DAY)
    assert stored(harness, b"gone") == []


async def test_log_append_time_is_not_lost(folder: RealDisk) -> None:
    harness = await begin(folder)
    body = records({"gone": None, "other": "x"}, NOW - DAY)
    header = next(header for _, header in iterate_batches(body))
    await write(harness, assemble_batch(
        bytes(body[61:]), record_count=2, attributes=LOG_APPEND_TIME, base_timestamp=header.base_timestamp,
        max_timestamp=NOW))
    await compact(harness)
    assert stored(harness, b"gone") == [(0, NOW, None)]
    await compact(harness, DAY)
    assert stored(harness, b"other") == [(1, NOW, b"x")]


async def test_headers_and_records_without_keys_stay_as_they_are(folder: RealDisk) -> None:
    harness = await begin(folder)
    headers = (("trace", b"\0\1"), ("none", None))
    await write(harness, encode_records([
        (NOW, b"old", b"1", headers), (NOW + 5, None, b"no key", headers), (NOW + 7, b"kept", None, headers),
        (NOW + 3, None, None, headers),
    ], compression=Compression.ZSTD))
    await write(harness, records({"old": "2"}))
    await compact(harness)
    data = harness.log_bytes()
    first = harness.log_headers()[0]
    assert first.attributes & DELETE_HORIZON
    assert list(decode_batch(data, 0, first.size)) == [
        (1, NOW + 5, None, b"no key", headers), (2, NOW + 7, b"kept", None, headers), (3, NOW + 3, None, None, headers)]
    assert first.max_timestamp == NOW + 7
    await compact(harness, DAY)
    first = harness.log_headers()[0]
    assert [record.offset for record in decode_batch(harness.log_bytes(), 0, first.size)] == [1, 3]
    assert first.max_timestamp == NOW + 5


async def test_no_client_sets_a_delete_horizon(folder: RealDisk) -> None:
    """Its tombstones would go before anybody saw them."""
    harness = Harness(folder)
    await harness.open()
    body = records({"gone": None})
    made = assemble_batch(bytes(body[61:]), record_count=1, attributes=DELETE_HORIZON)
    assert (await harness.produced(made)).error is ErrorCode.INVALID_RECORD


# --- markers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False])
async def test_a_marker_goes_after_its_records_and_its_time(folder: RealDisk, commit: bool) -> None:
    harness = await begin(folder)
    await write(harness, offsets_write(1, 0, "key", "1"))
    await write(harness, encode_control(Marker(1, 0, commit, 0, 0, 0), NOW))
    await write(harness, offsets_write(1, 1, "other", "1"))
    await write(harness, encode_control(Marker(1, 1, True, 0, 1, 0), NOW))
    at_first = controls(harness)
    await compact(harness)
    if commit:
        assert stored(harness, b"key") == [(0, NOW, b"1")]
        await compact(harness, DAY)
        assert controls(harness) == at_first, "as long as a record is there, so is its marker"
        await write(harness, records({"key": "2"}))
        await compact(harness)
    assert 0 not in dict(offsets(harness))
    assert controls(harness) == at_first, "who has read a record finds its marker"
    assert len(harness.replica.machine.aborted) == (not commit)
    assert [h.delete_horizon_ms is None for h in harness.log_headers() if h.is_control] == [False, True]
    harness.replica.maintenance.compacted_to = 0
    await compact(harness, harness.replica.log.config.marker_retention_ms - 1)
    assert controls(harness) == at_first
    await compact(harness, 1)
    assert controls(harness) == at_first[1:]
    assert list(harness.replica.machine.aborted) == []
    assert harness.replica.machine.last_stable_offset == harness.replica.log.end_offset


# --- what nobody can read -----------------------------------------------------------------------------------------


def malformed(compression: int, payload: bytes = b"no records" * 20, count: int = 3) -> bytearray:
    """With a valid header and CRC."""
    return assemble_batch(payload, record_count=count, attributes=compression, base_timestamp=NOW, max_timestamp=NOW)


def spoiled(change: Any) -> bytearray:
    """A batch of one record, changed, with a CRC that matches."""
    body = bytearray(records({"deleted": "spoiled"})[61:])
    change(body)
    return malformed(0, bytes(body), 1)


def bomb() -> bytearray:
    return malformed(Compression.ZSTD, compress(Compression.ZSTD, bytes(40 << 20)))


HOSTILE = {
    "plain": lambda: malformed(0),
    "empty": lambda: malformed(0, b""),
    **{f"garbage as {codec.name}": lambda codec=codec: malformed(codec) for codec in list(Compression)[1:]},
    "a bomb": bomb,
    "a count of records that cannot be": lambda: malformed(0, b"", 2**31 - 1),
    "a varint without end": lambda: malformed(0, b"\xff" * 5000, 1),
    "a negative length": lambda: spoiled(lambda body: body.__setitem__(0, 1)),
    "an offset beyond the batch": lambda: spoiled(lambda body: body.__setitem__(3, 2)),
    "a key beyond the record": lambda: spoiled(lambda body: body.__setitem__(4, 126)),
    "bytes behind the last record": lambda: spoiled(lambda body: body.append(0)),
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_batch_that_nobody_can_read_stays_alone(
    folder: RealDisk, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = await begin(folder)
    said: list[int] = []

    def unreadable(replica: Replica, offset: int, refusal: Refusal) -> None:
        said.append(offset)

    object.__setattr__(harness.context, "unreadable", unreadable)
    await write(harness, records({"early": None}))
    made = HOSTILE[name]()
    await write(harness, made)
    header = harness.log_headers()[1]
    await write(harness, records({"deleted": None}))
    began = time.process_time()
    for n in range(3):
        harness.clock.now += DAY
        await fill(harness)
        assert await harness.replica.maintenance.compact() is not None, n
    assert time.process_time() - began < 10
    kept = harness.log_bytes()
    position = next(p for p, h in iterate_batches(kept) if h.base_offset == 1)
    assert kept[position + 16 : position + header.size] == made[16:]
    in_compacted = [h for h in harness.log_headers() if h.last_offset < harness.replica.maintenance.compacted_to]
    assert len(in_compacted) == 3, "all else is compacted"
    assert 0 not in {h.base_offset for h in in_compacted}, "what lies before is no concern of its"
    assert header.next_offset in {h.base_offset for h in in_compacted}, "it may hold what the tombstone deletes"
    assert said == [1], "said once"
    assert not harness.replica.log.damages
    monkeypatch.setattr(harness.replica.log.surveys, "run", None)
    assert await harness.replica.maintenance.compact() is None, "nothing is looked at again and again"


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.GZIP])
async def test_a_large_batch_is_looked_into_off_the_loop(
    folder: RealDisk, monkeypatch: pytest.MonkeyPatch, compression: Compression
) -> None:
    harness = await begin(folder)
    await write(harness, encode_records([(NOW, b"%d" % n, b"", ()) for n in range(2000)], compression=compression))
    await fill(harness)
    looked: list[bool] = []

    def look(batch: memoryview, header: BatchHeader) -> Any:
        if header.record_count == 2000:
            looked.append(threading.current_thread() is threading.main_thread())
        return raw_records(batch, header)

    monkeypatch.setattr("hapax.log.compaction.raw_records", look)
    await harness.replica.maintenance.compact()
    assert looked == [False, False]


async def test_segments_of_bombs_do_not_fill_the_memory(folder: RealDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run takes no more segments than what is in them, decompressed, lets it."""
    monkeypatch.setattr("hapax.log.compaction._MAX_DIRTY_BYTES", 100_000)
    harness = await begin(folder)
    harness.replica.log.config = replace(harness.replica.log.config, segment_bytes=500)
    for n in range(20):
        await write(harness, records({f"k{n}": "x" * 90_000}, compression=Compression.ZSTD))
    before = image(harness)
    first = await harness.replica.maintenance.compact()
    assert first is not None
    assert first.up_to < 10
    while (done := await harness.replica.maintenance.compact()) is not None:
        assert done.up_to > first.up_to
        first = done
    assert image(harness) == before


async def test_a_segment_of_bombs_does_not_fill_the_memory_either(
    folder: RealDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run ends in the midst of it, and what it has not looked at yet stays as it is: also a tombstone whose time has
    come, for an older value of its key stays, too."""
    monkeypatch.setattr("hapax.log.compaction._MAX_KEYS", 10)
    harness = await begin(folder)
    harness.replica.log.config = replace(
        harness.replica.log.config, segment_bytes=10_000, delete_retention_ms=0, compacted_segment_bytes=5000)
    for n in range(6):
        await write(harness, records({f"{round_}-{n}-{'0' * 100_000}": "x" for round_ in range(5)},
                                     compression=Compression.ZSTD))
        await write(harness, records({f"0-{n}-{'0' * 100_000}": None}, compression=Compression.ZSTD))
    await write(harness, records({"last": "y" * 20_000}))
    await write(harness, records({"next": "z"}))
    kept = image(harness)
    held: list[tuple[int, int]] = []
    look = _Run._rewrite

    async def rewrite(run: _Run, *given: Any) -> None:
        held.append((len(run.latest), max(map(len, run.latest))))
        await look(run, *given)

    monkeypatch.setattr(_Run, "_rewrite", rewrite)
    reached = [0]
    while (done := await harness.replica.maintenance.compact()) is not None:
        assert done.up_to > reached[-1]
        reached.append(done.up_to)
        assert image(harness) == kept
    assert len(reached) > 3 and len(harness.replica.log.segments) == 3, "all of it was one segment from the beginning"
    assert all(keys < 15 and longest < 100 for keys, longest in held)
