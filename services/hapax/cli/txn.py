"""`hapax txn ...`: lists, describes, aborts and commits transactions."""

from __future__ import annotations

import socket
from collections.abc import Sequence
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
from hapax.client.producers import ABORT_BREAKS_PROMISE, COMMIT_BREAKS_PROMISE, TransactionDetail
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
    name = None if prepared is None else _prepared(prepared, "--prepared")
    if (name is None) == (serial is None):
        output.fail("give --prepared PRODUCER_ID:EPOCH, as `hapax txn prepared` lists it, or --serial", output.USAGE)

    async def work(admin: Admin) -> TransactionInfo:
        wanted = serial if name is None else await _serial_of(admin, transactional_id, name)
        assert wanted is not None
        await _decide(admin, transactional_id, wanted, True, "commit", reason)
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
    named = None if prepared is None else _prepared(prepared, "--prepared")
    if named is not None and transactional_id is None:
        output.fail("--prepared names a transaction of a transactional id", output.USAGE)
    if transactional_id is not None and place == (None, None, None):
        name = transactional_id

        async def fence(admin: Admin) -> TransactionInfo:
            serial = 0 if named is None else await _serial_of(admin, name, named)
            await _decide(admin, name, serial, False, "abort", reason)
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


@app.command("prepared")
def list_or_decide_prepared(
    commit_names: Annotated[
        list[str] | None, typer.Option("--commit", metavar="PRODUCER_ID:EPOCH", help="Commit this one. Repeatable.")
    ] = None,
    abort_names: Annotated[
        list[str] | None, typer.Option("--abort", metavar="PRODUCER_ID:EPOCH", help="Abort this one. Repeatable.")
    ] = None,
    reason: Annotated[str, typer.Option(help="Shown to the fenced producer, and recorded as an event.")] = "",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """List the open transactions under two-phase commit: since when, by whom and where. They have no time limit. If
    its producer is gone for good, decide one with --commit or --abort, as the system says that its producer prepared
    it for, and by the name that is stored there. Hapax does not know which of them are prepared."""
    decisions = [(name, True) for name in commit_names or ()] + [(name, False) for name in abort_names or ()]
    wanted = [(_prepared(name, "--commit" if commits else "--abort"), commits) for name, commits in decisions]
    names = [name for name, _ in wanted]
    if len(set(names)) < len(names):
        output.fail("a transaction is named twice", output.USAGE)

    async def work(admin: Admin) -> list[TransactionDetail]:
        found = await _open_two_phase(admin)
        if not wanted:
            return found
        by_name = {PreparedTransaction(each.producer_id, each.producer_epoch): each for each in found}
        missing = [str(name) for name in names if name not in by_name]
        if missing:
            raise FatalError(
                f"no open transaction under two-phase commit has the name {', '.join(missing)}; nothing was decided",
                code=ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
        ended = []
        for name, commits in wanted:
            chosen = by_name[name]
            await _decide(admin, chosen.transactional_id, chosen.serial, commits, "prepared", reason)
            now = await admin.describe_transactional_id(chosen.transactional_id)
            ended.append(chosen._replace(state=now.state))  # the others are its producer's next ones
        return ended

    _print_prepared(administer(bootstrap, work), as_json)


async def _open_two_phase(admin: Admin) -> list[TransactionDetail]:
    found = []
    for each in await admin.list_two_phase():
        detail = await admin.describe_transactional_id(each.transactional_id)
        if detail.two_phase and detail.state == "Ongoing":  # otherwise it has ended meanwhile
            found.append(detail)
    return found


async def _decide(
    admin: Admin, transactional_id: str, serial: int, commits: bool, command: str, reason: str
) -> None:
    """Ends the transaction with this serial. Warns if it was open and under two-phase commit."""
    by = f"hapax txn {command}: {reason}" if reason else f"hapax txn {command}"
    end = admin.commit_prepared if commits else admin.fence_and_abort
    before = await end(transactional_id, serial=serial, by=by, where=socket.gethostname())
    if before.two_phase and (not serial or before.serial == serial):
        output.note(f"warning: {COMMIT_BREAKS_PROMISE if commits else ABORT_BREAKS_PROMISE}")


def _print_prepared(found: Sequence[TransactionDetail], as_json: bool) -> None:
    now_ms = SystemClock().now_ms()
    rows = [
        {
            "transactional_id": each.transactional_id,
            "prepared": str(PreparedTransaction(each.producer_id, each.producer_epoch)),
            "producer_id": each.producer_id, "producer_epoch": each.producer_epoch, "serial": each.serial,
            "state": each.state, "started_ms": each.opened_ms,
            "open_for_ms": max(0, now_ms - each.opened_ms) if each.opened_ms >= 0 else None, "holder": each.holder,
            "partition_count": each.partition_count, "partitions": [partition_name(p) for p in each.partitions],
        }
        for each in found]
    if as_json:
        output.print_json(rows)
        return
    shown = [{**row, "partitions": " ".join(row["partitions"])} for row in rows]  # type: ignore[arg-type]
    columns = ("transactional_id", "prepared", "state", "started_ms", "open_for_ms", "holder", "partitions")
    output.print_records(False, "", shown, columns)


def _prepared(text: str, option: str) -> PreparedTransaction:
    try:
        return PreparedTransaction.parse(text)
    except ValueError:
        output.fail(f"{option} {text}: not of the form PRODUCER_ID:EPOCH", output.USAGE)


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
