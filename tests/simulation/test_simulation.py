"""Short simulations, and what holds of them: the same seed gives the same history, and a wrong history is seen."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hapax_sim.history import History, Outcome, Sent, Transaction, judge, judge_copies

TESTS = Path(__file__).parent.parent


def run(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "hapax_sim", *arguments],
        env={**os.environ, "PYTHONPATH": str(TESTS), "PYTHONHASHSEED": "0"},
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    return done.stdout


@pytest.mark.timeout(300)
def test_the_same_seed_gives_the_same_trace() -> None:
    first, second = (run("--seed", "11", "--hours", "0.004", "--faults-every", "2") for _ in range(2))
    assert "trace" in first
    assert first.splitlines()[0] == second.splitlines()[0]


@pytest.mark.timeout(300)
def test_histories_under_faults_lose_and_double_nothing() -> None:
    assert "3 passed, 0 failed" in run("--seeds", "101-103", "--hours", "0.01")


# --- the judge: each anomaly in a history made by hand

A, B = Sent("t", 0, "w", 0), Sent("t", 1, "w", 1)
LATER = Sent("t", 0, "w", 2)


def history(outcome: Outcome, *records: Sent) -> History:
    return History(transactions=[Transaction("w", list(records), outcome)], attempted=list(records))


def seen(*records: Sent) -> dict[tuple[str, int], list[bytes]]:
    found: dict[tuple[str, int], list[bytes]] = {("t", 0): [], ("t", 1): []}
    for record in records:
        found[record.topic, record.partition].append(record.value)
    return found


def test_a_clean_history_has_no_anomaly() -> None:
    everything = seen(A, B)
    assert judge(history(Outcome.COMMITTED, A, B), everything, everything) == []
    assert judge(history(Outcome.ABORTED, A, B), seen(), everything) == []
    assert judge(history(Outcome.UNKNOWN, A, B), seen(), everything) == []


@pytest.mark.parametrize(
    ("given", "committed", "uncommitted", "anomaly"),
    [
        (history(Outcome.COMMITTED, A, B), seen(A), seen(A), "lost write"),
        (history(Outcome.COMMITTED, A), seen(A, A), seen(A, A), "duplicate"),
        (history(Outcome.ABORTED, A), seen(A), seen(A), "aborted read"),
        (history(Outcome.OPEN, A), seen(A), seen(A), "aborted read"),
        (history(Outcome.UNKNOWN, A, B), seen(A), seen(A, B), "torn"),
        (history(Outcome.COMMITTED, A, LATER), seen(LATER, A), seen(LATER, A), "reordered"),
        (history(Outcome.COMMITTED), seen(A), seen(A), "phantom"),
        (history(Outcome.COMMITTED, A), seen(A), seen(), "read_uncommitted does not"),
        (History(acknowledged=[A], attempted=[A]), seen(), seen(), "lost write"),
    ],
)
def test_the_judge_sees(
    given: History, committed: dict[tuple[str, int], list[bytes]], uncommitted: dict[tuple[str, int], list[bytes]],
    anomaly: str,
) -> None:  # fmt: skip
    found = judge(given, committed, uncommitted)
    assert any(sentence.startswith(anomaly) or anomaly in sentence for sentence in found), found


def test_the_judge_of_copies_sees_losses_and_doubles() -> None:
    assert judge_copies(seen(A, B), seen(A, B)) == []
    assert "lost copies" in judge_copies(seen(A, B), seen(A))[0]
    assert "doubled copies" in judge_copies(seen(A), seen(A, A))[0]
