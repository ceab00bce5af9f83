"""Plays every script. With HAPAX_UPDATE_SCENARIOS=1 rewrites their output instead, to be reviewed as a diff."""

from __future__ import annotations

from pathlib import Path

import pytest

from hapax_explore.scopes import SCOPES
from hapax_explore.search import Explorer, script
from scenarios.script import Command, ScriptError, parse_command, run_script, update_wanted

SCRIPTS = sorted(Path(__file__).parent.rglob("*.txt"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: str(path.relative_to(Path(__file__).parent)))
def test_scenario(path: Path) -> None:
    expected, actual = run_script(path)
    if update_wanted():
        path.write_text(actual, encoding="utf-8")
        return
    assert actual == expected, f"{path.name} prints something else; `make scenarios-update` shows it as a diff"


def test_a_script_that_expects_something_else_fails(tmp_path: Path) -> None:
    path = tmp_path / "wrong.txt"
    path.write_text("> machine echo\n\n> say a b=c\nsaid nothing\n", encoding="utf-8")
    expected, actual = run_script(path)
    assert actual != expected
    assert actual.endswith("> say a b=c\nsay ('a',) {'b': 'c'}\n")


def test_a_script_without_a_machine_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "wrong.txt"
    path.write_text("> say a\n", encoding="utf-8")
    with pytest.raises(ScriptError, match=r"wrong\.txt:1: the first command"):
        run_script(path)


def test_a_command_without_its_mark_is_an_error_and_does_not_vanish(tmp_path: Path) -> None:
    path = tmp_path / "wrong.txt"
    path.write_text("> machine echo\n\nsay a\n> say b\n", encoding="utf-8")
    with pytest.raises(ScriptError, match=r"wrong\.txt:3: `say a` is neither prose nor the output of a command"):
        run_script(path)


def test_a_printed_counterexample_plays_as_a_script(tmp_path: Path) -> None:
    explorer = Explorer(SCOPES["zombie"]())
    path = tmp_path / "counterexample.txt"
    path.write_text(script("zombie", [next(explorer.steps(explorer.first())).text]), encoding="utf-8")
    expected, actual = run_script(path)
    assert actual.startswith(expected)
    assert "not possible" not in actual
    assert "BROKEN" not in actual


def test_values_with_spaces_stand_in_quotes() -> None:
    command = parse_command('say "two words" to="a b" n=1_000')
    assert command == Command("say", ("two words",), {"to": "a b", "n": "1_000"}, command.line)
    assert command.number("n") == 1000
