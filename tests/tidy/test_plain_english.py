"""Words that mark translated or ornamental English are refused. Write short sentences in the field's standard terms."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]

CLEAN: Final = ("README.md", "scripts/", "load/", "spark/")
"""Files and folders that have none of the words."""

REFUSED: Final = re.compile(
    r"\b(so long|so many|anew|whoever|nobody|dear|mend(s|ed|ing)?|is told of|begins again|at one go)\b", re.IGNORECASE
)

_TEXT: Final = (".py", ".md", ".proto", ".sh", ".yaml", ".yml", ".json", ".toml", ".tpl", ".txt", ".html", ".svg")
_GENERATED: Final = ("services/hapax/rpc/gen/",)


def _lines(prefixes: tuple[str, ...]) -> list[tuple[str, str]]:
    """(place, text). A text is a line and the one after it without its indentation and marks, so that a phrase that is
    broken over two lines is found."""
    listed = subprocess.run(["git", "ls-files", "--", *prefixes], cwd=ROOT, capture_output=True, text=True, check=True)
    found = []
    for name in listed.stdout.splitlines():
        if name.startswith(_GENERATED) or not (name.endswith(_TEXT) or name == "Makefile"):
            continue
        lines = [line.strip(" \t#/*|") for line in (ROOT / name).read_text(encoding="utf-8").splitlines()]
        found += [
            (f"{name}:{number}", f"{line} {after}")
            for number, (line, after) in enumerate(zip(lines, [*lines[1:], ""], strict=False), 1)
        ]
    return found


def test_no_marked_words() -> None:
    assert [f"{place}: {text}" for place, text in _lines(CLEAN) if REFUSED.search(text)] == []


@pytest.mark.parametrize("text", ["Nobody answers.", "a change is told of", "so long", "has to be mended"])
def test_each_word_is_found_in_any_case(text: str) -> None:
    assert REFUSED.search(text)


def test_words_within_others_are_not_meant() -> None:
    assert REFUSED.search("It recommends endeared amendments.") is None
