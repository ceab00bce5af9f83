"""The follower's side of replication: one connection to each leader, for all partitions copied from there.

Two requests may be in flight: one waits at the leader for records. A newer one ends that wait, and reports what has
been synced meanwhile or names the partitions to continue (`hapax.wire.replica_fetch`). So records travel while earlier
ones are being synced, and an idle cluster costs one request per `replica.fetch.wait.max.ms` and connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from hapax.broker.copying import Copying, FetchSnapshot, LostRange, Overtaken
from hapax.broker.replica import Replica
from hapax.broker.throttle import Throttle
from hapax.codec.metadata import PartitionRecord
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.partition.barrier import REQUESTS_AT_ONCE
from hapax.core.partition.replication import UNKNOWN_END
from hapax.core.types import NodeId, RegistrationEpoch, TopicId
from hapax.log.durable import SyncFailed
from hapax.log.soundness import Damaged
from hapax.runtime import supervision, telemetry
from hapax.runtime.cluster import ClusterView, NodeView
from hapax.runtime.ports import Network, Randomness, Task
from hapax.runtime.registration import Registration
from hapax.runtime.settings import Settings
from hapax.wire.messages import FetchRequest
from hapax.wire.nodes import connect_to
from hapax.wire.peer import Peer, PeerError, PeerUnsupported
from hapax.wire.replica_fetch import (
    FETCH_VERSION,
    Answered,
    FetchAnswer,
    Key,
    Naming,
    decode_response,
    encode_request,
)

log = telemetry.logger("fetcher")

_OVERLAP_BYTES: Final = 128 << 10
"""If an answer has at least this many bytes, the next records are fetched while these are synced. Fewer bytes are
synced faster than a request takes."""
_BACKOFF_FIRST_S: Final = 0.02
_ANSWER_SLACK_MS: Final = 10_000
_CONNECT_TIMEOUT_MS: Final = 3_000
_EXPECTED: Final = frozenset({
    ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
})
"""Errors while leaders change, because brokers do not learn of it at the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetcherContext:
    """What the fetchers of a broker share."""

    network: Network
    view: ClusterView
    random: Randomness
    settings: Settings
    throttle: Throttle
    fetch_snapshot: FetchSnapshot
    lost: Callable[[Replica, LostRange], None]
    """Called with the committed records that an unclean election took back."""
    fatal: Callable[[SyncFailed], None]


class Fetchers:
    """All fetchers of a broker. `follow` and `leave` begin and end the copying of a replica."""

    def __init__(self, context: FetcherContext) -> None:
        self.context = context
        self.registration: Registration | None = None
        """This broker's registration; set before the first `follow`."""
        self._closed = False
        self._fetchers: dict[NodeId, Fetcher] = {}

    def follow(self, replica: Replica, record: PartitionRecord) -> bool:
        """Copies the replica from the leader that the record names, if any. False: its log is being cut; call again
        when it is idle (`Copying.when_idle`)."""
        copying = replica.copying
        if (
            isinstance(copying, Copying) and copying.leader == record.leader
            and copying.leader_epoch == record.leader_epoch
        ):
            return True
        if not self.leave(replica):
            return False
        assert self.registration is not None
        me = self.registration.record.node_id
        if self._closed or record.leader < 0 or record.leader == me:  # for example a former process of this node
            return True
        fetcher = self._fetchers.get(record.leader)
        if fetcher is None:
            fetcher = self._fetchers[record.leader] = Fetcher(self.context, self.registration, record.leader)
        copying = replica.copying = Copying(replica, record.leader, record.leader_epoch)
        fetcher.add(copying)
        return True

    @staticmethod
    def leave(replica: Replica) -> bool:
        """Stops appending from a leader. False: the log is still being cut."""
        copying = replica.copying
        if not isinstance(copying, Copying):
            return True
        if not copying.ended:
            copying.stop()
        if copying.busy:
            return False
        replica.copying = None
        return True

    @staticmethod
    def halt(replica: Replica) -> bool:
        """Stops fetching for this replica, and makes its leader forget its reported end. True: the leader has."""
        replica.halted = True
        replica.readers.wake()
        copying = replica.copying
        if not isinstance(copying, Copying) or copying.quiet:
            return True
        if isinstance(copying.fetcher, Fetcher):
            copying.fetcher.silence(copying)
        return False

    @staticmethod
    def resume(replica: Replica) -> None:
        """After `halt`, if the replica is kept."""
        replica.halted = False
        copying = replica.copying
        if isinstance(copying, Copying) and isinstance(copying.fetcher, Fetcher):
            copying.fetcher.resume(copying)

    def nodes_changed(self) -> None:
        for fetcher in self._fetchers.values():
            fetcher.wake()

    def lag(self) -> int:
        """Number of offsets below the leaders' high watermarks that are not copied yet."""
        return sum(fetcher.lag() for fetcher in self._fetchers.values())

    async def close(self) -> None:
        """Stops all copying."""
        self._closed = True
        for fetcher in self._fetchers.values():
            await fetcher.close()


class Fetcher:
    """Copies all partitions of one leader; `copying.CopySource`."""

    def __init__(self, context: FetcherContext, registration: Registration, leader: NodeId) -> None:
        self.leader = leader
        self._context = context
        self._registration = registration
        self._copies: dict[Key, Copying] = {}
        self._due: dict[Key, Copying] = {}
        """Partitions to be named in the next request."""
        self._reports: dict[Key, Copying] = {}
        """Partitions that have synced more, which the next request reports."""
        self._forgotten: dict[Key, None] = {}
        self._silencing: dict[Key, Copying] = {}
        """Partitions that wait until the leader has forgotten their reported ends."""
        self._peer: Peer | None = None
        self._next = 0
        """Number of the next request: the session epoch."""
        self._answered = -1
        """Number of the last request whose answer was read on this connection."""
        self._scheduled = False
        self._woken = asyncio.Event()
        self._task: Task = supervision.keep(self._run, "fetcher", context.random, leader)

    # --- what is copied ---------------------------------------------------------------------------------------------

    def add(self, copying: Copying) -> None:
        copying.fetcher = self
        self._copies[copying.key] = copying
        self._name(copying)
        if copying.key in self._due:  # else the leader must forget that it followed under the earlier epoch
            self._forgotten.pop(copying.key, None)
        self._woken.set()

    def drop(self, copying: Copying) -> None:
        if self._copies.get(copying.key) is copying:
            del self._copies[copying.key]
            self._due.pop(copying.key, None)
            self._reports.pop(copying.key, None)
            self._silencing.pop(copying.key, None)
            self._forgotten[copying.key] = None
            if self._copies:
                self._schedule()
            else:
                self._woken.set()  # no partition needs the connection any more

    def silence(self, copying: Copying) -> None:
        """See `Fetchers.halt`."""
        if copying.silenced_in < 0:
            self._due.pop(copying.key, None)
            self._reports.pop(copying.key, None)
            self._forgotten[copying.key] = None
            self._silencing[copying.key] = copying
            copying.silenced_in = self._next
            self._schedule()

    def resume(self, copying: Copying) -> None:
        copying.quiet, copying.silenced_in = False, -1
        self._silencing.pop(copying.key, None)
        self._forgotten.pop(copying.key, None)
        self._name(copying)

    def synced(self, copying: Copying) -> None:
        if copying.replica.halted or copying.reported == UNKNOWN_END:
            return
        if copying.waits_for_disk:
            self._name(copying)
        elif copying.named_in >= 0 and copying.replica.durable_end > copying.reported:
            self._reports[copying.key] = copying
            self._schedule()

    def start_noted(self, copying: Copying) -> None:
        if copying.named_in >= 0 and not copying.replica.halted:
            self._reports[copying.key] = copying
            self._schedule()

    def lag(self) -> int:
        return sum(copying.lag for copying in self._copies.values())

    def _name(self, copying: Copying) -> None:
        """Asks for more records with the next request."""
        copying.waits_for_disk = False
        copying.named_in = -1
        if not copying.busy and not copying.ended and not copying.replica.halted:
            self._due[copying.key] = copying
            self._schedule()

    def _name_later(self, copying: Copying, delay: float) -> None:
        def name() -> None:
            if copying.fetcher is self:
                self._name(copying)

        asyncio.get_running_loop().call_later(delay, name)

    # --- the connection ---------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """The leader's registration may have changed."""
        self._woken.set()

    async def _run(self) -> None:
        delay = _BACKOFF_FIRST_S
        while True:
            self._woken.clear()
            node = self._context.view.node(self.leader)
            if node is None or not self._copies:
                await self._woken.wait()
                continue
            failure = await self._converse(node)
            delay = _BACKOFF_FIRST_S if self._answered >= 0 else min(delay * 2, self._backoff_max_s)
            log.info("no longer fetching", leader=self.leader, reason=failure)
            await asyncio.sleep(delay * (0.5 + self._context.random.random()))

    @property
    def _backoff_max_s(self) -> float:
        return self._context.settings.replica_fetch_backoff_ms / 1000

    async def _converse(self, node: NodeView) -> str:
        """Fetches until the connection ends. Returns the reason."""
        settings = self._context.settings
        self._answered = -1
        try:
            peer = await connect_to(
                self._context.network, node,
                client_id=f"hapax-{self._registration.record.node_id}-replica",
                request_timeout_ms=settings.replica_fetch_wait_max_ms + _ANSWER_SLACK_MS,
                connect_timeout_ms=_CONNECT_TIMEOUT_MS,
            )
        except (PeerError, PeerUnsupported) as error:
            return str(error)
        ended = asyncio.Event()
        peer.on_close = lambda reason: ended.set()
        self._peer, self._next = peer, 0
        self._reports.clear()
        self._forgotten = dict.fromkeys(self._silencing)
        for copying in self._silencing.values():
            copying.silenced_in = 0
        for copying in self._copies.values():
            self._name(copying)
        self._pump()
        try:
            while not peer.closed and self._copies and self._is_there(node.registration):
                self._woken.clear()
                await _either(ended, self._woken)
        finally:
            self._peer = None
            peer.close("no longer fetching")
            for copying in self._copies.values():
                copying.unheard()
        return peer.closed_because or "nothing to fetch"

    def _is_there(self, registration: RegistrationEpoch) -> bool:
        """Whether the connected process is still the node's present registration."""
        node = self._context.view.node(self.leader)
        return node is None or node.registration == registration

    def _schedule(self) -> None:
        if not self._scheduled and self._peer is not None:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        """Sends what is due, and keeps one request waiting at the leader."""
        self._scheduled = False
        peer = self._peer
        while peer is not None and not peer.closed and (
            peer.in_flight == 0
            or (peer.in_flight < REQUESTS_AT_ONCE and (self._due or self._reports or self._forgotten))
        ):
            self._send(peer)

    def _send(self, peer: Peer) -> None:
        settings = self._context.settings
        named = [self._naming(copying, settings.replica_fetch_max_bytes) for copying in self._due.values()]
        for copying in self._due.values():
            copying.named_in = self._next
            self._reports.pop(copying.key, None)
        named += [self._naming(copying, 0) for copying in self._reports.values()]
        body = encode_request(
            self._registration.record.node_id, self._registration.epoch, self._registration.record.session,
            session_id=1 if self._next else 0, session_epoch=self._next,
            max_wait_ms=settings.replica_fetch_wait_max_ms, max_bytes=settings.replica_fetch_response_max_bytes,
            named=named, forgotten=self._forgotten, answered=self._answered,
        )
        number = self._next
        self._next += 1
        self._due.clear()
        self._reports.clear()
        self._forgotten.clear()
        peer.submit_raw(
            FetchRequest, FETCH_VERSION, body, decode=lambda view: self._receive(decode_response(view), number)
        )

    @staticmethod
    def _naming(copying: Copying, max_bytes: int) -> Naming:
        replica = copying.replica
        machine = replica.machine
        copying.reported = UNKNOWN_END if replica.inheritance.awaited(copying.leader_epoch) else replica.durable_end
        return Naming(
            TopicId(copying.key[0]), copying.key[1], copying.leader_epoch, machine.log_end_offset,
            machine.leader_epochs.latest, replica.maintenance.log_start.report, max_bytes, copying.reported,
        )

    # --- answers ----------------------------------------------------------------------------------------------------

    def _receive(self, answer: FetchAnswer, number: int) -> None:
        """Called while the frame is delivered, so that records are appended from the receive buffer."""
        if answer.error or answer.session_id == 0:
            assert self._peer is not None
            asyncio.get_running_loop().call_soon(self._peer.close, f"the session was refused: error {answer.error}")
            return
        self._answered = number
        for partition in answer.partitions:
            copying = self._copies.get((partition.topic_id, partition.partition))
            if copying is not None and not copying.busy and 0 <= copying.named_in <= number:
                self._take(copying, partition)
        if self._silencing:
            for key, copying in list(self._silencing.items()):
                if copying.silenced_in <= number:
                    copying.quiet = True
                    del self._silencing[key]
        self._schedule()

    def _take(self, copying: Copying, partition: Answered) -> None:
        """An answer with records, or a newer high watermark."""
        replica = copying.replica
        if partition.error:
            self._refused(copying, partition.error)
            return
        if partition.diverging is not None:
            copying.named_in = -1
            copying.begin(copying.truncate(*partition.diverging), lambda lost, error: self._done(copying, lost, error))
            return
        if replica.inheritance.awaited(copying.leader_epoch):
            self._inherit(copying, from_start=False)
            return
        try:
            if partition.records:
                copying.named_in = -1
                if replica.storage_error:
                    self._name_later(copying, self._backoff_max_s)
                    return
                copying.append(partition.records)
                copying.backoff_s = 0.0
                self._go_on(copying, len(partition.records))
            copying.heard(partition.high_watermark, partition.log_start_offset)
        except Overtaken:
            self._inherit(copying, from_start=True)
        except Refusal as refusal:
            log.error(
                "the leader sent a batch that does not fit", partition=replica.name, leader=self.leader, reason=refusal)
            self._name_later(copying, self._backoff_max_s)
        except OSError as error:
            replica.context.storage.failed(replica, error)
            self._name_later(copying, self._backoff_max_s)

    def _go_on(self, copying: Copying, size: int) -> None:
        """Names the partition again: now, after its records are synced, or when the throttle allows."""
        if not self._is_member(copying):
            self._context.throttle.used(size)
            delay = self._context.throttle.delay()
            if delay > 0:
                self._name_later(copying, delay)
                return
        if size >= _OVERLAP_BYTES or copying.replica.durable_end >= copying.replica.machine.log_end_offset:
            self._name(copying)
        else:
            copying.waits_for_disk = True

    def _is_member(self, copying: Copying) -> bool:
        assigned = self._context.view.partition(*copying.replica.id)
        return assigned is not None and self._registration.record.node_id in assigned.record.isr

    def _refused(self, copying: Copying, error: int) -> None:
        copying.named_in = -1
        if error == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._inherit(copying, from_start=True)
            return
        if error not in _EXPECTED:
            log.warning("a leader refused a fetch", partition=copying.replica.name, leader=self.leader, error=error)
        copying.backoff_s = min(max(_BACKOFF_FIRST_S, 2 * copying.backoff_s), self._backoff_max_s)
        self._name_later(copying, copying.backoff_s * (0.5 + self._context.random.random()))

    def _inherit(self, copying: Copying, *, from_start: bool) -> None:
        copying.named_in = -1
        asked = self._context.fetch_snapshot(
            copying.replica, copying.leader, copying.leader_epoch, self._registration)
        copying.begin(
            copying.inherit(asked, from_start=from_start), lambda lost, error: self._done(copying, lost, error))

    def _done(self, copying: Copying, lost: LostRange | None, error: BaseException | None) -> None:
        """The log was cut or started over."""
        if isinstance(error, SyncFailed):
            self._context.fatal(error)
        elif isinstance(error, Refusal) and error.code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._inherit(copying, from_start=True)
        elif isinstance(error, Damaged):  # the machine has replayed only a part of the log
            copying.replica.context.committer.fatal(f"{error}; exiting, so that recovery cuts the log there")
        elif error is not None:
            log.warning("a log could not be cut or started over", partition=copying.replica.name, error=error)
            self._name_later(copying, self._backoff_max_s)
        else:
            if lost is not None:
                self._context.lost(copying.replica, lost)
            self._name(copying)

    async def close(self) -> None:
        for copying in list(self._copies.values()):
            copying.stop()
        await supervision.end(self._task)


async def _either(one: asyncio.Event, other: asyncio.Event) -> None:
    waits = [supervision.judged(one.wait()), supervision.judged(other.wait())]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
