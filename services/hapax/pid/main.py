"""`python -m hapax.pid.main --set name=value ...`: one PID allocator."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from hapax.pid.service import start
from hapax.runtime.process import run


def main(argv: Sequence[str]) -> int:
    return run(argv, "pid", start)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
