"""Every command of docs/rest.md, in order, against a real service."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from integration.admin_process import ADMIN_TOKEN, AdminProcess

PAGE = Path(__file__).parents[3] / "docs" / "rest.md"


def examples() -> list[tuple[int, str]]:
    """Line number and text of each."""
    text = PAGE.read_text()
    return [
        (text.count("\n", 0, found.start(1)) + 1, found.group(1))
        for found in re.finditer(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)]


@pytest.mark.skipif(shutil.which("curl") is None, reason="the examples are curl's")
def test_every_command_of_the_page(rest: AdminProcess) -> None:
    found = examples()
    assert len(found) >= 24
    environment = os.environ | {"API": f"http://127.0.0.1:{rest.port}", "TOKEN": ADMIN_TOKEN}
    for line, command in found:
        done = subprocess.run(
            ["bash", "-eo", "pipefail", "-c", command], env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"{PAGE.name}:{line}: {done.stdout}{done.stderr}"
        if done.stdout.startswith("{"):
            assert json.loads(done.stdout), f"{PAGE.name}:{line}"


def test_the_page_knows_every_status_that_is_answered() -> None:
    from hapax.admin.answers import PROBLEMS

    text = PAGE.read_text()
    assert not [status for status in PROBLEMS if status != 415 and str(status) not in text]
