"""The Python workers of a session that `spark_session` makes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import hapax_spark.daemon
from hapax.local.cluster import LocalCluster
from integration.spark_world import EVERYTHING, Program, values

pytestmark = pytest.mark.timeout(240)


def test_workers_are_reused_replaced_and_have_the_users_modules(
    cluster: LocalCluster, topics: tuple[str, str], tmp_path: Path
) -> None:
    program = Program(
        [sys.executable, "-m", "integration.spark_workers", "--bootstrap", cluster.bootstrap, "--input", topics[0],
         "--output", topics[1], "--checkpoint", str(tmp_path)],
        tmp_path / "driver.log", HAPAX_TEST_FOLDER=str(tmp_path),
    )  # fmt: skip
    try:
        program.finish()
    finally:
        program.kill()
    notes = [json.loads(line) for line in (tmp_path / "notes").read_text().splitlines()]
    assert {note["daemon"] for note in notes} == {hapax_spark.daemon.__file__}, "else each task waits 40 ms"
    assert {note["users"] for note in notes} == {"mine"}
    assert min(note["frozen"] for note in notes) > 50_000, "the collections between tasks visit the modules"
    pids = [note["pid"] for note in notes]
    killed = next(note["pid"] for note in notes if note["batch"] == "1")
    before, after = pids[:pids.index(killed, 2) + 1], pids[pids.index(killed, 2) + 1:]
    assert killed not in after and len(set(after) - set(before)) == 1, "one new worker in its place"
    assert len(set(pids)) < len(pids) - 1, "the others go on"
    assert values(cluster, topics[1]) == EVERYTHING
