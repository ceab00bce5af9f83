"""`hapax replicas ...`: which replicas there are, how many there shall be, and who leads."""

from __future__ import annotations

from typing import Annotated

import typer

from hapax.cli import output
from hapax.cli.administration import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    administer,
    find_partitions,
    partition_name,
)
from hapax.cli.moves import (
    Execute,
    Throttle,
    TimeoutS,
    Wait,
    carry_out,
    check_topics,
    end_with,
    planned,
    sites,
)
from hapax.client import Admin, Refused, TopicPartition
from hapax.client.plans import read_cluster
from hapax.client.progress import measure
from hapax.core.cluster.moves import change_factor
from hapax.core.types import PartitionIndex

app = typer.Typer(help="Replicas: list, change their number, elect leaders.", no_args_is_help=True)

Topics = Annotated[list[str] | None, typer.Option("--topic", metavar="TOPIC", help="Repeatable; default: all.")]


@app.command("list")
def list_replicas(
    topics: Topics = None,
    lagging: Annotated[
        bool, typer.Option("--lagging", help="Only partitions with a replica that is not in sync, or no leader.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """List partitions with their leader, replicas, those in sync, and how far the others are."""
    cluster = administer(bootstrap, read_cluster)
    check_topics(cluster, topics or [])
    progress = administer(
        bootstrap, lambda admin: measure(admin, [cluster.topics[name] for name in topics or cluster.topics]))
    rows = []
    for name in sorted(topics or cluster.topics):
        for each in cluster.topics[name].partitions:
            missing = [node for node in each.replicas if node not in each.isr]
            if not lagging or missing or each.leader < 0:
                far = progress.get(TopicPartition(name, PartitionIndex(each.partition)), [])
                rows.append({
                    "topic": name, "partition": each.partition, "leader": each.leader, "replicas": list(each.replicas),
                    "isr": list(each.isr), "missing": missing, "progress": [one.as_record() for one in far],
                    "behind": "; ".join(str(one) for one in far if not one.in_sync),
                })
    if as_json:
        output.print_json([{key: value for key, value in row.items() if key != "behind"} for row in rows])
        return
    shown = [{key: output.joined(v) if isinstance(v, list) else v for key, v in row.items()} for row in rows]
    output.print_records(False, "", shown, ("topic", "partition", "leader", "replicas", "isr", "missing", "behind"))


@app.command("set")
def set_factor(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    factor: Annotated[int, typer.Argument(help="Replicas that each partition shall have.", min=1)],
    execute: Execute = False,
    throttle: Throttle = None,
    wait: Wait = False,
    timeout_s: TimeoutS = 3600.0,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Show what another replication factor takes, and with --execute begin it."""
    cluster = administer(bootstrap, read_cluster)
    check_topics(cluster, [topic])
    targets = planned(lambda: change_factor(cluster.partitions, topic, factor, sites(cluster)))
    carry_out(
        bootstrap, targets, cluster, execute=execute, as_json=as_json, throttle=throttle, wait=wait,
        timeout_s=timeout_s)


@app.command()
def elect(
    topics: Topics = None,
    unclean: Annotated[
        bool,
        typer.Option("--unclean", help="Where no in-sync replica is alive let another lead: what it lacks is lost."),
    ] = False,
    execute: Execute = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Let the replicas lead that partitions prefer; with --unclean, let anybody lead what nobody leads."""
    cluster = administer(bootstrap, read_cluster)
    check_topics(cluster, topics or [])
    wanted = [
        (name, each) for name in sorted(topics or cluster.topics) for each in cluster.topics[name].partitions
        if (each.leader < 0 if unclean else each.leader != (each.replicas or (each.leader,))[0])]
    if not execute:
        for name, each in wanted:
            print(f"{name}-{each.partition}: leader {each.leader}, replicas {output.joined(each.replicas)}, "
                  f"in sync {output.joined(each.isr)}")
        print(f"{len(wanted)} partitions need an election: add --execute to do it.")
        return

    async def work(admin: Admin) -> tuple[list[TopicPartition], list[Refused]]:
        chosen = [
            partition for name in sorted({name for name, _ in wanted})
            for partition in await find_partitions(admin, name, [e.partition for n, e in wanted if n == name])]
        return await admin.elect_leaders(chosen, unclean=unclean) if chosen else ([], [])

    elected, refused = administer(bootstrap, work)
    if as_json:
        output.print_json({"elected": [partition_name(each) for each in elected]})
    else:
        print(f"{len(elected)} partitions have another leader.")
    end_with(refused)
