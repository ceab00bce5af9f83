"""The native client against Apache Kafka: it must work wherever no Hapax-only call is used.

And a hole in which Apache Kafka loses what librdkafka has committed: `test_foreign_clients` shows it closed here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from clients.kafka_from_maven import KafkaFromMaven
from clients.native_suite import Cluster, NativeSuite, on  # noqa: F401 - a fixture
from clients.purged import commit_after_a_purge
from hapax.client import CommitToken, FatalError, Leases, NotHapaxError
from hapax.runtime.network import TcpNetwork
from hapax.wire.peer import Peer


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
        async with on.producer() as producer:
            with pytest.raises(FatalError, match="need a Hapax broker"):
                await producer.append(topic, [(b"k", b"x")], expected=0, scope=b"k")
            await producer.send_and_wait(topic, b"before")
        async with on.producer(transactional_id="token") as producer:
            producer.begin()
            await producer.send(topic, b"x")
            with pytest.raises(Exception, match="is not Hapax"):
                await producer.commit(CommitToken("s", 1))
            await producer.abort()


def test_apache_kafka_loses_records_numbered_like_aborted_ones(target: Kafka) -> None:
    """Should this fail one day, Kafka or librdkafka have mended it: say so in docs/protocol.md."""
    admin = AdminClient({"log_level": 0, "bootstrap.servers": target.bootstrap})
    admin.create_topics([NewTopic("purged", 1, 1)])["purged"].result(30)
    committed = commit_after_a_purge(target.bootstrap, "purged", target.pid)
    settings = {"bootstrap.servers": target.bootstrap, "group.id": "g", "enable.partition.eof": True, "log_level": 0}
    consumer = Consumer({**settings, "isolation.level": "read_committed"})
    consumer.assign([TopicPartition("purged", 0, 0)])
    try:
        first = consumer.poll(30)
        assert first is not None
        assert first.error() is not None, f"{committed!r} was committed, and {first.value()!r} is there"
    finally:
        consumer.close()


async def set_transaction_version(bootstrap: str, level: int) -> None:
    """What `kafka-features.sh` does: the cluster's finalized transaction.version, up or down."""
    from kafka.protocol.admin import UpdateFeaturesRequest, UpdateFeaturesResponse

    host, _, port = bootstrap.rpartition(":")
    peer = await Peer.connect(TcpNetwork(), host, int(port))
    update = UpdateFeaturesRequest.FeatureUpdateKey(
        feature="transaction.version", max_version_level=level, upgrade_type=1 if level == 2 else 2
    )
    request = UpdateFeaturesRequest(timeout_ms=10_000, feature_updates=[update], validate_only=False)
    version = peer.capabilities.pick(UpdateFeaturesRequest)
    response = await peer.submit_raw(
        UpdateFeaturesRequest,
        version,
        [request.encode(version=version)],
        decode=lambda body: UpdateFeaturesResponse.decode(body, version=version),
    )
    peer.close()
    assert response.error_code == 0, response


@pytest.fixture(scope="module")
def version_1(target: Kafka) -> Iterator[None]:
    asyncio.run(set_transaction_version(target.bootstrap, 1))
    yield
    asyncio.run(set_transaction_version(target.bootstrap, 2))


@pytest.mark.usefixtures("version_1")
class TestAgainstKafkaOfVersion1:
    epoch_per_transaction = False
    """Transactions version 1: partitions are added by calls of their own, epochs and sequences go on."""

    test_transactions = NativeSuite.test_committed_and_aborted_transactions
    test_offsets = NativeSuite.test_offsets_are_committed_and_aborted_with_the_transaction
    test_zombie = NativeSuite.test_a_zombie_is_fenced_and_told_so
    test_crash = NativeSuite.test_a_crash_among_transactions_loses_and_doubles_nothing
