"""`hapax producers ...`: the state that partitions keep for producers."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from hapax.cli import output
from hapax.cli.administration import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    PartitionNumbers,
    administer,
    find_partitions,
    partition_name,
)
from hapax.client import Admin

app = typer.Typer(no_args_is_help=True)


@app.command()
def describe(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    partitions: PartitionNumbers = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Show the producers of a topic's partitions, and the first offsets of their open transactions (-1: none)."""

    async def describe_all(admin: Admin) -> list[dict[str, Any]]:
        return [
            {"partition": each.partition, **producer._asdict()}
            for each in await find_partitions(admin, topic, partitions)
            for producer in sorted(await admin.describe_producers(each))
        ]

    found = administer(bootstrap, describe_all)
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
    """Show the state that each partition of the cluster keeps for one producer."""
    found = administer(bootstrap, lambda admin: admin.partition_producers(None, [producer_id]))
    rows = [each._asdict() | {"partition": partition_name(each.partition)} for each in found]
    columns = (
        "partition", "producer_epoch", "last_sequence", "last_offset", "records", "transaction_start_offset",
        "transactional_id",
    )  # fmt: skip
    output.print_records(as_json, str(producer_id), rows, columns)
