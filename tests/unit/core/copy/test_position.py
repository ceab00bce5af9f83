"""Positions, and whether the source is still the one to which they belong."""

from __future__ import annotations

import pytest

from hapax.core.copy.position import (
    Chosen,
    Kind,
    Position,
    Source,
    choose,
    is_half_former,
    is_known_to_be_of,
    is_of_former,
    judge,
)

POSITION = Position(100, "cluster", "orders", "id", 3)
SOURCE = Source("cluster", "id", 0, 200, 150)


def test_metadata_are_read_again() -> None:
    position = Position(100, "cluster", "ördérs", "id", 3)
    assert Position.read(100, position.metadata()) == position


@pytest.mark.parametrize("metadata", ["", "x", "[]", "{}", '{"v":1}', '{"v":2,"cluster":"c"}', "null", '"text"'])
def test_other_metadata_are_refused(metadata: str) -> None:
    with pytest.raises(ValueError, match="hapax copy"):
        Position.read(0, metadata)


@pytest.mark.parametrize(("source", "kind", "says"), [
    (SOURCE, None, ""),
    (SOURCE._replace(end=100, epoch_end=100), None, ""),
    (SOURCE._replace(epoch_end=-1), None, ""),
    (SOURCE._replace(cluster="other"), Kind.OTHER_CLUSTER, "cluster other"),
    (SOURCE._replace(topic_id="new"), Kind.MADE_AGAIN, "made again"),
    (SOURCE._replace(end=90), Kind.TRUNCATED, "lost 10 offsets"),
    (SOURCE._replace(epoch_end=90), Kind.TRUNCATED, "leader epoch 3 end at offset 90"),
    (SOURCE._replace(first=130), Kind.LOST, "30 offsets were"),
])  # fmt: skip
def test_the_source_is_judged(source: Source, kind: Kind | None, says: str) -> None:
    trouble = judge("orders-0", POSITION, "orders", source)
    assert (None if trouble is None else trouble.kind) == kind
    if trouble is not None:
        assert says in trouble.message
        assert trouble.go_on_at == (130 if kind is Kind.LOST else -1)


def test_another_topic_of_the_same_target() -> None:
    trouble = judge("payments-0", POSITION, "payments", SOURCE)
    assert trouble is not None
    assert trouble.kind is Kind.OTHER_TOPIC


def test_what_is_unknown_says_nothing() -> None:
    unknown = POSITION._replace(cluster="", topic_id="", epoch=-1)
    assert judge("orders-0", unknown, "orders", SOURCE._replace(cluster="any", topic_id="any", epoch_end=0)) is None


@pytest.mark.parametrize(("written", "now", "former"), [
    ("one", "other", True), ("one", "one", False), ("", "one", False), ("one", "", False),
])  # fmt: skip
def test_a_position_is_void_once_the_topic_of_the_target_is_another_one(written: str, now: str, former: bool) -> None:
    metadata = POSITION._replace(target_id=written).metadata()
    assert Position.read(100, metadata).target_id == written
    assert is_of_former(100, metadata, now) is former


@pytest.mark.parametrize(("written", "now", "known"), [
    ("one", "one", True), ("one", "other", False), ("", "", False), ("one", "", False), ("", "one", False),
])  # fmt: skip
def test_a_saved_position_counts_where_the_topic_is_known_to_be_the_same(written: str, now: str, known: bool) -> None:
    assert is_known_to_be_of(100, POSITION._replace(target_id=written).metadata(), now) is known
    assert is_known_to_be_of(0, "of a later version", now), "reading it reports an error"


@pytest.mark.parametrize(("share", "data", "half"), [
    ("s", "d", False), ("s", "new", True), ("new", "d", True), ("new", "new", False), ("", "new", False),
    ("new", "", False),
])  # fmt: skip
def test_one_of_two_topics_of_the_target_was_made_again(share: str, data: str, half: bool) -> None:
    metadata = POSITION._replace(target_id="s", data_id="d").metadata()
    assert Position.read(100, metadata).data_id == "d"
    assert is_half_former(100, metadata, share, data) is half
    assert not is_half_former(100, POSITION._replace(target_id="s").metadata(), share, data), "it has one topic"
    assert not is_half_former(100, "theirs", share, data)


def test_a_position_of_others_is_judged_elsewhere() -> None:
    assert not is_of_former(100, "theirs", "id")


def at(offset: int, target: str = "one", data: str = "", **others: str) -> tuple[int, str]:
    position = Position(offset, others.get("cluster", "cluster"), "orders", others.get("source", "id"), 3, target, data)
    return offset, position.metadata()


@pytest.mark.parametrize(("group", "saved", "chosen"), [
    (None, None, Chosen.NONE),
    (at(5), None, Chosen.GROUP),
    (None, at(5), Chosen.SAVED),
    (at(5), at(5), Chosen.GROUP),
    (at(5), at(4), Chosen.GROUP),
    (at(5), at(6), Chosen.SAVED),
    # The target's topic was made again, and one of the positions is of the former one.
    (at(5), at(6, "former"), Chosen.GROUP),
    (at(6, "former"), at(5), Chosen.SAVED),
    (at(5, "former"), at(6, "former"), Chosen.NONE),
    (None, at(6, "former"), Chosen.NONE),
    (at(6, "former"), None, Chosen.NONE),
    # What cannot be compared.
    (at(5), at(6, source="other"), Chosen.GROUP),
    (at(5), at(6, cluster="other"), Chosen.GROUP),
    (at(5), (0, "later"), Chosen.GROUP),
    ((0, "later"), at(6), Chosen.GROUP),
    (None, (0, "later"), Chosen.SAVED),
    # An older version names no topic of the target.
    (at(5, ""), at(6), Chosen.SAVED),
    (at(7, ""), at(6), Chosen.GROUP),
])  # fmt: skip
def test_the_later_of_two_positions_counts(
    group: tuple[int, str] | None, saved: tuple[int, str] | None, chosen: Chosen
) -> None:
    assert choose(group, saved, "one", "") is chosen


@pytest.mark.parametrize(("group", "saved", "chosen"), [
    (at(5, data="d"), at(6, data="d"), Chosen.SAVED),
    (at(6, "former", "former"), at(5, data="d"), Chosen.SAVED),
    (at(5, data="d"), at(6, "former", "former"), Chosen.GROUP),
    (at(5, data="d"), at(6, data="former"), Chosen.GROUP),
    (at(5, data="former"), None, Chosen.HALF),
    (at(5, data="former"), at(6, data="former"), Chosen.HALF),
    (None, at(6, data="former"), Chosen.HALF),
])  # fmt: skip
def test_the_later_of_two_positions_counts_with_a_topic_of_its_own_for_the_records(
    group: tuple[int, str] | None, saved: tuple[int, str] | None, chosen: Chosen
) -> None:
    assert choose(group, saved, "one", "d") is chosen


def test_without_topic_ids_the_group_s_position_counts() -> None:
    assert choose(at(5, ""), at(6, ""), "", "") is Chosen.GROUP
    assert choose(None, at(6, ""), "", "") is Chosen.NONE
