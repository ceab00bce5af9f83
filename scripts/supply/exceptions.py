"""Reads the exceptions to `make audit-deps`: which known vulnerability is accepted, why, and until when."""

from __future__ import annotations

import datetime
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from scripts.supply.databases import Finding

LONGEST: Final = datetime.timedelta(days=190)
"""An exception is looked at twice a year."""
_FIELDS: Final = {"id", "package", "lock", "until", "reason"}
WHOLE: Final = "*"


class Unfit(Exception):
    """The file of exceptions does not have the form that this module describes."""


@dataclass(frozen=True)
class Exemption:
    id: str
    """Any name of the vulnerability, or `*`: every one of the whole lock file, which then is not audited at all."""
    package: str
    """Empty: any."""
    lock: str
    """Path of the lock file. Empty: any."""
    until: datetime.date
    """The last day on which it counts."""
    reason: str

    def covers(self, finding: Finding) -> bool:
        return (self.id in (WHOLE, *finding.ids) and self.package in ("", finding.package)
                and self.lock in ("", finding.lock))  # fmt: skip

    def expired(self, today: datetime.date) -> bool:
        return today > self.until

    def __str__(self) -> str:
        where = " in ".join(each for each in (self.package, self.lock) if each)
        return f"{self.id} ({where}) until {self.until}: {self.reason}"


def read_exceptions(path: Path, today: datetime.date) -> list[Exemption]:
    """Raises Unfit."""
    found = []
    for number, entry in enumerate(tomllib.loads(path.read_text()).get("exception", ()), 1):
        problem = _problem(entry, today)
        if problem:
            raise Unfit(f"{path.name}, exception {number}: {problem}")
        found.append(Exemption(
            entry["id"], entry.get("package", ""), entry.get("lock", ""), entry["until"], entry["reason"].strip()))
    return found


def _problem(entry: dict[str, object], today: datetime.date) -> str:
    if unknown := set(entry) - _FIELDS:
        return f"unknown fields {sorted(unknown)}"
    if not all(isinstance(entry.get(each), str) and entry[each] for each in ("id", "reason")):
        return "`id` and `reason` are needed"
    until = entry.get("until")
    if not isinstance(until, datetime.date) or isinstance(until, datetime.datetime):
        return "`until` must be a date, such as 2027-01-31"
    if until - today > LONGEST:
        return f"`until` is more than {LONGEST.days} days away"
    if entry["id"] == WHOLE and (not entry.get("lock") or "package" in entry):
        return "`*` needs a `lock` and no `package`"
    if entry["id"] != WHOLE and not entry.get("package"):
        return "`package` is needed"
    return ""
