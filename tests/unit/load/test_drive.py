"""How locust's processes are run: to the end of the first, or of the time that they have."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hapax_load.__main__ import drive

WAITS = "import os, pathlib, signal; pathlib.Path({path!r}).write_text(str(os.getpid())); signal.pause()"


def waiting(path: Path) -> list[str]:
    return [sys.executable, "-c", WAITS.format(path=str(path))]


def test_one_that_does_not_end_is_ended_and_so_are_its_workers(tmp_path: Path) -> None:
    with pytest.raises(TimeoutError, match=r"did not end within 3 s: see .*locust.log"):
        drive([waiting(tmp_path / "first"), waiting(tmp_path / "second")], "", tmp_path, 3)
    for name in ("first", "second"):
        with pytest.raises(ProcessLookupError):
            os.kill(int((tmp_path / name).read_text()), 0)


def test_one_that_fails_says_where_to_look(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"ended with 7: see .*locust.log"):
        drive([[sys.executable, "-c", "raise SystemExit(7)"], waiting(tmp_path / "second")], "", tmp_path, 60)
