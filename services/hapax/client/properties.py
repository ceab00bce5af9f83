"""Files of client settings as Kafka's tools take them (`--command-config`): Java's properties.

A line is a name, then `=`, `:` or a space, then the value; a backslash at its end continues it; `#` and `!` begin a
comment. Within a line, a backslash takes the character after it as it is, except for `\\t`, `\\n`, `\\r`, `\\f` and
`\\uXXXX`. No message repeats a value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from hapax.client.errors import SettingsError

_ENDS_NAME: Final = re.compile(r"(?:[^\\=: \t\f]|\\.)*", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(u[0-9A-Fa-f]{4}|.)", re.DOTALL)
_BLANKS: Final = " \t\f"
"""Other white space is text, such as in a password."""
_LETTERS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def read_properties(path: Path) -> dict[str, str]:
    """Raises SettingsError, OSError."""
    try:
        return parse_properties(path.read_text(encoding="utf-8-sig"))
    except UnicodeDecodeError:
        raise SettingsError(f"file {path}: it is not UTF-8") from None
    except ValueError as error:
        raise SettingsError(f"file {path}: {error}") from None


def parse_properties(text: str) -> dict[str, str]:
    """Raises ValueError."""
    found: dict[str, str] = {}
    for number, line in _lines(text):
        name = _ENDS_NAME.match(line)
        assert name is not None
        if not name[0]:
            raise ValueError(f"line {number} has no name before its value")
        value = re.sub(r"^[ \t\f]*[=:]?[ \t\f]*", "", line[name.end():])
        found[_unescaped(name[0], number)] = _unescaped(value, number)
    return found


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Numbers and texts of the logical lines."""
    joined, began = "", 0
    for number, line in enumerate(re.split(r"\r\n|\r|\n", text), 1):
        line = line.lstrip(_BLANKS)
        if not began and (not line or line[0] in "#!"):
            continue
        began = began or number
        ending = len(line) - len(line.rstrip("\\"))
        if ending % 2:
            joined += line[:-1]
            continue
        yield began, joined + line
        joined, began = "", 0
    if began:
        yield began, joined


def _unescaped(text: str, number: int) -> str:
    def character(found: re.Match[str]) -> str:
        escape = found[1]
        if escape == "u":
            raise ValueError(f"line {number} has \\u without four digits")
        return chr(int(escape[1:], 16)) if len(escape) > 1 else _LETTERS.get(escape, escape)

    # Java writes a character above U+FFFF as two escapes.
    return _ESCAPE.sub(character, text).encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
