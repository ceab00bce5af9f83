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

    __slots__ = ("_marks", "repeated")

    def __init__(self) -> None:
        super().__init__()
        self._marks: list[tuple[int, int]] = []    # no deque: an empty one takes 760 bytes in each partition
        """(monotonic ms, end of the log then): a write below that end has waited since then."""
        self.repeated: dict[tuple[int, int], int] | None = None
        """(id of the call, number) of each write that came after a mark above its end, because it repeats an older one
        -> the monotonic ms since which it has waited; -1: since after the last mark. None: there are none."""

    def append(self, waiter: tuple[int, Settles, int, WriteResult]) -> None:
        """A repeated write waits for its original's end, which may lie before those of newer writes."""
        end, call, number, _ = waiter
        if self._marks and self._marks[-1][1] >= end:
            if self.repeated is None:
                self.repeated = {}
            self.repeated[id(call), number] = -1
        if not self or self[-1][0] <= end:
            deque.append(self, waiter)
        else:
            self.insert(bisect_right(self, end, key=_END), waiter)

    def settle(self, offset: int) -> None:
        """Everything below `offset` is durable."""
        while self and self[0][0] <= offset:
            _, call, number, result = self.popleft()
            if self.repeated is not None:
                self._forget(call, number)
            call.settle(number, result)

    def fail(self, result: WriteResult) -> None:
        """Answers every waiting write with `result`."""
        waiting = list(self)
        self.clear()
        self.repeated = None
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
        repeated = self.repeated or {}
        for key, since in repeated.items():
            if since < 0:
                repeated[key] = now_ms
        longest = now_ms - marks[0][0]
        if not any(longest >= call.timeout_ms for _, call, _, _ in self):
            return
        expired = [waiter for waiter in self if now_ms - self._since(waiter, now_ms) >= waiter[1].timeout_ms]
        if not expired:
            return
        gone = {(id(call), number) for _, call, number, _ in expired}
        kept = [waiter for waiter in self if (id(waiter[1]), waiter[2]) not in gone]
        self.clear()
        self.extend(kept)
        for _, call, number, _ in expired:
            self._forget(call, number)
            call.settle(number, WriteResult(
                ErrorCode.REQUEST_TIMED_OUT, reason="not all replicas in sync have it yet"))

    def _since(self, waiter: tuple[int, Settles, int, WriteResult], now_ms: int) -> int:
        end, call, number, _ = waiter
        if self.repeated is not None and (id(call), number) in self.repeated:
            return self.repeated[id(call), number]
        return next((at for at, log_end in self._marks if log_end >= end), now_ms)

    def _forget(self, call: Settles, number: int) -> None:
        if self.repeated is not None:
            self.repeated.pop((id(call), number), None)
            self.repeated = self.repeated or None
