"""What `hapax reassign`, `drain` and `replicas` share: they show a plan, carry it out and show its progress."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final, TypeVar

import typer

from hapax.cli import output
from hapax.cli.administration import administer, partition_name
from hapax.client import Admin, FatalError, Refused, TopicPartition
from hapax.client.plans import Placement, plan_document, plan_steps, read_plan_document
from hapax.core.cluster.moves import ImpossiblePlan, Targets
from hapax.core.cluster.placement import Site
from hapax.core.types import PartitionIndex

Execute = Annotated[bool, typer.Option("--execute", "--yes", help="Carry the plan out. Default: only show it.")]
Throttle = Annotated[
    int | None,
    typer.Option(help="Bytes per second that each broker may copy, until all moves have ended.", min=0),
]
Wait = Annotated[bool, typer.Option("--wait", help="Return once all moves have ended. Progress goes to stderr.")]
TimeoutS = Annotated[float, typer.Option("--timeout", help="Wait for at most this many seconds.", min=0)]

NOTHING_DONE: Final = "Nothing was changed. Add --execute to carry this out."

T = TypeVar("T")

_CHECK_EVERY_S = 0.5
_CHECKS = 10


def sites(cluster: Placement, only: Sequence[int] | None = None) -> list[Site]:
    """Brokers that may get replicas: the chosen ones, or all that are alive and fit. Ends the command if a chosen one
    is not alive."""
    return _or_end(lambda: cluster.sites(only))


def check_topics(cluster: Placement, names: Sequence[str]) -> None:
    """Ends the command if one does not exist."""
    _or_end(lambda: cluster.check_topics(names))


def _or_end(find: Callable[[], T]) -> T:
    try:
        return find()
    except FatalError as error:
        output.fail(str(error), output.NOT_FOUND)


def numbers(text: str) -> list[int]:
    """Reads a list of broker ids such as `0,2,1`. Ends the command if it is none."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        output.fail(f"{text!r} is not a list of broker ids such as 0,2,1", output.USAGE)


def planned(make: Callable[[], Targets]) -> Targets:
    """Returns what `make` returns. An impossible plan ends the command with its reason."""
    try:
        return make()
    except ImpossiblePlan as error:
        output.fail(str(error))


def read_plan(path: Path) -> Targets:
    """Reads a plan in the format of Kafka's tools: `{"version":1,"partitions":[{"topic","partition","replicas"}]}`."""
    try:
        return read_plan_document(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError) as error:
        output.fail(
            f"{path} is not a plan in the format of kafka-reassign-partitions: {error!r}", output.USAGE)


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
    """Shows the plan. With `execute`, begins it; with `wait`, also waits for its end. `drained`: a broker that is
    marked as draining first and must hold no replica at the end."""
    if not as_json:
        show_plan(cluster, targets)
    if not execute:
        if as_json:
            output.print_json(plan_document(targets) | {"executed": False})
        else:
            print(NOTHING_DONE)
        return

    async def execute_plan(admin: Admin) -> list[Refused]:
        if drained is not None:
            await admin.set_draining([drained], True)
        if throttle is not None:
            await admin.set_throttle(throttle)
        refused = await admin.alter_reassignments(targets) if targets else []
        if wait:
            await until_ended(admin, targets, timeout_s)
            reported = {each.partition for each in refused}
            for _ in range(_CHECKS):  # the answering node may not have seen the end yet
                left = [each for each in await _not_moved(admin, targets, drained) if each.partition not in reported]
                if not left:
                    break
                await asyncio.sleep(_CHECK_EVERY_S)
            refused += left
        return refused

    refused = administer(bootstrap, execute_plan)
    if as_json:
        reasons = {partition_name(each.partition): each.reason for each in refused}
        output.print_json(plan_document(targets) | {"executed": True, "refused": reasons})
    elif not refused:
        print("All moved." if wait else "The moves have begun. `hapax reassign list` shows those that still run.")
    end_with(refused)


def end_with(refused: Sequence[Refused]) -> None:
    """Ends the command with an error if the cluster refused anything, with each partition's reason."""
    if refused:
        output.fail("; ".join(f"{partition_name(each.partition)}: {each.reason}" for each in refused))


async def _not_moved(admin: Admin, targets: Targets, drained: int | None) -> list[Refused]:
    """Partitions that are not where the plan puts them although no move runs: another client may have cancelled a move,
    or created a topic on the drained broker after the plan was made. Deleted partitions do not count."""
    found: list[Refused] = []
    for topic in await admin.list_topics():
        for each in topic.partitions:
            name = TopicPartition(topic.name, PartitionIndex(each.partition))
            if name in targets and set(each.replicas) != set(targets[name]):
                found.append(Refused(name, 0, "its move ended before it reached its replicas: it was cancelled"))
            elif drained is not None and drained in each.replicas:
                found.append(Refused(name, 0, f"is on broker {drained} and was not in the plan; drain it again"))
    return found


async def until_ended(admin: Admin, targets: Mapping[TopicPartition, object], timeout_s: float) -> None:
    """Returns when none of these partitions is moving."""
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
                await asyncio.sleep(_CHECK_EVERY_S)
    except TimeoutError:
        output.fail(f"{shown} partitions are still moving after {timeout_s:g} s. The moves go on without this command")
