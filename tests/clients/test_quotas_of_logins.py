"""Quotas of users who log in, on a real cluster, set by the command over a listener with logins. Sessions end every
1.5 s, so also while their clients are throttled."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from confluent_kafka import Producer as LibrdkafkaProducer
from typer.testing import CliRunner

from clients.logins import PASSWORD, Logins, set_password
from clients.test_native_logins import done, native, new_topic
from conftest import end_cluster, start_cluster
from hapax.cli.main import application
from hapax.client import blocking
from hapax.local.cluster import LocalCluster
from integration.scraping import scraped, total
from integration.test_quotas import RATE, SIZE, TIMEOUT, Throttled
from integration.waiting import wait_until

LARGE = {"max.request.size": 2_000_000, "batch.size": 2_000_000}


@pytest.fixture(scope="module")
def node(users: Logins, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Of those who log in, only admin has a permission besides reading and writing."""
    settings = users.settings("num.partitions=1", "connections.max.reauth.ms=1500", "message.max.bytes=2000000")
    running = start_cluster(tmp_path_factory.mktemp("quotas-of-logins"), settings=settings)
    for name in ("admin", "alice", "bob"):
        set_password(running.bootstrap, name)
    yield running
    end_cluster(running)


Hapax = Callable[..., Result]


@pytest.fixture(scope="module")
def hapax(users: Logins, node: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Hapax:
    """The command, over the listener with logins."""
    folder = tmp_path_factory.mktemp("commands")

    def run(*words: str, name: str = "admin", password: str = PASSWORD, given: str = "") -> Result:
        config: Path = folder / "client.properties"
        config.write_text(
            f"security.protocol=SASL_SSL\nssl.ca.location={users.tls.folder / 'ca.crt'}\n"
            f"sasl.mechanism=SCRAM-SHA-256\nsasl.username={name}\nsasl.password={password}\n")
        arguments = [*words, "--bootstrap", users.bootstrap, "--command-config", str(config)]
        return CliRunner().invoke(application([words[0]]), arguments, input=given)

    return run


@contextmanager
def quota(hapax: Hapax, node: LocalCluster, value: str, *entity: str) -> Iterator[None]:
    done(hapax("quota", "set", value, *entity))
    wait_until(lambda: total(scraped(node, "broker-0"), "hapax_quota_entities") > 0, "quota")
    try:
        yield
    finally:
        done(hapax("quota", "remove", *entity))
        wait_until(lambda: total(scraped(node, "broker-0"), "hapax_quota_entities") == 0, "end of the quota")


def begun(node: LocalCluster) -> float:
    return total(scraped(node, "broker-0"), "hapax_sasl_logins_total", outcome="succeeded")


def values(settings: dict[str, Any], topic: str, count: int) -> list[bytes]:
    """That many, and those that came with them."""
    found: list[bytes] = []
    with blocking.Consumer({**settings, "auto.offset.reset": "earliest"}) as consumer:
        consumer.assign(consumer.partitions(topic))
        until = time.monotonic() + TIMEOUT
        while len(found) < count:
            found += [record.value or b"" for record in consumer.poll(5_000)]
            assert time.monotonic() < until
    return found


def test_users_and_quotas_by_the_command(hapax: Hapax) -> None:
    done(hapax("user", "set-password", "team/ü", "--password-file", "-", given="of the team\n"))
    done(hapax("quota", "set", "producer_byte_rate=1024", "--user", "team/ü", "--client-id", "app"))
    listed = json.loads(done(hapax("quota", "list", "--json", name="team/ü", password="of the team")))
    assert listed == [
        {"user": "team/ü", "client-id": "app", "ip": None, "quota": "producer_byte_rate", "value": 1024.0}]
    assert [each["user"] for each in json.loads(done(hapax("user", "list", "--user", "team/ü", "--json")))] == [
        "team/ü", "team/ü"]
    refused = hapax("quota", "list", name="team/ü", password="guess")
    assert refused.exit_code == 1 and "invalid credentials" in refused.output
    done(hapax("quota", "remove", "--user", "team/ü", "--client-id", "app"))
    done(hapax("user", "remove", "team/ü"))
    assert json.loads(done(hapax("quota", "list", "--json"))) == []


def test_the_native_client_waits_and_logs_in_again(users: Logins, node: LocalCluster, hapax: Hapax) -> None:
    """A quota of user and client id: others of the user, and other users of that client id, are not throttled."""
    alice, bob = native(users, "SCRAM-SHA-256"), native(users, "SCRAM-SHA-256", "bob")
    slow = {**alice, **LARGE, "client.id": "slow"}
    others = [{**alice, **LARGE, "client.id": "fast"}, {**bob, **LARGE, "client.id": "slow"}]
    topic = asyncio.run(new_topic(alice))
    with quota(hapax, node, f"producer_byte_rate={RATE}", "--user", "alice", "--client-id", "slow"):
        with blocking.Producer({**slow, "retries": 0, "enable.idempotence": False}) as producer:
            began = time.monotonic()
            producer.send(topic, bytes(SIZE)).result(TIMEOUT)
            assert time.monotonic() - began < 6, "the answer does not wait"
            connections = begun(node)
            producer.send(topic, b"next").result(TIMEOUT)  # raises if its connection is closed: nothing is sent twice
            assert time.monotonic() - began > 6
            assert begun(node) == connections, "it logs in again on its connection"
        for settings in others:
            with blocking.Producer(settings) as producer:
                began = time.monotonic()
                producer.send(topic, bytes(SIZE)).result(TIMEOUT)
                producer.send(topic, b"next").result(TIMEOUT)
                assert time.monotonic() - began < 6
    assert [len(value) for value in values(alice, topic, 6)] == [SIZE, 4] * 3


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "OAUTHBEARER"])
def test_librdkafka_loses_and_doubles_nothing(
    users: Logins, node: LocalCluster, hapax: Hapax, mechanism: str
) -> None:
    """It sends on while it is throttled. What it sent before its session's end is read after it, so its connection is
    closed as Kafka closes it, unread, and it sends that again on another."""
    alice, throttled = native(users, "SCRAM-SHA-256"), Throttled()
    topic = asyncio.run(new_topic(alice))
    with quota(hapax, node, f"producer_byte_rate={RATE}", "--user", "alice"):
        producer = LibrdkafkaProducer(users.librdkafka(
            mechanism, **{"message.max.bytes": 2_000_000, "throttle_cb": throttled, "linger.ms": 0}))
        stored: list[bool] = []
        for value in (bytes(SIZE), *(b"%d" % number for number in range(20))):
            producer.produce(topic, value, on_delivery=lambda error, message: stored.append(error is None))
            producer.poll(0.05)
        wait_until(lambda: producer.flush(0.05) == 0 and len(stored) == 21, "deliveries")
        assert all(stored) and throttled.events and throttled.events[0].throttle_time > 6
    first, *later = values(alice, topic, 21)
    assert len(first) == SIZE and later == [b"%d" % number for number in range(20)]
