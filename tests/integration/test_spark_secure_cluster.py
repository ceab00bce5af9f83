"""Spark's source and sink on a closed cluster (`hapax local up --secure`): logins at Kafka's listeners and at gRPC's,
by a name and a password alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from conftest import end_cluster, start_cluster
from hapax.client import NewTopic
from hapax.client.acls import EVERY_ACL
from hapax.client.blocking import Admin, Consumer, Producer
from hapax.client.users import ScramUpsertion
from hapax.core.access.bindings import Binding
from hapax.core.access.principals import user
from hapax.core.access.resources import Operation, Pattern, Permission, ResourceType
from hapax.core.sasl.scram_keys import ScramMechanism
from integration.secure_cluster import CLIENTS, Secure

pytestmark = pytest.mark.timeout(600)
PASSWORD = "of the job, and of no other"
VALUES = sorted(b"v%d" % number for number in range(100))


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    running = start_cluster(
        tmp_path_factory.mktemp("closed"), secure=True, settings=["num.partitions=1", "connections.max.reauth.ms=5000"])
    made = Secure(running)
    with Admin({**made.client, "bootstrap.servers": made.state.bootstrap}) as admin:
        for mechanism in ScramMechanism:
            admin.alter_user_scram_credentials([ScramUpsertion("job", mechanism, PASSWORD)])
        admin.create_topics([NewTopic("in", 2, 1), NewTopic("out", 1, 1), NewTopic("secret", 1, 1)])
    yield made
    end_cluster(running)


def allow(operation: Operation, kind: ResourceType, name: str, *, prefixed: bool = False) -> Binding:
    pattern = Pattern.PREFIXED if prefixed else Pattern.LITERAL
    return Binding(kind, name, pattern, user("job"), "*", operation, Permission.ALLOW)


@pytest.fixture
def permitted(secure: Secure) -> Iterator[None]:
    """What docs/spark.md says that a job needs."""
    with Admin({**secure.client, "bootstrap.servers": secure.state.bootstrap}) as admin:
        admin.create_acls([
            allow(Operation.READ, ResourceType.TOPIC, "in"), allow(Operation.WRITE, ResourceType.TOPIC, "out"),
            allow(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, "spark-", prefixed=True)])
        yield
        admin.delete_acls(EVERY_ACL)


def settings_of(secure: Secure) -> dict[str, str]:
    return {
        "bootstrap.servers": secure.state.bootstrap, "security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "job", "sasl.password": PASSWORD, "ssl.ca.location": str(secure.files.file(CLIENTS + ".crt"))}


def test_a_query_needs_a_name_and_a_password_alone(
    spark: SparkSession, secure: Secure, permitted: None, tmp_path: Path
) -> None:
    settings = settings_of(secure)
    boss = {**secure.client, "bootstrap.servers": secure.state.bootstrap}
    with Producer(boss) as producer:
        for value in VALUES:
            producer.send("in", value)
        producer.flush()
    options = {f"kafka.{name}": value for name, value in settings.items()}
    rows = spark.readStream.format("hapax").options(**options, subscribe="in", startingOffsets="earliest").load()
    for _ in range(2):  # the second run finds the commit of the first
        rows.select("value").writeStream.format("hapax").options(
            **options, topic="out", checkpointLocation=str(tmp_path / "checkpoint")).trigger(
                availableNow=True).start().awaitTermination()
    with Consumer({**boss, "auto.offset.reset": "earliest", "isolation.level": "read_committed"}) as consumer:
        consumer.assign(consumer.partitions("out"))
        seen: list[bytes | None] = []
        while len(seen) < len(VALUES):
            seen += [record.value for record in consumer.poll(30_000)]
    assert sorted(value or b"" for value in seen) == VALUES


def test_a_query_may_do_what_is_permitted_to_its_user_and_no_more(
    spark: SparkSession, secure: Secure, permitted: None, tmp_path: Path
) -> None:
    options = {f"kafka.{name}": value for name, value in settings_of(secure).items()}
    reader = spark.read.format("hapax").options(**options)
    with pytest.raises(Exception, match="does not exist") as hidden:
        reader.options(subscribe="secret").load().collect()
    rows = spark.createDataFrame([(b"v",)], ["value"])
    with pytest.raises(Exception, match="TOPIC_AUTHORIZATION_FAILED") as refused:
        rows.write.format("hapax").options(**options, topic="in").mode("append").save()
    with pytest.raises(Exception, match="TRANSACTIONAL_ID_AUTHORIZATION_FAILED") as foreign:
        rows.write.format("hapax").options(**options, **{"transactional.id": "others"}, topic="out").mode(
            "append").save()
    assert not any(PASSWORD in str(each.value) for each in (hidden, refused, foreign))
