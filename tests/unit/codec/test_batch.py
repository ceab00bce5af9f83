"""Batches as bytes, against aiokafka's builder and reader."""

from __future__ import annotations

import random

import pytest
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from hypothesis import given
from hypothesis import strategies as st

from hapax.codec.batch import (
    HEADER_SIZE,
    PREFIX_SIZE,
    assemble_batch,
    check_batch,
    check_client_batch,
    iterate_batches,
    patch_append_time,
    patch_prefix,
    read_batch_size,
    read_header,
)
from hapax.core.batch import LOG_APPEND_TIME
from hapax.core.errors import ErrorCode, Refusal


def build(count: int = 3, *, transactional: bool = True, pid: int = 7) -> bytearray:
    builder = DefaultRecordBatchBuilder(
        magic=2, compression_type=0, is_transactional=int(transactional), producer_id=pid, producer_epoch=1,
        base_sequence=5, batch_size=1 << 20,
    )  # fmt: skip
    for i in range(count):
        builder.append(i, 1000 + i, b"key", b"value", [])
    return bytearray(builder.build())


def test_the_header_says_what_the_builder_was_told() -> None:
    batch = build()
    header = read_header(batch)
    check_batch(batch, header)
    check_client_batch(header)
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.record_count) == (7, 1, 5, 3)
    assert (header.base_timestamp, header.max_timestamp, header.last_offset_delta) == (1000, 1002, 2)
    assert header.is_transactional and not header.is_control and header.compression == 0
    assert header.size == len(batch) == read_batch_size(batch)
    assert header.last_sequence == 7


def test_assembled_bytes_are_those_of_the_builder() -> None:
    batch = build()
    header = read_header(batch)
    assert assemble_batch(
        bytes(batch[HEADER_SIZE:]), record_count=3, attributes=header.attributes, base_timestamp=1000,
        max_timestamp=1002, producer_id=7, producer_epoch=1, base_sequence=5, leader_epoch=header.leader_epoch,
    ) == batch  # fmt: skip


def test_a_leader_patches_offset_and_epoch_without_a_new_crc() -> None:
    batch = build()
    patched = bytearray(batch)
    patch_prefix(patched, 1 << 40, 9)
    assert patched[PREFIX_SIZE:] == batch[PREFIX_SIZE:]
    header = read_header(patched)
    check_batch(patched, header)
    assert (header.base_offset, header.leader_epoch, header.next_offset) == (1 << 40, 9, (1 << 40) + 3)
    assert [record.offset for record in DefaultRecordBatch(bytes(patched))] == [(1 << 40) + i for i in range(3)]


def test_log_append_time_replaces_every_timestamp() -> None:
    batch = build()
    patch_append_time(batch, 5555)
    header = read_header(batch)
    check_batch(batch, header)
    assert header.attributes & LOG_APPEND_TIME
    assert {record.timestamp for record in DefaultRecordBatch(bytes(batch))} == {5555}


def test_batches_are_iterated_up_to_a_partial_one() -> None:
    first, second = build(1), build(2)
    data = first + second + build(3)[:-1]
    assert [(position, header.record_count) for position, header in iterate_batches(data)] == [
        (0, 1), (len(first), 2),
    ]  # fmt: skip
    assert list(iterate_batches(data, len(first), len(first) + len(second) - 1)) == []
    assert list(iterate_batches(data[:60])) == []


def test_a_length_that_leads_nowhere_is_corrupt() -> None:
    batch = build()
    batch[8:12] = (48).to_bytes(4, "big")
    with pytest.raises(Refusal):
        list(iterate_batches(batch))
    batch[8:12] = (-1).to_bytes(4, "big", signed=True)
    with pytest.raises(Refusal):
        list(iterate_batches(batch))


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"magic": 0}, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
        ({"magic": 1}, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
        ({"magic": 3}, ErrorCode.CORRUPT_MESSAGE),
        ({"magic": -1}, ErrorCode.CORRUPT_MESSAGE),
        ({"batch_length": 48}, ErrorCode.CORRUPT_MESSAGE),
        ({"batch_length": -5}, ErrorCode.CORRUPT_MESSAGE),
        ({"batch_length": 1 << 30}, ErrorCode.CORRUPT_MESSAGE),
        ({"crc": 1}, ErrorCode.CORRUPT_MESSAGE),
    ],
)
def test_bytes_that_are_no_batch_are_refused(changes: dict[str, int], code: ErrorCode) -> None:
    batch = build()
    with pytest.raises(Refusal) as refused:
        check_batch(batch, read_header(batch)._replace(**changes))
    assert refused.value.code == code


@pytest.mark.parametrize(
    "changes",
    [
        {"attributes": 0x20},
        {"record_count": 0},
        {"record_count": -1},
        {"record_count": 4},
        {"last_offset_delta": -1},
        {"base_offset": 1},
        {"base_sequence": -1},
        {"producer_epoch": -1},
        {"producer_id": -2},
        {"producer_id": -1},
    ],
)
def test_clients_may_not_write_everything(changes: dict[str, int]) -> None:
    header = read_header(build())
    with pytest.raises(Refusal) as refused:
        check_client_batch(header._replace(**changes))
    assert refused.value.code == ErrorCode.INVALID_RECORD


def test_an_unknown_compression_is_refused() -> None:
    header = read_header(build())
    with pytest.raises(Refusal) as refused:
        check_client_batch(header._replace(attributes=5))
    assert refused.value.code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


def test_a_client_may_not_claim_the_time_of_the_append() -> None:
    header = read_header(build())
    with pytest.raises(Refusal) as refused:
        check_client_batch(header._replace(attributes=LOG_APPEND_TIME))
    assert refused.value.code == ErrorCode.INVALID_TIMESTAMP


def test_any_damaged_byte_behind_the_prefix_is_noticed() -> None:
    batch = build()
    rng = random.Random(3)
    for position in range(PREFIX_SIZE, len(batch)):
        damaged = bytearray(batch)
        damaged[position] ^= 1 << rng.randrange(8)
        with pytest.raises(Refusal):
            check_batch(damaged, read_header(damaged))


@given(st.binary(max_size=200))
def test_random_bytes_are_refused_and_nothing_else(data: bytes) -> None:
    with pytest.raises(Refusal):
        check_batch(data, read_header(data))
    try:
        list(iterate_batches(data))
    except Refusal as refusal:
        assert refusal.code == ErrorCode.CORRUPT_MESSAGE
