"""The native client for Spark's workers: blocking calls, on an event loop in its own thread.

Deliveries, renewals and answers continue while a task computes its next rows, however long that takes. A call that
waits for room in buffer.memory blocks the task, too.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import os
import time
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

import pyarrow as pa

from hapax.client import (
    Admin,
    Committed,
    Conflict,
    Consumer,
    HapaxError,
    Joined,
    MultiWriter,
    Producer,
    RetriableError,
    TokenConflictError,
    TopicPartition,
    Winner,
    Writer,
    blocking,
)
from hapax.client.admin import TopicInfo
from hapax.client.identities import Identities, IdentityInfo
from hapax.client.raw_fetch import RawFetch
from hapax.client.readings import Chunk
from hapax.client.settings import SETTINGS
from hapax.core.batch import BatchHeader
from hapax.core.errors import ErrorCode
from hapax.runtime import supervision
from hapax_spark.arrow import OutputColumns
from hapax_spark.decoding import batches_to_arrow
from hapax_spark.errors import lost
from hapax_spark.fingerprints import Fingerprints
from hapax_spark.options import Options
from hapax_spark.refusals import TransactionLostError, ended, refusal
from hapax_spark.sending import RowSender
from hapax_spark.tokens import Token
from hapax_spark.worker_heap import freeze_loaded_modules

log = logging.getLogger("hapax.spark")

T = TypeVar("T")

Where = tuple[str, int]
"""(topic, partition)"""


_FETCH_BYTES = "2097152"
"""Larger than a consumer's default, because a task reads a single partition."""
_ASIDE_S = 5.0
"""Limit of calls whose outcome decides nothing (a group's position, the age of waiting records) in a micro-batch."""
_PAUSE_S = 0.2
"""Between two requests for a result that is expected soon."""
_GONE_AFTER_S = 2.0
"""If an answer about offsets takes longer, the cluster is asked whether the topics still exist."""
_NO_SUCH_TOPIC = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})


class TopicGoneError(LookupError):
    """Topics were deleted while their offsets were asked for."""

    def __init__(self, topics: Iterable[str]) -> None:
        names = ", ".join(repr(name) for name in sorted(topics))
        super().__init__(f"Topic {names} was deleted while the query asked for its offsets. Leave it out of the query")


_LOST = frozenset({ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED})
"""Errors of brokers and coordinator for a writer whose transaction has ended."""


class Cluster:
    """Use as `with Cluster(options) as cluster`. Calls raise the client's errors (`hapax.client.errors`)."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.settings = {"bootstrap.servers": options.bootstrap_servers, **options.client}
        # Spark's options are for all clients, and each client refuses the settings of another.
        self._admin_settings = {k: v for k, v in self.settings.items() if k in SETTINGS and "a" in SETTINGS[k].users}
        self._open: list[Any] = []
        self._multi_writer: MultiWriter | None = None
        self._consumer: Consumer | None = None
        self._admin: Admin | None = None
        self._cluster_id: str | None = None
        self.finished: tuple[Token, int] | None = None
        """The token of the last attempt that this process finished, and the serial of its transaction."""
        self.wrote: tuple[str, str] | None = None
        """(transactional id, scope) of the last attempt over these connections, if it had rows."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Disconnects without waiting: the garbage collector may call this from any thread, while that thread holds a
        lock that the loop's thread needs."""
        clients, self._open = self._open, []
        for each in clients:
            blocking.submit(each.close())
        self._consumer = self._admin = self._multi_writer = None
        self.wrote = None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return blocking.run(work)

    def start(self, client: T) -> T:
        """Connects a client, which `close` disconnects."""
        return self.run(self.connect(client))

    async def connect(self, client: T) -> T:
        """As `start`, on the loop."""
        await client.start()  # type: ignore[attr-defined]
        self._open.append(client)
        return client

    # --- reading ---

    @property
    def cluster_id(self) -> str:
        if self._cluster_id is None:

            async def ask() -> str:
                return (await (await self._administrator()).describe_cluster()).cluster_id

            self._cluster_id = self.run(ask())
        return self._cluster_id

    def _reader(self) -> Consumer:
        if self._consumer is None:

            async def make() -> Consumer:
                ours = {"isolation.level": "read_committed", "max.partition.fetch.bytes": _FETCH_BYTES}
                return Consumer({**ours, **self.settings, "enable.auto.commit": "false"})

            self._consumer = self.start(self.run(make()))
        return self._consumer

    async def _administrator(self) -> Admin:
        if self._admin is None:
            self._admin = await self.connect(Admin(self._admin_settings))
        return self._admin

    def to_choose_from(self, also: Iterable[str] = ()) -> dict[str, TopicInfo]:
        """The existing topics that the options or `also` name; all topics if the options have a pattern."""
        named = self.options.named_topics()
        return self.run(self._topics(None if self.options.subscribe_pattern else {*named, *also}))

    async def _topics(self, names: Iterable[str] | None) -> dict[str, TopicInfo]:
        """The topics of `names` that exist; None: all topics."""
        found = await (await self._administrator()).list_topics(None if names is None else sorted(set(names)))
        return {topic.name: topic for topic in found}

    def earliest(self, partitions: Sequence[Where]) -> dict[Where, int]:
        return self._offsets(partitions, self._reader().beginning_offsets(_named(partitions)))

    def latest(self, partitions: Sequence[Where]) -> dict[Where, int]:
        """The last stable offsets: below them every transaction is decided."""
        return self._offsets(partitions, self._reader().end_offsets(_named(partitions)))

    def latest_from(self, least: Mapping[Where, int]) -> dict[Where, int]:
        """The last stable offsets, once they have reached `least`, or after default.api.timeout.ms. A new leader may
        not know at once how far its log is committed."""
        deadline = time.monotonic() + self._patience_s()
        while True:
            latest = self.latest(list(least))
            if all(latest[where] >= offset for where, offset in least.items()) or time.monotonic() > deadline:
                return latest
            self.run(asyncio.sleep(_PAUSE_S))

    def _patience_s(self) -> float:
        return int(self.settings.get("default.api.timeout.ms", 60_000)) / 1000

    def offsets_for_times(self, times: Mapping[Where, int]) -> dict[Where, int | None]:
        """Offset of the first record at or after a time (ms since 1970); None if there is none."""
        asking = self._reader().offsets_for_times({_partition(where): at_ms for where, at_ms in times.items()})
        found = self._ask_about(list(times), asking)
        return {where: None if (hit := found.get(_partition(where))) is None else hit[0] for where in times}

    def first_timestamps(self, positions: Mapping[Where, int]) -> dict[Where, int]:
        """Timestamp (ms since 1970) of the first record batch at or after each position; positions without one are left
        out. Raises HapaxError, or TimeoutError if there is no answer within some seconds."""
        consumer = self._reader()

        async def look() -> dict[Where, int]:
            async with asyncio.timeout(_ASIDE_S):
                answers = await asyncio.gather(*(
                    consumer.fetch(where, offset, max_bytes=1) for where, offset in positions.items()))
            found = {}
            for where, answer in zip(positions, answers, strict=True):
                first = next(iter(Chunk(answer.data, answer.aborted, check_crcs=False).batches()), None)
                if first is not None:
                    found[where] = first[0].base_timestamp
            return found

        return self.run(look())

    def commit_position(self, positions: Mapping[Where, int]) -> bool:
        """Commits offsets for the consumer group of the options. Returns False, with a warning, if that fails or takes
        too long: nothing depends on it."""
        consumer = self._reader()

        async def commit() -> None:
            async with asyncio.timeout(_ASIDE_S):
                await consumer.commit({_partition(where): offset for where, offset in positions.items()})

        try:
            self.run(commit())
        except (HapaxError, TimeoutError) as error:
            group = self.options.group_id
            log.warning("the position is not shown in consumer group %r: %s", group, error or "no answer")
            return False
        return True

    def _offsets(
        self, partitions: Sequence[Where], asking: Coroutine[Any, Any, dict[TopicPartition, int]]
    ) -> dict[Where, int]:
        return {(p.topic, int(p.partition)): offset for p, offset in self._ask_about(partitions, asking).items()}

    def _ask_about(self, partitions: Sequence[Where], asking: Coroutine[Any, Any, T]) -> T:
        """Raises TopicGoneError soon. The client itself would wait, because a missing topic may be about to be
        created."""
        names = {topic for topic, _ in partitions}

        async def watched() -> T:
            answer = supervision.judged(asking)
            try:
                while not (await asyncio.wait([answer], timeout=_GONE_AFTER_S))[0]:
                    with contextlib.suppress(HapaxError):  # if the topics cannot be listed, keep waiting for the answer
                        if gone := names - set(await self._topics(names)):
                            raise TopicGoneError(gone)
            finally:
                answer.cancel()
            return answer.result()

        return self.run(watched())

    def committed_rows(
        self, topic: str, partition: int, topic_id: str, start: int, end: int
    ) -> Iterator[pa.RecordBatch]:
        """Committed records with start <= offset < end, in order; `end` is at most the last stable offset. The next
        fetch is under way while an answer is decoded. Raises DataLossError, HapaxError."""
        consumer, fail = self._reader(), self.options.fail_on_data_loss
        name = f"{topic}-{partition}"
        position = start
        coming = self._fetch(consumer, topic, partition, topic_id, position) if start < end else None
        quiet_since = time.monotonic()
        try:
            while coming is not None:
                batches: list[tuple[BatchHeader, int, bool]] = []
                try:
                    answer = coming.result()
                    batches = list(Chunk(answer.data, answer.aborted, check_crcs=True).batches())
                except HapaxError as error:
                    if error.code in _NO_SUCH_TOPIC:
                        lost(f"Topic {topic!r} was deleted while offsets {position} to {end - 1} of partition "
                             f"{partition} were to be read", "Use a new checkpointLocation", fail)  # fmt: skip
                        return
                    if error.code != ErrorCode.OFFSET_OUT_OF_RANGE:
                        raise
                    first = min(self.earliest([(topic, partition)])[topic, partition], end)
                    if first > position:  # else the log ends before the position
                        lost(f"Records {position} to {first - 1} of {name} were deleted while the query read them",
                             "Let the topic keep its records longer (retention.ms, retention.bytes)",
                             fail)  # fmt: skip
                        position = first
                        coming = self._fetch(consumer, topic, partition, topic_id, position) if position < end else None
                        continue
                if not batches:  # a new leader does not know yet how far its log is committed
                    if time.monotonic() > quiet_since + self._patience_s():
                        last = self.latest([(topic, partition)])[topic, partition]
                        lost(f"{name} ends at offset {last}, but the query reads up to {end}: records are no "
                             "longer in the log (was an older copy of a broker restored?)",
                             "Use a new checkpointLocation with startingOffsets", fail)  # fmt: skip
                        return
                    self.run(asyncio.sleep(_PAUSE_S))
                else:
                    quiet_since = time.monotonic()
                    position = batches[-1][0].next_offset
                coming = self._fetch(consumer, topic, partition, topic_id, position) if position < end else None
                visible = [
                    (header, at) for header, at, seen in batches
                    if seen and header.last_offset >= start and header.base_offset < end
                ]  # fmt: skip
                if visible:
                    yield batches_to_arrow(
                        answer.data, visible, topic, partition, start, end, self.options.include_headers
                    )
        finally:
            if coming is not None:
                coming.cancel()

    def _fetch(
        self, consumer: Consumer, topic: str, partition: int, topic_id: str, position: int
    ) -> concurrent.futures.Future[RawFetch]:
        return blocking.submit(consumer.fetch((topic, partition), position, topic_id=topic_id))

    # --- writing ---

    def send_plainly(self, rows: Iterator[pa.RecordBatch], columns: OutputColumns) -> int:
        """At least once: an idempotent producer without a transaction. Each task has its own producer id, because the
        cluster at an address may have been replaced. Returns the number of records."""

        async def begin() -> Producer:
            return await (await self._connected()).producer({"enable.idempotence": "true"}).start()

        async def producing() -> Producer:
            producer = await asyncio.wrap_future(beginning)
            producer.check()  # raises errors of earlier batches
            return producer

        connections = self.run(self._connected())
        beginning = blocking.submit(begin())
        sender = RowSender(connections, producing, columns, self.options)
        blocking.submit(sender.look_up())  # like the producer's start, while the task waits for its first row
        records = 0
        try:
            for batch in rows:
                self.run(sender.send(batch))
                records += batch.num_rows
            self.run(beginning.result().flush())
        finally:
            self.run(beginning.result().close())
        return records

    async def transactions(self, transactional_id: str) -> MultiWriter:
        """Connected, as long as this object is."""
        return (await self._connected()).under(transactional_id)

    async def _connected(self) -> MultiWriter:
        """The connections of all writers of this object."""
        if self._multi_writer is None:
            self._multi_writer = await self.connect(MultiWriter(self.settings, ""))
        return self._multi_writer

    def join(self, token: Token, member_key: str, columns: OutputColumns, *, early: bool = False) -> Attempt:
        """A place for one task attempt in the transaction of the token. `early`: it may join before its first row."""
        return Attempt(self, token, member_key, columns, early=early)

    def commit(
        self, token: Token, winners: Sequence[Winner], records: int, serial: int, fingerprints: Fingerprints = (),
        followed: Fingerprints = (),
    ) -> Committed:
        """One decision for the whole batch; idempotent. Raises the errors of `hapax_spark.refusals`."""

        def commit(allow_other_work: bool) -> Committed:
            named = token.commit_token(
                records, self.options.allow_other_record_count, fingerprints, followed, allow_other_work)
            return self.run(self._decide(token, lambda t: t.commit(named, winners, serial=serial)))

        kinds = tuple(kind for kind, _ in fingerprints)
        try:
            try:
                return commit(False)
            except TokenConflictError as error:
                kept = () if error.newest is None else error.newest.fingerprints
                if error.conflict is not Conflict.OTHER_WORK or not token.allows(fingerprints, kept):
                    raise
                return commit(True)
        except HapaxError as error:
            raise self.named(token, error, kinds) from error

    def named(self, token: Token, error: HapaxError, kinds: Sequence[str] = ()) -> Exception:
        """Translates an error of a transaction for the batch of the token. `kinds`: of its fingerprints."""
        if isinstance(error, TokenConflictError):
            return refusal(token, error, self.cluster_id, kinds)
        if error.code in _LOST:
            known = None
            with contextlib.suppress(HapaxError):
                known = self.describe(token.transactional_id)
            return ended(token, self.options.transaction_timeout_ms, str(error), known)
        return error

    def describe(self, transactional_id: str) -> IdentityInfo | None:
        """The coordinator's state of the id; None: it has none. Raises HapaxError."""

        async def ask() -> IdentityInfo | None:
            async with Identities(self._admin_settings) as identities:
                return await identities.describe(transactional_id)

        return self.run(ask())

    def abort(self, token: Token) -> None:
        """Aborts the open transaction of this run of the token, and no transaction of another run."""
        self.run(self._decide(token, lambda t: t.abort(token.commit_token())))

    async def _decide(self, token: Token, call: Any) -> Any:
        return await call(await self.transactions(token.transactional_id))


class Attempt:
    """One task attempt's place in its batch's transaction, which it keeps open from here until `leave`.

    The attempt joins at its first row, or earlier if the task has computed for a third of the time-out: the
    transaction may belong to tasks that ended long ago. Renewals continue while the task computes. If one is refused,
    the next call raises its error.

    If the attempt before it in this worker wrote rows of the same query, this one joins while it waits for its first
    row, which saves the time of a round trip and a stored record. Only the first few tasks of a batch do so: members
    without rows are harmless, but a transaction has a maximum of members.
    """

    def __init__(
        self, cluster: Cluster, token: Token, member_key: str, columns: OutputColumns, *, early: bool = False
    ) -> None:
        self._cluster, self._token, self._member_key, self._columns = cluster, token, member_key, columns
        self._timeout_ms = cluster.options.transaction_timeout_ms
        self._transactions: MultiWriter | None = None
        self._connecting, self._joining = asyncio.Lock(), asyncio.Lock()
        self._joined: Joined | None = None
        self._open_until = 0.0
        """Deadline of the transaction on the monotonic clock."""
        self._writer: Writer | None = None
        self._sender: RowSender | None = None
        self._finished = False
        self._name = token.transactional_id, token.scope
        self._early = early and cluster.wrote == self._name
        self._renewing = blocking.submit(self._keep_open())

    def write(self, rows: pa.RecordBatch) -> None:
        """Sends rows. Does nothing if the token is already committed. Raises TransactionLostError."""
        with self._losses_named():
            self._check_open()
            self._cluster.run(self._write(rows))

    def _check_open(self) -> None:
        """Raises the error that ended the renewals."""
        if self._renewing.done():
            self._renewing.result()

    async def _write(self, rows: pa.RecordBatch) -> None:
        if not rows.num_rows:
            return
        sender = await self._ready()
        if not self._early and self._joined is None:
            await asyncio.gather(self._place(), sender.look_up())
        if self._joined is None or not self._joined.already_committed:
            await sender.send(rows)

    async def _ready(self) -> RowSender:
        async with self._connecting:
            if self._sender is None:
                self._transactions = await self._cluster.transactions(self._token.transactional_id)
                self._sender = RowSender(self._transactions, self._begun, self._columns, self._cluster.options)
            return self._sender

    async def _place(self, *, tentative: bool = False) -> Joined:
        """Joins the transaction once, and returns the place in it. `tentative`: the task has no rows yet, so it does
        not make its driver the one that decides."""
        sender = await self._ready()
        assert self._transactions is not None
        async with self._joining:
            if self._joined is None or not (self._joined.noted or tentative):
                joined = await self._transactions.join(
                    self._token.commit_token(), self._member_key, timeout_ms=self._timeout_ms,
                    first=sender.first_partition(), tentative=tentative,
                )
                self._check_same(joined)
                self._open_until = time.monotonic() + joined.remaining_ms / 1000
                # A transaction left by a dead driver may expire before the first renewal.
                if not joined.already_committed and joined.remaining_ms < self._timeout_ms * 2 / 3:
                    await self._renew(joined)
                self._joined = joined
            return self._joined

    def _check_same(self, joined: Joined) -> None:
        """A batch is one transaction. If this process finished an attempt in an earlier transaction, the batch can no
        longer be committed, and its tasks need not continue until the driver notices."""
        token, serial = self._cluster.finished or (None, 0)
        if token == self._token and joined.serial != serial and not joined.already_committed:
            raise TransactionLostError(self._token, self._timeout_ms, "the tasks that had ended wrote in another one")

    async def _renew(self, joined: Joined) -> None:
        assert self._transactions is not None
        remaining_ms = await self._transactions.renew(joined, self._timeout_ms)
        self._open_until = time.monotonic() + remaining_ms / 1000

    async def _begun(self) -> Writer | None:
        """The writer; None: the token is committed."""
        joined = await self._place()
        if joined.already_committed:
            return None
        if self._writer is None:
            assert self._transactions is not None
            self._writer = await self._transactions.writer(joined, shared=True).start()
        return self._writer

    @property
    def serial(self) -> int:
        """The serial of the transaction in which records were written; 0: none were."""
        return self._joined.serial if self._writer is not None and self._joined is not None else 0

    @property
    def told(self) -> int:
        """The serial of the earlier transaction that committed the token; 0: the coordinator reported none."""
        return self._joined.serial if self._joined is not None and self._joined.already_committed else 0

    def finish(self) -> Winner | None:
        """Waits until all records are stored. Returns the winner for the commit, or None if nothing was written. From
        here the driver has at least nine tenths of the time-out to commit. Raises TransactionLostError."""
        with self._losses_named():
            self._check_open()
            winner = self._cluster.run(self._finish())
        self._finished = True
        if winner is not None:
            self._cluster.finished = self._token, self.serial
        self._cluster.wrote = None if winner is None else self._name
        return winner

    async def _finish(self) -> Winner | None:
        if self._writer is None:
            return None
        assert self._joined is not None
        winner = await self._writer.finish()
        await self._writer.close()
        if self._open_until - time.monotonic() < 0.9 * self._timeout_ms / 1000:  # a renewal costs a record in the log
            await self._renew(self._joined)
        return winner

    def leave(self) -> None:
        """The task ends, successfully or not, and stops renewing. The transaction stays open; the driver decides it."""
        self._renewing.cancel()
        if self._writer is not None and not self._finished:
            self._cluster.run(self._writer.close())

    @contextlib.contextmanager
    def _losses_named(self) -> Iterator[None]:
        try:
            yield
        except HapaxError as error:
            raise self._cluster.named(self._token, error) from error

    async def _keep_open(self) -> None:
        """Renews the transaction while the task works, even if it computes for long between two rows. Raises
        HapaxError if a renewal is refused."""
        if self._early:
            # An error matters only to an attempt that has rows, which joins again.
            with contextlib.suppress(HapaxError, TransactionLostError):
                await asyncio.gather(self._place(tentative=True), (await self._ready()).look_up())
        while True:
            await asyncio.sleep(self._timeout_ms / 3000)
            try:
                joined = await self._place(tentative=True)
                if joined.already_committed:
                    return
                await self._renew(joined)
            except RetriableError as error:
                log.warning("renewing the transaction: %s", error)


def _named(partitions: Iterable[Where]) -> list[TopicPartition]:
    return [_partition(where) for where in partitions]


def _partition(where: Where) -> TopicPartition:
    return TopicPartition(*where)  # type: ignore[arg-type]


_kept: dict[str, Cluster] = {}
"""Settings -> cluster. A Python worker runs several tasks, which share its connections."""
_KEPT_AT_MOST = 4
_inherited: list[dict[str, Cluster]] = []
"""The connections of the parent process. They are kept alive here, because closing them would close the parent's."""


def _forked() -> None:
    global _kept
    _inherited.append(_kept)
    _kept = {}


os.register_at_fork(after_in_child=_forked)


@contextlib.contextmanager
def kept_cluster(options: Options) -> Iterator[Cluster]:
    """A cluster whose connections the next caller with the same settings reuses. If the caller fails, they are closed,
    because requests may still be under way on them."""
    freeze_loaded_modules()
    key = repr(sorted({"bootstrap.servers": options.bootstrap_servers, **options.client}.items()))
    cluster = _kept.pop(key, None) or Cluster(options)
    cluster.options = options
    try:
        yield cluster
    except BaseException:
        cluster.close()
        raise
    former, _kept[key] = _kept.pop(key, None), cluster
    if former is not None:  # another caller of this process took one meanwhile
        former.close()
    while len(_kept) > _KEPT_AT_MOST:
        _kept.pop(next(iter(_kept))).close()


def close_kept_clusters() -> None:
    """Closes the connections that `kept_cluster` keeps."""
    while _kept:
        _kept.popitem()[1].close()
