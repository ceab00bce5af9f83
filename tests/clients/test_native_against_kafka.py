"""The native client against Apache Kafka: it must work wherever no Hapax-only call is used."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from clients.kafka_from_maven import KafkaFromMaven
from clients.native_suite import Cluster, NativeSuite, on  # noqa: F401 - a fixture
from hapax.client import CommitToken, Leases, NotHapaxError


class Kafka(KafkaFromMaven):
    def crash(self) -> None:
        self.restart()


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    folder: Path = tmp_path_factory.mktemp("kafka")
    kafka = Kafka(folder)
    kafka.start()
    yield kafka
    kafka.kill()


class TestAgainstKafka(NativeSuite):
    async def test_hapaxs_own_calls_say_that_the_peer_is_another(self, on: Cluster) -> None:  # noqa: F811
        with pytest.raises(NotHapaxError, match="is not Hapax"):
            await Leases(on.settings).start()
        topic = await on.topic()
        async with on.producer(transactional_id="token") as producer:
            producer.begin()
            await producer.send(topic, b"x")
            with pytest.raises(Exception, match="is not Hapax"):
                await producer.commit(CommitToken("s", 1))
            await producer.abort()
