"""Writes that wait to be durable, here or on every replica in sync, and the calls that get their results."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import deque
from operator import itemgetter
from typing import Final, Protocol

from hapax.core.errors import ErrorCode
from hapax.core.partition.values import WriteResult

NO_TIMEOUT_MS: Final = 2**62
_END: Final = itemgetter(0)


class Settles(Protocol):
    """A call that gets the results of its writes: `kafka.api.produce.ProduceCall`, or `WriteFuture` below."""

    @property
    def timeout_ms(self) -> int:
        """How long the caller waits for the in-sync replicas, in milliseconds."""
        ...

    @property
    def peer(self) -> str:
        """The caller's address, for logs and events."""
        ...

    @property
    def connection(self) -> int:
        """Serial number of the caller's connection; -1: it has none."""
        ...

    @property
    def gone(self) -> bool:
        """Nothing reads the answer: the caller sends the writes again that it still wants."""
        ...

    def settle(self, number: int, result: WriteResult) -> None:
        """The result of the call's write `number`, once for each."""
        ...

    def drop(self, reason: str) -> None:
        """Closes the connection instead of answering the call."""
        ...


class WriteFuture:
    """The result of one write as a future, for callers in this process. Not for the hot path."""

    timeout_ms: Final = NO_TIMEOUT_MS
    peer: Final = ""
    connection: Final = -1
    gone: Final = False

    def __init__(self) -> None:
        self.future: asyncio.Future[WriteResult] = asyncio.get_running_loop().create_future()

    def settle(self, number: int, result: WriteResult) -> None:
        if not self.future.done():
            self.future.set_result(result)

    def drop(self, reason: str) -> None:
        self.settle(0, WriteResult(ErrorCode.NETWORK_EXCEPTION, reason=reason))


class Waiters(deque[tuple[int, Settles, int, WriteResult]]):
    """(offset below which everything must be durable, call, number, result), by ascending offset."""

    __slots__ = ("_marks",)

    def __init__(self) -> None:
        super().__init__()
        self._marks: list[tuple[int, int]] = []    # no deque: an empty one takes 760 bytes in each partition
        """(monotonic ms, end of the log then): a write below that end has waited since then."""

    def append(self, waiter: tuple[int, Settles, int, WriteResult]) -> None:
        """A repeated write waits for its original's end, which may lie before those of newer writes."""
        if not self or self[-1][0] <= waiter[0]:
            deque.append(self, waiter)
        else:
            self.insert(bisect_right(self, waiter[0], key=_END), waiter)

    def settle(self, offset: int) -> None:
        """Everything below `offset` is durable."""
        while self and self[0][0] <= offset:
            _, call, number, result = self.popleft()
            call.settle(number, result)

    def fail(self, result: WriteResult) -> None:
        """Answers every waiting write with `result`."""
        waiting = list(self)
        self.clear()
        for _, call, number, _ in waiting:
            call.settle(number, result)

    def expire(self, now_ms: int, log_end: int) -> None:
        """Answers the writes whose time-out has passed. To be called about every half second."""
        marks = self._marks
        marks.append((now_ms, log_end))
        while marks and (not self or marks[0][1] < self[0][0]):
            marks.pop(0)
        if not marks:
            return
        longest = now_ms - marks[0][0]
        if not any(longest >= call.timeout_ms for end, call, _, _ in self if end <= marks[0][1]):
            return
        waiting = list(self)
        self.clear()
        for waiter in waiting:
            end, call, number, _ = waiter
            since = next((at for at, log_end in marks if log_end >= end), now_ms)
            if now_ms - since < call.timeout_ms:
                self.append(waiter)
            else:
                call.settle(number, WriteResult(
                    ErrorCode.REQUEST_TIMED_OUT, reason="not all replicas in sync have it yet"))
