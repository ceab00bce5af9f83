"""The entry point of the image hapax-spark, under tini. Its arguments select what the container runs:

    driver WORDS...     a driver in cluster mode, as spark-submit starts it
    executor            an executor, described by SPARK_EXECUTOR_* and SPARK_DRIVER_URL
    run JOB ARGS...     a driver in client mode in this pod: `hapax_spark.jobs.driver`
    PROGRAM WORDS...    any other program, such as spark-submit

It is run by its path, not as a module: an executor is a JVM, and importing the package would import PySpark first.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path


class MissingVariableError(Exception):
    """The environment lacks a variable that Spark's scheduler sets for every executor."""


def command(words: list[str], environment: Mapping[str, str]) -> list[str]:
    """The program that replaces this one, with its arguments. Raises MissingVariableError."""
    match words:
        case ["run", *job]:
            return [sys.executable, "-m", "hapax_spark.jobs.driver", *job]
        case ["driver", *rest]:
            address = _given(environment, "SPARK_DRIVER_BIND_ADDRESS")
            return [
                f"{_given(environment, 'SPARK_HOME')}/bin/spark-submit",
                "--conf", f"spark.driver.bindAddress={address}",
                "--conf", f"spark.executorEnv.SPARK_DRIVER_POD_IP={address}",
                "--deploy-mode", "client", *rest,
            ]  # fmt: skip
        case ["executor"]:
            return _executor(environment)
        case []:
            return ["bash"]
        case _:
            return words


def _executor(environment: Mapping[str, str]) -> list[str]:
    memory = _given(environment, "SPARK_EXECUTOR_MEMORY")
    return [
        f"{_given(environment, 'JAVA_HOME')}/bin/java", *_java_options(environment), f"-Xms{memory}", f"-Xmx{memory}",
        "-cp", ":".join(_class_path(environment)), "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend",
        "--driver-url", _given(environment, "SPARK_DRIVER_URL"),
        "--executor-id", _given(environment, "SPARK_EXECUTOR_ID"),
        "--cores", _given(environment, "SPARK_EXECUTOR_CORES"),
        "--app-id", _given(environment, "SPARK_APPLICATION_ID"),
        "--hostname", _given(environment, "SPARK_EXECUTOR_POD_IP"),
        "--resourceProfileId", _given(environment, "SPARK_RESOURCE_PROFILE_ID"),
        "--podName", _given(environment, "SPARK_EXECUTOR_POD_NAME"),
    ]  # fmt: skip


def _java_options(environment: Mapping[str, str]) -> list[str]:
    """SPARK_JAVA_OPT_0, SPARK_JAVA_OPT_1 and so on, by number."""
    prefix = "SPARK_JAVA_OPT_"
    numbers = sorted(int(name.removeprefix(prefix)) for name in environment if name.startswith(prefix))
    return [environment[f"{prefix}{number}"] for number in numbers]


def _class_path(environment: Mapping[str, str]) -> list[str]:
    home = _given(environment, "SPARK_HOME")
    found = [
        environment.get("SPARK_CONF_DIR") or f"{home}/conf", environment.get("HADOOP_CONF_DIR"),
        environment.get("SPARK_CLASSPATH"), f"{home}/jars/*", environment.get("SPARK_EXTRA_CLASSPATH"),
        environment.get("SPARK_DIST_CLASSPATH"), str(Path.cwd()),
    ]  # fmt: skip
    return [each for each in found if each]


def _given(environment: Mapping[str, str], name: str) -> str:
    if not environment.get(name):
        raise MissingVariableError(f"{name} is not set: executors and drivers are started by Spark, others with `run`")
    return environment[name]


def main() -> int:
    try:
        words = command(sys.argv[1:], os.environ)
    except MissingVariableError as error:
        print(error, file=sys.stderr)
        return 2
    try:
        os.execvp(words[0], words)
    except OSError as error:
        print(f"{words[0]}: {error.strerror}", file=sys.stderr)
        return 127


if __name__ == "__main__":
    sys.exit(main())
