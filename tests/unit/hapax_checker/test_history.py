"""A checker that has never been seen to fail proves nothing: a history made by hand for every anomaly."""

from __future__ import annotations

import io
import random
import time
from typing import Any

import pytest

from hapax_checker import Operation, check, line_of, read_lines
from hapax_checker.cycles import components

X, Y = "x-0", "y-0"


class Story:
    """Writes a history: each call is an operation from its invocation to its completion."""

    def __init__(self) -> None:
        self.records: list[Operation] = []

    def op(self, process: int, kind: Any, f: str, value: Any, *, rebalanced: tuple[str, ...] = ()) -> Story:
        for each in ("invoke", kind):
            at = len(self.records)
            self.records.append(Operation(at, process, at / 1000, each, f, value, list(rebalanced)))
        return self

    def send(self, process: int, kind: str, *sends: tuple[str, int | None, str]) -> Story:
        return self.op(process, kind, "txn", [["send", k, [o, v]] for k, o, v in sends])

    def poll(self, process: int, *reads: tuple[str, int, str], kind: str = "ok", f: str = "poll") -> Story:
        found: dict[str, list[list[object]]] = {}
        for k, o, v in reads:
            found.setdefault(k, []).append([o, v])
        return self.op(process, kind, f, [["poll", found]])

    def names(self) -> set[str]:
        report = check(self.records)
        return set(report.anomalies) | {f"({name})" for name in report.allowed}


def written() -> Story:
    """Two committed transactions: x holds a, b, c at 0, 2, 3 (markers between), y holds d at 0."""
    return Story().send(1, "ok", (X, 0, "a"), (Y, 0, "d")).send(1, "ok", (X, 2, "b"), (X, 3, "c"))


ALL = ((X, 0, "a"), (X, 2, "b"), (X, 3, "c"), (Y, 0, "d"))


def test_a_clean_history_has_no_anomaly() -> None:
    story = written()
    story.send(2, "fail", (X, None, "never")).send(2, "info", (X, None, "lost"))
    story.op(3, "ok", "txn", [["poll", {X: [[0, "a"], [2, "b"]]}], ["send", Y, [3, "e"]]])
    story.op(3, "ok", "assign", [X, Y]).poll(3, (X, 3, "c"))
    story.op(3, "ok", "crash", None).poll(3, (X, 0, "a"))
    story.poll(9, *ALL, (Y, 3, "e"))
    assert story.names() == set()


def test_an_unknown_outcome_may_turn_out_either_way() -> None:
    committed = Story().send(1, "info", (X, None, "a"), (Y, None, "b")).poll(9, (X, 0, "a"), (Y, 0, "b"))
    aborted = Story().send(1, "info", (X, None, "a"), (Y, None, "b")).poll(9)
    assert committed.names() == aborted.names() == set()


def test_inconsistent_offsets() -> None:
    assert "inconsistent-offsets" in written().poll(8, (X, 2, "c")).poll(9, *ALL).names()


def test_inconsistent_offsets_between_the_acknowledgement_and_a_poll_of_a_failed_operation() -> None:
    story = Story().send(1, "ok", (X, 5, "a")).send(2, "ok", (X, 7, "b")).poll(3, (X, 5, "b"), kind="fail")
    assert "inconsistent-offsets" in story.poll(9, (X, 5, "a"), (X, 7, "b")).names()


def test_duplicate() -> None:
    assert written().poll(9, *ALL, (X, 4, "a")).names() >= {"duplicate"}


def test_aborted_read() -> None:
    story = written().send(2, "fail", (X, None, "f")).poll(9, *ALL, (X, 4, "f"))
    assert story.names() == {"G1a"}


def test_a_failed_operation_may_read_what_it_likes() -> None:
    assert written().send(2, "fail", (X, 4, "f")).poll(3, (X, 4, "f"), kind="fail").poll(9, *ALL).names() == set()


def test_precommitted_read() -> None:
    story = Story().op(1, "ok", "txn", [["send", X, [0, "a"]], ["poll", {X: [[0, "a"]]}]]).poll(9, (X, 0, "a"))
    assert story.names() == {"precommitted-read"}


def test_lost_write() -> None:
    story = written().poll(9, (X, 0, "a"), (X, 3, "c"), (Y, 0, "d"))
    assert story.names() >= {"lost-write", "unseen"}


def test_lost_write_of_an_unknown_outcome_that_was_seen_elsewhere() -> None:
    story = Story().send(1, "info", (X, 0, "a"), (Y, 0, "b")).send(2, "ok", (X, 2, "c"))
    assert story.poll(9, (Y, 0, "b"), (X, 2, "c")).names() == {"lost-write", "torn"}


def test_torn() -> None:
    story = Story().send(1, "info", (X, None, "a"), (Y, None, "b")).poll(9, (X, 0, "a"))
    assert story.names() == {"torn"}


def test_phantom() -> None:
    assert written().poll(9, *ALL, (Y, 5, "never sent")).names() == {"phantom"}


def test_unseen_at_the_end() -> None:
    assert written().poll(9, *ALL[:2], ALL[3]).names() == {"unseen"}


def test_polls_inside_one_operation() -> None:
    assert written().poll(8, (X, 0, "a"), (X, 3, "c")).poll(9, *ALL).names() == {"int-poll-skip"}
    assert written().poll(8, (X, 2, "b"), (X, 0, "a")).poll(9, *ALL).names() == {"int-nonmonotonic-poll"}
    assert written().poll(8, (X, 0, "a"), (X, 0, "a")).poll(9, *ALL).names() == {"int-nonmonotonic-poll"}


def test_polls_of_a_rebalanced_key_are_exempt() -> None:
    value = [["poll", {X: [[2, "b"], [0, "a"]]}]]
    assert written().op(8, "ok", "poll", value, rebalanced=(X,)).poll(9, *ALL).names() == set()


def test_polls_from_one_operation_to_the_next() -> None:
    assert written().poll(8, (X, 0, "a")).poll(8, (X, 3, "c")).poll(9, *ALL).names() == {"poll-skip"}
    assert written().poll(8, (X, 2, "b")).poll(8, (X, 0, "a")).poll(9, *ALL).names() == {"nonmonotonic-poll"}


def test_assignments_keep_only_the_retained_keys() -> None:
    dropped = written().poll(8, (X, 0, "a")).op(8, "ok", "assign", [Y]).poll(8, (X, 3, "c")).poll(9, *ALL)
    assert dropped.names() == set()
    kept = written().poll(8, (X, 0, "a")).op(8, "ok", "assign", [X]).poll(8, (X, 3, "c")).poll(9, *ALL)
    assert kept.names() == {"poll-skip"}


def test_under_subscribe_steps_between_operations_are_allowed() -> None:
    story = written().op(8, "ok", "subscribe", ["x"]).poll(8, (X, 0, "a")).poll(8, (X, 3, "c")).poll(9, *ALL)
    assert story.names() == {"(poll-skip)"}


def test_sends_inside_one_operation() -> None:
    skip = Story().send(2, "ok", (X, 1, "n")).send(1, "ok", (X, 0, "a"), (X, 2, "b"))
    assert skip.poll(9, (X, 0, "a"), (X, 1, "n"), (X, 2, "b")).names() == {"(int-send-skip)", "(G0)"}
    back = Story().send(1, "ok", (X, 1, "a"), (X, 0, "b")).poll(9, (X, 0, "b"), (X, 1, "a"))
    assert back.names() == {"int-nonmonotonic-send"}


def test_sends_from_one_operation_to_the_next() -> None:
    story = Story().send(1, "ok", (X, 4, "a")).send(1, "ok", (X, 2, "b")).poll(9, (X, 2, "b"), (X, 4, "a"))
    assert story.names() == {"nonmonotonic-send"}
    doubtful = Story().send(1, "ok", (X, 4, "a")).send(1, "info", (X, None, "b")).poll(9, (X, 2, "b"), (X, 4, "a"))
    assert doubtful.names() == {"nonmonotonic-send"}


def test_write_cycles_are_seen_and_allowed() -> None:
    story = Story().send(1, "ok", (X, 0, "a"), (Y, 1, "b")).send(2, "ok", (X, 1, "c"), (Y, 0, "d"))
    story.poll(9, (X, 0, "a"), (X, 1, "c"), (Y, 0, "d"), (Y, 1, "b"))
    assert story.names() == {"(G0)"}


def test_a_cycle_of_reads_alone_is_fatal() -> None:
    story = Story()
    story.op(1, "ok", "txn", [["send", X, [0, "a"]], ["poll", {Y: [[0, "b"]]}]])
    story.op(2, "ok", "txn", [["send", Y, [0, "b"]], ["poll", {X: [[0, "a"]]}]])
    assert "G1c" in story.poll(9, (X, 0, "a"), (Y, 0, "b")).names()


def test_a_cycle_with_a_write_edge_is_allowed() -> None:
    story = Story()
    story.op(1, "ok", "txn", [["send", X, [0, "a"]], ["poll", {Y: [[0, "b"]]}]])
    story.op(2, "ok", "txn", [["send", Y, [0, "b"]], ["send", X, [1, "c"]]])
    assert story.poll(9, (X, 0, "a"), (X, 1, "c"), (Y, 0, "b")).names() == {"(G1c-with-ww)"}
    story = Story()
    story.op(1, "ok", "txn", [["send", X, [1, "a"]], ["send", Y, [0, "b"]]])
    story.op(2, "ok", "txn", [["send", X, [0, "c"]], ["poll", {Y: [[0, "b"]]}]])
    assert story.poll(9, (X, 0, "c"), (X, 1, "a"), (Y, 0, "b")).names() == {"(G1c-with-ww)"}


def test_an_operation_without_an_end_has_an_unknown_outcome() -> None:
    invoked = Operation(0, 1, 0.0, "invoke", "txn", [["send", X, "a"]])
    seen = Operation(2, 9, 0.2, "ok", "poll", [["poll", {X: [[0, "a"]]}]])
    assert check([invoked, Operation(1, 9, 0.1, "invoke", "poll", [["poll"]]), seen]).valid


def test_lines_hold_everything() -> None:
    story = written().poll(9, *ALL)
    text = "\n".join(line_of(o) for o in story.records)
    assert read_lines(io.StringIO(text)) == story.records


def test_a_report_reads_well() -> None:
    text = str(check(written().poll(9, *ALL, (Y, 5, "z")).records))
    assert text == "3 operations, 4 values: 1 phantom\n  phantom: y-0 offset 5: 'z' was never sent"


@pytest.mark.parametrize(
    ("edges", "found"),
    [([[1], [2], []], []), ([[1], [0]], [[0, 1]]), ([[1], [2], [0], [0, 4], [5], [4]], [[4, 5], [0, 1, 2]])],
)
def test_components(edges: list[list[int]], found: list[list[int]]) -> None:
    assert sorted(components(edges)) == sorted(found)


def test_a_hundred_thousand_operations_in_seconds() -> None:
    rng = random.Random(1)
    logs: dict[str, list[str]] = {f"k-{i}": [] for i in range(20)}
    positions = [dict.fromkeys(logs, 0) for _ in range(8)]
    records = []
    for index in range(0, 200_000, 2):
        process = rng.randrange(8)
        micros: list[object] = []
        if rng.random() < 0.5:
            for _ in range(4):
                key = f"k-{rng.randrange(20)}"
                micros.append(["send", key, [len(logs[key]), f"{index}.{len(micros)}"]])
                logs[key].append(f"{index}.{len(micros) - 1}")
        else:
            key = f"k-{rng.randrange(20)}"
            begin = positions[process][key]
            positions[process][key] = end = min(len(logs[key]), begin + 8)
            micros.append(["poll", {key: [[o, logs[key][o]] for o in range(begin, end)]}])
        records.append(Operation(index, process, 0.0, "invoke", "txn", None))
        records.append(Operation(index + 1, process, 0.0, "ok", "txn", micros))
    reads = {key: [[o, v] for o, v in enumerate(log)] for key, log in logs.items()}
    records.append(Operation(len(records), 99, 0.0, "ok", "poll", [["poll", reads]]))
    began = time.process_time()
    report = check(records)
    assert report.valid, report
    assert report.operations > 100_000
    assert time.process_time() - began < 30
