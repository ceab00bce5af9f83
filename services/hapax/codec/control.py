"""Control batches: one control record each, uncompressed. Meaning: `hapax.core.control`.

Key: int16 version, int16 type. A marker's value is Kafka's (int16 version, int32 coordinator epoch) followed by
Hapax's tail (int64 serial, int32 shard), which Kafka's readers ignore; a marker without the tail (written by Kafka)
has serial and shard -1. A longer value than known here is a later version's and is read as far as it is known.
"""

from __future__ import annotations

import struct
from typing import Final

from hapax.codec.batch import HEADER_SIZE, Buffer, assemble_batch
from hapax.codec.varint import read_varint
from hapax.core.batch import CONTROL, TRANSACTIONAL, BatchHeader
from hapax.core.control import Control, ControlType, Marker, ProducerExpiry, ProducerFence, ShardFence
from hapax.core.errors import ErrorCode, Refusal

CONTROL_VERSION: Final = 0

_KEY = struct.Struct(">hh")
_MARKER = struct.Struct(">hi")
_MARKER_TAIL = struct.Struct(">qi")
_SHARD_FENCE = struct.Struct(">hii")
_PRODUCER_FENCE = struct.Struct(">hq")
_PRODUCER_EXPIRY = struct.Struct(">hqq")


def encode_control(control: Control, timestamp_ms: int) -> bytearray:
    """A whole control batch with base offset 0; the leader patches offset and epoch as for any other batch."""
    attributes, producer_id, producer_epoch = CONTROL, -1, -1
    if isinstance(control, Marker):
        attributes |= TRANSACTIONAL
        producer_id, producer_epoch = control.producer_id, control.producer_epoch
        kind = ControlType.COMMIT if control.commit else ControlType.ABORT
        value = _MARKER.pack(CONTROL_VERSION, control.coordinator_epoch)
        value += _MARKER_TAIL.pack(control.serial, control.shard)
    elif isinstance(control, ProducerFence):
        producer_id, producer_epoch = control.producer_id, control.producer_epoch
        kind = ControlType.PRODUCER_FENCE
        value = _PRODUCER_FENCE.pack(CONTROL_VERSION, control.keep_until_ms)
    elif isinstance(control, ShardFence):
        kind = ControlType.SHARD_FENCE
        value = _SHARD_FENCE.pack(CONTROL_VERSION, control.shard_epoch, control.node_id)
    else:
        kind = ControlType.PRODUCER_EXPIRY
        value = _PRODUCER_EXPIRY.pack(CONTROL_VERSION, control.below_offset, control.now_ms)
    key = _KEY.pack(CONTROL_VERSION, kind)
    # Every length here is below 64, so each varint is one byte: the length doubled (zigzag).
    body = b"\0\0\0" + bytes((len(key) << 1,)) + key + bytes((len(value) << 1,)) + value + b"\0"
    return assemble_batch(
        bytes((len(body) << 1,)) + body,
        record_count=1,
        attributes=attributes,
        base_timestamp=timestamp_ms,
        max_timestamp=timestamp_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
    )


def decode_control(buffer: Buffer, header: BatchHeader, position: int = 0) -> Control:
    """The control record of the batch at `position`. Raises Refusal(INVALID_RECORD) for anything not understood."""
    try:
        key, value = _read_key_and_value(buffer, position + HEADER_SIZE, position + header.size)
        _, kind = _KEY.unpack_from(key)
        if kind in (ControlType.ABORT, ControlType.COMMIT):
            _, coordinator_epoch = _MARKER.unpack_from(value)
            serial, shard = -1, -1
            if len(value) >= _MARKER.size + _MARKER_TAIL.size:
                serial, shard = _MARKER_TAIL.unpack_from(value, _MARKER.size)
            return Marker(
                producer_id=header.producer_id,
                producer_epoch=header.producer_epoch,
                commit=kind == ControlType.COMMIT,
                coordinator_epoch=coordinator_epoch,
                serial=serial,
                shard=shard,
            )
        if kind == ControlType.PRODUCER_FENCE:
            _, keep_until = _PRODUCER_FENCE.unpack_from(value)
            return ProducerFence(header.producer_id, header.producer_epoch, keep_until)
        if kind == ControlType.SHARD_FENCE:
            _, shard_epoch, node_id = _SHARD_FENCE.unpack_from(value)
            return ShardFence(shard_epoch, node_id)
        if kind == ControlType.PRODUCER_EXPIRY:
            _, below_offset, now_ms = _PRODUCER_EXPIRY.unpack_from(value)
            return ProducerExpiry(below_offset, now_ms)
    except (struct.error, IndexError) as error:
        raise Refusal(ErrorCode.INVALID_RECORD, f"damaged control record: {error}") from None
    raise Refusal(ErrorCode.INVALID_RECORD, f"control record of unknown type {kind}")


def _read_key_and_value(buffer: Buffer, position: int, end: int) -> tuple[bytes, bytes]:
    """Key and value of the first record. Raises IndexError if it reaches past `end`."""
    _, position = read_varint(buffer, position)
    position += 1  # the record's attributes
    _, position = read_varint(buffer, position)
    _, position = read_varint(buffer, position)
    fields = []
    for _ in range(2):
        length, position = read_varint(buffer, position)
        if length < 0 or position + length > end:
            raise IndexError(f"a field of {length} bytes")
        fields.append(bytes(buffer[position : position + length]))
        position += length
    return fields[0], fields[1]
