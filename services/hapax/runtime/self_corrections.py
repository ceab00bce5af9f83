"""Counts the corrections made by sweeps (rule 25). Each is a fault of this program: an event was lost. Tests,
simulations and chaos runs fail on a count above zero."""

from __future__ import annotations

from collections import Counter
from typing import Final

from hapax.runtime import telemetry

log = telemetry.logger("self-corrections")

CORRECTIONS: Final[Counter[str]] = Counter()
"""Kind -> corrections since the process started."""

LOOK_EVERY_S: Final = 2.0


def corrected(kind: str, **fields: object) -> None:
    CORRECTIONS[kind] += 1
    log.warning("corrected a state that an event should have changed", kind=kind, **fields)
