"""`python -m hapax.admin.main --set name=value ...`: one replica of the REST API; it keeps no data."""

from __future__ import annotations

import resource
import sys
from collections.abc import Sequence

from hapax.admin.service import start
from hapax.runtime.process import run


def main(argv: Sequence[str]) -> int:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a connection is a descriptor
    return run(argv, "admin", start, keeps_data=False)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
