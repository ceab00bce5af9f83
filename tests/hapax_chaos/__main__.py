"""`make chaos`: runs scenarios, prints a verdict for each, writes build/chaos.json, ends with `N passed, N failed`.

build/chaos.json keeps earlier runs at the same commit and counts them. Scenarios that have not run yet come first.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fnmatch
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from hapax.runtime import telemetry
from hapax_chaos.catalogue import CLIENTS, Scenario, scenarios, secure_scenarios, without_namespaces
from hapax_chaos.groups import execution
from hapax_chaos.network import missing
from hapax_chaos.report import write_report
from hapax_chaos.scenario import RunVerdict
from hapax_chaos.world import Layout, NotAtRest, World

BUILD: Final = Path(__file__).parents[2] / "build"
SUMMARY: Final = BUILD / "chaos.json"
TABLE: Final = BUILD / "chaos-results.md"
_SCENARIOS_PER_WORLD: Final = 12
_Job = tuple[Scenario, str]


class Summary:
    """Verdicts by (scenario, client), newest last, of one commit."""

    def __init__(self, keep: bool) -> None:
        self.commit = _commit()
        self.verdicts: dict[tuple[str, str], dict[str, Any]] = {}
        if keep and SUMMARY.exists():
            before = json.loads(SUMMARY.read_text())
            if before["commit"] == self.commit:
                self.verdicts = {(v["scenario"], v["client"]): v for v in before["verdicts"]}

    def add(self, verdict: RunVerdict) -> None:
        key = verdict.scenario, verdict.client
        self.verdicts.pop(key, None)
        self.verdicts[key] = verdict.to_json()
        BUILD.mkdir(exist_ok=True)
        counts = {
            "passed": self.count(True), "failed": self.count(False),
            "idle": sum(v["idle"] for v in self.verdicts.values()),
        }  # fmt: skip
        content = {"v": 1, "commit": self.commit, **counts, "verdicts": list(self.verdicts.values())}
        SUMMARY.write_text(json.dumps(content, indent=1) + "\n")

    def count(self, passed: bool) -> int:
        return sum(verdict["passed"] is passed for verdict in self.verdicts.values())

    def order(self, jobs: list[_Job]) -> list[_Job]:
        """First the scenarios that have not run, in the catalogue's order. Then the others, with the oldest run
        first."""
        ran = {key: number for number, key in enumerate(self.verdicts)}
        return sorted(jobs, key=lambda job: ran.get((job[0].name, job[1]), -1))


def _commit() -> str:
    """The last commit that changed the code of a run: the services, the faults or the checker."""
    ran = ("services", "tests/hapax_chaos", "tests/hapax_checker", "tests/faults")
    done = subprocess.run(
        ["git", "log", "-1", "--format=%H", "--", *ran], cwd=BUILD.parent, capture_output=True, text=True
    )
    return done.stdout.strip()


class Campaign:
    """Runs jobs one after another. The next job reuses the world unless it is damaged."""

    def __init__(self, summary: Summary, seed: int, deadline: float, folder: Path) -> None:
        self._summary = summary
        self._seed = seed
        self._deadline = deadline
        self._folder = folder
        self._world: World | None = None
        self._layout: Layout | None = None
        self.verdicts: list[RunVerdict] = []

    async def run(self, jobs: Sequence[_Job]) -> None:
        """Runs the jobs. Ctrl-C, SIGTERM and SIGHUP end it early, with an orderly shutdown."""
        task = asyncio.current_task()
        assert task is not None
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        try:
            for number, (scenario, client) in enumerate(jobs):
                if time.monotonic() > self._deadline:
                    break
                await self._run(scenario, client, self._seed + number)
        finally:
            await self._close()

    async def _run(self, scenario: Scenario, client: str, seed: int) -> None:
        histories = self._folder / f"histories-{seed}"
        histories.mkdir()
        try:
            world = await self._open(scenario.layout, seed)
            verdict = await execution(world, scenario, client, seed, histories).run()
        except NotAtRest as error:
            verdict = RunVerdict(scenario.name, client, seed, findings=[f"no-cluster: {error}"], cluster_unusable=True)
        self.verdicts.append(verdict)
        self._summary.add(verdict)
        self._print(verdict)
        if not verdict.passed:
            self._keep(verdict, histories)
        if verdict.cluster_unusable or (self._world is not None and self._world.scenarios >= _SCENARIOS_PER_WORLD):
            await self._close()

    async def _open(self, layout: Layout, seed: int) -> World:
        if self._world is None or self._layout != layout:
            await self._close()
            self._world, self._layout = World(layout, self._folder / "world", seed), layout
            await self._world.open()
        return self._world

    async def _close(self) -> None:
        if self._world is not None:
            await self._world.close()
            self._world = None

    def _print(self, verdict: RunVerdict) -> None:
        word = "FAILED" if not verdict.passed else "idle  " if verdict.idle else "ok    "
        counts = " ".join(f"{verdict.transactions.get(kind, 0)} {kind}" for kind in ("ok", "fail", "info"))
        print(f"{word} {verdict.seconds:5.1f} s  {verdict.scenario:44} {verdict.client:10} {counts}", flush=True)
        for finding in verdict.findings[:8]:
            print(f"         {finding[:300]}", flush=True)
        if not verdict.passed:
            print(f"         {'; '.join(verdict.happened)}", flush=True)

    def _keep(self, verdict: RunVerdict, histories: Path) -> None:
        """Keeps all evidence of a failure below build/chaos/."""
        kept = BUILD / "chaos" / f"{verdict.scenario}-{verdict.client}".replace(">", "-to-")
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(histories, kept / "histories")
        if (self._folder / "world" / "logs").exists():
            shutil.copytree(self._folder / "world" / "logs", kept / "logs")
        print(f"         kept in {kept}", flush=True)


def _jobs(arguments: argparse.Namespace) -> tuple[list[_Job], int]:
    """The jobs to run, and the number of scenarios that cannot run on this machine."""
    known = secure_scenarios() if arguments.secure else scenarios()
    chosen = [s for s in known if any(fnmatch.fnmatch(s.name, only) for only in arguments.only)]
    why = missing()
    skipped = 0
    if why:
        usable = [without_namespaces(scenario) for scenario in chosen]
        skipped = usable.count(None)
        chosen = [scenario for scenario in usable if scenario is not None]
        print(f"no network namespaces or packet filters here ({why}): {skipped} scenarios skipped", flush=True)
    if arguments.replication != 3:
        chosen = [_replicated(scenario, arguments.replication) for scenario in chosen]
    kinds = arguments.client
    # Every scenario runs once before any runs again with another client.
    return [
        (scenario, kinds[(number + turn) % len(kinds)])
        for turn in range(len(kinds)) for number, scenario in enumerate(chosen)
    ], skipped


def _replicated(scenario: Scenario, replication: int) -> Scenario:
    return replace(scenario, layout=replace(scenario.layout, replication=replication))


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="start no new scenario after this many minutes")
    parser.add_argument("--only", action="append", help="run the scenarios of this name; takes * (repeatable)")
    parser.add_argument("--client", action="append", choices=CLIENTS, help="run only this client (repeatable)")
    parser.add_argument(
        "--secure", action="store_true",
        help="in clusters with TLS, logins and permissions; also scenarios about these")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--replication", type=int, default=3)
    parser.add_argument("--fresh", action="store_true", help="ignore earlier runs at this commit")
    parser.add_argument(
        "--report", type=Path,
        help="run nothing; write a summary of build/chaos.json to this page, and all runs to build/chaos-results.md",
    )  # fmt: skip
    parser.add_argument("--list", action="store_true", help="only print the scenarios' names")
    arguments = parser.parse_args(argv)
    arguments.only = arguments.only or ["*"]
    arguments.client = arguments.client or list(CLIENTS)
    return arguments


def main(argv: Sequence[str]) -> int:
    """Returns 0 if no run failed."""
    arguments = _parse(argv)
    telemetry.start_logging("chaos", "ERROR")
    if arguments.list:
        print("\n".join(s.name for s in (secure_scenarios() if arguments.secure else scenarios())))
        return 0
    deadline = time.monotonic() + 60 * arguments.minutes
    if arguments.report is not None:
        write_report(json.loads(SUMMARY.read_text()), arguments.report, TABLE)
        return 0
    summary = Summary(not arguments.fresh)
    jobs, skipped = _jobs(arguments)
    with tempfile.TemporaryDirectory(prefix="hapax-chaos-") as folder:
        campaign = Campaign(summary, arguments.seed, deadline, Path(folder))
        with contextlib.suppress(asyncio.CancelledError):
            asyncio.run(campaign.run(summary.order(jobs)))
    total = len({scenario.name for scenario, _ in jobs})
    kinds = {name for name, _ in summary.verdicts}
    failed = [v for v in campaign.verdicts if not v.passed]
    print(f"this run: {len(campaign.verdicts)} of {len(jobs)} runs; at this commit so far: {len(kinds)} of {total} "
          f"scenarios, {len(summary.verdicts)} runs, {skipped} scenarios cannot run here")
    for verdict in failed:
        print(f"FAILED {verdict.scenario} {verdict.client}: {verdict.findings[0][:200]}")
    print(f"{len(campaign.verdicts) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
