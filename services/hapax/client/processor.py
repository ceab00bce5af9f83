"""Reads, calls a function, and writes its results and the positions in one transaction, again and again.

`ProcessMachine` decides what is done next; this module does it. Guide: docs/client.md.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import signal
import uuid
from collections.abc import AsyncIterable, Awaitable, Callable, Coroutine, Iterable
from typing import Any, Final, NamedTuple, Protocol, SupportsIndex

from hapax.client.consumer import Consumer
from hapax.client.environment import ClientPorts, RealPorts
from hapax.client.errors import (
    AbortableError,
    FatalError,
    FencedError,
    HapaxError,
    MembershipLostError,
    RetriableError,
    SettingsError,
    WrongState,
)
from hapax.client.metrics import BATCH_LIMIT, ProcessCounts
from hapax.client.process_machine import (
    Abort,
    Action,
    Call,
    Collect,
    Commit,
    Finish,
    GoBack,
    Kind,
    Pause,
    ProcessMachine,
    Renew,
    Rules,
    Write,
)
from hapax.client.process_records import Failed, NewRecord
from hapax.client.producer import Producer
from hapax.client.records import Record
from hapax.client.settings import Settings, known_to
from hapax.core.errors import ErrorCode
from hapax.core.producer.error_kinds import TRANSIENT
from hapax.core.producer.states import State
from hapax.core.types import Millis, TopicPartition
from hapax.runtime import supervision
from hapax.runtime.metrics import Metrics

log = logging.getLogger("hapax.client")

Results = NewRecord | Iterable[NewRecord] | AsyncIterable[NewRecord] | None
Function = Callable[[Any], Results | Awaitable[Results]]
"""Takes a Record, or with `whole_batches` a list of them. A function, a generator, or an asynchronous one of both."""

_TRANSACTION_TIMEOUT_MS: Final = 10_000
"""The function is called before the transaction begins, so a transaction is short. A processor that is killed delays
its successors by at most this time."""
_CLOSE_S: Final = 10.0
_TURN_S: Final = 0.02
"""A function that is not asynchronous lets the event loop work after this time, so that heartbeats are sent."""
_BYTES: Final = (bytes, bytearray, memoryview, type(None))
_PASSING: Final = frozenset(TRANSIENT) - {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION} | {
    ErrorCode.NONE,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.STALE_MEMBER_EPOCH,
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.TRANSACTION_ABORTABLE,
    ErrorCode.OPERATION_NOT_ATTEMPTED,
    ErrorCode.UNKNOWN_PRODUCER_ID,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.UNKNOWN_SERVER_ERROR,
}
"""Reasons of an abort that may not hold for the next transaction. (A topic that was unknown until the delivery's time
was up does not exist.)"""
_OF_A_RECORD: Final = frozenset({
    ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.RECORD_LIST_TOO_LARGE,
    ErrorCode.INVALID_RECORD,
    ErrorCode.INVALID_TIMESTAMP,
})
"""Refusals of what a record contains."""


def kind_of(error: HapaxError) -> Kind:
    """What the failure of a producer's call means."""
    if isinstance(error, FencedError):
        return Kind.TIMED_OUT if error.timed_out else Kind.FATAL
    if error.code in _OF_A_RECORD:
        return Kind.REFUSED
    if isinstance(error, AbortableError):
        return Kind.PASSING if error.code in _PASSING else Kind.FATAL
    if isinstance(error, RetriableError) and error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return Kind.UNKNOWN
    return Kind.FATAL


class Called(NamedTuple):
    """What came of calling the function."""

    done: int
    """Number of records with a result."""
    outputs: list[NewRecord]
    failed: Failed | None


class Caller(Protocol):
    """Calls the program's function with records, in order, up to the first that fails."""

    async def __call__(self, records: list[Record]) -> Called: ...


class Processor:
    """Reads topics as a member of a group, calls a function, and commits its results and the positions in one
    transaction. `process` runs one; make one yourself for `stop` and `metrics`."""

    def __init__(
        self, inputs: str | Iterable[str], function: Function, *, settings: Settings, group: str,
        dead_letters: str | None = None, poison: type[Exception] | tuple[type[Exception], ...] = (),
        attempts: int = 3, batch_records: int = 1000, batch_ms: int = 100, whole_batches: bool = False,
        outcome_timeout_ms: int = 120_000, stop_timeout_ms: int = 30_000, ports: ClientPorts | None = None,
        caller: Caller | None = None,
    ) -> None:
        """`inputs`: topics. `function(record)` returns a NewRecord, or some, or None; with `whole_batches` it is
        `function(records)`. It may be a coroutine function.

        `settings`: of the consumer and the producer. `auto.offset.reset` is `earliest` unless they say otherwise. Give
        each process a `transactional.id` of its own that stays the same: then a restart continues at once.

        `poison`: exceptions by which the function says that no attempt would help. Any other exception is tried
        `attempts` times. Then the record goes to the topic `dead_letters`, in the same transaction; without such a
        topic, `run` raises the exception.

        A transaction has at most `batch_records` records, and begins at most `batch_ms` after its first record was
        read. `outcome_timeout_ms`: how long to ask for the outcome of a commit. `stop_timeout_ms`: how long `stop`
        lets the running transaction take. `caller`: who calls the function, instead of the event loop. Raises
        SettingsError."""
        self._ports = ports or RealPorts()
        self._inputs = [inputs] if isinstance(inputs, str) else list(inputs)
        if poison and dead_letters is None:
            raise SettingsError("poison needs dead_letters: the topic for records that the function cannot process")
        if min(attempts, batch_records, outcome_timeout_ms, stop_timeout_ms) < 1 or batch_ms < 0:
            raise SettingsError("attempts, batch_records and time-outs must be at least 1, and batch_ms at least 0")
        if not self._inputs:
            raise SettingsError("inputs is empty: name at least one topic")
        if dead_letters in self._inputs:
            raise SettingsError(f"dead_letters={dead_letters!r} is an input too: dead letters would come back for ever")
        self._consumer_settings = _consumer_settings(settings, group)
        self._producer_settings = _producer_settings(settings, group, self._ports)
        self.consumer = Consumer(self._consumer_settings, ports=self._ports)
        self.producer = Producer(self._producer_settings, ports=self._ports)
        options = self.consumer._options
        self._latest = options["auto.offset.reset"] == "latest"
        self._dead_letters = dead_letters
        self._machine = ProcessMachine(Rules(
            group, batch_records, batch_ms, attempts, dead_letters, whole_batches, options["retry.backoff.ms"],
            options["retry.backoff.max.ms"], outcome_timeout_ms, stop_timeout_ms, options["max.poll.interval.ms"]))
        if caller is not None and inspect.iscoroutinefunction(function):
            raise SettingsError("the blocking interface needs a function that is not a coroutine function")
        self._call = caller or asynchronous_caller(
            function, poison, whole_batches, lambda: self._overdue or self._given_up_by_caller)
        self.metrics = Metrics()
        """What this processor counts, see docs/metrics.md. `consumer.metrics` and `producer.metrics` have more."""
        self._counts = ProcessCounts(self.metrics)
        self.metrics.observe(BATCH_LIMIT, lambda: self._machine.limit)
        self._started = False
        self._loop: asyncio.AbstractEventLoop | None = None
        """While `run` runs."""
        self._task: asyncio.Task[None] | None = None
        """The start, or the actions that are carried out."""
        self._action: Action | None = None
        """None: the processor is starting."""
        self._stopping = False
        self._deadline: asyncio.TimerHandle | None = None
        """Of a stop."""
        self._overdue = False
        self._given_up_by_caller = False
        """`run` was cancelled."""

    async def run(self) -> None:
        """Processes until `stop`. Raises what the function raised, where there are no dead letters, and HapaxError
        where it cannot go on: FencedError (another instance has the transactional id), RetriableError (start again: the
        outcome of the last commit is not known, and the next start finds it), FatalError. Nothing is lost or doubled in
        any case. Cancelling it is allowed at any time."""
        if self._started:
            raise WrongState("run was called before; make a new Processor")
        self._started = True
        self._loop = asyncio.get_running_loop()
        try:
            if self._stopping:
                return
            starting = await self._ended(self._start())
            if not (starting.cancelled() and self._stopping):
                starting.result()
            while (steps := await self._ended(self._carry_on())).cancelled():
                pass  # by a stop, which the next steps take into account, or by the function itself
            steps.result()
        finally:
            self._loop = None
            if self._deadline is not None:
                self._deadline.cancel()
            try:
                await self._close_producer()
            finally:
                await self.consumer.close()

    def stop(self) -> None:
        """Makes `run` return once the running transaction has ended, after at most `stop_timeout_ms`. May be called on
        any thread, and in a signal handler."""
        self._stopping = True
        loop = self._loop
        if loop is not None:
            loop.call_soon_threadsafe(self._begin_to_stop)

    # --- one action -------------------------------------------------------------------------------------------

    def _begin_to_stop(self) -> None:
        """At once, because the action that is carried out may take for ever: the function may hang."""
        if self._loop is None or self._deadline is not None:
            return
        self._machine.stop(self._now())
        self._deadline = self._loop.call_later(self._machine.stop_ms / 1000, self._too_late)
        if self._task is not None and isinstance(self._action, Collect | Pause | None):
            self._task.cancel()

    def _too_late(self) -> None:
        self._overdue = True
        if self._task is not None:
            self._task.cancel()

    async def _ended(self, step: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """The task of the step, once it has ended. A stop may cancel it."""
        task: asyncio.Task[None] = supervision.judged(step)
        self._task = task
        try:
            await asyncio.wait([task])
        except BaseException:
            self._given_up_by_caller = True
            await supervision.end(task)
            raise
        finally:
            self._task = None
        return task

    async def _start(self) -> None:
        await self.producer.start()
        await self._check_dead_letters()
        self.consumer.subscribe(
            self._inputs, on_assigned=self._assigned if self._latest else None, on_revoked=self._given_up,
            on_lost=self._given_up)
        await self.consumer.start()

    async def _carry_on(self) -> None:
        """Action after action until the machine is finished. (A task for each action would cost several percent.)"""
        machine = self._machine
        while not isinstance(action := machine.next(self._now()), Finish):
            if self._overdue:
                machine.overdue(RetriableError("stop_timeout_ms is over", code=ErrorCode.REQUEST_TIMED_OUT))
                continue
            self._action = action
            try:
                await self._carry_out(action)
            except HapaxError as error:
                await self._failed(action, error)
                await asyncio.sleep(0)  # neither the failure nor the pause after it need have waited
            if supervision.is_asked_to_end():  # and the action, or the function, has not passed it on
                raise asyncio.CancelledError
        if action.error is not None:
            raise action.error

    async def _failed(self, action: Action, error: HapaxError) -> None:
        kind = await self._kind_of(error)
        if isinstance(action, Collect) and isinstance(error, MembershipLostError):
            kind = Kind.UNKNOWN  # the next poll joins again
        log.info("processing: %s: %s", type(action).__name__.lower(), error)
        before = self._machine.aborts
        self._machine.failed(kind, error, self._now())
        if self._machine.aborts > before:
            self._counts.transactions.labels("aborted").value += 1

    async def _kind_of(self, error: HapaxError) -> Kind:
        if error.code == ErrorCode.INVALID_PRODUCER_ID_MAPPING:
            try:
                if await self.producer._has_expired():
                    return Kind.TIMED_OUT
            except HapaxError as another:
                log.info("processing: whether the transactional id has expired is not known: %s", another)
                if isinstance(another, RetriableError):
                    return Kind.UNKNOWN
        return kind_of(error)

    async def _carry_out(self, action: Action) -> None:
        machine = self._machine
        if isinstance(action, Collect):
            records = await self.consumer.poll(action.timeout_ms, action.limit)
            machine.collected(records, self._now())
        elif isinstance(action, Call):
            await self._call_function(action.records)
        elif isinstance(action, Write):
            await self._write(action)
        elif isinstance(action, Commit):
            await _within(action.within_ms, "committing", self.producer.commit())
            self._committed()
        elif isinstance(action, Abort):
            if self.producer.state in (State.IN_TRANSACTION, State.ABORTABLE_ERROR, State.ABORTING_TRANSACTION):
                await _within(action.within_ms, "aborting", self.producer.abort())
            machine.aborted()
        elif isinstance(action, Renew):
            await self._renew()
        elif isinstance(action, GoBack):
            await self._go_back(action.first)
        elif isinstance(action, Pause):
            await asyncio.sleep(action.ms / 1000)

    async def _call_function(self, records: list[Record]) -> None:
        began = self._counts.stopwatch()
        done, outputs, failed = await self._call(records)
        self._counts.function_seconds.observe(self._counts.stopwatch() - began)
        if failed is not None:
            self._counts.function_errors.value += 1
            log.info("processing: the function raised %r for %s", failed.error, _place(records[done]))
        self._machine.called(done, outputs, failed, self._now())

    async def _write(self, action: Write) -> None:
        producer = self.producer
        producer.begin()
        send = producer.send_unreported
        for topic, value, key, partition, timestamp_ms, headers in action.outputs:
            await send(topic, value, key, partition=partition, timestamp_ms=timestamp_ms, headers=headers)
        positions = {p: at for p, at in self.consumer.positions().items() if p in action.partitions}
        if positions:  # not if the topics were all deleted meanwhile
            await producer.send_offsets(positions, self.consumer.group_metadata())
        self._machine.written()

    def _committed(self) -> None:
        done = self._machine.committed()
        counts = self._counts
        counts.transactions.labels("committed").value += 1
        counts.processed.value += done.records
        counts.produced.value += done.outputs
        counts.dead.value += len(done.dead)
        for record, failed in done.dead:
            log.warning("processing: %s became a dead letter in %s after %d attempts: %r",
                        _place(record), self._dead_letters, failed.attempts, failed.error)

    async def _close_producer(self) -> None:
        """A transaction that cannot be aborted in time is aborted by the next start, or by the cluster."""
        try:
            async with asyncio.timeout(_CLOSE_S):
                await self.producer.close()
        except TimeoutError:
            log.warning("processing: the producer was closed before its last calls were answered")

    async def _renew(self) -> None:
        await self._close_producer()
        self.producer = Producer(self._producer_settings, ports=self._ports)
        await self.producer.start()
        self._machine.renewed()

    async def _go_back(self, first: dict[TopicPartition, int]) -> None:
        """Without a committed offset, `auto.offset.reset=latest` would leave out what was read."""
        mine = set(self.consumer.assignment())
        partitions = [p for p in first if p in mine]
        if partitions:
            known = await self.consumer.committed(partitions) if self._latest else {}
            self.consumer.seek_to_committed(*partitions)
            for partition in partitions if self._latest else ():
                if partition not in known and partition in self.consumer.assignment():
                    self.consumer.seek(partition, first[partition])
        self._machine.gone_back()

    # --- inner steps ------------------------------------------------------------------------------------------

    async def _assigned(self, partitions: list[TopicPartition]) -> None:
        """Commits where a new group begins with `auto.offset.reset=latest`. Otherwise what is read before the first
        transaction is committed would be left out by a restart, or by the next owner: they would begin at the end."""
        known = await self.consumer.committed(partitions)
        new = [p for p in partitions if p not in known]
        if new:
            await self.consumer.commit(await self.consumer.end_offsets(new))

    async def _given_up(self, partitions: list[TopicPartition]) -> None:
        self._machine.given_up(partitions)

    async def _check_dead_letters(self) -> None:
        topic = self._dead_letters
        if topic is not None and topic not in await self.producer.existing_topics([topic]):
            raise FatalError(
                f"the topic for dead letters, {topic!r}, does not exist", code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                advice="Create it")

    def _now(self) -> Millis:
        return Millis(self._ports.clock.monotonic_ms())


async def process(
    inputs: str | Iterable[str], function: Function, *, settings: Settings, group: str,
    stop_on: Iterable[signal.Signals] = (), **options: Any,
) -> None:
    """Runs a `Processor`, whose arguments these are, until one of the signals `stop_on` arrives. Then it finishes the
    running transaction and returns. Raises like `Processor.run`."""
    processor = Processor(inputs, function, settings=settings, group=group, **options)
    loop = asyncio.get_running_loop()
    signals = list(stop_on)
    for each in signals:
        loop.add_signal_handler(each, processor.stop)
    try:
        await processor.run()
    finally:
        for each in signals:
            loop.remove_signal_handler(each)


# --- calling the function -------------------------------------------------------------------------------------


def asynchronous_caller(
    function: Function, poison: type[Exception] | tuple[type[Exception], ...], whole_batches: bool,
    is_asked_to_end: Callable[[], bool] = supervision.is_asked_to_end,
) -> Caller:
    """Calls the function on the event loop. `is_asked_to_end`: whether a cancellation is meant for the caller."""

    async def call(records: list[Record]) -> Called:
        outputs: list[NewRecord] = []
        loop = asyncio.get_running_loop()
        turn = loop.time() + _TURN_S
        for done, given in enumerate([records] if whole_batches else records):
            kept = len(outputs)
            try:
                found = function(given)
                if type(found) is NewRecord:  # the usual case first: each record passes through here
                    outputs.append(_checked(found))
                else:
                    if inspect.isawaitable(found):
                        found = await found
                    if isinstance(found, AsyncIterable):
                        outputs += [_checked(each) async for each in found]
                    else:
                        add_results(found, outputs)
            except asyncio.CancelledError as cancelled:
                if is_asked_to_end():
                    raise
                # The function cancelled itself, or what it waited for was cancelled.
                del outputs[kept:]
                error = RuntimeError("the function was cancelled by itself")
                error.__cause__ = cancelled
                return Called(done, outputs, Failed(error, False))
            except Exception as error:
                del outputs[kept:]
                return Called(done, outputs, Failed(error, isinstance(error, poison)))
            if loop.time() > turn:
                await asyncio.sleep(0)
                turn = loop.time() + _TURN_S
        return Called(len(records), outputs, None)

    return call


def call_each(
    function: Function, poison: type[Exception] | tuple[type[Exception], ...], whole_batches: bool,
    records: list[Record],
) -> Called:
    """Calls a function that is not a coroutine function, on the present thread."""
    outputs: list[NewRecord] = []
    for done, given in enumerate([records] if whole_batches else records):
        kept = len(outputs)
        try:
            found = function(given)
            if type(found) is NewRecord:
                outputs.append(_checked(found))
            else:
                add_results(found, outputs)
        except Exception as error:
            del outputs[kept:]
            return Called(done, outputs, Failed(error, isinstance(error, poison)))
    return Called(len(records), outputs, None)


def add_results(found: Any, outputs: list[NewRecord]) -> None:
    """Raises TypeError for what is not a result."""
    if isinstance(found, NewRecord):
        outputs.append(_checked(found))
    elif found is not None:
        if not isinstance(found, Iterable):
            raise _no_result(found)
        outputs += map(_checked, found)


def _checked(result: Any) -> NewRecord:
    """What cannot be written is the function's failure, not the transaction's. Raises TypeError."""
    if not isinstance(result, NewRecord):
        raise _no_result(result)
    if not (isinstance(result.value, _BYTES) and isinstance(result.key, _BYTES) and isinstance(result.topic, str)):
        raise TypeError(
            f"a NewRecord of {type(result.topic).__name__}, {type(result.value).__name__},"
            f" {type(result.key).__name__}: the topic is a str, value and key are bytes or None")
    if result.partition is not None:
        _check_number("partition", result.partition, 1 << 31)
    if result.timestamp_ms is not None:
        _check_number("timestamp_ms", result.timestamp_ms, 1 << 63)
    for name, content in result.headers:
        if not (isinstance(name, str) and isinstance(content, _BYTES)):
            raise TypeError(
                f"a header of {type(name).__name__}, {type(content).__name__}: the name is a str, the content bytes or"
                " None")
    return result


def _check_number(what: str, number: Any, end: int) -> None:
    if not (isinstance(number, SupportsIndex) and 0 <= number < end):  # type: ignore[operator]
        raise TypeError(f"a NewRecord with {what}={number!r}: it is None, or an int of at least 0 and below {end}")


def _no_result(found: Any) -> TypeError:
    return TypeError(f"the function returned {type(found).__name__}: return NewRecord, or some of them")


async def _within(timeout_ms: int, what: str, call: Awaitable[Any]) -> None:
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            await call
    except TimeoutError:
        raise RetriableError(f"{what}: no outcome within {timeout_ms} ms", code=ErrorCode.REQUEST_TIMED_OUT) from None


def _place(record: Record) -> str:
    return f"{record.topic}-{record.partition} offset {record.offset}"


def _consumer_settings(settings: Settings, group: str) -> dict[str, object]:
    given: dict[str, object] = dict(known_to("c", settings))
    fixed: dict[str, object] = {"group.id": group, "isolation.level": "read_committed", "enable.auto.commit": False}
    for name, value in fixed.items():
        if name in given and str(given[name]).lower() != str(value).lower():
            raise SettingsError(f"{name} = {given[name]!r}: a processor needs {value!r}")
    return {"auto.offset.reset": "earliest", **given, **fixed}


def _producer_settings(settings: Settings, group: str, ports: ClientPorts) -> dict[str, object]:
    given: dict[str, object] = dict(known_to("p", settings))
    if str(given.get("transaction.two.phase.commit.enable", False)).lower() == "true":
        raise SettingsError("a processor ends its transactions itself: leave out transaction.two.phase.commit.enable")
    fresh = str(uuid.UUID(bytes=ports.random.randbytes(16), version=4))
    return {"transactional.id": f"{group}-{fresh}", "transaction.timeout.ms": _TRANSACTION_TIMEOUT_MS, **given}
