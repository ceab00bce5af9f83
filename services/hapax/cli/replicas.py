"""`hapax replicas ...`: lists replicas, changes their number and elects leaders."""

from __future__ import annotations

from typing import Annotated

import typer

from hapax.cli import output
from hapax.cli.administration import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    Topics,
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

app = typer.Typer(no_args_is_help=True)


@app.command("list")
def list_replicas(
    topics: Topics = None,
    lagging: Annotated[
        bool, typer.Option("--lagging", help="Only partitions without a leader or with a replica that is not in sync.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """List partitions with leader, replicas, in-sync replicas, and how far the other replicas are behind."""
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
    factor: Annotated[int, typer.Argument(help="The new number of replicas of each partition.", min=1)],
    execute: Execute = False,
    throttle: Throttle = None,
    wait: Wait = False,
    timeout_s: TimeoutS = 3600.0,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Show the moves that another replication factor needs, and with --execute begin them."""
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
        typer.Option(
            "--unclean", help="If no other is alive, let a replica lead that is not in sync. Records it lacks are lost."
        ),
    ] = False,
    execute: Execute = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Give leadership to the preferred replicas, or with --unclean a leader to partitions that have none."""
    cluster = administer(bootstrap, read_cluster)
    check_topics(cluster, topics or [])
    wanted = [
        (name, each) for name in sorted(topics or cluster.topics) for each in cluster.topics[name].partitions
        if (each.leader < 0 if unclean else each.leader != (each.replicas or (each.leader,))[0])]
    if not execute:
        for name, each in wanted:
            print(f"{name}-{each.partition}: leader {each.leader}, replicas {output.joined(each.replicas)}, "
                  f"in sync {output.joined(each.isr)}")
        print(f"{len(wanted)} partitions need an election. Add --execute to hold it.")
        return

    async def elect_all(admin: Admin) -> tuple[list[TopicPartition], list[Refused]]:
        chosen = [
            partition for name in sorted({name for name, _ in wanted})
            for partition in await find_partitions(admin, name, [e.partition for n, e in wanted if n == name])]
        return await admin.elect_leaders(chosen, unclean=unclean) if chosen else ([], [])

    elected, refused = administer(bootstrap, elect_all)
    if as_json:
        output.print_json({"elected": [partition_name(each) for each in elected]})
    else:
        print(f"{len(elected)} partitions have a new leader.")
    end_with(refused)
