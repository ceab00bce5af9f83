"""Short simulations, and what holds of them: the same seed gives the same history, and faults break no promise."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent


def run(*arguments: str) -> str:
    path = f"{TESTS}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    done = subprocess.run(
        [sys.executable, "-m", "hapax_sim", *arguments],
        env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "0"},
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    return done.stdout


@pytest.mark.timeout(300)
def test_the_same_seed_gives_the_same_trace() -> None:
    first, second = (run("--seed", "11", "--hours", "0.002", "--faults-every", "1") for _ in range(2))
    assert "trace" in first
    assert [line.split(", trace ")[1] for line in first.splitlines() if ", trace " in line] == [
        line.split(", trace ")[1] for line in second.splitlines() if ", trace " in line
    ]


@pytest.mark.timeout(300)
def test_histories_under_faults_lose_and_double_nothing() -> None:
    assert "3 passed, 0 failed" in run("--seeds", "101-103", "--hours", "0.006", "--faults-every", "2")
