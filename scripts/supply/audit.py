"""Fails if a pinned dependency has a known vulnerability that exceptions.toml does not except: `make audit-deps`.

Exit code 0: everything was checked and nothing is known. 1: a vulnerability, or an exception past its date. 3: a
database could not be asked, so this says nothing about the packages that it names.
"""

from __future__ import annotations

import argparse
import datetime
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from scripts.supply.databases import OSV, Finding, NotChecked, ask_about_go, ask_about_python, ask_osv, go_database
from scripts.supply.exceptions import WHOLE, Exemption, Unfit, read_exceptions
from scripts.supply.pins import Pin, go_modules, pinned

ROOT: Final = Path(__file__).resolve().parents[2]
EXCEPTIONS: Final = Path("scripts") / "supply" / "exceptions.toml"


class Audit:
    def __init__(self, root: Path, osv: str, database: Path | None, today: datetime.date) -> None:
        self.root, self.osv, self.database, self.today = root, osv, database, today
        self.findings: list[Finding] = []
        self.library: list[Finding] = []
        """In Go's own library, which belongs to the toolchain of this machine. No lock file names that."""
        self.unchecked: list[str] = []
        self.checked = 0

    def run(self, left_out: set[str]) -> None:
        """`left_out`: lock files that an exception covers as a whole."""
        pins = {pin: [lock for lock in locks if lock not in left_out] for pin, locks in pinned(self.root).items()}
        wanted = [pin for pin, locks in pins.items() if locks]
        self._python([pin for pin in wanted if pin.ecosystem == "PyPI"], pins)
        for ecosystem in ("npm", "Maven"):
            self._others(ecosystem, [pin for pin in wanted if pin.ecosystem == ecosystem], pins)
        self._go(left_out)

    def _python(self, wanted: Sequence[Pin], pins: dict[Pin, list[str]]) -> None:
        # Two versions of one package (for different Pythons) cannot be in one question.
        rounds: list[dict[str, Pin]] = []
        for pin in wanted:
            free = next((each for each in rounds if pin.name not in each), None)
            if free is None:
                rounds.append(free := {})
            free[pin.name] = pin
        for each in rounds:
            try:
                answer = ask_about_python(each.values(), self.osv)
            except NotChecked as error:
                self.unchecked.append(f"{len(each)} Python packages: {error}")
                continue
            self.checked += len(each)
            for pin, known in answer.items():
                self._add(pin, known, pins)

    def _others(self, ecosystem: str, wanted: Sequence[Pin], pins: dict[Pin, list[str]]) -> None:
        for number, pin in enumerate(wanted):
            try:
                self._add(pin, ask_osv(pin, self.osv), pins)
            except NotChecked as error:  # the same for the rest
                self.unchecked.append(f"{len(wanted) - number} {ecosystem} packages: {error}")
                return
            self.checked += 1

    def _add(self, pin: Pin, known: list[tuple[tuple[str, ...], str]], pins: dict[Pin, list[str]]) -> None:
        self.findings += [
            Finding(lock, pin.name, pin.version, ids, fixed) for ids, fixed in known for lock in pins[pin]]

    def _go(self, left_out: set[str]) -> None:
        modules = [each for each in go_modules(self.root) if each.lock not in left_out]
        if not modules:
            return
        try:
            database = self.database or go_database(self.today)
        except NotChecked as error:
            self.unchecked.append(f"{len(modules)} Go modules: {error}")
            return
        for each in modules:
            try:
                imported, library = ask_about_go(self.root, each, database)
            except NotChecked as error:
                self.unchecked.append(str(error))
                continue
            self.checked += 1
            self.findings += imported
            self.library += library

    def report(self, exemptions: list[Exemption]) -> int:
        """Prints one line for each fact. Returns the exit code."""
        bad = 0
        used = {each for each in exemptions if each.id == WHOLE and not each.expired(self.today)}
        for finding in sorted(set(self.findings)):
            excepted = [each for each in exemptions if each.covers(finding) and not each.expired(self.today)]
            used.update(excepted)
            if not excepted:
                bad += 1
                print(f"VULNERABLE {finding}")
        for each in exemptions:
            if each.expired(self.today):
                bad += 1
                print(f"EXPIRED exception {each}")
            elif each in used:
                print(f"EXCEPTED {'not audited: ' if each.id == WHOLE else ''}{each}")
            elif not self.unchecked:
                print(f"UNUSED exception, remove it: {each}")
        if self.library:
            names = sorted({each.ids[0] for each in self.library})
            newest = max({each.fixed for each in self.library}, key=lambda text: [int(n) for n in text[1:].split(".")])
            print(f"NOTE: this machine's Go {self.library[0].version} has {', '.join(names)}; releases need {newest}")
        for line in self.unchecked:
            print(f"NOT CHECKED {line}")
        print(f"audit-deps: {self.checked} packages and Go modules checked, {bad} problems, "
              f"{len(self.unchecked)} questions without an answer")  # fmt: skip
        return 1 if bad else 3 if self.unchecked else 0


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="audit-deps", description=__doc__.partition("\n")[0])
    parser.add_argument("--root", type=Path, default=ROOT, help="the repository")
    parser.add_argument("--osv", default=os.environ.get("AUDIT_OSV", OSV), help="base of OSV's API, or of a mirror")
    parser.add_argument("--go-database", type=Path, help="folder of OSV files for Go, instead of the newest")
    parser.add_argument("--today", type=datetime.date.fromisoformat, default=datetime.date.today())
    asked = parser.parse_args(words)
    try:
        exemptions = read_exceptions(asked.root / EXCEPTIONS, asked.today)
    except Unfit as error:
        print(f"audit-deps: {error}", file=sys.stderr)
        return 1
    audit = Audit(asked.root, asked.osv, asked.go_database, asked.today)
    audit.run({each.lock for each in exemptions if each.id == WHOLE})
    return audit.report(exemptions)


if __name__ == "__main__":
    sys.exit(main())
