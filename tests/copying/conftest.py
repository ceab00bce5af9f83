"""One cluster that is both sides of the copies in this folder, and an Apache Kafka."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from clients.kafka_from_maven import KafkaFromMaven
from conftest import end_cluster, start_cluster
from hapax.local.cluster import LocalCluster


@pytest.fixture(scope="session")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Groups do not wait for further members, so that each copier begins at once."""
    cluster = start_cluster(tmp_path_factory.mktemp("copying"), settings=["group.initial.rebalance.delay.ms=0"])
    yield cluster
    end_cluster(cluster)


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaFromMaven]:
    broker = KafkaFromMaven(tmp_path_factory.mktemp("kafka"))
    broker.start()
    yield broker
    broker.kill()


@pytest.fixture
def topic() -> str:
    return f"t{uuid.uuid4().hex[:8]}"
