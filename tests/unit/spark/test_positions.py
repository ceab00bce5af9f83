"""Offsets of the source: what they say, what they refuse, how they are shared out."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hapax.client.admin import TopicInfo, TopicPartitionInfo
from hapax_spark.errors import DataLossError
from hapax_spark.options import OptionError, Options
from hapax_spark.positions import (
    OffsetRange,
    batch_begins,
    check_loss,
    check_topics,
    from_offset,
    limit_rows,
    split_ranges,
    to_offset,
    to_read,
)

A, B = ("a", 0), ("b", 1)


def test_an_offset_survives_the_journey_through_the_checkpoint() -> None:
    offset = to_offset("c1", {B: 7, A: 5}, {"a": "id-a", "b": "id-b", "c": "id-c"})
    assert offset == {"cluster": "c1", "topics": {"a": {"0": 5}, "b": {"1": 7}}, "ids": {"a": "id-a", "b": "id-b"}}
    assert from_offset(offset, "c1") == {A: 5, B: 7}


def test_the_checkpoint_of_another_cluster_is_refused() -> None:
    with pytest.raises(DataLossError, match="written against cluster 'c1', this is 'c2'"):
        from_offset(to_offset("c1", {A: 5}, {}), "c2")


@given(st.dictionaries(st.tuples(st.sampled_from("ab"), st.integers(0, 3)), st.integers(0, 1000), min_size=1),
       st.integers(1, 500))  # fmt: skip
@example({("a", 0): 1, ("a", 1): 1, ("a", 2): 4}, 3)
def test_a_limited_end_moves_every_waiting_partition_and_no_further_than_it_holds(
    waiting: dict[tuple[str, int], int], rows: int
) -> None:
    start = dict.fromkeys(waiting, 10)
    latest = {tp: 10 + n for tp, n in waiting.items()}
    end = limit_rows(start, latest, rows)
    for tp, n in waiting.items():
        assert start[tp] <= end[tp] <= latest[tp]
        assert n == 0 or end[tp] > start[tp]
    assert sum(end[tp] - 10 for tp in end) <= max(rows, len(waiting))


def test_ranges_are_split_until_there_are_enough_tasks() -> None:
    parts = split_ranges([OffsetRange("a", 0, 0, 100), OffsetRange("b", 0, 5, 5)], 4)
    assert [(r.start, r.end) for r in parts] == [(0, 25), (25, 50), (50, 75), (75, 100)]


def test_no_task_reads_more_than_it_shall() -> None:
    ranges = [OffsetRange("a", 0, 0, 100), OffsetRange("b", 0, 0, 10)]
    parts = split_ranges(ranges, None, 40)
    assert [(r.topic, r.start, r.end) for r in parts] == [("a", 0, 33), ("a", 33, 66), ("a", 66, 100), ("b", 0, 10)]
    assert len(split_ranges(ranges, 10, 40)) >= 10, "the larger number of tasks counts"


def test_deleted_records_fail_or_are_skipped_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(DataLossError, match=r"Records 3 to 9 of a-0 were deleted before they were read. Let the topic"):
        check_loss(Options("h:1"), {A: 3}, {A: 10})
    assert check_loss(Options("h:1", fail_on_data_loss=False), {A: 3, B: 4}, {A: 10, B: 4}) == {A: 10, B: 4}
    assert "Going on without them" in caplog.text


def test_topics_are_those_of_the_checkpoint_or_it_says_so(caplog: pytest.LogCaptureFixture) -> None:
    there = {"a": TopicInfo("a", "id-a", ())}
    assert check_topics(Options("h:1"), {A: 3}, {"a": "id-a"}, there) == {A: 3}
    assert check_topics(Options("h:1"), {A: 3}, {}, there) == {A: 3}, "a checkpoint from before ids were kept"
    with pytest.raises(DataLossError, match="Topic 'a' was deleted and created again"):
        check_topics(Options("h:1"), {A: 3}, {"a": "another"}, there)
    with pytest.raises(DataLossError, match="Topic 'b' of the checkpoint was deleted"):
        check_topics(Options("h:1"), {A: 3, B: 4}, {}, there)
    lenient = Options("h:1", fail_on_data_loss=False)
    assert check_topics(lenient, {A: 3, B: 4}, {"a": "another"}, there) == {}
    assert caplog.text.count("Going on without them") == 2


def test_a_topic_to_read_must_exist_unless_it_once_did() -> None:
    options = Options("h:1", topics=("a", "b"))
    there = {"a": TopicInfo("a", "id-a", (TopicPartitionInfo(0, 0, 0), TopicPartitionInfo(1, 0, 0)))}
    with pytest.raises(OptionError, match="Topic 'b' does not exist"):
        to_read(there, options)
    assert to_read(there, options, known=["b"]) == [("a", 0), ("a", 1)]
    assert to_read(there, Options("h:1", assign={"a": (1,)})) == [("a", 1)]


# --- where a batch begins --------------------------------------------------------------------------------------------

IDS = {"a": "id-a", "b": "id-b"}


def test_the_first_batch_begins_where_it_was_planned_to_whatever_the_log_holds_now() -> None:
    planned = to_offset("c1", {A: 50, B: 9}, IDS, begins={A: 3, B: 4})
    now = {**to_offset("c1", {A: 40, B: 80}, IDS), "initial": True}
    assert batch_begins(json.loads(json.dumps(now)), json.loads(json.dumps(planned)), "c1") == {A: 3, B: 4}


def test_a_batch_goes_on_from_the_former_one_and_begins_added_partitions_where_its_end_says() -> None:
    former = to_offset("c1", {A: 50}, IDS, begins={A: 3})
    end = to_offset("c1", {A: 60, B: 9}, IDS, begins={B: 2})
    assert batch_begins(former, end, "c1") == {A: 50, B: 2}
    assert batch_begins(former, to_offset("c1", {A: 60, B: 9}, IDS), "c1") == {A: 50, B: 0}, "of an earlier version"
    assert batch_begins(former, former, "c1") == {A: 50}, "nothing new: Spark asks that, too"


def test_a_topic_that_was_made_again_does_not_go_on_where_the_former_one_was() -> None:
    former = to_offset("c1", {A: 50}, {"a": "id-a"})
    end = to_offset("c1", {A: 60}, {"a": "another"}, begins={A: 7})
    assert batch_begins(former, end, "c1") == {A: 7}
    assert batch_begins({**former, "ids": {}}, end, "c1") == {A: 50}, "a checkpoint from before ids were kept"


def test_the_first_batch_of_an_earlier_version_is_read_as_it_was() -> None:
    now = {**to_offset("c1", {A: 5}, IDS), "initial": True}
    assert batch_begins(now, to_offset("c1", {A: 60}, IDS), "c1") == {A: 5}
