"""`python -m hapax_operator.main [--namespace NAME ...] [--config FILE] [--set name=value ...]`: one operator.

Without `--namespace` it looks after all namespaces. The rest are the settings of a controller.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial

from hapax.runtime.process import run
from hapax_operator.service import start


def main(argv: Sequence[str]) -> int:
    namespaces, rest = [], list(argv)
    while "--namespace" in rest[:-1]:
        at = rest.index("--namespace")
        namespaces.append(rest[at + 1])
        del rest[at : at + 2]
    return run(rest, "controller", partial(start, namespaces=namespaces))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
