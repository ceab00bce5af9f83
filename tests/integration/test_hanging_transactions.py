"""Transactions that no coordinator will ever end are found and aborted by the cluster itself (design: self-healing).

With verification switched off a late Produce can open them, as in Kafka before KIP-890 (KAFKA-9144).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from confluent_kafka import Producer

from hapax.client import Consumer, TopicPartition
from hapax.client.admin import Admin, TransactionInfo
from hapax.codec.metadata import EVENTS_TOPIC
from hapax.codec.records import encode_records
from hapax.local.cluster import LocalCluster
from integration.bad_input import ClusterProcess, Wire, create_topic, produce
from integration.scraping import scraped, total
from integration.waiting import wait_until

Make = Callable[..., LocalCluster]
SETTINGS = [
    "transaction.partition.verification.enable=false",
    "transaction.max.timeout.ms=2000",
    "transaction.late.after.ms=500",
]
HEALED_S = 20.0
"""Well before a coordinator that was not there would be asked again if it had left them alone."""
COORDINATORS = ("coordinator-0", "coordinator-1")


def late_batch(producer_id: int, producer_epoch: int, sequence: int) -> bytes:
    return bytes(encode_records(
        [(1_700_000_000_000, b"k", b"late", ())], compression=0, transactional=True, producer_id=producer_id,
        producer_epoch=producer_epoch, base_sequence=sequence,
    ))


def committed_transaction(cluster: LocalCluster, transactional_id: str) -> None:
    producer = Producer({
        "log_level": 0, "bootstrap.servers": cluster.bootstrap, "transactional.id": transactional_id,
        "transaction.timeout.ms": 1500,
    })
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("t", b"committed", partition=2)
    producer.commit_transaction(30)


async def describe(cluster: LocalCluster, transactional_id: str) -> TransactionInfo:
    async with Admin({"bootstrap.servers": cluster.bootstrap}) as admin:
        (described,) = await admin.describe_transactions([transactional_id])
        return described


async def values(cluster: LocalCluster, partition: int, count: int) -> list[bytes | None]:
    """So many records as a reader of what is committed sees them."""
    settings = {
        "bootstrap.servers": cluster.bootstrap, "isolation.level": "read_committed", "auto.offset.reset": "earliest",
    }
    found: list[bytes | None] = []
    async with Consumer(settings) as consumer, asyncio.timeout(HEALED_S):
        consumer.assign([TopicPartition("t", partition)])
        while len(found) < count:
            found += [record.value for record in await consumer.poll(500)]
    return found


async def events(cluster: LocalCluster, kind: str, count: int) -> list[dict[str, Any]]:
    settings = {"bootstrap.servers": cluster.bootstrap, "auto.offset.reset": "earliest"}
    found: list[dict[str, Any]] = []
    async with Consumer(settings) as consumer, asyncio.timeout(HEALED_S):
        consumer.assign(await consumer.partitions(EVENTS_TOPIC))
        while len(found) < count:
            found += [json.loads(r.value or b"") for r in await consumer.poll(500) if r.key == kind.encode()]
    return found


async def test_hanging_transactions_are_found_in_all_shards_and_aborted(cluster_factory: Make) -> None:
    """One of a producer id that belongs to nobody, and one whose transactional id the broker no longer knows."""
    cluster = cluster_factory(coordinators=2, settings=SETTINGS)
    node = ClusterProcess(cluster, "broker-0")
    wire = Wire(node.address)
    assert create_topic(wire, "t", 3) == 0
    stranger = wire.ask("InitProducerId", 2, transactional_id=None, transaction_timeout_ms=1000)
    committed_transaction(cluster, "app")
    known = await describe(cluster, "app")
    hanging = [(stranger.producer_id, stranger.producer_epoch), (known.producer_id, known.producer_epoch)]
    assert hanging[0][0] != hanging[1][0]
    for partition, (producer_id, epoch) in enumerate(hanging):
        name = ("nobody", "app")[partition]
        answer = produce(wire, "t", late_batch(producer_id, epoch, 0), partition=partition, transactional_id=name)
        assert (answer.error_code, answer.base_offset) == (0, 0)
        after = produce(wire, "t", encode_records([(1_700_000_000_000, b"k", b"after", ())]), partition=partition)
        assert (after.error_code, after.base_offset) == (0, 1)
    wire.close()
    for name in ("broker-0", *COORDINATORS):
        cluster.kill(name)
    cluster.start("broker-0")  # has the batches from its log, which holds no transactional ids
    # While no coordinator runs that could end them, the metrics count them.
    late = "hapax_broker_late_transactions"
    wait_until(lambda: total(scraped(cluster, "broker-0"), late) == 2, "two late transactions in the metrics")
    assert total(scraped(cluster, "broker-0"), "hapax_broker_partitions_with_late_transactions") == 2
    for name in COORDINATORS:
        cluster.start(name)

    for partition in range(len(hanging)):
        assert await values(cluster, partition, 1) == [b"after"], "what hangs is aborted and hides nothing any more"
    told = await events(cluster, "hanging_transaction_aborted", 2)
    assert sorted((e["topic"], e["partition"], e["producer_id"], e["first_offset"]) for e in told) == [
        ("t", partition, producer_id, 0) for partition, (producer_id, _) in enumerate(hanging)
    ]
    healed = "hapax_coordinator_transactions_healed_total"
    assert sum(total(scraped(cluster, name), healed) for name in COORDINATORS) == 2
    wait_until(lambda: total(scraped(cluster, "broker-0"), late) == 0, "no late transaction any more")
    committed_transaction(cluster, "app")
    assert await values(cluster, 2, 2) == [b"committed", b"committed"], "its owner goes on"
