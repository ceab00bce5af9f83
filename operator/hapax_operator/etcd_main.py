"""`python -m hapax_operator.etcd_main --spec FILE [--http HOST:PORT]`: the keeper of etcd.

It serves /healthz, /readyz and /metrics, without TLS: they have no names. Exit codes: 0 after SIGTERM or SIGINT; 1 if
it cannot continue; 2 for a bad file.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hapax.runtime import supervision, telemetry
from hapax.runtime.clock import SystemClock
from hapax.runtime.process_metrics import observe_process
from hapax_operator.api import KubeApi, NoApiServer, login
from hapax_operator.etcd_keeper import EtcdKeeper
from hapax_operator.etcd_observe import BadSpec, Spec, parse_spec

log = telemetry.logger("etcd-keeper")


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="hapax_operator.etcd_main", description=__doc__)
    parser.add_argument("--spec", required=True, type=Path, help="what to keep (etcd_observe.py)")
    parser.add_argument("--http", default="0.0.0.0:8081", help="where it serves its state and metrics")
    arguments = parser.parse_args(argv)
    telemetry.start_logging("etcd-keeper")
    try:
        spec = parse_spec(arguments.spec.read_text())
    except (BadSpec, OSError) as error:
        log.error(f"{arguments.spec}: {error}")
        return 2
    return asyncio.run(_keep(spec, arguments.http))


async def _keep(spec: Spec, http: str) -> int:
    end = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, end.set)
    metrics = telemetry.Metrics()
    observe_process(metrics)
    try:
        api = KubeApi(await login())
        await api.start()
    except (NoApiServer, OSError, ValueError) as error:
        log.error(f"cannot find the API server: {error}")
        return 1
    keeper = EtcdKeeper(spec, api, SystemClock(), random.SystemRandom(), metrics)
    health = telemetry.HealthServer(metrics, keeper.ready)
    host, _, port = http.rpartition(":")
    await health.start(host, int(port))
    work = supervision.judged(keeper.run())
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
        await health.close()
        await keeper.close()
        await api.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
