"""Since when a data folder has lost nothing: what the process says that used it before, and what that promised.

A crash takes what was not synced. Whether anything acknowledged was not synced is up to the durability under which the
*former* process wrote it: where a power cut ended one with `durability=page-cache`, the next one lacks what was
acknowledged, whatever its own setting. So the promise stands in the folder, from before the first write under it.
"""

from __future__ import annotations

import json
from typing import Final

from hapax.runtime import telemetry
from hapax.runtime.ports import Disk

log = telemetry.logger("partitions")

INTACT_SINCE: Final = "intact-since.json"
_SYNCED: Final = "fsync"


async def write_intact_since(disk: Disk, intact_since: int, registration: int, durability: str) -> None:
    """To be called once the process is registered, before it writes to any partition. `intact_since` as in the node's
    record, 0: since this one. Raises OSError."""
    content = {"v": 1, "intact_since": intact_since or registration, "durability": durability}
    await disk.write_atomically(INTACT_SINCE, json.dumps(content).encode())


def read_intact_since(disk: Disk, *, clean: bool) -> int:
    """The registration since which the folder has everything that its processes acknowledged; 0: it may lack something.
    `clean`: the former process ended cleanly, and synced everything. One that did not say its durability, as those of
    former versions, may have had any."""
    if not disk.exists(INTACT_SINCE):
        return 0
    file = disk.open(INTACT_SINCE)
    try:
        former = json.loads(file.read(0, file.size()))
        return int(former["intact_since"]) if clean or former.get("durability") == _SYNCED else 0
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        log.warning("since when this folder is intact cannot be read", error=error)
        return 0
    finally:
        file.close()
