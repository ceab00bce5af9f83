"""`python -m hapax_mutants`: puts each seeded bug into a copy of the tree and says what finds it.

`--find` tries every check of a mutant instead of the first that succeeds; `--only TEXT` picks mutants by name;
`--write` renews docs/mutants.md.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final, NamedTuple

from hapax_mutants import MUTANTS
from hapax_mutants.mutant import Mutant

ROOT: Final = Path(__file__).resolve().parents[2]
COPIED: Final = (
    "services", "proto",
    *(f"tests/{name}" for name in ("scenarios", "unit", "simulation", "hapax_sim", "hapax_checker", "hapax_mutants")),
)  # fmt: skip
PAGE: Final = ROOT / "docs" / "mutants.md"
CHECK_LIMIT_S: Final = 150
"""A check that takes longer has found a mutant that hangs."""


class Found(NamedTuple):
    check: str
    detail: str
    """The seed and the first anomaly, or the first failing test."""
    seconds: float


class Scratch:
    """A copy of the tree, in which one file at a time is changed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in COPIED:
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("tests/conftest.py", "pyproject.toml"):
            shutil.copy(ROOT / name, folder / name)

    def put_in(self, mutant: Mutant) -> None:
        mutant.put_in(self.folder / "services")

    def take_out(self, mutant: Mutant) -> None:
        shutil.copy(ROOT / "services" / "hapax" / mutant.path, self.folder / "services" / "hapax" / mutant.path)

    def run(self, check: str) -> Found | None:
        """None: the check passed."""
        began = time.monotonic()
        try:
            done = subprocess.run(
                command(check), cwd=self.folder, capture_output=True, text=True, timeout=CHECK_LIMIT_S,
                env={
                    **os.environ, "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1",
                    "PYTHONPATH": f"{self.folder / 'services'}{os.pathsep}{self.folder / 'tests'}",
                },
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return Found(check, f"no end within {CHECK_LIMIT_S} s", CHECK_LIMIT_S)
        if done.returncode == 0:
            return None
        return Found(check, detail(check, done.stdout + done.stderr), time.monotonic() - began)


def cost(check: str) -> int:
    """Scenarios take seconds, simulations tens of them, and units something between."""
    return 0 if check == "scenarios" else 2 if check == "unit/core" else 1


def command(check: str) -> list[str]:
    kind, _, rest = check.partition(" ")
    if kind == "sim":
        seeds, *arguments = shlex.split(rest)
        return [sys.executable, "-m", "hapax_sim", "--first", "--seeds", seeds, *arguments]
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
    named = next((line for line in lines if line.startswith(("FAILED ", "ERROR tests"))), "")
    return named.removeprefix("FAILED ").partition(" - ")[0][:160]


def main() -> int:
    parser = argparse.ArgumentParser(prog="hapax_mutants", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--find", action="store_true", help="run every check of each mutant")
    parser.add_argument("--only", default="", help="mutants whose name contains this")
    parser.add_argument("--from", dest="first", type=int, default=1, help="begin with the nth mutant")
    parser.add_argument("--no-baseline", action="store_true", help="do not run the checks without a mutant first")
    parser.add_argument("--write", action="store_true", help="renew docs/mutants.md")
    args = parser.parse_args()
    chosen = [mutant for mutant in MUTANTS[args.first - 1 :] if args.only in mutant.name]
    caught: dict[str, Found] = {}
    survivors: list[str] = []
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="hapax-mutants-") as folder:
        scratch = Scratch(Path(folder))
        if not args.no_baseline and not baseline(scratch, chosen):
            return 1
        for number, mutant in enumerate(chosen, 1):
            scratch.put_in(mutant)
            try:
                for check in sorted(mutant.checks, key=cost):
                    found = scratch.run(check)
                    if found is not None:
                        caught.setdefault(mutant.name, found)
                        say(number, len(chosen), mutant, f"found by {found.check}: {found.detail}", found.seconds)
                        if not args.find:
                            break
                    elif args.find:
                        say(number, len(chosen), mutant, f"not found by {check}", 0.0)
            finally:
                scratch.take_out(mutant)
            if mutant.name not in caught:
                survivors.append(mutant.name)
                say(number, len(chosen), mutant, "SURVIVED", 0.0)
    if args.write:
        PAGE.write_text(page({**known_rows(), **{name: row(name, found) for name, found in caught.items()}}))
    print(f"{len(chosen)} mutants in {time.monotonic() - began:.0f} s")
    print(f"{len(caught)} passed, {len(survivors)} failed")
    return 1 if survivors else 0


def baseline(scratch: Scratch, chosen: list[Mutant]) -> bool:
    """Without a mutant every check passes, or it would prove nothing."""
    sound = True
    for check in dict.fromkeys(check for mutant in chosen for check in mutant.checks):
        found = scratch.run(check)
        if found is not None:
            print(f"without a mutant, {check} fails: {found.detail}", flush=True)
            sound = False
    return sound


def say(number: int, of: int, mutant: Mutant, what: str, seconds: float) -> None:
    print(f"[{number}/{of}] {mutant.name} ({mutant.about}): {what} ({seconds:.0f} s)", flush=True)


def row(name: str, found: Found) -> str:
    mutant = next(mutant for mutant in MUTANTS if mutant.name == name)
    told = found.detail.replace("|", "/")
    return f"| {name} | {mutant.about} | `{mutant.path}` | `{found.check}` | {told} |"


def known_rows() -> dict[str, str]:
    """Of former runs, for mutants that this one leaves out."""
    if not PAGE.exists():
        return {}
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    rows = {line.split(" | ")[0].removeprefix("| "): line for line in lines}
    return {mutant.name: rows[mutant.name] for mutant in MUTANTS if mutant.name in rows}


def page(rows: dict[str, str]) -> str:
    """In the order of the source; a mutant without a row has not been found yet."""
    return "\n".join([
        "# Mutants",
        "",
        "Bugs that are put into a copy of the code, one at a time, and what finds each. `make mutants` runs all of",
        "them, after the same checks without a mutant, which must pass, and renews this page. `sim` is the simulator",
        "with its seeds, `scenarios` the golden scripts of tests/scenarios, `unit/...` a folder of tests/unit.",
        "",
        f"{len(rows)} of {len(MUTANTS)} mutants found.",
        "",
        "| bug | whose, or which rule | put into | found by | with |",
        "|---|---|---|---|---|",
        *(rows[mutant.name] for mutant in MUTANTS if mutant.name in rows),
        "",
        *_without(rows),
    ])  # fmt: skip


def _without(rows: dict[str, str]) -> list[str]:
    missing = [mutant.name for mutant in MUTANTS if mutant.name not in rows]
    return ["Not shown to be found yet:", "", *(f"- {name}" for name in missing), ""] if missing else []


if __name__ == "__main__":
    sys.exit(main())
