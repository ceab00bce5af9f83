"""What a compacted topic may not show."""

from __future__ import annotations

from hapax_checker import Current, KeyWrite, Reading, by_time, newest_of_each_key

WRITES = (
    KeyWrite("a", "1", 10, 0), KeyWrite("b", "2", 11, 1), KeyWrite("a", None, 12, 2), KeyWrite("b", "3", 13, 3),
)  # fmt: skip


def kinds(found: list[str]) -> list[str]:
    return [sentence.partition(":")[0] for sentence in found]


def test_what_compaction_leaves_is_sound() -> None:
    assert newest_of_each_key(WRITES, Reading(4, True, [(3, "b", "3")])) == []
    assert newest_of_each_key(WRITES, Reading(4, True, [(2, "a", None), (3, "b", "3")])) == []


def test_a_deleted_key_stays_deleted() -> None:
    reading = Reading(4, True, [(0, "a", "1"), (3, "b", "3")])
    assert kinds(newest_of_each_key(WRITES, reading)) == ["deleted-key-came-back"]
    assert newest_of_each_key(WRITES, reading._replace(sees_deletions=False)) == []


def test_the_newest_value_is_there() -> None:
    assert kinds(newest_of_each_key(WRITES, Reading(4, True, []))) == ["lost-key"]
    assert kinds(newest_of_each_key(WRITES, Reading(4, True, [(1, "b", "2")]))) == ["older-value"]
    assert kinds(newest_of_each_key(WRITES, Reading(4, True, [(3, "b", "2")]))) == ["other-value"]


def test_what_was_not_acknowledged_may_be_there_or_not() -> None:
    doubtful = (*WRITES, KeyWrite("b", None, 14))
    assert newest_of_each_key(doubtful, Reading(5, True, [(4, "b", None)])) == []
    assert newest_of_each_key(doubtful, Reading(5, True, [])) == []
    assert newest_of_each_key(doubtful, Reading(5, True, [(3, "b", "3")])) == []


def test_what_began_after_the_end_was_asked_for_is_not_expected() -> None:
    assert newest_of_each_key(WRITES, Reading(4, True, [(1, "b", "2")]), known=3) == []


def test_a_write_at_the_end_or_beyond_may_have_taken_what_it_follows() -> None:
    writes = (*WRITES, KeyWrite("b", "4", 14, 4), KeyWrite("a", "5", 15, 5))
    assert newest_of_each_key(writes, Reading(4, True, [(0, "a", "1"), (1, "b", "2")])) == []
    assert newest_of_each_key(writes, Reading(4, True, [])) == []


def test_a_time_finds_the_first_record_that_is_there() -> None:
    there = [Current(1, 11), Current(3, 13)]
    assert by_time(there, 11, 1) == by_time(there, 11, 0) == by_time(there, 14, None) == []
    assert kinds(by_time(there, 11, 3)) == kinds(by_time(there, 12, None)) == ["time-skips"]
