"""Spark's classes as the JVM keeps them in memory, in a file that later JVMs map: each starts in half of the CPU time.

    python -m integration.spark_classes     (make test does it first)

Without the file, for another Java or another Spark, a JVM starts as always, so no failure to make it fails a run of the
tests. See JEP 350, dynamic CDS archives.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Final

_BUILD: Final = Path(__file__).parents[2] / "build"
_PATIENCE_S: Final = 300
_PROGRAM: Final = """
import sys
from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

spark = SparkSession.builder.master("local[1]").config("spark.sql.shuffle.partitions", "1").getOrCreate()
doubled = udf(lambda number: 2 * number, "long")
spark.range(10).select(doubled("id").alias("n")).groupBy("n").count().write.parquet(sys.argv[1] + "/table")
spark.read.parquet(sys.argv[1] + "/table").createOrReplaceTempView("numbers")
spark.sql("SELECT max(n) FROM numbers").collect()
query = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load().writeStream.foreachBatch(
    lambda frame, number: frame.collect()).option("checkpointLocation", sys.argv[1] + "/checkpoint").start()
while query.lastProgress is None or query.lastProgress.batchId < 1:
    query.awaitTermination(1)
query.stop()
gateway = SparkContext._gateway
spark.stop()
gateway.shutdown()
gateway.proc.stdin.close()
sys.exit(gateway.proc.wait())
"""


def place() -> Path | None:
    """Where the file for the present Java and Spark is, or would be. None without one of them."""
    home, spark = os.environ.get("JAVA_HOME"), find_spec("pyspark")
    java = shutil.which("java", path=f"{home}/bin" if home else None)  # as Spark chooses it
    if java is None or spark is None or spark.origin is None:
        return None
    real, jars = Path(java).resolve(), Path(spark.origin).parent / "jars"
    if not jars.is_dir():
        return None
    named = f"{real} {real.stat().st_mtime_ns} {jars} {jars.stat().st_mtime_ns}"
    return _BUILD / f"spark-classes-{hashlib.sha256(named.encode()).hexdigest()[:12]}.jsa"


def use() -> None:
    """JVMs that Spark starts from here on use the file, if there is one."""
    found = place()
    if found is not None and found.exists() and " " not in str(found):  # the variable has no way to quote a space
        # Without a word: another version of Spark, with other classes, cannot use it.
        os.environ.setdefault("SPARK_SUBMIT_OPTS", f"-XX:SharedArchiveFile={found} -Xlog:disable")


def main() -> None:
    wanted = place()
    if wanted is None or wanted.exists():
        return
    try:
        trouble = _make(wanted)
    except subprocess.TimeoutExpired:
        trouble = f"it was not ready within {_PATIENCE_S} seconds"
    except OSError as error:
        trouble = str(error)
    if trouble:
        print(f"NOTE: no file of Spark's classes, so its tests take longer: {trouble}", file=sys.stderr)


def _make(wanted: Path) -> str:
    """Returns why there is no file, or "". Raises OSError, TimeoutExpired."""
    wanted.parent.mkdir(exist_ok=True)
    for former in wanted.parent.glob("spark-classes-*.jsa"):
        former.unlink(missing_ok=True)  # another run may do the same
    with tempfile.TemporaryDirectory(dir=wanted.parent, ignore_cleanup_errors=True) as folder:
        made = Path(folder) / "classes.jsa"
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM, folder], capture_output=True, text=True, errors="replace",
            timeout=_PATIENCE_S, check=False,
            env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable,
                 "SPARK_SUBMIT_OPTS": f"-XX:ArchiveClassesAtExit={made}",
                 "JAVA_TOOL_OPTIONS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"})
        if done.returncode or not made.exists():
            return done.stderr[-2000:] or "the JVM wrote none"
        made.replace(wanted)
    return ""


if __name__ == "__main__":
    main()
