"""Records of groups and their members, against kafka-python's schema machinery and the schemas that Kafka publishes."""

from __future__ import annotations

import random
from collections.abc import Iterable
from itertools import groupby
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hapax.codec.offsets_log import OffsetsLogError, decode_record, encode_key, encode_value
from hapax.core.group.values import (
    ClassicFacade,
    ClassicGroupRecord,
    ClassicGroupValue,
    ClassicMemberValue,
    CurrentRecord,
    CurrentValue,
    GroupEpochRecord,
    GroupEpochValue,
    MemberRecord,
    MembershipRecord,
    MemberValue,
    ProtocolOffer,
    RegexRecord,
    RegexValue,
    TargetEpochRecord,
    TargetEpochValue,
    TargetRecord,
)
from hapax.core.types import TimestampMs, TopicId
from unit.codec.reference import reference

GROUP = reference("GroupMetadataValue")
EPOCH = reference("ConsumerGroupMetadataValue")
MEMBER = reference("ConsumerGroupMemberMetadataValue")
TARGET_EPOCH = reference("ConsumerGroupTargetAssignmentMetadataValue")
TARGET = reference("ConsumerGroupTargetAssignmentMemberValue")
CURRENT = reference("ConsumerGroupCurrentMemberAssignmentValue")
REGEX = reference("ConsumerGroupRegularExpressionValue")

KINDS = {
    ClassicGroupRecord: 2, GroupEpochRecord: 3, MemberRecord: 5, TargetEpochRecord: 6, TargetRecord: 7,
    CurrentRecord: 8, RegexRecord: 16,
}


def by_schema(made: Any, version_: int, flexible: bool, /, **fields: Any) -> bytes:
    """A value as kafka-python's schema machinery writes it."""
    held = made()
    for name, field in fields.items():
        setattr(held, name, field)
    written: bytes = made._struct.encode(held, version=version_, compact=flexible, tagged=flexible)
    return version_.to_bytes(2, "big") + written


def classic_by_schema(value: ClassicGroupValue, version: int) -> bytes:
    member = GROUP.MemberMetadata  # type: ignore[attr-defined]
    return by_schema(
        GROUP, version, version >= 4, protocol_type=value.protocol_type, generation=value.generation,
        protocol=value.protocol, leader=value.leader, current_state_timestamp=value.state_timestamp,
        members=[
            member(
                member_id=each.member_id, group_instance_id=each.instance_id, client_id=each.client_id,
                client_host=each.client_host, rebalance_timeout=each.rebalance_timeout_ms,
                session_timeout=each.session_timeout_ms, subscription=each.subscription, assignment=each.assignment)
            for each in value.members
        ])


def placed(made: Any, partitions: Iterable[tuple[TopicId, int, int]]) -> list[Any]:
    topics = []
    for topic_id, of_topic in groupby(partitions, key=lambda each: each[0]):
        each = list(of_topic)
        topics.append(made(
            topic_id=UUID(bytes=topic_id), partitions=[index for _, index, _ in each],
            assignment_epochs=[epoch for _, _, epoch in each]))
    return topics


def value_by_schema(record: MembershipRecord) -> bytes:
    value: Any = record.value
    match record:
        case ClassicGroupRecord():
            return classic_by_schema(value, 3)
        case GroupEpochRecord():
            return by_schema(EPOCH, 0, True, epoch=value.epoch, metadata_hash=value.metadata_hash)
        case MemberRecord():
            classic: Any = None
            if value.classic is not None:
                kind = MEMBER.ClassicMemberMetadata  # type: ignore[attr-defined]
                classic = kind(session_timeout_ms=value.classic.session_timeout_ms, supported_protocols=[
                    kind.ClassicProtocol(name=offer.name, metadata=offer.metadata)
                    for offer in value.classic.protocols])
            return by_schema(
                MEMBER, 0, True, instance_id=value.instance_id, rack_id=value.rack_id, client_id=value.client_id,
                client_host=value.client_host, subscribed_topic_names=list(value.subscribed_names),
                subscribed_topic_regex=value.subscribed_regex, rebalance_timeout_ms=value.rebalance_timeout_ms,
                server_assignor=value.server_assignor, classic_member_metadata=classic)
        case TargetEpochRecord():
            return by_schema(
                TARGET_EPOCH, 0, True, assignment_epoch=value.epoch, assignment_timestamp=value.timestamp)
        case TargetRecord():
            made = TARGET.TopicPartition  # type: ignore[attr-defined]
            return by_schema(TARGET, 0, True, topic_partitions=[
                made(topic_id=UUID(bytes=topic_id), partitions=[index for _, index in of_topic])
                for topic_id, of_topic in groupby(sorted(value), key=lambda each: each[0])])
        case CurrentRecord():
            assigned, pending = (CURRENT._struct.fields[name] for name in (
                "assigned_partitions", "partitions_pending_revocation"))
            return by_schema(
                CURRENT, 0, True, member_epoch=value.epoch, previous_member_epoch=value.previous_epoch,
                state=value.state, assigned_partitions=placed(assigned, value.assigned),
                partitions_pending_revocation=placed(pending, value.pending_revocation))
        case RegexRecord():
            return by_schema(
                REGEX, 0, True, topics=list(value.topics), version=value.version, timestamp=value.timestamp)


def key_by_hand(record: MembershipRecord) -> bytes:
    *names, _ = record
    return KINDS[type(record)].to_bytes(2, "big") + b"".join(
        len(name.encode()).to_bytes(2, "big") + name.encode() for name in names)  # type: ignore[union-attr]


names = st.text(max_size=40)
nullable_names = st.none() | names
blobs = st.binary(max_size=300)
int32s = st.integers(-(2**31), 2**31 - 1)
int64s = st.integers(-(2**63), 2**63 - 1)
topic_ids = st.sampled_from([bytes([number]) * 16 for number in range(1, 5)])
partitions = st.integers(0, 2**31 - 1) | st.integers(0, 3)

classic_groups = st.builds(
    ClassicGroupValue, protocol_type=names, generation=int32s, protocol=nullable_names, leader=nullable_names,
    state_timestamp=int64s, members=st.lists(st.builds(
        ClassicMemberValue, member_id=names, instance_id=nullable_names, client_id=names, client_host=names,
        rebalance_timeout_ms=int32s, session_timeout_ms=int32s, subscription=blobs, assignment=blobs,
    ), max_size=4).map(tuple))
members = st.builds(
    MemberValue, instance_id=nullable_names, rack_id=nullable_names, client_id=names, client_host=names,
    subscribed_names=st.lists(names, max_size=5).map(tuple), subscribed_regex=nullable_names,
    rebalance_timeout_ms=int32s, server_assignor=nullable_names, classic=st.none() | st.builds(
        ClassicFacade, session_timeout_ms=int32s, protocols=st.lists(
            st.builds(ProtocolOffer, name=names, metadata=blobs), max_size=3).map(tuple)))
held = st.dictionaries(st.tuples(topic_ids, partitions), int32s, max_size=8).map(
    lambda found: tuple(sorted((*where, epoch) for where, epoch in found.items())))
currents = st.builds(
    CurrentValue, epoch=int32s, previous_epoch=int32s, state=st.integers(0, 2), assigned=held,
    pending_revocation=held)

records: st.SearchStrategy[MembershipRecord] = st.one_of(
    st.builds(ClassicGroupRecord, names, classic_groups),
    st.builds(GroupEpochRecord, names, st.builds(GroupEpochValue, int32s, st.just(0) | int64s)),
    st.builds(MemberRecord, names, names, members),
    st.builds(TargetEpochRecord, names, st.builds(TargetEpochValue, int32s, st.just(0) | int64s)),
    st.builds(TargetRecord, names, names, st.frozensets(st.tuples(topic_ids, partitions), max_size=8)),
    st.builds(CurrentRecord, names, names, currents),
    st.builds(RegexRecord, names, names, st.builds(
        RegexValue, st.lists(names, max_size=5).map(tuple), int64s, int64s)),
)


@given(records)
def test_every_record_is_what_the_published_schema_says_and_comes_back(record: MembershipRecord) -> None:
    key, value = encode_key(record), encode_value(record)
    assert key == key_by_hand(record)
    assert value == value_by_schema(record)
    assert decode_record(key, value) == record
    assert decode_record(key, None) == record._replace(value=None)


@given(records, st.data())
def test_a_value_or_a_key_that_is_cut_off_is_damage(record: MembershipRecord, data: st.DataObject) -> None:
    key, value = encode_key(record), encode_value(record)
    with pytest.raises(OffsetsLogError):
        decode_record(key, value[: data.draw(st.integers(0, len(value) - 1))])
    with pytest.raises(OffsetsLogError):
        decode_record(key[: data.draw(st.integers(2, len(key) - 1))], value)


@given(records, st.randoms(use_true_random=False))
def test_damaged_bytes_raise_the_codecs_own_error(record: MembershipRecord, rng: random.Random) -> None:
    key, value = encode_key(record), bytearray(encode_value(record))
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(value) + 1)
        match rng.randrange(4):
            case 0 if at < len(value):
                value[at] ^= 1 << rng.randrange(8)
            case 1:
                value[at : at + rng.randrange(5)] = rng.choice((b"\xff" * 4, b"\x7f\xff\xff\xff", b"\x80", b"\0\0"))
            case 2:
                del value[at : at + rng.randrange(4)]
            case _:
                value[at:at] = rng.randbytes(rng.randrange(6))
    try:
        decoded = decode_record(key, bytes(value))
    except OffsetsLogError:
        return
    assert type(decoded) is type(record)


@given(st.sampled_from(sorted(KINDS.values())), st.binary(max_size=60), st.binary(max_size=120))
def test_any_bytes_raise_the_codecs_own_error(kind: int, key: bytes, value: bytes) -> None:
    for version in (b"", b"\0\0", b"\0\3", b"\0\4"):
        try:
            decode_record(kind.to_bytes(2, "big") + key, version + value)
        except OffsetsLogError:
            continue


@given(classic_groups, st.integers(0, 4))
def test_every_version_of_a_classic_group_is_read(value: ClassicGroupValue, version: int) -> None:
    read = value._replace(
        state_timestamp=value.state_timestamp if version >= 2 else TimestampMs(-1), members=tuple(
            each._replace(
                instance_id=each.instance_id if version >= 3 else None,
                rebalance_timeout_ms=each.rebalance_timeout_ms if version >= 1 else each.session_timeout_ms)
            for each in value.members
        ))
    key = encode_key(ClassicGroupRecord("g", None))
    assert decode_record(key, classic_by_schema(value, version)) == ClassicGroupRecord("g", read)


# By hand, from the published schemas.
A = TopicId(bytes(range(16)))
BY_HAND = [
    (
        ClassicGroupRecord("g", ClassicGroupValue("consumer", 4, "range", "m", TimestampMs(5), (
            ClassicMemberValue("m", None, "c", "/h", 6, 7, b"s", b"as"),
            ClassicMemberValue("n", "i", "", "", 6, 7, b"", b""),))),
        "0002" "000167",
        "0003" "0008" + b"consumer".hex() + "00000004" "0005" + b"range".hex() + "00016d" "0000000000000005" "00000002"
        "00016d" "ffff" "000163" "00022f68" "00000006" "00000007" "0000000173" "000000026173"
        "00016e" "000169" "0000" "0000" "00000006" "00000007" "00000000" "00000000",
    ),
    (GroupEpochRecord("g", GroupEpochValue(4, 0)), "0003" "000167", "0000" "00000004" "00"),
    (
        GroupEpochRecord("g", GroupEpochValue(4, 5)), "0003" "000167",
        "0000" "00000004" "01" "00" "08" "0000000000000005",
    ),
    (
        MemberRecord("g", "m", MemberValue(None, "r", "c", "/h", ("a",), None, 9, "range")), "0005" "000167" "00016d",
        "0000" "00" "0272" "0263" "032f68" "02" "0261" "00" "00000009" "06" + b"range".hex() + "00",
    ),
    (
        MemberRecord("g", "m", MemberValue("i", None, "c", "/h", (), "x", 9, None, ClassicFacade(8, (
            ProtocolOffer("p", b"me"),)))), "0005" "000167" "00016d",
        # Tag 0: its size, then 1 for a struct that is not null, and the struct with tagged fields of its own.
        "0000" "0269" "00" "0263" "032f68" "01" "0278" "00000009" "00"
        "01" "00" "0d" "01" "00000008" "02" "0270" "036d65" "00" "00",
    ),
    (TargetEpochRecord("g", TargetEpochValue(4, TimestampMs(0))), "0006" "000167", "0000" "00000004" "00"),
    (
        TargetEpochRecord("g", TargetEpochValue(4, TimestampMs(5))), "0006" "000167",
        "0000" "00000004" "01" "00" "08" "0000000000000005",
    ),
    (
        TargetRecord("g", "m", frozenset({(A, 2), (A, 1)})), "0007" "000167" "00016d",
        "0000" "02" + A.hex() + "03" "00000001" "00000002" "00" "00",
    ),
    (
        CurrentRecord("g", "m", CurrentValue(4, 3, 1, ((A, 1, 2),), ((A, 3, 4),))), "0008" "000167" "00016d",
        "0000" "00000004" "00000003" "01" "02" + A.hex() + "02" "00000001" "01" "00" "05" "02" "00000002"
        "02" + A.hex() + "02" "00000003" "01" "00" "05" "02" "00000004" "00",
    ),
    (
        RegexRecord("g", "a.*", RegexValue(("a",), 7, TimestampMs(5))), "0010" "000167" "0003612e2a",
        "0000" "02" "0261" "0000000000000007" "0000000000000005" "00",
    ),
]


@pytest.mark.parametrize("record, key, value", BY_HAND, ids=lambda each: type(each).__name__)
def test_bytes_are_those_of_the_published_schemas(record: MembershipRecord, key: str, value: str) -> None:
    assert encode_key(record).hex() == key
    assert encode_value(record).hex() == value
    assert decode_record(bytes.fromhex(key), bytes.fromhex(value)) == record


KEY = bytes.fromhex("0008" "000167" "00016d")


@pytest.mark.parametrize("told", ["00", "01" "00" "01" "00"])
def test_partitions_without_assignment_epochs_were_assigned_at_the_members_epoch(told: str) -> None:
    """As Kafka before 4.3 wrote them. No earlier epoch is taken for granted: it would admit older commits."""
    value = "0000" "00000004" "00000003" "00" "02" + A.hex() + "02" "00000001" + told + "01" "00"
    found = CurrentRecord("g", "m", CurrentValue(4, 3, 0, ((A, 1, 4),), ()))
    assert decode_record(KEY, bytes.fromhex(value)) == found


def test_assignment_epochs_of_another_number_than_the_partitions_are_damage() -> None:
    value = "0000" "00000004" "00000003" "00" "02" + A.hex() + "02" "00000001" "01" "00" "01" "01" "01" "00"
    with pytest.raises(OffsetsLogError, match="0 assignment epochs of 1 partitions"):
        decode_record(KEY, bytes.fromhex(value))


def test_fields_of_later_versions_of_kafka_are_skipped() -> None:
    """The group's creation time, tag 1 of ConsumerGroupMetadataValue since Kafka 4.4."""
    value = "0000" "00000004" "02" "00" "08" "0000000000000005" "01" "08" "0000000000000006"
    assert decode_record(bytes.fromhex("0003" "000167"), bytes.fromhex(value)) == GroupEpochRecord(
        "g", GroupEpochValue(4, 5))


@pytest.mark.parametrize("kind, value", [(2, "0005"), (2, "ffff"), (3, "0001"), (5, "0001"), (16, "0001")])
def test_values_of_unknown_versions_are_errors(kind: int, value: str) -> None:
    with pytest.raises(OffsetsLogError, match="version"):
        decode_record(kind.to_bytes(2, "big") + bytes.fromhex("000167" "00016d"), bytes.fromhex(value) + bytes(60))


def test_a_member_in_an_unknown_state_is_an_error() -> None:
    value = "0000" "00000004" "00000003" "03" "01" "01" "00"
    with pytest.raises(OffsetsLogError, match="state 3"):
        decode_record(KEY, bytes.fromhex(value))


def test_a_claimed_count_allocates_nothing() -> None:
    value = "0000" + "ffffffff0f"
    with pytest.raises(OffsetsLogError, match="elements in"):
        decode_record(bytes.fromhex("0007" "000167" "00016d"), bytes.fromhex(value))
