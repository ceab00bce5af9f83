"""Who may call: what a file of tokens may say, and that it may change."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from hapax.admin.gate import segment
from hapax.admin.paging import decode, encode, page
from hapax.admin.problems import Problem
from hapax.admin.tokens import LOOK_EVERY_S, Holder, TokenFileError, Tokens, parse

SECRET = "a-secret-of-sixteen"


@pytest.mark.parametrize(("text", "why"), [
    ("", "has no tokens"), ("# nothing\n", "has no tokens"), ("ci admin", "expected NAME ROLE TOKEN"),
    (f"ci root {SECRET}", "the role must be"), ("ci admin short", "at least 16"),
    (f"ci admin {SECRET}§", "at least 16"),
    ("ci admin sha256:abc", "64 hex digits"),
    (f"a admin {SECRET}\nb read-only {SECRET}", "line 2: this token occurs twice"),
])
def test_what_is_no_file_of_tokens_is_said_without_saying_the_token(text: str, why: str) -> None:
    with pytest.raises(TokenFileError, match=why) as told:
        parse(text, "f")
    assert SECRET not in str(told.value)


def test_a_hash_will_do(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"ci admin sha256:{hashlib.sha256(SECRET.encode()).hexdigest()}  # of the pipeline\n")
    tokens = Tokens(file, lambda: 0.0)
    assert tokens.holder(SECRET) == Holder("ci", "admin")
    assert tokens.holder(SECRET + " ") is tokens.holder("") is tokens.holder("\udcff") is None


def test_a_file_is_read_again_when_it_changes_and_only_if_it_is_good(tmp_path: Path) -> None:
    now = 0.0
    file = tmp_path / "tokens"
    file.write_text(f"a admin {SECRET}\n")
    tokens = Tokens(file, lambda: now)
    file.write_text(f"a read-only {SECRET}\n")
    assert tokens.holder(SECRET) == Holder("a", "admin"), "not looked at again so soon"
    now += LOOK_EVERY_S
    assert tokens.holder(SECRET) == Holder("a", "read-only")
    for bad in ("nonsense\n", None):
        file.write_text(bad) if bad else file.unlink()
        now += LOOK_EVERY_S
        assert tokens.holder(SECRET) == Holder("a", "read-only")


@pytest.mark.parametrize("empty", ["", "# all are revoked\n"])
def test_who_takes_the_last_token_out_of_the_file_revokes_it(tmp_path: Path, empty: str) -> None:
    now = 0.0
    file = tmp_path / "tokens"
    file.write_text(f"a admin {SECRET}\n")
    tokens = Tokens(file, lambda: now)
    file.write_text(empty)
    now += LOOK_EVERY_S
    assert tokens.holder(SECRET) is None
    file.write_text(f"a admin {SECRET}\n")
    now += LOOK_EVERY_S
    assert tokens.holder(SECRET) == Holder("a", "admin")


def test_pages_follow_each_other_whatever_comes_and_goes() -> None:
    first, cursor = page(["a", "c", "e"], lambda name: (name,), 2, None)
    assert first == ["a", "c"] and cursor is not None
    assert page(["a", "b", "d", "e"], lambda name: (name,), 2, cursor) == (["d", "e"], None)
    for bad in ("", "x", "WzEs", encode((1,)), "W" * 1000, "e30"):
        with pytest.raises(Problem):
            page(["a"], lambda name: (name,), 2, bad)
    assert decode(encode(("ä/", 7))) == ("ä/", 7)


def test_a_segment_keeps_its_slashes() -> None:
    assert segment("a%2Fb%25c") == "a/b%c"
