"""The real disk port against a real folder."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from pathlib import Path

import pytest

from hapax.runtime import disk as disk_module
from hapax.runtime.disk import FolderInUse, RealDisk, open_folder
from hapax.runtime.ports import FolderClosed


@pytest.fixture
def disk(tmp_path: Path) -> RealDisk:
    return open_folder(str(tmp_path / "data"))


def test_append_returns_where_the_bytes_begin(disk: RealDisk) -> None:
    file = disk.open("a", create=True)
    assert file.append([b"one"]) == 0
    assert file.append([b"two", memoryview(b"three"), bytearray(b"4")]) == 3
    assert file.size() == 12
    assert file.read(0, 100) == b"onetwothree4"
    file.truncate(4)
    assert file.append([b"X"]) == 4
    assert file.read(0, 100) == b"onetX"


def test_a_reopened_file_is_appended_to_at_its_end(disk: RealDisk) -> None:
    disk.open("a", create=True).append([b"one"])
    assert disk.open("a").append([b"two"]) == 3


def test_open_of_a_missing_file_fails_unless_it_may_be_made(disk: RealDisk) -> None:
    with pytest.raises(FileNotFoundError):
        disk.open("missing")


def test_more_chunks_than_one_writev_takes(disk: RealDisk) -> None:
    file = disk.open("a", create=True)
    chunks = [bytes([i % 256]) for i in range(3000)]
    file.append(chunks)
    assert file.read(0, 4000) == b"".join(chunks)


def test_a_short_write_goes_on_and_a_full_disk_leaves_a_torn_tail(
    disk: RealDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = disk.open("a", create=True)
    file.append([b"before"])
    real = os.pwrite
    calls: list[int] = []

    def short_then_full(fd: int, data: bytes, position: int) -> int:
        calls.append(position)
        if len(calls) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data[:4], position)

    monkeypatch.setattr(disk_module.os, "pwrite", short_then_full)
    with pytest.raises(OSError, match="No space left"):
        file.append([b"0123456789ab"])
    assert calls == [6, 10, 14]
    assert file.size() == 6, "the torn tail lies behind the end"
    assert file.read(0, 100) == b"before01234567"
    file.truncate(6)
    monkeypatch.setattr(disk_module.os, "pwrite", real)
    file.append([b"!"])
    assert file.read(0, 100) == b"before!"


async def test_sync_and_read_ahead_run_off_the_loop(disk: RealDisk) -> None:
    file = disk.open("a", create=True)
    file.append([bytes(1 << 20)])
    await file.sync()
    await file.read_ahead(0, 2 << 20)
    assert file.is_cached(0, 1 << 20)
    assert file.is_cached(1 << 20, 10)


async def test_a_call_that_takes_long_runs_in_a_thread(disk: RealDisk) -> None:
    here, folder = threading.get_ident(), disk.folder("f")
    for port in (disk, folder):
        where, what = await port.off_loop(lambda given: (threading.get_ident(), given), 5)
        assert where != here and what == 5
        with pytest.raises(ZeroDivisionError):
            await port.off_loop(lambda: 1 // 0)
    folder.close()


async def test_a_failed_sync_reaches_the_caller(disk: RealDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(disk_module.os, "fdatasync", fails)
    file = disk.open("a", create=True)
    with pytest.raises(OSError, match="Input/output error"):
        await file.sync()


@pytest.mark.parametrize("together", [False, True])
async def test_a_failed_sync_whose_caller_was_cancelled_is_told_to_the_next_one(
    disk: RealDisk, monkeypatch: pytest.MonkeyPatch, together: bool
) -> None:
    """The kernel reports it once only. A later sync would succeed, though the bytes are gone."""
    file = disk.open("a", create=True)
    started, may_fail = threading.Event(), threading.Event()
    sync = os.fdatasync

    def fails_once(fd: int) -> None:
        monkeypatch.setattr(disk_module.os, "fdatasync", sync)
        started.set()
        may_fail.wait()
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(disk_module.os, "fdatasync", fails_once)
    first = asyncio.ensure_future(file.sync())
    await asyncio.get_running_loop().run_in_executor(None, started.wait)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    may_fail.set()
    while disk._busy:  # noqa: ASYNC110
        await asyncio.sleep(0)
    with pytest.raises(OSError, match="an earlier sync failed") as told:
        await (disk.sync_files([file]) if together else file.sync())
    assert told.value.errno == errno.EIO


async def test_a_file_that_was_closed_before_its_cancelled_sync_began_is_no_failure(disk: RealDisk) -> None:
    other = disk.open("b", create=True)
    closed = os.dup(other.fd)
    os.close(closed)
    with pytest.raises(OSError, match="Bad file descriptor"):
        await disk.sync_all([closed])
    await other.sync()


async def test_write_atomically_replaces_and_leaves_nothing_behind(disk: RealDisk) -> None:
    disk.make_folder("x/y")
    await disk.write_atomically("x/y/f", b"one")
    await disk.write_atomically("x/y/f", b"two")
    await disk.write_atomically("f", b"root")
    assert disk.open("x/y/f").read(0, 10) == b"two"
    assert disk.list("x/y") == ["f"]


def test_names(disk: RealDisk) -> None:
    disk.make_folder("b/c")
    disk.make_folder("b/c")
    disk.open("b/z", create=True)
    disk.open("b/a", create=True)
    assert disk.list("b") == ["a", "c", "z"]
    assert disk.list("missing") == []
    disk.rename("b/a", "b/z")
    disk.remove("b/missing")
    assert disk.list("b") == ["c", "z"]
    disk.remove_tree("b")
    disk.remove_tree("b")
    assert not disk.exists("b")
    assert disk.free_bytes() > 0


async def test_discard_removes_some_time(disk: RealDisk) -> None:
    disk.make_folder("f/g")
    disk.open("f/g/h", create=True).close()
    disk.open("x", create=True).close()
    for name in ("f", "x", "missing"):
        disk.discard(name)
    disk.close()  # waits for what is under way
    assert not (Path(disk.root) / "f").exists()
    assert not (Path(disk.root) / "x").exists()


async def test_what_is_done_by_a_folders_handle_follows_the_folder_not_its_name(disk: RealDisk) -> None:
    opened = disk.folder("t-0")
    opened.open("a", create=True).append([b"old"])
    disk.rename("t-0", "t-0.gone")
    disk.folder("t-0").close()
    await opened.write_atomically("b", b"old")
    opened.rename("a", "c")
    await opened.sync_folder()
    assert disk.list("t-0") == []
    assert disk.list("t-0.gone") == opened.list() == ["b", "c"]
    opened.remove("b")
    opened.discard("c")
    writing = asyncio.ensure_future(opened.write_atomically("d", b"under way"))
    await asyncio.sleep(0)
    opened.close()
    await writing  # it has a handle of its own
    for call in (
        lambda: opened.open("x", create=True), lambda: opened.exists("d"), lambda: opened.remove("d"), opened.list,
    ):  # fmt: skip
        with pytest.raises(FolderClosed):
            call()
    assert disk.exists("t-0.gone/d")


def test_a_folder_belongs_to_one_process(tmp_path: Path) -> None:
    first = open_folder(str(tmp_path))
    with pytest.raises(FolderInUse, match="in use by another process"):
        open_folder(str(tmp_path))
    first.close()
    open_folder(str(tmp_path)).close()
