"""A disk that forgets what was not synced.

Content lives twice: as the process sees it (page cache) and as it would be after a power cut. `sync` copies the one
to the other; a crash falls back to the durable copy plus, as real disks do, a seeded prefix of the bytes written
since. Names (create, rename, remove) become durable with `sync_folder`; unsynced ones survive or not by the seed.
"""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Callable, Sequence
from typing import Final

from hapax_sim.loop import SimLoop, SimProcess

_HOLE_SHARE: Final = 0.25
"""Power cuts after which a stretch within the unsynced tail is zero, since pages are written in any order."""


class _Inode:
    """A file's content, as processes see it (`data`) and as it is on the platter (`durable`)."""

    __slots__ = ("data", "dirty_from", "durable", "evicted", "in_flight", "lost")

    def __init__(self, data: bytes | bytearray = b"") -> None:
        self.data = bytearray(data)
        self.durable = bytearray()
        self.evicted = False
        """It is not in the page cache: the next read comes from the platter."""
        self.dirty_from: int | None = None
        """Lowest position changed since the last sync began."""
        self.in_flight: list[tuple[int, bytes]] = []
        """What syncs under way are writing: (position, everything from there on as it was then)."""
        self.lost: list[tuple[int, int]] = []
        """Ranges whose sync failed: the page cache shows them, no later sync writes them (fsync's worst habit)."""

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
        """It and every sync that began before it are on the platter."""
        if not any(one is writing for one in self.in_flight):
            return  # a later one was faster, and took this along
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
        """What is left: the synced bytes and, as real disks do, a seeded part of those written since."""
        marks = [position for position, _ in self.in_flight]
        if self.dirty_from is not None:
            marks.append(self.dirty_from)
        begin = min(marks, default=len(self.data))
        unsynced = bytearray(memoryview(self.data)[begin:])
        del unsynced[rng.randrange(0, len(unsynced) + 1) :]
        if len(unsynced) > 1 and rng.random() < _HOLE_SHARE:
            hole = rng.randrange(0, len(unsynced))
            size = rng.randrange(1, len(unsynced) - hole + 1)
            unsynced[hole : hole + size] = bytes(size)
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
    """What stays when processes of one machine come and go. `mount` gives a process its Disk port."""

    def __init__(self, loop: SimLoop, rng: random.Random, capacity: int = 1 << 40) -> None:
        self.loop = loop
        self.rng = rng
        self.capacity = capacity
        self.names: dict[str, _Inode] = {}
        self.durable_names: dict[str, _Inode] = {}
        self.unsynced_names: dict[str, None] = {}
        """Names that may lead elsewhere in `names` than in `durable_names`."""
        self.folders: set[str] = {""}
        self.sync_delay = (0.0001, 0.0008)
        self.fail_syncs = 0
        """So many syncs from now on fail with EIO."""
        self.fail_writes = 0
        """So many writes from now on leave a part of their bytes and fail with EIO."""

    def mount(self, process: SimProcess) -> SimDisk:
        return SimDisk(self, process)

    def used(self) -> int:
        return sum(len(node.data) for node in self.names.values())

    def power_cut(self) -> None:
        """After a crash of the machine: only durable names and bytes, plus a torn part of what was in flight."""
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

    def flip_bit(self, name: str, position: int) -> None:
        """What the platter gives back is not what was written, and nobody says so."""
        node = self.names[name]
        node.evicted = True
        for content in (node.data, node.durable):
            if position < len(content):
                content[position] ^= 1 << self.rng.randrange(8)


class SimFile:
    def __init__(self, disk: SimDisk, path: str, node: _Inode) -> None:
        self._disk, self._node, self.path = disk, node, path

    @property
    def fd(self) -> int:
        raise OSError(errno.EBADF, "a simulated file has no descriptor: use read()")

    def size(self) -> int:
        return len(self._node.data)

    def append(self, chunks: Sequence[bytes | bytearray | memoryview]) -> int:
        node = self._node
        position = len(node.data)
        node.touch(position)
        store = self._disk.store
        if store.fail_writes:
            store.fail_writes -= 1
            everything = b"".join(chunks)
            node.data += everything[: store.rng.randrange(len(everything) + 1)]
            raise OSError(errno.EIO, "Input/output error")
        for chunk in chunks:
            room = store.capacity - store.used() if store.capacity < 1 << 40 else len(chunk)
            if room < len(chunk):
                node.data += bytes(chunk)[: max(room, 0)]
                raise OSError(errno.ENOSPC, "No space left on device")
            node.data += chunk
        return position

    def write_at(self, position: int, data: bytes) -> None:
        self._node.touch(position)
        self._node.data[position : position + len(data)] = data

    def read(self, position: int, size: int) -> bytes:
        return bytes(memoryview(self._node.data)[position : position + size])

    def truncate(self, size: int) -> None:
        if size < len(self._node.data):
            self._node.touch(size)
            del self._node.data[size:]
        elif size > len(self._node.data):
            self._node.touch(len(self._node.data))
            self._node.data += bytes(size - len(self._node.data))

    async def sync(self) -> None:
        store, node = self._disk.store, self._node
        # What is durable afterwards is what had been written when the sync began, as with a real fdatasync.
        writing = node.begin_sync()
        await asyncio.sleep(store.rng.uniform(*store.sync_delay))
        if store.fail_syncs:
            store.fail_syncs -= 1
            if writing is not None:
                node.fail_sync(writing)
            raise OSError(errno.EIO, "Input/output error")
        if writing is not None:
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
        return 0  # nobody but the platter changes what is there, and that says nothing

    def close(self) -> None:
        pass


class SimDisk:
    """The Disk port of one process."""

    def __init__(self, store: PowerLossDisk, process: SimProcess) -> None:
        self.store, self.process = store, process

    def open(self, path: str, *, create: bool = False) -> SimFile:
        node = self.store.names.get(path)
        if node is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "No such file", path)
            node = self.store.names[path] = _Inode()
            self.store.unsynced_names[path] = None
        return SimFile(self, path, node)

    def exists(self, path: str) -> bool:
        return path in self.store.names or path.rstrip("/") in self.store.folders

    def list(self, path: str) -> list[str]:
        prefix = path.rstrip("/") + "/" if path.strip("/.") else ""
        found = {
            name[len(prefix) :].split("/")[0]
            for name in [*self.store.names, *self.store.folders]
            if name.startswith(prefix) and name != prefix.rstrip("/")
        }
        return sorted(name for name in found if name)

    def make_folder(self, path: str) -> None:
        parts = path.strip("/").split("/")
        for i in range(len(parts)):
            self.store.folders.add("/".join(parts[: i + 1]))

    def rename(self, old: str, new: str) -> None:
        store = self.store
        if old in store.names:
            store.names[new] = store.names.pop(old)
            store.unsynced_names |= {old: None, new: None}
            return
        if old not in store.folders:
            raise FileNotFoundError(errno.ENOENT, "No such file", old)
        for table in (store.names, store.durable_names):
            for name in [n for n in table if n.startswith(old + "/")]:
                renamed = new + name[len(old) :]
                table[renamed] = table.pop(name)
                store.unsynced_names |= {name: None, renamed: None}
        store.folders = {new + f[len(old) :] if f == old or f.startswith(old + "/") else f for f in store.folders}

    def remove(self, path: str) -> None:
        self.store.names.pop(path, None)
        self.store.unsynced_names[path] = None

    def remove_tree(self, path: str) -> None:
        for name in [n for n in self.store.names if n == path or n.startswith(path + "/")]:
            del self.store.names[name]
            self.store.unsynced_names[name] = None
        self.store.folders = {f for f in self.store.folders if f != path and not f.startswith(path + "/")}

    def discard(self, path: str) -> None:
        self.remove_tree(path)

    async def sync_folder(self, path: str) -> None:
        await asyncio.sleep(self.store.rng.uniform(*self.store.sync_delay))
        prefix = path.rstrip("/") + "/" if path.strip("/.") else ""

        store = self.store
        for name in [n for n in store.unsynced_names if n.startswith(prefix) and n.find("/", len(prefix)) < 0]:
            del store.unsynced_names[name]
            if name in store.names:
                store.durable_names[name] = store.names[name]
            else:
                store.durable_names.pop(name, None)

    async def sync_files(self, files: Sequence[SimFile]) -> None:
        for file in files:
            await file.sync()

    async def write_atomically(self, path: str, data: bytes) -> None:
        temporary = path + ".tmp"
        self.store.names[temporary] = node = _Inode(data)
        self.store.unsynced_names[temporary] = None
        node.touch(0)
        await SimFile(self, temporary, node).sync()
        self.rename(temporary, path)
        await self.sync_folder(path.rpartition("/")[0])

    def free_bytes(self) -> int:
        return max(0, self.store.capacity - self.store.used())
