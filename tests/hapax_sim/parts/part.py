"""What a part of a simulation is: programs with topics and a verdict of their own, which a scene names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

from hapax_sim.clients import Life, Program


class PartTopic(NamedTuple):
    partitions: int
    config: Mapping[str, str] = {}


class Part(Protocol):
    """One instance judges one simulation. What it remembers stands outside of the processes that it watches: a crash
    of a client loses nothing of it."""

    topics: Mapping[str, PartTopic]

    def programs(self) -> dict[str, Program]:
        """By the names of their processes."""
        ...

    async def finish(self, life: Life) -> None:
        """Every program has ended and every node serves: reads what is there in the end. Raises AssertionError where
        something that had to happen did not."""
        ...

    def judge(self) -> list[str]:
        """Every anomaly as a sentence."""
        ...


def a_few_of_each(sentences: Iterable[str]) -> list[str]:
    """Of `kind: sentence` at most two of each kind."""
    kinds: Counter[str] = Counter()
    kept = []
    for sentence in sentences:
        kind = sentence.partition(":")[0]
        kinds[kind] += 1
        if kinds[kind] <= 2:
            kept.append(sentence)
    return kept
