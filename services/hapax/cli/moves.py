"""What `hapax reassign`, `drain` and `replicas` share: a plan that is shown before it acts, and its progress."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from hapax.cli import output
from hapax.cli.administration import administer, partition_name
from hapax.client import Admin, BrokerInfo, ReassignmentInfo, Refused, TopicInfo, TopicPartition
from hapax.core.moves import Held, ImpossiblePlan, Targets
from hapax.core.placement import Site
from hapax.core.types import NodeId, PartitionIndex

Execute = Annotated[bool, typer.Option("--execute", "--yes", help="Do it; without, the plan is shown only.")]
Throttle = Annotated[
    int | None,
    typer.Option(help="Most bytes per second that each broker copies for it; until all moves have ended.", min=0),
]
Wait = Annotated[bool, typer.Option("--wait", help="Return when all of it has ended; shows the progress on stderr.")]
TimeoutS = Annotated[float, typer.Option("--timeout", help="Seconds to wait at most.", min=0)]

_LOOK_EVERY_S = 0.5


class Cluster:
    """What plans are made from, as Metadata tells it now."""

    def __init__(self, topics: Sequence[TopicInfo], brokers: Sequence[BrokerInfo], moving: Sequence[ReassignmentInfo]):
        self.topics = {topic.name: topic for topic in topics}
        self.brokers = {broker.node_id: broker for broker in brokers}
        self.moving = {each.partition: each for each in moving}
        self.partitions: dict[TopicPartition, Held] = {}
        for topic in topics:
            for each in topic.partitions:
                name = TopicPartition(topic.name, PartitionIndex(each.partition))
                going = self.moving[name].removing if name in self.moving else ()
                replicas = tuple(NodeId(node) for node in each.replicas if node not in going)
                self.partitions[name] = Held(replicas, tuple(map(NodeId, each.isr)))

    def sites(self, only: Sequence[int] | None = None) -> list[Site]:
        """Live brokers that are fit, or those chosen. Ends the command for one that is not alive."""
        fit = sorted(node for node, broker in self.brokers.items() if not broker.standing)
        chosen = fit if only is None else list(dict.fromkeys(only))
        for node in chosen:
            if node not in self.brokers:
                output.fail(f"broker {node} is not alive", output.NOT_FOUND)
        return [Site(NodeId(node), self.brokers[node].rack) for node in chosen]

    def check_topics(self, names: Sequence[str]) -> None:
        for name in names:
            if name not in self.topics:
                output.fail(f"topic {name} does not exist", output.NOT_FOUND)


async def read_cluster(admin: Admin) -> Cluster:
    return Cluster(await admin.list_topics(), await admin.list_brokers(), await admin.list_reassignments())


def numbers(text: str) -> list[int]:
    """`0,2,1`. Wrong usage ends the command."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        output.fail(f"{text!r} is not a list of broker ids such as 0,2,1", output.USAGE)


def planned(make: Callable[[], Targets]) -> Targets:
    """What `make` returns; an impossible plan ends the command with its sentence."""
    try:
        return make()
    except ImpossiblePlan as error:
        output.fail(str(error))


def read_plan(path: Path) -> Targets:
    """A plan in the form of Kafka's tools: `{"version":1,"partitions":[{"topic","partition","replicas"}]}`."""
    try:
        plan = json.loads(path.read_text(encoding="utf-8"))
        return {
            TopicPartition(str(each["topic"]), PartitionIndex(int(each["partition"]))):
                tuple(NodeId(int(node)) for node in each["replicas"])
            for each in plan["partitions"]
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        output.fail(f"{path}: not a plan: {error!r}", output.USAGE)


def plan_document(targets: Targets) -> dict[str, Any]:
    return {"version": 1, "partitions": [
        {"topic": name.topic, "partition": name.partition, "replicas": list(target)}
        for name, target in sorted(targets.items())]}


def show_plan(cluster: Cluster, targets: Targets) -> None:
    rows = []
    for name, target in sorted(targets.items()):
        before = cluster.partitions[name].replicas if name in cluster.partitions else ()
        rows.append({
            "partition": partition_name(name), "replicas": output.joined(before), "becomes": output.joined(target),
            "copied to": output.joined(node for node in target if node not in before),
            "removed from": output.joined(node for node in before if node not in target),
        })
    copies = sum(row["copied to"].count(",") + 1 for row in rows if row["copied to"])
    title = f"{len(rows)} partitions, {copies} replicas to copy"
    output.print_records(False, title, rows, ("partition", "replicas", "becomes", "copied to", "removed from"))


def carry_out(
    bootstrap: str, targets: Targets, cluster: Cluster, *, execute: bool, as_json: bool, throttle: int | None,
    wait: bool, timeout_s: float, before: Callable[[Admin], Awaitable[None]] | None = None,
) -> None:
    """Shows the plan; with `execute` begins it (after `before`), and with `wait` sees it end."""
    if not as_json:
        show_plan(cluster, targets)
    if not execute:
        if as_json:
            output.print_json(plan_document(targets) | {"executed": False})
        else:
            print("Nothing has been done: add --execute to do it.")
        return

    async def work(admin: Admin) -> list[Refused]:
        if before is not None:
            await before(admin)
        if throttle is not None:
            await admin.set_throttle(throttle)
        refused = await admin.alter_reassignments(targets) if targets else []
        if wait:
            await until_ended(admin, targets, timeout_s)
        return refused

    refused = administer(bootstrap, work)
    if as_json:
        why = {partition_name(each.partition): each.reason for each in refused}
        output.print_json(plan_document(targets) | {"executed": True, "refused": why})
    elif not refused:
        print("All moved." if wait else "Begun; `hapax reassign list` shows what still moves.")
    end_with(refused)


def end_with(refused: Sequence[Refused]) -> None:
    """What the cluster refused, one line each, and the exit code that says so."""
    if refused:
        output.fail("; ".join(f"{partition_name(each.partition)}: {each.reason}" for each in refused))


async def until_ended(admin: Admin, targets: Mapping[TopicPartition, object], timeout_s: float) -> None:
    """Returns when none of these partitions moves any more."""
    shown = -1
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                open_ = [each for each in await admin.list_reassignments() if each.partition in targets]
                if len(open_) != shown:
                    shown = len(open_)
                    output.note(f"{len(targets) - shown} of {len(targets)} partitions have moved")
                if not open_:
                    return
                await asyncio.sleep(_LOOK_EVERY_S)
    except TimeoutError:
        output.fail(f"{shown} partitions still move after {timeout_s:g} s; they go on by themselves")
