"""`hapax reassign ...`: move partitions between brokers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hapax.cli import output
from hapax.cli.administration import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, Topics, administer, partition_name
from hapax.cli.moves import (
    Execute,
    Throttle,
    TimeoutS,
    Wait,
    carry_out,
    check_topics,
    end_with,
    numbers,
    planned,
    read_plan,
    sites,
)
from hapax.client import Admin, Refused, TopicPartition
from hapax.client.plans import read_cluster, running_moves
from hapax.core.cluster.moves import Targets, spread
from hapax.core.types import NodeId, PartitionIndex

app = typer.Typer(no_args_is_help=True)


@app.command()
def start(
    topics: Annotated[
        list[str] | None, typer.Option("--topic", metavar="TOPIC", help="Move this topic. Repeatable.")
    ] = None,
    to: Annotated[
        str, typer.Option(metavar="ID,...", help="Spread the topics evenly over these brokers. Default: all.")
    ] = "",
    partitions: Annotated[
        list[str] | None,
        typer.Option("--partition", metavar="TOPIC:PARTITION=ID,...", help="Exactly these replicas. Repeatable."),
    ] = None,
    file: Annotated[Path | None, typer.Option(help="A plan in the format of kafka-reassign-partitions.")] = None,
    execute: Execute = False,
    throttle: Throttle = None,
    wait: Wait = False,
    timeout_s: TimeoutS = 3600.0,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Show a plan of moves, and with --execute begin them. They go on even if this command or a node dies."""
    if not topics and not partitions and file is None:
        output.fail("say what to move with --topic, --partition or --file", output.USAGE)
    cluster = administer(bootstrap, read_cluster)
    check_topics(cluster, topics or [])
    targets: Targets = {} if file is None else read_plan(file)
    if topics:
        over = sites(cluster, numbers(to) if to else None)
        targets |= planned(lambda: spread(cluster.partitions, topics, over))
    for text in partitions or ():
        targets |= _exactly(text)
    carry_out(
        bootstrap, targets, cluster, execute=execute, as_json=as_json, throttle=throttle, wait=wait,
        timeout_s=timeout_s)


def _exactly(text: str) -> Targets:
    name, equals, replicas = text.partition("=")
    topic, colon, index = name.rpartition(":")
    if not (equals and colon and index.isdigit()):
        output.fail(f"--partition is TOPIC:PARTITION=ID,..., not {text!r}", output.USAGE)
    return {TopicPartition(topic, PartitionIndex(int(index))): tuple(map(NodeId, numbers(replicas)))}


@app.command("list")
def list_moves(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: AsJson = False) -> None:
    """List the partitions that are moving, and which of their new replicas have caught up."""
    cluster = administer(bootstrap, read_cluster)
    rows = [
        {
            "partition": partition_name(each.partition), "replicas": list(each.replicas), "adding": list(each.adding),
            "removing": list(each.removing), "caught up": list(each.caught_up),
        }
        for each in running_moves(cluster)]
    if as_json:
        output.print_json(rows)
        return
    shown = [{key: output.joined(v) if isinstance(v, list) else v for key, v in row.items()} for row in rows]
    output.print_records(False, "", shown, ("partition", "replicas", "adding", "removing", "caught up"))


@app.command()
def cancel(
    topics: Topics = None,
    execute: Execute = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Cancel running moves, of all topics or of some: the old replicas stay, the new ones are removed."""
    cluster = administer(bootstrap, read_cluster)
    running = {name: None for name in sorted(cluster.moving) if not topics or name.topic in topics}
    for name in running:
        print(partition_name(name))
    if not execute:
        print(f"{len(running)} moves would be canceled. Add --execute to cancel them.")
        return

    async def cancel_all(admin: Admin) -> list[Refused]:
        return await admin.alter_reassignments(running) if running else []

    end_with(administer(bootstrap, cancel_all))


@app.command()
def throttle(
    bytes_per_second: Annotated[
        int, typer.Argument(help="Limit for each broker. 0: the limit of its settings.", min=0)
    ],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Limit how fast running moves may copy."""
    administer(bootstrap, lambda admin: admin.set_throttle(bytes_per_second))
