"""The blocking classes: the same as the asyncio classes, for programs without asyncio.

One background thread runs one event loop for all clients of the process. Each call is handed to that loop and waits for
its result. Calls may come from any thread. A forked child must make its own clients, because the parent's loop does not
run in the child.

    with Producer({"bootstrap.servers": "127.0.0.1:9092"}) as producer:
        delivery = producer.send("topic", b"value")
        print(delivery.result().offset)
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import inspect
import os
import queue
import signal
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar

from hapax.client import admin, consumer, leases, multiwriter, processor, producer
from hapax.client.environment import ClientPorts
from hapax.client.errors import WrongState
from hapax.client.member import OnPartitions
from hapax.client.multiwriter import Joined, Winner
from hapax.client.producer import PreparedTransaction, StartFrom
from hapax.client.records import DeliveryReport, Header, Record
from hapax.client.settings import Settings
from hapax.core.producer.states import State
from hapax.core.types import TopicPartition
from hapax.runtime.metrics import Metrics


class _Startable(Protocol):
    async def start(self) -> Any: ...
    async def close(self) -> None: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


P = ParamSpec("P")
T = TypeVar("T")
Inner = TypeVar("Inner", bound=_Startable, covariant=True)
"""The asyncio class."""


class _Background:
    """The thread and its loop, made on first use."""

    def __init__(self) -> None:
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        """Also called in a forked child, where the parent's thread does not exist."""
        self._lock = threading.RLock()  # a finalizer may run on the thread that holds the lock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                import uvloop

                self._loop = uvloop.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="hapax-client", daemon=True)
                self._thread.start()
            return self._loop

    def inside(self) -> bool:
        return threading.current_thread() is self._thread

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop())

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        if self.inside():
            coroutine.close()
            raise WrongState("a blocking call on the event loop's own thread would wait for itself forever")
        future = self.submit(coroutine)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # after Ctrl-C the call ends on the loop as well
            raise


_background = _Background()


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine on the loop of this process's blocking clients and waits for its result.

    For users of the asyncio classes that compute between calls: the loop keeps running meanwhile. Raises WrongState on
    the loop's own thread.
    """
    return _background.run(coroutine)


def submit(coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
    """Like `run`, but does not wait. Any thread except the loop's own may wait for the future."""
    return _background.submit(coroutine)


class _Client(Generic[Inner]):
    """`start()` and `close()`, or `with`."""

    def __init__(self, inner: Inner) -> None:
        self._inner = inner

    def start(self) -> Self:
        """Like the asyncio class's `start`."""
        _background.run(self._inner.start())
        return self

    def close(self) -> None:
        """Like the asyncio class's `close`."""
        _background.run(self._inner.close())

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _background.run(self._inner.__aexit__(kind, error, trace))


def _waits(
    method: Callable[Concatenate[Inner, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[_Client[Inner], P], T]:
    """The blocking method for an asyncio method: same name, arguments, result and docstring."""
    name = method.__name__

    @functools.wraps(method)
    def call(client: _Client[Inner], *arguments: P.args, **named: P.kwargs) -> T:
        # By name: a subclass of the asyncio class may override the method.
        coroutine: Coroutine[Any, Any, T] = getattr(client._inner, name)(*_read(arguments), **named)
        return _background.run(coroutine)

    return call


def _on_loop(method: Callable[Concatenate[Inner, P], T]) -> Callable[Concatenate[_Client[Inner], P], T]:
    """The blocking method for a plain method that must run on the loop's thread."""
    name = method.__name__

    @functools.wraps(method)
    def call(client: _Client[Inner], *arguments: P.args, **named: P.kwargs) -> T:
        given = _read(arguments)

        async def calling() -> T:
            result: T = getattr(client._inner, name)(*given, **named)
            return result

        return _background.run(calling())

    return call


def _read(arguments: tuple[Any, ...]) -> list[Any]:
    """Reads iterators here: a generator may make blocking calls, which the loop's thread must not."""
    return [list(each) if isinstance(each, Iterator) else each for each in arguments]


class Producer(_Client[producer.Producer]):
    """`hapax.client.Producer`, blocking."""

    def __init__(
        self, settings: Settings, *, ports: ClientPorts | None = None, start_from: StartFrom | None = None
    ) -> None:
        super().__init__(producer.Producer(settings, ports=ports, start_from=start_from))

    @property
    def state(self) -> State:
        return self._inner.state

    @property
    def metrics(self) -> Metrics:
        """As `hapax.client.Producer.metrics`."""
        return self._inner.metrics

    @property
    def identity(self) -> StartFrom:
        """As `hapax.client.Producer.identity`."""
        return self._inner.identity

    @property
    def prepared(self) -> PreparedTransaction | None:
        """As `hapax.client.Producer.prepared`."""
        return self._inner.prepared

    def send(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Sequence[Header] = (),
    ) -> concurrent.futures.Future[DeliveryReport]:
        """Accepts a record. The future's `result()` returns the delivery report or raises."""
        delivery: concurrent.futures.Future[DeliveryReport] = concurrent.futures.Future()

        async def sending() -> None:
            report = await self._inner.send(
                topic, value, key, partition=partition, timestamp_ms=timestamp_ms, headers=headers
            )
            report.add_done_callback(lambda done: _copy(done, delivery))

        _background.run(sending())
        return delivery

    def send_many(self, topic: str, values: Iterable[tuple[bytes | None, bytes | None]]) -> int:
        """Sends (key, value) pairs with a single handover to the loop. Returns their number; `flush()` raises for
        records that failed."""
        pairs = list(values)

        async def sending() -> None:
            for key, value in pairs:
                await self._inner.send_unreported(topic, value, key)

        _background.run(sending())
        return len(pairs)

    def send_batches(
        self, batches: Sequence[tuple[TopicPartition, bytearray | memoryview, int]]
    ) -> list[concurrent.futures.Future[DeliveryReport]]:
        """As `hapax.client.Producer.send_batches`."""
        deliveries: list[concurrent.futures.Future[DeliveryReport]] = [concurrent.futures.Future() for _ in batches]

        async def sending() -> None:
            for report, delivery in zip(await self._inner.send_batches(batches), deliveries, strict=True):
                report.add_done_callback(functools.partial(_copy, target=delivery))

        _background.run(sending())
        return deliveries

    @contextmanager
    def transaction(self) -> Iterator[Self]:
        """As `hapax.client.Producer.transaction`: commits at the end of the block and aborts if the block raises."""
        manager = self._inner.transaction()
        _background.run(manager.__aenter__())
        try:
            yield self
        except BaseException as error:
            _background.run(_leave(manager, error))
            raise
        _background.run(_leave(manager, None))

    send_and_wait = _waits(producer.Producer.send_and_wait)
    send_unreported = _waits(producer.Producer.send_unreported)
    append = _waits(producer.Producer.append)
    send_batch = _waits(producer.Producer.send_batch)
    partitions_of = _waits(producer.Producer.partitions_of)
    existing_topics = _waits(producer.Producer.existing_topics)
    available_partitions = _on_loop(producer.Producer.available_partitions)
    flush = _waits(producer.Producer.flush)
    prepare = _waits(producer.Producer.prepare)
    complete = _waits(producer.Producer.complete)
    check = _on_loop(producer.Producer.check)
    begin = _on_loop(producer.Producer.begin)
    commit = _waits(producer.Producer.commit)
    abort = _waits(producer.Producer.abort)
    send_offsets = _waits(producer.Producer.send_offsets)


class _OnCallersThread:
    """Runs callbacks of coroutines on the thread that waits for them. There they may make blocking calls."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]] | None] = queue.SimpleQueue()

    def wrapped(self, callback: OnPartitions | None) -> OnPartitions | None:
        """The callback for the asyncio class."""
        if callback is None:
            return None

        async def call(partitions: list[TopicPartition]) -> None:
            await self.call(functools.partial(callback, partitions))

        return call

    async def call(self, callback: Callable[[], Any]) -> Any:
        """Runs it on the waiting thread, and returns its result."""
        done = asyncio.get_running_loop().create_future()
        self._calls.put((callback, done))
        return await done

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Like `_background.run`, for a coroutine that may run callbacks."""
        if _background.inside():
            return _background.run(coroutine)  # refuses
        future = _background.submit(coroutine)
        future.add_done_callback(lambda _: self._calls.put(None))
        try:
            while (given := self._calls.get()) is not None:
                self._carry_out(*given)
        except BaseException:
            future.cancel()  # after Ctrl-C the call ends on the loop as well
            while self._calls.get() is not None:
                pass  # the next poll begins these callbacks again
            raise
        return future.result()

    @staticmethod
    def _carry_out(callback: Callable[[], Any], done: asyncio.Future[Any]) -> None:
        loop = _background.loop()
        error: BaseException | None = None
        result = None
        try:
            result = callback()
            if inspect.iscoroutine(result):
                result = _background.run(result)
        except Exception as raised:
            error = raised

        def settle() -> None:
            if not done.done():
                done.set_result(result) if error is None else done.set_exception(error)

        loop.call_soon_threadsafe(settle)


def _waits_here(
    method: Callable[Concatenate[consumer.Consumer, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Consumer, P], T]:
    """As `_waits`, for a method that runs the callbacks of a subscription."""
    name = method.__name__

    @functools.wraps(method)
    def call(client: Consumer, *arguments: P.args, **named: P.kwargs) -> T:
        coroutine: Coroutine[Any, Any, T] = getattr(client._inner, name)(*_read(arguments), **named)
        return client._here.run(coroutine)

    return call


class Consumer(_Client[consumer.Consumer]):
    """`hapax.client.Consumer`, blocking. The callbacks of `subscribe` run on the thread that polls, and may make
    blocking calls."""

    def __init__(self, settings: Settings, *, ports: ClientPorts | None = None) -> None:
        super().__init__(consumer.Consumer(settings, ports=ports))
        self._here = _OnCallersThread()

    def close(self) -> None:
        """Like the asyncio class's `close`."""
        self._here.run(self._inner.close())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._here.run(self._inner.__aexit__(kind, error, trace))

    def subscribe(
        self, topics: Iterable[str] | None = None, *, pattern: str | None = None,
        on_assigned: OnPartitions | None = None, on_revoked: OnPartitions | None = None,
        on_lost: OnPartitions | None = None,
    ) -> None:
        """As `hapax.client.Consumer.subscribe`. The callbacks run on the thread that polls."""
        names = topics if topics is None or isinstance(topics, str) else list(topics)
        wrapped = self._here.wrapped

        async def subscribing() -> None:
            self._inner.subscribe(
                names, pattern=pattern, on_assigned=wrapped(on_assigned), on_revoked=wrapped(on_revoked),
                on_lost=wrapped(on_lost))

        _background.run(subscribing())

    @property
    def metrics(self) -> Metrics:
        """As `hapax.client.Consumer.metrics`."""
        return self._inner.metrics

    def __iter__(self) -> Iterator[Record]:
        """As the iteration of `hapax.client.Consumer`. Only its polls are handed to the loop."""
        while True:
            handed = self._inner._hand_out()
            yield from handed
            if not handed:
                self._here.run(self._inner._poll_held())

    unsubscribe = _waits_here(consumer.Consumer.unsubscribe)
    subscription = _on_loop(consumer.Consumer.subscription)
    group_metadata = _on_loop(consumer.Consumer.group_metadata)
    assign = _on_loop(consumer.Consumer.assign)
    assignment = _on_loop(consumer.Consumer.assignment)
    partitions = _waits(consumer.Consumer.partitions)
    seek = _on_loop(consumer.Consumer.seek)
    seek_to_committed = _on_loop(consumer.Consumer.seek_to_committed)
    positions = _on_loop(consumer.Consumer.positions)
    seek_to_beginning = _waits(consumer.Consumer.seek_to_beginning)
    seek_to_end = _waits(consumer.Consumer.seek_to_end)
    pause = _on_loop(consumer.Consumer.pause)
    resume = _on_loop(consumer.Consumer.resume)
    poll = _waits_here(consumer.Consumer.poll)
    fetch = _waits(consumer.Consumer.fetch)
    position = _waits(consumer.Consumer.position)
    committed = _waits(consumer.Consumer.committed)
    commit = _waits(consumer.Consumer.commit)
    beginning_offsets = _waits(consumer.Consumer.beginning_offsets)
    end_offsets = _waits(consumer.Consumer.end_offsets)
    offsets_for_times = _waits(consumer.Consumer.offsets_for_times)


class Admin(_Client[admin.Admin]):
    """`hapax.client.Admin`, blocking."""

    def __init__(self, settings: Settings, *, ports: ClientPorts | None = None) -> None:
        super().__init__(admin.Admin(settings, ports=ports))

    create_topics = _waits(admin.Admin.create_topics)
    delete_topics = _waits(admin.Admin.delete_topics)
    delete_topic = _waits(admin.Admin.delete_topic)
    create_partitions = _waits(admin.Admin.create_partitions)
    list_topics = _waits(admin.Admin.list_topics)
    list_newest_topics = _waits(admin.Admin.list_newest_topics)
    describe_topic = _waits(admin.Admin.describe_topic)
    alter_topic_config = _waits(admin.Admin.alter_topic_config)
    topic_config = _waits(admin.Admin.topic_config)
    node_config = _waits(admin.Admin.node_config)
    alter_group_config = _waits(admin.Admin.alter_group_config)
    group_config = _waits(admin.Admin.group_config)
    configured_groups = _waits(admin.Admin.configured_groups)
    change_topic = _waits(admin.Admin.change_topic)
    describe_cluster = _waits(admin.Admin.describe_cluster)
    list_service_nodes = _waits(admin.Admin.list_service_nodes)

    list_acls = _waits(admin.Admin.list_acls)
    create_acls = _waits(admin.Admin.create_acls)
    delete_acls = _waits(admin.Admin.delete_acls)
    list_quotas = _waits(admin.Admin.list_quotas)
    alter_quotas = _waits(admin.Admin.alter_quotas)

    describe_user_scram_credentials = _waits(admin.Admin.describe_user_scram_credentials)
    alter_user_scram_credentials = _waits(admin.Admin.alter_user_scram_credentials)
    order_of_changes = _on_loop(admin.Admin.order_of_changes)

    list_transactions = _waits(admin.Admin.list_transactions)
    describe_transactions = _waits(admin.Admin.describe_transactions)
    describe_transactional_id = _waits(admin.Admin.describe_transactional_id)
    abort_transaction = _waits(admin.Admin.abort_transaction)
    abort_hanging = _waits(admin.Admin.abort_hanging)
    fence_and_abort = _waits(admin.Admin.fence_and_abort)
    commit_prepared = _waits(admin.Admin.commit_prepared)
    list_two_phase = _waits(admin.Admin.list_two_phase)
    find_hanging = _waits(admin.Admin.find_hanging)
    describe_producers = _waits(admin.Admin.describe_producers)
    partition_producers = _waits(admin.Admin.partition_producers)

    list_groups = _waits(admin.Admin.list_groups)
    group_ids = _waits(admin.Admin.group_ids)
    committed_offsets = _waits(admin.Admin.committed_offsets)
    remove_group_member = _waits(admin.Admin.remove_group_member)
    describe_group = _waits(admin.Admin.describe_group)
    group_offsets = _waits(admin.Admin.group_offsets)
    group_lag = _waits(admin.Admin.group_lag)
    advance_group_offsets = _waits(admin.Admin.advance_group_offsets)
    alter_group_offsets = _waits(admin.Admin.alter_group_offsets)
    delete_group_offsets = _waits(admin.Admin.delete_group_offsets)
    describe_shards = _waits(admin.Admin.describe_shards)

    list_offsets = _waits(admin.Admin.list_offsets)
    partition_offsets = _waits(admin.Admin.partition_offsets)
    listed_offsets = _waits(admin.Admin.listed_offsets)
    count_records = _waits(admin.Admin.count_records)

    list_brokers = _waits(admin.Admin.list_brokers)
    describe_replicas = _waits(admin.Admin.describe_replicas)
    list_reassignments = _waits(admin.Admin.list_reassignments)
    alter_reassignments = _waits(admin.Admin.alter_reassignments)
    elect_leaders = _waits(admin.Admin.elect_leaders)
    set_draining = _waits(admin.Admin.set_draining)
    set_throttle = _waits(admin.Admin.set_throttle)
    acting_controller = _waits(admin.Admin.acting_controller)


class Leases(_Client[leases.Leases]):
    """`hapax.client.Leases`, blocking."""

    def __init__(self, settings: Settings, *, ports: ClientPorts | None = None) -> None:
        super().__init__(leases.Leases(settings, ports=ports))

    take = _waits(leases.Leases.take)
    renew = _waits(leases.Leases.renew)
    release = _waits(leases.Leases.release)
    list = _waits(leases.Leases.list)
    progress = _waits(leases.Leases.progress)


class Writer(Producer):
    """`hapax.client.Writer`, blocking: one writer of a multi-writer transaction. `MultiWriter.writer` makes it."""

    _inner: multiwriter.Writer

    def __init__(self, inner: multiwriter.Writer) -> None:
        self._inner = inner

    def finish(self) -> Winner:
        """As `hapax.client.Writer.finish`."""
        return _background.run(self._inner.finish())


class MultiWriter(_Client[multiwriter.MultiWriter]):
    """`hapax.client.MultiWriter`, blocking."""

    def __init__(self, settings: Settings, transactional_id: str, *, ports: ClientPorts | None = None) -> None:
        super().__init__(multiwriter.MultiWriter(settings, transactional_id, ports=ports))

    def under(self, transactional_id: str) -> MultiWriter:
        """As `hapax.client.MultiWriter.under`."""
        other = copy(self)
        other._inner = self._inner.under(transactional_id)
        return other

    def writer(self, joined: Joined, *, shared: bool = False) -> Writer:
        """As `hapax.client.MultiWriter.writer`."""
        return Writer(self._inner.writer(joined, shared=shared))

    def producer(self, settings: Settings) -> Producer:
        """As `hapax.client.MultiWriter.producer`."""
        made = Producer.__new__(Producer)
        _Client.__init__(made, self._inner.producer(settings))
        return made

    join = _waits(multiwriter.MultiWriter.join)
    existing_topics = _waits(multiwriter.MultiWriter.existing_topics)
    partitions_of = _waits(multiwriter.MultiWriter.partitions_of)
    available_partitions = _on_loop(multiwriter.MultiWriter.available_partitions)
    renew = _waits(multiwriter.MultiWriter.renew)
    commit = _waits(multiwriter.MultiWriter.commit)
    abort = _waits(multiwriter.MultiWriter.abort)
    committed_token = _waits(multiwriter.MultiWriter.committed_token)


class Processor:
    """`hapax.client.Processor`, blocking. The function runs on the thread that calls `run`, and may take its time:
    heartbeats are sent meanwhile."""

    def __init__(
        self, inputs: str | Iterable[str], function: processor.Function, *, settings: Settings, group: str,
        poison: type[Exception] | tuple[type[Exception], ...] = (), whole_batches: bool = False, **options: Any,
    ) -> None:
        """As `hapax.client.Processor`, but the function is not a coroutine function."""
        here = self._here = _OnCallersThread()

        async def call(records: list[Record]) -> processor.Called:
            called: processor.Called = await here.call(
                functools.partial(processor.call_each, function, poison, whole_batches, records))
            return called

        self._inner = processor.Processor(
            inputs, function, settings=settings, group=group, poison=poison, whole_batches=whole_batches, caller=call,
            **options)

    @property
    def metrics(self) -> Metrics:
        """As `hapax.client.Processor.metrics`."""
        return self._inner.metrics

    def run(self) -> None:
        """As `hapax.client.Processor.run`. Ctrl-C aborts the running transaction."""
        self._here.run(self._inner.run())

    def stop(self) -> None:
        """As `hapax.client.Processor.stop`."""
        self._inner.stop()


def process(
    inputs: str | Iterable[str], function: processor.Function, *, settings: Settings, group: str,
    stop_on: Iterable[signal.Signals] = (), **options: Any,
) -> None:
    """As `hapax.client.process`. `stop_on` needs the main thread."""
    running = Processor(inputs, function, settings=settings, group=group, **options)
    former = {each: signal.signal(each, lambda *_: running.stop()) for each in stop_on}
    try:
        running.run()
    finally:
        for each, handler in former.items():
            signal.signal(each, handler)


async def _leave(manager: Any, error: BaseException | None) -> None:
    """Ends an asynchronous context manager. The caller re-raises the block's own error."""
    try:
        await manager.__aexit__(type(error) if error else None, error, error.__traceback__ if error else None)
    except BaseException as raised:
        if raised is not error:
            raise


def _copy(done: asyncio.Future[T], target: concurrent.futures.Future[T]) -> None:
    if not target.set_running_or_notify_cancel():
        return  # the caller has cancelled it
    if done.cancelled():
        target.set_exception(concurrent.futures.CancelledError())
    elif (error := done.exception()) is not None:
        target.set_exception(error)
    else:
        target.set_result(done.result())
