"""Clients' batches whose records matter to their topic: checked one by one, and compressed as the topic wants them.

Most topics need neither; their batches stay opaque. A client may send any bytes behind a valid header and CRC. What
they expand to is bounded (`raw_records`), and the work is meant for a thread.

Source: Kafka's LogValidator and KIP-467 (errors of single records).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from hapax.codec.batch import HEADER_SIZE, Buffer, assemble_batch, read_header
from hapax.codec.raw_records import KEY, MAX_RECORDS_BYTES, TIMESTAMP_DELTA, raw_records
from hapax.core.batch import COMPRESSION_MASK, TRANSACTIONAL, BatchHeader
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.partition.values import BadRecords, RecordError

UNBOUNDED_MS: Final = (1 << 63) - 1
AS_PRODUCED: Final = -1
CODECS: Final = {"producer": AS_PRODUCED, "uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
"""`compression.type` -> its number in a batch's attributes."""
_NO_TIMESTAMP: Final = -1
_ERRORS_MAX: Final = 1_000
"""Most records whose errors one answer lists. A client treats the batch's other records as refused too."""


class Rules(NamedTuple):
    """What a topic demands of the records that clients write to it."""

    keyed: bool = False
    """Each record has a key: the topic is compacted."""
    before_ms: int = UNBOUNDED_MS
    """A record is at most this much older than the broker's clock."""
    after_ms: int = UNBOUNDED_MS
    """A record is at most this much newer than the broker's clock."""
    compression: int = AS_PRODUCED
    """Codec in which batches are stored."""
    level: int | None = None
    """Of that codec; None: its default."""

    def concern(self, header: BatchHeader, now_ms: int) -> bool:
        """Whether the batch's records have to be looked at. The header's timestamps are believed where they say that
        all is well: a client that writes false ones deceives its own readers."""
        return (
            self.keyed
            or header.max_timestamp - now_ms > self.after_ms
            or (self.before_ms != UNBOUNDED_MS
                and (header.record_count > 1 or now_ms - header.base_timestamp > self.before_ms))
            or self._recompresses(header)
        )

    def _recompresses(self, header: BatchHeader) -> bool:
        return self.compression not in (AS_PRODUCED, header.attributes & COMPRESSION_MASK)


def prepared(
    batch: Buffer, header: BatchHeader, rules: Rules, now_ms: int
) -> tuple[Buffer, BadRecords | None]:
    """The batch as it is to be stored, which has been checked as a whole before, and what is wrong with its records.
    Raises Refusal: INVALID_RECORD, MESSAGE_TOO_LARGE, UNSUPPORTED_COMPRESSION_TYPE where they cannot be read."""
    bad = None
    try:
        if rules.keyed or rules.before_ms != UNBOUNDED_MS or header.max_timestamp - now_ms > rules.after_ms:
            data, bad = _checked(batch, header, rules, now_ms)
        else:
            data = _decompressed(batch, header)
    except Refusal as refusal:
        if refusal.code is not ErrorCode.CORRUPT_MESSAGE:
            raise
        # Its CRC matches, so it is as the client made it: sent again, it would be no better.
        raise Refusal(ErrorCode.INVALID_RECORD, refusal.reason) from None
    # A bad batch is refused unless it is the retry of one that was good then: within a transaction, that is told by the
    # checksum of what is stored.
    wanted = rules._recompresses(header) and (bad is None or bool(header.attributes & TRANSACTIONAL))
    return _recompressed(header, data, rules) if wanted else batch, bad


def same_records(stored: Buffer, sent: Buffer) -> bool:
    """Whether two whole batches hold the same records, however each is compressed. Raises Refusal where one cannot be
    read."""
    headers = read_header(stored), read_header(sent)
    facts = [
        (header.record_count, header.last_offset_delta, header.base_timestamp, header.attributes & ~COMPRESSION_MASK)
        for header in headers]
    return facts[0] == facts[1] and _decompressed(stored, headers[0]) == _decompressed(sent, headers[1])


def _checked(
    batch: Buffer, header: BatchHeader, rules: Rules, now_ms: int
) -> tuple[bytes, BadRecords | None]:
    """The decompressed records, and what is wrong with them. Raises Refusal where they cannot be read."""
    data, records = raw_records(batch, header)
    # Without a bound the limits lie outside of what a timestamp can be.
    least, most = now_ms - rules.before_ms, now_ms + rules.after_ms
    base = header.base_timestamp
    errors: list[RecordError] = []
    code, count = ErrorCode.INVALID_RECORD, 0
    for index, record in enumerate(records):
        timestamp = base + record[TIMESTAMP_DELTA]
        if rules.keyed and record[KEY] is None:
            error = "a record of a compacted topic must have a key"
        elif timestamp != _NO_TIMESTAMP and not least <= timestamp <= most:
            error = f"timestamp {timestamp} is out of range: it should be within {least} and {most}"
            code = ErrorCode.INVALID_TIMESTAMP
        else:
            continue
        count += 1
        if count <= _ERRORS_MAX:
            errors.append(RecordError(index, error))
    if not errors:
        return data, None
    first = errors[0]
    return data, BadRecords(
        code, f"{count} of {header.record_count} records are refused, and with them the batch; "
        f"record {first.position}: {first.message}", errors)


def _decompressed(batch: Buffer, header: BatchHeader) -> bytes:
    from hapax.codec.compression import decompress_bounded  # loaded by a broker only where a topic asks for it

    records = bytes(memoryview(batch)[HEADER_SIZE : header.size])
    return decompress_bounded(header.attributes & COMPRESSION_MASK, records, MAX_RECORDS_BYTES)


def _recompressed(header: BatchHeader, data: bytes, rules: Rules) -> bytearray:
    """With the same records, offsets, timestamps, producer and sequence. The same input gives the same bytes, so that a
    retry has the checksum of the stored batch."""
    from hapax.codec.compression import compress

    return assemble_batch(
        compress(rules.compression, data, rules.level), record_count=header.record_count,
        attributes=header.attributes & ~COMPRESSION_MASK | rules.compression,
        base_timestamp=header.base_timestamp, max_timestamp=header.max_timestamp,
        producer_id=header.producer_id, producer_epoch=header.producer_epoch, base_sequence=header.base_sequence,
        base_offset=header.base_offset, leader_epoch=header.leader_epoch, last_offset_delta=header.last_offset_delta,
    )
