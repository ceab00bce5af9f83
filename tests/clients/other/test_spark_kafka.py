"""Spark's own Kafka connector, reading and writing. Hapax's data source has tests of its own."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bench.spark_connector import jars
from clients.other import HERE, REPLICATED, WHOLE, Program, new_name, program
from hapax.local.cluster import LocalCluster
from maven import Unavailable

pytestmark = [
    pytest.mark.skipif(not WHOLE, reason="Spark's connector is for make test-clients"), pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    if shutil.which("java") is None:
        pytest.skip("Spark needs java, which is not on the PATH")
    try:
        connector = os.pathsep.join(map(str, jars()))
    except Unavailable as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("checkpoints")
    with program([sys.executable, str(HERE / "spark_kafka.py"), connector, str(folder)]) as running:
        yield running


def new_topic(bootstrap: str) -> str:
    name, admin = new_name(), AdminClient({"bootstrap.servers": bootstrap})
    for created in admin.create_topics([NewTopic(name, 2)]).values():
        created.result(30)
    return name


def produce_transactions(bootstrap: str, topic: str, count: int) -> int:
    """Values from 0, each once, in transactions of twenty. Each third one is aborted. Returns the number committed."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic})
    producer.init_transactions(30)
    for number in range(count):
        producer.begin_transaction()
        for i in range(20):
            producer.produce(topic, b"%d" % (20 * number + i), partition=i % 2)
        assert producer.flush(30) == 0
        (producer.abort_transaction if number % 3 == 1 else producer.commit_transaction)(30)
    return 20 * len([number for number in range(count) if number % 3 != 1])


def test_what_is_written_is_read(spark: Program, cluster: LocalCluster) -> None:
    spark.run("batch", cluster.bootstrap, new_topic(cluster.bootstrap), "500")


def test_aborted_records_are_not_read(spark: Program, cluster: LocalCluster) -> None:
    topic = new_topic(cluster.bootstrap)
    committed = produce_transactions(cluster.bootstrap, topic, 6)
    spark.run("read", cluster.bootstrap, topic, "read_committed", str(committed))
    spark.run("read", cluster.bootstrap, topic, "read_uncommitted", "120")


@pytest.mark.parametrize("victim", ["broker-1", "coordinator-0"])
def test_a_stream_copies_while_one_is_killed(
    spark: Program, cluster_factory: Callable[..., LocalCluster], victim: str
) -> None:
    three = cluster_factory(brokers=3, coordinators=2, settings=REPLICATED)
    source, target = new_topic(three.bootstrap), new_topic(three.bootstrap)
    committed = produce_transactions(three.bootstrap, source, 45)

    def kill(number: int) -> None:
        if number in (100, 300):
            three.kill(victim)
            three.restart(victim)

    spark.run("stream", three.bootstrap, source, target, str(committed), at=kill)
