"""Values of the records of `__consumer_offsets` that hold groups and their members, byte for byte as Kafka writes them.

Source: Kafka's published schemas of these values. Their layouts are in `schemas/`, under Kafka's names and in the
notation of its message schemas; a test compares this codec with them byte by byte.

| kind of key | schema of the value | version | written |
|---|---|---|---|
| 2 | GroupMetadataValue | 0-4 | 3, as Kafka 4 does |
| 3 | ConsumerGroupMetadataValue | 0 | 0 |
| 5 | ConsumerGroupMemberMetadataValue | 0 | 0 |
| 6 | ConsumerGroupTargetAssignmentMetadataValue | 0 | 0 |
| 7 | ConsumerGroupTargetAssignmentMemberValue | 0 | 0 |
| 8 | ConsumerGroupCurrentMemberAssignmentValue | 0 | 0 |
| 16 | ConsumerGroupRegularExpressionValue | 0 | 0 |

Fields that this program does not know are tagged, and are skipped. Every decoder raises ValueError for an unknown
version; struct.error, IndexError or ValueError for a damaged value.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Final

from hapax.codec.fields import (
    I8,
    I16,
    I32,
    I64,
    NO_TAGS,
    FieldReader,
    compact_bytes,
    compact_count,
    compact_string,
    nullable_string,
    string,
    tags,
)
from hapax.core.group.offsets import NO_TIMESTAMP
from hapax.core.group.values import (
    UNKNOWN_HASH,
    ClassicFacade,
    ClassicGroupValue,
    ClassicMemberValue,
    CurrentValue,
    GroupEpochValue,
    MemberValue,
    Partitions,
    ProtocolOffer,
    RegexValue,
    TargetEpochValue,
)
from hapax.core.types import TimestampMs, TopicId

CLASSIC_VERSION: Final = 3
_NEWEST_CLASSIC_VERSION: Final = 4
_FLEXIBLE_CLASSIC_VERSION: Final = 4

_METADATA_HASH_TAG: Final = 0
_CLASSIC_TAG: Final = 0
_TIMESTAMP_TAG: Final = 0
_ASSIGNMENT_EPOCHS_TAG: Final = 0
_NULL_ARRAY: Final = b"\0"
_PRESENT: Final = b"\x01"
"""Precedes a nullable struct that is not null."""
_NEVER: Final = TimestampMs(0)
_STATES: Final = 3
"""A member's states are below it."""
_VERSION_0: Final = I16.pack(0)
_ID_BYTES: Final = 16

_Placed = tuple[TopicId, int, int]
"""Topic id, partition, assignment epoch."""


# --- kind 2 -------------------------------------------------------------------------------------------------------


def encode_classic_group(value: ClassicGroupValue) -> bytes:
    return b"".join((
        I16.pack(CLASSIC_VERSION), string(value.protocol_type), I32.pack(value.generation),
        nullable_string(value.protocol), nullable_string(value.leader), I64.pack(value.state_timestamp),
        I32.pack(len(value.members)), *(_classic_member(member) for member in value.members),
    ))


def _classic_member(member: ClassicMemberValue) -> bytes:
    return b"".join((
        string(member.member_id), nullable_string(member.instance_id), string(member.client_id),
        string(member.client_host), I32.pack(member.rebalance_timeout_ms), I32.pack(member.session_timeout_ms),
        I32.pack(len(member.subscription)), member.subscription, I32.pack(len(member.assignment)), member.assignment,
    ))


def decode_classic_group(data: bytes) -> ClassicGroupValue:
    """In version 0, a member's rebalance timeout is its session timeout."""
    reader = FieldReader(data)
    version = _version(reader, _NEWEST_CLASSIC_VERSION)
    reader.compact = version >= _FLEXIBLE_CLASSIC_VERSION
    value = ClassicGroupValue(
        reader.string(), reader.i32(), reader.nullable_string(), reader.nullable_string(),
        TimestampMs(reader.i64()) if version >= 2 else NO_TIMESTAMP,
        tuple(_read_classic_member(reader, version) for _ in range(reader.count())))
    if reader.compact:
        reader.tags()
    return value


def _read_classic_member(reader: FieldReader, version: int) -> ClassicMemberValue:
    member_id = reader.string()
    instance_id = reader.nullable_string() if version >= 3 else None
    client_id, client_host = reader.string(), reader.string()
    rebalance_timeout_ms = reader.i32() if version >= 1 else None
    session_timeout_ms = reader.i32()
    member = ClassicMemberValue(
        member_id, instance_id, client_id, client_host,
        session_timeout_ms if rebalance_timeout_ms is None else rebalance_timeout_ms, session_timeout_ms,
        reader.bytes_(), reader.bytes_())
    if reader.compact:
        reader.tags()
    return member


# --- kinds 3 and 6 ------------------------------------------------------------------------------------------------


def encode_group_epoch(value: GroupEpochValue) -> bytes:
    known = [] if value.metadata_hash == UNKNOWN_HASH else [(_METADATA_HASH_TAG, I64.pack(value.metadata_hash))]
    return _VERSION_0 + I32.pack(value.epoch) + tags(known)


def decode_group_epoch(data: bytes) -> GroupEpochValue:
    reader = _flexible(data)
    epoch = reader.i32()
    return GroupEpochValue(epoch, _tagged_i64(reader.tags(), _METADATA_HASH_TAG, UNKNOWN_HASH))


def encode_target_epoch(value: TargetEpochValue) -> bytes:
    known = [] if value.timestamp == _NEVER else [(_TIMESTAMP_TAG, I64.pack(value.timestamp))]
    return _VERSION_0 + I32.pack(value.epoch) + tags(known)


def decode_target_epoch(data: bytes) -> TargetEpochValue:
    reader = _flexible(data)
    epoch = reader.i32()
    return TargetEpochValue(epoch, TimestampMs(_tagged_i64(reader.tags(), _TIMESTAMP_TAG, _NEVER)))


# --- kind 5 -------------------------------------------------------------------------------------------------------


def encode_member(value: MemberValue) -> bytes:
    known = [] if value.classic is None else [(_CLASSIC_TAG, _PRESENT + _facade(value.classic))]
    return b"".join((
        _VERSION_0, compact_string(value.instance_id), compact_string(value.rack_id), compact_string(value.client_id),
        compact_string(value.client_host), compact_count(len(value.subscribed_names)),
        *map(compact_string, value.subscribed_names), compact_string(value.subscribed_regex),
        I32.pack(value.rebalance_timeout_ms), compact_string(value.server_assignor), tags(known),
    ))


def _facade(classic: ClassicFacade) -> bytes:
    return b"".join((
        I32.pack(classic.session_timeout_ms), compact_count(len(classic.protocols)),
        *(compact_string(offer.name) + compact_bytes(offer.metadata) + NO_TAGS for offer in classic.protocols),
        NO_TAGS,
    ))


def decode_member(data: bytes) -> MemberValue:
    reader = _flexible(data)
    value = MemberValue(
        reader.nullable_string(), reader.nullable_string(), reader.string(), reader.string(),
        tuple(reader.string() for _ in range(reader.count())), reader.nullable_string(), reader.i32(),
        reader.nullable_string())
    classic = reader.tags().get(_CLASSIC_TAG)
    return value if classic is None or classic[:1] != _PRESENT else value._replace(classic=_read_facade(classic[1:]))


def _read_facade(data: bytes) -> ClassicFacade:
    reader = FieldReader(data, compact=True)
    facade = ClassicFacade(reader.i32(), tuple(_read_offer(reader) for _ in range(reader.count())))
    reader.tags()
    return facade


def _read_offer(reader: FieldReader) -> ProtocolOffer:
    offer = ProtocolOffer(reader.string(), reader.bytes_())
    reader.tags()
    return offer


# --- kinds 7 and 8 ------------------------------------------------------------------------------------------------


def encode_target(value: Partitions) -> bytes:
    encoded = []
    for topic_id, of_topic in groupby(sorted(value), key=lambda each: each[0]):
        indexes = [I32.pack(index) for _, index in of_topic]
        encoded.append(b"".join((topic_id, compact_count(len(indexes)), *indexes, NO_TAGS)))
    return b"".join((_VERSION_0, compact_count(len(encoded)), *encoded, NO_TAGS))


def decode_target(data: bytes) -> Partitions:
    reader = _flexible(data)
    found: set[tuple[TopicId, int]] = set()
    for _ in range(reader.count()):
        topic_id = TopicId(reader.take(_ID_BYTES))
        found.update((topic_id, reader.i32()) for _ in range(reader.count()))
        reader.tags()
    reader.tags()
    return frozenset(found)


def encode_current(value: CurrentValue) -> bytes:
    return b"".join((
        _VERSION_0, I32.pack(value.epoch), I32.pack(value.previous_epoch), I8.pack(value.state),
        _placed(value.assigned), _placed(value.pending_revocation), NO_TAGS,
    ))


def _placed(partitions: Iterable[_Placed]) -> bytes:
    """The assignment epochs of a topic's partitions are a tagged field (KIP-1251)."""
    encoded = []
    for topic_id, of_topic in groupby(sorted(partitions), key=lambda each: each[0]):
        _, indexes, epochs = zip(*of_topic, strict=True)
        count = compact_count(len(indexes))
        told = count + b"".join(map(I32.pack, epochs))
        encoded.append(b"".join((topic_id, count, *map(I32.pack, indexes), tags([(_ASSIGNMENT_EPOCHS_TAG, told)]))))
    return compact_count(len(encoded)) + b"".join(encoded)


def decode_current(data: bytes) -> CurrentValue:
    """Where a partition's assignment epoch is not told, it is the member's: the latest that it can be."""
    reader = _flexible(data)
    epoch, previous_epoch, state = reader.i32(), reader.i32(), reader.i8()
    if not 0 <= state < _STATES:
        raise ValueError(f"a member in state {state}")
    value = CurrentValue(
        epoch, previous_epoch, state, tuple(sorted(_read_placed(reader, epoch))),
        tuple(sorted(_read_placed(reader, epoch))))
    reader.tags()
    return value


def _read_placed(reader: FieldReader, member_epoch: int) -> Iterator[_Placed]:
    for _ in range(reader.count()):
        topic_id = TopicId(reader.take(_ID_BYTES))
        indexes = [reader.i32() for _ in range(reader.count())]
        told = reader.tags().get(_ASSIGNMENT_EPOCHS_TAG, _NULL_ARRAY)
        epochs = [member_epoch] * len(indexes) if told == _NULL_ARRAY else _read_epochs(told)
        if len(epochs) != len(indexes):
            raise ValueError(f"{len(epochs)} assignment epochs of {len(indexes)} partitions")
        yield from ((topic_id, index, epoch) for index, epoch in zip(indexes, epochs, strict=True))


def _read_epochs(data: bytes) -> list[int]:
    reader = FieldReader(data, compact=True)
    return [reader.i32() for _ in range(reader.count())]


# --- kind 16 ------------------------------------------------------------------------------------------------------


def encode_regex(value: RegexValue) -> bytes:
    return b"".join((
        _VERSION_0, compact_count(len(value.topics)), *map(compact_string, value.topics), I64.pack(value.version),
        I64.pack(value.timestamp), NO_TAGS,
    ))


def decode_regex(data: bytes) -> RegexValue:
    reader = _flexible(data)
    value = RegexValue(
        tuple(reader.string() for _ in range(reader.count())), reader.i64(), TimestampMs(reader.i64()))
    reader.tags()
    return value


# --- parts --------------------------------------------------------------------------------------------------------


def _version(reader: FieldReader, newest: int) -> int:
    version = reader.i16()
    if not 0 <= version <= newest:
        raise ValueError(f"a value of version {version}")
    return version


def _flexible(data: bytes) -> FieldReader:
    """After the version of a value that has only version 0, which is flexible."""
    reader = FieldReader(data, compact=True)
    _version(reader, 0)
    return reader


def _tagged_i64(found: dict[int, bytes], tag: int, default: int) -> int:
    if tag not in found:
        return default
    (value,) = I64.unpack(found[tag])
    return int(value)
