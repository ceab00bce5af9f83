"""Wrong usage ends a command before it asks anybody."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from hapax.cli.main import application


@pytest.mark.parametrize("words", [("offsets", "t"), ("look", "t", "0")])
def test_an_isolation_level_that_does_not_exist_is_refused(words: tuple[str, ...]) -> None:
    done = CliRunner().invoke(
        application(["topic"]), ["topic", *words, "--isolation-level", "read_comitted", "--bootstrap", "127.0.0.1:1"])
    assert done.exit_code == 2 and "read_comitted" in done.stderr
