"""`hapax cluster ...`: nodes, shards, settings, health and versions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hapax.cli import output
from hapax.cli.administration import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, administer, print_config
from hapax.client import Admin, ConfigValue
from hapax.client.health import count, health_checks, worst
from hapax.runtime.package import package_version

app = typer.Typer(no_args_is_help=True)


@app.command()
def nodes(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: AsJson = False) -> None:
    """List the nodes that are alive. `acts` marks the active controller."""

    async def list_nodes(admin: Admin) -> list[dict[str, object]]:
        brokers = {each.node_id: each for each in await admin.list_brokers()}
        found: list[dict[str, object]] = []
        for node in (await admin.describe_cluster()).nodes:
            broker = brokers.get(node.node_id)
            found.append({
                "node_id": node.node_id, "role": "broker" if broker else "coordinator", "host": node.host,
                "port": node.port, "rpc_address": node.rpc_address, "rack": broker.rack if broker else "",
                "standing": broker.standing if broker else "", "acts": False})
        for other in await admin.list_service_nodes():
            host = other.rpc_address.removeprefix("tls://").rpartition(":")[0]
            found.append(other._asdict() | {"host": host, "port": 0})
        return found

    columns = ("node_id", "role", "host", "port", "rpc_address", "rack", "standing", "acts")
    output.print_records(as_json, "", administer(bootstrap, list_nodes), columns)


@app.command()
def shards(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: AsJson = False) -> None:
    """List the coordinators' shards, their owners and whether they are serving."""
    found = administer(bootstrap, lambda admin: admin.describe_shards())
    columns = ("kind", "shard", "owner", "epoch", "serving", "loaded_records", "entries")
    output.print_records(as_json, "", [each._asdict() for each in found], columns)


@app.command()
def config(
    node: Annotated[int, typer.Argument(metavar="NODE", help="Its node id.", min=0)],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Show the settings of a broker or coordinator that is alive."""

    async def node_config(admin: Admin) -> dict[str, ConfigValue]:
        if node not in {each.node_id for each in (await admin.describe_cluster()).nodes}:
            output.fail(
                f"no broker or coordinator with node id {node} is alive; `hapax cluster nodes` lists those that are",
                output.NOT_FOUND)
        return await admin.node_config(node)

    print_config(as_json, administer(bootstrap, node_config))


@app.command()
def health(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: AsJson = False) -> None:
    """Check whether clients can read and write. Exit code 1 if some of them cannot."""
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
    """Show the version of this command, the cluster id and the cluster's transaction version."""
    cluster = administer(bootstrap, lambda admin: admin.describe_cluster())
    shown = {
        "command": package_version(), "cluster_id": cluster.cluster_id,
        "transaction_version": cluster.transaction_version}
    output.print_records(as_json, "", [shown], tuple(shown))


@app.command("etcd-users")
def etcd_users(
    endpoint: Annotated[str, typer.Option(help="A member of etcd, as HOST:PORT.", metavar="HOST:PORT")],
    cluster_id: Annotated[str, typer.Option(help="The setting cluster.id.")],
    certificate: Annotated[Path, typer.Option(help="PEM file with a certificate whose common name is root.")],
    key: Annotated[Path, typer.Option(help="PEM file with its key.")],
    authority: Annotated[Path, typer.Option(help="PEM file with the authorities of etcd's certificates.")],
) -> None:
    """Make etcd's users, one for each role of the cluster's processes, with the rights that the role needs, and turn
    etcd's authentication on. It may be run again, also while the cluster works."""
    from hapax.runtime.etcd_users import EtcdUsersError, set_up
    from hapax.runtime.tls import Material

    try:
        root = Material(certificate.read_bytes(), key.read_bytes(), authority.read_bytes())
        changes = set_up(endpoint, root, cluster_id)
    except (OSError, EtcdUsersError) as error:
        output.fail(str(error))
    print(f"{changes} changes")
