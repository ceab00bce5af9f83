"""Copies, tokens and what is collected inside the cluster: one wrong collection for each check, and right ones."""

from __future__ import annotations

import pytest

from hapax_checker import (
    Batch,
    Replica,
    contiguous_sequences,
    ids_never_reused,
    in_order,
    one_leader_per_epoch,
    one_owner_per_epoch,
    one_to_one,
    replicas_equal,
    stable_offsets,
    token_outcomes,
)
from hapax_checker.copies import TokenTry


def kinds(found: list[str]) -> list[str]:
    return [sentence.partition(":")[0] for sentence in found]


def test_one_output_for_each_input() -> None:
    assert one_to_one("abc", "cab") == []
    assert kinds(one_to_one("abc", "ab")) == ["lost-output"]
    assert kinds(one_to_one("abc", "abcc")) == ["doubled-output"]
    assert kinds(one_to_one("abc", "abcd")) == ["phantom-output"]


def test_copies_keep_the_order_of_their_input() -> None:
    assert in_order("t-0", "abcd", "abcd") == []
    assert in_order("t-0", "abcd", "abbxd") == []
    assert kinds(in_order("t-0", "abcd", "acbd")) == ["reordered-output"]


def test_a_partition_has_one_owner_in_each_epoch() -> None:
    assert one_owner_per_epoch([("t-0", 1, "m"), ("t-0", 1, "m"), ("t-0", 2, "n"), ("t-1", 1, "n")]) == []
    assert kinds(one_owner_per_epoch([("t-0", 1, "m"), ("t-0", 1, "n")])) == ["two-owners"]


def attempt(outcome: str, *values: str, token: int = 1) -> TokenTry:
    return TokenTry("q", token, outcome, values)


def test_a_token_happens_once() -> None:
    tries = [attempt("unknown", "a1", "b1"), attempt("already", "a2", "b2"), attempt("unknown", token=2)]
    assert token_outcomes(tries, ["a1", "b1"]) == []
    assert token_outcomes([attempt("unknown", "a")], []) == []


@pytest.mark.parametrize(
    ("tries", "visible", "kind"),
    [
        ([attempt("unknown", "a"), attempt("committed", "b")], "ab", "doubled-token"),
        ([attempt("unknown", "a"), attempt("already", "b")], "b", "aborted-token"),
        ([attempt("committed", "a", "b")], "a", "torn-token"),
        ([attempt("committed", "a")], "", "lost-token"),
        ([attempt("unknown", "a"), attempt("already", "b")], "", "lost-token"),
    ],
)
def test_a_token_that_does_not(tries: list[TokenTry], visible: str, kind: str) -> None:
    assert kind in kinds(token_outcomes(tries, visible))


def test_sequences_follow_each_other() -> None:
    top = (1 << 31) - 1
    batches = [
        Batch(0, 7, 0, 0, 3), Batch(3, 8, 0, 0, 1), Batch(4, 7, 0, 3, 2), Batch(6, 7, 1, 0, 1),
        Batch(9, -1, -1, -1, 5), Batch(14, 8, 0, -1, 1),
    ]  # fmt: skip
    assert contiguous_sequences("t-0", batches) == []
    wrapping = [Batch(0, 7, 0, top - 1, 2), Batch(2, 7, 0, 0, 1)]
    assert contiguous_sequences("t-0", wrapping, begin_anywhere=True) == []


@pytest.mark.parametrize(
    ("second", "kind"),
    [
        (Batch(3, 7, 1, 4, 1), "sequence-gap"),
        (Batch(3, 7, 1, 2, 1), "sequence-again"),
        (Batch(3, 7, 2, 1, 1), "sequence-gap"),
        (Batch(3, 7, 0, 0, 1), "zombie-write"),
    ],
)
def test_sequences_that_do_not(second: Batch, kind: str) -> None:
    assert kinds(contiguous_sequences("t-0", [Batch(0, 7, 1, 0, 3), second])) == [kind]


def test_the_stable_offset_reaches_the_end() -> None:
    assert stable_offsets({"a-0": (5, 5)}) == []
    assert kinds(stable_offsets({"a-0": (5, 5), "b-0": (3, 4)})) == ["stuck-stable-offset"]


def test_replicas_are_equal_up_to_the_high_watermark() -> None:
    first = Replica(0, 4, [(0, b"a"), (2, b"b"), (4, b"only the leader has it")])
    assert replicas_equal("t-0", [first, Replica(1, 4, [(0, b"a"), (2, b"b")])]) == []
    assert replicas_equal("t-0", [first, Replica(1, 2, [(0, b"a")])]) == []
    assert replicas_equal("t-0", [first, Replica(1, 4, [(2, b"b")])]) == []
    assert kinds(replicas_equal("t-0", [first, Replica(1, 4, [(0, b"a"), (2, b"B")])])) == ["replicas-differ"]
    assert kinds(replicas_equal("t-0", [first, Replica(1, 4, [(0, b"a")])])) == ["replicas-differ"]


def test_one_leader_in_an_epoch() -> None:
    assert one_leader_per_epoch([("t-0", 1, "a"), ("t-0", 1, "a"), ("t-0", 2, "b")]) == []
    assert kinds(one_leader_per_epoch([("t-0", 1, "a"), ("t-0", 1, "b")])) == ["two-leaders"]


def test_an_identity_has_one_holder() -> None:
    assert ids_never_reused([(1, 0, "a"), (1, 0, "a"), (1, 1, "b"), (2, 0, "b")]) == []
    assert kinds(ids_never_reused([(1, 0, "a"), (1, 0, "b")])) == ["identity-reused"]
