"""`python -m hapax_sim --seeds 1-100 --hours 1`, or `--seed 7 --trace`: simulate, judge, say what was found."""

from __future__ import annotations

import argparse
import faulthandler
import os
import sys
import time
from collections import Counter
from pathlib import Path

from hapax_checker import line_of
from hapax_sim.simulation import Result, Scene, simulate

_BLOCKED_S = 300
"""A callback that does not come back for so long of real time ends the run, with every stack."""


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
    parser.add_argument("--faults-every", type=float, default=3.0, help="mean logical seconds between faults; 0: none")
    parser.add_argument("--only", action="append", default=[], help="inject only this kind of fault (repeatable)")
    parser.add_argument("--brokers", type=int, default=Scene.brokers)
    parser.add_argument("--replication", type=int, default=Scene.replication)
    parser.add_argument("--controllers", type=int, default=Scene.controllers)
    parser.add_argument("--appenders", type=int, default=Scene.appenders, help="transactional processes")
    parser.add_argument("--pause", type=float, default=Scene.pause_s[1], help="longest pause between operations, s")
    parser.add_argument("--trace", action="store_true", help="write build/sim/seed-N.txt and the history beside it")
    parser.add_argument("--first", action="store_true", help="stop at the first seed that fails")
    args = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":
        # One seed, one history: the order of sets of strings must not depend on the process.
        again = [sys.executable, "-m", "hapax_sim", *sys.argv[1:]]
        os.execve(sys.executable, again, {**os.environ, "PYTHONHASHSEED": "0"})
    scene = Scene(
        args.hours * 3600, brokers=args.brokers, replication=args.replication, controllers=args.controllers,
        appenders=args.appenders, pause_s=(0.0, args.pause), faults_every_s=args.faults_every, faults=tuple(args.only),
    )  # fmt: skip
    chosen = [args.seed] if args.seed is not None else list(args.seeds)
    results: list[Result] = []
    began = time.monotonic()
    for seed in chosen:
        results.append(one(seed, scene, args.trace))
        if args.first and not results[-1].ok:
            break
    injected: Counter[str] = sum((r.faults for r in results), Counter())
    wall = time.monotonic() - began
    print(
        f"{sum(r.logical_s for r in results) / 3600:.2f} logical hours, {sum(r.transactions for r in results)} "
        f"transactions ({sum(r.committed for r in results)} committed), {injected.total()} faults "
        f"({', '.join(f'{n} {kind}' for kind, n in sorted(injected.items()))}) in {wall:.0f} s"
    )
    failed = sum(not r.ok for r in results)
    print(f"{len(results) - failed} passed, {failed} failed")
    return 1 if failed else 0


def one(seed: int, scene: Scene, trace: bool) -> Result:
    faulthandler.dump_traceback_later(_BLOCKED_S + 10 * scene.logical_s, exit=True)
    began = time.monotonic()
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
    wall = time.monotonic() - began
    print(
        f"seed {seed}: {'ok' if result.ok else 'FAILED'}, {result.logical_s:.0f} logical s in {wall:.0f} s, "
        f"{result.transactions} transactions ({result.committed} committed), {result.faults.total()} faults, "
        f"trace {result.trace_hash[:16]}",
        flush=True,
    )
    for anomaly in result.anomalies[:10]:
        print(f"  {anomaly}", flush=True)
    if not result.ok:
        print(f"  again: make sim-seed SEED={seed} HOURS={scene.logical_s / 3600:g}", flush=True)
    return result


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    # Without taking apart what the simulated dead left: their `finally` blocks must not run now either.
    os._exit(code)
