"""The lag of a micro-batch's end behind the committed records, in records and in time."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from hapax.client import HapaxError
from hapax_spark.cluster import Cluster, Where
from hapax_spark.positions import waiting

_LOOK_EVERY_S: Final = 5.0
"""Interval of the look-ups of timestamps; each reads the first waiting batch of a partition."""
_LOOKED_AT: Final = 8
"""Partitions: those with the most records waiting."""


class Lag:
    """Of one query, after each plan of a micro-batch."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._records = 0
        self._ms = 0
        self._looked_s: float | None = None

    def planned(self, end: Mapping[Where, int], latest: Mapping[Where, int]) -> None:
        """A micro-batch ends at `end`; committed records reach to `latest`."""
        counts = waiting(end, latest)
        self._records = sum(counts.values())
        if not self._records:
            self._ms, self._looked_s = 0, None
            return
        now = time.monotonic()
        if self._looked_s is None or now >= self._looked_s + _LOOK_EVERY_S:
            self._looked_s = now
            behind = sorted((tp for tp in counts if counts[tp]), key=lambda tp: -counts[tp])[:_LOOKED_AT]
            try:
                oldest = self._cluster.first_timestamps({tp: end[tp] for tp in behind})
            except (HapaxError, TimeoutError):
                return  # a later plan tries again; a query must not fail because of its lag
            self._ms = max(0, int(time.time() * 1000) - min(oldest.values())) if oldest else 0

    def told(self) -> dict[str, int]:
        """`records` that wait behind the micro-batch, and the age in `ms` of the oldest of them (looked up every five
        seconds, in the eight partitions that are furthest behind)."""
        return {"records": self._records, "ms": self._ms}
