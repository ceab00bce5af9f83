"""Words that mark translated or ornamental English are refused. Write short sentences in the field's standard terms."""

from __future__ import annotations

import re
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]

COVERED: Final = (
    "README.md", "Makefile", "services/", "operator/", "spark/", "load/", "charts/", "docs/", "proto/", "scripts/",
)  # fmt: skip

LEFT: Final[dict[str, int]] = {}
"""Folder or file -> lines with such words that are still in it. Lower the numbers, never raise them."""

REFUSED: Final = re.compile(
    r"\b(so long|so many|(?<!begins-)anew|whoever|nobody|dear|mend(s|ed|ing)?|is told of|begins again|at one go)\b",
    re.IGNORECASE,
)
"""`begins-anew` is let pass: it is a file's name on disk (services/hapax/log/layout.py)."""

_TEXT: Final = (".py", ".md", ".proto", ".sh", ".yaml", ".yml", ".json", ".toml", ".tpl", ".txt", ".html", ".svg")
_GENERATED: Final = ("services/hapax/rpc/gen/",)


def _offences() -> dict[str, list[str]]:
    """By the entry of LEFT that they belong to, else under "". A phrase that is broken over two lines counts."""
    listed = subprocess.run(["git", "ls-files", "--", *COVERED], cwd=ROOT, capture_output=True, text=True, check=True)
    found: dict[str, list[str]] = defaultdict(list)
    for name in listed.stdout.splitlines():
        if name.startswith(_GENERATED) or not (name.endswith(_TEXT) or name == "Makefile"):
            continue
        entry = max((each for each in LEFT if name.startswith(each)), key=len, default="")
        lines = [line.strip(" \t#/*|") for line in (ROOT / name).read_text(encoding="utf-8").splitlines()]
        for number, line in enumerate(lines, 1):
            match = REFUSED.search(f"{line} {lines[number] if number < len(lines) else ''}")
            if match is not None and match.start() < len(line):
                found[entry].append(f"{name}:{number}: {line}")
    return found


def test_no_marked_words() -> None:
    offences = _offences()
    assert offences.pop("", []) == []
    assert {entry: lines for entry, lines in offences.items() if len(lines) > LEFT[entry]} == {}


@pytest.mark.parametrize("text", ["Nobody answers.", "a change is told of", "so long", "has to be mended"])
def test_each_word_is_found_in_any_case(text: str) -> None:
    assert REFUSED.search(text)


def test_words_within_others_are_not_meant() -> None:
    assert REFUSED.search("It recommends endeared amendments.") is None


def test_a_name_on_disk_passes_but_its_word_alone_does_not() -> None:
    assert REFUSED.search("the file begins-anew") is None
    assert REFUSED.search("it begins anew")
