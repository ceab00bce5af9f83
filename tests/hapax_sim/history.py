"""What the workload did, as it knows it, and the judgement of what readers see in the end."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple


class Outcome(Enum):
    OPEN = "open"            # still running, or its process died before it asked for a decision
    UNKNOWN = "unknown"      # a decision was asked for and no answer came
    COMMITTED = "committed"
    ABORTED = "aborted"


class Sent(NamedTuple):
    """One record: values of a writer rise, so order can be checked."""

    topic: str
    partition: int
    writer: str
    number: int

    @property
    def value(self) -> bytes:
        return f"{self.writer}:{self.number}".encode()


@dataclass(slots=True)
class Transaction:
    writer: str
    records: list[Sent] = field(default_factory=list)
    outcome: Outcome = Outcome.OPEN


@dataclass
class History:
    """Everything one simulation recorded."""

    transactions: list[Transaction] = field(default_factory=list)
    acknowledged: list[Sent] = field(default_factory=list)
    """Outside transactions: the broker said that it has it."""
    attempted: list[Sent] = field(default_factory=list)
    """Outside transactions: handed over, acknowledged or not."""


Seen = dict[tuple[str, int], list[bytes]]
"""(topic, partition) -> values in offset order."""


def judge(history: History, committed: Seen, uncommitted: Seen) -> list[str]:
    """Every anomaly as a sentence; empty: none. `committed` and `uncommitted` are what a fresh reader of each
    isolation level sees once the cluster is whole again."""
    found: list[str] = []
    for where, values in committed.items():
        for value, times in Counter(values).items():
            if times > 1:
                found.append(f"duplicate: {value!r} stands {times} times in {where}")
        found += _order(where, values)
        missing = Counter(values) - Counter(uncommitted.get(where, []))
        if missing:
            found.append(f"{where}: read_committed sees {list(missing)[:3]}, read_uncommitted does not")
    present = {where: set(values) for where, values in committed.items()}
    # A program that starts over copies the same inputs again: such a record tells nothing of its first transaction.
    tries = Counter(sent for transaction in history.transactions for sent in transaction.records)
    for transaction in history.transactions:
        found += _transaction(transaction, present, tries)
    for sent in history.acknowledged:
        if sent.value not in present.get((sent.topic, sent.partition), ()):
            found.append(f"lost write: {sent} was acknowledged and is not there")
    known = {(s.topic, s.partition, s.value) for s in history.attempted}
    known |= {(s.topic, s.partition, s.value) for t in history.transactions for s in t.records}
    for (topic, partition), values in uncommitted.items():
        for value in values:
            if (topic, partition, value) not in known:
                found.append(f"phantom: {value!r} in {topic}-{partition} was never written")
    return found


def _transaction(
    transaction: Transaction, present: dict[tuple[str, int], set[bytes]], tries: Counter[Sent]
) -> list[str]:
    records = transaction.records
    if transaction.outcome is not Outcome.COMMITTED:
        records = [s for s in records if tries[s] == 1]
    there = [s for s in records if s.value in present.get((s.topic, s.partition), ())]
    what = f"transaction of {transaction.writer} from {transaction.records[0].number}" if transaction.records else ""
    match transaction.outcome:
        case Outcome.COMMITTED if len(there) < len(transaction.records):
            gone = [s for s in transaction.records if s not in there]
            return [f"lost write: {what} was committed, {len(gone)} of {len(transaction.records)} are gone: {gone[:2]}"]
        case Outcome.ABORTED | Outcome.OPEN if there:
            return [f"aborted read: {what} was {transaction.outcome.value}, yet {len(there)} records are visible"]
        case Outcome.UNKNOWN if there and len(there) < len(records):
            return [f"torn: {what} shows {len(there)} of {len(transaction.records)} records"]
    return []


def _order(where: tuple[str, int], values: list[bytes]) -> list[str]:
    last: dict[str, int] = defaultdict(lambda: -1)
    for value in values:
        writer, _, number = value.decode().partition(":")
        if int(number) < last[writer]:
            return [f"reordered: {writer}:{number} after {writer}:{last[writer]} in {where}"]
        last[writer] = int(number)
    return []


def judge_copies(source: Seen, target: Seen) -> list[str]:
    """Consume-process-produce: each value of the source has exactly one copy in the target, and nothing else is
    there."""
    wanted = Counter(v for values in source.values() for v in values)
    found = Counter(v for values in target.values() for v in values)
    lost, extra = wanted - found, found - wanted
    sentences = []
    if lost:
        sentences.append(f"lost copies: {lost.total()} inputs have no output, such as {sorted(lost)[:3]}")
    if extra:
        sentences.append(f"doubled copies: {extra.total()} outputs too many, such as {sorted(extra)[:3]}")
    return sentences
