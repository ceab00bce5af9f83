"""The pages about a campaign."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hapax_chaos.report import write_report


def verdict(scenario: str, client: str, *findings: str, idle: bool = False) -> dict[str, Any]:
    return {
        "scenario": scenario, "client": client, "passed": not findings, "idle": idle, "findings": list(findings),
        "transactions": {"ok": 1000, "fail": 2, "info": 1}, "seconds": 3.4,
    }  # fmt: skip


def test_the_summary_counts_by_group_and_names_what_failed(tmp_path: Path) -> None:
    verdicts = [
        verdict("kill@leader", "native"),
        verdict("kill@leader", "librdkafka", "lost: record 7", "open: t-0"),
        verdict("late@PRODUCE", "native", idle=True),
        verdict("gone@leader", "native"),
    ]
    summary = {"commit": "0123456789abcdef", "passed": 3, "failed": 1, "verdicts": verdicts}
    page, table = tmp_path / "page.md", tmp_path / "table.md"

    write_report(summary, page, table)

    text = " ".join(page.read_text().split())
    assert "Commit `0123456789ab`: 3 scenarios" in text
    assert "4 runs: **3 passed, 1 failed**" in text
    assert "committed 4,000 transactions and aborted 8; the outcome of 4 stayed unknown" in text
    assert "| processes killed, frozen and stopped | 1 | 2 | 1 | 1 | 0 |" in text
    assert "| single requests late, unanswered, doubled or slow | 1 | 1 | 1 | 0 | 1 |" in text
    assert "| no longer in the catalogue | 1 | 1 | 1 | 0 | 0 |" in text
    assert "| `kill@leader` | librdkafka | lost |" in text
    assert "files torn" not in text
    assert "| `kill@leader` | ok (1000 + 2 + 1, 3 s) | **failed**: lost |" in table.read_text()
    assert "| `late@PRODUCE` | nothing to break | not run |" in table.read_text()
