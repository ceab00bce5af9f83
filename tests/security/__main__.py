"""Runs the tests about security: `python -m security [OPTIONS OF PYTEST]`."""

from __future__ import annotations

import os
import sys

from security import ROOT, SUITE

HANDSHAKES = "10000"
"""Half-open ones at a time (abuse case 4)."""


def main() -> None:
    environment = {**os.environ, "SECURITY": "all"}
    environment.setdefault("HAPAX_TEST_HANDSHAKES", HANDSHAKES)
    pytest = [sys.executable, "-m", "pytest", "-p", "security.whole"]
    command = [*pytest, *sys.argv[1:], *(str(ROOT / each) for each in SUITE)]
    os.chdir(ROOT)
    os.execvpe(command[0], command, environment)


main()
