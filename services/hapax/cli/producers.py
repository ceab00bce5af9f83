"""`hapax producers ...`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from hapax.cli import output
from hapax.cli.administration import DEFAULT_BOOTSTRAP, Administration, AsJson, Bootstrap, administer

app = typer.Typer(help="Producers, per partition.", no_args_is_help=True)


@app.command()
def describe(
    topic: str,
    partition: Annotated[list[int] | None, typer.Option(help="Repeatable; default: all.")] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Show the producers that a topic's partitions know, and where their open transactions began."""

    async def work(cluster: Administration) -> list[dict[str, Any]]:
        return await cluster.producers(topic, await cluster.partitions_of(topic, partition))

    found = administer(bootstrap, work)
    columns = ("partition", "producer_id", "producer_epoch", "last_sequence", "last_timestamp", "transaction_start")
    output.print_records(as_json, topic, found, columns)
