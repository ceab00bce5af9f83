"""Fuzzers of handshakes, tokens, filters, rules and jaas lines: a few inputs here, more in `make security-test`."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import pytest

from security import WHOLE
from security.fuzz import TARGETS, Found, fuzz

SEED = 20261126
CASES = 200_000 if WHOLE else 150
SECONDS = 12.0 if WHOLE else 2.0


@pytest.mark.parametrize("name", TARGETS)
def test_no_input_is_a_fault(name: str) -> None:
    target: Any = TARGETS[name]()
    with contextlib.closing(target) if hasattr(target, "close") else contextlib.nullcontext():
        answers = fuzz(target, SEED, cases=CASES, seconds=SECONDS)
    assert target.kinds <= answers.keys(), f"its inputs are of no use: {answers}"
    assert len(target.kinds) > 1


class Broken:
    """A program that fails for one input in a hundred."""

    name = "broken"
    kinds = frozenset({"good"})

    def make(self, rng: random.Random) -> int:
        return rng.randrange(100)

    def check(self, made: int) -> str:
        assert made != 7
        return "good"


def test_a_fault_is_told_with_its_input_and_found_again() -> None:
    with pytest.raises(Found, match=r"input: 7\nagain: .* broken --seed 1 --only (\d+)") as found:
        fuzz(Broken(), 1, cases=1000)
    number = int(str(found.value).rpartition(" ")[2])
    with pytest.raises(Found):
        fuzz(Broken(), 1, cases=1, first=number)
