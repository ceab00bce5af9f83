"""What the processes of a real cluster tell when they are scraped, after things have happened to them."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable

from hapax.client import Consumer, Producer
from hapax.client.admin import Admin, NewTopic
from hapax.client.errors import HapaxError
from hapax.local.cluster import LocalCluster
from integration.scraping import scraped, total
from integration.waiting import wait_until
from tidy.test_metrics import _declared

Make = Callable[..., LocalCluster]


async def _work(cluster: LocalCluster) -> dict[str, float]:
    """Two transactions, one of them aborted; then a second producer of the id fences the first within a third."""
    settings = {"bootstrap.servers": cluster.bootstrap, "transactional.id": "metered"}
    async with Admin({"bootstrap.servers": cluster.bootstrap}) as admin:
        await admin.create_topics([NewTopic("metered", 2)])
    first = await Producer(settings).start()
    async with first.transaction():
        for index in range(10):
            await first.send("metered", b"v", partition=index % 2)
    first.begin()
    await first.send_and_wait("metered", b"given up", partition=0)
    await first.abort()
    counted = first.metrics.values()
    first.begin()
    await first.send_and_wait("metered", b"aborted by its successor", partition=0)
    async with Producer(settings):
        try:
            await first.send_and_wait("metered", b"from a zombie", partition=0)
            raise AssertionError("a fenced producer wrote")
        except HapaxError:
            await first.close()
    return counted


def test_every_service_tells_what_it_did_in_names_that_the_page_has(cluster_factory: Make) -> None:
    cluster = cluster_factory()
    counted = asyncio.run(_work(cluster))
    assert counted["hapax_client_records_sent_total"] == 11
    assert counted["hapax_client_record_errors_total"] == 0
    assert counted['hapax_client_transactions_total{outcome="committed"}'] == 1
    assert counted['hapax_client_transactions_total{outcome="aborted"}'] == 1

    declared = _declared()
    known = {name for metric in declared.values() for name in (
        [metric.name + suffix for suffix in ("_bucket", "_count", "_sum")] if metric.kind == "histogram"
        else [metric.name])}
    told = {process.name: scraped(cluster, process.name) for process in cluster.status().processes
            if process.role != "etcd"}
    for name, samples in told.items():
        assert set(samples) - known == set(), name
        assert total(samples, "hapax_process_resident_bytes") > 10e6, name

    broker, coordinator = told["broker-0"], told["coordinator-0"]
    controller = next(told[name] for name in told if name.startswith("controller"))
    assert total(broker, "hapax_partition_log_end_offset", topic="metered") >= 11
    assert total(broker, "hapax_partition_last_stable_offset_lag", topic="metered") == 0
    assert total(broker, "hapax_request_seconds_count", api="Produce") >= 3
    assert total(broker, "hapax_broker_producer_ids") >= 2
    assert total(coordinator, "hapax_coordinator_transactions_total", outcome="committed") == 1
    assert total(coordinator, "hapax_coordinator_transactions_total", outcome="aborted") >= 1
    for phase in ("prepare", "markers"):
        assert total(coordinator, "hapax_coordinator_commit_phase_seconds_count", phase=phase) >= 2, phase
    assert total(coordinator, "hapax_fencings_total", cause="initialized") >= 1
    assert sum(total(samples, "hapax_request_errors_total") for samples in told.values()) >= 1
    assert total(controller, "hapax_cluster_partitions_leaderless") == 0
    assert total(controller, "hapax_cluster_partitions") > 2
    assert total(controller, "hapax_controller_acting") == 1

    cluster.kill("broker-0")
    cluster.start("broker-0")
    cluster.wait_ready()
    name = next(name for name in told if name.startswith("controller"))
    wait_until(lambda: total(scraped(cluster, name), "hapax_controller_failover_seconds_count") >= 1, "failover", 60)
    assert total(scraped(cluster, name), "hapax_controller_failovers_total") >= 1


async def test_a_consumer_counts_what_it_reads(cluster: LocalCluster) -> None:
    topic = f"read-{uuid.uuid4().hex[:8]}"
    settings = {"bootstrap.servers": cluster.bootstrap, "group.id": topic, "auto.offset.reset": "earliest",
                "isolation.level": "read_committed", "enable.auto.commit": "false"}
    async with Admin({"bootstrap.servers": cluster.bootstrap}) as admin:
        await admin.create_topics([NewTopic(topic, 2)])
    async with Producer({"bootstrap.servers": cluster.bootstrap}) as producer:
        for number in range(50):
            await producer.send(topic, b"v" * 100, partition=number % 2)
        await producer.flush()
    async with Consumer(settings) as consumer:
        consumer.assign(await consumer.partitions(topic))
        read = len(await consumer.poll(10_000, max_records=5))
        behind = consumer.metrics.values()
        assert 0 < behind["hapax_client_records_lag_max"] <= 25 and behind["hapax_client_records_read_total"] == read
        while read < 50:
            read += len(await consumer.poll(10_000))
        await consumer.commit()
        told = consumer.metrics.values()
    assert (told["hapax_client_records_read_total"], told["hapax_client_records_lag_max"]) == (50, 0)
    assert told["hapax_client_fetched_bytes_total"] > 5_000
    assert told['hapax_client_offset_commits_total{outcome="done"}'] == 1
    assert told["hapax_client_fetch_seconds_count"] >= 1
