from __future__ import annotations

import random
from pathlib import Path

import pytest

from hapax.core.types import NodeId
from hapax.runtime.disk import open_folder
from hapax.runtime.node_ids import FILE, FolderRefused, claim_folder, fixed_id, open_ids
from hapax.runtime.settings import Settings


async def test_a_folder_keeps_its_identity_and_refuses_another_cluster_or_node(tmp_path: Path) -> None:
    disk = open_folder(str(tmp_path))
    made = await claim_folder(disk, "c1", NodeId(3), random.Random(1))
    assert len(made.directory_id) == 32
    assert await claim_folder(disk, "c1", NodeId(3), random.Random(2)) == made
    with pytest.raises(FolderRefused, match=r"cluster\.id=c1, but this process has cluster\.id=c2"):
        await claim_folder(disk, "c2", NodeId(3), random.Random(1))
    with pytest.raises(FolderRefused, match=r"node\.id=3, but this process has node\.id=4"):
        await claim_folder(disk, "c1", NodeId(4), random.Random(1))
    disk.close()


async def test_a_folder_of_whoever_takes_a_free_id_names_none(tmp_path: Path) -> None:
    disk = open_folder(str(tmp_path))
    made = await claim_folder(disk, "c1", None, random.Random(1))
    assert made.node_id is None and await claim_folder(disk, "c1", None, random.Random(2)) == made
    with pytest.raises(FolderRefused, match=r"cluster\.id=c1, but this process has cluster\.id=c2"):
        await claim_folder(disk, "c2", None, random.Random(1))
    with pytest.raises(FolderRefused, match=r"node\.id=None, but this process has node\.id=200"):
        await claim_folder(disk, "c1", NodeId(200), random.Random(1))
    disk.close()


def test_ids_are_fixed_or_of_a_hundred() -> None:
    own, choosing = Settings(node_id=201), Settings(node_id=200, node_id_generation_enable=True)
    assert (fixed_id(own), list(open_ids(own))) == (201, [])
    assert (fixed_id(choosing), open_ids(choosing)) == (None, range(200, 300))


async def test_a_file_of_kafka_is_read_and_a_damaged_one_refused(tmp_path: Path) -> None:
    disk = open_folder(str(tmp_path))
    (tmp_path / FILE).write_text("#\n#Sat Jan 31 12:00:00 UTC 2026\nnode.id=1\nversion=1\ncluster.id=c1\n")
    assert (await claim_folder(disk, "c1", NodeId(1), random.Random(1))).directory_id == ""
    (tmp_path / FILE).write_bytes(b"\xff\xfe garbage")
    with pytest.raises(FolderRefused, match=r"cluster\.id=None"):
        await claim_folder(disk, "c1", NodeId(1), random.Random(1))
    disk.close()
