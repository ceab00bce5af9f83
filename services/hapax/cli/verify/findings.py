"""The findings of a verification, and counts of what it read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple


class Finding(NamedTuple):
    """One problem in one file."""

    file: str
    """Path of the file, including its folder."""
    what: str
    offset: int | None = None
    """Offset in the partition."""
    position: int | None = None
    """Byte position in the file."""


@dataclass(slots=True)
class Findings:
    """Collected over any number of folders."""

    damage: list[Finding] = field(default_factory=list)
    """Data is lost or wrong."""
    notes: list[Finding] = field(default_factory=list)
    """Nothing is lost: the next start repairs the file, or it could not be checked."""

    def damaged(self, file: Path | str, what: str, *, offset: int | None = None, position: int | None = None) -> None:
        self.damage.append(Finding(str(file), what, offset, position))

    def noted(self, file: Path | str, what: str, *, offset: int | None = None, position: int | None = None) -> None:
        self.notes.append(Finding(str(file), what, offset, position))

    def add(self, other: Findings) -> None:
        self.damage += other.damage
        self.notes += other.notes

    def confirmed_by(self, later: Findings) -> Findings:
        """The findings that a second check found again. The others were changes in progress of a running process."""
        again = set(later.damage)
        return Findings([finding for finding in self.damage if finding in again], later.notes)


@dataclass(slots=True)
class Counts:
    """Numbers of objects that were read."""

    partitions: int = 0
    segments: int = 0
    batches: int = 0
    records: int = 0
    bytes: int = 0
    index_entries: int = 0
    snapshots: int = 0

    def add(self, others: Iterable[Counts]) -> Counts:
        for other in others:
            for name in self.__slots__:
                setattr(self, name, getattr(self, name) + getattr(other, name))
        return self
