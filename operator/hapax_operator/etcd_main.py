"""`python -m hapax_operator.etcd_main --spec FILE [--http HOST:PORT]`: the keeper of etcd.

It serves /healthz, /readyz and /metrics, without TLS: they have no names. Exit codes: 0 after SIGTERM or SIGINT; 1 if
it cannot continue; 2 for a bad file.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from hapax.runtime import telemetry
from hapax.runtime.clock import SystemClock
from hapax.runtime.process_metrics import observe_process
from hapax_operator.api import KubeApi
from hapax_operator.etcd_keeper import EtcdKeeper
from hapax_operator.etcd_observe import BadSpec, parse_spec
from hapax_operator.keeper_process import keep

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

    async def work(api: KubeApi, opened: AsyncExitStack) -> Coroutine[Any, Any, None]:
        metrics = telemetry.Metrics()
        observe_process(metrics)
        keeper = EtcdKeeper(spec, api, SystemClock(), random.SystemRandom(), metrics)
        opened.push_async_callback(keeper.close)
        health = telemetry.HealthServer(metrics, keeper.ready)
        opened.push_async_callback(health.close)
        host, _, port = arguments.http.rpartition(":")
        await health.start(host, int(port))
        return keeper.run()

    return asyncio.run(keep(log, work))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
