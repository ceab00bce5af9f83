"""A compacted partition, and what is in it, as its readers see it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from hapax.codec.batch import iterate_batches
from hapax.codec.control import decode_control, encode_control
from hapax.codec.records import decode_batch, encode_records
from hapax.core.control import Marker
from hapax.runtime.disk import RealDisk
from hapax.runtime.settings import Settings
from unit.broker.broker_fixtures import Harness

NOW = 1_700_000_000_000
SETTINGS = Settings(
    log_cleanup_policy="compact", log_segment_bytes=2000, log_snapshot_interval_bytes=5000, durability="page-cache"
)


def records(keys: dict[str, str | None], at: int = NOW, **producer: Any) -> bytearray:
    return encode_records(
        [(at, key.encode(), None if value is None else value.encode(), ()) for key, value in keys.items()], **producer
    )


async def write(harness: Harness, batches: bytearray, shard_epoch: int = -1) -> None:
    result = await harness.calls.result(harness.produce_internal(batches, shard_epoch))
    assert result.error == 0, result
    if harness.replica.maintenance.checkpoint is not None:
        await harness.replica.maintenance.checkpoint


async def begin(folder: RealDisk, settings: Settings = SETTINGS) -> Harness:
    harness = Harness(folder, settings)
    replica = await harness.open(internal=True)
    replica.log.config = replace(replica.log.config, compacted_segment_bytes=100_000)
    return harness


def image(harness: Harness) -> dict[str, str]:
    """The log as a reader of committed data sees it: the last value of each key."""
    aborted = {
        (t.producer_id, offset)
        for t in harness.replica.machine.aborted for offset in range(t.first_offset, t.last_offset + 1)
    }
    data = harness.log_bytes()
    found: dict[str, str] = {}
    for position, header in iterate_batches(data):
        if header.is_control or (header.producer_id, header.base_offset) in aborted:
            continue
        for record in decode_batch(data, position, header.size):
            assert record.key is not None
            found.pop(record.key.decode(), None)
            if record.value is not None:
                found[record.key.decode()] = record.value.decode()
    return found


def offsets(harness: Harness) -> Iterator[tuple[int, bytes]]:
    """(offset, key) of every data record in the log."""
    data = harness.log_bytes()
    for position, header in iterate_batches(data):
        if not header.is_control:
            for record in decode_batch(data, position, header.size):
                yield record.offset, record.key or b""


def controls(harness: Harness) -> list[Any]:
    data = harness.log_bytes()
    return [decode_control(data, h, p) for p, h in iterate_batches(data) if h.is_control]


def offsets_write(producer_id: int, epoch: int, key: str, value: str) -> bytearray:
    return records({key: value}, producer_id=producer_id, producer_epoch=epoch, base_sequence=-1, transactional=True)


async def transaction(harness: Harness, producer_id: int, serial: int, key: str, *, commit: bool) -> None:
    await write(harness, offsets_write(producer_id, serial, key, f"{producer_id}-{serial}"))
    await write(harness, encode_control(Marker(producer_id, serial, commit, 0, serial, 0), NOW))
