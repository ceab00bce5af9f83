"""`python -m hapax_explore`: explores every interleaving of compositions of the real machines."""

from __future__ import annotations

import argparse
import sys

from hapax_explore.scopes import SCOPES
from hapax_explore.search import Explorer, script


def main() -> int:
    parser = argparse.ArgumentParser(prog="hapax_explore", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--scope", action="append", choices=sorted(SCOPES), help="repeatable; default: all scopes")
    parser.add_argument("--limit", type=int, default=1_000_000, help="maximum states per scope, the nearest first")
    parser.add_argument("--quiet", action="store_true", help="do not print a line for each depth")
    args = parser.parse_args()
    failed = 0
    for name in args.scope or SCOPES:
        result = Explorer(SCOPES[name]()).explore(args.limit, (lambda line: None) if args.quiet else print)
        print(result, flush=True)
        if result.violation:
            failed += 1
            print(f"FAILED {name}: {result.violation}\n")
            print(script(name, result.history))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
