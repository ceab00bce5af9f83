"""What `hapax reassign`, `drain` and `replicas` share: a plan that is shown before it acts, and its progress."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from hapax.cli import output
from hapax.cli.administration import administer, partition_name
from hapax.client import Admin, FatalError, Refused, TopicPartition
from hapax.client.plans import Placement, plan_document, plan_steps, read_plan_document
from hapax.core.cluster.moves import ImpossiblePlan, Targets
from hapax.core.cluster.placement import Site
from hapax.core.types import PartitionIndex

Execute = Annotated[bool, typer.Option("--execute", "--yes", help="Do it; without, the plan is shown only.")]
Throttle = Annotated[
    int | None,
    typer.Option(help="Most bytes per second that each broker copies for it; until all moves have ended.", min=0),
]
Wait = Annotated[bool, typer.Option("--wait", help="Return when all of it has ended; shows the progress on stderr.")]
TimeoutS = Annotated[float, typer.Option("--timeout", help="Seconds to wait at most.", min=0)]

T = TypeVar("T")

_LOOK_EVERY_S = 0.5
_LOOKS = 10


def sites(cluster: Placement, only: Sequence[int] | None = None) -> list[Site]:
    """Live brokers that are fit, or those chosen. Ends the command for one that is not alive."""
    return _or_end(lambda: cluster.sites(only))


def check_topics(cluster: Placement, names: Sequence[str]) -> None:
    """Ends the command for one that does not exist."""
    _or_end(lambda: cluster.check_topics(names))


def _or_end(ask: Callable[[], T]) -> T:
    try:
        return ask()
    except FatalError as error:
        output.fail(str(error), output.NOT_FOUND)


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
        return read_plan_document(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError) as error:
        output.fail(f"{path}: not a plan: {error!r}", output.USAGE)


def show_plan(cluster: Placement, targets: Targets) -> None:
    steps = plan_steps(cluster, targets)
    rows = [
        {
            "partition": partition_name(each.partition), "replicas": output.joined(each.before),
            "becomes": output.joined(each.after), "copied to": output.joined(each.copied_to),
            "removed from": output.joined(each.removed_from),
        }
        for each in steps]
    title = f"{len(rows)} partitions, {sum(len(each.copied_to) for each in steps)} replicas to copy"
    output.print_records(False, title, rows, ("partition", "replicas", "becomes", "copied to", "removed from"))


def carry_out(
    bootstrap: str, targets: Targets, cluster: Placement, *, execute: bool, as_json: bool, throttle: int | None,
    wait: bool, timeout_s: float, drained: int | None = None,
) -> None:
    """Shows the plan; with `execute` begins it, and with `wait` sees it end. `drained`: a broker that is marked first,
    and that holds nothing at the end."""
    if not as_json:
        show_plan(cluster, targets)
    if not execute:
        if as_json:
            output.print_json(plan_document(targets) | {"executed": False})
        else:
            print("Nothing has been done: add --execute to do it.")
        return

    async def work(admin: Admin) -> list[Refused]:
        if drained is not None:
            await admin.set_draining([drained], True)
        if throttle is not None:
            await admin.set_throttle(throttle)
        refused = await admin.alter_reassignments(targets) if targets else []
        if wait:
            await until_ended(admin, targets, timeout_s)
            told = {each.partition for each in refused}
            for _ in range(_LOOKS):  # the node that answers may not have seen the end yet
                left = [each for each in await _not_there(admin, targets, drained) if each.partition not in told]
                if not left:
                    break
                await asyncio.sleep(_LOOK_EVERY_S)
            refused += left
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


async def _not_there(admin: Admin, targets: Targets, drained: int | None) -> list[Refused]:
    """That nothing moves does not say that all has moved: others cancel moves, and a topic made while the plan was
    would lie where it shall not. A partition that is gone is no concern of the plan."""
    found: list[Refused] = []
    for topic in await admin.list_topics():
        for each in topic.partitions:
            name = TopicPartition(topic.name, PartitionIndex(each.partition))
            if name in targets and set(each.replicas) != set(targets[name]):
                found.append(Refused(name, 0, "its move ended without reaching its replicas: it was taken back"))
            elif drained is not None and drained in each.replicas:
                found.append(Refused(name, 0, f"is on broker {drained} and was not in the plan: drain it again"))
    return found


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
