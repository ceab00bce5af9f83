"""`hapax group ...`: the members, offsets, lag and configuration of consumer groups, and changes to them."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from hapax.cli import output
from hapax.cli.administration import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    PartitionNumbers,
    Topics,
    administer,
    assignments,
    find_partitions,
    partition_name,
    print_config,
)
from hapax.cli.moves import NOTHING_DONE, Execute
from hapax.client import Admin
from hapax.client.groups import GroupDescription, Lag, Move, ResetTo, carry_out_reset, plan_reset

app = typer.Typer(no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="GROUP")]
_COUNTED = 32 << 20
"""Bytes of their logs that brokers read at most, to count records."""


@app.command("list")
def list_groups(
    prefix: Annotated[str, typer.Option(help="List only groups whose names begin with this.")] = "",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """List the groups that have members or committed offsets."""
    found = administer(bootstrap, lambda admin: admin.list_groups(prefix))
    columns = ("group", "protocol", "state", "members", "committed", "pending")
    output.print_records(as_json, "", [each._asdict() for each in found], columns)


@app.command()
def describe(
    name: Name,
    lag: Annotated[
        bool, typer.Option(help="Show the lag too, for which brokers read at most 32 MiB of their logs.")
    ] = True,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Show the members of a group, the partitions that each of them has, and the lag in each partition: in offsets up
    to the high watermark (lag), and in records that a read_committed reader will get (readable), which are those up to
    the last stable offset, without markers and aborted records."""
    found = administer(
        bootstrap, lambda admin: admin.describe_group(name, count_bytes=_COUNTED if lag else None))
    rows: list[dict[str, Any]] = [
        {**each._asdict(), "assigned": [partition_name(one) for one in each.assigned]} for each in found.members]
    partitions = _partitions(found)
    if as_json:
        output.print_json({**found._asdict(), "members": rows, "lag": partitions if lag else None})
        return
    for row in rows:
        row["assigned"] = " ".join(row["assigned"])
    columns = ("member_id", "instance_id", "client_id", "client_host", "epoch", "assigned")
    output.print_records(False, f"{name}: {found.protocol}, {found.state}", rows, columns)
    if partitions:
        output.print_records(
            False, "lag", partitions, ("partition", "member_id", "committed", "last_stable", "lag", "readable"))


def _partitions(found: GroupDescription) -> list[dict[str, Any]]:
    """One row for each partition that a member has or for which an offset is committed, if the lag was asked for."""
    if found.lag is None:
        return []
    had_by = {partition: each.member_id for each in found.members for partition in each.assigned}
    unknown = dict.fromkeys((*Lag._fields, "lag"))
    return [
        {"partition": partition_name(partition), "member_id": had_by.get(partition),
         **(unknown if (known := found.lag.get(partition)) is None else _lag_row(known))}
        for partition in sorted(had_by.keys() | found.lag.keys())]


def _lag_row(lag: Lag) -> dict[str, Any]:
    return {**lag._asdict(), "lag": lag.records}


@app.command()
def offsets(name: Name, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: AsJson = False) -> None:
    """Show the offsets that a group has committed."""
    found = administer(bootstrap, lambda admin: admin.group_offsets(name))
    rows = [{"partition": partition_name(each), **held._asdict()} for each, held in sorted(found.items())]
    output.print_records(as_json, name, rows, ("partition", "offset", "pending", "committed_ms", "metadata"))


@app.command()
def lag(
    name: Name,
    topics: Topics = None,
    count: Annotated[bool, typer.Option(help="Count the records that a read_committed reader will get.")] = True,
    max_bytes: Annotated[
        int, typer.Option(help="Read at most this many bytes of the logs to count.", min=1)
    ] = _COUNTED,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Show a group's lag, in offsets and in records that a read_committed reader will get."""
    found = administer(
        bootstrap, lambda admin: admin.group_lag(name, count_bytes=max_bytes if count else 0, topics=topics or ()))
    rows = [
        {"partition": partition_name(each), **_lag_row(one)}
        for each, one in sorted(found.items())]
    columns = ("partition", "committed", "last_stable", "high_watermark", "lag", "readable", "counted_to")
    output.print_records(as_json, name, rows, columns)


@app.command()
def configure(
    name: Name,
    config: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Such as consumer.session.timeout.ms=50000. Repeatable."),
    ] = None,
    reset: Annotated[
        list[str] | None, typer.Option("--reset", metavar="NAME", help="Reset to the coordinators' value. Repeatable.")
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Set and reset values of a group's configuration. The other values stay. The group need not exist yet; members of
    the consumer protocol follow at their next heartbeat."""
    chosen = assignments(config)
    if not chosen and not reset:
        output.fail("give --set or --reset", output.USAGE)
    changes: dict[str, str | None] = dict.fromkeys(reset or ())
    if twice := sorted(chosen.keys() & changes.keys()):
        output.fail(f"{twice[0]} is set and reset", output.USAGE)
    administer(bootstrap, lambda admin: admin.alter_group_config(name, changes | chosen))


@app.command()
def config(
    name: Annotated[
        str | None, typer.Argument(metavar="[GROUP]", help="Default: list the groups that are configured.")
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Show a group's configuration and the source of each value: the group, the coordinators' settings, or the default.
    Without a group, list those that have values of their own, also if they do not exist."""
    if name is None:
        groups = administer(bootstrap, lambda admin: admin.configured_groups())
        output.print_records(as_json, "", [{"group": each} for each in groups], ("group",))
        return
    print_config(as_json, administer(bootstrap, lambda admin: admin.group_config(name)))


@app.command()
def reset(
    name: Name,
    topics: Annotated[list[str], typer.Option("--topic", metavar="TOPIC", help="Reset this topic. Repeatable.")],
    partitions: PartitionNumbers = None,
    earliest: Annotated[bool, typer.Option("--earliest", help="To where the log begins.")] = False,
    latest: Annotated[bool, typer.Option("--latest", help="To where the log ends.")] = False,
    time_ms: Annotated[
        int | None, typer.Option(help="To the first record at or after this time, in ms since 1970.", min=0)
    ] = None,
    offset: Annotated[int | None, typer.Option(help="To this offset.", min=0)] = None,
    shift: Annotated[
        int | None, typer.Option(help="By this many offsets from the committed one. Negative: backwards.")
    ] = None,
    execute: Execute = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Show the offsets that a reset would commit for a group, and with --execute commit them."""
    if sum(each is not None for each in (earliest or None, latest or None, time_ms, offset, shift)) != 1:
        output.fail("give exactly one of --earliest, --latest, --time-ms, --offset and --shift", output.USAGE)

    async def plan(admin: Admin) -> list[Move]:
        chosen = [each for topic in topics for each in await find_partitions(admin, topic, partitions)]
        moves = await plan_reset(admin, name, chosen, ResetTo(earliest, latest, time_ms, offset, shift))
        if execute:
            await carry_out_reset(admin, name, moves)
        return moves

    rows: list[dict[str, Any]] = [
        {"partition": partition_name(each.partition), "before": each.before, "after": each.after}
        for each in administer(bootstrap, plan)]
    output.print_records(as_json, name, rows, ("partition", "before", "after"))
    if not execute and not as_json:
        print(NOTHING_DONE)


@app.command()
def delete(
    name: Name,
    topics: Topics = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Delete a group and all its offsets, or only its offsets in some topics."""

    async def delete_offsets(admin: Admin) -> int:
        if not topics:
            return await admin.delete_group_offsets(name)
        chosen = [each for each in await admin.group_offsets(name) if each.topic in topics]
        return await admin.delete_group_offsets(name, chosen)

    print(f"{administer(bootstrap, delete_offsets)} offsets deleted.")
