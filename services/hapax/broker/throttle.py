"""Limits the rate of replicas that catch up, so that disks and network stay available to clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

_BURST_S: Final = 0.25
"""Unused bytes may be used at once later, up to what the rate allows in this many seconds."""


class Throttle:
    """At most `rate()` bytes per second, shared by all callers."""

    def __init__(self, rate: Callable[[], int], monotonic_ms: Callable[[], int]) -> None:
        self._rate = rate
        self._now_ms = monotonic_ms
        self._allowance = rate() * _BURST_S
        self._as_of = monotonic_ms()

    def delay(self) -> float:
        """Seconds until a caller may continue; 0: now."""
        now, rate = self._now_ms(), self._rate()
        self._allowance = min(rate * _BURST_S, self._allowance + (now - self._as_of) * rate / 1000)
        self._as_of = now
        return 0.0 if self._allowance > 0 else 0.001 - self._allowance / rate

    def used(self, size: int) -> None:
        self._allowance -= size
