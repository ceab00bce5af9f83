"""What a load's writers were promised, and what readers found of it. Pure: no client, no clock.

Every record is one number of one writer, from 0 on without gaps. A writer notes what became of a run of numbers that
went out together (a transaction, or the records that one wait covered) as a `Fact`; `judge` holds the facts against
how often each number was read.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal

Outcome = Literal["kept", "withdrawn", "unknown", "torn"]
"""kept: acknowledged, or its transaction committed; withdrawn: its transaction aborted; unknown: no answer came, all or
nothing is there; torn: no answer came, and each record is there or not by itself."""

_MOST: Final = 255


@dataclass(frozen=True, slots=True)
class Fact:
    topic: str
    writer: str
    outcome: Outcome
    first: int
    count: int


class Ledger:
    """Facts, those that adjoin joined. What is under way is `unknown` until it is settled."""

    def __init__(self, facts: Iterable[Fact] = ()) -> None:
        self._last: dict[tuple[str, str, Outcome], Fact] = {}
        self._facts: list[Fact] = []
        self.under_way: dict[str, dict[str, Fact]] = defaultdict(dict)
        """Reporter -> writer -> what it has begun and not settled."""
        for fact in facts:
            self.add(fact)

    def begin(self, fact: Fact, reporter: str = "") -> None:
        self.under_way[reporter][fact.writer] = fact

    def settle(self, fact: Fact, reporter: str = "") -> None:
        """In place of what the writer had begun."""
        self.under_way[reporter].pop(fact.writer, None)
        self.add(fact)

    def add(self, fact: Fact) -> None:
        key = fact.topic, fact.writer, fact.outcome
        last = self._last.get(key)
        # What is unknown as a whole stays apart: all of it is there or none.
        if last is not None and fact.outcome != "unknown" and last.first + last.count == fact.first:
            self._last[key] = Fact(*key, last.first, last.count + fact.count)
            return
        if last is not None:
            self._facts.append(last)
        self._last[key] = fact

    def facts(self) -> list[Fact]:
        """All of them; what is under way is among them as it would be if nobody ever answered."""
        return [*self._facts, *self._last.values(), *(f for each in self.under_way.values() for f in each.values())]

    def take(self) -> list[Fact]:
        """The settled ones, which are forgotten here: they travel to whoever collects them."""
        facts = [*self._facts, *self._last.values()]
        self._facts.clear()
        self._last.clear()
        return facts

    def save(self, path: Path) -> None:
        path.write_text("".join(json.dumps(asdict(fact)) + "\n" for fact in self.facts()), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Ledger:
        """Raises OSError, ValueError."""
        return cls(Fact(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines())


class Seen:
    """How often each writer's numbers were read from one topic."""

    def __init__(self) -> None:
        self._counts: dict[str, bytearray] = {}
        self.records = 0

    def add(self, writer: str, number: int) -> None:
        counts = self._counts.setdefault(writer, bytearray())
        if number >= len(counts):
            counts.extend(bytes(max(number + 1 - len(counts), len(counts))))
        counts[number] = min(counts[number] + 1, _MOST)
        self.records += 1

    def times(self, writer: str, number: int) -> int:
        counts = self._counts.get(writer, b"")
        return counts[number] if number < len(counts) else 0

    def numbers(self) -> Iterable[tuple[str, int, int]]:
        """Every (writer, number, times) that was read at all."""
        for writer, counts in self._counts.items():
            for number, times in enumerate(counts):
                if times:
                    yield writer, number, times


@dataclass(slots=True)
class Verdict:
    """Of one topic, in records. All but `kept`, `unknown_kept` and `unreported` must be 0."""

    kept: int = 0
    """Promised, and read."""
    lost: int = 0
    """Promised, and not there."""
    doubled: int = 0
    """Read more than once; each reading beyond the first counts."""
    shown: int = 0
    """Of aborted transactions, and read."""
    torn: int = 0
    """Of transactions without an answer, of which only a part is there: the smaller part counts."""
    unknown_kept: int = 0
    """Without an answer, and there."""
    unreported: int = 0
    """Read, and in no ledger: of a worker that was killed between its reports."""

    @property
    def clean(self) -> bool:
        return not (self.lost or self.doubled or self.shown or self.torn)


def judge(facts: Iterable[Fact], seen: Seen) -> Verdict:
    """`facts` of one topic."""
    verdict, told = Verdict(), 0
    for fact in facts:
        there = sum(seen.times(fact.writer, number) > 0 for number in range(fact.first, fact.first + fact.count))
        told += there
        if fact.outcome == "kept":
            verdict.kept += there
            verdict.lost += fact.count - there
        elif fact.outcome == "withdrawn":
            verdict.shown += there
        else:
            verdict.unknown_kept += there
            if fact.outcome == "unknown":
                verdict.torn += min(there, fact.count - there)
    for _, _, times in seen.numbers():
        verdict.doubled += times - 1
        verdict.unreported += 1
    verdict.unreported -= told
    return verdict


def judge_copy(source: Seen, copy: Seen) -> Verdict:
    """Of a topic into which every record of another one was to be copied once."""
    verdict = Verdict()
    for writer, number, _ in source.numbers():
        there = copy.times(writer, number) > 0
        verdict.kept += there
        verdict.lost += not there
    for writer, number, times in copy.numbers():
        verdict.doubled += times - 1
        verdict.unreported += source.times(writer, number) == 0
    return verdict


def by_topic(facts: Iterable[Fact]) -> Mapping[str, list[Fact]]:
    topics: dict[str, list[Fact]] = defaultdict(list)
    for fact in facts:
        topics[fact.topic].append(fact)
    return topics


def outcomes(facts: Iterable[Fact]) -> Counter[str]:
    """Records by outcome."""
    counted: Counter[str] = Counter()
    for fact in facts:
        counted[fact.outcome] += fact.count
    return counted
