"""`hapax lease ...`: leases of producer ids, for producers that manage their own recovery."""

from __future__ import annotations

import os
import socket
from collections.abc import Awaitable, Callable
from typing import Annotated, TypeVar

import typer

from hapax.cli import output
from hapax.cli.administration import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    administer,
    client_options,
    connected,
    find_partitions,
    finish,
    partition_name,
)
from hapax.client import Admin, Lease, Leases, TopicPartition

app = typer.Typer(no_args_is_help=True)

T = TypeVar("T")
LeaseName = Annotated[str, typer.Argument(metavar="NAME")]
Partitions = Annotated[
    list[str],
    typer.Option(
        "--partition", metavar="TOPIC[:PARTITION]", help="A partition, or all partitions of a topic. Repeatable."),
]


@app.command("list")
def list_leases(
    prefix: Annotated[str, typer.Option(help="List only leases whose names begin with this.")] = "",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """List the leases."""
    found = [
        each._asdict() | {"partitions": [partition_name(one) for one in each.partitions]}
        for each in _lease(bootstrap, lambda leases: leases.list(prefix))
    ]
    output.print_records(as_json, "", found, ("name", "producer_id", "generation", "holder", "expires_at_ms"))


@app.command()
def take(
    name: LeaseName,
    partitions: Partitions,
    expire_ms: Annotated[int, typer.Option(help="Milliseconds until the lease expires.", min=1)] = 600_000,
    holder: Annotated[
        str, typer.Option(help="Your name, shown to the client that loses the lease. Default: host and pid.")
    ] = "",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Take a lease. If another client holds it, that client's writes are refused from now on."""
    chosen = administer(bootstrap, lambda admin: _partitions(admin, partitions))
    who = holder or f"{socket.gethostname()}:{os.getpid()}"
    taken = _lease(bootstrap, lambda leases: leases.take(name, chosen, expire_ms=expire_ms, holder=who))
    rows = [
        {"partition": partition_name(each), "next_sequence": sequence, "records": taken.progress[each]}
        for each, sequence in sorted(taken.next_sequences.items())
    ]
    if as_json:
        single = ("name", "producer_id", "generation", "expires_at_ms", "former_holder")
        output.print_json({each: getattr(taken, each) for each in single} | {"partitions": rows})
        return
    title = f"{taken.name}: producer {taken.producer_id}, generation {taken.generation}"
    if taken.former_holder:
        title += f", taken over from {taken.former_holder}"
    output.print_records(False, title, rows, ("partition", "next_sequence", "records"))


@app.command()
def release(
    name: LeaseName,
    producer_id: Annotated[int, typer.Option(help="As shown by `hapax lease list`.")],
    generation: Annotated[int, typer.Option(help="As shown by `hapax lease list`.")],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Release a lease."""
    held = Lease(name, producer_id, generation, -1, {}, {}, None)
    _lease(bootstrap, lambda leases: leases.release(held))


@app.command()
def progress(name: LeaseName, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: AsJson = False) -> None:
    """Show how many records of the lease's producer each partition holds, over all generations."""
    found = [
        {"partition": partition_name(each), **held._asdict()}
        for each, held in sorted(_lease(bootstrap, lambda leases: leases.progress(name)).items())
    ]
    columns = ("partition", "records", "generation", "last_sequence", "last_offset")
    output.print_records(as_json, name, found, columns)


def _lease(bootstrap: str, task: Callable[[Leases], Awaitable[T]]) -> T:
    async def run() -> T:
        async with connected(Leases(client_options(bootstrap))) as leases:
            return await task(leases)

    return finish(run())


async def _partitions(admin: Admin, names: list[str]) -> list[TopicPartition]:
    found: list[TopicPartition] = []
    for name in names:
        topic, colon, index = name.partition(":")
        if colon and not index.isdigit():
            output.fail(f"--partition is TOPIC or TOPIC:PARTITION, not {name!r}", output.USAGE)
        found += await find_partitions(admin, topic, [int(index)] if colon else None)
    return found
