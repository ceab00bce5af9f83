"""The `hapax` command. The module of a command is imported when that command is called."""

from __future__ import annotations

import importlib
import sys
from typing import Final

import typer

GROUPS: Final = {
    "local": "A cluster on this machine, each service a process of its own.",
    "cluster": "Nodes, shards, health, versions.",
    "topic": "Create, list, describe, configure, extend and delete topics; offsets by time, a look at records.",
    "group": "Groups: offsets, lag, reset, delete.",
    "txn": "Transactions: list, describe, abort, find hanging ones.",
    "producers": "Producers and their progress, per partition.",
    "lease": "Leases of producer ids: take, renew, release, progress.",
    "replicas": "Replicas: list, change their number, elect leaders.",
    "reassign": "Move partitions between brokers, with a plan first.",
    "events": "What the cluster noted: fencing, failover, healed transactions.",
}
"""Name -> its line in `hapax --help`; the module `hapax.cli.NAME` has a typer `app`."""

COMMANDS: Final = {
    "produce": "Write records from standard input.",
    "consume": "Print records.",
    "drain": "Move everything off a broker, with a plan first.",
    "dump": "Print what is in segments, indexes, snapshots and coordinator logs.",
    "verify": "Check segments, indexes, snapshots and replicas; say what is wrong and where.",
}
"""Name -> its line; the module `hapax.cli.NAME` has a function of that name."""


def run() -> None:
    """Entry point of the command."""
    application(sys.argv[1:2])()


def application(first_word: list[str]) -> typer.Typer:
    """The command line whose first word is known: only that part is imported in full."""
    app = typer.Typer(name="hapax", help="An exactly-once log.", no_args_is_help=True, add_completion=False)
    for name, line in GROUPS.items():
        group = importlib.import_module(f"hapax.cli.{name}").app if first_word == [name] else _placeholder()
        app.add_typer(group, name=name, help=line)
    for name, line in COMMANDS.items():
        command = getattr(importlib.import_module(f"hapax.cli.{name}"), name) if first_word == [name] else _nothing
        app.command(name, help=line)(command)
    return app


def _placeholder() -> typer.Typer:
    """Stands in `hapax --help` for a group whose module need not be imported."""
    group = typer.Typer()
    group.callback()(_nothing)
    return group


def _nothing() -> None:
    return None


if __name__ == "__main__":
    run()
