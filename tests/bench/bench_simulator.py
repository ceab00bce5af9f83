"""Speed of the simulator: simulated seconds of a cluster for each second of processor time, with a busy and a light
load. It measures processor time, because a simulation uses one core and the computer may be shared. Run:

    PYTHONPATH=tests python -m bench simulator
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.figures import ROOT, record

LIVELY_AT_LEAST, LIGHT_AT_LEAST = 1.0, 10.0
RATE_AT_LEAST = 50.0
"""Transactions per simulated second of the busy load, including its outages."""


def results(scene: str, seeds: str, hours: float) -> list[dict[str, float]]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "results.jsonl"
        subprocess.run(
            [sys.executable, "-m", "hapax_sim", "--scene", scene, "--seeds", seeds, "--hours", str(hours),
             "--results", str(path)],
            cwd=ROOT, check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        return [json.loads(text) for text in path.read_text().splitlines()]


def total(lines: list[dict[str, float]], name: str) -> float:
    return sum(line[name] for line in lines)


def main() -> None:
    lively, light = results("lively", "1-2", 0.02), results("light", "1-2", 0.03)
    unit = "logical s/CPU-s"
    record("simulated_lively", total(lively, "worked_s") / total(lively, "cpu_s"), unit, at_least=LIVELY_AT_LEAST)
    record("simulated_light", total(light, "worked_s") / total(light, "cpu_s"), unit, at_least=LIGHT_AT_LEAST)
    rate = total(lively, "transactions") / total(lively, "worked_s")
    record("simulated_lively_rate", rate, "transactions/logical s", at_least=RATE_AT_LEAST)


if __name__ == "__main__":
    main()
