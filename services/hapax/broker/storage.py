"""Refuses writes while the disk is full or failing, and accepts them again when it has recovered (rule 13)."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from typing import Final, Protocol

from hapax.runtime import supervision, telemetry
from hapax.runtime.ports import Disk, FolderClosed, Randomness, Task

log = telemetry.logger("storage")

PROBE_EVERY_S: Final = 1.0
_PROBE_BYTES: Final = 1 << 20
_PROBE_LIMIT_S: Final = 1.0
"""A probe that takes longer counts as failed."""
_RESERVE_BYTES: Final = 8 << 20
"""Free bytes required before writes are accepted again. With less, the next small writes would fail again."""
_PROBE_FILE: Final = "space-probe.tmp"
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


class Refusing(Protocol):
    """A partition that can stop accepting writes."""

    name: str
    storage_error: str


class StorageGuard:
    """Tracks the partitions that refuse writes, and lets them accept writes once a probe was written and synced."""

    def __init__(
        self, disk: Disk, random: Randomness, on_standing: Callable[[str], None] = lambda standing: None
    ) -> None:
        """`on_standing(reason)`: why the broker should lead no partition that another broker can lead; "": no
        reason."""
        self._disk = disk
        self._random = random
        self._on_standing = on_standing
        self._refusing: list[Refusing] = []
        self._slow = False
        self._prober: Task | None = None

    def failed(self, partition: Refusing, error: OSError) -> None:
        """A write of the partition failed, and its torn tail was cut. The partition refuses writes from now on. A log
        that was closed, because its replica went away, says nothing of the disk."""
        if partition.storage_error or isinstance(error, FolderClosed):
            return
        partition.storage_error = describe(error)
        self._refusing.append(partition)
        log.error(
            "refusing writes until the disk accepts them again", partition=partition.name,
            reason=partition.storage_error, free_bytes=self._disk.free_bytes(),
        )
        self._watch("full disk" if error.errno in _FULL else "failing disk")

    def slow(self) -> None:
        """A sync takes very long. Writes are still accepted, because this may be the only replica."""
        if not self._slow:
            self._slow = True
            log.error("a sync takes very long: giving up leaderships until the disk is fast again")
            self._watch("slow disk")

    def _watch(self, standing: str) -> None:
        self._on_standing(standing)
        if self._prober is None:
            self._prober = supervision.keep(self._probe, "storage-probe", self._random)

    async def _probe(self) -> None:
        while self._refusing or self._slow:
            await asyncio.sleep(PROBE_EVERY_S)
            began = asyncio.get_running_loop().time()
            if not await self._is_well() or asyncio.get_running_loop().time() - began > _PROBE_LIMIT_S:
                continue
            for partition in self._refusing:
                partition.storage_error = ""
                log.info("accepting writes again", partition=partition.name, free_bytes=self._disk.free_bytes())
            self._refusing.clear()
            self._slow = False
        self._prober = None
        self._on_standing("")

    async def _is_well(self) -> bool:
        if self._disk.free_bytes() < _RESERVE_BYTES:
            return False
        try:
            await self._disk.write_atomically(_PROBE_FILE, bytes(_PROBE_BYTES))
        except OSError:
            return False
        self._disk.remove(_PROBE_FILE)
        return True

    async def close(self) -> None:
        await supervision.end(self._prober)


def describe(error: OSError) -> str:
    """`no space left on the disk`, or the system's error text."""
    if error.errno in _FULL:
        return "no space left on the disk"
    return f"the disk refused a write: {error.strerror or error}"
