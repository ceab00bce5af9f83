"""What a broker holds of batches that a restore sends in several parts."""

from __future__ import annotations

import pytest

from hapax.core.backup.import_parts import ABANDONED_MS, ImportParts
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.types import PartitionIndex, TopicId, TopicIdPartition

LIMIT = 100
ONE, TWO, THREE = (TopicIdPartition(TopicId(bytes(16)), PartitionIndex(n)) for n in range(3))


class Parts(ImportParts):
    """At a time that tests set."""

    now_ms = 0

    def part(self, partition: TopicIdPartition, data: bytes, position: int, size: int) -> bytes:
        return bytes(self.add(partition, "t-0", bytearray(data), position, size, LIMIT, self.now_ms))

    def refused(self, partition: TopicIdPartition, data: bytes, position: int, size: int) -> Refusal:
        with pytest.raises(Refusal) as refusal:
            self.part(partition, data, position, size)
        return refusal.value


def test_the_last_part_returns_all() -> None:
    parts = Parts()
    assert [parts.part(ONE, b"abcd", 0, 6), parts.part(ONE, b"ef", 4, 6)] == [b"", b"abcdef"]
    assert parts.reserved == 0


def test_a_batch_may_be_as_large_as_the_limit_and_no_larger() -> None:
    parts = Parts()
    assert parts.part(ONE, b"a", 0, LIMIT) == b""
    assert parts.refused(TWO, b"a", 0, LIMIT + 1).code is ErrorCode.MESSAGE_TOO_LARGE
    assert parts.reserved == LIMIT


def test_all_partitions_together_are_bounded_by_what_they_will_have() -> None:
    """Not by what has come so far: two that are half there would wait for each other."""
    parts = Parts()
    parts.part(ONE, b"a", 0, 60)
    refusal = parts.refused(TWO, b"a", 0, 41)
    assert refusal.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED, "it may be repeated"
    assert "others of 60 bytes" in refusal.reason
    parts.part(THREE, b"a", 0, 40)
    assert parts.part(ONE, bytes(59), 1, 60) != b""
    assert parts.part(TWO, b"a", 0, 41) == b""


def test_one_partition_counts_once() -> None:
    """Another restore sends other batches of the same partition."""
    parts = Parts()
    parts.part(ONE, b"a", 0, 60)
    parts.part(ONE, b"a", 0, 90)
    assert parts.reserved == 90


def test_an_abandoned_batch_gives_its_room_to_another() -> None:
    parts = Parts()
    parts.part(ONE, b"a", 0, 60)
    parts.now_ms = ABANDONED_MS - 1
    assert parts.refused(TWO, b"a", 0, 60).code is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    parts.part(ONE, b"b", 1, 60)
    parts.now_ms = 2 * ABANDONED_MS - 2
    parts.let_go(parts.now_ms)
    assert parts.reserved == 60, "a part came since"
    parts.now_ms += 1
    parts.part(TWO, b"a", 0, 60)
    assert parts.reserved == 60
    assert parts.refused(ONE, b"c", 2, 60).code is ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize("data, position, size", [(b"abc", 0, 2), (b"a", -1, 2), (b"a", 0, -1), (b"", 3, 2)])
def test_a_part_outside_its_batches_is_refused(data: bytes, position: int, size: int) -> None:
    parts = Parts()
    assert parts.refused(ONE, data, position, size).code is ErrorCode.INVALID_REQUEST
    assert parts.reserved == 0
