"""The audit log: bounded, whole, and written by a thread that loses nothing at an orderly stop."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hapax.rpc.gen.hapax.v1 import cluster_admin_pb2
from hapax.runtime.asker import CLUSTER, Asker, asker_in, asker_of, with_asker
from hapax.runtime.audit import AuditLog
from hapax.runtime.audit_events import COMMON, EVENTS, SILENT, with_events
from hapax.runtime.audit_writer import MOST_BOUNDED, LineWriter, ProcessAudit, RotatedFile
from hapax.runtime.clock import SystemClock
from hapax.runtime.metrics import Metrics
from hapax.runtime.ports import RpcPeer
from hapax.runtime.settings import Settings, SettingsError, load

ROOT = Path(__file__).resolve().parents[3]
REFUSED: dict[str, Any] = {
    "call": "Produce", "operation": "Write", "resource_type": "Topic", "resource": "t", "rule": None, "reason": "none"}
LOGIN = {"listener": "SASL", "mechanism": "PLAIN", "reason": "wrong"}


class World:
    def __init__(self, most: int = 3, room: int = 10**9, excluded: frozenset[str] = frozenset()) -> None:
        self.lines: list[dict[str, Any]] = []
        self.now_ms = 1_000_000_000_123
        self.room = room
        self.on_line: Callable[[], None] = lambda: None
        self.audit = AuditLog(self._put, lambda: self.now_ms, "c", "broker-0", most, excluded)

    def _put(self, line: dict[str, Any], limited: bool) -> bool:
        if len(self.lines) >= self.room:
            return False
        self.lines.append(line)
        self.on_line()
        return True

    def refused(self, principal: str | None, times: int = 1, address: str = "10.0.0.1") -> None:
        for _ in range(times):
            self.audit.record("refused", principal, address, **REFUSED)

    @property
    def told(self) -> list[tuple[str, str | None, int]]:
        """(event, principal, what was left out)."""
        return [(line["event"], line["principal"], line.get("count", 0)) for line in self.lines]


async def test_a_line_says_what_its_form_says() -> None:
    world = World()
    world.refused("User:eve")
    assert world.lines == [{
        "v": 1, "time": "2001-09-09T01:46:40.123Z", "event": "refused", "cluster": "c", "node": "broker-0",
        "principal": "User:eve", "address": "10.0.0.1", **REFUSED}]
    assert list(world.lines[0]) == [*COMMON, *EVENTS["refused"].fields]
    with pytest.raises(KeyError):
        world.audit.record("refused", "User:eve", "", call="Produce")


async def test_a_flood_of_one_principal_is_a_few_lines_and_a_count() -> None:
    world = World()
    world.refused("User:eve", 10_000)
    world.refused("User:bob")
    assert world.told == [*3 * [("refused", "User:eve", 0)], ("refused", "User:bob", 0)]
    world.audit.settle()
    assert world.told[4:] == [("left_out", "User:eve", 9_997)]
    assert world.lines[-1]["of"] == "refused" and world.lines[-1]["since"] == "2001-09-09T01:46:40.123Z"
    assert world.audit.left_out == {"refused": 9_997} and world.audit.recorded["refused"] == 4
    world.refused("User:eve")  # another second
    assert world.told[-1] == ("refused", "User:eve", 0)


async def test_the_count_is_written_without_a_further_event() -> None:
    world = World()
    world.refused("User:eve", 5)
    told = asyncio.Event()
    world.on_line = told.set
    await asyncio.wait_for(told.wait(), 10)
    assert world.told[3:] == [("left_out", "User:eve", 2)]


async def test_failed_logins_are_bounded_by_address() -> None:
    world = World()
    for address in ("10.0.0.1", "10.0.0.2"):
        for _ in range(5):
            world.audit.record("login_failed", None, address, **LOGIN)
    world.audit.settle()
    assert [line["address"] for line in world.lines if line["event"] == "left_out"] == ["10.0.0.1", "10.0.0.2"]
    assert len(world.lines) == 2 * 3 + 2


async def test_many_addresses_share_what_is_above_a_thousand() -> None:
    world = World(most=1)
    for number in range(5_000):
        world.audit.record("login_failed", None, f"10.0.{number // 256}.{number % 256}", **LOGIN)
    world.audit.settle()
    assert len(world.lines) == 1_000 + 1 + 1
    assert world.lines[-1]["count"] == 3_999 and world.lines[-1]["address"] == ""


async def test_many_addresses_hide_no_principal() -> None:
    """Failed logins from everywhere, and a user who is refused: one does not share the other's account."""
    world = World(most=1)
    for number in range(3_000):
        world.audit.record("refused", None, f"10.0.{number // 256}.{number % 256}", **REFUSED)
    before = len(world.lines)
    for name in ("User:eve", "User:mallory"):
        world.refused(name, 2)
    world.audit.record("login_failed", None, "10.9.9.9", **LOGIN)
    assert [line["principal"] for line in world.lines[before:]] == ["User:eve", "User:mallory", None]
    assert world.lines[-1]["event"] == "login_failed"


async def test_anonymous_clients_are_told_apart_by_their_addresses() -> None:
    world = World(most=2)
    world.refused("User:ANONYMOUS", 50, "10.0.0.1")
    world.refused("User:ANONYMOUS", 1, "10.0.0.2")
    assert [line["address"] for line in world.lines] == ["10.0.0.1", "10.0.0.1", "10.0.0.2"]


async def test_an_ipv6_network_has_one_account() -> None:
    world = World(most=2)
    for number in range(2_000):
        world.audit.record("login_failed", None, f"2001:db8::{number:x}", **LOGIN)
    world.audit.record("login_failed", None, "10.0.0.2", **LOGIN)
    world.audit.settle()
    assert len(world.lines) == 2 + 1 + 1 and world.lines[-1]["address"] == "2001:db8::/64"


async def test_long_names_do_not_wait_in_the_queue() -> None:
    """The queue waits while the disk is full: 10,000 refusals with names of 32 KiB would be 320 MB."""
    world = World()
    world.audit.record("refused", "User:eve", "", **{**REFUSED, "resource": "x" * 32_000})
    assert len(world.lines[0]["resource"]) == 1_025


async def test_changes_are_never_left_out() -> None:
    world = World()
    for number in range(100):
        world.audit.record("topic_deleted", "User:eve", "", call="DeleteTopics", outcome="done", topic=f"t{number}",
                           old={}, new=None)  # fmt: skip
    assert len(world.lines) == 100


async def test_excluded_principals_are_excluded_from_what_is_bounded_only() -> None:
    world = World(excluded=frozenset({"User:metrics"}))
    world.refused("User:metrics")
    world.audit.record("acl_created", "User:metrics", "", call="CreateAcls", outcome="done", old=None, new={})
    assert world.told == [("acl_created", "User:metrics", 0)]


async def test_what_a_full_queue_did_not_take_is_told_when_it_has_room() -> None:
    world = World(most=100, room=2)
    world.refused("User:eve", 5)
    world.audit.settle()
    assert len(world.lines) == 2
    world.room = 10**9
    world.audit.settle()
    assert world.told[2:] == [("left_out", None, 3)]
    world.audit.settle()
    assert len(world.lines) == 3


def test_nothing_is_recorded_where_there_is_no_audit_log() -> None:
    assert not SILENT.enabled
    SILENT.record("refused", None, "")


# --- the thread ---------------------------------------------------------------------------------------------------


def lines_of(*paths: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in paths for line in path.read_bytes().splitlines()]


def test_everything_is_written_before_close_returns(tmp_path: Path) -> None:
    writer = LineWriter(RotatedFile(tmp_path, "broker-0", 1 << 20, 3))
    for number in range(5_000):
        assert writer.put({"n": number})
    assert writer.close() == 0
    assert [line["n"] for line in lines_of(tmp_path / "broker-0.jsonl")] == list(range(5_000))


def test_a_file_is_rotated_before_it_grows_too_large(tmp_path: Path) -> None:
    target = RotatedFile(tmp_path, "x", 30, 2)
    for number in range(10):
        target.write(b'{"number":%d}\n' % number)
    target.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.1.jsonl", "x.2.jsonl", "x.jsonl", "x.lock"]
    kept = [tmp_path / name for name in ("x.2.jsonl", "x.1.jsonl", "x.jsonl")]
    assert [line["number"] for line in lines_of(*kept)] == [4, 5, 6, 7, 8, 9]
    assert all(path.stat().st_size <= 30 for path in kept)
    assert (tmp_path / "x.jsonl").stat().st_mode & 0o7 == 0


def test_without_backups_the_file_begins_again_empty(tmp_path: Path) -> None:
    target = RotatedFile(tmp_path, "x", 1024, 0)
    target.write(b"1" * 1023 + b"\n")
    target.write(b"2\n")
    assert (tmp_path / "x.jsonl").read_bytes() == b"2\n"
    target.close()


def test_a_torn_line_of_a_killed_process_stands_alone(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_bytes(b'{"n":1}\n{"n":')
    target = RotatedFile(tmp_path, "x", 1 << 20, 2)
    target.write(b'{"n":2}\n')
    target.close()
    assert (tmp_path / "x.jsonl").read_bytes() == b'{"n":1}\n{"n":\n{"n":2}\n'


def test_one_process_writes_a_file(tmp_path: Path) -> None:
    target = RotatedFile(tmp_path, "x", 1 << 20, 2)
    with pytest.raises(OSError, match="another process writes the audit log"):
        RotatedFile(tmp_path, "x", 1 << 20, 2)
    target.close()
    RotatedFile(tmp_path, "x", 1 << 20, 2).close()


def test_lines_wait_for_a_disk_that_takes_no_more(tmp_path: Path) -> None:
    """A real limit of the size of files: the first write is cut short, and the file holds whole lines only."""
    program = """
import resource, signal, sys
from pathlib import Path
from hapax.runtime.audit_writer import MOST_BOUNDED, LineWriter, RotatedFile
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
writer = LineWriter(RotatedFile(Path(sys.argv[1]), "x", 1 << 20, 2))
for number in range(100):
    writer.put({"number": number, "text": "a" * 20})
while not writer.failures:
    pass
assert (Path(sys.argv[1]) / "x.jsonl").stat().st_size == 0
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(writer.close())
"""
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "0\n", done.stderr
    assert [line["number"] for line in lines_of(tmp_path / "x.jsonl")] == list(range(100))


def test_what_cannot_be_written_at_the_end_is_counted(tmp_path: Path) -> None:
    class Full:
        def write(self, data: bytes) -> None:
            raise OSError(28, "No space left on device")

        def close(self) -> None: ...

    writer = LineWriter(Full())
    writer.put({})
    assert writer.close() == 1 and writer.failures


class Full:
    """A disk that takes nothing."""

    def __init__(self) -> None:
        self.attempts = 0
        self.again = threading.Event()

    def write(self, data: bytes) -> None:
        self.attempts += 1
        if self.attempts > 1:
            self.again.set()
        raise OSError(28, "No space left on device")

    def close(self) -> None: ...


def test_a_flood_displaces_no_change_while_the_disk_is_full() -> None:
    writer = LineWriter(Full())
    while writer.put({"event": "refused"}, True):
        pass
    assert writer.put({"event": "topic_deleted"})
    assert writer.close() == MOST_BOUNDED + 1


def test_events_do_not_hurry_the_next_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """An attempt encodes up to 1,000 lines: with one for each event, a full disk would take the loop its time."""
    monkeypatch.setattr("hapax.runtime.audit_writer._RETRY_S", 60.0)
    target = Full()
    writer = LineWriter(target)
    writer.put({})
    while not writer.failures:
        os.sched_yield()
    writer.put({})
    assert not target.again.wait(0.3)
    assert writer.close() == 2 and target.attempts == 2


def test_a_line_that_comes_with_the_end_is_written(tmp_path: Path) -> None:
    """The thread has seen an empty queue; before it looks whether the process ends, both come: a line, and the end."""

    class Queue(deque[dict[str, Any]]):
        late = True

        def __bool__(self) -> bool:
            found = len(self) > 0
            if not found and self.late:
                self.late = False
                writer.put({"n": 2})
                writer._closing.set()
                writer._work.set()
            return found

    writer = LineWriter(RotatedFile(tmp_path, "x", 1 << 20, 2))
    writer._lines = Queue()
    writer.put({"n": 1})
    writer._thread.join(10)
    assert [line["n"] for line in lines_of(tmp_path / "x.jsonl")] == [1, 2]


def test_a_line_that_cannot_be_encoded_harms_no_other(tmp_path: Path) -> None:
    class Odd:
        def __str__(self) -> str:
            raise RuntimeError("changed during iteration")

    writer = LineWriter(RotatedFile(tmp_path, "x", 1 << 20, 2))
    writer.put({"event": "refused", "principal": "User:eve", "old": Odd()})
    writer.put({"event": "refused", "old": {(1, "t"): 2}})
    assert writer.close() == 0
    odd, keyed = lines_of(tmp_path / "x.jsonl")
    assert (odd["principal"], odd["unwritable"]) == ("User:eve", "RuntimeError: changed during iteration")
    assert keyed["old"] == {"(1, 't')": 2}


def test_a_line_that_standard_output_took_in_part_is_continued() -> None:
    """A pipe that does not wait takes what it has room for. What was written cannot be taken back."""
    program = """
import os, sys
from hapax.runtime.audit_writer import MOST_BOUNDED, LineWriter, StandardOutput
os.set_blocking(1, False)
writer = LineWriter(StandardOutput())
for number in range(300):
    writer.put({"number": number, "text": "a" * 1000})
while not writer.failures:
    pass
os.set_blocking(1, True)
print(writer.close(), file=sys.stderr)
"""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stderr is not None and process.stdout is not None
    assert b"cannot be written" in process.stderr.readline()
    out, errors = process.communicate(timeout=60)
    assert errors.strip() == b"0"
    assert [json.loads(line)["number"] for line in out.splitlines()] == list(range(300))


async def test_standard_output_gets_the_lines(capfd: pytest.CaptureFixture[str]) -> None:
    made = ProcessAudit(Settings(audit_log_destination="stdout"), "pid-0", SystemClock(), Metrics())
    made.audit.record("refused", "User:\n\"e\"", "::1", **{**REFUSED, "resource": "x" * 5_000})
    for _ in range(20):
        made.audit.record("login_failed", None, "", **LOGIN)
    made.close()
    lines = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert len(lines) == 1 + 10 + 1
    assert lines[0]["principal"] == "User:\n\"e\"" and len(lines[0]["resource"]) == 1_025
    assert lines[-1]["event"] == "left_out" and lines[-1]["count"] == 10


def test_no_destination_means_no_thread_and_no_file(tmp_path: Path) -> None:
    made = ProcessAudit(Settings(), "pid-0", SystemClock(), Metrics())
    assert made.audit is SILENT
    made.close()


def test_files_need_a_folder() -> None:
    with pytest.raises(SettingsError, match=r"needs audit\.log\.dir"):
        load(environment={"HAPAX_AUDIT_LOG_DESTINATION": "file"})


# --- who asked ----------------------------------------------------------------------------------------------------


def test_a_request_carries_who_asked_beside_its_own_fields() -> None:
    request = cluster_admin_pb2.DeleteTopicsRequest(names=["t"], timeout_ms=5)
    alice = Asker("User:alice", "10.0.0.1", "DeleteTopics")
    payload = with_asker(request.SerializeToString(), alice)
    peer = RpcPeer("10.0.0.9:4000", "broker", 0)
    assert asker_in(payload, peer, "/hapax.internal.v1.Controller/DeleteTopics") == alice
    read = cluster_admin_pb2.DeleteTopicsRequest.FromString(payload)
    assert (list(read.names), read.timeout_ms) == (["t"], 5)


def test_a_node_that_says_nothing_has_no_principal() -> None:
    payload = with_asker(b"", CLUSTER)
    assert payload == b""
    assert asker_in(payload, RpcPeer("10.0.0.9:4000"), "/s/M") == Asker(None, "10.0.0.9", "M")
    assert asker_in(b"\xff", RpcPeer("[::ffff:10.0.0.9]:4000"), "/s/M").address == "10.0.0.9"


def test_a_client_is_the_one_that_was_authenticated() -> None:
    """Whatever it says of itself: `asker_of` does not look at the request."""
    assert asker_of(RpcPeer("10.0.0.9:4000", "client"), "/s/M") == Asker("User:ANONYMOUS", "10.0.0.9", "M")


def test_the_page_shows_every_event_and_field() -> None:
    path = ROOT / "docs" / "audit.md"
    page = path.read_text()
    assert with_events(page) == page
    for name, form in EVENTS.items():
        assert f"### {name}\n" in page
        assert all(f"| `{field}` |" in page for field in form.fields)
    assert os.path.getsize(path) > 1000
