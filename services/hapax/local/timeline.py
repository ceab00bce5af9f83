"""Charts over time for report pages: inline SVG and no script, so that a page opens anywhere, in ten years, too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 960, 220, 70, 30
_COLOURS: Final = ("#0969da", "#1a7f37", "#8250df", "#bf8700")

STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1000px; margin: 2rem auto; color: #1b1f24; padding: 0 1rem }
h1 { font-size: 1.6rem } h2 { font-size: 1.15rem; margin-top: 2rem }
table { border-collapse: collapse; margin: 1rem 0 } th, td { padding: .35rem .8rem; border-bottom: 1px solid #d0d7de }
th { text-align: left } td.n { text-align: right; font-variant-numeric: tabular-nums }
.good { color: #1a7f37; font-weight: 600 } .bad { color: #cf222e; font-weight: 600 }
svg text { font: 11px system-ui, sans-serif; fill: #57606a }
"""


@dataclass
class Kill:
    """A SIGKILL: seconds since the chart's beginning, and what was killed."""

    second: float
    target: str


@dataclass
class Line:
    """Points are (second, value)."""

    name: str
    points: Sequence[tuple[float, float]]


def count_cell(number: int) -> str:
    """A table cell of what should be 0."""
    return f"<td class='n {'good' if number == 0 else 'bad'}'>{number:,}</td>"


def chart(title: str, lines: Sequence[Line], kills: Sequence[Kill], *, unit: str, end: float = 1.0) -> str:
    """Lines over a common time, `end` seconds of it at least, with a mark for each kill. `unit` follows the figures of
    the vertical axis, as in `/s` or ` ms`."""
    end = max([t for line in lines for t, _ in line.points] + [kill.second for kill in kills] + [end])
    top = max([value for line in lines for _, value in line.points] + [1.0])
    base = _HEIGHT - _BOTTOM

    def x(second: float) -> float:
        return _LEFT + second / end * (_WIDTH - _LEFT - 10)

    def y(value: float) -> float:
        return base - value / top * (base - 20)

    drawn = "".join(
        f"<polyline points='{' '.join(f'{x(t):.1f},{y(value):.1f}' for t, value in line.points)}' fill=none "
        f"stroke='{colour}' stroke-width=1.5 />"
        for line, colour in zip(lines, _cycle(len(lines)), strict=True)
    )
    names = "" if len(lines) < 2 else "".join(
        f"<text x={_LEFT + 8 + 150 * number} y={_HEIGHT - 2} style='fill:{colour}'>{escape(line.name)}</text>"
        for number, (line, colour) in enumerate(zip(lines, _cycle(len(lines)), strict=True))
    )
    marks = "".join(
        f"<line x1={x(k.second):.1f} y1=12 x2={x(k.second):.1f} y2={base} stroke='#cf222e' stroke-dasharray='3 3'/>"
        f"<text x={x(k.second) + 3:.1f} y={20 + 12 * (i % 4)}>{escape(k.target)}</text>"
        for i, k in enumerate(kills)
    )
    ticks = "".join(
        f"<text x={x(end * i / 6):.1f} y={base + 16} text-anchor=middle>{end * i / 6:.0f} s</text>" for i in range(7)
    )
    return (
        f"<h2>{escape(title)}</h2><svg viewBox='0 0 {_WIDTH} {_HEIGHT}' role=img>"
        f"<line x1={_LEFT} y1={base} x2={_WIDTH - 10} y2={base} stroke='#8c959f'/>"
        f"<text x=4 y=22>{top:,.0f}{escape(unit)}</text><text x=4 y={base}>0{escape(unit)}</text>{ticks}"
        f"{drawn}{marks}{names}</svg>"
    )


def _cycle(count: int) -> list[str]:
    return [_COLOURS[number % len(_COLOURS)] for number in range(count)]
