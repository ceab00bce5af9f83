from __future__ import annotations

import timeit
from contextlib import suppress
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hapax.codec.transaction_log import decode_key, decode_record, decode_value, encode_key, encode_record, encode_value
from hapax.core.transaction.record import (
    NO_LIMIT,
    NO_PARTITIONS,
    CommittedToken,
    Delta,
    Fencing,
    FencingCause,
    Fingerprint,
    Holder,
    LastOutcome,
    Member,
    PartitionSet,
    Policy,
    ProducerIdentity,
    Token,
    Tombstone,
    Transaction,
    TransactionPartition,
)
from hapax.core.transaction.states import State
from unit.codec.reference import reference

REFERENCE = reference("TransactionLogValue")
DELTA_KEY, DELTA_VALUE = reference("TransactionDeltaKey"), reference("TransactionDeltaValue")


def as_reference(transaction: Transaction) -> bytes:
    """The value as kafka-python's schema machinery writes it from the published schema."""
    made = REFERENCE
    counts_onward = any(token.base for token in transaction.tokens)
    two_phase = transaction.two_phase or transaction.next_producer_epoch != -1 or transaction.limit_ms == 2**63 - 1
    version = 3 if two_phase else 2 if transaction.open_token is not None or counts_onward else 1
    topics: dict[tuple[str, bytes], list[int]] = {}
    for topic, topic_id, partition in transaction.every_partition:
        topics.setdefault((topic, topic_id), []).append(partition)
    places = list(topics)
    fields: dict[str, Any] = {
        "previous_producer_id": transaction.previous_producer_id,
        "next_producer_id": transaction.next_producer_id,
        "client_transaction_version": transaction.client_version,
        "next_producer_epoch": transaction.next_producer_epoch,
        "serial": transaction.serial,
        "last_producer_epoch": transaction.last_producer_epoch,
        "topic_ids": [UUID(bytes=topic_id) for _, topic_id in topics],
        "commit_tokens": [
            made.CommitToken(
                version=version, scope=token.scope, value=token.value, record_count=token.record_count,
                token_serial=token.serial, committed_at_ms=token.committed_at_ms,
            )
            for token in transaction.tokens if not token.single_use
        ],
        "single_use_tokens": [
            made.SingleUseToken(
                version=version, single_use_scope=token.scope, single_use_value=token.value,
                single_use_record_count=token.record_count, single_use_serial=token.serial,
                single_use_committed_at_ms=token.committed_at_ms,
            )
            for token in transaction.tokens if token.single_use
        ],
        "member_sets": [
            made.MemberSetSchema(
                version=2, set_member_key=member.key, set_producer_id=member.producer_id,
                set_epoch=member.producer_epoch,
                set_topics=[
                    made.MemberSetSchema.SetTopic(
                        version=2, set_topic_place=places.index(each[:2]), registered=as_bytes(each.bits),
                        won_bits=as_bytes(sum(won.bits for won in member.won.topics if won[:2] == each[:2])),
                    )
                    for each in member.partitions.topics
                ],
            )
            for member in transaction.members
        ],
        "idle_members": [
            made.IdleMember(version=version, idle_producer_id=pid, idle_epoch=epoch)
            for pid, epoch in transaction.idle_members
        ],
    }  # fmt: skip
    defaults = {
        "previous_producer_id": -1, "next_producer_id": -1, "next_producer_epoch": -1, "last_producer_epoch": -1,
        "serial": 0,
    }  # fmt: skip
    for name, default in defaults.items():
        if fields[name] == default:
            del fields[name]
    for name in ("topic_ids", "commit_tokens", "single_use_tokens", "member_sets", "idle_members"):
        if not fields[name]:
            del fields[name]
    if transaction.limit_ms:
        fields["limit"] = made.TransactionLimit(
            version=version, elapsed_ms=transaction.elapsed_ms, limit_ms=transaction.limit_ms
        )
    if transaction.fencing is not None:
        fencing = transaction.fencing
        fields["fencing"] = made.FencedBy(
            version=version, cause=fencing.cause, at_ms=fencing.at_ms, fenced_producer_id=fencing.fenced_producer_id,
            fenced_epoch=fencing.fenced_epoch, fenced_serial=fencing.serial, client_id=fencing.client_id,
            peer=fencing.peer, fenced_client_id=fencing.fenced.client_id if fencing.fenced else "",
            fenced_peer=fencing.fenced.peer if fencing.fenced else "",
        )  # fmt: skip
    if transaction.holder is not None:
        fields["holder"] = made.HolderSchema(
            version=version, holder_client_id=transaction.holder.client_id, holder_peer=transaction.holder.peer
        )
    if transaction.open_token is not None:
        scope, value, owner, base = transaction.open_token
        fields["open_token"] = made.OpenTokenSchema(version=version, scope=scope, value=value)
        if owner:
            fields["open_token_owner"] = made.OpenTokenOwnerSchema(version=version, owner=owner, base=base)
    if any(token.owner for token in transaction.tokens):
        fields["token_owners"] = [
            made.TokenOwner(version=version, owner=token.owner, base=token.base, fingerprints=[
                made.TokenOwner.Fingerprint(version=version, kind=kind, digest=digest)
                for kind, digest in token.fingerprints
            ])
            for token in transaction.tokens if not token.single_use
        ]
    if any(token.past for token in transaction.tokens):
        fields["token_pasts"] = [
            made.TokenPast(version=version, past=token.past) for token in transaction.tokens if not token.single_use
        ]
    if transaction.two_phase:
        fields["two_phase"] = True
    if transaction.runs:
        fields["runs"] = list(transaction.runs)
    if transaction.policy is not None:
        fields["policy"] = made.PolicySchema(
            version=version, allowed_topics=list(transaction.policy.allowed_topics),
            max_timeout_ms=transaction.policy.max_timeout_ms,
        )  # fmt: skip
    if transaction.outcome is not None:
        fields["outcome"] = made.OutcomeSchema(
            version=version, committed=transaction.outcome.committed, outcome_at_ms=transaction.outcome.at_ms)
    listed = [
        made.PartitionsSchema(version=version, topic=topic, partition_ids=partitions)
        for (topic, _), partitions in topics.items()
    ]
    value = made(
        version=version,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_status=transaction.state,
        transaction_partitions=listed or (None if transaction.state is State.EMPTY else []),
        transaction_last_update_timestamp_ms=transaction.last_update_ms,
        transaction_start_timestamp_ms=transaction.start_ms,
        **fields,
    )
    return bytes((0, version)) + value.encode(version=version, compact=True, tagged=True)


def as_bytes(bits: int) -> bytes:
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little")


def as_delta(delta: Delta) -> tuple[bytes, bytes]:
    member = delta.member
    topics = () if member is None else member.partitions.topics
    key = DELTA_KEY(version=10_000, transactional_id=delta.transactional_id, member_producer_id=delta.producer_id)
    value = DELTA_VALUE(
        version=0, serial=delta.serial, elapsed_ms=delta.elapsed_ms, limit_ms=delta.limit_ms,
        last_update_timestamp_ms=delta.last_update_ms, member_key=None if member is None else member.key,
        member_epoch=-1 if member is None else member.producer_epoch,
        topics=[
            DELTA_VALUE.TopicSchema(
                version=0, topic=each.topic, topic_id=UUID(bytes=each.topic_id), partitions=as_bytes(each.bits))
            for each in topics
        ],
    )
    encoded = key.encode(version=10_000, compact=False, tagged=False)
    return b"\x27\x10" + encoded, b"\0\0" + value.encode(version=0, compact=True, tagged=True)


int16, int32, int64 = st.integers(0, 2**15 - 1), st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1)
indexes = st.integers(0, 2_000)
names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20)
topics = st.lists(st.tuples(names, st.binary(min_size=16, max_size=16)), max_size=3, unique=True)
open_tokens = st.builds(Token, names, int64, st.just(""), st.just(0)) | st.builds(Token, names, int64, names, int64)
fingerprints = st.builds(Fingerprint, names, st.binary(max_size=32))
ownerless = st.builds(CommittedToken, names, int64, int64, int64, int64)
tokens = ownerless | st.builds(
    CommittedToken, names, int64, int64, int64, int64, names, int64, st.lists(fingerprints, max_size=2).map(tuple),
    st.just(False), st.binary(max_size=24),
)
single_use = ownerless.map(lambda token: replace(token, single_use=True))
identities = st.builds(ProducerIdentity, int64, int16)
holders = st.builds(Holder, names, names)
fencings = st.builds(
    Fencing, st.sampled_from(FencingCause), int64, names, names, int64, int16, int64, st.none() | holders
)
policies = st.builds(Policy, st.lists(names, max_size=3).map(tuple), int32)


@st.composite
def partitions_of_topics(draw: st.DrawFn) -> list[TransactionPartition]:
    return [
        TransactionPartition(topic, topic_id, index)  # type: ignore[arg-type]
        for topic, topic_id in draw(topics)
        for index in draw(st.lists(indexes, min_size=1, max_size=3, unique=True))
    ]


@st.composite
def members_of(draw: st.DrawFn, identity: ProducerIdentity, partitions: list[TransactionPartition]) -> Member:
    registered = draw(st.lists(st.sampled_from(partitions))) if partitions else []
    won = draw(st.lists(st.sampled_from(registered))) if registered else []
    return Member(draw(names), *identity, PartitionSet.of(registered), PartitionSet.of(won))


@st.composite
def deltas(draw: st.DrawFn) -> Delta:
    partitions = draw(partitions_of_topics())
    member = replace(draw(members_of(draw(identities), partitions)), won=NO_PARTITIONS)
    return Delta(
        transactional_id=draw(names), serial=draw(int64), elapsed_ms=draw(int64), limit_ms=draw(int64),
        last_update_ms=draw(int64), member=draw(st.sampled_from([member, None])),
    )


@st.composite
def transactions(draw: st.DrawFn) -> Transaction:
    partitions = draw(partitions_of_topics())
    multi_writer = draw(st.booleans())
    members: tuple[Member, ...] = ()
    if multi_writer:
        writers = draw(st.lists(identities, max_size=3, unique_by=lambda identity: identity.producer_id))
        members = tuple(draw(members_of(identity, partitions)) for identity in sorted(writers))
    return Transaction(
        transactional_id="id",
        state=draw(st.sampled_from([state for state in State if state < State.DEAD])),
        producer_id=draw(int64 | st.just(-1)),
        producer_epoch=draw(int16 | st.just(-1)),
        last_producer_epoch=draw(int16 | st.just(-1)),
        previous_producer_id=draw(int64 | st.just(-1)),
        next_producer_id=draw(int64 | st.just(-1)),
        next_producer_epoch=draw(st.just(-1) | int16),
        two_phase=draw(st.booleans()),
        timeout_ms=draw(int32),
        client_version=draw(st.integers(1, 2)),
        partitions=tuple(() if multi_writer else partitions),
        start_ms=draw(int64),
        last_update_ms=draw(int64),
        serial=draw(int64),
        elapsed_ms=draw(int64),
        limit_ms=draw(st.integers(1, 2**63 - 1) | st.just(NO_LIMIT)),
        holder=draw(st.none() | holders),
        fencing=draw(st.none() | fencings),
        tokens=(*draw(st.lists(tokens, max_size=2)), *draw(st.lists(single_use, max_size=2))),
        open_token=draw(open_tokens) if multi_writer else None,
        members=members,
        idle_members=tuple(draw(st.lists(identities, max_size=2))),
        runs=tuple(draw(st.lists(names, max_size=2))) if multi_writer else (),
        policy=draw(st.none() | policies),
        outcome=draw(st.none() | st.builds(LastOutcome, st.booleans(), int64)),
    )


@settings(max_examples=150, deadline=None)
@given(transactions())
def test_every_value_is_what_the_schema_says_and_comes_back(transaction: Transaction) -> None:
    data = encode_value(transaction)
    assert data == as_reference(transaction)
    assert decode_value("id", data) == transaction


@settings(max_examples=100, deadline=None)
@given(transactions(), st.data())
def test_bytes_that_are_no_value_are_a_value_error(transaction: Transaction, data: st.DataObject) -> None:
    whole = encode_value(transaction)
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(ValueError):
        decode_value("id", whole[:cut])
    place, byte = data.draw(st.integers(0, len(whole) - 1)), data.draw(st.integers(0, 255))
    with suppress(ValueError):
        decode_value("id", whole[:place] + bytes([byte]) + whole[place + 1 :])


def test_a_value_of_kafka_with_neither_ids_nor_serial_is_read() -> None:
    # Version 1 as Kafka 4 writes it: ClientTransactionVersion is its only tagged field here.
    data = bytes.fromhex(
        "0001" "00000000000003e8" "0005" "0000ea60" "01" "02" "02" "74" "03" "00000000" "00000001" "00"
        "0000018bcfe56800" "0000018bcfe56700" "01" "02" "02" "0002"
    )  # fmt: skip
    value = decode_value("id", data)
    assert isinstance(value, Transaction)
    assert (value.producer_id, value.producer_epoch, value.state) == (1000, 5, State.ONGOING)
    assert [(each.topic, each.topic_id, each.partition) for each in value.partitions] == [
        ("t", bytes(16), 0), ("t", bytes(16), 1),
    ]  # fmt: skip
    assert (value.serial, value.client_version, value.limit_ms) == (0, 2, 60_000)


def test_version_0_is_read() -> None:
    head = "0000" "00000000000003e8" "0005" "0000ea60"
    tail = "0000018bcfe56800" "ffffffffffffffff"
    value = decode_value("id", bytes.fromhex(head + "02" "00000001" "0001" "74" "00000001" "00000003" + tail))
    assert isinstance(value, Transaction)
    assert value.partitions == (TransactionPartition("t", bytes(16), 3),)  # type: ignore[arg-type]
    nothing = decode_value("id", bytes.fromhex(head + "00" "ffffffff" + tail))
    assert isinstance(nothing, Transaction) and nothing.partitions == () and nothing.state is State.EMPTY


@settings(max_examples=100, deadline=None)
@given(deltas(), st.data())
def test_every_delta_is_what_its_schemas_say_and_comes_back(delta: Delta, data: st.DataObject) -> None:
    [(key, value)] = encode_record(delta)
    assert value is not None and (key, value) == as_delta(delta)
    assert decode_record(key, value) == delta
    assert decode_record(key, None) is None and decode_key(key) is None
    cut = data.draw(st.integers(0, len(value) - 1))
    with pytest.raises(ValueError):
        decode_record(key, value[:cut])


def test_a_tombstone_stands_for_the_deltas_of_its_id() -> None:
    entries = encode_record(Tombstone("id", (1000, 1001)))  # type: ignore[arg-type]
    member = Member("m", 1001, 0)  # type: ignore[arg-type]
    written = Delta(transactional_id="id", serial=1, elapsed_ms=0, limit_ms=1, last_update_ms=0, member=member)  # type: ignore[arg-type]
    assert [value for _, value in entries] == [None, None, None]
    assert entries[0][0] == encode_key("id") and entries[2][0] == encode_record(written)[0][0]


def test_a_reader_that_skips_deltas_refuses_what_they_belong_to() -> None:
    """The release before read versions 0 and 1: it must not take an open transaction for one without members."""
    opened = Transaction(transactional_id="id", state=State.ONGOING, open_token=Token("q", 1))
    assert encode_value(opened)[:2] == b"\0\2"
    assert encode_value(replace(opened, state=State.COMPLETE_COMMIT, open_token=None))[:2] == b"\0\1"


def test_a_reader_that_skips_owners_refuses_tokens_that_are_not_counted_from_0() -> None:
    """It would take what the owner counts for what the scope counts, and the owner's next commits for repetitions."""
    token = CommittedToken("q", 3, 1, 1, 0, "query")  # type: ignore[arg-type]
    for base, version in ((0, b"\0\1"), (3, b"\0\2"), (-3, b"\0\2")):
        committed = Transaction(
            transactional_id="id", state=State.COMPLETE_COMMIT, tokens=(replace(token, base=base),))
        assert encode_value(committed)[:2] == version


def test_a_reader_that_skips_two_phase_commit_refuses_its_producers() -> None:
    """It would abort a prepared transaction by a time-out, and give a producer an epoch that is in use. The release
    before reads versions 0 to 2."""
    plain = Transaction(transactional_id="id", state=State.ONGOING, producer_id=1, producer_epoch=0, limit_ms=60_000)  # type: ignore[arg-type]
    assert encode_value(plain)[:2] == b"\0\1"
    for change in (
        {"two_phase": True}, {"limit_ms": NO_LIMIT}, {"next_producer_id": 1, "next_producer_epoch": 1},
    ):
        assert encode_value(replace(plain, **change))[:2] == b"\0\3"  # type: ignore[arg-type]


def test_an_unknown_version_is_refused() -> None:
    with pytest.raises(ValueError, match="version 4"):
        decode_value("id", bytes.fromhex("0004" + "00" * 30))
    opened = Delta(transactional_id="id", serial=1, elapsed_ms=0, limit_ms=1, last_update_ms=0)  # type: ignore[arg-type]
    [(key, value)] = encode_record(opened)
    assert value is not None
    with pytest.raises(ValueError, match="version 1"):
        decode_record(key, b"\0\1" + value[2:])


def test_keys_and_tombstones() -> None:
    assert encode_key("payments-ü") == b"\x00\x00\x00\x0bpayments-\xc3\xbc"
    assert decode_key(encode_key("payments-ü")) == "payments-ü"
    assert decode_key(b"\x00\x01\x00\x00") is None
    with pytest.raises(ValueError):
        decode_key(b"\x00\x00\x00\x05abc")
    assert decode_value("id", None) == Tombstone("id")


def test_a_usual_value_is_written_several_times_faster_than_by_the_schema_machinery() -> None:
    """About seven times. Both are measured by turns, so that the machine's load counts for both."""
    partitions = tuple(TransactionPartition("delays", bytes(16), index) for index in (0, 1))  # type: ignore[arg-type]
    usual = Transaction(
        transactional_id="id", state=State.ONGOING, producer_id=4711, producer_epoch=17, last_producer_epoch=16,
        timeout_ms=60_000, client_version=2, partitions=partitions, start_ms=1_700_000_000_000,
        last_update_ms=1_700_000_000_100, serial=18, elapsed_ms=100, limit_ms=60_000,
    )  # type: ignore[arg-type]  # fmt: skip
    rounds = [
        (timeit.timeit(lambda: encode_value(usual), number=100), timeit.timeit(lambda: as_reference(usual), number=100))
        for _ in range(20)]
    ours, schemas = (min(times) for times in zip(*rounds, strict=True))
    assert 3 * ours < schemas, f"only {schemas / ours:.1f} times as fast"
