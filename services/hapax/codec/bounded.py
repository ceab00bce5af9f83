"""Decodes untrusted batches: a few compressed bytes may expand to gigabytes.

`records.decode_batch` trusts its input. This module bounds the decompressed size and raises a Refusal for every fault.
"""

from __future__ import annotations

import struct
from typing import Final

from hapax.codec.batch import HEADER_SIZE, LENGTH_END, Buffer
from hapax.codec.compression import Compression, decompress_bounded
from hapax.codec.records import Record, decode_batch
from hapax.core.batch import BatchHeader

_CODEC_BITS: Final = 7
_ATTRIBUTES_AT: Final = 21
_LENGTH_AT: Final = 8


def decode_bounded(buffer: Buffer, header: BatchHeader, position: int, max_bytes: int, most: int) -> list[Record]:
    """At most the first `most` records of a whole batch. Raises Refusal: CORRUPT_MESSAGE, UNSUPPORTED_COMPRESSION_TYPE,
    MESSAGE_TOO_LARGE where it is larger than `max_bytes` once decompressed."""
    batch = bytearray(memoryview(buffer)[position : position + header.size])
    codec = header.attributes & _CODEC_BITS
    if codec != Compression.NONE:
        payload = decompress_bounded(codec, bytes(batch[HEADER_SIZE:]), max_bytes)
        del batch[HEADER_SIZE:]
        batch += payload
        struct.pack_into(">i", batch, _LENGTH_AT, len(batch) - LENGTH_END)
        struct.pack_into(">h", batch, _ATTRIBUTES_AT, header.attributes & ~_CODEC_BITS)
    records = []
    for record in decode_batch(batch, 0, len(batch)):
        records.append(record)
        if len(records) == most:
            break
    return records
