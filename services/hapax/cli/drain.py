"""`hapax drain BROKER`: moves all replicas and leaderships off a broker."""

from __future__ import annotations

from typing import Annotated

import typer

from hapax.cli import output
from hapax.cli.administration import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, administer
from hapax.cli.moves import Execute, Throttle, TimeoutS, Wait, carry_out, end_with, planned, sites
from hapax.client import Admin, Refused
from hapax.client.plans import read_cluster
from hapax.core.cluster.moves import drain as plan_drain
from hapax.core.types import NodeId


def drain(
    broker: Annotated[int, typer.Argument(metavar="BROKER", help="Its node id. The broker may already be dead.")],
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Stop draining: cancel the moves off the broker and use it again.")
    ] = False,
    execute: Execute = False,
    throttle: Throttle = None,
    wait: Wait = False,
    timeout_s: TimeoutS = 3600.0,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Empty a broker: it hands over its leaderships, gets no new replicas, and its replicas move to other brokers."""
    cluster = administer(bootstrap, read_cluster)
    if cancel:
        _cancel(broker, execute, bootstrap)
        return
    holds_replicas = any(broker in held.replicas for held in cluster.partitions.values())
    if broker not in cluster.brokers and not holds_replicas:
        output.fail(f"no broker {broker} is alive, and no replica is on it", output.NOT_FOUND)
    targets = planned(lambda: plan_drain(cluster.partitions, {NodeId(broker)}, sites(cluster)))
    carry_out(
        bootstrap, targets, cluster, execute=execute, as_json=as_json, throttle=throttle, wait=wait,
        timeout_s=timeout_s, drained=broker)


def _cancel(broker: int, execute: bool, bootstrap: str) -> None:
    async def cancel(admin: Admin) -> list[Refused]:
        leaving = {
            each.partition: None for each in await admin.list_reassignments() if broker in each.removing}
        if not execute:
            print(f"{len(leaving)} moves would be canceled. Add --execute to cancel them.")
            return []
        await admin.set_draining([broker], False)
        return await admin.alter_reassignments(leaving) if leaving else []

    end_with(administer(bootstrap, cancel))
