"""The cells of the matrix, and the tables of docs/spark.md, which say what becomes of each."""

from __future__ import annotations

import itertools
import re
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

PAGE: Final = Path(__file__).resolve().parents[3] / "docs" / "spark.md"
_BEGIN: Final = "<!-- matrix: renewed by `make spark-matrix` -->\n"
_END: Final = "<!-- end of the matrix -->\n"
_LEGEND: Final = "The refusals, with N for numbers and … for names and times:"

RIGHT: Final = "right"
AGAIN: Final = "again"

CHECKPOINT: Final = {
    "kept": "kept",
    "died-before": "kept; the driver died before its commit",
    "died-after": "kept; the driver died after its commit",
    "first": "kept; the driver died after its very first commit",
    "one-behind": "an older one, one batch behind",
    "two-behind": "an older one, two batches behind",
    "lost": "lost",
    "cloned": "copied, and both go on",
    "elsewhere": "kept, with another cluster",
}
"""What is done to the checkpoint."""

_BESIDES: Final = {
    "nothing": "nothing else",
    "scope": "another `scope`",
    "new-in-scope": "the same `scope`, a new checkpoint",
    "name": "another `txnAppId`",
    "unnamed": "no `txnAppId` any more",
    "versions": "versions from 0 in each run",
    "id": "another `transactional.id`",
    "id-consecutive": "that, with `txnConsecutive`",
    "query": "`metadata` of another query",
    "topic": "another `topic`",
    "rows": "code that makes other rows",
}
"""What is done besides."""

_MODES: Final = {
    "streaming": ("A stream", ("nothing", "scope", "new-in-scope", "id", "query", "topic", "rows")),
    "object-store": (
        "A stream whose checkpoint the driver cannot read as a local path",
        ("nothing", "topic", "rows"),
    ),
    "foreachBatch": (
        "`foreachBatch`, named by `txnAppId` and the batch id",
        ("nothing", "name", "unnamed", "versions", "id", "topic", "rows"),
    ),
    "batch": (
        "Batch writes, named by `txnAppId` and a version; the checkpoint is the job's own note of its versions",
        ("nothing", "name", "unnamed", "id", "id-consecutive", "topic", "rows"),
    ),
}


class Cell(NamedTuple):
    mode: str
    checkpoint: str
    besides: str

    def __str__(self) -> str:
        return "/".join(self)

    @property
    def writes_again(self) -> bool:
        """What runs is by definition other work, so that what it reads once more it also writes once more: a new
        query in a scope of its own; a batch write under another name, or where its name is not known."""
        lost = self.checkpoint == "lost"
        begins = lost or self.checkpoint == "first"
        if self.mode == "batch":
            repeats = self.checkpoint not in ("kept", "died-before", "elsewhere")
            return repeats and self.besides in ("name", "unnamed", "id", *(["id-consecutive"] if begins else []))
        if self.mode == "foreachBatch":
            return begins and self.besides in ("name", "id")
        return self.checkpoint == "elsewhere" if self.besides == "new-in-scope" else lost


CELLS: Final = tuple(
    Cell(mode, checkpoint, besides)
    for mode, (_, columns) in _MODES.items()
    for checkpoint, besides in itertools.product(CHECKPOINT, columns)
)

_CAUSES: Final = {
    "one-behind": "older copy",
    "two-behind": "older copy",
    "lost": "a new one, which counts from N",
    "cloned": "a copy of it",
    "elsewhere": "to another cluster",
    "scope": "scope",
    "new-in-scope": "scope",
    "name": "txnAppId",
    "unnamed": "txnAppId",
    "versions": "counts from N",
    "id": "transactional.id",
    "id-consecutive": "transactional.id",
    "query": "query",
    "topic": "another topic",
    "rows": "other records",
}
"""How a refusal names what was done."""


def names_the_cause(cell: Cell, refusal: str) -> bool:
    done = [each for each in (cell.checkpoint, cell.besides) if each in _CAUSES]
    return any(_CAUSES[each] in refusal for each in done)


Outcomes = Mapping[Cell, str]
"""RIGHT, AGAIN, or the error's class and sentence."""


def is_sound(outcome: str) -> bool:
    """Else lines were lost or doubled, or something else went wrong."""
    return outcome in (RIGHT, AGAIN) or re.match(r"`\w+`: ", outcome) is not None


def section(outcomes: Outcomes) -> str:
    """The page's part, from what became of each cell."""
    labels = {text: f"refused: {number}" for number, text in enumerate(_refusals(outcomes), 1)}
    lines = []
    for mode, (title, columns) in _MODES.items():
        lines += ["", f"**{title}:**", "", _row("checkpoint", [_BESIDES[each] for each in columns])]
        lines.append("|---" * (len(columns) + 1) + "|")
        for checkpoint, words in CHECKPOINT.items():
            found = [outcomes.get(Cell(mode, checkpoint, each), "") for each in columns]
            lines.append(_row(words, [labels.get(each, each) for each in found]))
    lines += ["", _LEGEND, ""]
    for number, text in enumerate(labels, 1):
        lines += textwrap.wrap(
            f"{number}. {text}", 120, subsequent_indent="   ", break_on_hyphens=False, break_long_words=False)
    return "\n".join([*lines, ""])


def _refusals(outcomes: Outcomes) -> list[str]:
    found = (outcomes.get(cell, "") for cell in CELLS)
    return list(dict.fromkeys(text for text in found if text not in ("", RIGHT, AGAIN)))


def _row(first: str, others: list[str]) -> str:
    return f"| {' | '.join([first, *others])} |"


def outcomes_of(page: str) -> dict[Cell, str]:
    """What the page says; cells that it lacks are not there."""
    part = page.partition(_BEGIN)[2].partition(_END)[0]
    tables, _, legend = part.partition(_LEGEND)
    numbered = re.findall(r"^(\d+)\. (.*(?:\n   .*)*)", legend, re.M)
    refusals = {f"refused: {number}": " ".join(text.split()) for number, text in numbered}
    modes = {f"**{title}:**": mode for mode, (title, _) in _MODES.items()}
    checkpoints = {words: checkpoint for checkpoint, words in CHECKPOINT.items()}
    mode, found = "", {}
    for line in tables.splitlines():
        mode = modes.get(line, mode)
        words, *said = [each.strip() for each in line.strip("|").split("|")]
        if words in checkpoints:
            for besides, each in zip(_MODES[mode][1], said, strict=True):
                if each:
                    found[Cell(mode, checkpoints[words], besides)] = refusals.get(each, each)
    return found


def renewed(page: str, outcomes: Outcomes) -> str:
    before, _, rest = page.partition(_BEGIN)
    return before + _BEGIN + section(outcomes) + _END + rest.partition(_END)[2]
