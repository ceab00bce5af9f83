"""What a node remembers of the metadata store, so that a store restored from an old backup is refused (rule 12)."""

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
    """The cluster id and the highest revision, producer id and counter of producer ids seen; kept in the data folder
    where there is one.

    Written at most every second, and at once when producer ids are handed out, which happens by the thousand: it
    is a lower bound, so a stale one only detects less. Without a disk it still holds for the life of the process.

    What a log proves against a store cannot be proved again later, when the store has moved on: such a refusal is
    kept too, and ends every later start until a person removes the file.
    """

    def __init__(self, cluster_id: str, disk: Disk | None = None) -> None:
        self.cluster_id = cluster_id
        self.revision = 0
        self.producer_id = -1
        """In use: in a log, or handed to this node."""
        self.producer_ids_below = 0
        """Handed out to anybody, as the store said."""
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
        """Raises StoreRefused where the store's revision is behind; remembers it otherwise."""
        if revision < self.revision:
            raise StoreRefused(
                f"the metadata store is at revision {revision}, but this node has seen {self.revision}: "
                "it was restored from an old backup or lost writes; refusing to follow it"
            )
        if revision > self.revision:
            self.revision = revision
            self._note()

    def note_producer_id(self, producer_id: int) -> None:
        """A producer id in use: the allocator's counter must be above it."""
        if producer_id > self.producer_id:
            self.producer_id = producer_id
            self._note(0.0)

    def note_counter(self, next_producer_id: int) -> None:
        if next_producer_id > self.producer_ids_below:
            self.producer_ids_below = next_producer_id
            self._note(0.0)

    def refuse(self, reason: str) -> None:
        """For good: see above."""
        self.refused = reason
        self._note(0.0)

    def check_producer_counter(self, next_producer_id: int) -> None:
        """Raises StoreRefused where the store would hand out an id again."""
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
            # A full disk must not end the service over a lower bound; the next change tries again.
            self._dirty = True
            log.warning("could not write what was seen of the metadata store", file=FILE, error=error)

    async def close(self) -> None:
        if self._writer is not None:
            self._writer.cancel()
            self._writer = None
        if self._writing is not None:
            await self._writing
        await self._write()
