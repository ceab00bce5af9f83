"""Backups of logs that go on while they are read: consistent, incremental, interrupted, expired."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest

from hapax.backup import manifests
from hapax.backup.errors import BackupError
from hapax.backup.point_in_time import Moment, as_of
from hapax.backup.reading import batches_of, check_backup
from hapax.backup.restoring import Restorer
from hapax.backup.store import FolderStore
from hapax.codec.batch import read_header
from hapax.codec.records import encode_records
from hapax.core.backup.manifest import FORMAT
from hapax.core.transaction.states import State
from unit.backup.history import DATA, History, after_each_upload, folder_store, judge, newest


@pytest.mark.parametrize("seed", range(12))
async def test_each_backup_has_every_transaction_whole_or_not_at_all(seed: int, tmp_path: Path) -> None:
    history, store = History(seed), folder_store(tmp_path)
    history.run(150)
    found = []
    for _ in range(3):
        complete = {p.name: p.tokens for p in history.producers if not p.unmarked}
        taken = await history.backup(store)
        found.append(judge(history, store, taken.manifest, through=complete))
        assert check_backup(store, taken.manifest)[1] == []
        history.run(60)
    assert found[0] < found[-1]


async def test_markers_that_come_while_it_is_read_are_excluded(tmp_path: Path) -> None:
    """Otherwise the first test shows nothing of them."""
    number = 0
    for seed in range(4):
        history, store = History(seed), folder_store(tmp_path / str(seed))
        history.run(150)
        manifest = (await history.backup(store)).manifest
        number += sum(len(part.excluded) for part in manifest.partitions)
        number += len(manifest.through)
    assert number > 15


async def test_an_earlier_moment_is_consistent_too(tmp_path: Path) -> None:
    earlier = sum([await fewer_at_earlier_moments(seed, tmp_path / str(seed)) for seed in range(6)])
    assert earlier > 8, "most moments have all transactions: the test shows nothing"


async def fewer_at_earlier_moments(seed: int, folder: Path) -> int:
    """Returns the number of moments that have fewer transactions than the whole backup."""
    history, store = History(seed), folder_store(folder)
    history.run(100)
    first = (await history.backup(store)).manifest
    history.run(200)
    manifest = (await history.backup(store)).manifest
    numbers = []
    for _ in range(4):
        at = history.chance.randrange(first.taken_ms, manifest.taken_ms)
        numbers.append(judge(history, store, as_of(store, manifest, Moment(at_ms=at))))
    for _ in range(4):
        part = manifest.part(history.chance.choice(DATA))
        before = first.part(part.name) if part is not None else None
        assert part is not None and before is not None
        offset = history.chance.randrange(before.end, part.end + 1)
        earlier = as_of(store, manifest, Moment(offsets={part.name: offset}))
        numbers.append(judge(history, store, earlier))
        ended = earlier.part(part.name)
        assert ended is not None and ended.end <= offset
    every = judge(history, store, manifest)
    return sum(number < every for number in numbers)


async def test_a_transaction_that_stays_open_is_aborted_by_a_restore(tmp_path: Path) -> None:
    history, store = History(9), folder_store(tmp_path)
    history.busy, history.steps_between = 0.0, 0
    slow = history.producers[0]
    while not slow.written or not slow.plan:
        history.step(slow)
    where = slow.written[0]
    for _ in range(3):
        manifest = (await history.backup(store)).manifest
        part = manifest.part(where)
        assert part is not None and [each.producer_id for each in part.opened] == [slow.producer_id]
        assert judge(history, store, manifest) == len({*history.committed}) == 0
    while slow.state is not State.EMPTY:
        history.step(slow)
    judge(history, store, (await history.backup(store)).manifest)


async def test_a_second_backup_uploads_what_is_new(tmp_path: Path) -> None:
    history, store = History(1), folder_store(tmp_path)
    history.run(300)
    first = await history.backup(store)
    history.steps_between, history.busy = 0, 0.0
    second = await history.backup(store)
    assert second.uploaded < first.uploaded / 2
    assert second.manifest.base == first.manifest.backup
    names = {each.name for part in first.manifest.partitions for each in part.ranges}
    assert names < {each.name for part in second.manifest.partitions for each in part.ranges}


class Killed(BaseException):
    pass


class Fragile(FolderStore):
    """Ends the backup before its n-th change."""

    left = 1 << 60

    def _count(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Killed

    def put(self, name: str, content: bytes) -> None:
        self._count()
        super().put(name, content)

    def delete(self, name: str) -> None:
        self._count()
        super().delete(name)


async def test_a_backup_that_is_killed_at_any_change_leaves_what_was_good(tmp_path: Path) -> None:
    """The next one continues, and its `--keep` removes nothing that is needed."""
    history, store = History(2), Fragile(tmp_path)
    history.steps_between, history.busy = 1, 0.0
    history.run(100)
    await history.backup(store)
    for steps in range(0, 30):
        history.run(10)
        store.left = steps
        with contextlib.suppress(Killed):
            await history.backup(store, keep=2)
        store.left = 1 << 60
        for name in manifests.listed(store):
            manifest = manifests.read(store, name)
            assert check_backup(store, manifest)[1] == []
        judge(history, store, newest(store))
    assert len(manifests.listed(store)) > 2, "those that killed backups continue are spared for a day"
    history.now += 2 * 86_400_000
    await history.backup(store, keep=2)
    assert len(manifests.listed(store)) == 2 and store.list(manifests.RUNNING) == []


async def test_keep_removes_what_no_backup_needs(tmp_path: Path) -> None:
    history, store = History(3), folder_store(tmp_path)
    for _ in range(4):
        history.run(50)
        await history.backup(store)
    taken = await history.backup(store, keep=1)
    assert manifests.listed(store) == [taken.manifest.backup] and len(taken.removed) == 4
    needed = {each.name for part in taken.manifest.partitions for each in part.ranges}
    assert set(store.list(manifests.OBJECTS)) == needed
    assert store.list(manifests.RUNNING) == []


async def test_keep_spares_a_backup_that_is_running(tmp_path: Path) -> None:
    """It continues a backup that would expire, and has objects that no manifest names yet."""
    history, store = History(4), folder_store(tmp_path)
    history.run(100)
    base = (await history.backup(store)).manifest

    async def meanwhile(uploads: int) -> None:
        for _ in range(3 if uploads == 1 else 0):
            history.run(20)
            await history.backup(store, keep=1)

    taker = history.taker(store)
    after_each_upload(taker, meanwhile)
    manifest = (await taker.take()).manifest
    assert manifest.base == base.backup
    assert check_backup(store, manifest)[1] == []


async def test_the_last_backup_is_not_continued_where_it_is_damaged(tmp_path: Path) -> None:
    history, store = History(5), folder_store(tmp_path)
    history.run(100)
    first = (await history.backup(store)).manifest
    history.run(50)
    second = (await history.backup(store)).manifest
    store.put(f"{manifests.FOLDER}{second.backup}.json", b"{}")
    third = (await history.backup(store)).manifest
    assert third.base == first.backup
    judge(history, store, third)


async def test_records_that_an_unclean_election_has_replaced_are_read_again(tmp_path: Path) -> None:
    """The log is longer than the last backup, and has other records in the same places."""
    history, store = History(10), folder_store(tmp_path)
    history.run(200)
    history.busy, history.steps_between = 0.0, 0
    await history.backup(store)
    where = DATA[1]
    kept, lost = history.logs[where][:-5], history.logs[where][-5:]
    history.logs[where] = kept
    for _ in range(2 * len(lost)):
        history.append(where, bytes(encode_records([(history.now, None, b"other", ())])))
    manifest = (await history.backup(store)).manifest
    part = manifest.part(where)
    assert part is not None and check_backup(store, manifest)[1] == []
    stored = [bytes(batch) for each in part.ranges for batch, _ in batches_of(store, each)]
    assert stored == history.logs[where]


async def test_records_that_retention_deletes_meanwhile_are_left_out(tmp_path: Path) -> None:
    history, store = History(6), folder_store(tmp_path)
    history.run(300)
    where = DATA[0]
    cut = history.end(where) // 2

    def delete(name) -> None:  # type: ignore[no-untyped-def]
        if name == where:
            history.starts[where] = cut
            history.logs[where] = [each for each in history.logs[where] if int.from_bytes(each[:8], "big") >= cut]

    history.on_read = delete
    manifest = (await history.backup(store)).manifest
    part = manifest.part(where)
    assert part is not None and part.start == cut == part.ranges[0].first
    assert check_backup(store, manifest)[1] == []


async def test_a_log_that_begins_within_a_batch_is_backed_up_from_there(tmp_path: Path) -> None:
    """Records of the batch were deleted."""
    history, store = History(11), folder_store(tmp_path)
    where = DATA[2]
    history.busy, history.steps_between = 0.0, 0
    history.append(where, bytes(encode_records([(history.now, None, b"%d" % n, ()) for n in range(5)])))
    history.starts[where] = 2
    for _ in range(2):
        manifest = (await history.backup(store)).manifest
        part = manifest.part(where)
        assert part is not None and (part.start, part.ranges[0].first) == (2, 0)
        assert check_backup(store, manifest)[1] == []
        history.append(where, bytes(encode_records([(history.now, None, b"later", ())])))
    restorer = Restorer(None, store, manifest)  # type: ignore[arg-type]
    assert restorer._first(part) == 0
    assert [read_header(each).base_offset for each in restorer._restored(part, 0)] == [0, 5]


async def test_backups_of_another_cluster_are_refused(tmp_path: Path) -> None:
    history, store = History(7), folder_store(tmp_path)
    history.run(50)
    await history.backup(store)
    history.cluster_id = "another"
    with pytest.raises(BackupError, match="give each cluster a place of its own"):
        await history.backup(store)
    assert store.list(manifests.RUNNING) == []


async def test_a_manifest_that_contradicts_itself_is_refused(tmp_path: Path) -> None:
    history, store = History(8), folder_store(tmp_path)
    history.run(100)
    manifest = (await history.backup(store)).manifest
    place = f"{manifests.FOLDER}{manifest.backup}.json"
    document = json.loads(store.get(place))
    assert document["format"] == FORMAT

    def changed(change) -> bytes:  # type: ignore[no-untyped-def]
        from dataclasses import replace
        return manifests.encode(replace(manifest, partitions=tuple(change(list(manifest.partitions)))))

    for change, says in (
        (lambda parts: parts[1:], "is missing"),
        (lambda parts: [*parts, parts[0]], "is named twice"),
        (lambda parts: [replace_end(parts[0]), *parts[1:]], "ends at offset"),
    ):
        store.put(place, changed(change))
        with pytest.raises(BackupError, match=says):
            manifests.read(store, manifest.backup)


def replace_end(part):  # type: ignore[no-untyped-def]
    from dataclasses import replace
    return replace(part, end=part.end + 1)
