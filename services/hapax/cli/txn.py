"""`hapax txn ...`: lists, describes, aborts and commits transactions."""

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
from hapax.client.errors import FatalError
from hapax.client.producer import PreparedTransaction
from hapax.client.producers import ABORT_BREAKS_PROMISE, COMMIT_BREAKS_PROMISE
from hapax.core.errors import ErrorCode
from hapax.runtime.clock import SystemClock

app = typer.Typer(no_args_is_help=True)

TransactionalId = Annotated[str, typer.Argument(metavar="TRANSACTIONAL_ID")]


@app.command("list")
def list_transactions(
    state: Annotated[
        list[str] | None, typer.Option(help="Only this state, such as Ongoing or PrepareCommit. Repeatable.")
    ] = None,
    producer_id: Annotated[list[int] | None, typer.Option(help="Only this producer id. Repeatable.")] = None,
    open_longer_than_ms: Annotated[
        int, typer.Option(help="Only transactions that began longer ago than this many milliseconds. -1: all.", min=-1)
    ] = -1,
    pattern: Annotated[str, typer.Option(help="Only ids that match this, such as 'team-a-.*'.")] = "",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """List the transactional ids that the coordinators keep."""
    found = administer(bootstrap, lambda admin: admin.list_transactions(
        states=state or (), producer_ids=producer_id or (), open_longer_than_ms=open_longer_than_ms, pattern=pattern))
    columns = ("transactional_id", "producer_id", "state")
    output.print_records(as_json, "", [{name: getattr(each, name) for name in columns} for each in found], columns)


@app.command("two-phase")
def list_two_phase(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: AsJson = False) -> None:
    """List the open transactions under two-phase commit, with the identities that their producers saved. They have no
    time limit. If its producer is gone for good, end one with `hapax txn commit` or `hapax txn abort`, as the system
    that decides it says."""
    found = administer(bootstrap, lambda admin: admin.list_two_phase())
    rows = [
        {
            "transactional_id": each.transactional_id, "producer_id": each.producer_id,
            "producer_epoch": each.producer_epoch, "started_ms": each.started_ms, "partitions": len(each.partitions),
        }
        for each in found]
    output.print_records(
        as_json, "", rows, ("transactional_id", "producer_id", "producer_epoch", "started_ms", "partitions"))


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


Prepared = Annotated[
    str | None, typer.Option(
        metavar="PRODUCER_ID:EPOCH", help="Only this transaction under two-phase commit, as its producer saved it.")
]


@app.command()
def commit(
    transactional_id: TransactionalId,
    serial: Annotated[
        int | None, typer.Option(
            help="In place of --prepared: the transaction's serial, from REST's description.", min=1)
    ] = None,
    prepared: Prepared = None,
    reason: Annotated[str, typer.Option(help="Shown to the fenced producer, and recorded as an event.")] = "",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Commit the open transaction of a transactional id that is under two-phase commit, in the place of its producer,
    which is fenced. Only do so if the system that decides it has committed: Hapax does not know whether it is
    prepared. Name the transaction: its program may have come back since you looked, and be writing the next one."""
    name = _prepared(prepared)
    if (name is None) == (serial is None):
        output.fail("give --prepared PRODUCER_ID:EPOCH, as `hapax txn two-phase` lists it, or --serial", output.USAGE)

    async def work(admin: Admin) -> TransactionInfo:
        wanted = serial if name is None else await _serial_of(admin, transactional_id, name)
        assert wanted is not None
        by = f"hapax txn commit: {reason}" if reason else "hapax txn commit"
        before = await admin.commit_prepared(transactional_id, serial=wanted, by=by, where=socket.gethostname())
        if before.two_phase and before.serial == wanted:
            output.note(f"warning: {COMMIT_BREAKS_PROMISE}")
        (ended,) = await admin.describe_transactions([transactional_id])
        return ended

    _print(administer(bootstrap, work), as_json)


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
    prepared: Prepared = None,
    reason: Annotated[str, typer.Option(help="Shown to the fenced producer, and recorded as an event.")] = "",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Abort the open transaction of a transactional id and fence its producer; or abort a hanging transaction, given
    its topic, partition and producer id."""
    place = (topic, partition, producer_id)
    named = _prepared(prepared)
    if named is not None and transactional_id is None:
        output.fail("--prepared names a transaction of a transactional id", output.USAGE)
    if transactional_id is not None and place == (None, None, None):
        name = transactional_id

        async def fence(admin: Admin) -> TransactionInfo:
            by = f"hapax txn abort: {reason}" if reason else "hapax txn abort"
            serial = 0 if named is None else await _serial_of(admin, name, named)
            before = await admin.fence_and_abort(name, by=by, where=socket.gethostname(), serial=serial)
            if before.two_phase:
                output.note(f"warning: {ABORT_BREAKS_PROMISE}")
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


def _prepared(text: str | None) -> PreparedTransaction | None:
    if text is None:
        return None
    try:
        return PreparedTransaction.parse(text)
    except ValueError:
        output.fail(f"--prepared {text}: not of the form PRODUCER_ID:EPOCH", output.USAGE)


async def _serial_of(admin: Admin, transactional_id: str, prepared: PreparedTransaction) -> int:
    """Raises FatalError where another transaction is open, or none."""
    found = await admin.describe_transactional_id(transactional_id)
    named = PreparedTransaction(found.producer_id, found.producer_epoch)
    if found.state != "Ongoing" or named != prepared:
        raise FatalError(
            f"transaction {prepared} of {transactional_id!r} is not open: {named} is {found.state}",
            code=ErrorCode.INVALID_TXN_STATE)
    return found.serial


def _print(found: TransactionInfo, as_json: bool) -> None:
    fields: dict[str, Any] = found._asdict()
    fields["partitions"] = [partition_name(each) for each in found.partitions]
    if as_json:
        output.print_json(fields)
    else:
        rows = [(name, " ".join(value) if isinstance(value, list) else value) for name, value in fields.items()]
        output.print_table("", ("field", "value"), rows)
