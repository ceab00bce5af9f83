"""The measurement of consume, process, produce copies what it says, and its figures are those of its turns."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer, TopicPartition

from bench import bench_processing
from bench.bench_processing import BATCH, PARTITIONS, TARGET, Measured, in_turns, report
from bench.figures import Figure
from hapax.local.cluster import LocalCluster


def test_each_turn_copies_the_whole_input(cluster: LocalCluster) -> None:
    measured = in_turns({"hapax": cluster.bootstrap}, turns=1, transactions=2, warm_up=1)["hapax"]
    assert len(measured.rates) == 1 and len(measured.times_ms) == 2
    assert measured.rate > 0 and min(measured.times_ms) > 0
    reader = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "reader", "enable.partition.eof": True})
    reader.assign([TopicPartition(TARGET, number, 0) for number in range(PARTITIONS)])
    found, ends = 0, 0
    while ends < PARTITIONS:
        message = reader.poll(30)
        assert message is not None
        if message.error() is None:
            found += 1
        else:
            ends += 1
    reader.close()
    assert found == 2 * 3 * BATCH, "two turns, one of them not counted, with three transactions each"


def test_figures_are_ratios_of_all_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: list[Figure] = []
    monkeypatch.setattr(bench_processing, "record", lambda name, value, unit, *, at_most=None, at_least=None: (
        recorded.append(Figure(name, value, unit, "", (at_most is None or value <= at_most) and (
            at_least is None or value >= at_least)))))
    hapax, kafka = Measured(), Measured()
    for seconds in (1.0, 2.0, 4.0):
        hapax.add(seconds, [10.0] * 33 + [30.0])
        kafka.add(seconds * 2, [100.0] * 34)
    report("synced", {"hapax": hapax, "kafka": kafka})
    figures = {figure.name.removeprefix("processing_synced_"): figure for figure in recorded}
    assert figures["hapax"].value == 34 * BATCH / 2
    assert figures["hapax_p99"].value == 30 and figures["hapax_p50"].value == 10
    assert figures["over_kafka"].value == 2 and figures["over_kafka"].ok
    assert figures["p50_over_kafka"].value == pytest.approx(0.1)
    assert figures["p99_over_kafka"].value == pytest.approx(0.3) and not figures["p99_over_kafka"].ok
    recorded.clear()
    report("synced", {"hapax": hapax})
    assert not any("kafka" in figure.name for figure in recorded)
