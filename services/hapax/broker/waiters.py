"""Writes that wait to be durable, here or on every replica in sync, and whoever is told of it."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, Protocol

from hapax.core.errors import ErrorCode
from hapax.kafka.api.produce import PartitionResult, ProduceCall

_FOR_EVER: Final = 2**62


class Settles(Protocol):
    """Whoever is told what became of a write: `kafka.api.produce.ProduceCall`, or `WriteFuture` below."""

    def settle(self, number: int, result: PartitionResult) -> None: ...


class WriteFuture:
    """A write's result as a future, for callers that are not on the hot path."""

    def __init__(self) -> None:
        self.future: asyncio.Future[PartitionResult] = asyncio.get_running_loop().create_future()

    def settle(self, number: int, result: PartitionResult) -> None:
        if not self.future.done():
            self.future.set_result(result)


class Waiters(deque[tuple[int, Settles, int, PartitionResult]]):
    """(offset below which everything must be durable, whom to tell, number, what), by rising offsets."""

    __slots__ = ("_marks",)

    def __init__(self) -> None:
        super().__init__()
        self._marks: list[tuple[int, int]] = []    # no deque: empty, it takes 760 bytes in each partition
        """(when, end of the log then): who waits for less has waited since then."""

    def settle(self, offset: int) -> None:
        """Everything below `offset` is durable."""
        while self and self[0][0] <= offset:
            _, call, number, result = self.popleft()
            call.settle(number, result)

    def fail(self, result: PartitionResult) -> None:
        """Nobody waits any more."""
        waiting = list(self)
        self.clear()
        for _, call, number, _ in waiting:
            call.settle(number, result)

    def expire(self, now_ms: int, log_end: int) -> None:
        """To be called every half a second or so: answers those that have waited as long as their clients wanted."""
        marks = self._marks
        marks.append((now_ms, log_end))
        while marks and (not self or marks[0][1] < self[0][0]):
            marks.pop(0)
        if not marks:
            return
        longest = now_ms - marks[0][0]
        if not any(longest >= wait_of(call) for end, call, _, _ in self if end <= marks[0][1]):
            return
        waiting = list(self)
        self.clear()
        for waiter in waiting:
            end, call, number, _ = waiter
            since = next((at for at, log_end in marks if log_end >= end), now_ms)
            if now_ms - since < wait_of(call):
                self.append(waiter)
            else:
                call.settle(number, PartitionResult(
                    ErrorCode.REQUEST_TIMED_OUT, reason="not all replicas in sync have it yet"))


def wait_of(call: Settles) -> int:
    """Milliseconds that whoever waits has asked for at most."""
    return call.request.timeout_ms if isinstance(call, ProduceCall) else _FOR_EVER
