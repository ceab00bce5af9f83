"""`python -m hapax_kube demo`: processes every flight once with Spark on Kubernetes, while pods are killed.

1. Installs the chart and Topic resources, and loads the lines of flights.csv into the topic `flights`.
2. Creates a TransactionalProducer, and a SparkJob that the operator runs: it copies `flights` to `delays` one to one,
   and writes sums by day and origin to `delay_windows`. During open transactions, the driver's pod, an executor, the
   broker that leads a partition of the transaction, and a coordinator are deleted with grace period 0.
3. Runs the same job again on some of the lines with `spark-submit`, in cluster mode and in client mode.
4. Counts the records. Exit codes: 0 if nothing was lost or doubled and all sums agree; 1 if not; 2 if the demo could
   not be carried out, for the printed reason.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pyspark

from hapax.client import HapaxError
from hapax_kube import spark
from hapax_kube.binaries import ROOT, build
from hapax_kube.cluster import KubeCluster
from hapax_kube.images import DEMO_IMAGES, build_images
from hapax_kube.tools import Release
from hapax_kube.world import FOLDER
from hapax_spark.demo.flights_csv import PARTITIONS, expected_windows
from hapax_spark.demo.report import Kill, Part
from hapax_spark.demo.stage import DemoFailure, Stage
from hapax_spark.demo.verdict import count_lines, differing_windows

SLICE: Final = 4_000
NODES: Final = 1
TOPICS: Final = ("flights", "delays", "delay_windows", "slice", "slice_cluster", "slice_client")
_NAME: Final = "flights"
_VALUES: Final = ROOT / "tests" / "kubernetes_nodes" / "values.yaml"
_BATCHES: Final = 12
_PATIENCE_S: Final = 600.0
_LIMIT_S: Final = 2_400.0
"""Time limit of the whole demo. On two free cores it takes a tenth of that."""
_LOOK_EVERY_S: Final = 0.5
_RESULT: Final = ROOT / "build" / "kube-demo"


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)


class Demo:
    def __init__(self, cluster: KubeCluster, flights: int, folder: Path) -> None:
        self.cluster = cluster
        self.tools = cluster.tools
        self.release = Release(self.tools, "hapax", _VALUES)
        self.space = ("-n", self.release.namespace)
        self.jobs = ("-n", spark.JOBS)
        self.flights = flights
        self.stage = Stage(SimpleNamespace(bootstrap=self.release.bootstrap), folder, self._show)  # type: ignore[arg-type]
        self.parts: list[Part] = []
        self._shown = ""
        self._began = 0.0
        self._limit = time.monotonic() + _LIMIT_S

    def _show(self, label: str, done: int, total: int) -> None:
        tenths = f"{label}: {done * 10 // max(total, 1) * 10} %"
        if tenths != self._shown:
            self._shown = tenths
            say(tenths)

    # --- the steps

    def install(self) -> None:
        seconds = self.release.install("--set", "spark.enabled=true", "--set", "spark.checkpoint.enabled=true")
        say(f"helm install: all pods are ready after {seconds:.0f} s")
        topics = [spark.topic(name, PARTITIONS) for name in TOPICS]
        self.tools.kubectl("apply", *self.space, "-f", "-", text=spark.as_list(*topics))
        names = [f"topic.hapax.dev/{each['metadata']['name']}" for each in topics]
        self.tools.kubectl("wait", *self.space, "--for=condition=Ready", "--timeout=100s", *names)
        say(f"{len(topics)} topics are created as described by their resources")

    def load(self) -> None:
        with self.stage.part("loading the CSV", "flights", self.flights) as part:
            for topic, lines in (("flights", self.flights), ("slice", SLICE)):
                loader = self.stage.run("loader", "--limit", str(lines), "--topic", topic, log="loader.log")
                loader.finish(_PATIENCE_S)
        self.parts.append(part)

    def run_under_kills(self) -> None:
        arguments = [
            "--bootstrap", self.release.bootstrap, "--input", "flights", "--output", "delays",
            "--windows", "delay_windows", "--max-offsets-per-trigger", str(self.flights // _BATCHES + 1),
        ]  # fmt: skip
        self._began = time.monotonic()
        with self.stage.part("exactly once, under kills", "delays", self.flights) as part:
            self.tools.kubectl("apply", *self.jobs, "-f", "-", text=spark.as_list(
                *spark.job(_NAME, "hapax_spark.demo.pipeline", arguments, executors=1)))  # fmt: skip
            kills: list[tuple[str, Callable[[], str]]] = [
                ("driver", self.driver), ("executor", self.executor),
                ("broker", lambda: self.stage.leader_of("delays").replace("broker", f"{self.release.name}-broker")),
                ("coordinator", lambda: f"{self.release.name}-coordinator-100"),
            ]  # fmt: skip
            for what, victim in kills:
                self.wait(lambda: self.stage.writing() or self.done(), f"transaction in which to delete the {what}")
                if self.done():
                    raise DemoFailure(f"the job had ended before the {what} could be deleted: load more flights")
                name = self.delete(what, victim, part)
                if what == "driver":  # the next pod to delete must not belong to the former driver
                    self.wait(lambda: self.driver() not in ("", name), "driver after it")  # noqa: B023
            self.wait(self.done, "end of the job")
            status = self.resource()["status"]
            say(f"the job has ended by itself; the operator ran its driver {status['record']['run']} times; the last "
                f"progress in its resource is {json.dumps(status.get('progress'))}")
        self.parts.append(part)

    def submit(self) -> None:
        def job(output: str) -> list[str]:
            return ["--bootstrap", self.release.bootstrap, "--input", "slice", "--output", output,
                    "--transform", "flights"]  # fmt: skip

        began = time.monotonic()
        words = spark.in_cluster_mode(
            self.cluster.control.server, spark.JOBS, "slice-cluster", job("slice_cluster"),
            str(ROOT / "spark" / "hapax_spark"))
        home = Path(pyspark.__file__).parent
        words[0] = str(home / "bin" / words[0])
        with open(self.stage.folder / "spark-submit.log", "wb") as log:
            done = subprocess.run(
                words, stdout=log, stderr=log, check=False, timeout=_PATIENCE_S,
                env={**os.environ, "KUBECONFIG": str(self.cluster.kubeconfig), "SPARK_HOME": str(home)})  # fmt: skip
        phase = self.phase("slice-cluster")
        if done.returncode or phase != "Succeeded":
            raise DemoFailure(f"spark-submit ended with {done.returncode}, its driver with {phase}; see {log.name}")
        say(f"spark-submit in cluster mode: {time.monotonic() - began:.0f} s")
        began = time.monotonic()
        self.tools.kubectl("apply", "-f", "-", text=json.dumps(
            spark.in_client_mode(spark.JOBS, "slice-client", job("slice_client"))))  # fmt: skip
        self.wait(lambda: self.phase("slice-client") in ("Succeeded", "Failed"), "end of the job in client mode")
        if self.phase("slice-client") == "Failed":
            raise DemoFailure("spark-submit in client mode failed")
        say(f"spark-submit in client mode: {time.monotonic() - began:.0f} s")

    def count(self) -> dict[str, Any]:
        """Reads all output. Returns the content of verdict.json."""
        result: dict[str, Any] = {}
        for topic, inputs in (("flights", self.flights), ("delays", self.flights), ("slice_cluster", SLICE),
                              ("slice_client", SLICE)):  # fmt: skip
            count = count_lines(self.release.bootstrap, topic, inputs)
            result[topic] = {"input": count.input, "output": count.output, "lost": count.lost,
                             "doubled": count.duplicated}  # fmt: skip
            say(f"{topic:14} input {count.input:7,}  output {count.output:7,}  lost {count.lost}  "
                f"doubled {count.duplicated}")
        expected = expected_windows(self.flights)
        differing = differing_windows(self.release.bootstrap, "delay_windows", expected)
        result["sums"] = {"windows": len(expected), "differing": len(differing), "such as": list(differing.items())[:3]}
        say(f"{'delay_windows':14} {len(expected)} sums, {len(differing)} of them different from the CSV's")
        return result

    # --- pods

    def driver(self) -> str:
        return str(self.resource().get("status", {}).get("record", {}).get("driver", ""))

    def executor(self) -> str:
        """An executor of the present driver."""
        driver = self.driver()
        found = self.tools.get("pods", *self.jobs, "-l", "spark-role=executor")["items"]
        running = [
            each["metadata"]["name"] for each in found if each["status"].get("phase") == "Running"
            and any(owner["name"] == driver for owner in each["metadata"].get("ownerReferences", ()))]
        return running[0] if running else ""

    def resource(self) -> Any:
        return self.tools.get("sparkjob", _NAME, *self.jobs)

    def phase(self, pod: str) -> str:
        return self.tools.kubectl(
            "get", "pod", pod, *self.jobs, "--ignore-not-found", "-o", "jsonpath={.status.phase}")

    def delete(self, what: str, victim: Callable[[], str], part: Part) -> str:
        """Its name."""
        self.wait(lambda: victim() != "", f"{what} to delete")
        name = victim()
        held = self.stage.held("delays")
        space = self.jobs if what in ("driver", "executor") else self.space
        self.tools.kubectl("delete", "pod", name, *space, "--grace-period=0", "--force")
        part.kills.append(Kill(time.monotonic() - self._began, what))
        say(f"deleted with grace period 0, at {held:,} of {self.flights:,} records: {name}")
        return name

    def done(self) -> bool:
        """Whether the job has ended by itself. Raises DemoFailure if it fails again and again."""
        told = self.resource().get("status", {}).get("record", {})
        if told.get("failures", 0) > 5:
            raise DemoFailure(f"the job fails: {told.get('lastExit')}")
        return bool(told.get("stage") == "Ended" and told.get("lastExit", {}).get("reason") == "Completed")

    def wait(self, happened: Callable[[], bool], what: str) -> None:
        limit = min(time.monotonic() + _PATIENCE_S, self._limit)
        while not happened():
            if time.monotonic() > limit:
                raise DemoFailure(f"timed out: no {what}")
            time.sleep(_LOOK_EVERY_S)

    def describe(self) -> str:
        """What helps to find the reason of a failure."""
        return self.release.describe() + self.tools.kubectl("get", "sparkjobs", *self.jobs, "-o", "yaml")


def problems(result: dict[str, Any]) -> list[str]:
    """The failures in a result; empty if there are none."""
    found = [
        f"{topic} lost {one['lost']} and doubled {one['doubled']} records"
        for topic, one in result.items() if topic != "sums" and (one["lost"] or one["doubled"])]
    if result["sums"]["differing"] or not result["sums"]["windows"]:
        found.append(f"{result['sums']['differing']} of {result['sums']['windows']} sums differ")
    return found


def run(cluster: KubeCluster, flights: int) -> int:
    _RESULT.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    cluster.start()
    say(f"the Kubernetes cluster is ready after {time.monotonic() - began:.0f} s")
    demo = Demo(cluster, flights, _RESULT)
    try:
        demo.install()
        demo.load()
        demo.run_under_kills()
        demo.submit()
        result = demo.count()
    except (DemoFailure, HapaxError, AssertionError, subprocess.TimeoutExpired) as error:
        say(f"the demo could not be carried out: {error}")
        print(demo.describe(), file=sys.stderr)
        return 2
    finally:
        demo.stage.end()
    wrong = problems(result)
    result["seconds"] = round(time.monotonic() - began, 1)
    result["kills"] = [[round(kill.second, 1), kill.target] for part in demo.parts for kill in part.kills]
    (_RESULT / "verdict.json").write_text(json.dumps(result, indent=2) + "\n")
    for problem in wrong:
        say(f"WRONG: {problem}")
    say(f"{'FAILED' if wrong else '0 lost, 0 doubled, all sums agree'}; {result['seconds']:.0f} s in total")
    return 1 if wrong else 0


def main(flights: int) -> int:
    folder = Path(os.environ[FOLDER])
    cluster = KubeCluster(folder, folder.name, build(), list(build_images(*DEMO_IMAGES).values()), NODES, _PATIENCE_S)
    try:
        return run(cluster, flights)
    finally:
        cluster.close()


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
