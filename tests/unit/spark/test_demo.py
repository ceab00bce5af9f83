"""What `make demo` calls wrong."""

from __future__ import annotations

from typing import Any

import pytest

from hapax_spark.demo.__main__ import failures


def found() -> dict[str, Any]:
    """As it shall be."""
    nothing = {"lost": 0, "duplicated": 0}
    return {
        "loader": dict(nothing), "exactly_once": dict(nothing), "at_most_once": {"lost": 5, "duplicated": 0},
        "at_least_once": {"lost": 0, "duplicated": 5}, "aggregation": {"equal": True, "differing": 0},
        "older_checkpoint": {"refused": True, "said": "OldCheckpointError: This is batch 1"},
    }  # fmt: skip


def test_nothing_is_wrong() -> None:
    assert failures(found()) == []


@pytest.mark.parametrize(
    ("part", "field", "value", "sentence"),
    [
        ("loader", "lost", 1, "loader lost 1"),
        ("exactly_once", "duplicated", 2, "exactly_once lost 0 and duplicated 2"),
        ("older_checkpoint", "refused", False, "did not refuse an older copy of its checkpoint"),
        ("aggregation", "equal", False, "windows differ"),
        ("at_most_once", "lost", 0, "at-most-once lost nothing"),
        ("at_least_once", "duplicated", 0, "at-least-once duplicated nothing"),
    ],
)
def test_each_part_counts(part: str, field: str, value: object, sentence: str) -> None:
    result = found()
    result[part][field] = value
    (problem,) = failures(result)
    assert sentence in problem
