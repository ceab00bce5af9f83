"""What the image's first program starts, by its arguments and its environment."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hapax_spark.container import MissingVariableError, command

EXECUTOR = {
    "JAVA_HOME": "/java", "SPARK_HOME": "/spark", "SPARK_EXECUTOR_MEMORY": "512m", "SPARK_EXECUTOR_CORES": "2",
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@10.0.0.1:7078", "SPARK_EXECUTOR_ID": "7",
    "SPARK_APPLICATION_ID": "app", "SPARK_EXECUTOR_POD_IP": "10.0.0.2", "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_EXECUTOR_POD_NAME": "app-exec-7",
}  # fmt: skip


def test_an_executor_is_what_the_scheduler_says() -> None:
    words = command(["executor"], EXECUTOR | {f"SPARK_JAVA_OPT_{n}": f"-Dn={n}" for n in (10, 2, 0)})
    assert words[:6] == ["/java/bin/java", "-Dn=0", "-Dn=2", "-Dn=10", "-Xms512m", "-Xmx512m"]
    assert words[8] == "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
    options = dict(zip(words[9::2], words[10::2], strict=True))
    assert options == {
        "--driver-url": "spark://CoarseGrainedScheduler@10.0.0.1:7078", "--executor-id": "7", "--cores": "2",
        "--app-id": "app", "--hostname": "10.0.0.2", "--resourceProfileId": "0", "--podName": "app-exec-7",
    }  # fmt: skip


def test_the_class_path_has_what_was_given_beside_sparks_own() -> None:
    given = {"SPARK_CONF_DIR": "/conf", "HADOOP_CONF_DIR": "/hadoop", "SPARK_CLASSPATH": "/a.jar",
             "SPARK_EXTRA_CLASSPATH": "/b.jar"}  # fmt: skip
    words = command(["executor"], EXECUTOR | given)
    path = words[words.index("-cp") + 1]
    assert path == f"/conf:/hadoop:/a.jar:/spark/jars/*:/b.jar:{Path.cwd()}"


def test_a_driver_of_cluster_mode() -> None:
    words = command(
        ["driver", "--properties-file", "/p", "local:///job.py", "a b"],
        {"SPARK_HOME": "/spark", "SPARK_DRIVER_BIND_ADDRESS": "10.0.0.1"})
    assert words == [
        "/spark/bin/spark-submit", "--conf", "spark.driver.bindAddress=10.0.0.1",
        "--conf", "spark.executorEnv.SPARK_DRIVER_POD_IP=10.0.0.1", "--deploy-mode", "client",
        "--properties-file", "/p", "local:///job.py", "a b",
    ]  # fmt: skip


def test_a_job_and_everything_else() -> None:
    assert command(["run", "my.job", "--input", "x"], {}) == [
        sys.executable, "-m", "hapax_spark.jobs.driver", "my.job", "--input", "x"]  # fmt: skip
    assert command(["spark-submit", "--version"], {}) == ["spark-submit", "--version"]


def test_what_is_missing_is_named() -> None:
    with pytest.raises(MissingVariableError, match="SPARK_EXECUTOR_ID is not set"):
        command(["executor"], {name: value for name, value in EXECUTOR.items() if name != "SPARK_EXECUTOR_ID"})
