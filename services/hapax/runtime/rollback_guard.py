"""Refuses a metadata store that was rolled back, for example restored from an old backup (rule 12)."""

from __future__ import annotations

import asyncio
import json
from typing import Final

from hapax.runtime import supervision, telemetry
from hapax.runtime.ports import Disk

log = telemetry.logger("metadata")

FILE: Final = "metadata-seen.json"
_WRITE_EVERY_S: Final = 1.0


class StoreRefused(Exception):
    """The metadata store is behind what this node has seen, or is another cluster's. The service must stop."""


class RollbackGuard:
    """Remembers the cluster id and the highest revision, producer id and producer-id counter that this node has seen.
    Kept in the data folder if there is one, otherwise for the life of the process.

    The file is written at most once per second, and at once when a block of producer ids is handed out. Its values are
    lower bounds: a stale file detects less, but never refuses a good store.

    A log that proves a store wrong cannot prove it again after the store has moved on. Such a refusal is therefore
    stored too, and ends every later start until an operator removes the file.
    """

    def __init__(self, cluster_id: str, disk: Disk | None = None) -> None:
        self.cluster_id = cluster_id
        self.revision = 0
        self.producer_id = -1
        """Highest producer id in use: found in a log, or handed to this node; -1: none."""
        self.producer_ids_below = 0
        """The store's counter: all ids handed out to any node are below it."""
        self.refused = ""
        self._disk = disk
        self._dirty = False
        self._writer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None
        if disk is not None and disk.exists(FILE):
            self._load(disk)

    def _load(self, disk: Disk) -> None:
        file = disk.open(FILE)
        try:
            fields = json.loads(file.read(0, file.size()))
            owner, self.revision, self.producer_id = (
                fields["cluster_id"], int(fields["revision"]), int(fields["producer_id"]))
            self.producer_ids_below = int(fields.get("producer_ids_below", 0))
            self.refused = str(fields.get("refused", ""))
        except (ValueError, KeyError, TypeError) as error:
            raise StoreRefused(f"{FILE} is damaged ({error!r}): what this node has seen is not known") from error
        finally:
            file.close()
        if owner != self.cluster_id:
            raise StoreRefused(f"this data folder belongs to cluster {owner!r}, not to {self.cluster_id!r}")
        if self.refused:
            raise StoreRefused(f"{self.refused}. Put the right store in place, then remove {FILE} from this folder")

    def check_revision(self, revision: int) -> None:
        """Raises StoreRefused if the store's revision is behind the highest one seen; otherwise remembers it."""
        if revision < self.revision:
            raise StoreRefused(
                f"the metadata store is at revision {revision}, but this node has seen {self.revision}: "
                "it was restored from an old backup or lost writes; refusing to follow it"
            )
        if revision > self.revision:
            self.revision = revision
            self._note()

    def note_producer_id(self, producer_id: int) -> None:
        """Remembers a producer id in use: the allocator's counter must be above it."""
        if producer_id > self.producer_id:
            self.producer_id = producer_id
            self._note(0.0)

    def note_counter(self, next_producer_id: int) -> None:
        if next_producer_id > self.producer_ids_below:
            self.producer_ids_below = next_producer_id
            self._note(0.0)

    def refuse(self, reason: str) -> None:
        """Stores the refusal, so that later starts are refused too."""
        self.refused = reason
        self._note(0.0)

    def check_producer_counter(self, next_producer_id: int) -> None:
        """Raises StoreRefused if the store would hand out an id a second time."""
        if next_producer_id <= self.producer_id:
            raise StoreRefused(
                f"the metadata store would hand out producer id {next_producer_id}, but {self.producer_id} is in "
                "use already: it was restored from an old backup; refusing to allocate"
            )

    def _note(self, after_s: float = _WRITE_EVERY_S) -> None:
        self._dirty = True
        if self._disk is not None and (self._writer is None or after_s == 0.0):
            if self._writer is not None:
                self._writer.cancel()
            self._writer = asyncio.get_running_loop().call_later(after_s, self._start_write)

    def _start_write(self) -> None:
        self._writer = None
        if self._writing is not None and not self._writing.done():
            self._note()
        else:
            self._writing = supervision.once(self._write(), "metadata-seen")

    async def _write(self) -> None:
        if self._disk is None or not self._dirty:
            return
        self._dirty = False
        fields: dict[str, object] = {
            "v": 1, "cluster_id": self.cluster_id, "revision": self.revision, "producer_id": self.producer_id,
            "producer_ids_below": self.producer_ids_below,
        }
        if self.refused:
            fields["refused"] = self.refused
        try:
            await self._disk.write_atomically(FILE, json.dumps(fields).encode())
        except OSError as error:
            # The file is only a lower bound: a full disk must not end the service. The next change tries again.
            self._dirty = True
            log.warning("could not store the highest revision and producer id seen", file=FILE, error=error)

    async def close(self) -> None:
        if self._writer is not None:
            self._writer.cancel()
            self._writer = None
        if self._writing is not None:
            await self._writing
        await self._write()
