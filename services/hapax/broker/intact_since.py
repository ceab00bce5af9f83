"""Since which registration a data folder has lost no acknowledged record.

A crash loses unsynced writes. Whether acknowledged writes were unsynced depends on the durability setting of the
*former* process: if a power cut ended a process with `durability=page-cache`, acknowledged records are missing,
whatever the next process's setting is. So each process writes its setting into the folder before its first write.
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
    record; 0: since this registration. Raises OSError."""
    content = {"v": 1, "intact_since": intact_since or registration, "durability": durability}
    await disk.write_atomically(INTACT_SINCE, json.dumps(content).encode())


def read_intact_since(disk: Disk, *, clean: bool) -> int:
    """The registration since which the folder has every record that its processes acknowledged; 0: some may be missing.
    `clean`: the former process stopped cleanly, and synced everything. Processes of earlier versions did not write
    their durability; theirs is unknown."""
    if not disk.exists(INTACT_SINCE):
        return 0
    file = disk.open(INTACT_SINCE)
    try:
        former = json.loads(file.read(0, file.size()))
        return int(former["intact_since"]) if clean or former.get("durability") == _SYNCED else 0
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        log.warning("cannot read since when this folder is intact", error=error)
        return 0
    finally:
        file.close()
