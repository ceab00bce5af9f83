"""Histories of the simulator, and explorations, that look for a mutant without its unit test, by the mutant's name.

`python -m hapax_mutants --machines` runs these alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from hapax_mutants.mutant import sim

_KEYS: Final = "--hours 0.03 --scene keys"
_REST: Final = (sim("1-8", "--hours 0.03 --scene rest"),)

MACHINES: Final[Mapping[str, tuple[str, ...]]] = {
    "a leader tells its end from memory": (sim("5", "--hours 0.16 --scene cut-off"),),
    "a parked write of an ended transaction enters the next": (
        sim("1-4", "--hours 0.02 --scene old --only 'verification waits' --only 'client crash'"),
    ),
    "a transaction's timer that fires early is never set again": (
        sim("1-3", "--hours 0.01 --scene old --only 'client freeze'"),
    ),
    "acks=1 waits for ever once the last other replica goes": (
        sim("4-9", "--hours 0.003 --scene weak --only 'slow disk'"),
    ),
    "compressed batches are kept whole": (sim("1", _KEYS),),
    "a tombstone's age counts from its client's timestamp": (sim("3", _KEYS),),
    "acks=0 overtakes what waits for the connection": (sim("1-4", "--hours 0.02 --scene weak"),),
    "a resumed reset of a group is planned again": _REST,
    "a deletion under If-Match compares nothing": _REST,
    "REST deletes whatever has the name": _REST,
}
"""A name of `MUTANTS` -> checks, in this order until one finds it."""

UNSEEN: Final[Mapping[str, str]] = {}
"""What loses, doubles, tears, reorders or hides data and is not found so -> why."""
