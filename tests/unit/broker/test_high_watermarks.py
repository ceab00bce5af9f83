"""`replication-offset-checkpoint` under partitions that are opened side by side, and disks that fail."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from hapax.broker.high_watermarks import HighWatermarks
from hapax.core.types import TopicPartition
from hapax.runtime.disk import open_folder
from unit.broker.broker_fixtures import FaultyDisk

NAMES = [TopicPartition("orders", number) for number in range(8)]


async def test_partitions_that_are_forgotten_at_once(tmp_path: Path) -> None:
    disk = open_folder(str(tmp_path))
    known = HighWatermarks(disk)
    await known.write(lambda: {name: 10 + name.partition for name in NAMES})
    await asyncio.gather(*(known.forget(name) for name in NAMES[1:]))
    assert _read_again(disk) == {NAMES[0]: 10}
    disk.close()


async def test_what_could_not_be_written_is_written_by_the_next_attempt(tmp_path: Path) -> None:
    disk = FaultyDisk(open_folder(str(tmp_path)))
    known = HighWatermarks(disk)  # type: ignore[arg-type]
    await known.write(lambda: {NAMES[0]: 10})
    disk.full = True
    for _ in range(2):
        with pytest.raises(OSError, match="No space left"):
            await known.forget(NAMES[0])
    disk.full = False
    await known.forget(NAMES[0])
    assert _read_again(disk) == {}
    disk.close()


async def test_a_write_that_is_given_up_does_not_meet_the_next_one(tmp_path: Path) -> None:
    """The thread that writes goes on: the node's end cancels the one that writes all the time, and writes itself."""
    disk = open_folder(str(tmp_path))
    for number in range(20):
        first = asyncio.ensure_future(disk.write_atomically("file", b"first" * 1000))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await disk.write_atomically("file", content := b"second %d" % number)
        assert (tmp_path / "file").read_bytes() == content
        assert not (tmp_path / "file.tmp").exists()
    disk.close()


def _read_again(disk: object) -> dict[TopicPartition, int]:
    again = HighWatermarks(disk)  # type: ignore[arg-type]
    again.load()
    return {name: at for name in NAMES if (at := again.of(name))}
