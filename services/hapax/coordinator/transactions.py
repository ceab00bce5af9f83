"""One shard of the transaction coordinator: drives the pure machine, as `core.transaction.requests` prescribes.

A call is decided, its record is appended, and the call is answered after the record's replay. Everything between two
awaits is one step: the shard has a single writer. This module carries out the effects of a replay (markers, timers,
events).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, Protocol, TypeVar

from hapax.codec.transaction_log import decode_record, encode_record
from hapax.coordinator.log_writer import Unit
from hapax.coordinator.markers import MarkerSender, MarkerWaiter, retry_after
from hapax.coordinator.shard import SLICE, Shard, ShardResources, SupersededConnection
from hapax.coordinator.sweep import GRACE_MS, Difference, is_running, timer_in
from hapax.core.batch import BatchHeader
from hapax.core.control import Control
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.transaction.machine import Answer, TransactionShard
from hapax.core.transaction.record import Record, Transaction
from hapax.core.transaction.requests import (
    AbortHanging,
    Caller,
    CheckWinners,
    Decision,
    Effect,
    Ended,
    EndOutcome,
    EndTransaction,
    Held,
    Limits,
    MarkerResult,
    NeedProducerId,
    Reply,
    ReportFencing,
    Request,
    SendMarkers,
    StartTimer,
    StopTimer,
    WinnerCheck,
)
from hapax.core.transaction.states import State
from hapax.core.types import Millis, Now, ProducerId, ShardEpoch, ShardId, TimestampMs
from hapax.runtime import supervision, telemetry
from hapax.runtime.addresses import host_of
from hapax.runtime.audit_events import SILENT, Audit
from hapax.runtime.incidents import Incidents
from hapax.runtime.producer_ids import ProducerIdsUnavailable

log = telemetry.logger("transactions")

_WARN_AFTER_RETRIES: Final = 10
"""After this many failed attempts to store markers, a warning says so, and a later line says when they are stored."""

POSTPONED_FOR_S = 0.5
"""Seconds that a COMPLETE record waits for the id's next record, which makes it unnecessary."""

_TIMER_GRAIN_S = 0.001
"""A timer that is early by less than this rounding error, in seconds, counts as due. Set again, it would fire at once,
again and again."""

_EXPIRE_AT_ONCE = 1000


_Request = TypeVar("_Request", bound=Request)


class ProducerIdSource(Protocol):
    def take(self) -> ProducerId | None:
        """An id from the reserve; None where it is empty."""
        ...

    async def next(self, timeout: float = 5.0) -> ProducerId:
        """Waits for an id. Raises ProducerIdsUnavailable."""
        ...


class Reserve:
    """The reserve of producer ids for the machines: ids that were waited for, and those of the source."""

    def __init__(self, source: ProducerIdSource) -> None:
        self._source = source
        self._offered: deque[ProducerId] = deque()

    def take(self) -> ProducerId | None:
        return self._offered.popleft() if self._offered else self._source.take()

    async def fill(self) -> None:
        """Raises Refusal(COORDINATOR_LOAD_IN_PROGRESS)."""
        try:
            self._offered.append(await self._source.next())
        except ProducerIdsUnavailable as error:
            raise Refusal(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, str(error)) from error


class ChecksWinners(Protocol):
    async def missing(self, check: CheckWinners) -> tuple[WinnerCheck, ...]:
        """Returns the records that a multi-writer commit names and their partitions do not hold. Raises Refusal."""
        ...


class EventSink(Protocol):
    def record(self, kind: str, **fields: object) -> None: ...


class _HeldCall(NamedTuple):
    waiter: asyncio.Future[None]
    until: Millis


@dataclass(slots=True)
class _Activity:
    """What the shard is doing for one transactional id. An id at rest has none."""

    held: list[_HeldCall] | None = None
    writing: int = 0
    """Records that are being appended."""
    marking: int = 0
    """Rises when markers are sent, answered and sent again. 0: there are none to store."""
    marker_retries: int = 0
    timer: asyncio.TimerHandle | None = None
    """The limit of the open transaction."""
    phase: str = ""
    """The phase of the transaction's end, for the metrics. Empty: the transaction does not end."""
    phase_began: float = 0.0
    """By the stopwatch."""

    @property
    def at_rest(self) -> bool:
        return not (
            self.writing or self.marking or self.marker_retries or self.phase or self.held or self.timer is not None
        )


class TxnShard(Shard):
    kind = "txn"

    def __init__(
        self, resources: ShardResources, shard: ShardId, assigned_epoch: ShardEpoch, limits: Limits, ids: Reserve,
        markers: MarkerSender, winners: ChecksWinners, events: EventSink,
        audit: Audit = SILENT,
    ) -> None:
        super().__init__(resources, shard, assigned_epoch)
        self.machine: TransactionShard
        self._limits = limits
        self._ids = ids
        self._markers = markers
        self._winners = winners
        self._events = events
        self._audit = audit
        self._activities: dict[str, _Activity] = {}
        """By transactional id."""
        self._postponed: dict[str, float] = {}
        """Transactional id -> loop time since which its completion waits. The oldest is first."""
        self._complain = Incidents(log, asyncio.get_running_loop().time)
        self._newest: dict[bytes, bytes | None] = {}
        """While the shard loads: the last value of each key, in log order."""
        self._completer: asyncio.TimerHandle | None = None
        self._expiry: asyncio.TimerHandle | None = None

    # --- calls ----------------------------------------------------------------------------------------------------

    def now(self) -> Now:
        clock = self.resources.clock
        return Now(Millis(clock.monotonic_ms()), TimestampMs(clock.now_ms()))

    async def ask(self, decide: Callable[[TransactionShard, _Request, Now], Answer], request: _Request) -> Reply:
        """`decide` is the machine's method for the request. Raises Refusal, or SupersededConnection (rule 4)."""
        transactional_id = request.transactional_id
        checking: list[TransactionShard] = []
        try:
            while True:
                self.check_serving()
                try:
                    answer = decide(self.machine, request, self.now())
                except Refusal as refusal:
                    if refusal.code is not ErrorCode.CONCURRENT_TRANSACTIONS:
                        await self.confirm()  # a client acts on "fenced" or "aborted" too
                    raise
                if isinstance(answer, Decision):
                    if answer.effects:
                        self._carry_out(answer.effects, request.caller)
                    if answer.record is not None:
                        await self.persist(answer.record, request.caller)
                    elif answer.confirm:
                        await self.confirm()
                    if answer.reply is not None:
                        return answer.reply
                elif isinstance(answer, Held):
                    await self._hold(transactional_id, answer.until)
                elif isinstance(answer, NeedProducerId):
                    await self._ids.fill()
                elif isinstance(answer, CheckWinners):
                    checking.append(self.machine)
                    request = _with_missing(request, await self._winners.missing(answer))
                else:
                    self.resources.counters.fencings.labels("older_connection").value += 1
                    raise SupersededConnection(answer.reason)
        finally:
            if checking:
                for machine in checking:
                    machine.winners_checked(transactional_id)
                self._wake(transactional_id)

    async def end_transaction(self, request: EndTransaction) -> Ended:
        """Raises Refusal."""
        reply = await self.ask(TransactionShard.end_transaction, request)
        assert isinstance(reply, Ended)
        if reply.outcome is EndOutcome.ALREADY_COMMITTED:
            self._token_replayed(request, reply)
        return reply

    def _token_replayed(self, request: EndTransaction, reply: Ended) -> None:
        self.resources.counters.tokens_replayed.value += 1
        token = request.token
        self._complain(
            "token", "a commit token is not newer: answered as already committed",
            transactional_id=request.transactional_id, scope="" if token is None else token.scope,
            token=-1 if token is None else token.value, committed_by_serial=reply.serial,
            committed_records=reply.committed_records, client=request.caller.client_id, peer=request.caller.peer,
        )

    async def abort_hanging(self, request: AbortHanging) -> None:
        """Returns when the marker is stored. Raises Refusal."""
        self.check_serving()
        decision = self.machine.abort_hanging(request, self.now())
        if not isinstance(decision, Decision):
            raise Refusal(ErrorCode.CONCURRENT_TRANSACTIONS, "a record of this transactional id is being written")
        await self.confirm()
        for effect in decision.effects:
            assert isinstance(effect, SendMarkers)
            await self._markers.send_once(MarkerWaiter(self.shard, self.epoch), effect)

    def persist(self, record: Record, by: Caller | None = None) -> asyncio.Future[None]:
        """Appends a record that the machine has decided. The future is done after the record's replay. `by`: who asked
        for it; None: the cluster.

        The future fails with a Refusal where the record was certainly not stored (it is withdrawn). Where the outcome
        is unknown, it fails when the shard stops.
        """
        waiter = self.waiter()
        transactional_id = record.transactional_id
        activity = self._activity(transactional_id)
        asked_at = self.resources.counters.stopwatch()

        def stored(offset: int) -> None:
            activity.writing -= 1
            effects = self.machine.replay(record, self.now())
            self._count(record, activity, asked_at, by)
            self._wake(transactional_id)
            if not waiter.done():
                waiter.set_result(None)
            if effects:
                self._carry_out(effects, by)
            self._drop_if_at_rest(transactional_id)

        def refused(code: ErrorCode, reason: str) -> None:
            activity.writing -= 1
            log.error("a record was refused", transactional_id=transactional_id, code=code.name, reason=reason)
            self._carry_out(self.machine.withdraw(record, self.now()))
            self._wake(transactional_id)
            if not waiter.done():
                waiter.set_exception(Refusal(ErrorCode.UNKNOWN_SERVER_ERROR, reason))
                waiter.exception()
            self._drop_if_at_rest(transactional_id)

        self.append(Unit(encode_record(record), stored, refused))
        activity.writing += 1
        return waiter

    def _activity(self, transactional_id: str) -> _Activity:
        activity = self._activities.get(transactional_id)
        if activity is None:
            activity = self._activities[transactional_id] = _Activity()
        return activity

    def _drop_if_at_rest(self, transactional_id: str) -> None:
        activity = self._activities.get(transactional_id)
        if activity is not None and activity.at_rest:
            del self._activities[transactional_id]

    def _count(self, record: Record, activity: _Activity, asked_at: float, by: Caller | None) -> None:
        """A record was stored. The id's next record may stand for a completion that waits."""
        counters = self.resources.counters
        now = counters.stopwatch()
        if activity.phase == "complete":
            counters.phases.labels("complete").observe(now - activity.phase_began)
        activity.phase = ""
        if isinstance(record, Transaction) and record.state in (State.PREPARE_COMMIT, State.PREPARE_ABORT):
            (counters.committed if record.state is State.PREPARE_COMMIT else counters.aborted).value += 1
            counters.phases.labels("prepare").observe(now - asked_at)
            activity.phase, activity.phase_began = "markers", now
            if record.state is State.PREPARE_ABORT and self._audit.enabled:
                self._tell("transaction_aborted", record, by, old={
                    "producer_id": record.producer_id, "producer_epoch": record.producer_epoch,
                    "partitions": len(record.every_partition),
                }, new=record.state.kafka_name)

    def _tell(self, event: str, transaction: Transaction, by: Caller | None, **fields: object) -> None:
        """The audit log."""
        principal, address, call = (None, "", "time-out") if by is None else (
            by.principal, by.address or host_of(by.peer), by.call)
        self._audit.record(
            event, principal, address, call=call, transactional_id=transaction.transactional_id,
            serial=transaction.serial, **fields)

    async def _hold(self, transactional_id: str, until: Millis) -> None:
        """Waits until the id's next replay, or `until`."""
        self.resources.counters.held.value += 1
        waiter = self.waiter()
        activity = self._activity(transactional_id)
        if activity.held is None:
            activity.held = []
        activity.held.append(_HeldCall(waiter, until))
        delay = max(0, until - self.resources.clock.monotonic_ms()) / 1000
        timer = asyncio.get_running_loop().call_later(delay, _finish, waiter)
        try:
            await waiter
        finally:
            timer.cancel()

    def _wake(self, transactional_id: str) -> None:
        activity = self._activities.get(transactional_id)
        if activity is None or activity.held is None:
            return
        held, activity.held = activity.held, None
        for call in held:
            _finish(call.waiter)
        self._drop_if_at_rest(transactional_id)

    # --- effects --------------------------------------------------------------------------------------------------

    def _carry_out(self, effects: Sequence[Effect], by: Caller | None = None) -> None:
        for effect in effects:
            if isinstance(effect, SendMarkers):
                self._activity(effect.transactional_id).marker_retries = 0
                self._send_markers(effect)
            elif isinstance(effect, StartTimer):
                self._start_timer(effect.transactional_id, effect.at)
            elif isinstance(effect, StopTimer):
                self._stop_timer(effect.transactional_id)
            else:
                self._report_fencing(effect, by)

    def _start_timer(self, transactional_id: str, at: Millis) -> None:
        activity = self._activity(transactional_id)
        if activity.timer is not None:
            activity.timer.cancel()
        delay = max(0, at - self.resources.clock.monotonic_ms()) / 1000
        activity.timer = timer_in(delay, self._time_out, transactional_id)

    def _stop_timer(self, transactional_id: str) -> None:
        activity = self._activities.get(transactional_id)
        if activity is not None and activity.timer is not None:
            activity.timer.cancel()
            activity.timer = None
            self._drop_if_at_rest(transactional_id)

    def _time_out(self, transactional_id: str) -> None:
        activity = self._activities.get(transactional_id)
        if activity is not None:
            activity.timer = None
        decision = self.machine.time_out(transactional_id, self.now())
        if decision is not None:
            self._carry_out(decision.effects)
        if decision is not None and decision.record is not None:
            self.resources.counters.timed_out.value += 1
            timed_out = self.machine.transactions[transactional_id]
            log.info(
                "transaction timed out: aborting it", transactional_id=transactional_id,
                producer_id=timed_out.producer_id, producer_epoch=timed_out.producer_epoch, serial=timed_out.serial,
                limit_ms=max(timed_out.limit_ms, timed_out.timeout_ms), partitions=len(timed_out.every_partition),
                holder="" if timed_out.holder is None else timed_out.holder.peer,
            )
            self.persist(decision.record)
        self._drop_if_at_rest(transactional_id)

    def _report_fencing(self, effect: ReportFencing, by: Caller | None) -> None:
        transaction = self.machine.transactions[effect.transactional_id]
        fencing = transaction.fencing
        if fencing is not None:
            self.resources.counters.fencings.labels(fencing.cause.name.lower()).value += 1
            fenced = fencing.fenced
            self._events.record(
                "producer_fenced", transactional_id=effect.transactional_id, cause=fencing.cause.name.lower(),
                by_client=fencing.client_id, by_peer=fencing.peer,
                fenced_client="" if fenced is None else fenced.client_id,
                fenced_peer="" if fenced is None else fenced.peer,
                fenced_producer_id=fencing.fenced_producer_id, fenced_epoch=fencing.fenced_epoch,
                producer_id=transaction.producer_id,
                producer_epoch=transaction.producer_epoch, serial=transaction.serial,
            )
            if self._audit.enabled:
                self._tell(
                    "producer_fenced", transaction, by, cause=fencing.cause.name.lower(),
                    fenced_address="" if fenced is None else host_of(fenced.peer),
                    old={"producer_id": fencing.fenced_producer_id, "producer_epoch": fencing.fenced_epoch},
                    new={"producer_id": transaction.producer_id, "producer_epoch": transaction.producer_epoch})

    # --- markers --------------------------------------------------------------------------------------------------

    def markers_answered(self, sent: SendMarkers, epoch: ShardEpoch, results: Sequence[MarkerResult]) -> None:
        """Called by the marker sender."""
        if not self.serving or epoch != self.epoch:
            return
        progress = self.machine.markers_answered(sent.transactional_id, sent.serial, results, self.now(), sent)
        activity = self._activity(sent.transactional_id)
        if activity.marking:
            activity.marking += 1
        if progress.decision is not None:
            completion = progress.decision.record
            assert isinstance(completion, Transaction)
            now = self.resources.counters.stopwatch()
            if activity.phase == "markers":
                self.resources.counters.phases.labels("markers").observe(now - activity.phase_began)
                activity.phase, activity.phase_began = "complete", now
            log.debug("markers are stored", transactional_id=sent.transactional_id, serial=sent.serial,
                      state=completion.state.kafka_name)
            if activity.marker_retries > _WARN_AFTER_RETRIES:
                log.info("markers are stored after retries", transactional_id=sent.transactional_id, serial=sent.serial,
                         state=completion.state.kafka_name, retries=activity.marker_retries)
            activity.marking = activity.marker_retries = 0
            self._postpone(completion)
        if progress.retry is not None:
            self.resources.counters.marker_retries.value += 1
            attempt = activity.marker_retries
            activity.marker_retries += 1
            if attempt == _WARN_AFTER_RETRIES:
                failing = sorted({result.error.name for result in results if result.error})
                log.warning("markers are not stored yet", transactional_id=sent.transactional_id, errors=failing)
            asyncio.get_running_loop().call_later(
                retry_after(attempt, self.resources.random, len(results)), self._send_again, progress.retry, epoch
            )
        self._drop_if_at_rest(sent.transactional_id)

    def _postpone(self, completion: Transaction) -> None:
        """Waits for the id's next record, which makes the completion unnecessary. If none comes soon, it is
        appended."""
        loop = asyncio.get_running_loop()
        self.machine.postpone(completion)
        self._postponed.pop(completion.transactional_id, None)
        self._postponed[completion.transactional_id] = loop.time()
        self._wake(completion.transactional_id)
        if self._completer is None:
            self._completer = timer_in(POSTPONED_FOR_S, self._complete, POSTPONED_FOR_S)

    def _complete(self, waited_s: float) -> None:
        """Appends the completions that have waited for `waited_s` without a record that makes them unnecessary."""
        self._completer = None
        loop = asyncio.get_running_loop()
        now = loop.time()
        for transactional_id, since in list(self._postponed.items()):
            left = since + waited_s - now
            if left > _TIMER_GRAIN_S:
                self._completer = timer_in(left, self._complete, waited_s)
                return
            del self._postponed[transactional_id]
            decision = self.machine.completion(transactional_id)
            if decision is not None and decision.record is not None:
                self.persist(decision.record)

    def _send_again(self, markers: SendMarkers, epoch: ShardEpoch) -> None:
        if self.serving and epoch == self.epoch:
            self._send_markers(markers)

    def _send_markers(self, markers: SendMarkers) -> None:
        self._activity(markers.transactional_id).marking += 1
        self._markers.send(self, markers)

    # --- intent against state (rule 25): for `sweep` ------------------------------------------------------------------

    def differences(self) -> list[Difference]:
        """Activities that should be under way now, and are not."""
        now_s, now_ms = asyncio.get_running_loop().time(), self.resources.clock.monotonic_ms()
        timed, writing = set[str](), set[str]()
        for each, activity in self._activities.items():
            if is_running(activity.timer, now_s):
                timed.add(each)
            if activity.writing:
                writing.add(each)
        postponed = self._postponed.keys() if is_running(self._completer, now_s) else ()
        found = [
            Difference(kind, transactional_id, self._marking(transactional_id) if kind == "markers" else 0)
            for kind, transactional_id in self.machine.adrift(timed, writing, postponed)
        ]
        found += [
            Difference("held_call", transactional_id, 0)
            for transactional_id, activity in self._activities.items()
            if activity.held is not None
            and any(held.until + GRACE_MS < now_ms and not held.waiter.done() for held in activity.held)
        ]
        if not is_running(self._expiry, now_s):
            found.append(Difference("expiry_timer", "", 0))
        return found

    def _marking(self, transactional_id: str) -> int:
        activity = self._activities.get(transactional_id)
        return 0 if activity is None else activity.marking

    def correct(self, difference: Difference) -> bool:
        """False where it is only late, because many others precede it."""
        kind, transactional_id, _ = difference
        if kind == "pending_record":
            self._carry_out(self.machine.give_up(transactional_id, self.now()))
            self._wake(transactional_id)
        elif kind == "timer":
            self._time_out(transactional_id)
        elif kind == "markers":
            if self._markers.holds(self, transactional_id):
                return False
            markers = self.machine.markers_of(transactional_id)
            if markers is not None:
                self._send_markers(markers)
        elif kind == "completion":
            self._postponed.setdefault(transactional_id, 0.0)
            self._complete(0.0)
        elif kind == "held_call":
            self._wake(transactional_id)
        else:
            self._expire_later()
        return True

    # --- life -----------------------------------------------------------------------------------------------------

    async def drained(self) -> None:
        """Stores postponed completions first, so that the next owner sends no markers again."""
        if self.serving:
            if self._completer is not None:
                self._completer.cancel()
            self._complete(0.0)
        await super().drained()

    def _begin_load(self) -> None:
        self.machine = TransactionShard(
            self._limits, self._ids, self.resources.newest_connection(), self.resources.view.policies.of)
        self._newest = {}

    def _replay_record(self, header: BatchHeader, offset: int, key: bytes, value: bytes | None) -> None:
        """A record is the whole state of its key, so only the last record of each key is decoded, in its place."""
        self._newest.pop(key, None)
        self._newest[key] = value

    async def _finish_load(self) -> None:
        for number, (key, value) in enumerate(self._newest.items()):
            record = decode_record(key, value)
            if record is not None:
                self.machine.load(record)
            if number % SLICE == SLICE - 1:
                await asyncio.sleep(0)
        self._newest = {}
        if not await self.resources.view.check_producer_id(self.machine.highest_producer_id()):
            raise Refusal(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the metadata store is behind the shard's log")

    def _replay_control(self, header: BatchHeader, control: Control) -> None:
        """Fences act only at the partition's leader."""

    def _loaded(self) -> None:
        self._carry_out(list(self.machine.resume(self.now())))
        self._expire_later()

    def _stopped(self) -> None:
        for activity in self._activities.values():
            if activity.timer is not None:
                activity.timer.cancel()
        self._activities.clear()
        self._postponed.clear()
        if self._completer is not None:
            self._completer.cancel()
            self._completer = None
        if self._expiry is not None:
            self._expiry.cancel()

    def _expire_later(self) -> None:
        interval = self.resources.settings.transaction_remove_expired_transaction_cleanup_interval_ms / 1000
        delay = interval * (0.5 + self.resources.random.random())
        self._expiry = timer_in(delay, self._expire)

    def _expire(self) -> None:
        with supervision.contained("transactional-id-expiry", self.shard):
            now = self.now()
            for transactional_id in self.machine.expired(now)[:_EXPIRE_AT_ONCE]:
                decision = self.machine.expire(transactional_id, now)
                if decision is not None and decision.record is not None:
                    self.persist(decision.record)
        self._expire_later()

    # --- queries --------------------------------------------------------------------------------------------------

    async def describe(self, transactional_id: str) -> Transaction:
        """Callers use it to decide whether a transaction hangs and whether a former instance is gone, so it is
        confirmed. Raises Refusal."""
        await self.confirm()
        return self.machine.describe(transactional_id)


def _with_missing(request: _Request, missing: tuple[WinnerCheck, ...]) -> _Request:
    """The request, to be asked again after `CheckWinners`."""
    assert isinstance(request, EndTransaction)
    return replace(request, missing=missing)


def _finish(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
