"""`python -m hapax_mutants`: puts each seeded bug into a copy of the tree, and reports which check finds it.

`--find` runs every check of a mutant, not only up to the first that finds it; `--only TEXT` selects mutants by name;
`--machines` runs the simulations and explorations of `hapax_mutants.machines` in place of a mutant's own checks;
`--write` updates docs/mutants.md; `--resume` goes on where a run was cut off, and takes over what it found.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Final, NamedTuple

from hapax_mutants import MUTANTS
from hapax_mutants.machines import MACHINES, UNSEEN
from hapax_mutants.mutant import Mutant

ROOT: Final = Path(__file__).resolve().parents[2]
COPIED: Final = (
    "services", "operator", "proto", "docs",
    *(f"tests/{name}" for name in (
        "scenarios", "unit", "integration", "simulation", "hapax_sim", "hapax_checker", "hapax_explore",
        "hapax_mutants",
    )),
)  # fmt: skip
PAGE: Final = ROOT / "docs" / "mutants.md"
FOUND: Final = ROOT / "build" / "mutants.jsonl"
"""What the present run has found so far, one JSON object a line."""
CHECK_LIMIT_S: Final = 150
"""A check that takes more processor time than this has found the mutant, because the mutant does not end."""
MACHINE_LIMIT_S: Final = 900
"""Processor time for a simulation or exploration that looks for a mutant without its unit test."""
_WAITS_S: Final = 900
"""A check that makes no progress for this long has found the mutant too."""
_MANY: Final = 8
"""A check of this many mutants is run without one before all else."""


class Found(NamedTuple):
    check: str
    detail: str
    """The seed and the first anomaly, or the first failing test."""
    seconds: float


class Bug(NamedTuple):
    """What is looked for: one mutant, or several that together revert a whole fix."""

    mutants: tuple[Mutant, ...]
    checks: tuple[str, ...]

    @property
    def name(self) -> str:
        return "; ".join(mutant.name for mutant in self.mutants)


class Scratch:
    """A copy of the tree, into which one bug at a time is put."""

    def __init__(self, folder: Path, limit_s: int) -> None:
        """`limit_s`: processor time for one check."""
        self.folder = folder
        self._limit_s = limit_s
        for name in COPIED:
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("tests/conftest.py", "pyproject.toml"):
            shutil.copy(ROOT / name, folder / name)

    def put_in(self, bug: Bug) -> None:
        for mutant in bug.mutants:
            mutant.put_in(self.folder / "services")

    def take_out(self, bug: Bug) -> None:
        for mutant in bug.mutants:
            shutil.copy(ROOT / "services" / "hapax" / mutant.path, self.folder / "services" / "hapax" / mutant.path)

    def run(self, check: str) -> Found | None:
        """None: the check passed."""
        began = time.monotonic()
        try:
            done = subprocess.run(
                ["bash", "-c", f'ulimit -St {self._limit_s}; exec "$@"', "check", *command(check)], cwd=self.folder,
                capture_output=True, text=True, timeout=_WAITS_S,
                env={
                    **os.environ, "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1",
                    "PYTHONPATH": os.pathsep.join(
                        str(self.folder / each) for each in ("services", "operator", "tests")),
                },
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return Found(check, f"no end within {_WAITS_S} s", _WAITS_S)
        took = time.monotonic() - began
        if done.returncode == 0:
            return None
        if done.returncode == -signal.SIGXCPU:
            return Found(check, f"no end within {self._limit_s} s of processor time", took)
        return Found(check, detail(check, done.stdout + done.stderr), took)


def cost(check: str) -> int:
    """Scenarios take seconds, all of unit/core takes longest."""
    return 0 if check == "scenarios" else 2 if check == "unit/core" else 1


def command(check: str) -> list[str]:
    kind, _, rest = check.partition(" ")
    if kind == "sim":
        seeds, *arguments = shlex.split(rest)
        return [sys.executable, "-m", "hapax_sim", "--first", "--seeds", seeds, *arguments]
    if kind == "explore":
        return [sys.executable, "-m", "hapax_explore", "--quiet", "--scope", *shlex.split(rest)]
    return [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--tb=line", f"tests/{check}"]


def detail(check: str, output: str) -> str:
    lines = output.splitlines()
    if check.startswith("sim "):
        failed = next((i for i, line in enumerate(lines) if "FAILED" in line), None)
        if failed is None:
            return "it crashed: " + (lines[-1] if lines else "")
        seed = lines[failed].partition(":")[0]
        anomaly = lines[failed + 1].strip() if failed + 1 < len(lines) else ""
        return f"{seed}: {anomaly[:110]}"
    if check.startswith("explore "):
        failed = next((line for line in lines if line.startswith("FAILED")), None)
        return "it crashed: " + (lines[-1] if lines else "") if failed is None else failed.partition(": ")[2][:110]
    named = next((line for line in lines if line.startswith(("FAILED ", "ERROR tests"))), "")
    return named.removeprefix("FAILED ").partition(" - ")[0][:160]


def main() -> int:
    parser = argparse.ArgumentParser(prog="hapax_mutants", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--find", action="store_true", help="run every check of each mutant")
    parser.add_argument("--only", default="", help="mutants whose name contains this")
    parser.add_argument("--from", dest="first", type=int, default=1, help="start with the nth mutant")
    parser.add_argument("--machines", action="store_true", help="run only the checks of hapax_mutants.machines")
    parser.add_argument("--no-baseline", action="store_true", help="do not run the checks without a mutant")
    parser.add_argument("--jobs", type=int, default=2, help="mutants to check at a time")
    parser.add_argument("--write", action="store_true", help="update docs/mutants.md")
    parser.add_argument("--resume", action="store_true", help="leave out what the last run found before it was cut off")
    args = parser.parse_args()
    named = {mutant.name: mutant for mutant in MUTANTS}
    bugs = [Bug((mutant,), mutant.checks) for mutant in MUTANTS[args.first - 1 :]]
    if args.machines:
        bugs = [Bug(tuple(named[each] for each in names), checks) for names, checks in MACHINES.items()]
    chosen = [bug for bug in bugs if args.only in bug.name]
    for mutant in (mutant for bug in chosen for mutant in bug.mutants):
        mutant.mutated(ROOT / "services")  # a place that is gone ends the run before it begins
    caught = already_found() if args.resume else {}
    left = [bug for bug in chosen if bug.name not in caught]
    FOUND.parent.mkdir(exist_ok=True)
    if not args.resume:
        FOUND.unlink(missing_ok=True)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="hapax-mutants-") as folder, ThreadPoolExecutor(args.jobs) as pool:
        scratches: SimpleQueue[Scratch] = SimpleQueue()
        for number in range(args.jobs):
            scratches.put(Scratch(Path(folder) / str(number), MACHINE_LIMIT_S if args.machines else CHECK_LIMIT_S))

        def hunt(number: int, bug: Bug) -> None:
            scratch = scratches.get()
            scratch.put_in(bug)
            try:
                found = look(scratch, bug, f"[{number}/{len(left)}]", everything=args.find)
            finally:
                scratch.take_out(bug)
                scratches.put(scratch)
            if found is not None:
                caught[bug.name] = found
                with FOUND.open("a") as file:
                    file.write(json.dumps([bug.name, *found]) + "\n")

        if not args.no_baseline and failing(pool, scratches, shared_by_many(left)):
            print("a check that fails without a mutant finds each of them: the run ends before it begins")
            return 1
        list(pool.map(hunt, range(1, len(left) + 1), left))
        if not args.no_baseline:
            proves_nothing = failing(pool, scratches, {found.check for found in caught.values()})
            caught = {name: found for name, found in caught.items() if found.check not in proves_nothing}
    took = time.monotonic() - began
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = used.ru_utime + used.ru_stime
    if args.write:
        whole = f"The last whole run took {took / 60:.0f} minutes, {cpu / 60:.0f} of processor time, two at a time."
        former = next(
            (text.partition("found. ")[2] for text in PAGE.read_text().splitlines() if "The last whole run" in text), ""
        )
        rows = known_rows(_COLUMNS, [mutant.name for mutant in MUTANTS])
        by_machines = known_rows(_MACHINE_COLUMNS, ["; ".join(names) for names in MACHINES])
        for bug in chosen:
            if bug.name in caught:
                found = caught[bug.name]
                if args.machines:
                    by_machines[bug.name] = machine_row(bug, found)
                else:
                    rows[bug.name] = row(bug, found)
        is_whole = len(chosen) == len(MUTANTS) and not args.machines and not args.resume
        PAGE.write_text(page(rows, by_machines, whole if is_whole else former))
    print(f"{len(chosen)} mutants in {took:.0f} s, {cpu:.0f} s of processor time")
    passed = sum(bug.name in caught for bug in chosen)
    print(f"{passed} passed, {len(chosen) - passed} failed")
    return 0 if passed == len(chosen) else 1


def shared_by_many(bugs: Sequence[Bug]) -> set[str]:
    """The checks that are tried for `_MANY` bugs or more. The others are run without a mutant at the end."""
    times = Counter(check for bug in bugs for check in bug.checks)
    return {check for check, count in times.items() if count >= _MANY}


def already_found() -> dict[str, Found]:
    lines = FOUND.read_text().splitlines() if FOUND.exists() else []
    return {name: Found(*found) for name, *found in map(json.loads, lines)}


def look(scratch: Scratch, bug: Bug, which: str, *, everything: bool) -> Found | None:
    """The first check that finds the mutant."""
    first: Found | None = None
    for check in sorted(bug.checks, key=cost):
        found = scratch.run(check)
        if found is not None:
            say(which, bug, f"found by {found.check}: {found.detail} ({found.seconds:.0f} s)")
            first = first or found
            if not everything:
                break
        elif everything:
            say(which, bug, f"not found by {check}")
    if first is None:
        say(which, bug, "SURVIVED")
    return first


def failing(pool: ThreadPoolExecutor, scratches: SimpleQueue[Scratch], checks: set[str]) -> set[str]:
    """Checks that fail even without a mutant, and so prove nothing."""

    def fails(check: str) -> bool:
        scratch = scratches.get()
        found = scratch.run(check)
        scratches.put(scratch)
        print(f"without a mutant: {check} {f'FAILS: {found.detail}' if found else 'passes'}", flush=True)
        return found is not None

    ordered = sorted(checks)
    return {check for check, bad in zip(ordered, pool.map(fails, ordered), strict=True) if bad}


def say(which: str, bug: Bug, what: str) -> None:
    print(f"{which} {bug.name} ({bug.mutants[0].about}): {what}", flush=True)


def row(bug: Bug, found: Found) -> str:
    (mutant,) = bug.mutants
    told = found.detail.replace("|", "/")
    return f"| {mutant.name} | {mutant.about} | `{mutant.path}` | `{found.check}` | {told} |"


def machine_row(bug: Bug, found: Found) -> str:
    told = found.detail.replace("|", "/")
    return f"| {bug.name} | {bug.mutants[0].about} | `{found.check}` | {told} | {found.seconds:.0f} |"


_COLUMNS: Final = "| bug | rule or origin | module | found by | test or message |"
_MACHINE_COLUMNS: Final = "| bug | rule or origin | found by | test or message | seconds |"


def known_rows(columns: str, names: list[str]) -> dict[str, str]:
    """Rows of earlier runs, for bugs that this run leaves out, if the table has these columns."""
    lines = PAGE.read_text().splitlines() if PAGE.exists() else []
    begin = lines.index(columns) + 2 if columns in lines else len(lines)
    end = next((i for i in range(begin, len(lines)) if not lines[i].startswith("| ")), len(lines))
    rows = {line.split(" | ")[0].removeprefix("| "): line for line in lines[begin:end]}
    return {name: rows[name] for name in names if name in rows}


def page(rows: dict[str, str], by_machines: dict[str, str], last_run: str) -> str:
    """In the order of the source. A mutant without a row has not been found yet."""
    return "\n".join([
        "# Mutants",
        "",
        "Each row is a bug that `make mutants` puts into a copy of the code, and the check that finds it. Afterwards",
        "the same checks must pass without the bug. `make mutants` updates this page. `sim` is the simulator with its",
        "seeds, `explore` the exploration of a scope, `scenarios` the golden scripts of tests/scenarios, and",
        "`unit/...` the tests of tests/unit.",
        "",
        f"{len(rows)} of {len(MUTANTS)} mutants found. {last_run}".rstrip(),
        "",
        _COLUMNS,
        "|---|---|---|---|---|",
        *(rows[mutant.name] for mutant in MUTANTS if mutant.name in rows),
        "",
        *_without(rows),
        "## By exploration and simulation alone",
        "",
        "Bugs that lose, double, tear, reorder or hide data must be found without their unit test, in fifteen minutes",
        "of processor time: `python -m hapax_mutants --machines --write` (with PYTHONPATH=tests). The checks that",
        "found them pass without the bug. Bugs in one row are put in together, because the fix has several lines of",
        "defence, each of which suffices.",
        "",
        _MACHINE_COLUMNS,
        "|---|---|---|---|---|",
        *(by_machines[name] for names in MACHINES if (name := "; ".join(names)) in by_machines),
        "",
        "Not found in this way:",
        "",
        *(f"- {what}: {why}" for what, why in UNSEEN.items()),
        "",
    ])  # fmt: skip


def _without(rows: dict[str, str]) -> list[str]:
    missing = [mutant.name for mutant in MUTANTS if mutant.name not in rows]
    return ["Not shown to be found yet:", "", *(f"- {name}" for name in missing), ""] if missing else []


if __name__ == "__main__":
    sys.exit(main())
