"""Figures of `make bench`: one JSON line each in build/bench.jsonl (or HAPAX_BENCH_FIGURES), and a table at the end.

A benchmark calls `record("fetch_cpu", 0.21, "CPU-s/GB", at_most=0.3)`. `ok` is the comparison with the target.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILE = Path(os.environ.get("HAPAX_BENCH_FIGURES") or ROOT / "build" / "bench.jsonl")


@dataclass(frozen=True, slots=True)
class Figure:
    name: str
    value: float
    unit: str
    target: str
    """`<= 70`, `>= 400`, or empty for a figure without a target."""
    ok: bool


recorded: list[Figure] = []


def record(
    name: str, value: float, unit: str, *, at_most: float | None = None, at_least: float | None = None
) -> Figure:
    """Appends one figure to the file and to the table."""
    value = float(f"{value:.4g}")
    ok = (at_most is None or value <= at_most) and (at_least is None or value >= at_least)
    target = f"<= {at_most:g}" if at_most is not None else f">= {at_least:g}" if at_least is not None else ""
    figure = Figure(name, value, unit, target, ok)
    FILE.parent.mkdir(exist_ok=True)
    with FILE.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(figure)) + "\n")
    recorded.append(figure)
    print(f"  {name}: {value:g} {unit} {target} {'' if ok else 'MISSED'}", file=sys.stderr, flush=True)
    return figure


def print_table() -> None:
    from hapax.cli.output import print_table

    rows = [(each.name, each.value, each.unit, each.target, "ok" if each.ok else "missed") for each in recorded]
    print_table("Figures", ("name", "value", "unit", "target", ""), rows)
