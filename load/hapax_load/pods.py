"""Follows a load that the chart runs (`load.enabled`): kills the release's pods meanwhile, and fetches the results.

Everything goes through `kubectl`, so KUBECONFIG selects the cluster.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from hapax.local.timeline import Kill
from hapax_load.ledger import Verdict
from hapax_load.report import page
from hapax_load.statistics import read_history

BEGINS: Final = "the load begins"
"""Lines in the log of the locust master."""
OVER: Final = "the load is over"
FOLDER: Final = "/out"
"""The folder of the results in the master's pod."""
FILES: Final = ("verdict.json", "locust_stats_history.csv", "locust.html", "ledger.jsonl")
_VICTIMS: Final = ("broker", "coordinator", "operator", "pid")
_LOOK_EVERY_S: Final = 1.0
_CALL_S: Final = 60
_READ_BACK_S: Final = 1200.0
"""Time for the count after the load."""
_START_S: Final = 300.0


class Release:
    """The pods of the release whose load runs in a namespace."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace

    def kubectl(self, *words: str) -> str:
        """Raises RuntimeError."""
        done = subprocess.run(
            ["kubectl", "-n", self._namespace, *words], capture_output=True, text=True, check=False, timeout=_CALL_S)
        if done.returncode != 0:
            raise RuntimeError(f"kubectl {' '.join(words)}: {done.stderr.strip()[-1000:]}")
        return done.stdout

    def pods(self, *labels: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(
            self.kubectl("get", "pods", "-o", "json", "--selector", ",".join(labels)))["items"]
        return found

    def master(self) -> dict[str, Any]:
        """The newest. Raises RuntimeError."""
        found = self.pods("app.kubernetes.io/component=load-master")
        if not found:
            raise RuntimeError(f"no load runs in the namespace {self._namespace}: install it with load.enabled=true")
        return max(found, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))


def ready(pod: dict[str, Any]) -> bool:
    return any(
        (each["type"], each["status"]) == ("Ready", "True") for each in pod.get("status", {}).get("conditions", ()))


def in_turn(pods: Sequence[dict[str, Any]]) -> list[str]:
    """The pods' names, alternating between roles."""
    turns: dict[str, itertools.count[int]] = {}
    named = sorted((pod["metadata"]["labels"]["app.kubernetes.io/component"], pod["metadata"]["name"]) for pod in pods)
    return [name for _, _, name in sorted(
        (next(turns.setdefault(role, itertools.count())), role, name) for role, name in named)]


class PodKiller:
    """Deletes one pod after another without a grace period, each when all pods are ready."""

    def __init__(self, release: Release, instance: str, every_s: float) -> None:
        self._release, self._every_s = release, every_s
        self._selector = (
            f"app.kubernetes.io/instance={instance}", f"app.kubernetes.io/component in ({','.join(_VICTIMS)})")
        self._next = time.monotonic() + every_s
        self.kills: list[tuple[float, str]] = []
        """(Unix time, pod)."""

    def look(self) -> None:
        if not self._every_s or time.monotonic() < self._next:
            return
        pods = self._release.pods(*self._selector)
        if pods and all(ready(pod) and "deletionTimestamp" not in pod["metadata"] for pod in pods):
            names = in_turn(pods)
            victim = names[len(self.kills) % len(names)]
            self.kills.append((time.time(), victim))
            self._release.kubectl("delete", "pod", victim, "--grace-period=0", "--force", "--wait=false")
            self._next = time.monotonic() + self._every_s


def follow(namespace: str, kill_every_s: float, out: Path) -> bool:
    """Returns True if no record was lost, doubled, shown or torn. Writes report.html, verdict.json and locust's files.
    Raises RuntimeError, TimeoutError."""
    release = Release(namespace)
    name, instance = _found(release.master())
    out.mkdir(parents=True, exist_ok=True)
    killer = PodKiller(release, instance, kill_every_s)
    limit = time.monotonic() + _START_S
    while True:
        pod = release.pods(f"app.kubernetes.io/instance={instance}", "app.kubernetes.io/component=load-master")
        mine = next((each for each in pod if each["metadata"]["name"] == name), None)
        if mine is None or mine.get("status", {}).get("phase") in ("Failed", "Succeeded"):
            raise RuntimeError(f"the load has ended: see `kubectl -n {namespace} logs {name}`")
        if ready(mine):
            break
        said = release.kubectl("logs", name) if mine.get("status", {}).get("phase") == "Running" else ""
        if BEGINS in said and OVER not in said:
            killer.look()
            limit = time.monotonic() + _READ_BACK_S
        if time.monotonic() > limit:
            raise TimeoutError(f"no verdict from {name}")
        time.sleep(_LOOK_EVERY_S)
    for each in FILES:
        (out / each).write_text(release.kubectl("exec", name, "--", "cat", f"{FOLDER}/{each}"), encoding="utf-8")
    return told(out, killer.kills)


def _found(master: dict[str, Any]) -> tuple[str, str]:
    return master["metadata"]["name"], master["metadata"]["labels"]["app.kubernetes.io/instance"]


def told(out: Path, kills: Sequence[tuple[float, str]]) -> bool:
    """Adds the kills to the report and the verdict. Returns whether the verdict is clean."""
    verdict = json.loads((out / "verdict.json").read_text())
    began = float(verdict["began"])
    on_line = [Kill(at - began, pod) for at, pod in kills]
    verdict["kills"] = [{"second": kill.second, "target": kill.target} for kill in on_line]
    (out / "verdict.json").write_text(json.dumps(verdict, indent=2) + "\n", encoding="utf-8")
    title = f"{verdict['title']}, {len(kills)} pods killed, {datetime.fromtimestamp(began):%Y-%m-%d %H:%M}"
    fields = Verdict.__dataclass_fields__
    verdicts = {
        topic: Verdict(**{name: value for name, value in found.items() if name in fields})
        for topic, found in verdict["topics"].items()}
    courses = read_history(out / "locust_stats_history.csv", began)
    (out / "report.html").write_text(
        page(title, verdicts, courses, on_line, float(verdict["seconds"]), {}), encoding="utf-8")
    return bool(verdict["clean"])
