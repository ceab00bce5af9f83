"""The clock of one simulated process: virtual, with an offset and a drift of its own."""

from __future__ import annotations

from hapax_sim.loop import EPOCH_MS, SimLoop


class SimClock:
    """Wall clock = epoch + virtual time + skipped time + skew. The monotonic clock counts from the process's start."""

    def __init__(self, loop: SimLoop, skew_ms: int = 0) -> None:
        self._loop = loop
        self._started = loop.time()
        self.skew_ms = skew_ms

    def now_ms(self) -> int:
        return EPOCH_MS + int(self._loop.time() * 1000) + self._loop.passed_ms + self.skew_ms

    def monotonic_ms(self) -> int:
        return int((self._loop.time() - self._started) * 1000)
