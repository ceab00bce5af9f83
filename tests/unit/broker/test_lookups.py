"""Records by time: in compacted logs, and where clients' batches are not what their headers say."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from hapax.codec.batch import assemble_batch, patch_append_time, read_header
from hapax.codec.compression import Compression, compress
from hapax.codec.records import encode_records
from hapax.core.errors import Refusal
from hapax.log.times import find_newest_record, find_record
from hapax.runtime.disk import RealDisk
from unit.broker.broker_fixtures import Harness
from unit.broker.compaction_fixtures import NOW, begin, records, write


async def found(harness: Harness, timestamp: int, condemned: list[int] | None = None) -> tuple[int, int] | None:
    log = harness.replica.log

    def condemn(offset: int, refusal: Refusal) -> None:
        assert condemned is not None, refusal
        condemned.append(offset)

    return await find_record(log, timestamp, log.end_offset, condemn)


def promising(batch: bytearray, max_timestamp: int) -> bytearray:
    """A batch whose header speaks of a later record than there is."""
    header = read_header(batch)
    return assemble_batch(
        bytes(batch[61:]), record_count=header.record_count, base_timestamp=header.base_timestamp,
        max_timestamp=max_timestamp)


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.ZSTD])
async def test_a_batch_that_lost_its_newest_record_hides_no_later_one(
    folder: RealDisk, compression: Compression
) -> None:
    harness = await begin(folder)
    await write(harness, encode_records(
        [(NOW, b"stays", b"1", ()), (NOW + 500, b"goes", b"1", ())], compression=compression))
    await write(harness, records({"later": "1"}, NOW + 400))
    await write(harness, records({"goes": "2"}, NOW + 600))
    for n in range(60):
        await write(harness, records({"filler": str(n)}, NOW + 700 + n))
    assert await found(harness, NOW + 300) == (1, NOW + 500)
    assert await harness.replica.maintenance.compact() is not None
    assert read_header(harness.log_bytes()).record_count == 1
    assert read_header(harness.log_bytes()).max_timestamp == NOW
    for _ in range(2):
        assert await found(harness, NOW) == (0, NOW)
        assert await found(harness, NOW + 300) == (2, NOW + 400)
        assert await found(harness, NOW + 401) == (3, NOW + 600)
        assert await found(harness, NOW + 759) == (63, NOW + 759)
        assert await found(harness, NOW + 760) is None
        harness.crash()
        await harness.open(internal=True)


@pytest.mark.parametrize("count", [1, 3, 63])
async def test_headers_that_promise_too_much_hide_nothing(folder: RealDisk, count: int) -> None:
    """A client's, or those that a former version compacted."""
    harness = await begin(folder)
    for _ in range(count):
        await write(harness, promising(records({"old": "x"}), NOW + 900))
    await write(harness, records({"new": "x"}, NOW + 500))
    assert await found(harness, NOW + 300) == (count, NOW + 500)
    assert await found(harness, NOW + 600) is None
    newest = await find_newest_record(harness.replica.log, lambda *_: None)
    assert newest == (0, NOW)


async def test_a_lookup_ends_though_all_headers_lie(folder: RealDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = await begin(folder)
    for _ in range(300):
        await write(harness, promising(records({"old": "x"}), NOW + 900))
    looked = 0

    def counted(batch: Any, header: Any) -> Any:
        nonlocal looked
        looked += 1
        return b"", []

    monkeypatch.setattr("hapax.log.times.raw_records", counted)
    answer = await found(harness, NOW + 300)
    assert answer is not None, "which would be taken for the end"
    assert answer[0] <= 300
    assert looked < 100


async def test_a_batch_that_cannot_be_read_is_where_a_reader_begins(folder: RealDisk) -> None:
    harness = await begin(folder)
    await write(harness, records({"a": "x"}))
    await write(harness, assemble_batch(
        compress(Compression.ZSTD, bytes(400 << 20)), record_count=7, attributes=Compression.ZSTD, base_timestamp=NOW,
        max_timestamp=NOW + 500))
    await write(harness, assemble_batch(b"garbage", record_count=2, base_timestamp=NOW, max_timestamp=NOW + 600))
    await write(harness, records({"b": "x"}, NOW + 700))
    longest = 0.0

    async def turn() -> None:
        nonlocal longest
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            await asyncio.sleep(0)
            longest = max(longest, loop.time() - began)

    task = asyncio.get_running_loop().create_task(turn())
    condemned: list[int] = []
    assert await found(harness, NOW + 300, condemned) == (1, NOW + 500)
    task.cancel()
    assert longest < 1.0, "the loop turns meanwhile"
    assert await found(harness, NOW + 501, condemned) == (8, NOW + 600)
    assert await found(harness, NOW + 601, condemned) == (10, NOW + 700)
    assert set(condemned) == {1, 8}


async def test_log_append_time(folder: RealDisk) -> None:
    harness = await begin(folder)
    batch = records({"a": "x", "b": "x"}, NOW - 1000)
    patch_append_time(batch, NOW)
    await write(harness, batch)
    assert await found(harness, NOW - 5) == (0, NOW)
    assert await found(harness, NOW + 1) is None
