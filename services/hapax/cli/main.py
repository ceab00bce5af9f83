"""The `hapax` command. A group's module is imported when one of its commands is called."""

from __future__ import annotations

import importlib
import sys
from typing import Final

import typer

GROUPS: Final = {
    "local": ("hapax.cli.local.commands", "A cluster on this machine, each service a process of its own."),
}
"""Name -> module with a typer `app`, and its line in `hapax --help`."""


def run() -> None:
    """Entry point of the command."""
    _app(sys.argv[1:2])()


def _app(first_word: list[str]) -> typer.Typer:
    app = typer.Typer(name="hapax", help="An exactly-once log.", no_args_is_help=True, add_completion=False)
    for name, (module, line) in GROUPS.items():
        if first_word == [name]:
            app.add_typer(importlib.import_module(module).app, name=name, help=line)
        else:
            app.add_typer(_placeholder(), name=name, help=line)
    return app


def _placeholder() -> typer.Typer:
    """Stands in `hapax --help` for a group whose module need not be imported."""
    group = typer.Typer()
    group.callback()(lambda: None)
    return group


if __name__ == "__main__":
    run()
