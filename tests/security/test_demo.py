"""`make secure-demo`: that it succeeds, and what it calls wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from scripts.secure_demo.__main__ import SHOWN, failures

from security import ROOT, long


def found() -> dict[str, Any]:
    """As it shall be."""
    sound = {"written": 100, "lost": 0, "duplicated": 0}
    return {
        "refused": {"a stranger": "Authentication failed"}, "went_on": {"both write": True},
        "count": {"shop": dict(sound), "bank": dict(sound)},
        "quota": {"before": 100.0, "limited": 10.0, "other": 90.0, "throttled_s": 3.0},
        "audit": dict.fromkeys(SHOWN, 1)}


def test_nothing_is_wrong() -> None:
    assert failures(found()) == []


@pytest.mark.parametrize(("part", "field", "value", "sentence"), [
    ("refused", "a stranger", "", "not refused, or for another reason: a stranger"),
    ("went_on", "both write", False, "a writer stopped: both write"),
    ("quota", "limited", 90.0, "slowed no one down"),
    ("quota", "throttled_s", 0.0, "slowed no one down"),
    ("audit", "refused", 0, "no line refused"),
    ("count", "shop", {"written": 100, "lost": 1, "duplicated": 0}, "shop: 1 of 100 records are lost"),
    ("count", "bank", {"written": 100, "lost": 0, "duplicated": 2}, "2 doubled"),
    ("count", "bank", {"written": 0, "lost": 0, "duplicated": 0}, "bank: 0 of 0"),
])
def test_each_part_counts(part: str, field: str, value: object, sentence: str) -> None:
    result = found()
    result[part][field] = value
    (problem,) = failures(result)
    assert sentence in problem


@long
@pytest.mark.timeout(300)
def test_the_demo(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "scripts.secure_demo", "--dir", str(tmp_path / "demo")], cwd=ROOT, capture_output=True,
        text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    verdict = json.loads((tmp_path / "demo" / "verdict.json").read_text())
    assert failures(verdict) == []
    assert verdict["count"]["shop"]["written"] > 100
