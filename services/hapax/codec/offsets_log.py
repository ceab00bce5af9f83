"""Keys and values of `__consumer_offsets`, byte for byte as Kafka writes them.

Source: Kafka's published schemas OffsetCommitKey (0-1), OffsetCommitValue (0-4), GroupMetadataKey (2) and
GroupMetadataValue (0-4). Keys and values begin with their version (int16); integers are big-endian. A plain
`string` has an int16 length (-1: null), in flexible versions (4) an unsigned varint of the length + 1. Tagged fields
from 10000 on are Hapax's own; Kafka's readers skip them.

A key of a version that is not listed (Kafka's newer consumer groups, share groups) is `None` here: a reader skips
it and a compaction keeps it.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from hapax.codec.varint import read_uvarint, uvarint
from hapax.core.group.offsets import NO_TIMESTAMP, NO_TOPIC_ID, CommittedOffset, GroupMember, Membership, OffsetRecord
from hapax.core.types import Offset, PartitionIndex, TimestampMs, TopicId, TopicPartition

OFFSET_KEY_VERSION: Final = 1
GROUP_KEY_VERSION: Final = 2

_TOPIC_ID_TAG: Final = 0
_EXPIRE_TAG: Final = 10000
"""int64: the offset's own expiry time. Kafka's versions have no field for it beside the topic's id."""

_i16: Final = struct.Struct(">h")
_i32: Final = struct.Struct(">i")
_i64: Final = struct.Struct(">q")
_offset_and_epoch: Final = struct.Struct(">hqi")


class MembershipRecord(NamedTuple):
    """A GroupMetadata record; without a value it is a tombstone."""

    group: str
    value: Membership | None


class OffsetsLogError(ValueError):
    """A record of a known version that cannot be decoded."""


def encode_key(record: OffsetRecord) -> bytes:
    group = record.group.encode()
    topic = record.partition.topic.encode()
    return b"".join((
        _i16.pack(OFFSET_KEY_VERSION), _i16.pack(len(group)), group, _i16.pack(len(topic)), topic,
        _i32.pack(record.partition.partition),
    ))


def encode_value(value: CommittedOffset) -> bytes:
    """Version 4 where the topic's id is known: without it a topic made again under the name would inherit the offset.
    Else 1 with a retention of its own, and 3 without."""
    metadata = value.metadata.encode()
    if value.topic_id != NO_TOPIC_ID:
        fields = [uvarint(_TOPIC_ID_TAG), uvarint(16), value.topic_id]
        if value.expire_timestamp != NO_TIMESTAMP:
            fields += (uvarint(_EXPIRE_TAG), uvarint(_i64.size), _i64.pack(value.expire_timestamp))
        return b"".join((
            _offset_and_epoch.pack(4, value.offset, value.leader_epoch), uvarint(len(metadata) + 1), metadata,
            _i64.pack(value.commit_timestamp), uvarint(len(fields) // 3), *fields,
        ))
    if value.expire_timestamp != NO_TIMESTAMP:
        return struct.pack(
            f">hqh{len(metadata)}sqq", 1, value.offset, len(metadata), metadata, value.commit_timestamp,
            value.expire_timestamp,
        )
    head = _offset_and_epoch.pack(3, value.offset, value.leader_epoch)
    return head + struct.pack(f">h{len(metadata)}sq", len(metadata), metadata, value.commit_timestamp)


def encode_group_key(group: str) -> bytes:
    name = group.encode()
    return _i16.pack(GROUP_KEY_VERSION) + _i16.pack(len(name)) + name


def decode_record(key: bytes, value: bytes | None) -> OffsetRecord | MembershipRecord | None:
    """None for a key of a kind that this program does not read. Raises OffsetsLogError for a damaged key."""
    try:
        reader = _Reader(key)
        version = reader.i16()
        if version in (0, 1):
            group, topic, partition = reader.string(), reader.string(), reader.i32()
            return OffsetRecord(
                group, TopicPartition(topic, PartitionIndex(partition)),
                None if value is None else decode_value(value),
            )
        if version == GROUP_KEY_VERSION:
            return MembershipRecord(reader.string(), None if value is None else _decode_membership(value))
    except (struct.error, IndexError, ValueError) as error:
        raise OffsetsLogError(f"key {key[:64]!r}: {error}") from error
    return None


def decode_value(value: bytes) -> CommittedOffset:
    """Raises OffsetsLogError for a version not in 0-4; struct.error, IndexError, ValueError for a damaged value."""
    reader = _Reader(value)
    version = reader.i16()
    if not 0 <= version <= 4:
        raise OffsetsLogError(f"OffsetCommitValue of version {version}")
    reader.flexible = version >= 4
    offset = reader.i64()
    leader_epoch = reader.i32() if version >= 3 else -1
    metadata = reader.string()
    commit_timestamp = reader.i64()
    expire_timestamp = reader.i64() if version == 1 else NO_TIMESTAMP
    tags = reader.tags() if version >= 4 else {}
    if _EXPIRE_TAG in tags:
        (expire_timestamp,) = _i64.unpack(tags[_EXPIRE_TAG])
    return CommittedOffset(
        Offset(offset), leader_epoch, metadata, TimestampMs(commit_timestamp), TimestampMs(expire_timestamp),
        TopicId(tags.get(_TOPIC_ID_TAG, NO_TOPIC_ID)),
    )


def _decode_membership(value: bytes) -> Membership:
    reader = _Reader(value)
    version = reader.i16()
    if not 0 <= version <= 4:
        raise OffsetsLogError(f"GroupMetadataValue of version {version}")
    reader.flexible = version >= 4
    protocol_type = reader.string()
    generation = reader.i32()
    reader.nullable_string()
    reader.nullable_string()
    state_timestamp = reader.i64() if version >= 2 else NO_TIMESTAMP
    members = []
    for _ in range(reader.length()):
        member_id = reader.string()
        instance_id = reader.nullable_string() if version >= 3 else None
        reader.string()
        reader.string()
        if version >= 1:
            reader.i32()
        reader.i32()
        reader.bytes_()
        reader.bytes_()
        if version >= 4:
            reader.tags()
        members.append(GroupMember(member_id, instance_id))
    return Membership(
        generation, tuple(members), protocol_type=protocol_type, state_timestamp=TimestampMs(state_timestamp)
    )


class _Reader:
    """Reads the fields of one message in order."""

    __slots__ = ("_data", "_position", "flexible")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0
        self.flexible = False

    def i16(self) -> int:
        return self._unpack(_i16)

    def i32(self) -> int:
        return self._unpack(_i32)

    def i64(self) -> int:
        return self._unpack(_i64)

    def string(self) -> str:
        return self.nullable_string() or ""

    def nullable_string(self) -> str | None:
        size = self.uvarint() - 1 if self.flexible else self.i16()
        return None if size < 0 else self._take(size).decode()

    def length(self) -> int:
        return self.uvarint() - 1 if self.flexible else self.i32()

    def bytes_(self) -> bytes:
        size = self.length()
        return b"" if size < 0 else self._take(size)

    def tags(self) -> dict[int, bytes]:
        found = {}
        for _ in range(self.uvarint()):
            tag = self.uvarint()
            found[tag] = self._take(self.uvarint())
        return found

    def uvarint(self) -> int:
        value, self._position = read_uvarint(self._data, self._position)
        return value

    def _unpack(self, layout: struct.Struct) -> int:
        (value,) = layout.unpack_from(self._data, self._position)
        self._position += layout.size
        return int(value)

    def _take(self, size: int) -> bytes:
        data = self._data[self._position:self._position + size]
        if len(data) < size:
            raise IndexError("the message ends too early")
        self._position += size
        return data
