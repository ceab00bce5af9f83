"""Prints the commands it is given; for the tests of the framework itself."""

from __future__ import annotations

from collections.abc import Iterable

from scenarios.script import Command


class Interpreter:
    def __init__(self, machine: Command) -> None:
        self.machine = machine

    def execute(self, command: Command) -> Iterable[str]:
        yield f"{command.name} {command.positional} {command.arguments}"
