"""`python -m hapax_operator.certificates_main --spec FILE [--ready FILE]`: the keeper of certificates.

Exit codes: 0 after SIGTERM or SIGINT; 1 if it cannot continue; 2 for a bad file.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hapax.runtime import supervision, telemetry
from hapax.runtime.clock import SystemClock
from hapax_operator.api import KubeApi, NoApiServer, login
from hapax_operator.certificates_service import Keeper
from hapax_operator.certificates_spec import BadSpec, Spec, parse_spec

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
    return asyncio.run(_keep(spec, arguments.ready))


async def _keep(spec: Spec, ready: Path | None) -> int:
    end = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, end.set)
    try:
        api = KubeApi(await login())
        await api.start()
    except (NoApiServer, OSError, ValueError) as error:
        log.error(f"cannot find the API server: {error}")
        return 1
    work = supervision.judged(Keeper(spec, api, SystemClock(), ready).run())
    asked = supervision.judged(end.wait())
    try:
        either: set[asyncio.Future[Any]] = {work, asked}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            log.error(f"cannot continue: {work.exception()!r}")
            return 1
        log.info("stopped as requested")
        return 0
    finally:
        await supervision.end(work, asked)
        await api.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
