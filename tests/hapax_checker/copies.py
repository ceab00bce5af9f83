"""Exactly once, by counting: compares inputs with outputs, and replayed commits with what became visible."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple


def one_to_one(inputs: Iterable[Hashable], outputs: Iterable[Hashable]) -> list[str]:
    """Read-process-write: each input has exactly one output, and there are no others. An output is named by its
    input."""
    wanted, found = Counter(inputs), Counter(outputs)
    sentences = []
    lost, extra = wanted - found, found - wanted
    if lost:
        sentences.append(f"lost-output: {lost.total()} inputs without, such as {sorted(lost, key=str)[:3]}")
    doubled = [o for o in extra if o in wanted]
    if doubled:
        sentences.append(f"doubled-output: {len(doubled)} inputs with several, such as {sorted(doubled, key=str)[:3]}")
    made_up = [o for o in extra if o not in wanted]
    if made_up:
        sentences.append(f"phantom-output: {len(made_up)} outputs of nothing, such as {sorted(made_up, key=str)[:3]}")
    return sentences


def in_order(partition: str, inputs: Sequence[Hashable], outputs: Sequence[Hashable]) -> list[str]:
    """A partition that one owner at a time copies keeps its order. What is lost or doubled is `one_to_one`'s to say."""
    place = {value: number for number, value in enumerate(inputs)}
    known = [(place[value], value) for value in outputs if value in place]
    for (before, former), (after, value) in pairwise(known):
        if after < before:
            return [f"reordered-output: {partition} has {value!r} after {former!r}, which follows it in the input"]
    return []


class TokenTry(NamedTuple):
    """One attempt to commit under a token. `values` are unique to the attempt."""

    scope: str
    token: int
    outcome: str
    """committed | already | failed | unknown"""
    values: tuple[Hashable, ...]


def token_outcomes(tries: Iterable[TokenTry], visible: Iterable[Hashable]) -> list[str]:
    """A replayed commit happens once: of all attempts with a token that was ever answered, exactly one is visible, as a
    whole."""
    seen = set(visible)
    by_token: dict[tuple[str, int], list[TokenTry]] = defaultdict(list)
    for one in tries:
        by_token[one.scope, one.token].append(one)
    sentences = []
    for (scope, token), attempts in by_token.items():
        name = f"token {token} of {scope!r}"
        shown = []
        for attempt in attempts:
            there = sum(value in seen for value in attempt.values)
            if 0 < there < len(attempt.values):
                sentences.append(f"torn-token: {name} shows {there} of {len(attempt.values)} records of one try")
            if there:
                shown.append(attempt)
                if attempt.outcome in ("already", "failed"):
                    sentences.append(f"aborted-token: {name}: a try answered '{attempt.outcome}' is visible")
            elif attempt.outcome == "committed" and attempt.values:
                sentences.append(f"lost-token: {name} was committed and is not visible")
        if len(shown) > 1:
            sentences.append(f"doubled-token: {name} is visible {len(shown)} times")
        answered = any(attempt.outcome in ("committed", "already") for attempt in attempts)
        if answered and not shown and any(attempt.values for attempt in attempts):
            sentences.append(f"lost-token: {name} was answered as committed and no try is visible")
    return sentences
