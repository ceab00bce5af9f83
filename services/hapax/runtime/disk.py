"""The real disk port: the files below one data folder.

Reads and writes are system calls on the loop: they reach the page cache, which takes microseconds. Calls that may wait
for the device (`sync`, `read_ahead`) run in a few threads, so that the loop never blocks (rule 18).

A data folder belongs to one process: `open_folder` holds an exclusive lock on it until the process ends.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import queue
import shutil
import stat
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from hapax.runtime.ports import File, FolderClosed

Bytes = bytes | bytearray | memoryview
T = TypeVar("T")

_LOCK_FILE: Final = ".lock"
_IOV_MAX: Final = 1024
_READ_AHEAD_STEP: Final = 1 << 20
_PROBE_STEP: Final = 128 << 10
"""The kernel's read-ahead window in bytes. A range counts as cached if one byte of each window is cached."""

_NOT_OPEN: Final = (errno.EBADF, errno.EINVAL)
"""Errors of a sync whose file was closed before a thread started it, because its caller was cancelled."""


class FolderInUse(Exception):
    """Another process holds the data folder."""


class RealFile:
    """An open file of `RealDisk`; see `ports.File`."""

    __slots__ = ("_disk", "_fd", "_size", "path")

    def __init__(self, disk: RealDisk, path: str, fd: int) -> None:
        self._disk = disk
        self._fd = fd
        self._size = os.fstat(fd).st_size
        self.path = path

    @property
    def fd(self) -> int:
        return self._fd

    def size(self) -> int:
        return self._size

    def append(self, chunks: Sequence[Bytes]) -> int:
        start = self._size
        if len(chunks) == 1:
            wanted = len(chunks[0])
            written = os.pwrite(self._fd, chunks[0], start)
        else:
            wanted = sum(map(len, chunks))
            written = os.pwritev(self._fd, chunks[:_IOV_MAX], start)
        if written != wanted:
            self._write_rest(b"".join(chunks), written)
        self._size = start + wanted
        return start

    def _write_rest(self, data: bytes, written: int) -> None:
        """A short write is legal. The next call raises its cause (ENOSPC) or continues."""
        view = memoryview(data)
        while written < len(data):
            written += os.pwrite(self._fd, view[written:], self._size + written)

    def write_at(self, position: int, data: bytes) -> None:
        view = memoryview(data)
        while view:
            written = os.pwrite(self._fd, view, position)
            view = view[written:]
            position += written
        self._size = max(self._size, position)

    def read(self, position: int, size: int) -> bytes:
        return os.pread(self._fd, size, position)

    def is_cached(self, position: int, size: int) -> bool:
        probe = [bytearray(1)]
        last = min(position + size, self._size) - 1
        try:
            for at in (*range(position, last, _PROBE_STEP), last):
                os.preadv(self._fd, probe, at, os.RWF_NOWAIT)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise
        return True

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)
        self._size = size

    async def sync(self) -> None:
        await self._disk.sync_all((self._fd,))

    async def read_ahead(self, position: int, size: int) -> None:
        await self._disk.off_loop(self._read_through, position, min(position + size, self._size))

    def _read_through(self, position: int, end: int) -> None:
        scratch = bytearray(min(_READ_AHEAD_STEP, max(1, end - position)))
        while position < end:
            read = os.preadv(self._fd, [scratch], position)
            if read == 0:
                return
            position += read

    async def examine(
        self, position: int, size: int, look: Callable[[memoryview], object], *, passing: bool = False
    ) -> None:
        await self._disk.off_loop(self._examine, position, size, look, passing)

    def _examine(self, position: int, size: int, look: Callable[[memoryview], object], passing: bool) -> None:
        cold = passing and not self.is_cached(position, size)
        look(memoryview(os.pread(self._fd, size, position)))
        if cold:
            os.posix_fadvise(self._fd, position, size, os.POSIX_FADV_DONTNEED)

    def modified(self) -> int:
        return os.fstat(self._fd).st_mtime_ns

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class RealFolder:
    """An open folder of `RealDisk`; see `ports.OpenFolder`."""

    __slots__ = ("_disk", "_fd", "path")

    def __init__(self, disk: RealDisk, path: str, fd: int) -> None:
        self.path = path
        self._disk = disk
        self._fd = fd

    def _open_fd(self) -> int:
        if self._fd < 0:
            raise FolderClosed(errno.ENOENT, "the folder was closed", self.path)
        return self._fd

    def open(self, path: str, *, create: bool = False) -> RealFile:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return RealFile(
            self._disk, os.path.join(self.path, path), os.open(path, flags, 0o644, dir_fd=self._open_fd()))

    def exists(self, path: str) -> bool:
        fd = self._open_fd()
        try:
            os.stat(path, dir_fd=fd)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def list(self, path: str = "") -> list[str]:
        fd = self._open_fd()
        try:
            inner = os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=fd)
        except (FileNotFoundError, NotADirectoryError):
            return []
        try:
            return sorted(os.listdir(inner))
        finally:
            os.close(inner)

    def rename(self, old: str, new: str) -> None:
        fd = self._open_fd()
        os.replace(old, new, src_dir_fd=fd, dst_dir_fd=fd)

    def remove(self, path: str) -> None:
        fd = self._open_fd()
        try:
            os.unlink(path, dir_fd=fd)
        except FileNotFoundError:
            return

    def discard(self, path: str) -> None:
        self._off_loop(_discard, path).add_done_callback(_ignore_failure)

    def off_loop(self, call: Callable[..., T], *arguments: object) -> asyncio.Future[T]:
        return self._disk.off_loop(call, *arguments)

    async def sync_folder(self, path: str = "") -> None:
        await self._off_loop(_sync_folder, path)

    async def write_atomically(self, path: str, data: bytes) -> None:
        writing = self._off_loop(_write_atomically, path, data)
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            await asyncio.wait([writing])  # the thread continues, and the file's next write must not overlap it
            raise

    def _off_loop(self, call: Callable[..., None], *arguments: object) -> asyncio.Future[None]:
        """The call gets a separate handle, because this one may be closed before a thread starts it."""
        return self._disk.off_loop(_with_handle, os.dup(self._open_fd()), call, arguments)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class RealDisk(RealFolder):
    """The files below one data folder; see `ports.Disk`. Created by `open_folder`."""

    def __init__(self, root: str, lock_fd: int, threads: int) -> None:
        super().__init__(self, "", os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        self.root = root
        self._lock_fd = lock_fd
        self._threads = threads
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._workers: list[threading.Thread] = []
        self._busy = 0
        self._sync_failure: OSError | None = None

    def folder(self, path: str) -> RealFolder:
        self.make_folder(path)
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._open_fd())
        return RealFolder(self, path, fd)

    def make_folder(self, path: str) -> None:
        os.makedirs(os.path.join(self.root, path), exist_ok=True)

    def remove_tree(self, path: str) -> None:
        if self.exists(path):
            shutil.rmtree(path, dir_fd=self._open_fd())

    async def sync_files(self, files: Sequence[File]) -> None:
        await self.sync_all([file.fd for file in files])

    async def sync_all(self, fds: Sequence[int]) -> None:
        """fdatasync of open files, off the loop. Raises OSError, also if an earlier sync failed: the kernel reports a
        failure only once, and the caller of that sync may have been cancelled before."""
        self._check_synced()
        await self.off_loop(self._sync_in_thread, fds)

    def _sync_in_thread(self, fds: Sequence[int]) -> None:
        try:
            for fd in fds:
                os.fdatasync(fd)
        except OSError as error:
            if error.errno not in _NOT_OPEN:
                self._sync_failure = error
            raise
        self._check_synced()

    def _check_synced(self) -> None:
        failure = self._sync_failure
        if failure is not None:
            raise OSError(failure.errno, f"an earlier sync failed: {failure.strerror}")

    def free_bytes(self) -> int:
        usage = os.statvfs(self.root)
        return usage.f_bavail * usage.f_frsize

    def off_loop(self, call: Callable[..., T], *arguments: object) -> asyncio.Future[T]:
        """Runs a call that may wait for the device, or takes long, in one of this disk's threads.

        It uses a plain queue and one wake-up of the loop, at half the cost of `run_in_executor`, because every
        acknowledged write takes this path.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._busy += 1
        if self._busy > len(self._workers) < self._threads:
            worker = threading.Thread(target=_work, args=(self._jobs,), name="disk", daemon=True)
            self._workers.append(worker)
            worker.start()
        self._jobs.put((loop, future, call, arguments, self))
        return future

    def _finish(self, future: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
        self._busy -= 1
        if future.cancelled():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    def close(self) -> None:
        """Waits for running calls, then releases the folder."""
        for _ in self._workers:
            self._jobs.put(None)
        for worker in self._workers:
            worker.join()
        self._workers.clear()
        super().close()
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1


_Job = tuple[
    asyncio.AbstractEventLoop, "asyncio.Future[Any]", Callable[..., object], tuple[object, ...], RealDisk
]


def _work(jobs: queue.SimpleQueue[_Job | None]) -> None:
    while (job := jobs.get()) is not None:
        loop, future, call, arguments, disk = job
        result, error = None, None
        try:
            result = call(*arguments)
        except BaseException as e:
            error = e
        try:
            loop.call_soon_threadsafe(disk._finish, future, result, error)
        except RuntimeError:
            return  # The loop was closed, so no task waits.


def _with_handle(folder: int, call: Callable[..., None], arguments: tuple[object, ...]) -> None:
    try:
        call(folder, *arguments)
    finally:
        os.close(folder)


def _discard(folder: int, path: str) -> None:
    if stat.S_ISDIR(os.stat(path, dir_fd=folder).st_mode):
        shutil.rmtree(path, dir_fd=folder)
    else:
        os.unlink(path, dir_fd=folder)


def _ignore_failure(future: asyncio.Future[None]) -> None:
    """A file that could not be removed is found again at the next start."""
    if not future.cancelled():
        future.exception()


def _sync_folder(folder: int, path: str) -> None:
    fd = os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _write_atomically(folder: int, path: str, data: bytes) -> None:
    new = path + ".tmp"
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644, dir_fd=folder)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view):]
        os.fsync(fd)
    finally:
        os.close(fd)
    os.replace(new, path, src_dir_fd=folder, dst_dir_fd=folder)
    _sync_folder(folder, os.path.dirname(path))


def open_folder(root: str, threads: int = 4) -> RealDisk:
    """Creates the folder if it is missing, and locks it. Raises FolderInUse."""
    os.makedirs(root, exist_ok=True)
    lock_fd = os.open(os.path.join(root, _LOCK_FILE), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock_fd)
        raise FolderInUse(f"data folder {root} is in use by another process") from None
    return RealDisk(root, lock_fd, threads)
