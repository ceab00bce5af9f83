"""Spark's source and sink log in, and what Spark prints of a query shows no secret."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from clients.logins import PASSWORD, Logins, logins, set_password
from clients.secured import secured
from conftest import end_cluster, start_cluster
from hapax.client import NewTopic
from hapax.client.blocking import Admin, Consumer, Producer
from hapax.local.cluster import LocalCluster

pytestmark = pytest.mark.timeout(600)
VALUES = sorted(b"v%d" % number for number in range(100))


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> Logins:
    return logins(secured(tmp_path_factory.mktemp("certificates")))


@pytest.fixture(scope="module")
def node(users: Logins, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    settings = users.settings("num.partitions=1", "connections.max.reauth.ms=3000")
    running = start_cluster(tmp_path_factory.mktemp("logins"), settings=settings)
    set_password(running.bootstrap, "alice")
    yield running
    end_cluster(running)


def test_a_query_logs_in_and_shows_no_secret(
    spark: SparkSession, users: Logins, node: LocalCluster, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {
        "bootstrap.servers": users.bootstrap, "security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-256",
        "ssl.ca.location": str(users.tls.folder / "ca.crt"),
        "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required username=\"alice\" "
                            f"password=\"{PASSWORD}\";"}
    with Admin(settings) as admin:
        admin.create_topics([NewTopic("in", 2, 1), NewTopic("out", 1, 1)])
    with Producer(settings) as producer:
        for value in VALUES:
            producer.send("in", value)
        producer.flush()
    options = {f"kafka.{name}": value for name, value in settings.items()}
    source = spark.readStream.format("hapax").options(**options, subscribe="in", startingOffsets="earliest").load()
    query = source.select("value").writeStream.format("hapax").options(
        **options, topic="out", checkpointLocation=str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    with Consumer({**settings, "auto.offset.reset": "earliest", "isolation.level": "read_committed"}) as consumer:
        consumer.assign(consumer.partitions("out"))
        seen: list[bytes | None] = []
        while len(seen) < len(VALUES):
            seen += [record.value for record in consumer.poll(30_000)]
    assert sorted(value or b"" for value in seen) == VALUES

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        query.explain(extended=True)
        source.explain(extended=True)
        spark.read.format("hapax").options(**options, subscribe="in").load().explain(extended=True)
    told = printed.getvalue() + str(query.recentProgress) + str(query.status)
    assert "RelationV2" in told or "Relation" in told
    assert "secret, with" not in told
    for file in (tmp_path / "checkpoint").rglob("*"):
        assert not file.is_file() or b"secret, with" not in file.read_bytes()


def test_a_wrong_password_fails_the_query_without_showing_it(
    spark: SparkSession, users: Logins, node: LocalCluster
) -> None:
    reader = spark.read.format("hapax").options(**{
        "kafka.bootstrap.servers": users.bootstrap, "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-256", "kafka.ssl.ca.location": str(users.tls.folder / "ca.crt"),
        "kafka.sasl.username": "alice", "kafka.sasl.password": "a wrong one"}, subscribe="in")
    with pytest.raises(Exception, match=r"(?s)invalid credentials with SASL mechanism") as failed:
        reader.load().collect()
    assert "a wrong one" not in str(failed.value)
