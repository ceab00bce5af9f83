"""`hapax group ...`: what groups have committed, how far behind they are, and putting them elsewhere."""

from __future__ import annotations

from typing import Annotated, Any

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
from hapax.cli.moves import Execute
from hapax.client import Admin
from hapax.client.groups import Move, ResetTo, carry_out_reset, plan_reset

app = typer.Typer(help="Groups: offsets, lag, reset, delete.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="GROUP")]
Topics = Annotated[list[str] | None, typer.Option("--topic", metavar="TOPIC", help="Repeatable.")]


@app.command("list")
def list_groups(
    prefix: Annotated[str, typer.Option(help="Only names that begin so.")] = "",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """List the groups that have committed offsets."""
    found = administer(bootstrap, lambda admin: admin.list_groups(prefix))
    output.print_records(as_json, "", [each._asdict() for each in found], ("group", "committed", "pending", "members"))


@app.command()
def offsets(name: Name, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: AsJson = False) -> None:
    """Show what a group has committed."""
    found = administer(bootstrap, lambda admin: admin.group_offsets(name))
    rows = [{"partition": partition_name(each), **held._asdict()} for each, held in sorted(found.items())]
    output.print_records(as_json, name, rows, ("partition", "offset", "pending", "committed_ms", "metadata"))


@app.command()
def lag(
    name: Name,
    topics: Topics = None,
    count: Annotated[bool, typer.Option(help="Count what a read_committed reader will be given.")] = True,
    max_bytes: Annotated[int, typer.Option(help="Bytes of the logs to read for that at most.", min=1)] = 32 << 20,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Show how far behind a group is: in offsets, and in records that a read_committed reader will really be given."""
    found = administer(
        bootstrap, lambda admin: admin.group_lag(name, count_bytes=max_bytes if count else 0, topics=topics or ()))
    rows = [
        {"partition": partition_name(each), **one._asdict(), "lag": one.records}
        for each, one in sorted(found.items())]
    columns = ("partition", "committed", "last_stable", "high_watermark", "lag", "readable", "counted_to")
    output.print_records(as_json, name, rows, columns)


@app.command()
def reset(
    name: Name,
    topics: Annotated[list[str], typer.Option("--topic", metavar="TOPIC", help="Repeatable.")],
    partition: Annotated[list[int] | None, typer.Option(help="Repeatable; default: all.")] = None,
    earliest: Annotated[bool, typer.Option("--earliest", help="Where the log begins.")] = False,
    latest: Annotated[bool, typer.Option("--latest", help="Where it ends.")] = False,
    time_ms: Annotated[int | None, typer.Option(help="At the first record of this time or later.", min=0)] = None,
    offset: Annotated[int | None, typer.Option(min=0)] = None,
    shift: Annotated[int | None, typer.Option(help="By so many offsets from where it is.")] = None,
    execute: Execute = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Show where a group would go on, and with --execute make it so."""
    if sum(each is not None for each in (earliest or None, latest or None, time_ms, offset, shift)) != 1:
        output.fail("say one of --earliest, --latest, --time-ms, --offset and --shift", output.USAGE)

    async def work(admin: Admin) -> list[Move]:
        chosen = [each for topic in topics for each in await find_partitions(admin, topic, partition)]
        moves = await plan_reset(admin, name, chosen, ResetTo(earliest, latest, time_ms, offset, shift))
        if execute:
            await carry_out_reset(admin, name, moves)
        return moves

    rows: list[dict[str, Any]] = [
        {"partition": partition_name(each.partition), "before": each.before, "after": each.after}
        for each in administer(bootstrap, work)]
    output.print_records(as_json, name, rows, ("partition", "before", "after"))
    if not execute and not as_json:
        print("Nothing has been done: add --execute to do it.")


@app.command()
def delete(
    name: Name,
    topics: Topics = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Forget a group and all that it has committed, or only what it has of some topics."""

    async def work(admin: Admin) -> int:
        if not topics:
            return await admin.delete_group_offsets(name)
        chosen = [each for each in await admin.group_offsets(name) if each.topic in topics]
        return await admin.delete_group_offsets(name, chosen)

    print(f"{administer(bootstrap, work)} offsets forgotten.")
