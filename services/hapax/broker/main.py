"""`python -m hapax.broker.main --set name=value ...`: one partition broker."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from hapax.broker.service import start
from hapax.runtime.process import run


def main(argv: Sequence[str]) -> int:
    return run(argv, "broker", start)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
