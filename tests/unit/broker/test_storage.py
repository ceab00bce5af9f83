"""What the cluster is told of a broker's disk."""

from __future__ import annotations

import asyncio
import errno
import random
from pathlib import Path

import pytest

from hapax.broker import storage
from hapax.broker.commit import Committer
from hapax.broker.storage import StorageGuard
from hapax.log.config import LogConfig
from hapax.log.segment_log import SegmentLog
from hapax.runtime.disk import open_folder
from hapax.runtime.ports import FolderClosed
from unit.broker.broker_fixtures import FaultyDisk


class Partition:
    name = "t-0"
    storage_error = ""


class Standings:
    def __init__(self) -> None:
        self.said: list[str] = []
        self._changed = asyncio.Event()

    def __call__(self, standing: str) -> None:
        self.said.append(standing)
        self._changed.set()

    async def are(self, *expected: str) -> None:
        async with asyncio.timeout(10):
            while self.said != list(expected):
                await self._changed.wait()
                self._changed.clear()


async def test_a_full_disk_is_told_and_its_end_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "PROBE_EVERY_S", 0.01)
    standings = Standings()
    guard = StorageGuard(open_folder(tmp_path), random.Random(1), standings)
    partition = Partition()
    guard.failed(partition, OSError(errno.ENOSPC, "full"))
    assert standings.said == ["full disk"] and partition.storage_error
    await standings.are("full disk", "")
    assert not partition.storage_error
    await guard.close()


async def test_a_replica_that_went_away_says_nothing_of_the_disk(tmp_path: Path) -> None:
    """Else this broker gave up all that it leads because one replica moved to another."""
    standings = Standings()
    guard = StorageGuard(open_folder(str(tmp_path)), random.Random(1), standings)
    partition = Partition()
    guard.failed(partition, FolderClosed(errno.ENOENT, "the log was closed", "t-0"))
    assert (standings.said, partition.storage_error) == ([], "")


async def test_a_sync_that_takes_too_long_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "PROBE_EVERY_S", 0.01)
    standings = Standings()
    disk = FaultyDisk(open_folder(tmp_path))
    guard = StorageGuard(disk, random.Random(1), standings)
    released = asyncio.Event()

    async def stalled(*_: object) -> None:
        await released.wait()

    monkeypatch.setattr("hapax.broker.commit.sync_files", stalled)
    committer = Committer(disk, lambda reason: None, guard.slow, 0.02)

    class Written:
        log = SegmentLog(disk, "t-0", LogConfig())
        commit_queued = False

        def advance(self, offset: int) -> None: ...

    Written.log.create([])
    committer.request(Written())
    await standings.are("slow disk")
    released.set()
    await standings.are("slow disk", "")
    await committer.drain()
    await guard.close()
