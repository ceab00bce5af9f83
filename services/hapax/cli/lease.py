"""`hapax lease ...`: producer identities on lease, for producers that manage their own recovery."""

from __future__ import annotations

import os
import socket
from typing import Annotated, Any

import typer
from google.protobuf.json_format import MessageToDict

from hapax.cli import output
from hapax.cli.administration import DEFAULT_BOOTSTRAP, Administration, AsJson, Bootstrap, administer
from hapax.rpc.gen.hapax.v1 import lease_pb2

app = typer.Typer(help="Leases of producer ids: take, renew, release, progress.", no_args_is_help=True)

LeaseName = Annotated[str, typer.Argument(metavar="NAME")]
Partitions = Annotated[
    list[str], typer.Option("--partition", metavar="TOPIC[:PARTITION]", help="Repeatable; a topic means all of it.")
]


@app.command("list")
def list_leases(
    prefix: Annotated[str, typer.Option(help="Only names that begin so.")] = "",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """List the leases."""
    request = lease_pb2.ListLeasesRequest(prefix=prefix)
    response = administer(
        bootstrap, lambda cluster: cluster.lease_call("ListLeases", request, lease_pb2.ListLeasesResponse)
    )
    found = [_plain(lease) for lease in response.leases]
    output.print_records(as_json, "", found, ("name", "producer_id", "generation", "holder", "expires_at_ms"))


@app.command()
def take(
    name: LeaseName,
    partitions: Partitions,
    expire_ms: Annotated[int, typer.Option(help="How long it lasts without renewal.", min=1)] = 600_000,
    holder: Annotated[str, typer.Option(help="Shown to whoever is fenced by it.")] = "",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Take a lease, or take it over: the former holder's writes are refused from then on."""

    async def work(cluster: Administration) -> Any:
        request = lease_pb2.LeasePidRequest(
            name=name,
            partitions=await _partitions(cluster, partitions),
            expire_ms=expire_ms,
            holder=holder or f"{socket.gethostname()}:{os.getpid()}",
        )
        return await cluster.lease_call("LeasePid", request, lease_pb2.LeasePidResponse)

    response = administer(bootstrap, work)
    taken = _plain(response)
    if as_json:
        output.print_json(taken)
        return
    rows = [each | {"partition": _name(each["partition"])} for each in taken["partitions"]]
    columns = ("partition", "producer_id", "generation", "next_sequence", "record_count", "expires_at_ms")
    output.print_records(False, f"{taken['name']} (was {taken['former_holder'] or 'nobody'})", rows, columns)


@app.command()
def release(
    name: LeaseName,
    producer_id: Annotated[int, typer.Option()],
    generation: Annotated[int, typer.Option()],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Give a lease back."""
    request = lease_pb2.ReleaseLeaseRequest(name=name, producer_id=producer_id, generation=generation)
    administer(bootstrap, lambda cluster: cluster.lease_call("ReleaseLease", request, lease_pb2.ReleaseLeaseResponse))


@app.command()
def progress(
    name: LeaseName, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: AsJson = False
) -> None:
    """Show how many records of the lease's producer each partition holds, over all generations."""
    request = lease_pb2.GetProducerProgressRequest(name=name)
    response = administer(
        bootstrap,
        lambda cluster: cluster.lease_call("GetProducerProgress", request, lease_pb2.GetProducerProgressResponse),
    )
    found = [
        each | {"partition": each["partition"] if as_json else _name(each["partition"])}
        for each in (_plain(one) for one in response.partitions)
    ]
    output.print_records(
        as_json, name, found, ("partition", "record_count", "generation", "last_sequence", "last_offset", "reason")
    )


async def _partitions(cluster: Administration, names: list[str]) -> list[lease_pb2.Partition]:
    found = []
    for name in names:
        topic, colon, index = name.partition(":")
        if colon and not index.isdigit():
            output.fail(f"{name}: expected TOPIC or TOPIC:PARTITION", output.USAGE)
        for partition in await cluster.partitions_of(topic, [int(index)] if colon else None):
            found.append(lease_pb2.Partition(topic=topic, partition=partition))
    return found


def _plain(message: Any) -> dict[str, Any]:
    plain: dict[str, Any] = MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return {name: _number(value) for name, value in plain.items()}


def _number(value: Any) -> Any:
    """64-bit numbers are strings in protobuf's JSON; here they are numbers again."""
    if isinstance(value, str) and value.removeprefix("-").isdigit():
        return int(value)
    if isinstance(value, list):
        return [{name: _number(item) for name, item in each.items()} for each in value]
    return value


def _name(partition: dict[str, Any]) -> str:
    return f"{partition['topic']}-{partition['partition']}"
