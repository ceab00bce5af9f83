"""What a copier tells at /status of its port, as the operator of Mirrors reads it."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from copying.following import PREFIX, write
from copying.world import CopyProcess, make_topic
from hapax.client import Admin
from hapax.local.cluster import LocalCluster
from hapax_operator.mirror_reports import Report, TopicState, read_report
from integration.etcd_process import free_ports
from integration.waiting import wait_until

Start = Callable[[str, str], "Status"]


class Status:
    def __init__(self, port: int) -> None:
        self._port = port

    def report(self) -> Report | None:
        """None: it does not answer yet."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/status", timeout=10) as answer:
                return read_report(answer.read())
        except urllib.error.URLError:
            return None

    def until(self, done: Callable[[Report], bool], what: str) -> Report:
        found: list[Report] = []

        def look() -> bool:
            found[:] = [each] if (each := self.report()) is not None else found
            return bool(found) and done(found[0])

        try:
            wait_until(look, what, 60)
        except AssertionError:
            raise AssertionError(f"{what}: {found}") from None
        return found[0]


@pytest.fixture
def start(both: LocalCluster, tmp_path: Path) -> Iterator[Start]:
    running: list[CopyProcess] = []

    def begin(source: str, topic: str) -> Status:
        (port,) = free_ports(1)
        running.append(CopyProcess(
            tmp_path / "copy.log", "--from", source, "--to", both.bootstrap, "--topics", topic, "--prefix", PREFIX,
            "--name", topic, "--follow", "--metrics-port", str(port)).start())
        return Status(port)

    yield begin
    for each in running:
        each.kill()


async def test_a_copier_tells_how_far_it_is_and_what_it_does_not_copy(
    both: LocalCluster, topic: str, start: Start
) -> None:
    await make_topic(both.bootstrap, topic, 2)
    await write(both.bootstrap, topic, 30)
    status = start(both.bootstrap, topic)
    report = status.until(lambda each: each.records == 30 and not each.topics[0].lag_records, "30 records")
    assert [each._replace(lag_ms=0) for each in report.topics] == [TopicState(topic, 2)]
    assert report.source_error == report.target_error == "" and report.started_ms > 1_700_000_000_000
    assert report.matching == 1

    async with Admin({"bootstrap.servers": both.bootstrap}) as admin:
        await admin.delete_topics([topic])
    report = status.until(lambda each: any(topic.blocked for topic in each.topics), "a topic that is gone")
    assert (report.topics[0].name, report.topics[0].reason) == (topic, "Gone")
    assert "the source does not have it any more" in report.topics[0].error


def test_a_source_that_does_not_answer_is_told(topic: str, start: Start) -> None:
    (port,) = free_ports(1)
    report = start(f"127.0.0.1:{port}", topic).until(lambda each: bool(each.source_error), "an error")
    assert (report.topics, report.target_error, report.matching) == ((), "", None)


async def test_a_copier_without_partitions_says_whether_there_is_anything_to_copy(
    both: LocalCluster, topic: str, start: Start
) -> None:
    """Its group gives it none for a while, and it answers meanwhile."""
    await make_topic(both.bootstrap, topic, 1)
    seen: list[Report] = []
    start(both.bootstrap, topic).until(lambda each: bool(seen.append(each) or each.topics), "its partition")
    assert {each.matching for each in seen if not each.topics} <= {None, 1}
    none = start(both.bootstrap, topic + "-none").until(lambda each: each.matching is not None, "a look at the source")
    assert (none.matching, none.topics) == (0, ())
