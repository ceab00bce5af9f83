"""`python -m bench [NAME ...]` (with tests/ on the path): runs `main()` of every bench_NAME.py, one after another.

The exit code is 1 if a figure misses its target. `--beside COMMIT` measures that commit and this tree alternately.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

from bench import beside, figures


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench")
    parser.add_argument("names", nargs="*", metavar="NAME", help="benchmarks to run; default: all")
    parser.add_argument("--beside", metavar="COMMIT", help="measure that commit and this tree alternately, and compare")
    parser.add_argument("--turns", type=int, default=3, help="with --beside: number of measurements of each")
    options = parser.parse_args(arguments)
    names: list[str] = options.names
    known = sorted(path.stem.removeprefix("bench_") for path in Path(__file__).parent.glob("bench_*.py"))
    unknown = sorted(set(names) - set(known))
    if unknown:
        print(f"unknown benchmarks: {', '.join(unknown)}; known: {', '.join(known)}", file=sys.stderr)
        return 2
    if options.beside:
        return beside.compare(options.beside, names or known, options.turns)
    figures.FILE.unlink(missing_ok=True)
    for name in names or known:
        print(f"{name}:", file=sys.stderr, flush=True)
        importlib.import_module(f"bench.bench_{name}").main()
    figures.print_table()
    return 0 if all(figure.ok for figure in figures.recorded) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
