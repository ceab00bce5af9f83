"""What a mutant is."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Mutant(NamedTuple):
    """`old`, which occurs exactly once in `path` (below services/hapax), is replaced by `new`."""

    name: str
    about: str
    """The design's rule, or the origin of the bug."""
    path: str
    old: str
    new: str
    checks: tuple[str, ...]
    """In this order, until one finds it: `scenarios`, `unit/<below tests/unit>`, `sim <seeds> <arguments>`, `explore
    <scope> <arguments>`."""

    def put_in(self, services: Path) -> None:
        """Applies it to a copy of the folder services/."""
        (services / "hapax" / self.path).write_text(self.mutated(services))

    def mutated(self, services: Path) -> str:
        """The file with the bug. Raises SystemExit where the code has changed."""
        text = (services / "hapax" / self.path).read_text()
        if text.count(self.old) != 1:
            raise SystemExit(f"{self.name}: its place in {self.path} stands there {text.count(self.old)} times")
        return text.replace(self.old, self.new)


SCENARIOS = "scenarios"


def unit(path: str) -> str:
    return f"unit/{path}"


def sim(seeds: str = "1-4", arguments: str = "--hours 0.004 --faults-every 1") -> str:
    """Runs one history after another, until one has an anomaly."""
    return f"sim {seeds} {arguments}"


def explore(scope: str, arguments: str = "") -> str:
    """Explores every interleaving, until one violates an invariant."""
    return f"explore {scope} {arguments}".rstrip()
