"""`python -m hapax_operator.certificates_main --spec FILE [--ready FILE]`: the keeper of certificates.

Exit codes: 0 after SIGTERM or SIGINT; 1 if it cannot continue; 2 for a bad file.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from hapax.runtime import telemetry
from hapax.runtime.clock import SystemClock
from hapax_operator.api import KubeApi
from hapax_operator.certificates_service import Keeper
from hapax_operator.certificates_spec import BadSpec, parse_spec
from hapax_operator.keeper_process import keep

log = telemetry.logger("certificates")


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="hapax_operator.certificates_main", description=__doc__)
    parser.add_argument("--spec", required=True, type=Path, help="what to keep (certificates_spec.py)")
    parser.add_argument("--ready", type=Path, help="a file that exists while nothing is missing")
    arguments = parser.parse_args(argv)
    telemetry.start_logging("certificates")
    try:
        spec = parse_spec(arguments.spec.read_text())
    except (BadSpec, OSError) as error:
        log.error(f"{arguments.spec}: {error}")
        return 2

    async def work(api: KubeApi, opened: AsyncExitStack) -> Coroutine[Any, Any, None]:
        return Keeper(spec, api, SystemClock(), arguments.ready).run()

    return asyncio.run(keep(log, work))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
