"""`hapax local ...`: a cluster on this machine, each service in its own process."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from hapax.cli import output
from hapax.local.cluster import LocalCluster, runner_command
from hapax.local.folder import Folder, LocalClusterError
from hapax.local.secure import SecureFolder

app = typer.Typer(no_args_is_help=True)

Directory = Annotated[Path, typer.Option("--dir", help="The cluster's folder.", envvar="HAPAX_LOCAL_DIR")]
Name = Annotated[str, typer.Argument(help="Such as broker-0, coordinator-0, pid-0, admin-0 or etcd.", metavar="NODE")]
DEFAULT_DIRECTORY = Path("hapax-data")


@app.command()
def up(
    directory: Directory = DEFAULT_DIRECTORY,
    port: Annotated[int, typer.Option(help="Port of the first broker. 0: any free port.")] = 9092,
    brokers: Annotated[
        int | None, typer.Option(min=1, help="Number of brokers. Default: as many as have data, at least one.")
    ] = None,
    coordinators: Annotated[int, typer.Option(min=1, help="Number of coordinators.")] = 1,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A setting of every process. Repeatable.")
    ] = None,
    admin: Annotated[bool, typer.Option("--admin", help="Also start the REST API (needs the extra `admin`).")] = False,
    secure: Annotated[
        bool, typer.Option("--secure", help="TLS, logins and permissions on every port. A cluster stays so.")
    ] = False,
    detach: Annotated[
        bool, typer.Option("--detach", help="Return once every node is serving, and leave the cluster running.")
    ] = False,
) -> None:
    """Start a cluster and print `ready bootstrap=HOST:PORT`. Without --detach, Ctrl-C stops it.

    With --secure the line also names a file of client settings for --command-config: a user who may do everything."""
    chosen = settings or ()
    made = SecureFolder(Folder(directory))
    secure = secure or made.made
    if not secure:
        print("Open to every process of this computer, without TLS or logins; --secure closes it.", file=sys.stderr)
    try:
        if detach:
            cluster = LocalCluster(directory)
            state = cluster.up(port=port, brokers=brokers, coordinators=coordinators, settings=chosen, admin=admin,
                               secure=secure)
            scheme = "https" if secure else "http"
            rest = f" rest={scheme}://127.0.0.1:{state.process('admin-0').port}" if admin else ""
            profile = f" command-config={made.profile}" if secure else ""
            print(f"ready bootstrap={state.bootstrap}{rest}{profile}")
            return
        command = runner_command(
            Folder(directory), port=port, brokers=brokers, coordinators=coordinators, settings=chosen, admin=admin,
            secure=secure,
        )
    except LocalClusterError as error:
        output.fail(str(error))
    os.execv(command[0], command)  # the runner replaces this process: it gets Ctrl-C, and typer's memory is freed


@app.command()
def down(directory: Directory = DEFAULT_DIRECTORY) -> None:
    """Stop the cluster. Its data stays."""
    try:
        if not LocalCluster(directory).down():
            output.fail(f"no cluster is running in {directory}", output.NOT_RUNNING)
    except LocalClusterError as error:
        output.fail(str(error))


@app.command()
def status(
    directory: Directory = DEFAULT_DIRECTORY,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """List the processes. Exit code 0 only if all of them are running."""
    try:
        state = LocalCluster(directory).status()
    except LocalClusterError as error:
        output.fail(str(error), output.NOT_RUNNING)
    records = [
        {
            "name": process.name,
            "role": process.role,
            "pid": process.pid,
            "port": process.port,
            "rpc_port": process.rpc_port,
            "public_rpc_port": process.public_rpc_port,
            "http_port": process.http_port,
            "node_id": process.node_id,
            "state": process.state,
        }
        for process in state.processes
    ]
    if as_json:
        output.print_json({
            "bootstrap": state.bootstrap,
            "cluster_id": state.cluster_id,
            "runner_pid": state.runner_pid,
            "ready": state.ready,
            "processes": records,
        })  # fmt: skip
    else:
        columns = ("name", "role", "pid", "port", "http_port", "state")
        output.print_records(False, f"{directory}: bootstrap={state.bootstrap}", records, columns)
    if any(process.state != "running" for process in state.processes):
        raise typer.Exit(output.NOT_RUNNING)


@app.command()
def kill(name: Name, directory: Directory = DEFAULT_DIRECTORY) -> None:
    """End a process with SIGKILL. Only `restart` starts it again."""
    try:
        LocalCluster(directory).kill(name)
    except LocalClusterError as error:
        output.fail(str(error))


@app.command()
def restart(name: Name, directory: Directory = DEFAULT_DIRECTORY) -> None:
    """Restart a process and return once it is serving. A running process is drained first."""
    try:
        LocalCluster(directory).restart(name)
    except LocalClusterError as error:
        output.fail(str(error))
