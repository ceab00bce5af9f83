"""How much a client has used: a rate over the last windows, and a bucket of tokens for what comes in bursts (KIP-599).

Times are milliseconds of a clock that never goes back. Amounts and rates have one unit; rates are per second.
"""

from __future__ import annotations

import math
import sys
from typing import Final, NamedTuple

LONGEST_MS: Final = 2**31 - 1
"""`throttle_time_ms` is an int32."""
_LARGEST: Final = sys.float_info.max


class Windows(NamedTuple):
    """What a rate is measured over: the window that runs, and those before it."""

    number: int = 11
    size_ms: int = 1_000

    @property
    def full_s(self) -> float:
        """Seconds of the windows that are over."""
        return (self.number - 1) * self.size_ms / 1000


class Meter:
    """A rate. The time that it is measured over is taken for whole windows from the start, as in Kafka: so a client
    that was idle may use ten seconds' worth at once."""

    __slots__ = ("_counts", "_newest", "_size_ms", "_total", "_windows", "last_ms", "live")

    def __init__(self, windows: Windows, now_ms: int) -> None:
        self._windows = windows
        self._size_ms = windows.size_ms
        self._counts = [0.0] * windows.number
        self._newest = now_ms // windows.size_ms
        self._total = 0.0
        self.last_ms = now_ms
        self.live = True
        """False once the meter was given up: its entity has another by now, or none."""

    def add(self, amount: float, now_ms: int) -> float:
        """The amount of all windows now."""
        if now_ms // self._size_ms > self._newest:
            self._turn(now_ms)
        counts = self._counts
        counts[self._newest % len(counts)] += amount
        self._total = total = self._total + amount
        self.last_ms = now_ms
        return total

    def wait_ms(self, rate: float, now_ms: int) -> int:
        """How long nothing may be used, so that what was used is no more than the rate; 0: it is no more now."""
        self._turn(now_ms)
        size = self._windows.size_ms
        span_ms = (self._windows.number - 1) * size + now_ms % size
        return _milliseconds(self._total / rate * 1000 - span_ms)

    def unused(self, now_ms: int) -> bool:
        """Whether it is like a fresh one."""
        return now_ms - self.last_ms > self._windows.number * self._windows.size_ms

    def _turn(self, now_ms: int) -> None:
        window = now_ms // self._windows.size_ms
        passed = window - self._newest
        if passed <= 0:
            return
        counts = self._counts
        for at in range(self._newest + 1, self._newest + 1 + min(passed, len(counts))):
            counts[at % len(counts)] = 0.0
        self._newest = window
        self._total = sum(counts)  # instead of differences, whose errors would add up


class TokenBucket:
    """Fills at the rate, up to what the rate gives in the time of the windows. What is taken may exceed what is in it:
    then nothing may be taken until it is no longer in debt."""

    __slots__ = ("_as_of_ms", "_burst_s", "_full_ms", "_tokens", "last_ms", "live")

    def __init__(self, windows: Windows, now_ms: int) -> None:
        self._burst_s = windows.number * windows.size_ms / 1000
        self._tokens = math.inf  # full, whatever the rate is
        self._as_of_ms = now_ms
        self._full_ms = now_ms
        self.last_ms = now_ms
        self.live = True

    def take(self, amount: float, rate: float, now_ms: int) -> None:
        self._fill(rate, now_ms)
        self._tokens -= amount
        self.last_ms = now_ms
        self._full_ms = now_ms + _milliseconds((self._full(rate) - self._tokens) / rate * 1000)

    def wait_ms(self, rate: float, now_ms: int) -> int:
        """0: something may be taken now, however much."""
        self._fill(rate, now_ms)
        return _milliseconds(-self._tokens / rate * 1000)

    def unused(self, now_ms: int) -> bool:
        return now_ms >= self._full_ms

    def _fill(self, rate: float, now_ms: int) -> None:
        passed_s = max(0, now_ms - self._as_of_ms) / 1000
        self._tokens = min(self._full(rate), self._tokens + passed_s * rate)
        self._as_of_ms = max(now_ms, self._as_of_ms)

    def _full(self, rate: float) -> float:
        return min(rate * self._burst_s, _LARGEST)  # a rate may be any number: infinity is nothing to subtract from


def _milliseconds(wait_ms: float) -> int:
    """Of infinity, too: a rate next to 0 divides into it."""
    if wait_ms <= 0:
        return 0
    return LONGEST_MS if wait_ms >= LONGEST_MS else math.ceil(wait_ms)
