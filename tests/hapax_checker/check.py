"""All checks of a history, and which of their findings are allowed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from hapax_checker import anomalies, cycles
from hapax_checker.record import Operation, completions
from hapax_checker.versions import Knowledge

ALLOWED_ALWAYS: Final = frozenset({"int-send-skip", "G0", "G1c-with-ww"})
"""Records of other producers may stand between two records of one transaction, and transactions interleave in a log."""

ALLOWED_UNDER_SUBSCRIBE: Final = frozenset({"poll-skip", "nonmonotonic-poll"})
"""A rebalance moves positions without notice to the operation."""

_NAMED: Final[dict[str, Callable[[Knowledge], Iterator[str]]]] = {
    "inconsistent-offsets": anomalies.inconsistent_offsets,
    "duplicate": anomalies.duplicate,
    "G1a": anomalies.aborted_read,
    "precommitted-read": anomalies.precommitted_read,
    "lost-write": anomalies.lost_write,
    "unseen": anomalies.unseen,
    "torn": anomalies.torn,
    "phantom": anomalies.phantom,
    "nonmonotonic-send": anomalies.nonmonotonic_send,
}
_NAMING: Final[tuple[Callable[[Knowledge], Iterator[tuple[str, str]]], ...]] = (
    anomalies.int_poll,
    anomalies.int_send,
    anomalies.poll_across,
    cycles.cycles,
)
_SHOWN: Final = 5


@dataclass
class Report:
    """The findings: name of the anomaly -> all its sentences."""

    operations: int
    values: int
    anomalies: dict[str, list[str]] = field(default_factory=dict)
    allowed: dict[str, list[str]] = field(default_factory=dict)

    @property
    def valid(self) -> bool:
        return not self.anomalies

    def sentences(self, each: int = _SHOWN) -> list[str]:
        """`name: sentence`, at most `each` for one name."""
        return [f"{name}: {s}" for name, found in self.anomalies.items() for s in found[:each]]

    def __str__(self) -> str:
        counts = ", ".join(f"{len(found)} {name}" for name, found in self.anomalies.items()) or "no anomaly"
        head = f"{self.operations} operations, {self.values} values: {counts}"
        return "\n  ".join([head, *self.sentences()])


def check(history: Iterable[Operation], *, subscribe: bool | None = None) -> Report:
    """Judges a whole history, including the final reads.

    `subscribe`: whether consumers got their keys by group membership. By default, whether any operation says so.
    """
    recorded = list(history)
    if subscribe is None:
        subscribe = any(operation.f == "subscribe" for operation in recorded)
    known = Knowledge(completions(recorded))
    report = Report(len(known.done), len(known.writers))
    tolerated = ALLOWED_ALWAYS | (ALLOWED_UNDER_SUBSCRIBE if subscribe else frozenset())
    found: dict[str, list[str]] = {}
    for name, one in _NAMED.items():
        for sentence in one(known):
            found.setdefault(name, []).append(sentence)
    for several in _NAMING:
        for name, sentence in several(known):
            found.setdefault(name, []).append(sentence)
    for name, sentences in found.items():
        (report.allowed if name in tolerated else report.anomalies)[name] = sentences
    return report
