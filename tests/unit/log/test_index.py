"""Index files, byte for byte as Kafka writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from hapax.core.partition.machine import AbortedTransaction
from hapax.log.index import OffsetIndex, TimeIndex
from hapax.log.txn_index import append_aborted, cut_aborted, read_aborted
from hapax.runtime.disk import RealDisk, open_folder


@pytest.fixture
def disk(tmp_path: Path) -> RealDisk:
    return open_folder(str(tmp_path))


def content(disk: RealDisk, path: str) -> bytes:
    file = disk.open(path)
    return file.read(0, file.size())


async def test_offset_index_bytes(disk: RealDisk) -> None:
    index = OffsetIndex(disk, "i", 1000, loaded=True)
    index.add(1009, 0)
    index.add(1025, 5000)
    await index.flush()
    assert content(disk, "i").hex() == "00000009" "00000000" "00000019" "00001388"
    index.add(1026, 9999)
    await index.flush()
    await index.flush()
    assert content(disk, "i").hex() == "00000009" "00000000" "00000019" "00001388" "0000001a" "0000270f"


async def test_offset_index_looks_up_what_it_reads_back(disk: RealDisk) -> None:
    index = OffsetIndex(disk, "i", 1000, loaded=True)
    for n in range(1, 100):
        index.add(1000 + 10 * n - 1, 5000 * n)
    await index.flush()
    again = OffsetIndex(disk, "i", 1000, loaded=False)
    again.load()
    for found in (index, again):
        assert found.position_before(1000) == 0
        assert found.position_before(1009) == 0
        assert found.position_before(1010) == 5000
        assert found.position_before(99999) == 99 * 5000
        assert found.batch_start_at_or_below(4999) == 0
        assert found.batch_start_at_or_below(5000) == 5000
        assert found.batch_start_at_or_below(14999) == 10000
    again.truncate(10000)
    again.add(1050, 12345)
    await again.flush()
    assert content(disk, "i").hex() == "00000009" "00001388" "00000032" "00003039"
    again.unload()
    assert len(again) == 0
    again.load()
    assert list(again.positions) == [5000, 12345]


async def test_time_index_bytes_and_lookup(disk: RealDisk) -> None:
    index = TimeIndex(disk, "t", 100, loaded=True)
    index.add(-5, 101)
    index.add(0x1_0000_0002, 110)
    index.add(0x1_0000_0002, 120)
    index.add(7, 130)
    await index.flush()
    index.add(0x1_0000_0003, 140)
    await index.flush()
    assert content(disk, "t").hex() == (
        "fffffffffffffffb" "00000001" "0000000100000002" "0000000a" "0000000100000003" "00000028"
    )
    again = TimeIndex(disk, "t", 100, loaded=False)
    assert again.last() == (0x1_0000_0003, 140)
    again.load()
    assert list(again.timestamps) == [-5, 0x1_0000_0002, 0x1_0000_0003]
    assert again.entry_before(-6) is None
    assert again.entry_before(5) == (-5, 101)
    assert again.entry_before(0x1_0000_0003) == (0x1_0000_0002, 110)
    again.truncate(140)
    assert again.last() == (0x1_0000_0002, 110)


def test_missing_index_files_are_empty(disk: RealDisk) -> None:
    index = OffsetIndex(disk, "missing", 0, loaded=False)
    index.load()
    assert index.position_before(5) == 0
    assert TimeIndex(disk, "missing", 0, loaded=False).last() is None


async def test_txn_index_bytes(disk: RealDisk) -> None:
    first, second = AbortedTransaction(7, 10, 12, 10), AbortedTransaction(8, 11, 20, 21)
    await append_aborted(disk, "x", [first])
    file = disk.open("x")
    file.append([b"torn"])
    file.close()
    await append_aborted(disk, "x", [second])
    assert content(disk, "x").hex() == (
        "0000" "0000000000000007" "000000000000000a" "000000000000000c" "000000000000000a"
        "0000" "0000000000000008" "000000000000000b" "0000000000000014" "0000000000000015"
    )
    assert read_aborted(disk, "x") == [first, second]
    cut_aborted(disk, "x", 20)
    assert read_aborted(disk, "x") == [first]
    cut_aborted(disk, "missing", 0)
    assert read_aborted(disk, "missing") == []
