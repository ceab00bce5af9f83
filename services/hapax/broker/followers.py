"""The leader's side of replication: answers Fetch requests with a replica id, in one session for each following broker.

A follower names a partition and gets one answer with records, up to the end of the log and not only to the high
watermark. Then it names the partition again, and so reports its own end (`hapax.wire.replica_fetch`). The end that it
has synced counts for the high watermark only after its history was found to be the leader's (KIP-595), and only while
its request shows the live registration of a replica (rules 5 and 17).
"""

from __future__ import annotations

import asyncio
from typing import Final, cast

from hapax.broker.metrics import REPLICATED_BYTES
from hapax.broker.partition_views import LedPartition
from hapax.broker.partitions import PartitionSet
from hapax.broker.read_replicas import epoch_of
from hapax.broker.replica import Replica
from hapax.broker.throttle import Throttle
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.partition.barrier import Conversation
from hapax.core.types import NodeId
from hapax.kafka.api.fetch import FetchedPartition, FetchPartition, FetchRequest, FetchResult, encode_response, failed
from hapax.kafka.node_proofs import proven
from hapax.kafka.table import DEFERRED, RequestContext
from hapax.log.reading import Cold
from hapax.log.segment import LogRange
from hapax.log.soundness import Damaged
from hapax.runtime import supervision, telemetry
from hapax.runtime.cluster import NodeView
from hapax.runtime.incidents import Incidents
from hapax.runtime.security_settings import SSL

log = telemetry.logger("followers")

_MAX_WAIT_MS: Final = 30_000
_WARMING_ROUNDS: Final = 4
_NEWS_S: Final = 0.005
"""A follower whose consumers wait hears of new high watermarks at most this often."""


class Followers:
    """All sessions. `fetch` answers the requests with a replica id for `FetchService`."""

    def __init__(
        self, partitions: PartitionSet, incidents: Incidents, throttle: Throttle, metrics: telemetry.Metrics,
        *, prompt: bool = False,
    ) -> None:
        """`throttle` limits the bytes sent to replicas that are not in sync. `prompt`: consumers read from followers,
        so those hear of a high watermark soon, and not with the next records."""
        self.partitions = partitions
        self.prompt = prompt
        self.throttle = throttle
        self.sent_bytes = metrics.counter(REPLICATED_BYTES)
        self._secured = partitions.settings.security_inter_broker_protocol == SSL
        self._incidents = incidents
        self._sessions: dict[NodeId, FollowerSession] = {}

    def fetch(self, ctx: RequestContext, request: FetchRequest) -> object:
        node = self._asking(ctx, request)
        if node is None:
            self._incidents(
                "replica", "refused a fetch in the name of a replica", peer=ctx.connection.peer,
                replica=request.replica_id,
            )
            return encode_response(ctx.api_version, FetchResult(0, 0, [
                failed(p, ErrorCode.NOT_LEADER_OR_FOLLOWER) for p in request.partitions
            ]))
        session = self._sessions.get(node.node_id)
        if request.session_epoch == 0:
            self._sweep()
            if session is not None:
                session.end()
            session = self._sessions[node.node_id] = FollowerSession(self, node, ctx.connection.serial)
        elif session is None or session.connection != ctx.connection.serial or session.node != node:
            return encode_response(ctx.api_version, FetchResult(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0, []))
        elif request.session_epoch != session.next_epoch:
            return encode_response(ctx.api_version, FetchResult(ErrorCode.INVALID_FETCH_SESSION_EPOCH, 0, []))
        return session.receive(ctx, request)

    def _asking(self, ctx: RequestContext, request: FetchRequest) -> NodeView | None:
        """The live broker whose registration the request proves, if it has the request's replica id."""
        shown = proven(self.partitions.view, ctx, request.proof, self._secured)
        node = None if shown is None else shown.node
        return node if node is not None and node.node_id == request.replica_id and node.role == "broker" else None

    def forgot(self, node: NodeView, partition: tuple[bytes, int]) -> None:
        """The node no longer copies this partition."""
        replica = self.partitions.by_id.get(partition)
        if replica is not None and replica.replication is not None:
            replica.replication.forgot(node.node_id)

    def _sweep(self) -> None:
        """Ends the sessions of closed connections."""
        for node_id, session in list(self._sessions.items()):
            if session.closed:
                session.end()
                del self._sessions[node_id]

    def close(self) -> None:
        """Answers all requests that wait, and ends the sessions."""
        for session in self._sessions.values():
            session.end()
        self._sessions.clear()


class FollowerSession:
    """One follower's connection: the partitions that it copies, and its waiting request."""

    def __init__(self, followers: Followers, node: NodeView, connection: int) -> None:
        self.followers = followers
        self.node = node
        self.connection = connection
        self.next_epoch = 0
        self.urgent: dict[Pull, None] = {}
        """Pulls that have something to answer at once."""
        self.quiet: dict[Pull, None] = {}
        """Pulls with a newer high watermark or log start, which goes with the next answer."""
        self.conversation = Conversation()
        self._news_due = False
        """The next request is answered at once: a log start has moved on request."""
        self._wanted = 0
        """The round that barriers wait for. Requests are answered at once until the follower has answered it."""
        self._barriers = followers.partitions.context.barriers
        self._pulls: dict[tuple[bytes, int], Pull] = {}
        self._ctx: RequestContext | None = None
        self._number = 0
        """Number of the waiting request."""
        self._last: RequestContext | None = None
        self._max_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._scheduled = False
        self._news_due = False
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def closed(self) -> bool:
        return self._last is not None and self._last.closed

    def receive(self, ctx: RequestContext, request: FetchRequest) -> object:
        """The answer, or DEFERRED."""
        number = request.session_epoch
        self.next_epoch = number + 1
        self._finish([])
        self.conversation.asked(number, request.answered)
        for topic, index in request.forgotten:
            pull = self._pulls.pop((cast("bytes", topic), index), None)
            if pull is not None:
                pull.end()
            self.followers.forgot(self.node, (cast("bytes", topic), index))
        for named in request.partitions:
            key = (cast("bytes", named.topic), named.partition)
            pull = self._pulls.get(key)
            if pull is None:
                pull = self._pulls[key] = Pull(self, *key)
            pull.named(named)
        if self._barriers.waiting:
            self._confirm()
        self._ctx = self._last = ctx
        self._number = number
        self._max_bytes = request.max_bytes
        delay = min(request.max_wait_ms, _MAX_WAIT_MS) / 1000
        at_once = delay <= 0 or self._pressed or self._news_due
        answers = self._collect(expired=at_once) if self.urgent or at_once else None
        if answers is not None:
            self._ctx = None
            return self._encoded(ctx, answers)
        self._timer = asyncio.get_running_loop().call_later(delay, self._again, True)
        return DEFERRED

    def _confirm(self) -> None:
        """The follower followed the partitions that it has named and not forgotten when it sent its last request."""
        heard = self.conversation.heard
        for barrier in list(self._barriers.waiting):
            partition = barrier.partition
            pull = self._pulls.get(partition.id)
            if pull is not None and pull.follows(partition) and partition.replication is not None:
                self._wanted = max(self._wanted, barrier.round)
                partition.replication.heard(self.node.node_id, heard)
                barrier.check()

    @property
    def _pressed(self) -> bool:
        return bool(self._barriers.waiting) and self._wanted > self.conversation.heard

    def press(self, newest_round: int) -> None:
        """A barrier waits for the follower to answer this round."""
        if newest_round > self._wanted:
            self._wanted = newest_round
            self.wake()

    def hurry(self) -> None:
        """Sends the news at once."""
        self._news_due = True
        self.wake()

    def wake(self) -> None:
        """A pull has become urgent, or a barrier waits."""
        if self._ctx is not None and not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._again)

    def bring_news(self) -> None:
        """Answers soon with what is quiet, for all partitions together."""
        if self.followers.prompt and not self._news_due:
            self._news_due = True
            asyncio.get_running_loop().call_later(_NEWS_S, self._bring_news)

    def _bring_news(self) -> None:
        self._news_due = False
        if self._ctx is not None and self.quiet and not self._ctx.closed:
            answers = self._collect(expired=True)
            if answers:
                self._finish(answers)

    def _again(self, expired: bool = False) -> None:
        self._scheduled = False
        if self._ctx is None:
            return
        if self._ctx.closed:
            self.end()
            return
        answers = self._collect(expired=expired or self._pressed or self._news_due)
        if answers is not None:
            self._finish(answers)

    def _finish(self, answers: list[FetchedPartition]) -> None:
        """Answers the waiting request, if there is one."""
        ctx, self._ctx = self._ctx, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if ctx is not None:
            ctx.respond(self._encoded(ctx, answers))

    def _encoded(self, ctx: RequestContext, answers: list[FetchedPartition]) -> object:
        if self._barriers.waiting:
            self.conversation.answered(self._number, self._barriers.rounds.leave())
        return encode_response(ctx.api_version, FetchResult(0, 1, answers))

    def _collect(self, *, expired: bool) -> list[FetchedPartition] | None:
        """The partitions to answer. None: there is no reason to answer yet."""
        left = self._max_bytes
        answers: list[FetchedPartition] = []
        for pull in list(self.urgent):
            answer = pull.answer(left, first=left == self._max_bytes)
            if answer is not None:
                answers.append(answer)
                left -= 0 if answer.records is None else answer.records.size
        if not answers and not expired:
            return None
        self.followers.sent_bytes.value += self._max_bytes - left
        for pull in self.quiet:
            news = pull.news()
            if news is not None:
                answers.append(news)
        self.quiet.clear()
        self._news_due = False
        return answers

    def warm(self, pull: Pull, replica: Replica, cold: Cold) -> None:
        """Reads a range that is not in the page cache, in a thread off the loop (rule 18)."""
        async def read_ahead() -> None:
            try:
                await replica.log.warm(cold)
            except OSError as error:
                log.warning("a cold range could not be read", partition=replica.name, error=error)
                pull.fail(ErrorCode.KAFKA_STORAGE_ERROR)
            finally:  # else the follower would wait for this partition until it reconnects
                pull.resume()

        task = supervision.once(read_ahead(), "warm-for-follower", replica.name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def end(self) -> None:
        """Ends the session. A waiting request is still answered."""
        if self._ctx is not None and self._ctx.closed:
            self._ctx = None
        self._finish([])
        for pull in self._pulls.values():
            pull.end()
        self._pulls.clear()


class Pull:
    """One partition in a session; `replica.FollowerSubscriber`."""

    __slots__ = (
        "_aside", "_checked", "_diverging", "_entitled", "_error", "_max_bytes", "_offset", "_replica", "_session",
        "_told", "_warmed", "index", "topic_id",
    )  # fmt: skip

    def __init__(self, session: FollowerSession, topic_id: bytes, index: int) -> None:
        self._session = session
        self.topic_id = topic_id
        self.index = index
        self._replica: Replica | None = None
        self._entitled = False
        """The follower has named the partition, and gets one answer with records."""
        self._checked = False
        """The follower's history was found to be the leader's, up to the offset asked for."""
        self._error = 0
        self._diverging: tuple[int, int] | None = None
        self._offset = 0
        self._max_bytes = 0
        self._told = (-1, -1)
        self._aside = False
        """It waits for the disk or is throttled."""
        self._warmed = 0

    # --- what the follower says -------------------------------------------------------------------------------------

    def named(self, named: FetchPartition) -> None:
        """The follower reports its synced end and, unless `max_bytes` is 0, asks for records from `offset` on."""
        report_only = named.max_bytes == 0
        replica = self._replica
        if report_only:
            if self._checked and replica is not None and named.leader_epoch == replica.leader_epoch:
                self._synced(replica, named)
            return
        self._detach()
        self._entitled, self._max_bytes, self._offset = True, named.max_bytes, named.offset
        self._error, self._diverging = 0, None
        try:
            replica = self._session.followers.partitions.find(self.topic_id, self.index)
            self._check(replica, named)
        except Refusal as refusal:
            self.fail(refusal.code)
            return
        replica.pulls.append(self)
        self._replica = replica
        if self._diverging is not None:
            self._urge()
            return
        self._checked = True
        self._told = (-1, -1)  # it ignores news while an answer with records is due
        self._session.quiet[self] = None
        self._synced(replica, named)
        if replica.machine.log_end_offset > named.offset:
            self._urge()

    def _check(self, replica: Replica, named: FetchPartition) -> None:
        """Raises Refusal. Notes a divergence."""
        if named.leader_epoch != replica.leader_epoch:
            older = named.leader_epoch < replica.leader_epoch
            raise Refusal(ErrorCode.FENCED_LEADER_EPOCH if older else ErrorCode.UNKNOWN_LEADER_EPOCH)
        replication = replica.replication
        if replication is None or self._session.node.node_id not in replication.replicas:
            raise Refusal(ErrorCode.UNKNOWN_LEADER_EPOCH)  # the follower has newer metadata than this node
        machine = replica.machine
        node_id, now_ms = self._session.node.node_id, replica.context.clock.monotonic_ms()
        if named.offset < replica.log.start_offset or not replication.asked(node_id, named.offset, now_ms):
            raise Refusal(ErrorCode.OFFSET_OUT_OF_RANGE)
        if named.last_fetched_epoch >= 0:
            self._diverging = diverging(replica, named.last_fetched_epoch, named.offset)
        if self._diverging is None and named.offset > machine.log_end_offset:
            raise Refusal(ErrorCode.OFFSET_OUT_OF_RANGE)

    def _synced(self, replica: Replica, named: FetchPartition) -> None:
        node = self._session.node
        if named.synced_end <= replica.machine.log_end_offset:  # no replica has more of this history than its leader
            replica.fetched(node.node_id, node.registration, named.synced_end, named.log_start_offset)

    def follows(self, partition: LedPartition) -> bool:
        """The follower has named this partition, under its leader's epoch."""
        return self._replica is partition

    # --- what the partition says ------------------------------------------------------------------------------------

    def press(self, newest_round: int) -> None:
        self._session.press(newest_round)

    def appended(self) -> None:
        if self._entitled and not self._aside:
            self._urge()

    def committed(self) -> None:
        self._session.quiet[self] = None
        self._session.bring_news()

    def start_moved(self) -> None:
        self._session.quiet[self] = None
        self._session.hurry()

    def lost(self) -> None:
        self._detach()
        self.fail(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def _urge(self) -> None:
        if self not in self._session.urgent:
            self._session.urgent[self] = None
            self._session.wake()

    # --- answers ----------------------------------------------------------------------------------------------------

    def answer(self, left: int, *, first: bool) -> FetchedPartition | None:
        """The one answer with records after the partition was named. None: there is nothing to answer now."""
        replica = self._replica
        if self._error or replica is None:
            self._answered()
            return FetchedPartition(self.topic_id, self.index, self._error or ErrorCode.NOT_LEADER_OR_FOLLOWER)
        machine = replica.machine
        if self._diverging is not None:
            self._answered()
            return self._partition(replica, None, self._diverging)
        if not self._entitled or self._offset >= machine.log_end_offset:
            del self._session.urgent[self]
            return None
        delay = self._throttled(replica)
        if delay > 0:
            self._put_aside()
            asyncio.get_running_loop().call_later(delay, self.resume)
            return None
        try:
            fetched = replica.log.read(
                self._offset, max(0, min(left, self._max_bytes)), machine.log_end_offset, at_least_one=first,
                warmed=self._warmed >= _WARMING_ROUNDS,
            )
        except Cold as cold:
            self._warmed += 1
            self._put_aside()
            self._session.warm(self, replica, cold)
            return None
        except (OSError, Damaged) as error:
            log.warning("a read failed", partition=replica.name, error=error)
            self._answered()
            return FetchedPartition(self.topic_id, self.index, ErrorCode.KAFKA_STORAGE_ERROR)
        if fetched.range is None:
            if fetched.next_offset > self._offset:  # compaction left no batch
                self._offset = fetched.next_offset
                return self.answer(left, first=first)
            return None
        self._warmed = 0
        self._answered()
        if not self._in_sync(replica):
            self._session.followers.throttle.used(fetched.range.size)
        return self._partition(replica, fetched.range, None)

    def news(self) -> FetchedPartition | None:
        """A newer high watermark or log start, without records. None: there is none."""
        replica = self._replica
        if replica is None or (replica.machine.high_watermark, replica.machine.log_start_offset) == self._told:
            return None
        return self._partition(replica, None, None)

    def _partition(
        self, replica: Replica, records: LogRange | None, parting: tuple[int, int] | None
    ) -> FetchedPartition:
        machine = replica.machine
        self._told = (machine.high_watermark, machine.log_start_offset)
        return FetchedPartition(
            self.topic_id, self.index, 0, machine.high_watermark, machine.high_watermark, machine.log_start_offset,
            None, records, parting,
        )

    def _answered(self) -> None:
        self._entitled = False
        self._session.urgent.pop(self, None)

    def _throttled(self, replica: Replica) -> float:
        """Seconds to wait. In-sync replicas never wait."""
        return 0.0 if self._in_sync(replica) else self._session.followers.throttle.delay()

    def _in_sync(self, replica: Replica) -> bool:
        return replica.replication is not None and self._session.node.node_id in replica.replication.isr

    def _put_aside(self) -> None:
        self._aside = True
        self._session.urgent.pop(self, None)

    def resume(self) -> None:
        """The wait for the disk or the throttle is over."""
        self._aside = False
        if self._entitled:
            self._urge()

    def fail(self, code: ErrorCode) -> None:
        self._error = int(code)
        if self._entitled:
            self._urge()

    def _detach(self) -> None:
        if self._replica is not None:
            self._replica.pulls.remove(self)
            self._replica = None
        self._checked = False

    def end(self) -> None:
        """The session has ended, or the follower no longer copies this partition."""
        self._detach()
        self._entitled = False
        self._session.urgent.pop(self, None)
        self._session.quiet.pop(self, None)


def diverging(replica: Replica, last_epoch: int, offset: int) -> tuple[int, int] | None:
    """(epoch, its end offset) where a log that ends at `offset` with a record of `last_epoch` diverges from this
    one. None: it does not. Raises Refusal(OFFSET_OUT_OF_RANGE) for an epoch in which no leader has led yet."""
    machine = replica.machine
    epoch, end = machine.leader_epochs.answer(last_epoch, epoch_of(replica), machine.log_end_offset)
    if end < 0:
        raise Refusal(ErrorCode.OFFSET_OUT_OF_RANGE, f"leader epoch {last_epoch} is not known")
    return (epoch, end) if epoch < last_epoch or end < offset else None
