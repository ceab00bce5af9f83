"""Damage of a backup: every kind is found, named, and not restored."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hapax.backup import manifests
from hapax.backup.errors import BackupError
from hapax.backup.reading import check_backup
from hapax.backup.store import FolderStore, FsspecStore, open_store
from hapax.core.backup.manifest import Manifest
from unit.backup.history import History


async def taken(folder: Path) -> tuple[FolderStore, Manifest]:
    history, store = History(1), FolderStore(folder)
    history.run(200)
    return store, (await history.backup(store)).manifest


def flip(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


@pytest.mark.parametrize(("change", "says"), [
    (flip, "SHA-256"), (lambda data: data[:-1], "bytes"), (lambda data: data + b"x", "bytes"), (None, "is missing"),
])
async def test_each_object_is_checked(
    tmp_path: Path, change: Callable[[bytes], bytes] | None, says: str
) -> None:
    store, manifest = await taken(tmp_path)
    names = [each.name for part in manifest.partitions for each in part.ranges]
    for name in names:
        intact = store.get(name)
        if change is None:
            store.delete(name)
        else:
            store.put(name, change(intact))
        _, faults = check_backup(store, manifest)
        assert len(faults) == 1 and name in faults[0] and says in faults[0]
        store.put(name, intact)
    assert check_backup(store, manifest)[1] == []


async def test_each_byte_of_a_manifest_is_checked(tmp_path: Path) -> None:
    """A change that JSON does not show, such as a blank at the end, harms nothing."""
    store, manifest = await taken(tmp_path)
    place = f"{manifests.FOLDER}{manifest.backup}.json"
    intact = store.get(place)
    for at in range(0, len(intact) - 3, 41):
        store.put(place, intact[:at] + bytes([intact[at] ^ 4]) + intact[at + 1 :])
        with pytest.raises(BackupError, match=manifest.backup):
            manifests.read(store, manifest.backup)


async def test_a_manifest_of_a_later_release_says_so(tmp_path: Path) -> None:
    store, manifest = await taken(tmp_path)
    place = f"{manifests.FOLDER}{manifest.backup}.json"
    store.put(place, store.get(place).replace(b'"format":1', b'"format":2', 1))
    with pytest.raises(BackupError, match="format 2; this release reads up to 1"):
        manifests.read(store, manifest.backup)


async def test_objects_of_another_manifest_are_found(tmp_path: Path) -> None:
    """Exclusions that the objects do not know."""
    from dataclasses import replace

    store, manifest = await taken(tmp_path)
    part = next(each for each in manifest.partitions if each.ranges and each.topic == "a")
    for wrong, says in (
        (replace(part, excluded=(10_000,)), "where no commit is stored"),
        (replace(part, opened=(*part.opened, part.opened[0]._replace(producer_id=99)) if part.opened else ()), "open"),
    ):
        if wrong == part:
            continue
        others = tuple(wrong if each is part else each for each in manifest.partitions)
        _, faults = check_backup(store, replace(manifest, partitions=others))
        assert len(faults) == 1 and says in faults[0]


async def test_an_object_store_by_fsspec_is_as_a_folder(tmp_path: Path) -> None:
    history, store = History(2), open_store("memory://backups/orders")
    assert isinstance(store, FsspecStore)
    for _ in range(3):
        history.run(60)
        kept = await history.backup(store, keep=2)
    assert len(manifests.listed(store)) == 2 and len(kept.removed) == 1
    assert check_backup(store, kept.manifest)[1] == []
    with pytest.raises(FileNotFoundError):
        store.get("objects/none")


def test_a_scheme_that_is_not_known_says_so() -> None:
    with pytest.raises(BackupError, match="cannot be used"):
        open_store("nonsense://place")
