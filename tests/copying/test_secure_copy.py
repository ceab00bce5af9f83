"""A copy over TLS, with a login by SCRAM on both sides, as files of client settings describe them."""

from __future__ import annotations

import json
from pathlib import Path

from conftest import ClusterFactory
from copying.world import CopyProcess
from hapax.client import Admin, Consumer, NewTopic, Producer
from integration.secure_cluster import Secure


async def test_over_tls_with_logins(cluster_factory: ClusterFactory, tmp_path: Path) -> None:
    secure = Secure(cluster_factory(secure=True, settings=["group.initial.rebalance.delay.ms=0"]))
    side = secure.client
    assert side["security.protocol"] == "SASL_SSL"
    assert "SCRAM" in side["sasl.mechanism"]
    async with Admin(side) as admin:
        await admin.create_topics([NewTopic("orders", 2, 1)])
    async with Producer({**side, "transactional.id": "orders"}) as producer, producer.transaction():
        for i in range(20):
            await producer.send("orders", f"{i}".encode(), partition=i % 2)
    profile = str(secure.files.profile)
    bootstrap = secure.cluster.bootstrap
    copier = CopyProcess(
        tmp_path / "log", "--from", bootstrap, "--from-config", profile, "--to", bootstrap, "--to-config", profile,
        "--topics", "orders", "--prefix", "c.", "--json")
    assert copier.start().wait() == 0, copier.log()
    assert sum(each["records"] for each in json.loads(copier.printed)) == 20
    async with Consumer({**side, "auto.offset.reset": "earliest", "isolation.level": "read_committed"}) as consumer:
        consumer.assign(await consumer.partitions("c.orders"))
        found: list[bytes | None] = []
        while len(found) < 20:
            found += [each.value for each in await consumer.poll()]
        assert sorted(found, key=lambda each: int(each or b"0")) == [f"{i}".encode() for i in range(20)]
