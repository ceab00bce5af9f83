"""The service behind Fetch: reads of many partitions, and the long poll that waits for more records.

A client's request is full (`Poll`), or belongs to a session and looks only at the partitions that may have something
new (`SessionPoll`, `hapax.core.fetch_sessions`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Final

from hapax.broker.followers import diverging
from hapax.broker.importing import check_restored
from hapax.broker.metrics import (
    EVICTED_FETCH_SESSIONS,
    FETCH_SESSION_PARTITIONS,
    FETCH_SESSIONS,
    FETCHED_BYTES,
    WAITING_FETCHES,
)
from hapax.broker.read_replicas import epoch_of
from hapax.broker.replica import Replica
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.fetch_sessions import (
    FULL,
    NO_SESSION,
    SESSIONLESS,
    FetchSessions,
    Offsets,
    PartitionRead,
    Session,
    SessionPartition,
)
from hapax.kafka.api.fetch import (
    FIRST_WITH_TOPIC_IDS,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResult,
    encode_response,
    failed,
    without,
)
from hapax.kafka.table import DEFERRED, CloseConnection, RequestContext
from hapax.log.reading import Cold
from hapax.log.segment import LogRange
from hapax.runtime import supervision, telemetry
from hapax.runtime.ports import Chunk

Find = Callable[[str | bytes, int, str], Replica]
"""(topic's name or id, partition, consumer's rack) -> the replica that serves it here. Raises Refusal."""
Preferred = Callable[[Replica, int, str], int]
"""(replica led here, offset, consumer's rack) -> the node to read from instead; -1: none."""

log = telemetry.logger("fetch")

_MAX_WAIT_MS: Final = 30_000
"""Longest time that a poll waits, whatever the client asks for."""
_WARMING_ROUNDS: Final = 4


class FetchService:
    """`kafka.api.fetch.PartitionReader`."""

    def __init__(
        self, find: Find, preferred: Preferred, leader_of: Callable[[FetchPartition], tuple[int, int] | None],
        max_bytes: int, followers: Callable[[RequestContext, FetchRequest], object], metrics: telemetry.Metrics,
        sessions: FetchSessions[FetchPartition], now_ms: Callable[[], int],
    ) -> None:
        """`leader_of`: (node, epoch) of a partition that another broker leads. `max_bytes`: limit of a response.
        `followers` answers requests with a replica id. `now_ms`: monotonic."""
        self.find = find
        self.preferred = preferred
        self.sessions = sessions
        self.now_ms = now_ms
        self.leader_of = leader_of
        self.max_bytes = max_bytes
        self.waiting: dict[Poll, None] = {}
        self.fetched_bytes = metrics.counter(FETCHED_BYTES)
        self._followers = followers
        metrics.observe(WAITING_FETCHES, lambda: len(self.waiting))
        metrics.observe(FETCH_SESSIONS, lambda: len(sessions.sessions))
        metrics.observe(FETCH_SESSION_PARTITIONS, lambda: sessions.partitions)
        metrics.observe(EVICTED_FETCH_SESSIONS, lambda: sessions.evicted)

    def fetch(self, ctx: RequestContext, request: FetchRequest) -> object:
        if request.replica_id >= 0:
            return self._followers(ctx, request)
        if request.session_epoch in (FULL, SESSIONLESS):
            self.sessions.close(request.session_id)
            if request.session_epoch == SESSIONLESS or not request.partitions:
                return Poll(self, ctx, request).start()
            session: Session[FetchPartition] = Session(_by_id(ctx), _mode(request))
            session.update(((_key(p), p) for p in request.partitions), (), _mode(request))
            return SessionPoll(self, ctx, request, session).start()
        try:
            session = self.sessions.find(request.session_id, request.session_epoch, by_id=_by_id(ctx))
            if isinstance(session.fetch, SessionPoll):
                session.fetch.superseded(ctx)
            if not self.sessions.update(
                session, {_key(p): p for p in request.partitions}, request.forgotten, _mode(request), self.now_ms()
            ):
                return Poll(self, ctx, request._replace(partitions=[])).start()
        except Refusal as refusal:
            ctx.api.failed(refusal.code)
            return encode_response(ctx.api_version, FetchResult(refusal.code, NO_SESSION, []))
        return SessionPoll(self, ctx, request, session).start()

    def may_continue(self, session_id: int, rights: object, may_read: Callable[[str | bytes], bool | None]) -> bool:
        session = self.sessions.sessions.get(session_id)
        if session is not None and session.approved_for is not rights:
            verdicts = {may_read(topic) for topic in dict.fromkeys(topic for topic, _ in session.partitions)}
            if False in verdicts:
                return False
            if None not in verdicts:  # else a topic that comes to be known would be read without a right
                session.approved_for = rights
        return True

    def overlooked(self, partition: SessionPartition[FetchPartition]) -> bool:
        """Whether a session takes the partition for unchanged although it has something new, or would not be told of
        it (rule 25)."""
        session = partition.session
        if session.ended or partition in session.pending or session.partitions.get(partition.key) is not partition:
            return False
        try:
            replica = self.find(*partition.key, session.mode[1])
        except Refusal:
            return True
        offsets = _offsets(replica)
        return (
            partition.source is not replica.readers or partition not in replica.readers
            or partition.told != offsets or partition.asked.offset < _end(offsets, committed=session.mode[0])
        )

    def close(self) -> None:
        """Answers all requests that wait, and ends the sessions."""
        for poll in list(self.waiting):
            poll.finish_now()
        self.sessions.clear()


class _Doubtful(Exception):
    """The answer needs a confirmation that this node leads."""


class Poll:
    """One Fetch: attempts to answer it, waits for records, for the disk or for confirmations, and attempts again."""

    __slots__ = (
        "_confirmed", "_ctx", "_done", "_expired", "_preparing", "_replicas", "_request", "_scheduled", "_service",
        "_timer", "_warmed",
    )  # fmt: skip

    def __init__(self, service: FetchService, ctx: RequestContext, request: FetchRequest) -> None:
        self._service = service
        self._ctx = ctx
        self._request = request
        self._replicas: list[Replica | None] = []
        """The replica of each of the last attempt's results."""
        self._timer: asyncio.TimerHandle | None = None
        self._scheduled = False
        self._expired = (
            request.max_wait_ms <= 0 or request.min_bytes <= 0 or request.throttled or self._is_empty())
        self._done = False
        self._preparing: asyncio.Task[None] | None = None
        """The next attempt waits for the disk or for confirmations."""
        self._warmed = 0
        self._confirmed: dict[Replica, Refusal | None] = {}
        """Whether each of these replicas led when the client was to be told that its position is not in the log."""

    def start(self) -> object:
        """The answer's chunks, or DEFERRED."""
        answer = self._attempt()
        if answer is not None:
            self._end()
            return answer
        loop = asyncio.get_running_loop()
        until = min(loop.time() + min(self._request.max_wait_ms, _MAX_WAIT_MS) / 1000, self._ctx.login_ends)
        self._timer = loop.call_at(until, self.finish_now)
        self._service.waiting[self] = None
        return DEFERRED

    def _is_empty(self) -> bool:
        """There is nothing to wait for."""
        return not self._request.partitions

    # --- one attempt ----------------------------------------------------------------------------------------------

    def _attempt(self) -> tuple[Chunk, ...] | None:
        """The answer, if there are enough bytes or the time is over. None: the request waits for records or the
        disk."""
        request, service = self._request, self._service
        left = 0 if request.throttled else min(request.max_bytes, service.max_bytes)
        size = 0
        error = False
        results: list[FetchedPartition] = []
        cold: list[tuple[Replica, Cold]] = []
        doubtful: list[Replica] = []
        replicas = self._replicas = []
        for partition in self._asked():
            replica: Replica | None = None
            try:
                replica = service.find(partition.topic, partition.partition, request.rack)
                fetched = self._read(replica, partition, left - size, first=size == 0)
                if fetched.diverging is not None:
                    self._check_leads(replica)
            except _Doubtful:
                assert replica is not None
                doubtful.append(replica)
                continue
            except Refusal as refusal:
                leader = service.leader_of(partition) if refusal.code in _ELSEWHERE else None
                fetched = failed(partition, refusal.code, leader)
            except Cold as found:
                assert replica is not None
                cold.append((replica, found))
                continue
            except OSError as failure:
                log.warning("a read failed", partition=partition.partition, error=failure)
                fetched = failed(partition, ErrorCode.KAFKA_STORAGE_ERROR)
            if fetched.error:
                self._ctx.api.failed(fetched.error)
            error = error or fetched.error != 0 or fetched.diverging is not None or fetched.preferred >= 0
            size += 0 if fetched.records is None else fetched.records.size
            results.append(fetched)
            replicas.append(replica)
        if cold or doubtful:
            _release(results)
            self._preparing = supervision.once(self._prepare(cold, doubtful), "prepare-for-reader")
            return None
        if size >= request.min_bytes or error or self._expired:
            service.fetched_bytes.value += size
            return encode_response(self._ctx.api_version, self._result(results))
        _release(results)
        self._wait(results)
        return None

    def _asked(self) -> Sequence[FetchPartition]:
        """The partitions to look at."""
        return self._request.partitions

    def _result(self, results: list[FetchedPartition]) -> FetchResult:
        return FetchResult(0, NO_SESSION, [*results, *self._request.refused])

    def _wait(self, results: list[FetchedPartition]) -> None:
        """No partition has failed."""
        for replica in self._replicas:
            if replica is not None:
                replica.readers.wait(self)

    def _read(self, replica: Replica, partition: FetchPartition, left: int, *, first: bool) -> FetchedPartition:
        machine = replica.machine
        check_restored(replica)
        epoch = replica.leader_epoch if replica.serving else epoch_of(replica)
        if partition.leader_epoch >= 0 and partition.leader_epoch != epoch:
            older = partition.leader_epoch < epoch
            raise Refusal(ErrorCode.FENCED_LEADER_EPOCH if older else ErrorCode.UNKNOWN_LEADER_EPOCH)
        if self._request.rack:
            if not replica.serving:
                return self._read_copy(replica, partition, left, first=first)
            preferred = self._service.preferred(replica, partition.offset, self._request.rack)
            if preferred >= 0:
                return FetchedPartition(
                    partition.topic, partition.partition, 0, machine.high_watermark, machine.last_stable_offset,
                    machine.log_start_offset, () if self._request.committed else None, preferred=preferred)
        try:
            return self._read_log(replica, partition, left, self._diverging(replica, partition), first=first)
        except Refusal as refusal:
            if refusal.code is ErrorCode.OFFSET_OUT_OF_RANGE:
                self._check_leads(replica)
            raise

    def _read_copy(self, replica: Replica, partition: FetchPartition, left: int, *, first: bool) -> FetchedPartition:
        """A copy may end before its leader's log does, and with records that will be cut."""
        machine = replica.machine
        if partition.offset > machine.log_end_offset:
            raise Refusal(ErrorCode.OFFSET_NOT_AVAILABLE, "this replica has not copied the offset yet")
        committed = partition.offset <= machine.high_watermark
        diverging = self._diverging(replica, partition) if committed else None
        return self._read_log(replica, partition, left, diverging, first=first)

    def _read_log(
        self, replica: Replica, partition: FetchPartition, left: int, diverging: tuple[int, int] | None, *, first: bool
    ) -> FetchedPartition:
        machine = replica.machine
        committed = self._request.committed
        records: LogRange | None = None
        aborted = None
        if diverging is None:
            read = replica.read(
                partition.offset, max(0, min(partition.max_bytes, left)), committed=committed,
                at_least_one=first and not self._request.throttled,
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

    def _check_leads(self, replica: Replica) -> None:
        """To be called before the client is told that its position is not in the log, after which it takes another
        position. A leader that was replaced without noticing lacks what was committed since, and would make the client
        process records again (rule 23). Raises _Doubtful: not known yet; Refusal: it could not be confirmed.
        """
        if not replica.serving or replica.barrier.needless:
            return
        if replica not in self._confirmed:
            raise _Doubtful
        refusal = self._confirmed[replica]
        if refusal is not None:
            raise refusal

    async def _confirm(self, replica: Replica) -> None:
        try:
            await replica.barrier.passed()
        except Refusal as refusal:
            self._confirmed[replica] = refusal
        else:
            self._confirmed[replica] = None

    async def _prepare(self, cold: Sequence[tuple[Replica, Cold]], doubtful: Sequence[Replica]) -> None:
        """Reads the ranges that are not in the page cache, in a thread off the loop (rule 18), and confirms that this
        node leads."""
        try:
            await asyncio.gather(
                *(replica.log.warm(found) for replica, found in cold),
                *(self._confirm(replica) for replica in dict.fromkeys(doubtful)))
        except OSError as error:
            log.warning("a cold range could not be read", error=error, peer=self._ctx.connection.peer)
            self._fail("the disk failed a read")
            return
        except Exception as error:  # nothing else would ever answer this request
            supervision.failed("prepare-for-reader", error)
            self._fail("a read failed")
            return
        self._preparing = None
        self._warmed += bool(cold)
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
        if self._done or self._preparing is not None:
            return
        self._unwait()
        if self._ctx.closed:
            self._end()
            return
        if self._ctx.login_ends <= asyncio.get_running_loop().time():
            self._request = self._request._replace(throttled=True)
            self._expired = True
        unreadable = self._request.unreadable
        if unreadable is not None and (hidden := unreadable(partition.topic for partition in self._asked())):
            self._lose(hidden)
            if self._done:
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

    def _lose(self, hidden: Collection[str | bytes]) -> None:
        """The client may no longer read these topics: they are refused, and the request is answered at once."""
        before = len(self._request.refused)
        self._request = without(self._request, hidden)
        for answer in self._request.refused[before:]:
            self._ctx.api.failed(answer.error)
        self._expired = True

    def _unwait(self) -> None:
        for replica in self._replicas:
            if replica is not None:
                replica.readers.unwait(self)

    def _fail(self, reason: str) -> None:
        self._end()
        self._ctx.fail(CloseConnection(reason))

    def _end(self) -> None:
        self._done = True
        if self._timer is not None:
            self._timer.cancel()
        self._service.waiting.pop(self, None)


class SessionPoll(Poll):
    """One Fetch of a session, or the one that begins it."""

    __slots__ = ("_pending", "_session")

    def __init__(
        self, service: FetchService, ctx: RequestContext, request: FetchRequest, session: Session[FetchPartition]
    ) -> None:
        self._session = session
        self._pending: list[SessionPartition[FetchPartition]] = []
        super().__init__(service, ctx, request)

    def start(self) -> object:
        self._session.fetch = self
        try:
            return super().start()
        except BaseException:
            self._end()
            raise

    def _is_empty(self) -> bool:
        return False

    def _asked(self) -> Sequence[FetchPartition]:
        self._pending = list(self._session.pending)
        return [partition.asked for partition in self._pending]

    def _reads(self, results: list[FetchedPartition]) -> list[tuple[SessionPartition[FetchPartition], PartitionRead]]:
        reads = []
        committed = self._request.committed
        for partition, result, replica in zip(self._pending, results, self._replicas, strict=True):
            if result.error or result.diverging is not None or result.preferred >= 0 or replica is None:
                reads.append((partition, PartitionRead(None, False, False, None)))
                continue
            offsets = Offsets(result.high_watermark, result.last_stable_offset, result.log_start_offset)
            drained = partition.asked.offset >= _end(offsets, committed=committed)
            reads.append((partition, PartitionRead(offsets, result.records is not None, drained, replica.readers)))
        return reads

    def _result(self, results: list[FetchedPartition]) -> FetchResult:
        session, service = self._session, self._service
        if session.epoch == FULL and not session.ended:
            service.sessions.admit(session, service.now_ms())
        names = session.answers(self._reads(results))
        by_topic: dict[str | bytes, list[FetchedPartition]] = {}
        for result, named in zip(results, names, strict=True):
            if named:
                by_topic.setdefault(result.topic, []).append(result)
        return FetchResult(0, session.id, [result for topic in by_topic.values() for result in topic])

    def _wait(self, results: list[FetchedPartition]) -> None:
        self._session.waits(self._reads(results))

    def _unwait(self) -> None:
        """The session's partitions stay registered."""

    def superseded(self, by: RequestContext) -> None:
        """The session's next request has arrived. On the same connection, this one is answered first."""
        if by.connection.serial == self._ctx.connection.serial:
            self.finish_now()
        if not self._done:
            self._end()
            self._ctx.respond(encode_response(
                self._ctx.api_version, FetchResult(ErrorCode.INVALID_FETCH_SESSION_EPOCH, NO_SESSION, [])))

    def _lose(self, hidden: Collection[str | bytes]) -> None:
        """The session ends, as at the client's next request."""
        self._end()
        self._service.sessions.close(self._session.id)
        self._ctx.api.failed(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        self._ctx.respond(encode_response(
            self._ctx.api_version, FetchResult(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, NO_SESSION, [])))

    def _end(self) -> None:
        super()._end()
        session = self._session
        if session.fetch is self:
            session.fetch = None
        if session.id == NO_SESSION and not session.ended:
            session.end()


def _mode(request: FetchRequest) -> tuple[bool, str]:
    return request.committed, request.rack


def _by_id(ctx: RequestContext) -> bool:
    return ctx.api_version >= FIRST_WITH_TOPIC_IDS


def _key(partition: FetchPartition) -> tuple[str | bytes, int]:
    return partition.topic, partition.partition


def _offsets(replica: Replica) -> Offsets:
    machine = replica.machine
    return Offsets(machine.high_watermark, machine.last_stable_offset, machine.log_start_offset)


def _end(offsets: Offsets, *, committed: bool) -> int:
    return offsets.last_stable_offset if committed else offsets.high_watermark


_ELSEWHERE: Final = frozenset({
    ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH,
})

def _release(results: Sequence[FetchedPartition]) -> None:
    for result in results:
        if result.records is not None:
            result.records.release()
