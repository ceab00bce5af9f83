"""What the examples store: records that are none, and durability."""

from __future__ import annotations

import importlib.util
import sqlite3
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from hapax.client import Record

EXAMPLES = Path(__file__).parents[2] / "examples"
NUMBERS = ("Infinity", "1e400", "NaN", "1" + "0" * 30, "-9223372036854775809", "1" * 5000)
TEXTS = (r'"\ud800"', "[" * 100_000)
EXTRA = 3
"""Of `pragma synchronous`: also the removal of the journal, which commits, survives a power cut."""


def load(name: str) -> ModuleType:
    path = EXAMPLES / name
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # for its classes
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[path.stem]
    return module


def records(*values: str) -> list[Record]:
    return [Record("t", 0, offset, 0, 0, None, value.encode(), ()) for offset, value in enumerate(values)]


def hostile(id_name: str) -> list[Record]:
    return records(
        *(f'{{"{id_name}": "x", "account": "x", "amount": {each}}}' for each in NUMBERS),
        *(f'{{"{id_name}": {each}, "account": {each}, "amount": 1}}' for each in TEXTS), "", "null", "[]")


def test_inbox_answers_every_record_whatever_it_contains(tmp_path: Path) -> None:
    inbox = load("inbox/inbox.py")
    database = inbox.connect(str(tmp_path / "i.db"))
    answers = inbox.handle(database, hostile("id"))
    assert all("not a request" in each for each in answers)
    assert database.execute("select count(*) from balances").fetchone() == (0,)
    database.close()


def test_to_database_keeps_every_record_whatever_it_contains(tmp_path: Path) -> None:
    module = load("to-database/to_database.py")
    database: Any = module.Database(f"sqlite:{tmp_path / 'd.db'}")
    for statement in module.SCHEMA:
        database.execute(statement)
    epoch, _ = module.take_over(database, "t", "id", new_topic=False)
    bad = [*hostile("customer"), *records(r'{"customer": "a\u0000b", "amount": 1}')]
    bad = [each._replace(offset=offset) for offset, each in enumerate(bad)]
    module.store(database, "t", "id", epoch, bad)
    assert database.execute("select count(*) from refused").fetchone() == (len(bad),)
    assert database.execute("select next_offset from positions").fetchone() == (len(bad),)


@pytest.mark.parametrize("name", ["inbox/inbox.py", "outbox/service.py", "two-phase/two_phase.py"])
def test_what_the_log_is_told_after_a_commit_is_not_taken_back_by_a_power_cut(name: str, tmp_path: Path) -> None:
    module = load(name)
    path = str(tmp_path / "a.db")
    database: sqlite3.Connection = module.Log(path)._database if "two" in name else module.connect(path)
    assert database.execute("pragma synchronous").fetchone() == (EXTRA,)
    assert database.execute("pragma journal_mode").fetchone() == ("delete",)
    database.close()
