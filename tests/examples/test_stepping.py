"""The helper that kills programs between their statements."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.stepping import Program, steps

COUNTS = """
import sys
with open(sys.argv[1], "a", buffering=1) as file:
    for number in range(3):
        print(number, file=file)
    print("end", file=file)
print("done")
"""
LINES = [2, 3, 4, 5, 4, 5, 4, 5, 4, 6, 3, 7]
"""As Python executes them: `with` again at its end."""


@pytest.fixture
def program(tmp_path: Path) -> Program:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "counts.py").write_text(COUNTS)
    return Program(tmp_path / "code" / "counts.py", tmp_path / "runs")


def test_it_is_killed_before_each_executed_line_and_no_later(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = program.run(str(tmp_path / "whole"))
    assert whole.code == 0 and whole.output == "done\n" and not whole.killed
    assert whole.lines == tuple(f"counts.py:{line}" for line in LINES)
    monkeypatch.setenv("EXAMPLE_STEPS", "all")
    assert steps(whole) == list(range(1, len(LINES) + 1))
    for step in steps(whole):
        killed = program.run(str(tmp_path / f"s{step}"), kill_at=step)
        assert killed.killed and killed.lines == (f"counts.py:{LINES[step - 1]}",)
        before = LINES[: step - 1]
        written = "".join(f"{number}\n" for number in range(before.count(5))) + "end\n" * (6 in before)
        path = tmp_path / f"s{step}"
        assert (path.read_text() if path.exists() else "") == written
    assert program.run(str(tmp_path / "beyond"), kill_at=len(LINES) + 1).code == 0


def test_a_sample_spans_the_code(program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EXAMPLE_STEPS", raising=False)
    whole = program.run(str(tmp_path / "whole"))
    assert steps(whole, 3)[0] == 1 and steps(whole, 3)[-1] >= 11
    assert len(steps(whole, 3)) == 3 and len(steps(whole, 100)) == len(set(LINES))


def test_it_is_paused_and_goes_on(program: Program, tmp_path: Path) -> None:
    whole = program.run(str(tmp_path / "whole"))
    paused = program.start(str(tmp_path / "p"), pause_at=program.step_at(whole, 'print("end"'))
    paused.wait_paused()
    assert (tmp_path / "p").read_text() == "0\n1\n2\n"
    paused.go_on()
    assert paused.wait().code == 0 and (tmp_path / "p").read_text() == "0\n1\n2\nend\n"


def test_a_place_has_to_be_one_line_that_was_executed(program: Program, tmp_path: Path) -> None:
    whole = program.run(str(tmp_path / "whole"))
    assert program.step_at(whole, "print(number") == 4 and program.step_at(whole, "print(number", last=True) == 8
    with pytest.raises(AssertionError, match="is in"):
        program.step_at(whole, "print(")
    with pytest.raises(AssertionError, match="no line"):
        program.step_at(whole, "nothing")
