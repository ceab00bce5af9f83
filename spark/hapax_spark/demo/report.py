"""The report page: a time line of throughput and kills for each part of the demo, and the table of results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from hapax.local.timeline import STYLE, Kill, Line, chart, count_cell


@dataclass
class Part:
    """Measurements of one part of the demo. Samples are (seconds since its start, records so far)."""

    title: str
    samples: list[tuple[float, int]] = field(default_factory=list)
    kills: list[Kill] = field(default_factory=list)
    seconds: float = 0.0
    refusal: str = ""
    """The query's error for an older copy of its checkpoint; empty if it did not refuse it, or none was restored."""


def page(verdict: dict[str, Any], parts: Sequence[Part]) -> str:
    """The whole page. `verdict`: the content of `verdict.json`."""
    rows = []
    for name in ("exactly_once", "at_most_once", "at_least_once"):
        one = verdict[name]
        lost = count_cell(one["lost"])
        doubled = count_cell(one["duplicated"])
        rows.append(
            f"<tr><td>{escape(name.replace('_', '-'))}</td><td class=n>{one['input']:,}</td>"
            f"<td class=n>{one['output']:,}</td>{lost}{doubled}<td class=n>{one['seconds']:.1f}</td>"
            f"<td>{escape(', '.join(one['kills']))}</td></tr>"
        )
    windows, older = verdict["aggregation"], verdict["older_checkpoint"]
    agree = "good" if windows["equal"] else "bad"
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><title>Hapax: every flight once</title>"
        f"<style>{STYLE}</style><h1>Every flight once</h1>"
        "<p>Each input record has a number; the output is read back and counted. "
        "<em>Lost</em>: inputs without an output. <em>Duplicated</em>: outputs beyond the first.</p>"
        "<table><tr><th>delivery<th>input<th>output<th>lost<th>duplicated<th>seconds<th>killed or replaced</tr>"
        f"{''.join(rows)}</table>"
        f"<p>Windowed aggregation against the CSV: <span class={agree}>"
        f"{windows['windows']:,} windows, {windows['differing']:,} differ</span>.</p>"
        f"<p>An older checkpoint that was restored: <span class={'good' if older['refused'] else 'bad'}>"
        f"{escape(older['said'] or 'it was not refused')}</span></p>"
        + "".join(_time_line(part) for part in parts)
        + "</html>\n"
    )


def _time_line(part: Part) -> str:
    """Records per second over time, with a line for each kill."""
    rates = [
        ((t0 + t1) / 2, max(0.0, (n1 - n0) / (t1 - t0)))
        for (t0, n0), (t1, n1) in zip(part.samples, part.samples[1:], strict=False)
        if t1 > t0
    ]
    end = max([t for t, _ in part.samples] + [1.0])
    return chart(part.title, [Line("records", rates)], part.kills, unit="/s", end=end)
