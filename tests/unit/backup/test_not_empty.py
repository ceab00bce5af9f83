"""Which clusters a restore takes for empty, or for its own that was interrupted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hapax.backup.errors import BackupError
from hapax.backup.restoring import Restorer
from hapax.backup.store import FolderStore
from hapax.client.admin import TopicInfo, TransactionInfo
from unit.backup.history import History
from unit.backup.test_at_the_same_time import Empty


class Begun(Exception):
    """The restore would change the cluster now."""


class There(Empty):
    """A cluster with these topics, none of which is being restored, and transactional ids."""

    def __init__(self, topics: list[str], ids: list[TransactionInfo]) -> None:
        super().__init__("")
        self.topics = dict.fromkeys(topics, "")
        self.ids = ids

    async def topics_by_kind(self) -> tuple[list[TopicInfo], list[TopicInfo]]:
        return [TopicInfo(name, "", ()) for name in self.topics], []

    async def list_transactions(self) -> list[Any]:
        return self.ids

    async def reserve_producer_ids(self, floor: int) -> None:
        raise Begun


async def restore(folder: Path, topics: list[str], *ids: tuple[str, int, str]) -> str:
    """Into a cluster with these topics and ids: (name, producer id above the backup's floor, state). Returns why it is
    refused, or ""."""
    history, store = History(3), FolderStore(folder)
    history.run(60)
    manifest = (await history.backup(store)).manifest
    floor = manifest.producer_id_floor
    there = There(topics, [TransactionInfo(name, floor + above, state) for name, above, state in ids])
    try:
        await Restorer(there, store, manifest).restore()  # type: ignore[arg-type]
    except BackupError as error:
        return str(error)
    except Begun:
        return ""
    raise AssertionError("nothing was reserved")


async def test_an_interrupted_restore_has_left_ids_without_topics(tmp_path: Path) -> None:
    assert await restore(tmp_path, [], ("t0", 0, "Empty"), ("t1", 5, "Empty")) == ""


@pytest.mark.parametrize("used", [("t1", -1, "Empty"), ("t1", 5, "Ongoing"), ("another", 5, "Empty")], ids=str)
async def test_ids_that_it_cannot_have_left_are_in_use(used: tuple[str, int, str], tmp_path: Path) -> None:
    assert f"it has the transactional id {used[0]!r}" in await restore(tmp_path, [], ("t0", 0, "Empty"), used)


async def test_a_restore_that_was_interrupted_after_its_last_step(tmp_path: Path) -> None:
    for topics, finished in ((["a", "b"], True), (["a"], False), (["a", "b", "c"], False)):
        refused = await restore(tmp_path / str(len(topics)), topics)
        assert "the cluster is not empty" in refused
        assert ("nothing is left to do" in refused) is finished
