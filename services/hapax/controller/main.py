"""`python -m hapax.controller.main --set name=value ...`: one controller, acting or standing by."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from hapax.controller.service import start
from hapax.runtime.process import run


def main(argv: Sequence[str]) -> int:
    return run(argv, "controller", start)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
