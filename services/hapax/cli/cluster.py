"""`hapax cluster ...`: what runs, and how it is."""

from __future__ import annotations

import importlib.metadata
from typing import Annotated

import typer

from hapax.cli import output
from hapax.cli.administration import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, administer, print_config
from hapax.client import Admin, ConfigValue
from hapax.client.health import count, health_checks, worst

app = typer.Typer(help="Nodes, shards, health, versions.", no_args_is_help=True)


@app.command()
def nodes(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: AsJson = False) -> None:
    """List the nodes that are alive; `acts` marks the controller that decides now."""

    async def work(admin: Admin) -> list[dict[str, object]]:
        brokers = {each.node_id: each for each in await admin.list_brokers()}
        found: list[dict[str, object]] = []
        for node in (await admin.describe_cluster()).nodes:
            broker = brokers.get(node.node_id)
            found.append({
                "node_id": node.node_id, "role": "broker" if broker else "coordinator", "host": node.host,
                "port": node.port, "rpc_address": node.rpc_address, "rack": broker.rack if broker else "",
                "standing": broker.standing if broker else "", "acts": False})
        for other in await admin.list_service_nodes():
            found.append(other._asdict() | {"host": other.rpc_address.rpartition(":")[0], "port": 0})
        return found

    columns = ("node_id", "role", "host", "port", "rpc_address", "rack", "standing", "acts")
    output.print_records(as_json, "", administer(bootstrap, work), columns)


@app.command()
def shards(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: AsJson = False) -> None:
    """List the shards of the coordinators: who owns them, and whether they serve."""
    found = administer(bootstrap, lambda admin: admin.describe_shards())
    columns = ("kind", "shard", "owner", "epoch", "serving", "loaded_records", "entries")
    output.print_records(as_json, "", [each._asdict() for each in found], columns)


@app.command()
def config(
    node: Annotated[int, typer.Argument(metavar="NODE", min=0)],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Show the settings of a broker or coordinator."""

    async def work(admin: Admin) -> dict[str, ConfigValue]:
        if node not in {each.node_id for each in (await admin.describe_cluster()).nodes}:
            output.fail(f"no broker or coordinator {node} is alive", output.NOT_FOUND)
        return await admin.node_config(node)

    print_config(as_json, administer(bootstrap, work))


@app.command()
def health(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: AsJson = False) -> None:
    """Say whether the cluster can do what it is for; exit code 1 where somebody cannot read or write now."""
    checks = health_checks(administer(bootstrap, count))
    status = worst(checks)
    if as_json:
        output.print_json({"status": status, "checks": [each._asdict() for each in checks]})
    else:
        output.print_records(False, status, [each._asdict() for each in checks], ("name", "status", "detail"))
    if status == "down":
        raise typer.Exit(output.FAILED)


@app.command()
def version(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: AsJson = False) -> None:
    """Show this command's version, and the cluster's id and version of transactions."""
    cluster = administer(bootstrap, lambda admin: admin.describe_cluster())
    told = {
        "command": importlib.metadata.version("hapaxlog"), "cluster_id": cluster.cluster_id,
        "transaction_version": cluster.transaction_version}
    output.print_records(as_json, "", [told], tuple(told))
