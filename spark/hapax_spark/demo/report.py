"""The report page: one time line of throughput and kills for each part of the demo, and the verdict's table.

A single HTML file with inline SVG and no script: it opens anywhere, today and in ten years.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 960, 220, 70, 30

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1000px; margin: 2rem auto; color: #1b1f24; padding: 0 1rem }
h1 { font-size: 1.6rem } h2 { font-size: 1.15rem; margin-top: 2rem }
table { border-collapse: collapse; margin: 1rem 0 } th, td { padding: .35rem .8rem; border-bottom: 1px solid #d0d7de }
th { text-align: left } td.n { text-align: right; font-variant-numeric: tabular-nums }
.good { color: #1a7f37; font-weight: 600 } .bad { color: #cf222e; font-weight: 600 }
svg text { font: 11px system-ui, sans-serif; fill: #57606a }
"""


@dataclass
class Kill:
    """A SIGKILL: seconds since the part began, and what was killed."""

    second: float
    target: str


@dataclass
class Part:
    """One part of the demo as it went: samples are (seconds since its beginning, records so far)."""

    title: str
    samples: list[tuple[float, int]] = field(default_factory=list)
    kills: list[Kill] = field(default_factory=list)
    seconds: float = 0.0


def page(verdict: dict[str, Any], parts: Sequence[Part]) -> str:
    """The whole page. `verdict` is what `verdict.json` holds."""
    rows = []
    for name in ("exactly_once", "at_most_once", "at_least_once"):
        one = verdict[name]
        lost = _count(one["lost"])
        doubled = _count(one["duplicated"])
        rows.append(
            f"<tr><td>{escape(name.replace('_', '-'))}</td><td class=n>{one['input']:,}</td>"
            f"<td class=n>{one['output']:,}</td>{lost}{doubled}<td class=n>{one['seconds']:.1f}</td>"
            f"<td>{escape(', '.join(one['kills']))}</td></tr>"
        )
    windows = verdict["aggregation"]
    agree = "good" if windows["equal"] else "bad"
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><title>Hapax: every flight once</title>"
        f"<style>{_STYLE}</style><h1>Every flight once</h1>"
        "<p>Each input record has a number; the output is read back and counted. "
        "<em>Lost</em>: inputs without an output. <em>Duplicated</em>: outputs beyond the first.</p>"
        "<table><tr><th>delivery<th>input<th>output<th>lost<th>duplicated<th>seconds<th>killed</tr>"
        f"{''.join(rows)}</table>"
        f"<p>Windowed aggregation against the CSV: <span class={agree}>"
        f"{windows['windows']:,} windows, {windows['differing']:,} differ</span>.</p>"
        + "".join(_time_line(part) for part in parts)
        + "</html>\n"
    )


def _count(number: int) -> str:
    return f"<td class='n {'good' if number == 0 else 'bad'}'>{number:,}</td>"


def _time_line(part: Part) -> str:
    """Records per second over time, with a line for each kill."""
    rates = [
        ((t0 + t1) / 2, max(0.0, (n1 - n0) / (t1 - t0)))
        for (t0, n0), (t1, n1) in zip(part.samples, part.samples[1:], strict=False)
        if t1 > t0
    ]
    end = max([t for t, _ in part.samples] + [k.second for k in part.kills] + [1.0])
    top = max([rate for _, rate in rates] + [1.0])

    def x(second: float) -> float:
        return _LEFT + second / end * (_WIDTH - _LEFT - 10)

    def y(rate: float) -> float:
        return (_HEIGHT - _BOTTOM) - rate / top * (_HEIGHT - _BOTTOM - 20)

    line = " ".join(f"{x(t):.1f},{y(rate):.1f}" for t, rate in rates)
    base = _HEIGHT - _BOTTOM
    kills = "".join(
        f"<line x1={x(k.second):.1f} y1=12 x2={x(k.second):.1f} y2={base} stroke='#cf222e' stroke-dasharray='3 3'/>"
        f"<text x={x(k.second) + 3:.1f} y={20 + 12 * (i % 4)}>{escape(k.target)}</text>"
        for i, k in enumerate(part.kills)
    )
    ticks = "".join(
        f"<text x={x(end * i / 6):.1f} y={base + 16} text-anchor=middle>{end * i / 6:.0f} s</text>" for i in range(7)
    )
    return (
        f"<h2>{escape(part.title)}</h2><svg viewBox='0 0 {_WIDTH} {_HEIGHT}' role=img>"
        f"<line x1={_LEFT} y1={base} x2={_WIDTH - 10} y2={base} stroke='#8c959f'/>"
        f"<text x=4 y=22>{top:,.0f}/s</text><text x=4 y={base}>0/s</text>{ticks}"
        f"<polyline points='{line}' fill=none stroke='#0969da' stroke-width=1.5 />{kills}</svg>"
    )
