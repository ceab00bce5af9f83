"""Golden scenario scripts: commands in a text file, each with the exact output that it prints below it.

The idea is that of etcd raft's data-driven tests. A change of a machine's behaviour shows up as a diff of scripts, in
words: what a client and a reader see differently. See README.md beside this file.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

UPDATE_VARIABLE = "HAPAX_UPDATE_SCENARIOS"
COMMAND = "> "
PROSE = "#"


class ScriptError(Exception):
    """The script itself is wrong: an unknown command, a missing argument, output without a command."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command of a script: `name positional... key=value...`. Values with spaces stand in double quotes."""

    name: str
    positional: tuple[str, ...] = ()
    arguments: dict[str, str] = field(default_factory=dict)
    line: str = ""

    def text(self, key: str, default: str | None = None) -> str:
        value = self.arguments.get(key, default)
        if value is None:
            raise ScriptError(f"`{self.line}` lacks {key}=")
        return value

    def number(self, key: str, default: int | None = None) -> int:
        """Decimal, with `_` for legibility."""
        if key not in self.arguments and default is not None:
            return default
        return int(self.text(key))

    def flag(self, key: str) -> bool:
        """A bare word, or key=yes."""
        return key in self.positional or self.arguments.get(key) == "yes"

    def numbers(self, key: str, default: str | None = None) -> list[int]:
        """Separated by commas."""
        return [int(part) for part in self.text(key, default).split(",") if part]


class Interpreter(Protocol):
    """Drives one machine. Each script makes its own.

    Raises ScriptError for an unknown command. A refusal by the machine is output, not an exception.
    """

    def execute(self, command: Command) -> Iterable[str]:
        """The lines to print. None may be empty or begin with `> ` or `#`: a script reads those as something else."""
        ...


_WORD = re.compile(r'(?:[^\s"]|"[^"]*")+')


def parse_command(line: str) -> Command:
    name, *words = _WORD.findall(line)
    positional: list[str] = []
    arguments: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if equals:
            arguments[key] = value.replace('"', "")
        else:
            positional.append(word.replace('"', ""))
    return Command(name, tuple(positional), arguments, line)


def run_script(path: Path) -> tuple[str, str]:
    """Plays a script; returns its text as it should be and as it is.

    Raises ScriptError, with the line, where the script cannot be played.
    """
    expected = path.read_text(encoding="utf-8")
    interpreter: Interpreter | None = None
    actual: list[str] = []
    after_command = False
    for number, line in enumerate(expected.splitlines(), 1):
        try:
            if not line.startswith(COMMAND):
                prose = not line.strip() or line.startswith(PROSE)
                if prose:
                    actual.append(line.rstrip())
                    after_command = False
                elif not after_command:
                    raise ScriptError(f"`{line}` is neither prose nor the output of a command")
                continue
            actual.append(line.rstrip())
            after_command = True
            command = parse_command(line.removeprefix(COMMAND))
            if command.name == "machine":
                interpreter = load_interpreter(command)
            elif interpreter is None:
                raise ScriptError(f"the first command must be `{COMMAND}machine NAME`")
            else:
                actual += _output(interpreter, command)
        except (ScriptError, ValueError) as error:
            raise ScriptError(f"{path.name}:{number}: {error}") from error
    return expected, "\n".join(actual).rstrip() + "\n"


def _output(interpreter: Interpreter, command: Command) -> list[str]:
    lines = [line.rstrip() for line in interpreter.execute(command)]
    for line in lines:
        if not line or line.startswith((COMMAND, PROSE)):
            raise ScriptError(f"`{command.line}` prints {line!r}, which reads as something else in a script")
    return lines


def load_interpreter(command: Command) -> Interpreter:
    """`machine NAME [key=value...]`: the class `Interpreter` of `machines/NAME.py`, made with the command."""
    if len(command.positional) != 1:
        raise ScriptError("`machine` takes one name")
    name = command.positional[0].replace("-", "_")
    try:
        module = importlib.import_module(f"{__package__}.machines.{name}")
    except ModuleNotFoundError as error:
        raise ScriptError(f"no machine called {name}: {error}") from error
    interpreter: Interpreter = module.Interpreter(command)
    return interpreter


def update_wanted() -> bool:
    return os.environ.get(UPDATE_VARIABLE, "") not in ("", "0")
