"""A part of a simulation: programs with their own topics and verdict, which a scene names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

from hapax_sim.clients import Life, Program


class PartTopic(NamedTuple):
    partitions: int
    config: Mapping[str, str] = {}


class Part(Protocol):
    """One instance judges one simulation. Its memory is outside the processes that it watches, so a client's crash
    loses none of it.

    A part may have `lasting`: names of programs that end by themselves after the workload has stopped. They start again
    after an error even then. It may have `watching`: a context in which the whole simulation runs."""

    topics: Mapping[str, PartTopic]

    def programs(self) -> dict[str, Program]:
        """By the names of their processes."""
        ...

    async def finish(self, life: Life) -> None:
        """Called when every program has ended and every node serves: reads the final state. Raises AssertionError if
        something required did not happen."""
        ...

    def judge(self) -> list[str]:
        """Every anomaly as a sentence."""
        ...


def a_few_of_each(sentences: Iterable[str]) -> list[str]:
    """At most two sentences of each kind, from `kind: sentence`."""
    kinds: Counter[str] = Counter()
    kept = []
    for sentence in sentences:
        kind = sentence.partition(":")[0]
        kinds[kind] += 1
        if kinds[kind] <= 2:
            kept.append(sentence)
    return kept
