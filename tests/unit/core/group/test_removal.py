"""What a group has committed is forgotten on request, unless somebody would miss it."""

from __future__ import annotations

import pytest

from hapax.core.errors import ErrorCode, Refusal
from hapax.core.group.machine import GroupShard
from hapax.core.group.offsets import CommittedOffset, OffsetRecord
from hapax.core.group.values import ClassicGroupRecord, ClassicGroupValue, ClassicMemberValue
from hapax.core.types import (
    Offset,
    PartitionIndex,
    ProducerEpoch,
    ProducerId,
    TimestampMs,
    TopicPartition,
)

A, B = TopicPartition("t", PartitionIndex(0)), TopicPartition("t", PartitionIndex(1))
VALUE = CommittedOffset(Offset(5), -1, "", TimestampMs(1))


@pytest.fixture
def shard() -> GroupShard:
    shard = GroupShard()
    for at, partition in enumerate((A, B)):
        shard.replay_offset(OffsetRecord("g", partition, VALUE), Offset(at))
    return shard


def refused(shard: GroupShard, *arguments: object) -> ErrorCode:
    with pytest.raises(Refusal) as told:
        shard.decide_removal(*arguments)  # type: ignore[arg-type]
    return told.value.code


def test_all_or_some_of_it_goes(shard: GroupShard) -> None:
    assert shard.decide_removal("g", [B, TopicPartition("x", PartitionIndex(0))]) == (OffsetRecord("g", B, None),)
    for at, record in enumerate(shard.decide_removal("g", None)):
        shard.replay_offset(record, Offset(2 + at))
    assert shard.summary("g") is None and refused(shard, "g", None) == ErrorCode.GROUP_ID_NOT_FOUND


def test_members_and_open_transactions_keep_it(shard: GroupShard) -> None:
    shard.replay_txn_offset(OffsetRecord("g", A, VALUE), Offset(2), ProducerId(7), ProducerEpoch(0))
    assert refused(shard, "g", None) == refused(shard, "g", [A]) == ErrorCode.UNSTABLE_OFFSET_COMMIT
    assert shard.decide_removal("g", [B]) == (OffsetRecord("g", B, None),)
    member = ClassicMemberValue("m", None, "c", "/127.0.0.1", 60_000, 45_000, b"", b"")
    value = ClassicGroupValue("consumer", 1, "range", "m", TimestampMs(1), (member,))
    shard.replay(ClassicGroupRecord("g", value), Offset(3))
    assert refused(shard, "g", [B]) == ErrorCode.NON_EMPTY_GROUP
