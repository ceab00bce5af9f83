"""The outcomes that writers saw, compared with the records that readers found. Pure: no client, no clock.

Every record has a writer and a number; a writer's numbers start at 0 and have no gaps. A `Fact` is the outcome of a
run of numbers that were sent together: a transaction, or the records of one flush. `judge` compares the facts with
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
"""kept: acknowledged, or the transaction committed. withdrawn: the transaction aborted. unknown: a transaction
without an answer; all of its records exist or none. torn: no answer, and each record may exist or not."""

_MOST: Final = 255


@dataclass(frozen=True, slots=True)
class Fact:
    topic: str
    writer: str
    outcome: Outcome
    first: int
    count: int


class Ledger:
    """Facts; adjacent ones are merged. Records that were sent are `unknown` until they are settled."""

    def __init__(self, facts: Iterable[Fact] = ()) -> None:
        self._last: dict[tuple[str, str, Outcome], Fact] = {}
        self._facts: list[Fact] = []
        self.under_way: dict[str, dict[str, Fact]] = defaultdict(dict)
        """Reporter -> writer -> the fact that it has begun and not settled."""
        for fact in facts:
            self.add(fact)

    def begin(self, fact: Fact, reporter: str = "") -> None:
        self.under_way[reporter][fact.writer] = fact

    def settle(self, fact: Fact, reporter: str = "") -> None:
        """Replaces the fact that the writer had begun."""
        self.under_way[reporter].pop(fact.writer, None)
        self.add(fact)

    def add(self, fact: Fact) -> None:
        key = fact.topic, fact.writer, fact.outcome
        last = self._last.get(key)
        # Unknown transactions are not merged: each exists completely or not at all.
        if last is not None and fact.outcome != "unknown" and last.first + last.count == fact.first:
            self._last[key] = Fact(*key, last.first, last.count + fact.count)
            return
        if last is not None:
            self._facts.append(last)
        self._last[key] = fact

    def facts(self) -> list[Fact]:
        """All facts, including those that are not settled."""
        return [*self._facts, *self._last.values(), *(f for each in self.under_way.values() for f in each.values())]

    def take(self) -> list[Fact]:
        """Returns the settled facts and removes them: a worker sends them to its master."""
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
    """Acknowledged or committed, and read."""
    lost: int = 0
    """Acknowledged or committed, but not read."""
    doubled: int = 0
    """Read more than once; each reading beyond the first counts."""
    shown: int = 0
    """Read although the transaction was aborted."""
    torn: int = 0
    """Of transactions without an answer of which only a part was read; the smaller part counts."""
    unknown_kept: int = 0
    """Read, although no answer arrived."""
    unreported: int = 0
    """Read, but in no ledger, because a worker was killed between two reports."""

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
    """The verdict on a topic that must contain every record of another topic once."""
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
