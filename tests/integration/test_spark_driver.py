"""The driver as the image starts it, on a real Spark of this machine: a job that is a file, its progress, its end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from integration.etcd_process import dies_with_parent, free_ports
from integration.waiting import wait_until

pytestmark = pytest.mark.timeout(400)

JOB = """
import sys
from pathlib import Path
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[9]").getOrCreate()
assert spark.conf.get("spark.sql.shuffle.partitions") == "3", "another session than the driver's"
Path(sys.argv[1]).touch()
query = (spark.readStream.format("rate").option("rowsPerSecond", "50").load()
         .writeStream.format("noop").queryName("ticks").trigger(processingTime="200 milliseconds").start())
query.awaitTermination()
Path(sys.argv[1] + ".after").touch()
"""

LATE = """
import sys, threading
from pathlib import Path
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
Path(sys.argv[1]).touch()
while not Path(sys.argv[1] + ".go").exists():
    threading.Event().wait(0.05)
spark.readStream.format("rate").load().writeStream.format("noop").start().awaitTermination()
"""

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    running: list[subprocess.Popen[str]] = []

    def started(*words: str, **environment: str) -> subprocess.Popen[str]:
        running.append(subprocess.Popen(
            dies_with_parent([sys.executable, "-m", "hapax_spark.jobs.driver", *words]), cwd=tmp_path, text=True,
            env={**os.environ, **environment}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE))  # fmt: skip
        return running[-1]

    yield started
    for process in running:
        process.kill()
        process.communicate()


def answer(port: int) -> tuple[int, Any]:
    """Status, and the JSON where there is any; (0, None) where nobody listens yet."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/progress", timeout=5) as response:
            body = response.read()
            return response.status, json.loads(body) if body else None
    except urllib.error.URLError:
        return 0, None


def test_progress_is_served_and_sigterm_stops_the_query(start: Start, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    job, began = tmp_path / "job.py", tmp_path / "began"
    job.write_text(JOB)
    settings = {"spark.sql.shuffle.partitions": 3, "spark.ui.enabled": False}
    process = start(
        f"local://{job}", str(began), HAPAX_SPARK_CONF=json.dumps(settings), HAPAX_SPARK_PROGRESS_PORT=str(port),
        HAPAX_SPARK_CHECKPOINT=str(tmp_path / "checkpoint"))  # fmt: skip
    seen: list[tuple[int, Any]] = []

    def progressed() -> bool:
        assert process.poll() is None, process.communicate()[1][-3000:]
        seen.append(answer(port))
        return bool(seen[-1][1]) and seen[-1][1]["batchId"] >= 2 and seen[-1][1]["numInputRows"] > 0

    wait_until(progressed, "micro-batches", 240, every_s=0.05)
    assert any(status == 204 for status, _ in seen), "there was no answer before the first micro-batch"
    last = seen[-1][1]
    assert last["name"] == "ticks" and last["queries"][0]["queryId"] == last["queryId"] != last["runId"]
    assert last["lastCommit"]["batchId"] == last["batchId"]
    assert 0 <= last["lastCommit"]["timestampMs"] - last["timestampMs"] < 30_000
    assert last["processedRowsPerSecond"] > 0 and last["inputRowsPerSecond"] >= 0
    assert (tmp_path / "checkpoint" / "ticks" / "commits").is_dir(), "the checkpoint is elsewhere"
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 143, said[-3000:]
    assert "the queries are stopped" in said and "Traceback" not in said, said[-3000:]
    assert (tmp_path / "began.after").exists(), "the job did not come to its end"


def test_sigterm_also_stops_a_query_that_begins_after_it(start: Start, tmp_path: Path) -> None:
    job, began = tmp_path / "job.py", tmp_path / "began"
    job.write_text(LATE)
    process = start(f"local://{job}", str(began), HAPAX_SPARK_PROGRESS_PORT="0",
                    HAPAX_SPARK_CHECKPOINT=str(tmp_path / "checkpoint"))  # fmt: skip
    wait_until(lambda: began.exists() or process.poll() is not None, "job", 240, every_s=0.05)
    assert process.poll() is None, process.communicate()[1][-3000:]
    process.send_signal(signal.SIGTERM)
    assert process.stderr is not None
    assert any("the queries are stopped" in line for line in process.stderr)
    (tmp_path / "began.go").touch()
    _, said = process.communicate(timeout=120)
    assert process.returncode == 143, said[-3000:]


def test_a_job_that_cannot_be_run(start: Start) -> None:
    process = start("no.such.job", HAPAX_SPARK_CONF="{")
    _, said = process.communicate(timeout=120)
    assert process.returncode == 2 and "HAPAX_SPARK_CONF must be a JSON object" in said, said
