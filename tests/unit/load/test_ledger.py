"""The count after a load finds what it must: each anomaly is made by hand here."""

from __future__ import annotations

from pathlib import Path

import pytest
from hapax_load.ledger import Fact, Ledger, Outcome, Seen, Verdict, judge, judge_copy, outcomes


def fact(outcome: Outcome, first: int, count: int, writer: str = "w") -> Fact:
    return Fact("t", writer, outcome, first, count)


def seen(*numbers: int, writer: str = "w") -> Seen:
    read = Seen()
    for number in numbers:
        read.add(writer, number)
    return read


@pytest.mark.parametrize(("outcome", "numbers", "verdict"), [
    ("kept", (0, 1, 2, 3), Verdict(kept=4)),
    ("kept", (0, 1, 3), Verdict(kept=3, lost=1)),
    ("kept", (), Verdict(lost=4)),
    ("kept", (0, 1, 2, 3, 2, 2), Verdict(kept=4, doubled=2)),
    ("withdrawn", (), Verdict()),
    ("withdrawn", (1,), Verdict(shown=1)),
    ("unknown", (), Verdict()),
    ("unknown", (0, 1, 2, 3), Verdict(unknown_kept=4)),
    ("unknown", (0, 1, 2), Verdict(unknown_kept=3, torn=1)),
    ("unknown", (0,), Verdict(unknown_kept=1, torn=1)),
    ("torn", (0, 2), Verdict(unknown_kept=2)),
    ("torn", (0, 0), Verdict(unknown_kept=1, doubled=1)),
    ("kept", (0, 1, 2, 3, 4), Verdict(kept=4, unreported=1)),
    ("kept", (0, 1, 2, 3, 4, 4), Verdict(kept=4, unreported=1, doubled=1)),
])
def test_what_is_found(outcome: Outcome, numbers: tuple[int, ...], verdict: Verdict) -> None:
    found = judge([fact(outcome, 0, 4)], seen(*numbers))
    assert found == verdict
    assert found.clean == (not (verdict.lost or verdict.doubled or verdict.shown or verdict.torn))


def test_writers_are_not_confused() -> None:
    assert judge([fact("kept", 0, 1, "a")], seen(0, writer="b")) == Verdict(lost=1, unreported=1)


def test_a_copy_has_every_record_once() -> None:
    assert judge_copy(seen(0, 1, 2), seen(2, 0, 1)) == Verdict(kept=3)
    assert judge_copy(seen(0, 1, 2), seen(0, 1)) == Verdict(kept=2, lost=1)
    assert judge_copy(seen(0, 1), seen(0, 1, 1)) == Verdict(kept=2, doubled=1)
    assert judge_copy(seen(0), seen(0, 7)) == Verdict(kept=1, unreported=1)


def test_facts_that_adjoin_are_one_and_unknown_ones_stay_apart() -> None:
    ledger = Ledger()
    for first in (0, 4, 8):
        ledger.add(fact("kept", first, 4))
    for first in (12, 16):
        ledger.add(fact("unknown", first, 4))
    ledger.add(fact("kept", 20, 4))
    assert sorted(ledger.facts(), key=lambda each: each.first) == [
        fact("kept", 0, 12), fact("unknown", 12, 4), fact("unknown", 16, 4), fact("kept", 20, 4)]
    assert outcomes(ledger.facts()) == {"kept": 16, "unknown": 8}


def test_what_is_under_way_is_unknown_until_it_is_settled() -> None:
    ledger = Ledger()
    ledger.begin(fact("unknown", 0, 4))
    assert ledger.facts() == [fact("unknown", 0, 4)]
    ledger.settle(fact("kept", 0, 4))
    assert ledger.facts() == [fact("kept", 0, 4)]


def test_what_a_worker_sends_is_sent_once() -> None:
    ledger = Ledger()
    ledger.settle(fact("kept", 0, 4))
    assert ledger.take() == [fact("kept", 0, 4)]
    ledger.settle(fact("kept", 4, 4))
    assert ledger.take() == [fact("kept", 4, 4)]
    assert ledger.take() == []


def test_a_ledger_is_read_as_it_was_saved(tmp_path: Path) -> None:
    ledger = Ledger([fact("kept", 0, 4), fact("unknown", 4, 4)])
    ledger.begin(fact("unknown", 8, 4))
    ledger.save(tmp_path / "ledger")
    assert set(Ledger.read(tmp_path / "ledger").facts()) == set(ledger.facts())
