"""What can be decided about a group can be written."""

from __future__ import annotations

import pytest

from hapax.codec.offsets_log import decode_record, encode_key, encode_value
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.group.machine import GroupShard
from hapax.core.group.offsets import CommitDecision, CommitRequest, OffsetCommit, TxnOffsetCommit
from hapax.core.types import (
    Millis,
    Now,
    Offset,
    PartitionIndex,
    ProducerEpoch,
    ProducerId,
    TimestampMs,
    TopicId,
    TopicPartition,
)

PARTITION = TopicPartition("t", PartitionIndex(0))


def commit(shard: GroupShard, group: str, metadata: str = "", *, transactional: bool = False) -> CommitDecision:
    offsets = (CommitRequest(PARTITION, Offset(1), -1, metadata),)
    if transactional:
        request = TxnOffsetCommit("", group, ProducerId(1), ProducerEpoch(0), -1, "", None, offsets)
        return shard.decide_txn_offset_commit(request, Now(Millis(1), TimestampMs(1)))
    return shard.decide_offset_commit(OffsetCommit(group, -1, "", None, offsets), Now(Millis(1), TimestampMs(1)))


@pytest.mark.parametrize("transactional", [False, True])
@pytest.mark.parametrize("longest", [32_767 * "a", 16_383 * "\u00e4"])
def test_an_id_has_at_most_as_many_bytes_as_its_key_can_tell(longest: str, transactional: bool) -> None:
    shard = GroupShard()
    decision = commit(shard, longest, transactional=transactional)
    assert all(encode_key(record) for record in decision.records)
    with pytest.raises(Refusal) as refused:
        commit(shard, longest + "\u00e4", transactional=transactional)
    assert refused.value.code is ErrorCode.INVALID_GROUP_ID


def test_neither_does_a_setting_let_metadata_be_longer() -> None:
    shard = GroupShard(max_metadata_bytes=1 << 20)
    for record in commit(shard, "g", 32_767 * "a").records:
        assert record.value is not None
        encode_value(record)
    assert commit(shard, "g", 32_768 * "a").errors == (ErrorCode.OFFSET_METADATA_TOO_LARGE,)


@pytest.mark.parametrize("topic_id", [bytes(16), bytes(range(16))])
def test_a_retention_without_end_can_be_written(topic_id: bytes) -> None:
    offsets = (CommitRequest(PARTITION, Offset(1), -1, "", TopicId(topic_id)),)
    request = OffsetCommit("g", -1, "", None, offsets, retention_ms=2**63 - 1)
    decision = GroupShard().decide_offset_commit(request, Now(Millis(1), TimestampMs(1_700_000_000_000)))
    for record in decision.records:
        assert record.value is not None and record.value.expire_timestamp == 2**63 - 1
        assert decode_record(encode_key(record), encode_value(record)) == record
