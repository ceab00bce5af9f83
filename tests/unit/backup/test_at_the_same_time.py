"""Two commands at the same time: backups into one place that expire others, and restores into one cluster."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from hapax.backup import manifests
from hapax.backup.cluster import BackedUpCluster
from hapax.backup.errors import BackupError
from hapax.backup.reading import check_backup
from hapax.backup.restoring import Restorer
from hapax.backup.store import FolderStore
from hapax.backup.taking import expire
from hapax.client.admin import ConfigValue, NewTopic, TopicInfo
from hapax.client.errors import HapaxError
from unit.backup.history import History
from unit.backup.test_deleted_topics import Client


class Shared(FolderStore):
    """Another command expires backups just before this one reads a manifest."""

    meanwhile: Any = None

    def get(self, name: str) -> bytes:
        if self.meanwhile is not None and name.startswith(manifests.FOLDER):
            meanwhile, self.meanwhile = self.meanwhile, None
            meanwhile()
        return super().get(name)


async def test_two_commands_expire_the_same_backup(tmp_path: Path) -> None:
    history, store = History(3), Shared(tmp_path)
    for _ in range(3):
        history.run(40)
        taken = await history.backup(store)
    oldest, middle, _ = manifests.listed(store)
    store.meanwhile = lambda: store.delete(f"{manifests.FOLDER}{oldest}.json")
    assert middle in await expire(store, 1, history.now)
    assert manifests.listed(store) == [taken.manifest.backup]
    assert check_backup(store, taken.manifest)[1] == []


async def test_a_damaged_manifest_stops_an_expiry(tmp_path: Path) -> None:
    """Nobody knows which objects it needs."""
    history, store = History(3), FolderStore(tmp_path)
    for _ in range(2):
        history.run(40)
        await history.backup(store)
    before = store.list("")
    store.put(f"{manifests.FOLDER}{manifests.listed(store)[0]}.json", b"{}")
    with pytest.raises(BackupError, match="damaged"):
        await expire(store, 1, history.now)
    assert store.list("") == before


def test_a_folder_is_removed_while_it_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, scandir = FolderStore(tmp_path), os.scandir
    for name in ("objects/a/1", "objects/b/1"):
        store.put(name, b"")

    def scanned(path: Any) -> Any:
        if str(path).endswith("objects/a"):
            store.delete("objects/a/1")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", scanned)
    assert store.list("objects/") == ["objects/b/1"]


def test_a_folder_that_may_not_be_read_is_not_taken_for_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FolderStore(tmp_path)
    store.put("manifests/a", b"")

    def refused(path: Any) -> Any:
        raise PermissionError(path)

    monkeypatch.setattr(os, "scandir", refused)
    with pytest.raises(PermissionError):
        store.list("manifests/")


class Empty:
    """A cluster in which another restore creates the topics first."""

    def __init__(self, other: str) -> None:
        self.topics: dict[str, str] = {}
        self.other = other

    async def topics_by_kind(self) -> tuple[list[TopicInfo], list[TopicInfo]]:
        return [], []

    async def list_transactions(self) -> list[Any]:
        return []

    async def list_groups(self) -> list[Any]:
        return []

    async def reserve_producer_ids(self, floor: int) -> None:
        pass

    async def create_topics(self, topics: list[NewTopic], *, exist_ok: bool) -> None:
        assert exist_ok
        self.topics = {each.name: self.other for each in topics}

    async def topic_config(self, name: str) -> dict[str, ConfigValue]:
        return {"restoring": ConfigValue(self.topics[name], "topic", "", "")}


async def test_two_restores_into_one_cluster_are_not_mixed(tmp_path: Path) -> None:
    history, store = History(3), FolderStore(tmp_path)
    history.run(40)
    manifest = (await history.backup(store)).manifest
    restorer = Restorer(Empty("another"), store, manifest)  # type: ignore[arg-type]
    with pytest.raises(BackupError, match=r"another restore has created the topic 'a' .*, from backup another"):
        await restorer.restore()


class Forgetful(Empty):
    """Its nodes name no topic for some time after it was created. `for_ever`: it was deleted."""

    def __init__(self, backup: str, *, for_ever: bool) -> None:
        super().__init__(backup)
        self.silences = 100 if for_ever else 2
        self._cluster, self._timeout = Client(), 1000

    topic_ids = BackedUpCluster.topic_ids

    async def topics_by_kind(self) -> tuple[list[TopicInfo], list[TopicInfo]]:
        if self.topics:
            self.silences -= 1
        return [TopicInfo(name, f"id of {name}", ()) for name in self.topics if self.silences < 0], []


@pytest.mark.parametrize("deleted", [False, True], ids=["known to no node that lives", "deleted"])
async def test_a_topic_that_was_just_created_is_not_named(deleted: bool, tmp_path: Path) -> None:
    history, store = History(3), FolderStore(tmp_path)
    history.run(40)
    manifest = (await history.backup(store)).manifest
    restorer = Restorer(Forgetful(manifest.backup, for_ever=deleted), store, manifest)  # type: ignore[arg-type]
    if deleted:
        with pytest.raises(HapaxError, match=r"does not name the topic 'a', which this restore has created"):
            await restorer.restore()
    else:
        with pytest.raises(AttributeError, match="import_"):  # the next step
            await restorer.restore()
        assert {*restorer._ids} >= {"a", "b"}
