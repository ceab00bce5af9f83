"""The commands against a real cluster: what they print, as tables and as JSON, and how they end.

They run within this process, since a Python process for each would cost more than the command itself; that the
installed command starts is shown by test_local_cluster.py.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from hapax.cli.consume import read
from hapax.cli.main import application
from hapax.client.producer import Producer
from hapax.local.cluster import LocalCluster
from integration.service_process import ServiceProcess
from integration.waiting import wait_until

Hapax = Callable[..., Result]


@pytest.fixture(scope="module")
def bootstrap(cluster: LocalCluster) -> str:
    return cluster.bootstrap


def invoke(*words: str, given: str = "", ok: bool = True) -> Result:
    done = CliRunner().invoke(application([words[0]]), words, input=given)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert (done.exit_code == 0) is ok, done.stderr
    return done


@pytest.fixture
def hapax(bootstrap: str) -> Hapax:
    """Runs the command against the shared cluster; `ok=False` where it is to fail."""
    return lambda *words, **how: invoke(*words, "--bootstrap", bootstrap, **how)


@pytest.fixture
def topic(hapax: Hapax, request: pytest.FixtureRequest) -> Iterator[str]:
    """A topic of the test's own with two partitions."""
    name = request.node.name.replace("[", ".").replace("]", "")
    hapax("topic", "create", name, "--partitions", "2", "--config", "retention.ms=60000")
    yield name
    hapax("topic", "delete", name)


def as_json(done: Result) -> Any:
    return json.loads(done.stdout)


def as_lines(done: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_topics_life(hapax: Hapax) -> None:
    created = as_json(hapax("topic", "create", "cli-life", "--partitions", "2", "--json"))[0]
    assert (created["topic"], created["partitions"]) == ("cli-life", 2)
    assert "TOPIC_ALREADY_EXISTS" in hapax("topic", "create", "cli-life", ok=False).stderr
    listed = {each["topic"]: each for each in as_json(hapax("topic", "list", "--json"))}
    assert listed["cli-life"]["topic_id"] == created["topic_id"]
    assert not any(name.startswith("__") for name in listed)
    assert "__transaction_state" in hapax("topic", "list", "--internal").stdout
    hapax("topic", "extend", "cli-life", "--partitions", "3")
    described = as_json(hapax("topic", "describe", "cli-life", "--json"))
    assert [each["partition"] for each in described["partitions"]] == [0, 1, 2]
    assert all(each["leader"] == 0 and each["high_watermark"] == 0 for each in described["partitions"])
    hapax("topic", "delete", "cli-life")
    assert hapax("topic", "describe", "cli-life", ok=False).exit_code == 4


def test_bad_usage_has_its_own_exit_code(hapax: Hapax) -> None:
    assert hapax("topic", "create", "x", "--config", "retention", ok=False).exit_code == 2
    assert hapax("topic", "create", "x", "--config", "retention.msec=1", ok=False).exit_code == 1
    assert hapax("txn", "abort", ok=False).exit_code == 2
    assert hapax("txn", "describe", "nobody", ok=False).exit_code == 4


@pytest.mark.parametrize(
    "words",
    [
        ("topic", "describe", "nowhere"), ("topic", "delete", "nowhere"), ("topic", "config", "nowhere"),
        ("topic", "extend", "nowhere", "--partitions", "3"), ("topic", "configure", "nowhere", "--set", "flush.ms=1"),
        ("topic", "offsets", "nowhere"), ("topic", "look", "nowhere", "0"), ("producers", "describe", "nowhere"),
        ("replicas", "list", "--topic", "nowhere"), ("group", "reset", "g", "--topic", "nowhere", "--latest"),
        ("lease", "take", "l", "--partition", "nowhere"), ("txn", "describe", "nobody"), ("group", "offsets", "nobody"),
        ("lease", "progress", "nobody"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_what_does_not_exist_is_reported_at_once_and_not_to_be_tried_again(
    hapax: Hapax, words: tuple[str, ...]
) -> None:
    began = time.monotonic()
    done = hapax(*words, ok=False)
    assert done.exit_code == 4 and time.monotonic() - began < 10
    assert words[-1] in done.stderr or "nowhere" in done.stderr
    assert "ry again" not in done.stderr


def test_an_unknown_topic_is_not_to_be_consumed_again(hapax: Hapax) -> None:
    done = hapax("consume", "nowhere", "--set", "default.api.timeout.ms=1000", ok=False)
    assert done.exit_code == 4 and "there is no such topic" in done.stderr and "ry again" not in done.stderr


def test_a_refused_configuration_says_what_is_wrong(hapax: Hapax, topic: str) -> None:
    done = hapax("topic", "configure", topic, "--set", "retention.ms=soon", ok=False)
    assert done.exit_code == 1 and "retention.ms" in done.stderr and "ry again" not in done.stderr


def test_no_cluster_has_its_own_exit_code() -> None:
    done = invoke("topic", "list", "--bootstrap", "127.0.0.1:1", ok=False)
    assert done.exit_code == 3
    assert "127.0.0.1:1" in done.stderr


def test_what_is_produced_is_consumed(hapax: Hapax, topic: str) -> None:
    lines = "".join(f"k{n % 3}={n}\n" for n in range(10))
    reports = as_lines(hapax("produce", topic, "--key-separator", "=", "--json", given=lines))
    assert len(reports) == 10
    assert {report["topic"] for report in reports} == {topic}
    read = as_lines(hapax("consume", topic, "--from-beginning", "--until-end", "--json"))
    assert sorted(int(each["value"]) for each in read) == list(range(10))
    assert all(each["key"] == f"k{int(each['value']) % 3}" for each in read)
    partitions = {key: {each["partition"] for each in read if each["key"] == key} for key in ("k0", "k1", "k2")}
    assert all(len(where) == 1 for where in partitions.values())
    plain = hapax("consume", topic, "--from-beginning", "--max", "3", "--keys").stdout.splitlines()
    assert len(plain) == 3
    assert all(line.startswith("k") and "\t" in line for line in plain)


def test_more_replicas_in_sync_than_there_are_refuse_writes(hapax: Hapax) -> None:
    hapax("topic", "create", "cli-isr", "--config", "min.insync.replicas=2", "--config", "flush.ms=1")
    words = ("produce", "cli-isr", "--no-idempotent", "--set", "retries=0")
    assert "NOT_ENOUGH_REPLICAS" in hapax(*words, given="a\n", ok=False).stderr
    hapax(*words, "--set", "acks=1", given="a\n")
    hapax("topic", "delete", "cli-isr")


def test_transactions_are_seen_whole_or_not_at_all(hapax: Hapax, topic: str) -> None:
    done = hapax(
        "produce", topic, "--transactional-id", topic, "--per-transaction", "4", "--partition", "0",
        given="".join(f"{n}\n" for n in range(10)),
    )  # fmt: skip
    assert done.stdout.strip() == "10 records in 3 transactions"
    read = hapax("consume", topic, "--from-beginning", "--max", "10", "--partition", "0")
    assert read.stdout.split() == [str(n) for n in range(10)]
    listed = {each["transactional_id"]: each for each in as_json(hapax("txn", "list", "--json"))}
    assert listed[topic]["state"] in ("PrepareCommit", "CompleteCommit")
    described = as_json(hapax("txn", "describe", topic, "--json"))
    assert described["producer_id"] == listed[topic]["producer_id"]
    producers = as_json(hapax("producers", "describe", topic, "--partition", "0", "--json"))
    assert [each["producer_id"] for each in producers] == [described["producer_id"]]
    assert producers[0]["transaction_start_offset"] == -1


async def test_an_open_transaction_is_shown_aborted_and_told(hapax: Hapax, topic: str, bootstrap: str) -> None:
    def looks_and_aborts() -> None:
        described = as_json(hapax("txn", "describe", topic, "--json"))
        assert (described["state"], described["partitions"]) == ("Ongoing", [f"{topic}-0"])
        offsets = as_json(hapax("topic", "describe", topic, "--json"))["partitions"][0]
        assert (offsets["last_stable"], offsets["high_watermark"]) == (0, 1)
        (found,) = as_json(hapax("producers", "describe", topic, "--partition", "0", "--json"))
        assert found["transaction_start_offset"] == 0
        hapax("txn", "abort", topic)
        read = hapax("consume", topic, "--from-beginning", "--until-end", "--partition", "0")
        assert read.stdout == ""
        assert as_json(hapax("txn", "describe", topic, "--json"))["partitions"] == []
        asyncio.run(asyncio.wait_for(told(), 30))
        events = as_lines(hapax("events", "tail", "--event", "producer_fenced", "--json"))
        assert topic in {event["transactional_id"] for event in events}
        assert topic in hapax("events", "tail").stdout

    async def told() -> None:
        """Events are written in the background: until this one is there."""
        from_the_first = {"bootstrap.servers": bootstrap, "auto.offset.reset": "earliest"}
        await read(
            from_the_first, "__hapax_events", (), None, until_end=False,
            show=lambda record: topic.encode() in (record.value or b""))

    options = {"bootstrap.servers": bootstrap, "transactional.id": topic}
    async with Producer(options) as producer:
        producer.begin()
        await producer.send_and_wait(topic, b"never", partition=0)
        await asyncio.to_thread(looks_and_aborts)


def test_leases(hapax: Hapax, topic: str) -> None:
    taken = as_json(hapax("lease", "take", topic, "--partition", topic, "--holder", "first", "--json"))
    assert [each["next_sequence"] for each in taken["partitions"]] == [0, 0]
    (listed,) = as_json(hapax("lease", "list", "--prefix", topic, "--json"))
    assert (listed["holder"], listed["generation"]) == ("first", taken["generation"])
    again = as_json(hapax("lease", "take", topic, "--partition", topic, "--holder", "second", "--json"))
    assert again["former_holder"] == "first"
    assert again["generation"] > taken["generation"]
    progress = as_json(hapax("lease", "progress", topic, "--json"))
    assert [each["records"] for each in progress] == [0, 0]
    hapax(
        "lease", "release", topic,
        "--producer-id", str(again["producer_id"]), "--generation", str(again["generation"]),
    )  # fmt: skip


def test_what_lies_on_disk_is_dumped(hapax: Hapax, topic: str, cluster: LocalCluster) -> None:
    hapax("produce", topic, "--transactional-id", f"{topic}-id", "--partition", "1", given="a\nb\n")
    hapax("consume", topic, "--from-beginning", "--max", "2")  # the marker is there when its records are seen
    folder = cluster.folder.data("broker-0")
    entries = as_lines(invoke("dump", "--records", "--json", str(folder / f"{topic}-1")))
    assert [each["value"] for each in entries if each.get("kind") == "record"] == ["a", "b"]
    (marker,) = [each for each in entries if each.get("kind") == "control"]
    assert marker["content"]["commit"] is True
    logs = [path for path in Path(folder).glob("__transaction_state-*/*.log") if path.stat().st_size]
    entries = as_lines(invoke("dump", "--json", *map(str, logs)))
    assert f"{topic}-id" in {each.get("key") for each in entries}


def test_a_topic_is_configured_and_looked_at(hapax: Hapax, topic: str) -> None:
    hapax("topic", "configure", topic, "--set", "segment.bytes=1048576", "--reset", "retention.ms")
    assert "INVALID_CONFIG" in hapax("topic", "configure", topic, "--set", "retention.msec=1", ok=False).stderr
    config = {each["name"]: each for each in as_json(hapax("topic", "config", topic, "--json"))}
    assert [config["segment.bytes"][key] for key in ("value", "source")] == ["1048576", "topic"]
    assert config["retention.ms"]["source"] == "default" and "segment.bytes" in hapax("topic", "config", topic).stdout
    assert hapax("topic", "config", "nowhere", ok=False).exit_code == 4
    settings = {each["name"]: each for each in as_json(hapax("cluster", "config", "100", "--json"))}
    assert (settings["node.id"]["value"], settings["node.id"]["source"]) == ("100", "node")
    assert hapax("cluster", "config", "99", ok=False).exit_code == 4
    hapax("produce", topic, "--partition", "0", given="a\nb\n")
    assert [each["offset"] for each in as_json(hapax("topic", "offsets", topic, "--json"))] == [2, 0]
    earliest = as_json(hapax("topic", "offsets", topic, "--at", "earliest", "--json"))
    assert [each["offset"] for each in earliest] == [0, 0]
    assert hapax("topic", "offsets", topic, "--at", "noon", ok=False).exit_code == 2
    look = as_json(hapax("topic", "look", topic, "0", "--json"))
    assert [each["value"]["text"] for each in look["records"]] == ["a", "b"]
    assert "base_offset" in hapax("topic", "look", topic, "0", "--offset", "1").stdout


def test_a_group_is_listed_put_elsewhere_and_forgotten(hapax: Hapax, topic: str) -> None:
    hapax("produce", topic, "--partition", "0", given="a\nb\nc\n")
    planned = as_json(hapax("group", "reset", topic, "--topic", topic, "--earliest", "--json"))
    assert planned[0] == {"partition": f"{topic}-0", "before": -1, "after": 0}
    assert hapax("group", "offsets", topic, ok=False).exit_code == 4, "a plan only"
    hapax("group", "reset", topic, "--topic", topic, "--offset", "1", "--execute")
    lag = as_json(hapax("group", "lag", topic, "--json"))
    assert [(each["lag"], each["readable"]) for each in lag] == [(2, 2), (0, 0)]
    described = as_json(hapax("group", "describe", topic, "--json"))
    assert described["members"] == [] and described["lag"] == [{**each, "member_id": None} for each in lag]
    shown = hapax("group", "describe", topic).stdout
    assert "readable" in shown and f"{topic}-0" in shown and "readable" not in hapax(
        "group", "describe", topic, "--no-lag").stdout
    assert topic in [each["group"] for each in as_json(hapax("group", "list", "--json"))]
    assert hapax("group", "reset", topic, "--topic", topic, ok=False).exit_code == 2
    assert "2 offsets" in hapax("group", "delete", topic).stdout
    assert hapax("group", "delete", topic, ok=False).exit_code == 4


def test_a_group_is_configured_shown_and_reset(hapax: Hapax, request: pytest.FixtureRequest) -> None:
    group = request.node.name
    names = ["consumer.assignment.interval.ms", "consumer.heartbeat.interval.ms", "consumer.session.timeout.ms"]

    def sources() -> dict[str, tuple[str, str]]:
        return {
            each["name"]: (each["value"], each["source"])
            for each in as_json(hapax("group", "config", group, "--json"))}

    before = sources()
    assert sorted(before) == names and {source for _, source in before.values()} <= {"default", "node"}
    hapax("group", "configure", group, "--set", f"{names[2]}=50000", "--set", f"{names[0]}=2000")
    assert sources() == before | {names[2]: ("50000", "group"), names[0]: ("2000", "group")}
    shown = hapax("group", "config", group).stdout
    assert names[2] in shown and "50000" in shown and "group" in shown
    assert {"group": group} in as_json(hapax("group", "config", "--json"))
    assert group in hapax("group", "config").stdout.split()
    for refused, why in {
        f"{names[2]}=soon": "expected a number", f"{names[2]}=1": "group.consumer.min.session.timeout.ms",
        "retention.ms=1": "Unknown group config name",
        f"{names[0]}=99999999": "group.consumer.max.assignment.interval.ms",
    }.items():  # fmt: skip
        done = hapax("group", "configure", group, "--set", refused, ok=False)
        assert done.exit_code == 1 and "INVALID_CONFIG" in done.stderr and why in done.stderr, refused
        assert "ry again" not in done.stderr
    assert sources()[names[2]] == ("50000", "group"), "a refused change changes nothing"
    hapax("group", "configure", group, "--reset", names[0], "--set", f"{names[2]}=55000")
    assert sources() == before | {names[2]: ("55000", "group")}
    hapax("group", "configure", group, "--reset", names[2])
    assert sources() == before
    assert {"group": group} not in as_json(hapax("group", "config", "--json"))
    for wrong in ([], ["--set", names[0]], ["--set", f"{names[0]}=1", "--reset", names[0]]):
        assert hapax("group", "configure", group, *wrong, ok=False).exit_code == 2


def test_the_cluster_says_how_it_is(hapax: Hapax) -> None:
    assert as_json(hapax("cluster", "health", "--json"))["status"] == "ok"
    nodes = [(each["node_id"], each["role"], each["acts"]) for each in as_json(hapax("cluster", "nodes", "--json"))]
    assert nodes == [
        (0, "broker", False), (100, "coordinator", False), (200, "pid", False), (300, "controller", True)]
    assert len(as_json(hapax("cluster", "shards", "--json"))) == 100
    assert as_json(hapax("cluster", "version", "--json"))[0]["transaction_version"] == 2
    assert as_json(hapax("txn", "hanging", "--json")) == []


def test_a_coordinator_asks_a_broker_for_its_settings(
    cluster: LocalCluster, hapax: Hapax, topic: str, tmp_path: Path
) -> None:
    """Its own are other ones."""
    state = cluster.status()
    other = ServiceProcess(
        "coordinator", 150, state.cluster_id, f"127.0.0.1:{state.process('etcd').port}", tmp_path,
        log_segment_bytes=4096, listeners="127.0.0.1:0")

    def address() -> list[str]:
        found = as_json(hapax("cluster", "nodes", "--json"))
        return [f"{each['host']}:{each['port']}" for each in found if each["node_id"] == 150]

    def segment_bytes(*words: str) -> list[object]:
        found = {each["name"]: each for each in as_json(invoke(*words, "--json", "--bootstrap", *address()))}
        each = found.get("segment.bytes") or found["log.segment.bytes"]
        return [each["value"], each["source"]]

    with closing(other):
        other.start()
        wait_until(lambda: bool(address()), "coordinator 150")
        assert segment_bytes("topic", "config", topic) == [str(1 << 30), "default"]
        assert segment_bytes("cluster", "config", "150") == ["4096", "node"]
        assert other.terminate() == 0
    assert isinstance(as_json(hapax("txn", "list", "--json")), list), "who has gone is not asked"
