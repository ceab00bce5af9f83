"""`hapax producers ...`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from hapax.cli import output
from hapax.cli.administration import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, administer, find_partitions, partition_name
from hapax.client import Admin

app = typer.Typer(help="Producers, per partition.", no_args_is_help=True)


@app.callback()
def group() -> None:
    """Producers, per partition."""


@app.command()
def describe(
    topic: str,
    partition: Annotated[list[int] | None, typer.Option(help="Repeatable; default: all.")] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Show the producers that a topic's partitions know, and where their open transactions began (-1: none)."""

    async def work(admin: Admin) -> list[dict[str, Any]]:
        return [
            {"partition": each.partition, **producer._asdict()}
            for each in await find_partitions(admin, topic, partition)
            for producer in sorted(await admin.describe_producers(each))
        ]

    found = administer(bootstrap, work)
    columns = (
        "partition", "producer_id", "producer_epoch", "last_sequence", "last_timestamp_ms", "transaction_start_offset",
    )  # fmt: skip
    output.print_records(as_json, topic, found, columns)


@app.command()
def show(
    producer_id: Annotated[int, typer.Argument(metavar="PRODUCER_ID", min=0)],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Show what each partition of the cluster knows of one producer."""
    found = administer(bootstrap, lambda admin: admin.partition_producers(None, [producer_id]))
    rows = [each._asdict() | {"partition": partition_name(each.partition)} for each in found]
    columns = (
        "partition", "producer_epoch", "last_sequence", "last_offset", "records", "transaction_start_offset",
        "transactional_id",
    )  # fmt: skip
    output.print_records(as_json, str(producer_id), rows, columns)
