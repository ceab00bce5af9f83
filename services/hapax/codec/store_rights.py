"""Which keys of the metadata store each role of the cluster's processes may write.

Every node has the whole of the cluster in memory, so every role reads all its keys. A role writes its own registrations
and what it decides: brokers the in-sync sets of partitions, PID allocators the counter of ids and the leases.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from hapax.codec.metadata import Keys
from hapax.core.access.services import ADMIN, BROKER, CONTROLLER, COORDINATOR, PID, ROLES

_NO_KEY: Final = b"\0"
"""Read to see whether the store is alive; no key has this name."""
_HUNDREDS: Final = {COORDINATOR: 1, PID: 2}
"""The ids of these roles, by their first digit. Brokers have those below 100."""


class KeyRange(NamedTuple):
    key: bytes
    end: bytes
    """The first key after the range; empty: `key` alone."""
    write: bool


def rights(cluster_id: str, role: str) -> list[KeyRange]:
    """What a process of this role needs. All may be read."""
    keys = Keys(cluster_id)
    found = [KeyRange(_NO_KEY, b"", False), _below(keys.prefix, role == CONTROLLER)]
    if role in _HUNDREDS or role == BROKER:
        found += (KeyRange(f"{keys.nodes}{first}".encode(), f"{keys.nodes}{end}".encode(), True)
                  for first, end in _ids(role))
    if role == BROKER:
        found.append(_below(f"{keys.prefix}partitions/", True))
    elif role == PID:
        found.append(_below(f"{keys.prefix}pid/", True))
    elif role == ADMIN:
        found.append(_below(f"/hapax-admin/{cluster_id}/", True))
    return found


def all_rights(cluster_id: str) -> dict[str, list[KeyRange]]:
    return {role: rights(cluster_id, role) for role in ROLES}


def _below(prefix: str, write: bool) -> KeyRange:
    key = prefix.encode()
    return KeyRange(key, key[:-1] + bytes([key[-1] + 1]), write)


def _ids(role: str) -> Iterator[tuple[str, str]]:
    """Ranges of the role's node ids as text: `10` is between `1` and `100`, and no range of brokers may hold `100`."""
    if role != BROKER:
        hundred = str(_HUNDREDS[role])
        for tens in range(9):
            yield f"{hundred}{tens}0", f"{hundred}{tens + 1}"
        yield f"{hundred}90", str(int(hundred) + 1)
        return
    yield "0", "1"
    for first in "123":
        yield first, f"{first}00"
        for second in range(1, 10):
            yield f"{first}{second}", f"{first}{second}0"
    yield "4", ":"  # from 4 to 99: no other role has ids that begin so
