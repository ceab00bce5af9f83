"""`hapax txn ...`: lists, describes and aborts transactions."""

from __future__ import annotations

import socket
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
from hapax.client import Admin, TransactionInfo
from hapax.runtime.clock import SystemClock

app = typer.Typer(no_args_is_help=True)

TransactionalId = Annotated[str, typer.Argument(metavar="TRANSACTIONAL_ID")]


@app.command("list")
def list_transactions(
    state: Annotated[
        list[str] | None, typer.Option(help="Only this state, such as Ongoing or PrepareCommit. Repeatable.")
    ] = None,
    producer_id: Annotated[list[int] | None, typer.Option(help="Only this producer id. Repeatable.")] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """List the transactional ids that the coordinators keep."""
    found = administer(
        bootstrap, lambda admin: admin.list_transactions(states=state or (), producer_ids=producer_id or ()))
    columns = ("transactional_id", "producer_id", "state")
    output.print_records(as_json, "", [{name: getattr(each, name) for name in columns} for each in found], columns)


@app.command()
def describe(
    transactional_id: TransactionalId, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: AsJson = False
) -> None:
    """Show one transactional id: producer, state, and the partitions of its open transaction."""
    (found,) = administer(bootstrap, lambda admin: admin.describe_transactions([transactional_id]))
    _print(found, as_json)


@app.command()
def hanging(
    older_than_ms: Annotated[
        int, typer.Option(help="Also list transactions without a write for this many milliseconds.", min=0)
    ] = 900_000,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """List transactions that are open on partitions but not at a coordinator, or without a write for a long time."""
    found = administer(bootstrap, lambda admin: admin.find_hanging(SystemClock().now_ms(), older_than_ms))
    rows = [each._asdict() | {"partition": partition_name(each.partition)} for each in found]
    columns = ("partition", "producer_id", "first_offset", "last_timestamp_ms", "transactional_id", "why")
    output.print_records(as_json, "", rows, columns)


@app.command()
def abort(
    transactional_id: Annotated[str | None, typer.Argument(metavar="[TRANSACTIONAL_ID]")] = None,
    topic: Annotated[
        str | None, typer.Option(help="With --partition and --producer-id, in place of a transactional id.")
    ] = None,
    partition: Annotated[int | None, typer.Option(help="With --topic.")] = None,
    producer_id: Annotated[int | None, typer.Option(help="With --topic: the producer of the open transaction.")] = None,
    first_offset: Annotated[
        int | None, typer.Option(help="With --topic: only the transaction that begins at this offset.", min=0)
    ] = None,
    reason: Annotated[str, typer.Option(help="Shown to the fenced producer, and recorded as an event.")] = "",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Abort the open transaction of a transactional id and fence its producer; or abort a hanging transaction, given
    its topic, partition and producer id."""
    place = (topic, partition, producer_id)
    if transactional_id is not None and place == (None, None, None):
        name = transactional_id

        async def fence(admin: Admin) -> TransactionInfo:
            by = f"hapax txn abort: {reason}" if reason else "hapax txn abort"
            await admin.fence_and_abort(name, by=by, where=socket.gethostname())
            (ended,) = await admin.describe_transactions([name])
            return ended

        _print(administer(bootstrap, fence), as_json)
    elif transactional_id is None and topic is not None and partition is not None and producer_id is not None:
        where, index, producer = topic, partition, producer_id

        async def abort_hanging(admin: Admin) -> None:
            (chosen,) = await find_partitions(admin, where, [index])
            if not await admin.abort_hanging(chosen, producer, first_offset):
                output.fail(
                    f"producer {producer} has no such open transaction in {partition_name(chosen)}", output.NOT_FOUND)

        administer(bootstrap, abort_hanging)
    else:
        output.fail("give a transactional id, or --topic, --partition and --producer-id", output.USAGE)


def _print(found: TransactionInfo, as_json: bool) -> None:
    fields: dict[str, Any] = found._asdict()
    fields["partitions"] = [partition_name(each) for each in found.partitions]
    if as_json:
        output.print_json(fields)
    else:
        rows = [(name, " ".join(value) if isinstance(value, list) else value) for name, value in fields.items()]
        output.print_table("", ("field", "value"), rows)
