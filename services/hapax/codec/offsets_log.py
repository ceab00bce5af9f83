"""Keys and values of `__consumer_offsets`, byte for byte as Kafka writes them.

A key begins with its kind (int16), a value with its version (int16). Source: Kafka's published schemas of the keys
OffsetCommitKey (kinds 0-1), GroupMetadataKey (2), ConsumerGroup…Key (3, 5-8, 16), and of OffsetCommitValue (0-4). The
other values are in `group_records.py`. Keys are never flexible. Tagged fields from 10000 on are Hapax's own; Kafka's
readers skip them.

A key of another kind (a share or streams group's, or metadata of topics as Kafka 4.0 wrote it) is `None` here: a reader
skips it and a compaction keeps it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

from hapax.codec import group_records
from hapax.codec.fields import I16, I32, I64, FieldReader, string
from hapax.codec.varint import uvarint
from hapax.core.group.offsets import NO_TIMESTAMP, NO_TOPIC_ID, CommittedOffset, OffsetRecord
from hapax.core.group.values import (
    ClassicGroupRecord,
    CurrentRecord,
    GroupEpochRecord,
    GroupRecord,
    MemberRecord,
    MembershipRecord,
    RegexRecord,
    TargetEpochRecord,
    TargetRecord,
)
from hapax.core.types import Offset, PartitionIndex, TimestampMs, TopicId, TopicPartition

OFFSET_KIND: Final = 1
_OLDER_OFFSET_KIND: Final = 0

_TOPIC_ID_TAG: Final = 0
_EXPIRE_TAG: Final = 10000
"""int64: the offset's own expiry time. Kafka's versions have no field for it beside the topic's id."""

_offset_and_epoch: Final = struct.Struct(">hqi")

_GROUP_KINDS: Final[dict[int, tuple[Any, Callable[[Any], bytes], Callable[[bytes], Any]]]] = {
    2: (ClassicGroupRecord, group_records.encode_classic_group, group_records.decode_classic_group),
    3: (GroupEpochRecord, group_records.encode_group_epoch, group_records.decode_group_epoch),
    5: (MemberRecord, group_records.encode_member, group_records.decode_member),
    6: (TargetEpochRecord, group_records.encode_target_epoch, group_records.decode_target_epoch),
    7: (TargetRecord, group_records.encode_target, group_records.decode_target),
    8: (CurrentRecord, group_records.encode_current, group_records.decode_current),
    16: (RegexRecord, group_records.encode_regex, group_records.decode_regex),
}
"""Kind of key -> its record, encoder and decoder of the value. The record's fields before `value` are the key's."""
_KIND_OF: Final = {record: kind for kind, (record, _, _) in _GROUP_KINDS.items()}


class OffsetsLogError(ValueError):
    """A record of a known kind that cannot be decoded."""


def encode_key(record: GroupRecord) -> bytes:
    """Raises struct.error where a name has more than 32,767 bytes."""
    if isinstance(record, OffsetRecord):
        return b"".join((
            I16.pack(OFFSET_KIND), string(record.group), string(record.partition.topic),
            I32.pack(record.partition.partition),
        ))
    *names, _ = record
    return I16.pack(_KIND_OF[type(record)]) + b"".join(map(string, names))


def encode_value(record: GroupRecord) -> bytes:
    """The record is no tombstone. Raises struct.error where it cannot be written."""
    assert record.value is not None
    if isinstance(record, OffsetRecord):
        return _encode_offset(record.value)
    _, encode, _ = _GROUP_KINDS[_KIND_OF[type(record)]]
    return encode(record.value)


def _encode_offset(value: CommittedOffset) -> bytes:
    """Version 4 where the topic's id is known: without it a topic made again under the name would inherit the offset.
    Else 1 with a retention of its own, and 3 without."""
    metadata = value.metadata.encode()
    if value.topic_id != NO_TOPIC_ID:
        fields = [uvarint(_TOPIC_ID_TAG), uvarint(16), value.topic_id]
        if value.expire_timestamp != NO_TIMESTAMP:
            fields += (uvarint(_EXPIRE_TAG), uvarint(I64.size), I64.pack(value.expire_timestamp))
        return b"".join((
            _offset_and_epoch.pack(4, value.offset, value.leader_epoch), uvarint(len(metadata) + 1), metadata,
            I64.pack(value.commit_timestamp), uvarint(len(fields) // 3), *fields,
        ))
    if value.expire_timestamp != NO_TIMESTAMP:
        return struct.pack(
            f">hqh{len(metadata)}sqq", 1, value.offset, len(metadata), metadata, value.commit_timestamp,
            value.expire_timestamp,
        )
    head = _offset_and_epoch.pack(3, value.offset, value.leader_epoch)
    return head + struct.pack(f">h{len(metadata)}sq", len(metadata), metadata, value.commit_timestamp)


def decode_record(key: bytes, value: bytes | None) -> GroupRecord | None:
    """None for a key of a kind that this program does not read. Raises OffsetsLogError for a damaged key or value."""
    try:
        reader = FieldReader(key)
        kind = reader.i16()
        if kind in (_OLDER_OFFSET_KIND, OFFSET_KIND):
            group, topic, partition = reader.string(), reader.string(), reader.i32()
            return OffsetRecord(
                group, TopicPartition(topic, PartitionIndex(partition)),
                None if value is None else _decode_offset(value),
            )
        if kind not in _GROUP_KINDS:
            return None
        make, _, decode = _GROUP_KINDS[kind]
        names = [reader.string() for _ in make._fields[:-1]]
        record: MembershipRecord = make(*names, None if value is None else decode(value))
        return record
    except (struct.error, IndexError, ValueError) as error:
        raise OffsetsLogError(f"key {key[:64]!r}: {error}") from error


def _decode_offset(value: bytes) -> CommittedOffset:
    reader = FieldReader(value)
    version = reader.i16()
    if not 0 <= version <= 4:
        raise ValueError(f"OffsetCommitValue of version {version}")
    reader.compact = version >= 4
    offset = reader.i64()
    leader_epoch = reader.i32() if version >= 3 else -1
    metadata = reader.string()
    commit_timestamp = reader.i64()
    expire_timestamp = reader.i64() if version == 1 else NO_TIMESTAMP
    tags = reader.tags() if version >= 4 else {}
    if _EXPIRE_TAG in tags:
        (expire_timestamp,) = I64.unpack(tags[_EXPIRE_TAG])
    return CommittedOffset(
        Offset(offset), leader_epoch, metadata, TimestampMs(commit_timestamp), TimestampMs(expire_timestamp),
        TopicId(tags.get(_TOPIC_ID_TAG, NO_TOPIC_ID)),
    )
