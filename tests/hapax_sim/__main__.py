"""`python -m hapax_sim --seeds 1-100 --hours 1`, or `--seed 7 --trace`: simulate, judge, say what was found."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from pathlib import Path

from hapax_sim.simulation import Result, simulate


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
    parser.add_argument("--faults-every", type=float, default=3.0, help="mean logical seconds between faults")
    parser.add_argument("--trace", action="store_true", help="write the history to build/sim/seed-N.txt")
    args = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":
        # One seed, one history: the order of sets of strings must not depend on the process.
        again = [sys.executable, "-m", "hapax_sim", *sys.argv[1:]]
        os.execve(sys.executable, again, {**os.environ, "PYTHONHASHSEED": "0"})
    chosen = [args.seed] if args.seed is not None else list(args.seeds)
    results: list[Result] = []
    began = time.monotonic()
    for seed in chosen:
        results.append(one(seed, args.hours * 3600, args.faults_every, args.trace))
    injected: Counter[str] = sum((r.faults for r in results), Counter())
    wall = time.monotonic() - began
    print(
        f"{sum(r.logical_s for r in results) / 3600:.2f} logical hours, {sum(r.transactions for r in results)} "
        f"transactions, {sum(r.records for r in results)} records, {injected.total()} faults "
        f"({', '.join(f'{n} {kind}' for kind, n in sorted(injected.items()))}) in {wall:.0f} s"
    )
    failed = sum(not r.ok for r in results)
    print(f"{len(results) - failed} passed, {failed} failed")
    return 1 if failed else 0


def one(seed: int, logical_s: float, faults_every_s: float, trace: bool) -> Result:
    if trace:
        path = Path(f"build/sim/seed-{seed}.txt")
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w") as out:
            result = simulate(seed, logical_s, faults_every_s=faults_every_s, listener=lambda s: out.write(s + "\n"))
        print(f"trace in {path}")
    else:
        result = simulate(seed, logical_s, faults_every_s=faults_every_s)
    print(
        f"seed {seed}: {'ok' if result.ok else 'FAILED'}, {result.logical_s:.0f} logical s, {result.transactions} "
        f"transactions ({result.committed} committed), {result.faults.total()} faults, trace {result.trace_hash[:16]}"
    )
    for anomaly in result.anomalies[:10]:
        print(f"  {anomaly}")
    if not result.ok:
        print(f"  again: make sim-seed SEED={seed}")
    return result


if __name__ == "__main__":
    sys.exit(main())
