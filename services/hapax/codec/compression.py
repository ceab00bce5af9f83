"""The compression codecs of record batches.

Untrusted input may claim to expand to gigabytes: `decompress_bounded` never produces more than its limit. Every service
uses it; `decompress` is for a client's own reading.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from enum import IntEnum
from typing import Final

import cramjam

from hapax.codec.late_package import place_late
from hapax.core.errors import ErrorCode, Refusal

place_late("aiokafka")  # its codecs are needed, not its client
from aiokafka.codec import (  # noqa: E402
    gzip_decode,
    lz4_decode,
    lz4_encode,
    snappy_decode,
    snappy_encode,
    zstd_decode,
    zstd_encode,
)

_XERIAL: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = 16
_GZIP: Final = 31
"""zlib's number for gzip's framing."""
_DAMAGE: Final = (cramjam.DecompressionError, zlib.error, struct.error, ValueError, EOFError, IndexError, OSError)
"""What decompressors raise for bytes that are not theirs."""


class Compression(IntEnum):
    """`compression.type`, by its number in a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


def compress(compression: int, records: bytes, level: int | None = None) -> bytes:
    """Compresses a batch's records. The same input gives the same output. `level`: None for the codec's default; snappy
    has none."""
    if compression == Compression.NONE:
        return records
    if level is None:
        return _COMPRESS[compression](records)
    return _COMPRESS_AT_LEVEL[compression](records, level)


def decompress(compression: int, records: bytes) -> bytes:
    """Decompresses a batch's records. Raises Refusal: CORRUPT_MESSAGE, or UNSUPPORTED_COMPRESSION_TYPE."""
    if compression == Compression.NONE:
        return records
    if compression not in _DECOMPRESS:
        raise Refusal(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"there is no compression {compression}")
    try:
        return _DECOMPRESS[compression](records)
    except _DAMAGE as error:
        raise Refusal(ErrorCode.CORRUPT_MESSAGE, f"the batch's records are damaged: {error}") from error


def decompress_bounded(compression: int, records: bytes, max_bytes: int) -> bytes:
    """Like `decompress`. Also raises Refusal(MESSAGE_TOO_LARGE) if the output would exceed `max_bytes`."""
    if compression == Compression.NONE:
        _check(len(records), max_bytes)
        return records
    bounded = _BOUNDED.get(compression)
    if bounded is None:
        raise Refusal(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"there is no compression {compression}")
    try:
        return bounded(records, max_bytes)
    except _DAMAGE as error:
        raise Refusal(
            ErrorCode.CORRUPT_MESSAGE,
            f"what is compressed by {Compression(compression).name.lower()} cannot be decompressed: {error}",
        ) from error


def _gzip_encode(records: bytes, level: int = -1) -> bytes:
    """Without the timestamp that gzip's own writer puts into the header."""
    member = zlib.compressobj(level, wbits=_GZIP)
    return member.compress(records) + member.flush()


def _gzip(payload: bytes, max_bytes: int) -> bytes:
    out = bytearray()
    while payload:  # a gzip file may have several members
        member = zlib.decompressobj(wbits=_GZIP)
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
                return bytes(memoryview(out)[: decompress_into(payload, out)])
            except cramjam.DecompressionError as error:
                if "whole buffer" not in str(error):
                    raise
                _check(len(out) + 1, max_bytes)
                size *= 8

    return decompress


def _check(size: int, max_bytes: int) -> None:
    if size > max_bytes:
        raise Refusal(ErrorCode.MESSAGE_TOO_LARGE, f"decompressed it is larger than {max_bytes} bytes")


_COMPRESS: Final[dict[int, Callable[[bytes], bytes]]] = {
    Compression.GZIP: _gzip_encode,
    Compression.SNAPPY: snappy_encode,
    Compression.LZ4: lz4_encode,
    Compression.ZSTD: zstd_encode,
}
_COMPRESS_AT_LEVEL: Final[dict[int, Callable[[bytes, int], bytes]]] = {
    Compression.GZIP: _gzip_encode,
    Compression.LZ4: lz4_encode,
    Compression.ZSTD: zstd_encode,
}
_DECOMPRESS: Final[dict[int, Callable[[bytes], bytes]]] = {
    Compression.GZIP: gzip_decode,
    Compression.SNAPPY: snappy_decode,
    Compression.LZ4: lz4_decode,
    Compression.ZSTD: zstd_decode,
}
_BOUNDED: Final[dict[int, Callable[[bytes, int], bytes]]] = {
    Compression.GZIP: _gzip,
    Compression.SNAPPY: _snappy,
    Compression.LZ4: _into(cramjam.lz4.decompress_into),
    Compression.ZSTD: _into(cramjam.zstd.decompress_into),
}
