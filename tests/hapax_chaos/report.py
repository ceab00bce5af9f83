"""The page about a campaign: every scenario with both clients, from build/chaos.json."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from hapax_chaos.catalogue import CLIENTS


def write_report(summary: dict[str, Any], path: Path) -> None:
    verdicts = {(v["scenario"], v["client"]): v for v in summary["verdicts"]}
    names = list(dict.fromkeys(name for name, _ in verdicts))
    totals: Counter[str] = Counter()
    for verdict in verdicts.values():
        totals.update(verdict["transactions"])
    lines = [
        "# Chaos: what ran",
        "",
        f"At commit `{summary['commit'][:12]}`: {len(names)} scenarios, {len(verdicts)} runs, "
        f"**{summary['passed']} passed, {summary['failed']} failed**; {totals['ok']} transactions committed, "
        f"{totals['fail']} aborted, {totals['info']} of unknown outcome, all judged by the history checker; replicas "
        f"compared byte by byte after each run. In {summary['idle']} runs the fault found nothing to break (the client "
        "never sends such a request). A cell tells transactions committed + aborted + of unknown outcome. Written by "
        "`python -m hapax_chaos --report` from build/chaos.json; see [chaos.md](chaos.md) for the names.",
        "",
        "| scenario | " + " | ".join(CLIENTS) + " |",
        "|---|" + "---|" * len(CLIENTS),
    ]
    for name in names:
        cells = [_cell(verdicts.get((name, client))) for client in CLIENTS]
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    path.write_text("\n".join(lines) + "\n")


def _cell(verdict: dict[str, Any] | None) -> str:
    if verdict is None:
        return "not run"
    counts = verdict["transactions"]
    done = f"{counts.get('ok', 0)} + {counts.get('fail', 0)} + {counts.get('info', 0)}, {verdict['seconds']:.0f} s"
    if verdict["idle"] and verdict["passed"]:
        return "nothing to break"
    return f"ok ({done})" if verdict["passed"] else f"**failed**: {verdict['findings'][0].partition(':')[0]}"
