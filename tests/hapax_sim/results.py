"""Results of simulations, one JSON line each, so that a long campaign can be spread over days: what has run on the
same code is not run again. `python -m hapax_sim.results FILE` sums them up as docs/simulation-results.md."""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from hapax_sim.recorder import MOVED
from hapax_sim.simulation import Result, Scene

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = ROOT / "docs" / "simulation-results.md"
SIMULATED: Final = ("services/hapax", "tests/hapax_sim", "tests/hapax_checker")
"""The folders whose code determines a history."""


def code_digest() -> str:
    """A digest of everything that a history depends on. Documents may change between two runs."""
    digest = hashlib.sha256()
    for folder in SIMULATED:
        for path in sorted((ROOT / folder).rglob("*.py")):
            digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def commit() -> str:
    """The commit of the running code, with a plus sign if the code was changed since. Empty without a repository."""
    described = ["git", "-C", str(ROOT), "log", "-1", "--format=%h", "--", *SIMULATED]
    changed = ["git", "-C", str(ROOT), "status", "--porcelain", "--", *SIMULATED]
    try:
        done = [subprocess.run(c, capture_output=True, text=True, check=True).stdout for c in (described, changed)]
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done[0].strip() + ("+" if done[1].strip() else "")


def key(code: str, seed: int, scene: Scene) -> str:
    """One history: two runs with the same key are identical, bit for bit."""
    return f"{code} {seed} {json.dumps(asdict(scene), sort_keys=True)}"


def line(result: Result, scene: Scene, name: str, code: str, revision: str) -> dict[str, Any]:
    return {
        "key": key(code, result.seed, scene), "commit": revision, "scene": name, "seed": result.seed,
        "worked_s": scene.logical_s, "faults_every_s": scene.faults_every_s, "logical_s": round(result.logical_s, 3),
        "cpu_s": round(result.cpu_s, 2), "transactions": result.transactions, "committed": result.committed,
        "moved": result.counts[MOVED], "faults": dict(result.faults), "anomalies": result.anomalies[:10],
        "trace_hash": result.trace_hash,
    }  # fmt: skip


def known(path: Path) -> dict[str, dict[str, Any]]:
    """By key. If a history ran twice, the later line is kept."""
    if not path.exists():
        return {}
    lines = [json.loads(text) for text in path.read_text().splitlines() if text]
    return {one["key"]: one for one in lines}


def append(path: Path, one: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as out:
        out.write(json.dumps(one) + "\n")


# --- the page ---------------------------------------------------------------------------------------------------------

_HEAD: Final = "| commit | scene | seeds | logical hours | transactions | committed | faults | kinds | failed | speed |"


def row(revision: str, scene: str, lines: Sequence[dict[str, Any]]) -> str:
    faults: Counter[str] = sum((Counter(one["faults"]) for one in lines), Counter())
    failed = sorted(one["seed"] for one in lines if one["anomalies"])
    speed = sum(one["worked_s"] for one in lines) / (sum(one["cpu_s"] for one in lines) or 1.0)
    cells = [
        revision, scene, _ranges(one["seed"] for one in lines), f"{sum(one['logical_s'] for one in lines) / 3600:.2f}",
        str(sum(one["transactions"] for one in lines)), str(sum(one["committed"] for one in lines)),
        str(faults.total()), str(len(faults)), f"seeds {_ranges(failed)}" if failed else "none", f"{speed:.1f}",
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def page(lines: Iterable[dict[str, Any]], former: Iterable[str]) -> str:
    """`former`: rows that the page has. Those of commits without `lines` are kept."""
    by_row: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for one in lines:
        by_row.setdefault((one["commit"], f"{one['scene']} {one['worked_s']:g} s"), []).append(one)
    commits = list(dict.fromkeys(revision for revision, _ in by_row))
    kept = [text for text in former if text.split(" | ")[0].removeprefix("| ").strip("* ") not in commits]
    rows = []
    for revision in commits:
        of_commit = {scene: found for (r, scene), found in by_row.items() if r == revision}
        rows += [row(revision, scene, found) for scene, found in of_commit.items()]
        together = [one for found in of_commit.values() for one in found]
        total = row(f"**{revision}**", "all", together)
        rows.append(total.replace(f"| {_ranges(one['seed'] for one in together)} |", f"| {len(together)} histories |"))
    return "\n".join([
        "# Simulation results",
        "",
        "`make sim-summary` writes this page from the results of `make sim`. A history that has run on the same code",
        "is not run again, so `make sim SEEDS=a-b HOURS=h SCENE=lively` continues a campaign. Speed: logical seconds",
        "of work per second of processor time; start, shutdown and checks count as cost only. Bold: all runs of one",
        "commit. `tests/hapax_sim/scenes.py` defines the scenes.",
        "",
        _HEAD,
        "|" + "---|" * (_HEAD.count("|") - 1),
        *kept,
        *rows,
        "",
    ])  # fmt: skip


def rows_of(text: str) -> list[str]:
    return [one for one in text.splitlines() if one.startswith("| ") and one != _HEAD]


def _ranges(seeds: Iterable[int]) -> str:
    """`1-3, 7`."""
    found: list[list[int]] = []
    for seed in sorted(set(seeds)):
        if found and found[-1][1] == seed - 1:
            found[-1][1] = seed
        else:
            found.append([seed, seed])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in found)


def main() -> int:
    parser = argparse.ArgumentParser(prog="hapax_sim.results", description="Sum up results as a page.")
    parser.add_argument("file", type=Path)
    parser.add_argument("--page", type=Path, default=PAGE)
    args = parser.parse_args()
    former = rows_of(args.page.read_text()) if args.page.exists() else []
    args.page.write_text(page(known(args.file).values(), former))
    print(f"{args.page} written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
