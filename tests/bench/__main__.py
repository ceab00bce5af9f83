"""`python -m bench [NAME ...]` (with tests/ on the path): runs `main()` of every bench_NAME.py, one after another.

Exit code 1 if a figure misses its target.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from bench import figures


def main(names: list[str]) -> int:
    known = sorted(path.stem.removeprefix("bench_") for path in Path(__file__).parent.glob("bench_*.py"))
    unknown = sorted(set(names) - set(known))
    if unknown:
        print(f"no such measurement: {', '.join(unknown)}; there are {', '.join(known)}", file=sys.stderr)
        return 2
    figures.FILE.unlink(missing_ok=True)
    for name in names or known:
        print(f"{name}:", file=sys.stderr, flush=True)
        importlib.import_module(f"bench.bench_{name}").main()
    figures.print_table()
    return 0 if all(figure.ok for figure in figures.recorded) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
