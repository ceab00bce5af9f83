"""What a mutant is."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Mutant(NamedTuple):
    """`old`, which stands exactly once in `path` (below services/hapax), becomes `new`."""

    name: str
    about: str
    """The design's rule, or whose bug it was."""
    path: str
    old: str
    new: str
    checks: tuple[str, ...]
    """In this order, until one finds it: `scenarios`, `unit/<below tests/unit>`, `sim <seeds> <arguments>`,
    `explore <scope> <arguments>`."""

    def put_in(self, services: Path) -> None:
        """Into a copy of the folder services/."""
        path = services / "hapax" / self.path
        text = path.read_text()
        if text.count(self.old) != 1:
            raise SystemExit(f"{self.name}: its place in {self.path} stands there {text.count(self.old)} times")
        path.write_text(text.replace(self.old, self.new))


SCENARIOS = "scenarios"


def unit(path: str) -> str:
    return f"unit/{path}"


def sim(seeds: str = "1-4", arguments: str = "--hours 0.004 --faults-every 1") -> str:
    """One history after the other, until one has an anomaly."""
    return f"sim {seeds} {arguments}"


def explore(scope: str, arguments: str = "") -> str:
    """Every interleaving, until one breaks an invariant."""
    return f"explore {scope} {arguments}".rstrip()
