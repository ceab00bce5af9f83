"""The service behind Fetch: reads of many partitions, and the long poll that waits for more records."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from hapax.broker.followers import diverging
from hapax.broker.metrics import FETCHED_BYTES, WAITING_FETCHES
from hapax.broker.replica import Replica
from hapax.core.errors import ErrorCode, Refusal
from hapax.kafka.api.fetch import (
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResult,
    encode_response,
    failed,
)
from hapax.kafka.table import DEFERRED, CloseConnection, RequestContext
from hapax.log.reading import Cold
from hapax.log.segment import LogRange
from hapax.runtime import supervision, telemetry
from hapax.runtime.ports import Chunk

Find = Callable[[str | bytes, int], Replica]
"""(topic's name or id, partition) -> the replica served here. Raises Refusal."""

log = telemetry.logger("fetch")

_MAX_WAIT_MS: Final = 30_000
"""Longest time that a poll waits, whatever the client asks for."""
_WARMING_ROUNDS: Final = 4


class FetchService:
    """`kafka.api.fetch.PartitionReader`."""

    def __init__(
        self, find: Find, leader_of: Callable[[FetchPartition], tuple[int, int] | None], max_bytes: int,
        followers: Callable[[RequestContext, FetchRequest], object], metrics: telemetry.Metrics,
    ) -> None:
        """`leader_of`: (node, epoch) of a partition that another broker leads. `max_bytes`: limit of a response.
        `followers` answers requests with a replica id."""
        self.find = find
        self.leader_of = leader_of
        self.max_bytes = max_bytes
        self.waiting: dict[Poll, None] = {}
        self.fetched_bytes = metrics.counter(FETCHED_BYTES)
        self._followers = followers
        metrics.observe(WAITING_FETCHES, lambda: len(self.waiting))

    def fetch(self, ctx: RequestContext, request: FetchRequest) -> object:
        if request.replica_id >= 0:
            return self._followers(ctx, request)
        if request.session_id != 0:
            return encode_response(ctx.api_version, FetchResult(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0, []))
        return Poll(self, ctx, request).start()

    def close(self) -> None:
        """Answers all requests that wait."""
        for poll in list(self.waiting):
            poll.finish_now()


class Poll:
    """One Fetch: attempts to answer it, waits for records or for the disk, and attempts again."""

    __slots__ = (
        "_ctx", "_done", "_expired", "_replicas", "_request", "_scheduled", "_service", "_timer", "_warmed", "_warming",
    )

    def __init__(self, service: FetchService, ctx: RequestContext, request: FetchRequest) -> None:
        self._service = service
        self._ctx = ctx
        self._request = request
        self._replicas: list[Replica] = []
        self._timer: asyncio.TimerHandle | None = None
        self._scheduled = False
        self._expired = request.max_wait_ms <= 0 or request.min_bytes <= 0
        self._done = False
        self._warming: asyncio.Task[None] | None = None
        self._warmed = 0

    def start(self) -> object:
        """The answer's chunks, or DEFERRED."""
        answer = self._attempt()
        if answer is not None:
            return answer
        delay = min(self._request.max_wait_ms, _MAX_WAIT_MS) / 1000
        self._timer = asyncio.get_running_loop().call_later(delay, self.finish_now)
        self._service.waiting[self] = None
        return DEFERRED

    # --- one attempt ----------------------------------------------------------------------------------------------

    def _attempt(self) -> tuple[Chunk, ...] | None:
        """The answer, if there are enough bytes or the time is over. None: the request waits for records or the
        disk."""
        request, service = self._request, self._service
        left = min(request.max_bytes, service.max_bytes)
        size = 0
        error = False
        results: list[FetchedPartition] = []
        cold: list[tuple[Replica, Cold]] = []
        self._replicas = []
        for partition in request.partitions:
            try:
                replica = service.find(partition.topic, partition.partition)
                fetched = self._read(replica, partition, left - size, first=size == 0)
            except Refusal as refusal:
                leader = service.leader_of(partition) if refusal.code in _ELSEWHERE else None
                fetched = failed(partition, refusal.code, leader)
            except Cold as found:
                cold.append((replica, found))
                continue
            except OSError as failure:
                log.warning("a read failed", partition=partition.partition, error=failure)
                fetched = failed(partition, ErrorCode.KAFKA_STORAGE_ERROR)
            if fetched.error:
                self._ctx.api.failed(fetched.error)
            error = error or fetched.error != 0 or fetched.diverging is not None
            size += 0 if fetched.records is None else fetched.records.size
            results.append(fetched)
        if cold:
            _release(results)
            self._warming = supervision.once(self._warm(cold), "warm-for-reader")
            return None
        if size >= request.min_bytes or error or self._expired or not request.partitions:
            service.fetched_bytes.value += size
            return encode_response(self._ctx.api_version, FetchResult(0, 0, results))
        _release(results)
        for replica in self._replicas:
            replica.wait(self)
        return None

    def _read(self, replica: Replica, partition: FetchPartition, left: int, *, first: bool) -> FetchedPartition:
        machine = replica.machine
        if partition.leader_epoch >= 0 and partition.leader_epoch != replica.leader_epoch:
            raise Refusal(
                ErrorCode.FENCED_LEADER_EPOCH if partition.leader_epoch < replica.leader_epoch
                else ErrorCode.UNKNOWN_LEADER_EPOCH
            )
        committed = self._request.committed
        self._replicas.append(replica)
        records: LogRange | None = None
        aborted = None
        diverging = self._diverging(replica, partition)
        if diverging is None:
            read = replica.read(
                partition.offset, max(0, min(partition.max_bytes, left)), committed=committed, at_least_one=first,
                warmed=self._warmed >= _WARMING_ROUNDS,
            )
            records = read.range
            aborted = read.aborted if committed else None
        return FetchedPartition(
            partition.topic, partition.partition, 0, machine.high_watermark, machine.last_stable_offset,
            machine.log_start_offset, aborted, records, diverging,
        )

    def _diverging(self, replica: Replica, partition: FetchPartition) -> tuple[int, int] | None:
        """Where the client's log and this log diverge; None: they do not (KIP-595)."""
        if partition.last_fetched_epoch < 0:
            return None
        return diverging(replica, partition.last_fetched_epoch, partition.offset)

    async def _warm(self, cold: Sequence[tuple[Replica, Cold]]) -> None:
        """Reads the ranges that are not in the page cache, in a thread off the loop (rule 18)."""
        try:
            await asyncio.gather(*(replica.log.warm(found) for replica, found in cold))
        except OSError as error:
            log.warning("a cold range could not be read", error=error, peer=self._ctx.connection.peer)
            self._fail("the disk failed a read")
            return
        except Exception as error:  # nothing else would ever answer this request
            supervision.failed("warm-for-reader", error)
            self._fail("a read failed")
            return
        self._warming = None
        self._warmed += 1
        self._again()

    # --- wait -----------------------------------------------------------------------------------------------------

    def moved(self) -> None:
        """A partition's readable end has moved."""
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._again)

    def finish_now(self) -> None:
        """The time is over: answers with the records that there are."""
        self._expired = True
        self._again()

    def _again(self) -> None:
        self._scheduled = False
        if self._done or self._warming is not None:
            return
        self._unwait()
        if self._ctx.closed:
            self._end()
            return
        try:
            answer = self._attempt()
        except Exception as error:  # nothing else would ever answer this request
            supervision.failed("fetch", error)
            self._fail("a read failed")
            return
        if answer is not None:
            self._end()
            self._ctx.respond(answer)

    def _unwait(self) -> None:
        for replica in self._replicas:
            replica.unwait(self)

    def _fail(self, reason: str) -> None:
        self._end()
        self._ctx.fail(CloseConnection(reason))

    def _end(self) -> None:
        self._done = True
        if self._timer is not None:
            self._timer.cancel()
        self._service.waiting.pop(self, None)


_ELSEWHERE: Final = frozenset({
    ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH,
})

def _release(results: Sequence[FetchedPartition]) -> None:
    for result in results:
        if result.records is not None:
            result.records.release()
