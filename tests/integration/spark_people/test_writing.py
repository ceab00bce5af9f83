"""The sink as people use it, in a real Spark on a real cluster: slow functions, odd columns, writes by the hundred."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import BinaryType, StructField, StructType

from conftest import end_cluster, start_cluster
from hapax.client import CommitToken, HapaxError, NewTopic, blocking
from hapax.client.blocking import Admin, MultiWriter
from hapax.local.cluster import LocalCluster
from hapax_spark.arrow import output_columns
from hapax_spark.cluster import Cluster
from hapax_spark.datasource import HapaxDataSource
from hapax_spark.options import Options, parse
from hapax_spark.queries import await_termination
from hapax_spark.refusals import TransactionLostError
from hapax_spark.sink import HapaxStreamWriter, abort_attempts, commit_attempts, write_attempt
from hapax_spark.tokens import Token
from integration.spark_world import EVERYTHING, PADDED, reading, stream, values, write
from integration.waiting import wait_until

pytestmark = pytest.mark.timeout(300)

COLUMNS = output_columns(StructType([StructField("value", BinaryType())]), "given")
IMPATIENT = {"kafka.request.timeout.ms": "1500", "kafka.delivery.timeout.ms": "3000"}
"""Deliveries fail that are not carried on for three seconds; two minutes are the default."""


@pytest.fixture
def in_small_batches(spark: SparkSession) -> Iterator[None]:
    """20 rows at a time reach the sink."""
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "20")
    yield
    spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


def options(cluster: LocalCluster, topic: str, **more: str) -> Options:
    return parse({"kafka.bootstrap.servers": cluster.bootstrap, "topic": topic, **more})


def rows(*given: bytes) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array(given)})


# --- limits ----------------------------------------------------------------------------------------------------------


def test_how_many_attempts_may_write_is_set_on_the_coordinators(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    cluster = start_cluster(tmp_path_factory.mktemp("few"), settings=["transaction.max.members=2"])
    try:
        with Admin({"bootstrap.servers": cluster.bootstrap}) as admin:
            admin.create_topics([NewTopic("out", 1)])
        chosen = options(cluster, "out")
        token = Token.for_write(chosen, uuid.uuid4().hex)
        messages = [write_attempt(chosen, COLUMNS, token, iter([rows(b"%d" % n)])) for n in range(2)]
        with pytest.raises(HapaxError, match=r"transaction\.max\.members .* allows no more\. Raise it"):
            write_attempt(chosen, COLUMNS, token, iter([rows(b"2")]))
        commit_attempts(chosen, token, messages)
        assert values(cluster, "out") == [b"0", b"1"]
    finally:
        end_cluster(cluster)


def test_batch_writes_leave_no_transactional_ids_behind(forgetful: LocalCluster) -> None:
    """Neither those with an id of their own nor as many as one likes under one id; a query's id stays."""
    with Admin({"bootstrap.servers": forgetful.bootstrap}) as admin:
        admin.create_topics([NewTopic("out", 1)])
        own, shared = options(forgetful, "out"), options(forgetful, "out", **{"transactional.id": "nightly"})
        query = Token.for_query(own, "query", 0)
        commit_attempts(own, query, [write_attempt(own, COLUMNS, query, iter([rows(b"query")]))])
        for number in range(3):
            write_once(own, b"own %d" % number)
        for number in range(110):
            write_once(shared, b"shared %d" % number)
        assert len(values(forgetful, "out")) == 114
        wait_until(
            lambda: [each.transactional_id for each in admin.list_transactions()] == [query.transactional_id],
            "expiry of the writes' ids")


def write_once(chosen: Options, value: bytes) -> None:
    token = Token.for_write(chosen, uuid.uuid4().hex)
    message = write_attempt(chosen, COLUMNS, token, iter([rows(value)]))
    commit_attempts(chosen, token, [message])
    abort_attempts(chosen, token)  # as Spark does where it did not hear of the commit: nothing changes


# --- lost transactions -----------------------------------------------------------------------------------------------


def losing(times: int, marks: Path) -> type[HapaxDataSource]:
    """Aborts the transaction of the second micro-batch when it is to be committed, `times` times."""

    class LosingWriter(HapaxStreamWriter):
        def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
            lost = len(list(marks.iterdir()))
            if batchId == 1 and lost < times:
                (marks / str(lost)).touch()
                self.abort(messages, batchId)
            super().commit(messages, batchId)

    class LosingDataSource(HapaxDataSource):
        def streamWriter(self, schema: StructType, overwrite: bool) -> HapaxStreamWriter:
            return LosingWriter(parse(self.options), schema)

    return LosingDataSource


@pytest.mark.parametrize(("times", "ends"), [(2, "well"), (3, "in the error")])
def test_a_query_that_lost_a_batchs_transaction_is_started_again_a_few_times(
    spark: SparkSession, cluster: LocalCluster, topics: tuple[str, str], tmp_path: Path, times: int, ends: str
) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    spark.dataSource.register(losing(times, marks))
    try:
        if ends == "well":
            await_termination(lambda: stream(spark, cluster, topics, tmp_path), retries=2)
            assert values(cluster, topics[1]) == EVERYTHING
        else:
            with pytest.raises(StreamingQueryException, match="TransactionLostError: the transaction of batch 1"):
                await_termination(lambda: stream(spark, cluster, topics, tmp_path), retries=2)
            assert len(values(cluster, topics[1])) == 100, "the batch before it"
    finally:
        spark.dataSource.register(HapaxDataSource)
    assert len(list(marks.iterdir())) == times, "started again each time"


def test_clients_may_be_closed_by_a_finalizer_that_runs_on_the_loops_thread(
    cluster: LocalCluster, topics: tuple[str, str]
) -> None:
    """The garbage collector closes a reader's generator wherever it happens to run."""
    reader = Cluster(parse({"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": topics[0]}))
    assert reader.latest([(topics[0], 0)]) == {(topics[0], 0): 150}
    connected = sockets()

    async def finalizer() -> None:
        reader.close()

    blocking.submit(finalizer()).result(30)
    wait_until(lambda: sockets() < connected, "end of the connections")


def test_connections_are_given_up_without_waiting_for_the_loop(
    cluster: LocalCluster, topics: tuple[str, str]
) -> None:
    """The garbage collector may do so while its thread holds what the loop's thread waits for."""
    reader = Cluster(parse({"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": topics[0]}))
    assert reader.latest([(topics[0], 0)]) == {(topics[0], 0): 150}
    held, waits = threading.Lock(), threading.Event()

    async def needs_it() -> None:
        waits.set()
        with held:
            pass

    finalizer = threading.Thread(target=reader.close, daemon=True)
    with held:
        blocking.submit(needs_it())
        assert waits.wait(30)
        finalizer.start()
        finalizer.join(30)
        assert not finalizer.is_alive()


# --- small batches ---------------------------------------------------------------------------------------------------


def sockets() -> set[str]:
    """Of this process."""
    found = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found.add(str(descriptor.readlink()))
    return {each for each in found if each.startswith("socket:")}


def test_the_next_task_of_a_worker_uses_the_connections_of_the_last(
    cluster: LocalCluster, topics: tuple[str, str]
) -> None:
    chosen = options(cluster, topics[1], **{"transactional.id": uuid.uuid4().hex})
    write_once(chosen, b"one")
    connected = sockets()
    assert connected
    write_once(chosen, b"two")
    assert sockets() == connected
    with pytest.raises(ZeroDivisionError):
        write_attempt(chosen, COLUMNS, Token.for_write(chosen, uuid.uuid4().hex), failing())
    wait_until(lambda: sockets() < connected, "end of the connections: after a failure nothing is kept")
    write_once(chosen, b"three")
    assert values(cluster, topics[1]) == [b"one", b"three", b"two"]


def failing() -> Iterator[pa.RecordBatch]:
    yield rows(b"never seen")
    raise ZeroDivisionError


def test_a_kept_connection_finds_a_coordinator_that_was_killed(tmp_path_factory: pytest.TempPathFactory) -> None:
    cluster = start_cluster(tmp_path_factory.mktemp("restarted"))
    try:
        with Admin({"bootstrap.servers": cluster.bootstrap}) as admin:
            admin.create_topics([NewTopic("out", 1)])
        chosen = options(cluster, "out", **{"transactional.id": "kept"})
        write_once(chosen, b"one")
        for name in ("coordinator-0", "broker-0"):
            cluster.kill(name)
            cluster.start(name)
        write_once(chosen, b"two")
        assert values(cluster, "out") == [b"one", b"two"]
    finally:
        end_cluster(cluster)


# --- functions that take long ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("in_small_batches")
def test_records_are_delivered_while_a_function_computes_for_longer_than_the_delivery_time_out(
    spark: SparkSession, cluster: LocalCluster, topics: tuple[str, str]
) -> None:
    def slow(value: bytes) -> bytes:
        if value in (b"v150", b"v151"):
            threading.Event().wait(5)
        return bytes(value)

    computed = reading(spark, cluster, topics[0]).select(F.expr(PADDED), F.udf(slow, "binary")("value").alias("value"))
    write(computed, cluster, topics[1], **IMPATIENT)
    assert values(cluster, topics[1]) == EVERYTHING
    assert len(values(cluster, topics[1], "read_uncommitted")) == 300, "no attempt was lost"


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_deliveries_go_on_between_two_batches_of_a_task(
    cluster: LocalCluster, topics: tuple[str, str], delivery: str
) -> None:
    chosen = options(cluster, topics[1], delivery=delivery, **IMPATIENT)
    token = Token.for_write(chosen, uuid.uuid4().hex)

    def batches() -> Iterator[pa.RecordBatch]:
        yield rows(b"one")
        threading.Event().wait(5)
        yield rows(b"two")

    message = write_attempt(chosen, COLUMNS, token, batches())
    if delivery == "exactly-once":
        commit_attempts(chosen, token, [message])
    assert values(cluster, topics[1]) == [b"one", b"two"]


def test_a_task_that_joins_what_a_dead_driver_left_has_its_whole_time(
    cluster: LocalCluster, topics: tuple[str, str]
) -> None:
    """The driver came back when the transaction had little time left: it would have ended before the first renewal."""
    chosen = options(cluster, topics[1])
    token = Token.for_query(chosen, uuid.uuid4().hex, 0, "second run")
    left: list[int] = []
    with MultiWriter({"bootstrap.servers": cluster.bootstrap}, token.transactional_id) as others:
        joined = others.join(replace(token, run="first run").commit_token(), "of the dead driver", timeout_ms=10_000)

        def batches() -> Iterator[pa.RecordBatch]:
            yield rows(b"one")
            left.append(others.renew(joined, 1))  # pushes nothing out, but tells

        commit_attempts(chosen, token, [write_attempt(chosen, COLUMNS, token, batches())])
    assert left[0] > 30_000
    assert values(cluster, topics[1]) == [b"one"]


def test_a_task_that_computes_hears_that_its_transaction_was_aborted(
    cluster: LocalCluster, topics: tuple[str, str]
) -> None:
    """Also where it wrote nothing since: the batch cannot be committed any more, so the task ends with the reason."""
    chosen = options(cluster, topics[1], **{"transaction.timeout.ms": "3000"})
    token = Token.for_write(chosen, uuid.uuid4().hex)

    def batches() -> Iterator[pa.RecordBatch]:
        yield rows(b"one")
        with MultiWriter({"bootstrap.servers": cluster.bootstrap}, token.transactional_id) as others:
            others.abort(CommitToken(token.scope, token.value))
        for _ in range(20):  # batches without a row
            threading.Event().wait(0.5)
            empty.append(1)
            yield rows()

    empty: list[int] = []
    with pytest.raises(TransactionLostError, match="ended before it could be committed"):
        write_attempt(chosen, COLUMNS, token, batches())
    assert len(empty) < 20, "it worked on to the end"


def test_a_task_that_begins_after_the_batch_lost_its_transaction_ends_at_its_first_rows(
    cluster: LocalCluster, topics: tuple[str, str]
) -> None:
    """A task of the batch has ended, so nothing that another one writes can be committed. What it opened is aborted
    with the batch; the batch's next run is another matter."""
    chosen = options(cluster, topics[1])
    token = Token.for_query(chosen, uuid.uuid4().hex, 0, "first run")
    write_attempt(chosen, COLUMNS, token, iter([rows(b"one")]))
    abort_attempts(chosen, token)  # instead of a time-out
    taken: list[bytes] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for value in (b"two", b"three", b"four"):
            taken.append(value)
            yield rows(value)

    with pytest.raises(TransactionLostError, match="the tasks that had ended wrote in another one"):
        write_attempt(chosen, COLUMNS, token, batches())
    assert taken == [b"two"]
    abort_attempts(chosen, token)
    assert values(cluster, topics[1]) == []
    again = replace(token, run="second run")
    message = write_attempt(chosen, COLUMNS, again, iter([rows(b"one")]))
    commit_attempts(chosen, again, [message])
    assert values(cluster, topics[1]) == [b"one"]


def test_a_task_that_fails_leaves_no_threads_behind(cluster: LocalCluster, topics: tuple[str, str]) -> None:
    """Its worker is used for the next task."""
    chosen = options(cluster, topics[1])

    def attempt() -> None:
        with pytest.raises(ZeroDivisionError):
            write_attempt(chosen, COLUMNS, Token.for_write(chosen, uuid.uuid4().hex), failing())

    attempt()
    before = threading.active_count()
    for _ in range(3):
        attempt()
    assert threading.active_count() == before


def test_at_least_once_hears_of_a_failed_delivery_at_the_next_batch_of_rows(
    cluster: LocalCluster, topics: tuple[str, str]
) -> None:
    """Not at its end only, after hours of work that are for nothing."""
    with Admin({"bootstrap.servers": cluster.bootstrap}) as admin:
        admin.alter_topic_config(topics[1], {"max.message.bytes": "1000"})
    chosen = options(cluster, topics[1], delivery="at-least-once")

    def batches() -> Iterator[pa.RecordBatch]:
        yield rows(b"x" * 2000)
        for _ in range(60):
            threading.Event().wait(0.5)
            more.append(1)
            yield rows(b"y")

    more: list[int] = []
    with pytest.raises(HapaxError, match="MESSAGE_TOO_LARGE"):
        write_attempt(chosen, COLUMNS, Token.for_write(chosen, uuid.uuid4().hex), batches())
    assert len(more) < 60, "it worked on to the end"


def test_batches_fit_into_the_buffer_however_small_it_is(cluster: LocalCluster, topics: tuple[str, str]) -> None:
    chosen = options(cluster, topics[1], **{"kafka.buffer.memory": "20000", "kafka.max.block.ms": "5000"})
    token = Token.for_write(chosen, uuid.uuid4().hex)
    message = write_attempt(chosen, COLUMNS, token, iter([rows(*[b"x" * 1000] * 50)]))
    commit_attempts(chosen, token, [message])
    assert len(values(cluster, topics[1])) == 50


def test_back_pressure_holds_while_nobody_answers(cluster: LocalCluster, topics: tuple[str, str]) -> None:
    """A task hands over no more than buffer.memory: rows are taken as fast as they are stored."""
    chosen = options(cluster, topics[1], **{"kafka.buffer.memory": "100000", "batch.size": "10000"})
    token = Token.for_write(chosen, uuid.uuid4().hex)
    big = [rows(*[b"x" * 1000] * 50) for _ in range(40)]
    message = write_attempt(chosen, COLUMNS, token, iter(big))
    commit_attempts(chosen, token, [message])
    assert len(values(cluster, topics[1])) == 2000
