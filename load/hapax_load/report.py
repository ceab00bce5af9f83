"""The report page: the verdict, and throughput, latency and kills on one time line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from html import escape

from hapax.local.timeline import STYLE, Kill, Line, chart, count_cell
from hapax_load.ledger import Verdict
from hapax_load.statistics import Course
from hapax_load.steadiness import Slope

_BAD = ("lost", "doubled", "shown", "torn")
_REST = ("kept", "unknown_kept", "unreported")


def page(
    title: str, verdicts: Mapping[str, Verdict], courses: Mapping[str, Course], kills: Sequence[Kill], seconds: float,
    slopes: Mapping[str, Mapping[str, Slope]],
) -> str:
    """`slopes`: process -> figure -> slope."""
    rows = "".join(
        f"<tr><td>{escape(topic)}</td>" + "".join(f"<td class=n>{getattr(verdict, name):,}</td>" for name in _REST)
        + "".join(count_cell(getattr(verdict, name)) for name in _BAD) + "</tr>"
        for topic, verdict in verdicts.items()
    )
    requests = "".join(
        f"<tr><td>{escape(name)}</td><td class=n>{course.requests:,}</td>{count_cell(course.failures)}</tr>"
        for name, course in courses.items()
    )
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8>",
        f"<title>Hapax: {escape(title)}</title><style>{STYLE}</style><h1>{escape(title)}</h1>",
        "<p>Every record has a number, and every acknowledged record is looked up after the load. <em>Shown</em>: "
        "records of aborted transactions that a read_committed consumer sees. <em>Torn</em>: records of transactions "
        "of which only a part exists. <em>Unreported</em>: records of a worker that was killed before its report.</p>",
        "<table><tr><th>topic<th>kept<th>unknown, kept<th>unreported<th>lost<th>doubled<th>shown<th>torn</tr>",
        f"{rows}</table><table><tr><th>request<th>answers<th>failures</tr>{requests}</table>",
        chart("Throughput", [Line(name, c.rate) for name, c in courses.items()], kills, unit="/s", end=seconds),
    ]
    for name, course in courses.items():
        lines = [Line("median", course.median), Line("99th percentile", course.p99)]
        parts.append(chart(f"Latency: {name}", lines, kills, unit=" ms", end=seconds))
    if slopes:
        parts.append("<h2>Steadiness, change in ten minutes</h2><table><tr><th>process<th>figure<th>change</tr>")
        parts += [
            f"<tr><td>{escape(process)}</td><td>{escape(figure)}</td>"
            f"<td class='n {'good' if found.level else 'bad'}'>{found.share:+.2%}</td></tr>"
            for process, figures in slopes.items() for figure, found in figures.items()
        ]
        parts.append("</table>")
    return "".join([*parts, "</html>\n"])


def as_json(verdicts: Mapping[str, Verdict], courses: Mapping[str, Course], kills: Sequence[Kill]) -> dict[str, object]:
    return {
        "clean": all(verdict.clean for verdict in verdicts.values()),
        "topics": {topic: asdict(verdict) for topic, verdict in verdicts.items()},
        "requests": {name: {"answers": c.requests, "failures": c.failures} for name, c in courses.items()},
        "kills": [asdict(kill) for kill in kills],
    }
