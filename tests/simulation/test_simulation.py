"""Short simulations, and what holds of them: the same seed gives the same history, and faults break no promise."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hapax_sim.parts import PARTS
from hapax_sim.scenes import SCENES

TESTS = Path(__file__).parent.parent


def run(*arguments: str) -> str:
    path = f"{TESTS}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    done = subprocess.run(
        [sys.executable, "-m", "hapax_sim", *arguments],
        env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "0"},
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
        timeout=380,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    return done.stdout


SHORT = {
    "copying": 0.003, "cut-off": 0.03, "days": 0.06, "durability": 0.003, "far": 0.005, "groups": 0.005,
    "hostile": 0.005, "keys": 0.008, "late": 0.005, "logins": 0.006, "old": 0.005, "packed": 0.003, "prepared": 0.005,
    "refused": 0.005, "remade": 0.01, "rest": 0.01, "tasks": 0.004, "weak": 0.003,
}  # fmt: skip
"""Scenes with parts -> logical hours, some seconds of processor time each; `make sim SCENE=...` runs long ones."""
REPLICATED = ("--scene", "plain")


@pytest.mark.timeout(400)
def test_the_same_seed_gives_the_same_trace() -> None:
    once = ("--seed", "11", "--hours", "0.001", "--faults-every", "1", *REPLICATED)
    first, second = (run(*once).partition(", trace ")[2].splitlines()[0] for _ in range(2))
    assert first == second != ""


@pytest.mark.timeout(400)
def test_histories_under_faults_lose_and_double_nothing() -> None:
    assert "2 passed, 0 failed" in run("--seeds", "101-102", "--hours", "0.004", "--faults-every", "1.5", *REPLICATED)


@pytest.mark.timeout(400)
def test_without_replicas_either() -> None:
    assert "1 passed, 0 failed" in run("--seeds", "103", "--hours", "0.004", "--faults-every", "1.5")


@pytest.mark.timeout(400)
@pytest.mark.parametrize("scene", SHORT)
def test_a_short_history_of_a_scene_with_parts(scene: str) -> None:
    assert "1 passed, 0 failed" in run("--seed", "201", "--hours", str(SHORT[scene]), "--scene", scene)


def test_each_part_is_in_one_of_them() -> None:
    assert {part for name in SHORT for part in SCENES[name].parts} == set(PARTS)
