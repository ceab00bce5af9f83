"""Golden scenario scripts: commands in a text file, and the exact state printed after each.

The form is that of etcd raft's data-driven tests. A script is reviewed as a diff: whoever changes a machine's
behaviour sees, in words, what a client and a reader see differently. See README.md beside this file.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

UPDATE_VARIABLE = "HAPAX_UPDATE_SCENARIOS"
SEPARATOR = "----"


class ScriptError(Exception):
    """The script itself is wrong: an unknown command, a missing argument, a block without a separator."""


@dataclass(frozen=True, slots=True)
class Command:
    """One line of a script: `name positional... key=value...`. Values with spaces stand in double quotes."""

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
    """What drives one machine. A fresh one for every script.

    Raise ScriptError for a command that is not known; a refusal of the machine is output, not an exception.
    """

    def execute(self, command: Command) -> Iterable[str]:
        """The lines to print. Empty lines are not allowed (they end a block)."""
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


@dataclass(slots=True)
class Block:
    """Comments and prose, then commands and what they print. A block without commands is prose alone."""

    prose: list[str]
    commands: list[str]
    expected: list[str]
    at_line: int


def parse_script(text: str) -> Iterator[Block]:
    """Blocks are separated by empty lines; within one, commands come first, then `----`, then the output."""
    block: list[str] = []
    start = 1
    for number, line in enumerate([*text.splitlines(), ""], 1):
        if line.strip():
            block.append(line.rstrip())
            continue
        if block:
            yield _parse_block(block, start)
        block, start = [], number + 1


def _parse_block(lines: list[str], at_line: int) -> Block:
    head, tail = lines, []
    if SEPARATOR in lines:
        at = lines.index(SEPARATOR)
        head, tail = lines[:at], lines[at + 1 :]
    prose = [line for line in head if line.startswith("#")]
    commands = [line for line in head if not line.startswith("#")]
    return Block(prose, commands, tail, at_line)


def run_script(path: Path) -> tuple[str, str]:
    """Plays a script; returns its text as it should be and as it is.

    Raises ScriptError, with the line, where the script cannot be played.
    """
    expected = path.read_text(encoding="utf-8")
    interpreter: Interpreter | None = None
    blocks: list[str] = []
    for block in parse_script(expected):
        output: list[str] = []
        for line in block.commands:
            command = parse_command(line)
            try:
                if command.name == "machine":
                    interpreter = load_interpreter(command)
                    continue
                if interpreter is None:
                    raise ScriptError("the first command must be `machine NAME`")
                output += [printed.rstrip() for printed in interpreter.execute(command)]
            except (ScriptError, ValueError) as error:
                raise ScriptError(f"{path.name}:{block.at_line}: {error}") from error
        if "" in output:
            raise ScriptError(f"{path.name}:{block.at_line}: empty lines cannot be printed")
        lines = [*block.prose, *block.commands]
        if block.commands and not block.commands[0].startswith("machine "):
            lines += [SEPARATOR, *(output or ["ok"])]
        blocks.append("\n".join(lines))
    return expected, "\n\n".join(blocks) + "\n"


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
