"""A plugin of pytest for `make security-test`: a client's test that was skipped, for want of Java or Go, fails the run.
Elsewhere such a test may be skipped; here nothing would tell a whole proof from half of one. SECURITY_MAY_SKIP=1 lets
it pass."""

from __future__ import annotations

import os
from typing import Final

import pytest

WANTED: Final = ("tests/clients/", "tests/security/")
_missed: list[str] = []


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and not hasattr(report, "wasxfail") and report.nodeid.startswith(WANTED):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
        _missed.append(f"{report.nodeid}: {reason}")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    counts = bool(_missed) and not os.environ.get("SECURITY_MAY_SKIP") and not hasattr(session.config, "workerinput")
    if counts and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _missed:
        terminalreporter.section("not run: install what they need, or set SECURITY_MAY_SKIP=1")
        for each in _missed:
            terminalreporter.write_line(each)
