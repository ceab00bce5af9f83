"""The native client logs in, by each mechanism, on a real cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from clients.logins import MECHANISMS, PASSWORD, Logins, logins, set_password
from clients.other import new_name
from clients.secured import secured
from conftest import end_cluster, start_cluster
from hapax.client import Admin, Consumer, NewTopic, Producer
from hapax.local.cluster import LocalCluster

VALUES = [b"v%d" % number for number in range(50)]
of_each_mechanism = pytest.mark.parametrize("mechanism", MECHANISMS)


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> Logins:
    return logins(secured(tmp_path_factory.mktemp("certificates")))


@pytest.fixture(scope="module")
def node(users: Logins, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Sessions end every 1.5 s."""
    settings = users.settings("num.partitions=1", "connections.max.reauth.ms=1500")
    running = start_cluster(tmp_path_factory.mktemp("logins"), settings=settings)
    set_password(running.bootstrap, "alice")
    yield running
    end_cluster(running)


def native(users: Logins, mechanism: str, name: str = "alice", password: str = PASSWORD) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "bootstrap.servers": users.bootstrap, "security.protocol": "SASL_SSL", "sasl.mechanism": mechanism,
        "ssl.ca.location": str(users.tls.folder / "ca.crt")}
    if mechanism == "OAUTHBEARER":
        return {**settings, "sasl.oauthbearer.token.provider": lambda: users.token(name)}
    return {**settings, "sasl.username": name, "sasl.password": password}


async def new_topic(settings: dict[str, Any]) -> str:
    name = new_name()
    async with Admin(settings) as admin:
        await admin.create_topics([NewTopic(name, 1, 1)])
    return name


@of_each_mechanism
async def test_a_transaction_is_written_and_read(users: Logins, node: LocalCluster, mechanism: str) -> None:
    settings = native(users, mechanism)
    topic = await new_topic(settings)
    async with Producer({**settings, "transactional.id": topic}) as producer, producer.transaction():
        for value in VALUES:
            await producer.send(topic, value)
    seen: list[bytes | None] = []
    async with Consumer({**settings, "group.id": topic, "auto.offset.reset": "earliest"}) as consumer:
        consumer.subscribe([topic])
        while len(seen) < len(VALUES):
            seen += [record.value for record in await asyncio.wait_for(consumer.poll(timeout_ms=5_000), 30)]
    assert seen == VALUES
