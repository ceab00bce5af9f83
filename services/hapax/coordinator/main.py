"""`python -m hapax.coordinator.main --set name=value ...`: one coordinator."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from hapax.coordinator.service import start
from hapax.runtime.process import run


def main(argv: Sequence[str]) -> int:
    return run(argv, "coordinator", start)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
