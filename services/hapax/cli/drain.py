"""`hapax drain`: empty a broker before it is removed."""

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
    broker: Annotated[int, typer.Argument(metavar="BROKER", help="Its node id; it may be dead already.")],
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Take it back: what moves off the broker stays, and it is used again.")
    ] = False,
    execute: Execute = False,
    throttle: Throttle = None,
    wait: Wait = False,
    timeout_s: TimeoutS = 3600.0,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Move everything off a broker: it gives its leaderships up, gets nothing new, and its replicas go to others."""
    cluster = administer(bootstrap, read_cluster)
    if cancel:
        _cancel(broker, execute, bootstrap)
        return
    known = broker in cluster.brokers or any(broker in held.replicas for held in cluster.partitions.values())
    if not known:
        output.fail(f"no broker {broker} is alive or holds anything", output.NOT_FOUND)
    targets = planned(lambda: plan_drain(cluster.partitions, {NodeId(broker)}, sites(cluster)))
    carry_out(
        bootstrap, targets, cluster, execute=execute, as_json=as_json, throttle=throttle, wait=wait,
        timeout_s=timeout_s, drained=broker)


def _cancel(broker: int, execute: bool, bootstrap: str) -> None:
    async def work(admin: Admin) -> list[Refused]:
        leaving = {
            each.partition: None for each in await admin.list_reassignments() if broker in each.removing}
        if not execute:
            print(f"{len(leaving)} moves would be canceled: add --execute to do it.")
            return []
        await admin.set_draining([broker], False)
        return await admin.alter_reassignments(leaving) if leaving else []

    end_with(administer(bootstrap, work))
