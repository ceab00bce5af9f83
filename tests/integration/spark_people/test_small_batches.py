"""What small micro-batches do beside each other: a task joins its batch's transaction before it has a row, and its
connections outlive it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from conftest import end_cluster, start_cluster
from hapax.client import NewTopic
from hapax.client.blocking import Admin
from hapax.core.types import PartitionIndex, TopicPartition
from hapax.local.cluster import LocalCluster
from hapax_spark import sink
from hapax_spark.arrow import output_columns
from hapax_spark.cluster import close_kept_clusters, kept_cluster
from hapax_spark.options import OptionError, Options, parse
from hapax_spark.refusals import CheckpointError
from hapax_spark.sink import AttemptMessage, commit_attempts, write_attempt
from hapax_spark.tokens import Token
from integration.spark_world import values
from integration.waiting import wait_until

pytestmark = pytest.mark.timeout(180)

COLUMNS = output_columns(StructType([StructField("value", BinaryType())]), "given")


@pytest.fixture(autouse=True)
def nothing_is_kept() -> Iterator[None]:
    close_kept_clusters()
    yield
    close_kept_clusters()


def options(cluster: LocalCluster, topic: str, **more: str) -> Options:
    return parse({"kafka.bootstrap.servers": cluster.bootstrap, "topic": topic, **more})


def rows(*given: bytes) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array(given)})


class Query:
    """The micro-batches of a query, each of one task, in one worker."""

    def __init__(self, cluster: LocalCluster, topic: str) -> None:
        self.options = options(cluster, topic)
        self.query = uuid.uuid4().hex
        self._bootstrap = cluster.bootstrap

    def token(self, batch: int) -> Token:
        return Token.for_query(self.options, self.query, batch, "run")

    def attempt(self, batch: int, given: Iterator[pa.RecordBatch]) -> AttemptMessage:
        return write_attempt(self.options, COLUMNS, self.token(batch), given)

    def commit(self, batch: int, *messages: AttemptMessage) -> None:
        commit_attempts(self.options, self.token(batch), list(messages))

    def write(self, batch: int, *given: bytes) -> None:
        self.commit(batch, self.attempt(batch, iter([rows(*given)] if given else [])))

    def state(self) -> str:
        with Admin({"bootstrap.servers": self._bootstrap}) as admin:
            return admin.describe_transactions([self.token(0).transactional_id])[0].state

    def joined_before(self, *given: bytes) -> Iterator[pa.RecordBatch]:
        """Rows that come once the task has joined."""
        wait_until(lambda: self.state() == "Ongoing", "the task joins without a row")
        yield from [rows(*given)] if given else []


def test_a_task_joins_while_it_waits_for_its_first_row(cluster: LocalCluster, topics: tuple[str, str]) -> None:
    query = Query(cluster, topics[1])
    query.write(0, b"one")
    query.commit(1, query.attempt(1, query.joined_before(b"two")))
    assert values(cluster, topics[1]) == [b"one", b"two"]


def test_a_task_that_joined_and_has_no_row_changes_nothing(cluster: LocalCluster, topics: tuple[str, str]) -> None:
    """Alone, so that its batch is empty, and beside one that has rows. The next batch's task waits for a row again."""
    query = Query(cluster, topics[1])
    query.write(0, b"one")
    empty = query.attempt(1, query.joined_before())
    assert (empty.winner, empty.serial, empty.records) == (None, 0, 0)
    query.commit(1, empty)
    query.write(2, b"two")
    beside = query.attempt(3, query.joined_before())
    query.commit(3, beside, query.attempt(3, iter([rows(b"three")])))
    query.write(4)
    with kept_cluster(query.options) as kept:
        assert kept.wrote is None
    query.write(5, b"four")
    assert values(cluster, topics[1]) == [b"four", b"one", b"three", b"two"]


def test_a_refused_early_join_concerns_only_a_task_that_has_rows(
    cluster: LocalCluster, topics: tuple[str, str], tmp_path: Path
) -> None:
    """The batches between were written elsewhere, so nothing may follow."""
    query = Query(cluster, topics[1])
    query.write(0, b"one")
    gap = query.token(7)
    assert query.attempt(7, iter([])).winner is None
    with pytest.raises(CheckpointError):
        query.commit(7, AttemptMessage(gap, 0))
    query.write(1, b"two")
    with pytest.raises(CheckpointError):
        query.attempt(7, iter([rows(b"lost")]))
    assert values(cluster, topics[1]) == [b"one", b"two"]


def test_only_the_first_tasks_of_a_batch_join_without_a_row(
    cluster: LocalCluster, topics: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction has a maximum of members."""
    query = Query(cluster, topics[1])
    query.write(0, b"one")
    with kept_cluster(query.options) as kept:
        joins = [
            kept.join(query.token(1), f"attempt of task {place}", COLUMNS, early=early)
            for place, early in ((0, True), (1, False))
        ]
        assert [each._early for each in joins] == [True, False]
        for each in joins:
            each.leave()
    early: list[bool] = []
    join = type(kept).join

    def noting(*given: object, **named: bool) -> object:
        early.append(named["early"])
        return join(*given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(type(kept), "join", noting)
    for place in (sink.JOIN_EARLY - 1, sink.JOIN_EARLY):
        monkeypatch.setattr(sink, "_place_in_batch", lambda place=place: place)
        query.attempt(1, iter([]))
    assert early == [True, False]


def test_a_replayed_batch_is_told_to_a_task_that_joins_early(cluster: LocalCluster, topics: tuple[str, str]) -> None:
    query = Query(cluster, topics[1])
    query.write(0, b"one")
    query.write(0, b"one")
    query.write(1, b"two")
    query.write(1, b"two")
    assert values(cluster, topics[1]) == [b"one", b"two"]


def test_a_missing_topic_is_named_as_soon_as_a_row_needs_it(cluster: LocalCluster) -> None:
    for delivery in ("exactly-once", "at-least-once"):
        chosen = options(cluster, "missing", delivery=delivery)
        token = Token.for_write(chosen, uuid.uuid4().hex)
        write_attempt(chosen, COLUMNS, token, iter([]))
        with pytest.raises(OptionError, match="Topic 'missing' does not exist"):
            write_attempt(chosen, COLUMNS, token, iter([rows(b"one")]))


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_connections_that_broke_between_two_tasks_are_replaced(
    tmp_path_factory: pytest.TempPathFactory, delivery: str
) -> None:
    """Every node ends and comes back, so that each kept connection is dead, and the coordinator may be another one."""
    cluster = start_cluster(tmp_path_factory.mktemp("broken"), coordinators=2)
    try:
        query = Query(cluster, "out")
        query.options = replace(query.options, delivery=delivery)
        with Admin({"bootstrap.servers": cluster.bootstrap}) as admin:
            admin.create_topics([NewTopic("out", 1)])
        for batch in range(3):
            message = query.attempt(batch, iter([rows(b"%d" % batch)]))
            if delivery == "exactly-once":
                query.commit(batch, message)
            for name in ("broker-0", "coordinator-0", "coordinator-1"):
                cluster.kill(name)
                cluster.start(name)
        assert values(cluster, "out") == [b"0", b"1", b"2"]
    finally:
        end_cluster(cluster)


def test_each_task_at_least_once_is_another_producer(cluster: LocalCluster, topics: tuple[str, str]) -> None:
    """The connections are the same. A producer id that outlived its cluster could belong to another producer of the
    cluster that replaced it, which would take new records for duplicates."""
    chosen = options(cluster, topics[1], delivery="at-least-once")
    token = Token.for_write(chosen, uuid.uuid4().hex)
    used = set()
    for value in (b"one", b"two"):
        write_attempt(chosen, COLUMNS, token, iter([rows(value)]))
        with kept_cluster(chosen) as kept:
            used.add(kept._multi_writer)
    assert len(used) == 1
    with Admin({"bootstrap.servers": cluster.bootstrap}) as admin:
        places = [TopicPartition(topics[1], PartitionIndex(number)) for number in range(2)]
        producers = {each.producer_id for each in admin.partition_producers(places)}
    assert len(producers) == 2
    assert values(cluster, topics[1]) == [b"one", b"two"]
