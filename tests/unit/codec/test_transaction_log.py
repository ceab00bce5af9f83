from __future__ import annotations

import json
import re
import timeit
from contextlib import suppress
from importlib.resources import files
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.protocol.data_container import DataContainer
from kafka.protocol.schemas import StructField

from hapax.codec.transaction_log import decode_key, decode_value, encode_key, encode_value
from hapax.core.transaction_record import (
    CommittedToken,
    Fencing,
    FencingCause,
    Holder,
    LastOutcome,
    Member,
    Policy,
    ProducerIdentity,
    Token,
    Tombstone,
    Transaction,
    TransactionPartition,
)
from hapax.core.transaction_states import State


def reference() -> type[DataContainer]:
    text = (files("hapax.codec") / "schemas" / "TransactionLogValue.json").read_text()
    struct = StructField(json.loads(re.sub(r"(?m)^\s*//.*\n", "", text)))
    made = type("TransactionLogValue", (DataContainer,), {"_struct": struct})
    struct.set_data_class(made)
    return made


REFERENCE = reference()


def as_reference(transaction: Transaction) -> bytes:
    """The value as kafka-python's schema machinery writes it from the published schema."""
    made = REFERENCE
    topics: dict[tuple[str, bytes], list[int]] = {}
    for topic, topic_id, partition in transaction.every_partition:
        topics.setdefault((topic, topic_id), []).append(partition)
    places = list(topics)
    fields: dict[str, Any] = {
        "previous_producer_id": transaction.previous_producer_id,
        "next_producer_id": transaction.next_producer_id,
        "client_transaction_version": transaction.client_version,
        "serial": transaction.serial,
        "last_producer_epoch": transaction.last_producer_epoch,
        "topic_ids": [UUID(bytes=topic_id) for _, topic_id in topics],
        "commit_tokens": [
            made.CommitToken(
                version=1, scope=token.scope, value=token.value, record_count=token.record_count,
                token_serial=token.serial, committed_at_ms=token.committed_at_ms,
            )
            for token in transaction.tokens
        ],
        "members": [
            made.MemberSchema(
                version=1, member_key=member.key, member_producer_id=member.producer_id,
                member_epoch=member.producer_epoch,
                member_partitions=[
                    made.MemberSchema.MemberPartition(
                        version=1, topic_place=places.index(each[:2]), member_partition_id=each.partition,
                        won=each in member.won,
                    )
                    for each in member.partitions
                ],
            )
            for member in transaction.members
        ],
        "idle_members": [
            made.IdleMember(version=1, idle_producer_id=pid, idle_epoch=epoch)
            for pid, epoch in transaction.idle_members
        ],
    }  # fmt: skip
    defaults = {"previous_producer_id": -1, "next_producer_id": -1, "last_producer_epoch": -1, "serial": 0}
    for name, default in defaults.items():
        if fields[name] == default:
            del fields[name]
    for name in ("topic_ids", "commit_tokens", "members", "idle_members"):
        if not fields[name]:
            del fields[name]
    if transaction.limit_ms:
        fields["limit"] = made.TransactionLimit(
            version=1, elapsed_ms=transaction.elapsed_ms, limit_ms=transaction.limit_ms
        )
    if transaction.fencing is not None:
        fencing = transaction.fencing
        fields["fencing"] = made.FencedBy(
            version=1, cause=fencing.cause, at_ms=fencing.at_ms, fenced_producer_id=fencing.fenced_producer_id,
            fenced_epoch=fencing.fenced_epoch, fenced_serial=fencing.serial, client_id=fencing.client_id,
            peer=fencing.peer, fenced_client_id=fencing.fenced.client_id if fencing.fenced else "",
            fenced_peer=fencing.fenced.peer if fencing.fenced else "",
        )  # fmt: skip
    if transaction.holder is not None:
        fields["holder"] = made.HolderSchema(
            version=1, holder_client_id=transaction.holder.client_id, holder_peer=transaction.holder.peer
        )
    if transaction.open_token is not None:
        fields["open_token"] = made.OpenTokenSchema(version=1, **transaction.open_token._asdict())
    if transaction.policy is not None:
        fields["policy"] = made.PolicySchema(
            version=1, allowed_topics=list(transaction.policy.allowed_topics),
            max_timeout_ms=transaction.policy.max_timeout_ms,
        )  # fmt: skip
    if transaction.outcome is not None:
        fields["outcome"] = made.OutcomeSchema(
            version=1, committed=transaction.outcome.committed, outcome_at_ms=transaction.outcome.at_ms)
    listed = [
        made.PartitionsSchema(version=1, topic=topic, partition_ids=partitions)
        for (topic, _), partitions in topics.items()
    ]
    value = made(
        version=1,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_status=transaction.state,
        transaction_partitions=listed or (None if transaction.state is State.EMPTY else []),
        transaction_last_update_timestamp_ms=transaction.last_update_ms,
        transaction_start_timestamp_ms=transaction.start_ms,
        **fields,
    )
    return b"\x00\x01" + value.encode(version=1, compact=True, tagged=True)


int16, int32, int64 = st.integers(0, 2**15 - 1), st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1)
names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20)
topics = st.lists(st.tuples(names, st.binary(min_size=16, max_size=16)), max_size=3, unique=True)
tokens = st.builds(CommittedToken, names, int64, int64, int64, int64)
identities = st.builds(ProducerIdentity, int64, int16)
holders = st.builds(Holder, names, names)
fencings = st.builds(
    Fencing, st.sampled_from(FencingCause), int64, names, names, int64, int16, int64, st.none() | holders
)
policies = st.builds(Policy, st.lists(names, max_size=3).map(tuple), int32)


@st.composite
def transactions(draw: st.DrawFn) -> Transaction:
    partitions = [
        TransactionPartition(topic, topic_id, index)  # type: ignore[arg-type]
        for topic, topic_id in draw(topics)
        for index in draw(st.lists(int32, min_size=1, max_size=3, unique=True))
    ]
    multi_writer = draw(st.booleans()) and bool(partitions)
    members: tuple[Member, ...] = ()
    if multi_writer:
        members = tuple(
            Member(draw(names), *draw(identities), tuple(partitions[:count]), tuple(partitions[:count:2]))
            for count in draw(st.lists(st.integers(0, len(partitions)), min_size=1, max_size=3))
        )
    return Transaction(
        transactional_id="id",
        state=draw(st.sampled_from([state for state in State if state < State.DEAD])),
        producer_id=draw(int64 | st.just(-1)),
        producer_epoch=draw(int16 | st.just(-1)),
        last_producer_epoch=draw(int16 | st.just(-1)),
        previous_producer_id=draw(int64 | st.just(-1)),
        next_producer_id=draw(int64 | st.just(-1)),
        timeout_ms=draw(int32),
        client_version=draw(st.integers(1, 2)),
        partitions=() if multi_writer else tuple(partitions),
        start_ms=draw(int64),
        last_update_ms=draw(int64),
        serial=draw(int64),
        elapsed_ms=draw(int64),
        limit_ms=draw(st.integers(1, 2**63 - 1)),
        holder=draw(st.none() | holders),
        fencing=draw(st.none() | fencings),
        tokens=tuple(draw(st.lists(tokens, max_size=2))),
        open_token=Token(draw(names), draw(int64)) if multi_writer else None,
        members=members,
        idle_members=tuple(draw(st.lists(identities, max_size=2))),
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


def test_an_unknown_version_is_refused() -> None:
    with pytest.raises(ValueError, match="version 2"):
        decode_value("id", bytes.fromhex("0002" + "00" * 30))


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
