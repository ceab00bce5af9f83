"""Backups where clocks are wrong, where records are deleted while they are read, and where it takes days."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hapax.backup import manifests
from hapax.backup.cluster import LogStartMoved
from hapax.backup.errors import BackupError
from hapax.backup.reading import check_backup
from hapax.backup.store import FolderStore
from hapax.codec.batch import read_header
from hapax.core.batch import BatchHeader
from hapax.core.types import TopicPartition
from unit.backup.history import DATA, History, after_each_upload, folder_store, judge

HOUR_MS = 3_600_000


async def test_the_clock_goes_back_between_two_backups(tmp_path: Path) -> None:
    """The later one is the newest all the same: it is kept, and continued."""
    history, store = History(3), folder_store(tmp_path)
    history.run(50)
    await history.backup(store)
    history.now -= HOUR_MS
    history.run(50)
    taken = await history.backup(store, keep=1)
    assert manifests.listed(store) == [taken.manifest.backup]
    assert (await history.backup(store)).manifest.base == taken.manifest.backup


@pytest.mark.parametrize("seed", range(8))
async def test_a_clock_that_is_hours_ahead_splits_no_transaction(seed: int, tmp_path: Path) -> None:
    history, store = History(seed), folder_store(tmp_path)
    history.run(150)
    taker = history.taker(store)
    taker._now_ms = lambda: history.now + 2 * HOUR_MS
    complete = {p.name: p.tokens for p in history.producers if not p.unmarked}
    judge(history, store, (await taker.take()).manifest, through=complete)


async def test_the_first_records_of_an_open_transaction_are_deleted(tmp_path: Path) -> None:
    history, store = History(9), folder_store(tmp_path)
    history.steps_between, history.busy = 0, 0.0
    slow, where = history.producers[0], DATA[0]
    history.step(slow)
    for _ in range(3):
        history.append_data(where, slow, b"{}")
        await history.backup(store)
    history.starts[where] = 2
    history.logs[where] = history.logs[where][2:]
    manifest = (await history.backup(store)).manifest
    assert check_backup(store, manifest)[1] == []


async def test_markers_that_were_excluded_are_deleted_while_the_log_is_read(tmp_path: Path) -> None:
    """As a stream program does that deletes the records which it has processed."""
    deleted = sum([await deleted_at_the_end(seed, tmp_path / str(seed)) for seed in range(12)])
    assert deleted > 3


async def deleted_at_the_end(seed: int, folder: Path) -> bool:
    history, store = History(seed), folder_store(folder)
    history.run(300)
    where, deleted = DATA[0], False
    read = history.batches

    async def batches(
        name: TopicPartition, topic_id: str, start: int, end: int
    ) -> AsyncIterator[tuple[memoryview, BatchHeader]]:
        nonlocal deleted
        async for batch, header in read(name, topic_id, start, end):
            yield batch, header
            if name == where and not deleted and end - 3 < header.next_offset < end - 1:
                deleted = True
                history.starts[where] = end - 1
                history.logs[where] = [
                    each for each in history.logs[where] if read_header(each).base_offset >= end - 1]
                raise LogStartMoved(end - 1)

    history.batches = batches  # type: ignore[method-assign]
    manifest = (await history.backup(store)).manifest
    assert check_backup(store, manifest)[1] == []
    return deleted


async def test_more_is_deleted_than_was_to_be_read(tmp_path: Path) -> None:
    history, store = History(6), folder_store(tmp_path)
    history.run(300)
    history.steps_between, history.busy = 0, 0.0
    where = DATA[0]

    def delete(name: TopicPartition) -> None:
        if name == where:
            history.append_data(where, history.producers[0], b"{}")
            history.starts[where] = history.end(where)
            history.logs[where] = []

    history.on_read = delete
    manifest = (await history.backup(store)).manifest
    part = manifest.part(where)
    assert part is not None and part.start == part.end and not part.ranges and not part.opened
    assert check_backup(store, manifest)[1] == []


@pytest.mark.parametrize("paused_at", [2, -1], ids=["in between", "at the last object"])
async def test_a_backup_that_was_taken_for_abandoned_fails(paused_at: int, tmp_path: Path) -> None:
    """Another one has removed its objects."""
    history, store = History(4), folder_store(tmp_path)
    history.steps_between, history.busy = 0, 0.0
    history.run(100)
    last = sum(bool(log) for log in history.logs.values())

    async def pause(uploads: int) -> None:
        if uploads == paused_at % (last + 1):
            history.now += 25 * HOUR_MS
            await history.backup(store, keep=1)

    taker = history.taker(store)
    after_each_upload(taker, pause)
    with pytest.raises(BackupError, match="take the backup again"):
        await taker.take()
    assert len(manifests.listed(store)) == 1 and store.list(manifests.RUNNING) == []


async def test_a_backup_that_takes_days_keeps_its_objects(tmp_path: Path) -> None:
    history, store = History(4), folder_store(tmp_path)
    history.run(100)

    async def work_slowly(uploads: int) -> None:
        history.now += 3 * HOUR_MS
        if uploads == 9:
            await history.backup(store, keep=1)

    taker = history.taker(store)
    uploaded = after_each_upload(taker, work_slowly)
    assert check_backup(store, (await taker.take()).manifest)[1] == []
    assert len(uploaded) > 9


def test_deleting_twice_is_harmless(tmp_path: Path) -> None:
    """Also where the first one has removed the folder."""
    store = FolderStore(tmp_path / "place")
    store.delete("running/a.json")
    store.put("running/a.json", b"")
    store.put("running/b.json", b"")
    for name in ("running/a.json", "running/b.json", "running/b.json"):
        store.delete(name)
    assert store.list("running/") == []


async def test_other_files_beside_the_manifests_are_no_backups(tmp_path: Path) -> None:
    history, store = History(3), folder_store(tmp_path)
    for name in ("README.txt", "9999999999999-backup.json~", "older"):
        store.put(f"{manifests.FOLDER}{name}", b"")
    for _ in range(2):
        taken = await history.backup(store, keep=1)
    assert manifests.listed(store) == [taken.manifest.backup]
