"""The `hapax` command. A command's module is imported only when that command is called."""

from __future__ import annotations

import importlib
import sys
from typing import Annotated, Final

import typer

from hapax.cli.command_config import with_command_config

GROUPS: Final = {
    "local": "Run a cluster on this machine, each service in its own process.",
    "cluster": "Show nodes, shards, settings, health and versions.",
    "topic": "Create, list, describe, configure, extend and delete topics; show offsets and records.",
    "group": "Show members, offsets and lag of consumer groups; reset or delete their offsets.",
    "acl": "List, add and remove ACLs: who may do what.",
    "user": "List users who have passwords; set and remove passwords.",
    "quota": "List, set and remove quotas: how much clients may use.",
    "txn": "List, describe and abort transactions; find hanging ones.",
    "producers": "Show the state that partitions keep for producers.",
    "lease": "List, take and release leases of producer ids; show their progress.",
    "replicas": "List replicas, change their number, elect leaders.",
    "reassign": "Plan and run moves of partitions between brokers; list, cancel and throttle them.",
    "events": "Show the cluster's events: fencing, failover, aborted hanging transactions.",
}
"""Name -> help text. The module `hapax.cli.NAME` has a typer `app`."""

COMMANDS: Final = {
    "backup": "Take a backup of a cluster that runs.",
    "restore": "Restore a backup into an empty cluster.",
    "produce": "Write records from standard input.",
    "consume": "Print the records of a topic.",
    "copy": "Copy topics from one cluster to another, each record once.",
    "drain": "Plan and run the moves that empty a broker before it is removed.",
    "dump": "Print the contents of segments, indexes, snapshots and coordinator logs.",
    "verify": "Check segments, indexes, snapshots and replicas, and report any damage.",
}
"""Name -> help text. The module `hapax.cli.NAME` has a function of the same name."""


def run() -> None:
    """The entry point."""
    application(sys.argv[1:2])()


def application(first_word: list[str]) -> typer.Typer:
    """Builds the command line for the given first word: only that command is imported in full."""
    app = typer.Typer(name="hapax", help="An exactly-once log.", no_args_is_help=True, add_completion=False,
                      pretty_exceptions_show_locals=False)  # locals may hold passwords
    app.callback()(_options)
    for name, line in GROUPS.items():
        group = _group(name) if first_word == [name] else _empty_group()
        app.add_typer(group, name=name, help=line)
    for name, line in COMMANDS.items():
        command = getattr(importlib.import_module(f"hapax.cli.{name}"), name) if first_word == [name] else _do_nothing
        app.command(name, help=line)(command)
    return with_command_config(app)


def _group(name: str) -> typer.Typer:
    found: typer.Typer = importlib.import_module(f"hapax.cli.{name}").app
    return with_command_config(found)


def _empty_group() -> typer.Typer:
    """A command group for `hapax --help`, without importing its module."""
    group = typer.Typer()
    group.callback()(_do_nothing)
    return group


def _show_version(asked: bool) -> None:
    if asked:
        from hapax.runtime.package import package_version

        print(f"hapax {package_version()}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print this release and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    return None


def _do_nothing() -> None:
    return None


if __name__ == "__main__":
    run()
