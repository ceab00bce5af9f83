"""How commands print, and their exit codes.

0: done. 1: the cluster refused the request or failed. 2: wrong usage (typer uses the same code). 3: the cluster does
not answer, or not all of it runs. 4: the named topic, partition, group, node or id does not exist.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NoReturn

FAILED: Final = 1
USAGE: Final = 2
NOT_RUNNING: Final = 3
NOT_FOUND: Final = 4


def fail(message: str, code: int = FAILED) -> NoReturn:
    """Prints one line on stderr and ends the command."""
    print(f"hapax: {message}", file=sys.stderr)
    raise SystemExit(code)


def print_json(value: object) -> None:
    """Prints one JSON document on one line of stdout. Bytes appear as in `text_of`."""
    print(json.dumps(value, default=_plain, ensure_ascii=False))


def _plain(value: object) -> object:
    if isinstance(value, bytes | bytearray | memoryview):
        return text_of(bytes(value))
    return str(value)


def text_of(data: bytes | None) -> str | None:
    """Bytes as text if they are printable UTF-8, otherwise as `0x` and hexadecimal digits. None stays None."""
    if data is None:
        return None
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return "0x" + data.hex()
    return text if text.isprintable() else "0x" + data.hex()


def note(message: str) -> None:
    """Prints one line of progress on stderr."""
    print(message, file=sys.stderr)


def joined(values: Iterable[object]) -> str:
    """`0,2,1`"""
    return ",".join(map(str, values))


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Prints a table. Columns of numbers are aligned right. Nothing is cut if stdout is not a terminal."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title or None, box=SIMPLE_HEAD, title_justify="left", pad_edge=False)
    for index, column in enumerate(columns):
        numbers = bool(rows) and all(isinstance(row[index], int | float) for row in rows)
        table.add_column(column, justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text("" if value is None else str(value)) for value in row))
    console = Console(soft_wrap=not sys.stdout.isatty())
    if not sys.stdout.isatty():
        console.width = 400
    console.print(table)


def print_records(as_json: bool, title: str, records: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
    """Prints the records as a JSON list, or as a table of the named fields."""
    if as_json:
        print_json(list(records))
    else:
        print_table(title, columns, [[record.get(column) for column in columns] for record in records])
