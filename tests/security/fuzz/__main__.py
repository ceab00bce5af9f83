"""`PYTHONPATH=tests python -m security.fuzz [TARGET ...] --seed 1 --cases 100000 --seconds 60`: ends with code 1 and
the input at the first fault."""

from __future__ import annotations

import argparse
import logging
import sys

from security.fuzz import TARGETS, Found, fuzz


def main() -> int:
    parser = argparse.ArgumentParser(description="Look for inputs that break logins, handshakes, filters and rules")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)}; all by default")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", type=int, default=100_000, help="inputs of each target")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each target")
    parser.add_argument("--only", type=int, help="the number of one input")
    args = parser.parse_args()
    logging.getLogger("hapax").addHandler(logging.NullHandler())
    for name in args.targets or TARGETS:
        if name not in TARGETS:
            parser.error(f"{name} is none of {', '.join(TARGETS)}")
        first, cases = (0, args.cases) if args.only is None else (args.only, 1)
        try:
            answers = fuzz(TARGETS[name](), args.seed, cases=cases, seconds=args.seconds, first=first)
        except Found as found:
            print(found, file=sys.stderr)
            return 1
        print(f"{name}: {answers.total()} inputs: "
              + ", ".join(f"{count} {kind}" for kind, count in answers.most_common()), flush=True)
    return 0


sys.exit(main())
