"""`hapax txn ...`."""

from __future__ import annotations

from typing import Annotated

import typer

from hapax.cli import output
from hapax.cli.administration import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, administer

app = typer.Typer(help="Transactions: list, describe, abort a hanging one.", no_args_is_help=True)

TransactionalId = Annotated[str, typer.Argument(metavar="TRANSACTIONAL_ID")]


@app.command("list")
def list_transactions(
    state: Annotated[list[str] | None, typer.Option(help="Ongoing, PrepareCommit, ...; repeatable.")] = None,
    pattern: Annotated[str | None, typer.Option(help="Regular expression over transactional ids.")] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """List the transactional ids that the coordinators know."""
    found = administer(bootstrap, lambda cluster: cluster.transactions(state or (), pattern))
    output.print_records(as_json, "", found, ("transactional_id", "producer_id", "state", "coordinator"))


@app.command()
def describe(
    transactional_id: TransactionalId, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: AsJson = False
) -> None:
    """Show one transactional id: producer, state, and the partitions of its open transaction."""
    found = administer(bootstrap, lambda cluster: cluster.describe_transaction(transactional_id))
    if as_json:
        output.print_json(found)
    else:
        output.print_table("", ("field", "value"), [(name, value) for name, value in found.items()])


@app.command()
def abort(
    transactional_id: Annotated[str | None, typer.Argument(metavar="[TRANSACTIONAL_ID]")] = None,
    topic: Annotated[str | None, typer.Option(help="With --partition and --producer-id, instead of an id.")] = None,
    partition: Annotated[int | None, typer.Option()] = None,
    producer_id: Annotated[int | None, typer.Option()] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Abort the open transaction of an id, which fences its producer; or, by topic, partition and producer id, one
    that no coordinator knows."""
    if transactional_id is not None:
        if topic is not None or partition is not None or producer_id is not None:
            output.fail("either a transactional id, or --topic, --partition and --producer-id", output.USAGE)
        name = transactional_id
        done = administer(bootstrap, lambda cluster: cluster.abort_transaction(name))
    elif topic is not None and partition is not None and producer_id is not None:
        chosen = (topic, partition, producer_id)
        done = administer(bootstrap, lambda cluster: cluster.abort_hanging(*chosen))
    else:
        output.fail("a transactional id, or --topic, --partition and --producer-id", output.USAGE)
    output.print_records(as_json, "", [done], tuple(done))
