"""The records of a batch that nobody vouches for: a few bytes of it may claim to be gigabytes.

`records.decode_batch` trusts that what was stored is what a client meant. Here what is decompressed has a bound, and
whatever is wrong is told as a Refusal.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import Final

import cramjam

from hapax.codec.batch import HEADER_SIZE, LENGTH_END, Buffer
from hapax.codec.records import Compression, Record, decode_batch
from hapax.core.batch import BatchHeader
from hapax.core.errors import ErrorCode, Refusal

_CODEC_BITS: Final = 7
_ATTRIBUTES_AT: Final = 21
_LENGTH_AT: Final = 8
_XERIAL: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = 16


def decode_bounded(buffer: Buffer, header: BatchHeader, position: int, max_bytes: int, most: int) -> list[Record]:
    """At most the first `most` records of a whole batch. Raises Refusal: CORRUPT_MESSAGE, UNSUPPORTED_COMPRESSION_TYPE,
    MESSAGE_TOO_LARGE where it is larger than `max_bytes` once decompressed."""
    batch = bytearray(memoryview(buffer)[position : position + header.size])
    codec = header.attributes & _CODEC_BITS
    if codec != Compression.NONE:
        payload = _decompressed(codec, bytes(batch[HEADER_SIZE:]), max_bytes)
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


def _decompressed(codec: int, payload: bytes, max_bytes: int) -> bytes:
    """Raises Refusal."""
    decompress = _DECOMPRESS.get(codec)
    if decompress is None:
        raise Refusal(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"there is no compression {codec}")
    try:
        return decompress(payload, max_bytes)
    except (cramjam.DecompressionError, zlib.error, struct.error, ValueError, EOFError) as error:
        raise Refusal(
            ErrorCode.CORRUPT_MESSAGE,
            f"what is compressed by {Compression(codec).name.lower()} cannot be decompressed: {error}") from error


def _gzip(payload: bytes, max_bytes: int) -> bytes:
    out = bytearray()
    while payload:  # a gzip file may have several members
        member = zlib.decompressobj(wbits=31)
        out += member.decompress(payload, max_bytes - len(out) + 1)
        _check(len(out), max_bytes)
        if not member.eof:
            raise EOFError("it ends too early")
        payload = member.unused_data
    return bytes(out)


def _snappy(payload: bytes, max_bytes: int) -> bytes:
    if not payload.startswith(_XERIAL):
        return _snappy_block(payload, max_bytes)
    out = bytearray()
    position = _XERIAL_HEADER
    while position < len(payload):
        (size,) = struct.unpack_from(">i", payload, position)
        position += 4
        if not 0 <= size <= len(payload) - position:
            raise EOFError("it ends too early")
        out += _snappy_block(payload[position : position + size], max_bytes - len(out))
        position += size
    return bytes(out)


def _snappy_block(block: bytes, max_bytes: int) -> bytes:
    claimed = cramjam.snappy.decompress_raw_len(block)
    _check(claimed, max_bytes)
    return bytes(cramjam.snappy.decompress_raw(block))


def _into(decompress_into: Callable[[bytes, bytearray], int]) -> Callable[[bytes, int], bytes]:
    def decompress(payload: bytes, max_bytes: int) -> bytes:
        size = 4 * len(payload)
        while True:  # most batches are small: begin with little memory
            out = bytearray(min(size, max_bytes))
            try:
                return bytes(out[: decompress_into(payload, out)])
            except cramjam.DecompressionError as error:
                if "whole buffer" not in str(error):
                    raise
                _check(len(out) + 1, max_bytes)
                size *= 8

    return decompress


def _check(size: int, max_bytes: int) -> None:
    if size > max_bytes:
        raise Refusal(ErrorCode.MESSAGE_TOO_LARGE, f"decompressed it is larger than {max_bytes} bytes")


_DECOMPRESS: Final[dict[int, Callable[[bytes, int], bytes]]] = {
    Compression.GZIP: _gzip,
    Compression.SNAPPY: _snappy,
    Compression.LZ4: _into(cramjam.lz4.decompress_into),
    Compression.ZSTD: _into(cramjam.zstd.decompress_into),
}
