"""Control batches, against the readers of Kafka's clients."""

from __future__ import annotations

import pytest
from aiokafka.record.control_record import ControlRecord
from aiokafka.record.default_records import DefaultRecordBatch
from hypothesis import given
from hypothesis import strategies as st

from hapax.codec.batch import assemble_batch, check_batch, read_header
from hapax.codec.control import decode_control, encode_control
from hapax.core.batch import CONTROL
from hapax.core.control import Control, Marker, ProducerExpiry, ProducerFence, ShardFence
from hapax.core.errors import ErrorCode, Refusal

int16, int32, int64 = (st.integers(-(1 << bits), (1 << bits) - 1) for bits in (15, 31, 63))

controls: st.SearchStrategy[Control] = st.one_of(
    st.builds(
        Marker, producer_id=int64, producer_epoch=int16, commit=st.booleans(), coordinator_epoch=int32, serial=int64,
        shard=int32,
    ),
    st.builds(ShardFence, int32, int32),
    st.builds(ProducerFence, int64, int16, int64),
    st.builds(ProducerExpiry, int64, int64),
)  # fmt: skip


@given(controls, int64)
def test_what_was_encoded_is_decoded(control: Control, timestamp: int) -> None:
    batch = encode_control(control, timestamp)
    header = read_header(batch)
    check_batch(batch, header)
    assert header.is_control and header.record_count == 1
    assert header.is_transactional == isinstance(control, Marker)
    assert decode_control(batch, header) == control
    (record,) = DefaultRecordBatch(bytes(batch))
    assert record.timestamp == timestamp


def test_kafkas_clients_read_markers_and_skip_the_rest() -> None:
    kinds = []
    for control in (
        Marker(7, 0, False, 3, serial=9, shard=2), Marker(7, 0, True, 3), ShardFence(1, 2), ProducerFence(7, 1, 2),
        ProducerExpiry(1, 2),
    ):  # fmt: skip
        (record,) = DefaultRecordBatch(bytes(encode_control(control, 5)))
        assert record.key is not None and record.value is not None
        kinds.append(ControlRecord.parse(record.key).type_)
    assert kinds == [0, 1, 18433, 18434, 18435]


def test_a_marker_written_by_kafka_has_no_serial() -> None:
    record = b"\0\0\0\x08\0\0\0\1\x0c\0\0\0\0\0\5\0"  # key: version 0, COMMIT; value: version 0, coordinator epoch 5
    batch = assemble_batch(
        bytes((len(record) * 2,)) + record, record_count=1, attributes=0x30, producer_id=7, producer_epoch=2
    )
    assert decode_control(batch, read_header(batch)) == Marker(7, 2, True, 5)


def test_a_longer_value_is_a_later_versions() -> None:
    value = b"\0\1" + (7).to_bytes(4, "big") + (100).to_bytes(4, "big") + b"more"
    record = b"\0\0\0\x08\0\0" + (18433).to_bytes(2, "big") + bytes((len(value) * 2,)) + value + b"\0"
    batch = assemble_batch(bytes((len(record) * 2,)) + record, record_count=1, attributes=CONTROL)
    assert decode_control(batch, read_header(batch)) == ShardFence(7, 100)


@given(st.binary(max_size=40))
def test_damaged_control_records_are_refused(record: bytes) -> None:
    batch = assemble_batch(record, record_count=1, attributes=CONTROL)
    try:
        decode_control(batch, read_header(batch))
    except Refusal as refusal:
        assert refusal.code == ErrorCode.INVALID_RECORD


def test_an_unknown_type_is_refused() -> None:
    record = b"\0\0\0\x08\0\0\0\2\x00\0"
    batch = assemble_batch(bytes((len(record) * 2,)) + record, record_count=1, attributes=CONTROL)
    with pytest.raises(Refusal, match="unknown type 2"):
        decode_control(batch, read_header(batch))
