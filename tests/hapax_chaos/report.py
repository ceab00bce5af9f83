"""Two pages about a campaign, from build/chaos.json: a summary by group of scenarios, and the table of all runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

from hapax_chaos.catalogue import CLIENTS, GROUPS, SECURE_GROUPS

_OTHER = "no longer in the catalogue"

_Verdict = dict[str, Any]
"""One entry of `verdicts` in build/chaos.json."""


def write_report(summary: dict[str, Any], path: Path, table: Path) -> None:
    """Writes the summary to `path` and the table of all runs to `table`."""
    verdicts = list({(v["scenario"], v["client"]): v for v in summary["verdicts"]}.values())
    path.write_text("\n".join(_summary(summary, verdicts)) + "\n")
    table.write_text("\n".join(_table(verdicts)) + "\n")


def _summary(summary: dict[str, Any], verdicts: Sequence[_Verdict]) -> list[str]:
    totals: Counter[str] = Counter()
    for verdict in verdicts:
        totals.update(verdict["transactions"])
    scenarios = len({verdict["scenario"] for verdict in verdicts})
    whole = len(verdicts) == scenarios * len(CLIENTS)
    outcome = (
        f"Commit `{summary['commit'][:12]}`: {scenarios} scenarios, "
        f"each with {'the' if whole else 'one or both of the'} clients {' and '.join(CLIENTS)}. "
        f"{len(verdicts)} runs: **{summary['passed']} passed, {summary['failed']} failed**. The clients committed "
        f"{totals['ok']:,} transactions and aborted {totals['fail']:,}; the outcome of {totals['info']:,} stayed "
        "unknown to them. The history checker judged all of them, and the replicas were compared byte by byte after "
        "each run."
    )
    lines = [
        "# Chaos: results",
        "",
        fill(outcome, 120),
        "",
        "| fault | scenarios | runs | passed | failed | of these, nothing to break |",
        "|---|---|---|---|---|---|",
    ]
    for title, members in _groups(verdicts):
        passed = sum(verdict["passed"] for verdict in members)
        idle = sum(verdict["idle"] and verdict["passed"] for verdict in members)
        names = len({verdict["scenario"] for verdict in members})
        lines.append(f"| {title} | {names} | {len(members)} | {passed} | {len(members) - passed} | {idle} |")
    lines += [
        "",
        fill("\"Nothing to break\" counts runs whose fault met no target. Mostly, the client never sent the request "
             "that the fault waits for.", 120),
    ]
    if failed := [verdict for verdict in verdicts if not verdict["passed"]]:
        lines += ["", "| failed | client | finding |", "|---|---|---|"]
        lines += [
            f"| `{verdict['scenario']}` | {verdict['client']} | {verdict['findings'][0].partition(':')[0]} |"
            for verdict in failed
        ]
    lines += [
        "",
        fill("`PYTHONPATH=tests .venv/bin/python -m hapax_chaos --report docs/chaos-results.md` writes this page from "
             "`build/chaos.json`, and the table of all runs to `build/chaos-results.md`. [chaos.md](chaos.md) explains "
             "the scenarios.", 120),
    ]
    return lines


def _groups(verdicts: Sequence[_Verdict]) -> list[tuple[str, list[_Verdict]]]:
    """The groups that have runs, in the catalogue's order."""
    title_of = {scenario.name: title for title, group in (GROUPS | SECURE_GROUPS).items() for scenario in group()}
    members: dict[str, list[_Verdict]] = {title: [] for title in (*GROUPS, *SECURE_GROUPS, _OTHER)}
    for verdict in verdicts:
        members[title_of.get(verdict["scenario"], _OTHER)].append(verdict)
    return [(title, group) for title, group in members.items() if group]


def _table(verdicts: Sequence[_Verdict]) -> list[str]:
    by_run = {(verdict["scenario"], verdict["client"]): verdict for verdict in verdicts}
    lines = [
        "# Chaos: all runs",
        "",
        "A cell has the transactions committed + aborted + of unknown outcome, and the duration.",
        "",
        "| scenario | " + " | ".join(CLIENTS) + " |",
        "|---|" + "---|" * len(CLIENTS),
    ]
    for name in dict.fromkeys(verdict["scenario"] for verdict in verdicts):
        cells = [_cell(by_run.get((name, client))) for client in CLIENTS]
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    return lines


def _cell(verdict: _Verdict | None) -> str:
    if verdict is None:
        return "not run"
    counts = verdict["transactions"]
    done = f"{counts.get('ok', 0)} + {counts.get('fail', 0)} + {counts.get('info', 0)}, {verdict['seconds']:.0f} s"
    if verdict["idle"] and verdict["passed"]:
        return "nothing to break"
    return f"ok ({done})" if verdict["passed"] else f"**failed**: {verdict['findings'][0].partition(':')[0]}"
