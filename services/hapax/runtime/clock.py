"""The clock port on this machine's clocks."""

from __future__ import annotations

import time


class SystemClock:
    def now_ms(self) -> int:
        """Wall clock, ms since the Unix epoch."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        """CLOCK_MONOTONIC, ms: never jumps, stands still while the machine sleeps."""
        return time.monotonic_ns() // 1_000_000
