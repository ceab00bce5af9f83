"""A disk that loses unsynced writes.

Each content exists twice: as the process sees it (page cache) and as it would be after a power cut. `sync` copies the
first to the second. A crash restores the durable copy and, as on real disks, a seeded prefix of the bytes written
since. Names (create, rename, remove) become durable with `sync_folder`. The seed decides which unsynced ones survive.
"""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from hapax.runtime.ports import FolderClosed
from hapax_sim.loop import SimLoop, SimProcess

T = TypeVar("T")
_HOLE_SHARE: Final = 0.25
"""Share of power cuts after which a part of the unsynced tail is zero, because pages are written in any order."""


class _Inode:
    """A file's content, as processes see it (`data`) and as it is on the medium (`durable`)."""

    __slots__ = ("data", "dirty_from", "durable", "evicted", "in_flight", "lost")

    def __init__(self, data: bytes | bytearray = b"") -> None:
        self.data = bytearray(data)
        self.durable = bytearray()
        self.evicted = False
        """It is not in the page cache: the next read comes from the medium."""
        self.dirty_from: int | None = None
        """Lowest position changed since the last sync began."""
        self.in_flight: list[tuple[int, bytes]] = []
        """What the running syncs write: (position, everything from there on, as it was when the sync began)."""
        self.lost: list[tuple[int, int]] = []
        """Ranges whose sync failed: the page cache shows them, and no later sync writes them (fsync's worst
        property)."""

    def touch(self, position: int) -> None:
        self.dirty_from = position if self.dirty_from is None else min(self.dirty_from, position)
        if self.lost:
            self.lost = [(a, min(b, position)) for a, b in self.lost if a < position]

    def begin_sync(self) -> tuple[int, bytes] | None:
        if self.dirty_from is None:
            return self.in_flight[-1] if self.in_flight else None
        writing = (self.dirty_from, bytes(memoryview(self.data)[self.dirty_from :]))
        self.dirty_from = None
        self.in_flight.append(writing)
        return writing

    def finish_sync(self, writing: tuple[int, bytes]) -> None:
        """This sync and all syncs that began before it are on the medium."""
        if not any(one is writing for one in self.in_flight):
            return  # a later sync was faster and included this one
        while self.in_flight:
            one = self.in_flight.pop(0)
            position, data = one
            if len(self.durable) < position:
                self.durable += bytes(position - len(self.durable))
            del self.durable[position:]
            self.durable += data
            for begin, end in self.lost:
                self.durable[begin:end] = bytes(max(0, min(end, len(self.durable)) - begin))
            if one is writing:
                break

    def fail_sync(self, writing: tuple[int, bytes]) -> None:
        self.in_flight = [one for one in self.in_flight if one is not writing]
        self.lost.append((writing[0], writing[0] + len(writing[1])))

    def power_cut(self, rng: random.Random) -> None:
        """What remains: the synced bytes and, as on real disks, a seeded part of the bytes written since."""
        marks = [position for position, _ in self.in_flight]
        if self.dirty_from is not None:
            marks.append(self.dirty_from)
        begin = min(marks, default=len(self.data))
        unsynced = bytearray(memoryview(self.data)[begin:])
        del unsynced[rng.randrange(0, len(unsynced) + 1) :]
        if len(unsynced) > 1 and rng.random() < _HOLE_SHARE:
            hole = rng.randrange(0, len(unsynced))
            size = rng.randrange(1, len(unsynced) - hole + 1)
            before = self.durable[begin + hole : begin + hole + size]  # of a sector that was not written
            unsynced[hole : hole + size] = before + bytes(size - len(before))
        content = self.durable[:begin]
        if unsynced:
            content += bytes(begin - len(content)) + unsynced
        content += self.durable[len(content) :]
        for a, b in self.lost:
            content[max(a, begin) : b] = bytes(max(0, min(b, len(content)) - max(a, begin)))
        self.data, self.durable = content, bytearray(content)
        self.dirty_from = None
        self.in_flight, self.lost = [], []


class PowerLossDisk:
    """What remains when processes of one machine start and end. `mount` gives a process its Disk port."""

    def __init__(self, loop: SimLoop, rng: random.Random, capacity: int = 1 << 40) -> None:
        self.loop = loop
        self.rng = rng
        self.capacity = capacity
        self.names: dict[str, _Inode] = {}
        self.durable_names: dict[str, _Inode] = {}
        self.unsynced_names: dict[str, None] = {}
        """Names that may refer to different files in `names` and `durable_names`."""
        self.folders: set[str] = {""}
        self.sync_delay = (0.0001, 0.0008)
        self.fail_syncs = 0
        """The number of coming syncs that fail with EIO."""
        self.fail_writes = 0
        """The number of coming writes that store only some of their bytes and fail with EIO."""
        self.fail_truncates = 0
        """The number of coming truncations that fail with EIO."""
        self.handles: list[SimFolder] = []
        self.about_to: Callable[[str, str], object] = lambda operation, path: None
        """Called before each change of the disk's present content, or of its content after a power cut, with the kind
        of the change and the path. A test may crash the machine there."""

    def mount(self, process: SimProcess) -> SimDisk:
        return SimDisk(self, process)

    def used(self) -> int:
        return sum(len(node.data) for node in self.names.values())

    def power_cut(self) -> None:
        """After a crash of the machine: restores the durable names and bytes, plus a torn part of the writes in
        flight."""
        rng = self.rng
        survivors: dict[str, _Inode] = dict(self.durable_names)
        for name in sorted(self.unsynced_names):
            now, then = self.names.get(name), self.durable_names.get(name)
            if now is not then and rng.random() < 0.5:
                # The unsynced create, rename or remove reached the disk after all.
                if now is None:
                    survivors.pop(name, None)
                else:
                    survivors[name] = now
        for node in {id(n): n for n in survivors.values()}.values():
            node.power_cut(rng)
        self.names = dict(survivors)
        self.durable_names = dict(survivors)
        self.unsynced_names.clear()

    def rename(self, old: str, new: str) -> None:
        self.about_to("rename", old)
        if old in self.names:
            self.names[new] = self.names.pop(old)
            self.unsynced_names |= {old: None, new: None}
            return
        if old not in self.folders:
            raise FileNotFoundError(errno.ENOENT, "No such file", old)
        if any(name.startswith(new + "/") for name in self.names):
            raise OSError(errno.ENOTEMPTY, "Directory not empty", new)
        for table in (self.names, self.durable_names):
            for name in [n for n in table if n.startswith(old + "/")]:
                renamed = new + name[len(old) :]
                table[renamed] = table.pop(name)
                self.unsynced_names |= {name: None, renamed: None}
        self.folders = {new + f[len(old) :] if f == old or f.startswith(old + "/") else f for f in self.folders}
        for handle in self.handles:
            if handle.place is not None and (handle.place == old or handle.place.startswith(old + "/")):
                handle.place = new + handle.place[len(old) :]

    def remove_tree(self, path: str) -> None:
        self.about_to("remove", path)
        for name in [n for n in self.names if n == path or n.startswith(path + "/")]:
            del self.names[name]
            self.unsynced_names[name] = None
        self.folders = {f for f in self.folders if f != path and not f.startswith(path + "/")}
        for handle in self.handles:
            if handle.place is not None and (handle.place == path or handle.place.startswith(path + "/")):
                handle.place = None

    def sync_names_in(self, folder: str) -> None:
        prefix = folder + "/" if folder else ""
        for name in [n for n in self.unsynced_names if n.startswith(prefix) and n.find("/", len(prefix)) < 0]:
            del self.unsynced_names[name]
            if name in self.names:
                self.durable_names[name] = self.names[name]
            else:
                self.durable_names.pop(name, None)

    def flip_bit(self, name: str, position: int) -> None:
        """From now on the disk returns other bytes than were written, without an error."""
        node = self.names[name]
        node.evicted = True
        for content in (node.data, node.durable):
            if position < len(content):
                content[position] ^= 1 << self.rng.randrange(8)


class SimFile:
    def __init__(self, store: PowerLossDisk, path: str, node: _Inode) -> None:
        self._store, self._node, self.path = store, node, path
        self._torn_at = -1
        """The end of the file for its writer, before the torn tail of a failed write. -1: there is no such tail."""

    @property
    def fd(self) -> int:
        raise OSError(errno.EBADF, "a simulated file has no descriptor: use read()")

    def size(self) -> int:
        return len(self._node.data) if self._torn_at < 0 else self._torn_at

    def append(self, chunks: Sequence[bytes | bytearray | memoryview]) -> int:
        node, store, position = self._node, self._store, self.size()
        store.about_to("append", self.path)
        node.touch(position)
        everything = b"".join(chunks)
        if store.fail_writes:
            store.fail_writes -= 1
            self._tear(position, everything[: store.rng.randrange(len(everything) + 1)])
            raise OSError(errno.EIO, "Input/output error")
        room = store.capacity - store.used() if store.capacity < 1 << 40 else len(everything)
        if room < len(everything):
            self._tear(position, everything[: max(room, 0)])
            raise OSError(errno.ENOSPC, "No space left on device")
        node.data[position : position + len(everything)] = everything
        if self._torn_at >= 0:
            self._torn_at = position + len(everything) if position + len(everything) < len(node.data) else -1
        return position

    def _tear(self, position: int, written: bytes) -> None:
        self._node.data[position : position + len(written)] = written
        self._torn_at = position

    def write_at(self, position: int, data: bytes) -> None:
        self._store.about_to("write", self.path)
        self._node.touch(position)
        self._node.data[position : position + len(data)] = data

    def read(self, position: int, size: int) -> bytes:
        return bytes(memoryview(self._node.data)[position : position + size])

    def truncate(self, size: int) -> None:
        if self._store.fail_truncates:
            self._store.fail_truncates -= 1
            raise OSError(errno.EIO, "Input/output error")
        if size != len(self._node.data):
            self._store.about_to("truncate", self.path)
        self._torn_at = -1
        if size < len(self._node.data):
            self._node.touch(size)
            del self._node.data[size:]
        elif size > len(self._node.data):
            self._node.touch(len(self._node.data))
            self._node.data += bytes(size - len(self._node.data))

    async def sync(self) -> None:
        store, node = self._store, self._node
        # What is durable afterwards is what had been written when the sync began, as with a real fdatasync.
        writing = node.begin_sync()
        await asyncio.sleep(store.rng.uniform(*store.sync_delay))
        if store.fail_syncs:
            store.fail_syncs -= 1
            if writing is not None:
                node.fail_sync(writing)
            raise OSError(errno.EIO, "Input/output error")
        if writing is not None:
            store.about_to("sync", self.path)
            node.finish_sync(writing)

    def is_cached(self, position: int, size: int) -> bool:
        return not self._node.evicted

    async def read_ahead(self, position: int, size: int) -> None:
        self._node.evicted = False
        await asyncio.sleep(0)

    async def examine(
        self, position: int, size: int, look: Callable[[memoryview], object], *, passing: bool = False
    ) -> None:
        await asyncio.sleep(0)
        self._node.evicted = False
        look(memoryview(bytes(memoryview(self._node.data)[position : position + size])))

    def modified(self) -> int:
        return 0  # only the medium itself changes bytes there, and it does so without notice

    def close(self) -> None:
        pass


class SimFolder:
    """An open folder of one process."""

    def __init__(self, store: PowerLossDisk, process: SimProcess, path: str) -> None:
        self.store, self.process, self.path = store, process, path
        self.place: str | None = path
        """Its present path. None: it was removed."""
        self._closed = False

    def _at(self, path: str) -> str:
        if self._closed:
            raise FolderClosed(errno.ENOENT, "the folder was closed", self.path)
        if self.place is None:
            raise FileNotFoundError(errno.ENOENT, "No such file", path)
        return "/".join(part for part in (self.place, path.strip("/")) if part)

    def open(self, path: str, *, create: bool = False) -> SimFile:
        full = self._at(path)
        node = self.store.names.get(full)
        if node is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "No such file", full)
            self.store.about_to("create", full)
            node = self.store.names[full] = _Inode()
            self.store.unsynced_names[full] = None
        return SimFile(self.store, full, node)

    def exists(self, path: str) -> bool:
        full = self._at(path)
        return full in self.store.names or full in self.store.folders

    def list(self, path: str = "") -> list[str]:
        full = self._at(path)
        prefix = full + "/" if full else ""
        found = {
            name[len(prefix) :].split("/")[0]
            for name in [*self.store.names, *self.store.folders]
            if name.startswith(prefix) and name != full
        }
        return sorted(name for name in found if name)

    def rename(self, old: str, new: str) -> None:
        self.store.rename(self._at(old), self._at(new))

    def remove(self, path: str) -> None:
        full = self._at(path)
        if full in self.store.names:
            self.store.about_to("remove", full)
            del self.store.names[full]
            self.store.unsynced_names[full] = None

    def discard(self, path: str) -> None:
        self.store.remove_tree(self._at(path))

    async def off_loop(self, call: Callable[..., T], *arguments: object) -> T:
        """What the loop does meanwhile comes before the call's result."""
        store = self.store
        await asyncio.sleep(store.rng.uniform(*store.sync_delay))
        return call(*arguments)

    async def sync_folder(self, path: str = "") -> None:
        self._at(path)
        await self._sync_place(path)

    async def write_atomically(self, path: str, data: bytes) -> None:
        temporary, store = path + ".tmp", self.store
        full = self._at(temporary)
        store.about_to("create", full)
        store.names[full] = node = _Inode(data)
        store.unsynced_names[full] = None
        node.touch(0)
        await SimFile(store, full, node).sync()
        if self.place is not None:
            place = self.place + "/" if self.place else ""
            store.rename(place + temporary, place + path)
            await self._sync_place(path.rpartition("/")[0])

    async def _sync_place(self, path: str) -> None:
        """Also for a handle that was closed meanwhile, because operations in progress continue."""
        store = self.store
        await asyncio.sleep(store.rng.uniform(*store.sync_delay))
        if self.place is not None:
            full = "/".join(part for part in (self.place, path.strip("/")) if part)
            store.about_to("sync folder", full)
            store.sync_names_in(full)

    def close(self) -> None:
        self._closed = True
        if self in self.store.handles:
            self.store.handles.remove(self)


class SimDisk(SimFolder):
    """The Disk port of one process."""

    def __init__(self, store: PowerLossDisk, process: SimProcess) -> None:
        super().__init__(store, process, "")

    def folder(self, path: str) -> SimFolder:
        self.make_folder(path)
        opened = SimFolder(self.store, self.process, path)
        self.store.handles.append(opened)
        return opened

    def make_folder(self, path: str) -> None:
        parts = path.strip("/").split("/")
        for i in range(len(parts)):
            self.store.folders.add("/".join(parts[: i + 1]))

    def remove_tree(self, path: str) -> None:
        self.store.remove_tree(self._at(path))

    async def sync_files(self, files: Sequence[SimFile]) -> None:
        for file in files:
            await file.sync()

    def free_bytes(self) -> int:
        return max(0, self.store.capacity - self.store.used())
