"""`python -m hapax_sim --seeds 1-100 --hours 1`, or `--seed 7 --trace`: simulates, judges and prints the results."""

from __future__ import annotations

import argparse
import faulthandler
import os
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from hapax_checker import line_of
from hapax_sim import results as past
from hapax_sim.parts import PARTS
from hapax_sim.recorder import MOVED
from hapax_sim.scenes import SCENES
from hapax_sim.simulation import Result, Scene, simulate

_BLOCKED_S = 300
"""Seconds of real time after which a callback that has not returned ends the run, with all stacks."""


def seeds(text: str) -> range:
    """`7` or `1-100`, both ends included."""
    first, dash, last = text.partition("-")
    return range(int(first), int(last if dash else first) + 1)


def main() -> int:
    parser = argparse.ArgumentParser(prog="hapax_sim", description=(__doc__ or "").splitlines()[0])
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--seeds", type=seeds, help="a range such as 1-100")
    which.add_argument("--seed", type=int, help="one seed")
    parser.add_argument("--hours", type=float, default=0.02, help="logical hours of each seed")
    parser.add_argument("--scene", choices=SCENES, default="single", help="sets the defaults of the next options")
    parser.add_argument("--faults-every", type=float, help="mean logical seconds between faults; 0: none")
    parser.add_argument("--only", action="append", default=[], help="inject only this kind of fault (repeatable)")
    parser.add_argument("--brokers", type=int)
    parser.add_argument("--replication", type=int)
    parser.add_argument("--controllers", type=int)
    parser.add_argument("--appenders", type=int, help="transactional processes that also read")
    parser.add_argument("--spreaders", type=int, help="transactional processes that only write")
    parser.add_argument("--rate", type=float, help="transactions per logical second of all spreaders together")
    parser.add_argument("--pause", type=float, help="longest pause in s between operations of the other clients")
    parser.add_argument("--timer-error", type=float, help="timers fire up to this many ms early or late")
    parser.add_argument("--part", action="append", default=[], choices=PARTS, help="add this part (repeatable)")
    parser.add_argument("--results", type=Path, help="append results to this file; skip seeds that are in it")
    parser.add_argument("--trace", action="store_true", help="write build/sim/seed-N.txt and the history next to it")
    parser.add_argument("--first", action="store_true", help="stop at the first seed that fails")
    args = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":
        # One seed, one history: the order of sets of strings must not depend on the process.
        again = [sys.executable, "-m", "hapax_sim", *sys.argv[1:]]
        os.execve(sys.executable, again, {**os.environ, "PYTHONHASHSEED": "0"})
    scene = _scene(args)
    chosen = [args.seed] if args.seed is not None else list(args.seeds)
    results: list[Result] = []
    began = time.monotonic()
    code, revision = (past.code_digest(), past.commit()) if args.results else ("", "")
    for seed in chosen:
        former = past.known(args.results).get(past.key(code, seed, scene)) if args.results else None
        results.append(_again(former) if former else one(seed, scene, args.trace))
        _say(results[-1], scene, args, "ran before, " if former else "")
        if args.results and not former:
            past.append(args.results, past.line(results[-1], scene, args.scene, code, revision))
        if args.first and not results[-1].ok:
            break
    injected: Counter[str] = sum((r.faults for r in results), Counter())
    wall = time.monotonic() - began
    print(
        f"{sum(r.logical_s for r in results) / 3600:.2f} logical hours, {sum(r.transactions for r in results)} "
        f"transactions ({sum(r.committed for r in results)} committed), {_moved(*results)}{injected.total()} faults "
        f"({', '.join(f'{n} {kind}' for kind, n in sorted(injected.items()))}) in {wall:.0f} s; "
        f"{len(results) * scene.logical_s / (sum(r.cpu_s for r in results) or 1.0):.1f} logical seconds of work per "
        "second of processor time"
    )
    failed = sum(not r.ok for r in results)
    print(f"{len(results) - failed} passed, {failed} failed")
    return 1 if failed else 0


def _scene(args: argparse.Namespace) -> Scene:
    """The named scene, with the changes from the command line."""
    given = {
        "brokers": args.brokers, "replication": args.replication, "controllers": args.controllers,
        "appenders": args.appenders, "spreaders": args.spreaders, "rate": args.rate,
        "timer_error_ms": args.timer_error,
        "faults_every_s": args.faults_every, "pause_s": None if args.pause is None else (0.0, args.pause),
    }  # fmt: skip
    changes = {name: value for name, value in given.items() if value is not None}
    scene = SCENES[args.scene]
    return replace(
        scene, logical_s=args.hours * 3600, faults=tuple(args.only) or scene.faults,
        parts=tuple(dict.fromkeys((*scene.parts, *args.part))), **changes)


def _again(line: dict[str, Any]) -> Result:
    """What the file holds about a history that has run."""
    return Result(
        line["seed"], line["logical_s"], line["cpu_s"], line["transactions"], line["committed"],
        Counter(line["faults"]), Counter({MOVED: line.get("moved", 0)}), anomalies=line["anomalies"],
        trace_hash=line["trace_hash"],
    )  # fmt: skip


def _moved(*results: Result) -> str:
    """Only scenes with groups move partitions."""
    moved = sum(result.counts[MOVED] for result in results)
    return f"{moved} {MOVED}, " if moved else ""


def one(seed: int, scene: Scene, trace: bool) -> Result:
    faulthandler.dump_traceback_later(_BLOCKED_S + 10 * scene.logical_s, exit=True)
    if trace:
        path = Path(f"build/sim/seed-{seed}.txt")
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w") as out:
            result = simulate(seed, scene, listener=lambda s: out.write(s + "\n"))
        path.with_suffix(".jsonl").write_text("".join(line_of(o) + "\n" for o in result.operations))
        print(f"trace in {path}, history in {path.with_suffix('.jsonl')}")
    else:
        result = simulate(seed, scene)
    faulthandler.cancel_dump_traceback_later()
    return result


def _say(result: Result, scene: Scene, args: argparse.Namespace, before: str) -> None:
    print(
        f"seed {result.seed}: {'ok' if result.ok else 'FAILED'}, {before}{result.logical_s:.0f} logical s in "
        f"{result.cpu_s:.0f} s of processor time, {result.transactions} transactions ({result.committed} committed), "
        f"{_moved(result)}{result.faults.total()} faults, trace {result.trace_hash[:16]}",
        flush=True,
    )
    for anomaly in result.anomalies[:10]:
        print(f"  {anomaly}", flush=True)
    if not result.ok:
        hours = f"{scene.logical_s / 3600:g}"
        print(f"  again: make sim-seed SEED={result.seed} HOURS={hours} SCENE={args.scene}", flush=True)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    # The objects that the simulated dead processes left are not taken apart: their `finally` blocks must not run now
    # either.
    os._exit(code)
