"""Records that nobody vouches for, looked at without decoding them."""

from __future__ import annotations

import random

import pytest

from hapax.codec.batch import assemble_batch, read_header
from hapax.codec.compression import Compression, compress, decompress, decompress_bounded
from hapax.codec.raw_records import KEY, MAX_RECORDS_BYTES, OFFSET_DELTA, TOMBSTONE, raw_records, rewritten
from hapax.codec.records import decode_batch, encode_records
from hapax.core.errors import ErrorCode, Refusal

NOW = 1_700_000_000_000


@pytest.mark.parametrize("compression", list(Compression))
def test_every_subset_is_rewritten_as_it_was(compression: Compression) -> None:
    rng = random.Random(compression)
    for _ in range(50):
        batch = encode_records([
            (
                NOW + rng.randint(-(10**12), 10**6), rng.choice([None, b"", b"k" * rng.randint(1, 300)]),
                rng.choice([None, b"", b"v" * rng.randint(1, 300)]), [("h", b"x")] * rng.randint(0, 2),
            )
            for _ in range(rng.randint(1, 20))
        ], compression=compression, producer_id=5, producer_epoch=1, base_sequence=7)
        header = read_header(batch)
        known = list(decode_batch(batch, 0, len(batch)))
        data, found = raw_records(batch, header)
        assert [(r[OFFSET_DELTA], r[KEY], r[TOMBSTONE]) for r in found] == [
            (r.offset, r.key, r.value is None) for r in known]
        kept = sorted(rng.sample(range(len(found)), rng.randint(1, len(found))))
        for horizon in (None, NOW + 86_400_000):
            made = rewritten(header, data, [found[i] for i in kept], horizon)
            assert list(decode_batch(made, 0, len(made))) == [known[i] for i in kept]
            after = read_header(made)
            assert after.delete_horizon_ms == horizon
            assert after.max_timestamp == max(known[i].timestamp for i in kept)
            assert after.compression == compression
            assert (after.last_offset, after.base_sequence) == (header.last_offset, 7)


@pytest.mark.parametrize("compression", list(Compression)[1:])
def test_no_more_is_decompressed_than_is_allowed(compression: Compression) -> None:
    payload = compress(compression, bytes(100_000))
    assert decompress_bounded(compression, payload, 100_000) == decompress(compression, payload) == bytes(100_000)
    with pytest.raises(Refusal) as refused:
        decompress_bounded(compression, payload, 99_999)
    assert refused.value.code is ErrorCode.MESSAGE_TOO_LARGE


def test_a_bomb_is_refused() -> None:
    bomb = assemble_batch(
        compress(Compression.ZSTD, bytes(MAX_RECORDS_BYTES + 1)), record_count=1, attributes=Compression.ZSTD)
    with pytest.raises(Refusal) as refused:
        raw_records(bomb, read_header(bomb))
    assert refused.value.code is ErrorCode.MESSAGE_TOO_LARGE
    assert MAX_RECORDS_BYTES <= 64 << 20


@pytest.mark.parametrize("compression", list(Compression))
def test_whatever_is_changed_is_read_or_refused(compression: Compression) -> None:
    rng = random.Random(compression)
    batch = encode_records(
        [(NOW, b"key%d" % n, b"value" * n, [("h", b"x")]) for n in range(20)], compression=compression)
    header = read_header(batch)
    for _ in range(2000):
        changed = bytearray(batch)
        for _ in range(rng.randint(1, 3)):
            changed[rng.randrange(61, len(changed))] = rng.randrange(256)
        try:
            data, found = raw_records(changed, header)
            rewritten(header, data, found, NOW)
        except Refusal as refusal:
            assert refusal.code in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.MESSAGE_TOO_LARGE)


@pytest.mark.parametrize("base", [-(2**63), 2**63 - 1])
def test_timestamps_beyond_64_bits_are_refused(base: int) -> None:
    batch = encode_records([(NOW, b"k", None, ()), (NOW + 5, b"k", None, ()), (NOW - 5, b"k", None, ())])
    header = read_header(batch)._replace(base_timestamp=base)
    data, found = raw_records(batch, header)
    with pytest.raises(Refusal):
        rewritten(header, data, found, -base // 2)
