"""The measurement behind docs/guarantees.md: its load is what it says, its tables are those of its samples, and it
leaves no process behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from bench import guarantees_load
from bench.guarantees import CONFIGURATIONS, complete
from bench.guarantees_load import PARTITIONS, ROWS, Load, LoadError, Row
from bench.guarantees_page import BEGIN, END, Cell, tables, with_tables
from hapax.local.cluster import LocalCluster
from integration.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
CONDITIONS = {
    "command": "make bench-guarantees", "commit": "abc", "kafka": "4", "librdkafka": "2", "cores": "2", "load": "0"}


def row(name: str) -> Row:
    (found,) = [each for each in ROWS if each.name == name]
    return found


@pytest.mark.parametrize("name", ["acks_0", "idempotent", "transaction_10"])
def test_one_row_is_measured_for_real(cluster: LocalCluster, name: str) -> None:
    with Load(cluster.bootstrap, f"bench-{name}", row(name), 1).with_topic() as load:
        spent = iter([1.0, 3.5])
        flow, cpu = load.flow(0.2, 0.05, lambda: next(spent))
        times = load.one_at_a_time(0.1)
    assert cpu == 2.5 and flow.records > 0 and flow.lost == 0 and 0 < flow.seconds < 20 and 0 < flow.generator <= 1
    assert flow.transactions == (flow.records // 10 if name == "transaction_10" else 0)
    assert len(times.delay_ms) >= guarantees_load.LEAST_OPERATIONS and min(times.delay_ms) > 0
    assert len(times.latency_ms) == (0 if name == "acks_0" else len(times.delay_ms))
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    assert f"bench-{name}" not in admin.list_topics(timeout=20).topics
    cell = Cell.of(flow, cpu, times)
    again = Cell.from_json(json.loads(json.dumps(cell.as_json())))
    assert again.rate == pytest.approx(cell.rate, rel=0.001) and again.transactions == (name == "transaction_10")
    assert again.delay_ms == pytest.approx(cell.delay_ms, rel=0.001) and again.cpu == pytest.approx(cell.cpu, rel=0.001)


def test_records_that_are_missing_or_too_many_are_found(cluster: LocalCluster) -> None:
    with Load(cluster.bootstrap, "bench-counts", row("transaction_10"), 1).with_topic() as load:
        with load._producer({}) as producer:
            load._transaction(producer, 0)
        assert load._settled(10)[0] == 0
        assert load._settled(20)[0] == 10 + PARTITIONS, "a second transaction and its markers"
        with pytest.raises(LoadError, match="more than were sent"):
            load._settled(0)


def test_the_reader_refuses_records_of_another_operation(cluster: LocalCluster) -> None:
    with (
        Load(cluster.bootstrap, "bench-order", row("transaction_1"), 1).with_topic() as load,
        load._producer({}) as producer, load._reading() as (expected, seen),
    ):
        expected.put((7, 1))
        load._transaction(producer, 8)
        assert "a record of 7 and got one of 8" in str(seen.get(timeout=30))


def cells(**given: Any) -> dict[str, Any]:
    return Cell(**given).as_json()


def test_the_table_shows_medians_ratios_and_who_was_the_bottleneck() -> None:
    run = {"conditions": CONDITIONS, "minutes": 16.2, "tables": {"3_synced": {
        "acks_0": {"hapax": cells(rates=(1.0,), cpu=(1.0,), generator=(0.1,), lost=(3,), delay_ms=(1.0,))},
        "acks_all": {
            "hapax": cells(
                rates=(300_000.0, 100_000.0, 123_456.0), cpu=(1.0, 3.0, 2.0), generator=(0.9, 0.9, 0.1),
                latency_ms=tuple(range(1, 101)), delay_ms=(1.234,)),
            "kafka": cells(
                rates=(61_728.0,), cpu=(4.0,), generator=(0.2,), latency_ms=(10.0,), delay_ms=(20.0,))},
        "transaction_10": {"hapax": cells(
            rates=(55.5,), cpu=(0.4567,), generator=(0.1,), latency_ms=(2.0,), delay_ms=(3.0,), transactions=True)},
    }}}
    lines = tables(run).splitlines()
    assert "16.2 minutes on 2 cores" in lines[0]
    assert [line for line in lines if line.startswith("| `acks=all` |")] == [
        "| `acks=all` | 123,000 † | 61,700 | 2.00 times | 51, 100 ms | 10, 10 ms | 1.23, 1.23 ms | 20, 20 ms |"
        " 2 s a million | 4 s a million |"]
    assert [line for line in lines if "`acks=0`" in line] == [
        "| `acks=0` | 1 (3 lost) | – | – | – | – | 1, 1 ms | – | 1 s a million | – |"]
    assert [line for line in lines if "10 records" in line] == [
        "| transaction of 10 records | 55.5 | – | – | 2, 2 ms | – | 3, 3 ms | – | 0.457 ms a transaction | – |"]
    assert len({line.count("|") for line in lines if line.startswith("|")}) == 1


def test_the_page_takes_the_tables_between_its_markers() -> None:
    page = (ROOT / "docs" / "guarantees.md").read_text()
    written = with_tables(page, "NEW")
    assert written.partition(BEGIN)[0] == page.partition(BEGIN)[0]
    assert written.partition(END)[2] == page.partition(END)[2]
    assert f"{BEGIN}\n\nNEW\n\n{END}" in written and with_tables(written, "NEW") == written
    with pytest.raises(ValueError, match="needs the lines"):
        with_tables("no markers", "NEW")


def test_a_run_is_complete_with_every_turn_of_the_systems_that_were_there() -> None:
    once, twice = Cell(rates=(1.0,)), Cell(rates=(1.0, 2.0))
    assert complete({"a": {"hapax": twice}, "b": {"hapax": twice}}, 2), "Apache Kafka was not there"
    assert not complete({"a": {"hapax": twice, "kafka": twice}, "b": {"hapax": twice}}, 2)
    assert not complete({"a": {"hapax": twice}, "b": {"hapax": once}}, 2)
    assert not complete({"a": {}}, 2) and not complete({}, 2)


def test_an_interrupted_run_leaves_no_process(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    environment = os.environ | {
        "PYTHONPATH": str(ROOT / "tests"), "TMPDIR": str(tmp_path / "tmp"),
        "HAPAX_BENCH_FIGURES": str(tmp_path / "figures.jsonl")}
    command = [sys.executable, "-m", "bench.guarantees", "--short", "--without-kafka", "--only", "1_page_cache/acks_*"]
    run = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    assert run.stderr is not None
    try:
        for line in run.stderr:
            if "1_page_cache/acks_0, hapax: " in line:
                break
        assert processes_with(tmp_path), "the cluster runs"
        run.send_signal(signal.SIGTERM)
        assert run.wait(60) == 128 + signal.SIGTERM
        wait_until(lambda: not processes_with(tmp_path), "end of the cluster's processes")
    finally:
        run.kill()
        run.stderr.close()


def processes_with(folder: Path) -> list[str]:
    """Command lines of processes that name the folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in line:
            found.append(line)
    return found


def test_each_table_has_a_title() -> None:
    run = {"conditions": CONDITIONS, "minutes": 1, "tables": {each.name: {} for each in CONFIGURATIONS}}
    assert tables(run).count("####") == len(CONFIGURATIONS)
