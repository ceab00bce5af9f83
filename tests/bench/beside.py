"""Compares this tree with another commit in one run: `python -m bench --beside COMMIT [--turns N] NAME ...`.

A computer has other load too, so only figures of the same minutes can be compared. The two trees take turns, each
measurement runs in its own processes, and the order changes from turn to turn. The benchmarks are this tree's;
services, connector and operator are those of each commit. A commit without a package that a benchmark imports cannot
run it. Then each tree runs its own benchmark of that name, and figures with the same name are compared.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.figures import ROOT

_PACKAGES = ("services", "spark", "operator", "load")
_MEASUREMENTS = "tests"
_MORE_IS_BETTER = ("MB/s", "rows/s", "records/s", "requests/s", "logical s/CPU-s")


def compare(commit: str, names: list[str], turns: int) -> int:
    """Prints for each name a table of medians, and by how much this tree's are worse. Each table is printed as soon as
    it is complete, because all of them take half an hour. Returns 1 if a measurement ended with an error."""
    with tempfile.TemporaryDirectory(prefix="hapax-bench-") as folder:
        unpack(commit, Path(folder))
        failed = []
        for name in names:
            print(f"{name}:", file=sys.stderr, flush=True)
            own = not _imports(name, Path(folder))
            measured: dict[bool, list[dict[str, dict[str, object]]]] = {False: [], True: []}
            for turn in range(turns):
                for other in (turn % 2 == 0, turn % 2 == 1):
                    figures = _run(name, Path(folder) if other else ROOT, own)
                    measured[other].append(figures)
                    if not figures:
                        failed.append(f"{name}, {commit if other else 'this tree'}")
            how = f"{name}, each tree's own measurement" if own else name
            _print(commit, how, turns, _rows(measured[True], measured[False]))
    for each in failed:
        print(f"ended with an error: {each}", file=sys.stderr)
    return 1 if failed else 0


def unpack(commit: str, folder: Path) -> None:
    archive = folder / "tree.tar"
    subprocess.run(["git", "archive", "--output", archive, commit, *_PACKAGES, _MEASUREMENTS], cwd=ROOT, check=True)
    subprocess.run(["tar", "-xf", archive, "-C", folder], check=True)
    archive.unlink()


def tree_path(tree: Path, measurements: Path) -> str:
    return os.pathsep.join([*(str(tree / each) for each in _PACKAGES), str(measurements / _MEASUREMENTS)])


def _imports(name: str, tree: Path) -> bool:
    """Whether this tree's benchmark can run with that tree's packages."""
    tried = subprocess.run(
        [sys.executable, "-c", f"import bench.bench_{name}"], cwd=tree, check=False, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": tree_path(tree, ROOT)},
    )  # fmt: skip
    if tried.returncode and "ImportError" not in tried.stderr and "ModuleNotFoundError" not in tried.stderr:
        raise RuntimeError(tried.stderr)
    return not tried.returncode


def _run(name: str, tree: Path, own: bool) -> dict[str, dict[str, object]]:
    """The figures of one benchmark by name; none if it ended with an error. A missed target is not an error."""
    measurements = tree if own else ROOT
    # An older tree's benchmarks write to their own folder, whatever the setting says.
    written = measurements / "build" / "bench.jsonl"
    with tempfile.TemporaryDirectory(prefix="hapax-bench-") as folder:
        figures = Path(folder) / "figures.jsonl"
        if own and tree != ROOT:
            written.unlink(missing_ok=True)
        code = subprocess.run(
            [sys.executable, "-m", "bench", name], cwd=measurements, check=False, stdout=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": tree_path(tree, measurements), "HAPAX_BENCH_FIGURES": str(figures)},
        ).returncode  # fmt: skip
        if not figures.exists() and own and tree != ROOT:
            figures = written
        if not figures.exists():
            return {}
        found = [json.loads(line) for line in figures.read_text(encoding="utf-8").splitlines()]
    return {} if code and all(each["ok"] for each in found) else {each["name"]: each for each in found}


def _rows(
    other: list[dict[str, dict[str, object]]], this: list[dict[str, dict[str, object]]]
) -> list[tuple[str, float, float, str, float]]:
    """(figure, median of the commit, median here, unit, by how many per cent it is worse here)."""
    rows = []
    for name in dict.fromkeys(name for figures in this for name in figures):
        there = [float(str(figures[name]["value"])) for figures in other if name in figures]
        here = [float(str(figures[name]["value"])) for figures in this if name in figures]
        if not there:
            continue
        about = next(figures[name] for figures in this if name in figures)
        before, now = statistics.median(there), statistics.median(here)
        better_up = str(about["target"]).startswith(">=") or about["unit"] in _MORE_IS_BETTER
        ratio = (before / now if better_up else now / before) if before and now else 1.0
        rows.append((name, before, now, str(about["unit"]), (ratio - 1) * 100))
    return rows


def _print(commit: str, name: str, turns: int, rows: list[tuple[str, float, float, str, float]]) -> None:
    from hapax.cli.output import print_table

    print_table(
        f"{name}: medians of {turns} turns", ("figure", commit, "this tree", "unit", "worse by, %"),
        [(figure, f"{there:.4g}", f"{here:.4g}", unit, f"{worse:+.0f}") for figure, there, here, unit, worse in rows],
    )  # fmt: skip
    sys.stdout.flush()
