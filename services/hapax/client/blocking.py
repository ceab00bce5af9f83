"""The blocking face: the same classes for programs without asyncio.

One background thread runs one event loop for all clients of the process; every call is handed to it and waited for.
Calls may come from any thread. After a fork the child makes clients of its own; the parent's stay the parent's.

    with Producer({"bootstrap.servers": "127.0.0.1:9092"}) as producer:
        delivery = producer.send("topic", b"value")
        print(delivery.result().offset)
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self, TypeVar

from hapax.client import admin, consumer, leases, multiwriter, producer, replication
from hapax.client.coordination import ConsumerGroup, OffsetAndMetadata, Offsets
from hapax.client.environment import ClientPorts
from hapax.client.errors import WrongState
from hapax.client.producer import Committed, StartFrom
from hapax.client.records import DeliveryReport, Header, Record
from hapax.client.settings import Settings
from hapax.client.tokens import CommitToken
from hapax.core.types import TopicPartition
from hapax.runtime.metrics import Metrics

T = TypeVar("T")


class _Background:
    """The thread and its loop, made at the first use."""

    def __init__(self) -> None:
        self._start_over()
        os.register_at_fork(after_in_child=self._start_over)

    def _start_over(self) -> None:
        """Also in a forked child: the parent's thread is not there."""
        self._lock = threading.RLock()  # a finalizer may run while this very thread holds it
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

    def submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self.loop())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        if self.inside():
            work.close()
            raise WrongState("a blocking call on the loop's own thread would wait for itself for ever")
        future = self.submit(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # Ctrl-C: the call is given up on the loop as well
            raise

    def call(self, function: Any, *arguments: Any) -> Any:
        """A plain function, run on the loop."""

        async def work() -> Any:
            return function(*arguments)

        return self.run(work())


_background = _Background()


def run(work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine on the loop of this process's blocking clients and waits for it. For users of the asyncio
    classes that compute between two calls: the loop runs meanwhile. Raises WrongState on the loop's own thread."""
    return _background.run(work)


def submit(work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
    """As `run`, without waiting. The future may be waited for from any thread but the loop's own."""
    return _background.submit(work)


class _Closing:
    """`with` for classes that have start() and close()."""

    def start(self) -> Self:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Producer(_Closing):
    """`hapax.client.Producer`, blocking."""

    def __init__(
        self, settings: Settings, *, ports: ClientPorts | None = None, start_from: StartFrom | None = None
    ) -> None:
        self._inner = producer.Producer(settings, ports=ports, start_from=start_from)

    def start(self) -> Self:
        _background.run(self._inner.start())
        return self

    def close(self) -> None:
        _background.run(self._inner.close())

    @property
    def metrics(self) -> Metrics:
        """As `hapax.client.Producer.metrics`."""
        return self._inner.metrics

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
        """The future's `result()` tells where the record went, or raises."""
        delivery: concurrent.futures.Future[DeliveryReport] = concurrent.futures.Future()

        async def work() -> None:
            told = await self._inner.send(
                topic, value, key, partition=partition, timestamp_ms=timestamp_ms, headers=headers
            )
            told.add_done_callback(lambda done: _copy(done, delivery))

        _background.run(work())
        return delivery

    def send_many(self, topic: str, values: Iterable[tuple[bytes | None, bytes | None]]) -> int:
        """Sends (key, value) pairs with one hand-over to the loop for all; returns how many. `flush()` tells of
        failures."""
        pairs = list(values)

        async def work() -> None:
            for key, value in pairs:
                await self._inner.send(topic, value, key)

        _background.run(work())
        return len(pairs)

    def flush(self) -> None:
        _background.run(self._inner.flush())

    def begin(self) -> None:
        _background.call(self._inner.begin)

    def commit(self, token: CommitToken | None = None) -> Committed:
        return _background.run(self._inner.commit(token))

    def abort(self) -> None:
        _background.run(self._inner.abort())

    def send_offsets(self, offsets: Offsets, group: str | ConsumerGroup) -> None:
        _background.run(self._inner.send_offsets(offsets, group))

    @contextmanager
    def transaction(self) -> Iterator[Self]:
        """`with producer.transaction(): ...` commits at the end, aborts where the block raises."""
        manager = self._inner.transaction()
        _background.run(manager.__aenter__())
        try:
            yield self
        except BaseException as error:
            _background.run(_leave(manager, error))
            raise
        _background.run(_leave(manager, None))

    @property
    def identity(self) -> StartFrom:
        return self._inner.identity


class Consumer(_Closing):
    """`hapax.client.Consumer`, blocking."""

    def __init__(self, settings: Settings, *, ports: ClientPorts | None = None) -> None:
        self._inner = consumer.Consumer(settings, ports=ports)

    def start(self) -> Self:
        _background.run(self._inner.start())
        return self

    def close(self) -> None:
        _background.run(self._inner.close())

    @property
    def metrics(self) -> Metrics:
        """As `hapax.client.Consumer.metrics`."""
        return self._inner.metrics

    def assign(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        _background.call(self._inner.assign, list(partitions))

    def assignment(self) -> list[TopicPartition]:
        return self._inner.assignment()

    def partitions(self, topic: str) -> list[TopicPartition]:
        return _background.run(self._inner.partitions(topic))

    def seek(self, partition: TopicPartition | tuple[str, int], offset: int) -> None:
        _background.call(self._inner.seek, partition, offset)

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        _background.run(self._inner.seek_to_beginning(*partitions))

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        _background.run(self._inner.seek_to_end(*partitions))

    def pause(self, *partitions: TopicPartition) -> None:
        _background.call(self._inner.pause, *partitions)

    def resume(self, *partitions: TopicPartition) -> None:
        _background.call(self._inner.resume, *partitions)

    def poll(self, timeout_ms: int = 500, max_records: int | None = None) -> list[Record]:
        return _background.run(self._inner.poll(timeout_ms, max_records))

    def __iter__(self) -> Iterator[Record]:
        while True:
            yield from self.poll()

    def position(self, partition: TopicPartition | tuple[str, int]) -> int:
        return _background.run(self._inner.position(partition))

    def committed(
        self, partitions: Iterable[TopicPartition | tuple[str, int]]
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        return _background.run(self._inner.committed(partitions))

    def commit(self, offsets: Offsets | None = None) -> None:
        _background.run(self._inner.commit(offsets))

    def beginning_offsets(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> dict[TopicPartition, int]:
        return _background.run(self._inner.beginning_offsets(partitions))

    def end_offsets(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> dict[TopicPartition, int]:
        return _background.run(self._inner.end_offsets(partitions))

    def offsets_for_times(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, tuple[int, int] | None]:
        return _background.run(self._inner.offsets_for_times(times))


class Admin(_Closing):
    """`hapax.client.Admin`, blocking."""

    def __init__(self, settings: Settings, *, ports: ClientPorts | None = None) -> None:
        self._inner = admin.Admin(settings, ports=ports)

    def start(self) -> Self:
        _background.run(self._inner.start())
        return self

    def close(self) -> None:
        _background.run(self._inner.close())

    def create_topics(self, topics: Iterable[admin.NewTopic | str], *, exist_ok: bool = False) -> None:
        _background.run(self._inner.create_topics(topics, exist_ok=exist_ok))

    def alter_topic_config(self, name: str, changes: Mapping[str, str | None]) -> None:
        _background.run(self._inner.alter_topic_config(name, changes))

    def topic_config(self, name: str) -> dict[str, admin.ConfigValue]:
        return _background.run(self._inner.topic_config(name))

    def node_config(self, node_id: int) -> dict[str, admin.ConfigValue]:
        return _background.run(self._inner.node_config(node_id))

    def list_brokers(self) -> list[replication.BrokerInfo]:
        return _background.run(self._inner.list_brokers())

    def alter_reassignments(
        self, targets: Mapping[TopicPartition, Sequence[int] | None], *, keep_replication_factor: bool = False
    ) -> list[replication.Refused]:
        return _background.run(
            self._inner.alter_reassignments(targets, keep_replication_factor=keep_replication_factor))

    def list_reassignments(self) -> list[replication.ReassignmentInfo]:
        return _background.run(self._inner.list_reassignments())

    def elect_leaders(
        self, partitions: Iterable[TopicPartition] | None = None, *, unclean: bool = False
    ) -> tuple[list[TopicPartition], list[replication.Refused]]:
        return _background.run(self._inner.elect_leaders(partitions, unclean=unclean))

    def set_draining(self, brokers: Iterable[int], draining: bool) -> None:
        _background.run(self._inner.set_draining(brokers, draining))

    def set_throttle(self, bytes_per_second: int) -> None:
        _background.run(self._inner.set_throttle(bytes_per_second))

    def delete_topics(self, names: Iterable[str]) -> None:
        _background.run(self._inner.delete_topics(names))

    def create_partitions(self, totals: Mapping[str, int]) -> None:
        _background.run(self._inner.create_partitions(totals))

    def list_topics(self, names: Iterable[str] | None = None) -> list[admin.TopicInfo]:
        return _background.run(self._inner.list_topics(names))

    def describe_cluster(self) -> admin.ClusterInfo:
        return _background.run(self._inner.describe_cluster())

    def list_transactions(
        self, *, states: Iterable[str] = (), producer_ids: Iterable[int] = ()
    ) -> list[admin.TransactionInfo]:
        return _background.run(self._inner.list_transactions(states=states, producer_ids=producer_ids))

    def describe_transactions(self, ids: Iterable[str]) -> list[admin.TransactionInfo]:
        return _background.run(self._inner.describe_transactions(ids))

    def abort_transaction(self, transactional_id: str, partition: TopicPartition | None = None) -> None:
        _background.run(self._inner.abort_transaction(transactional_id, partition))

    def describe_producers(self, partition: TopicPartition) -> list[admin.ProducerInfo]:
        return _background.run(self._inner.describe_producers(partition))


class Leases(_Closing):
    """`hapax.client.Leases`, blocking."""

    def __init__(self, settings: Settings, *, ports: ClientPorts | None = None) -> None:
        self._inner = leases.Leases(settings, ports=ports)

    def start(self) -> Self:
        _background.run(self._inner.start())
        return self

    def close(self) -> None:
        _background.run(self._inner.close())

    def take(
        self,
        name: str,
        partitions: Iterable[TopicPartition],
        *,
        expire_ms: int = 60_000,
        holder: str = "",
        resume: tuple[int, int] | None = None,
    ) -> leases.Lease:
        return _background.run(
            self._inner.take(name, partitions, expire_ms=expire_ms, holder=holder, resume=resume)
        )

    def renew(self, lease: leases.Lease, expire_ms: int = 60_000) -> leases.Lease:
        return _background.run(self._inner.renew(lease, expire_ms))

    def release(self, lease: leases.Lease) -> None:
        _background.run(self._inner.release(lease))

    def list(self, prefix: str = "") -> list[leases.LeaseInfo]:
        return _background.run(self._inner.list(prefix))

    def progress(
        self, producer: int | str, partitions: Iterable[TopicPartition] = ()
    ) -> dict[TopicPartition, leases.Progress]:
        return _background.run(self._inner.progress(producer, partitions))


class Writer(Producer):
    """`hapax.client.Writer`, blocking: a place in a multi-writer transaction."""

    _inner: multiwriter.Writer

    def __init__(self, inner: multiwriter.Writer) -> None:
        self._inner = inner

    def finish(self) -> multiwriter.Winner:
        return _background.run(self._inner.finish())


class MultiWriter(_Closing):
    """`hapax.client.MultiWriter`, blocking."""

    def __init__(self, settings: Settings, transactional_id: str, *, ports: ClientPorts | None = None) -> None:
        self._inner = multiwriter.MultiWriter(settings, transactional_id, ports=ports)

    def start(self) -> Self:
        _background.run(self._inner.start())
        return self

    def close(self) -> None:
        _background.run(self._inner.close())

    def join(self, token: CommitToken, member: str, *, timeout_ms: int | None = None) -> multiwriter.Joined:
        return _background.run(self._inner.join(token, member, timeout_ms=timeout_ms))

    def writer(self, joined: multiwriter.Joined, *, shared: bool = False) -> Writer:
        return Writer(self._inner.writer(joined, shared=shared))

    def renew(self, joined: multiwriter.Joined, timeout_ms: int) -> int:
        return _background.run(self._inner.renew(joined, timeout_ms))

    def commit(
        self, token: CommitToken, winners: Iterable[multiwriter.Winner], *, serial: int = 0
    ) -> Committed:
        return _background.run(self._inner.commit(token, winners, serial=serial))

    def abort(self, token: CommitToken, *, serial: int = 0) -> None:
        _background.run(self._inner.abort(token, serial=serial))

    def committed_token(self, scope: str) -> CommitToken | None:
        return _background.run(self._inner.committed_token(scope))


async def _leave(manager: Any, error: BaseException | None) -> None:
    """Ends an asynchronous context manager; that it raises the block's own error again is its caller's business."""
    try:
        await manager.__aexit__(type(error) if error else None, error, error.__traceback__ if error else None)
    except BaseException as raised:
        if raised is not error:
            raise


def _copy(done: asyncio.Future[T], target: concurrent.futures.Future[T]) -> None:
    if not target.set_running_or_notify_cancel():
        return  # the caller has given it up
    if done.cancelled():
        target.set_exception(concurrent.futures.CancelledError())
    elif (error := done.exception()) is not None:
        target.set_exception(error)
    else:
        target.set_result(done.result())
