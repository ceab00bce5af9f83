from __future__ import annotations

import pytest
from aiokafka.record.memory_records import MemoryRecords
from hypothesis import given
from hypothesis import strategies as st

from hapax.codec.batch import check_batch, read_header
from hapax.codec.internal_records import decode_batch, encode_batch
from hapax.core.errors import Refusal

record = st.tuples(st.binary(max_size=200), st.none() | st.binary(max_size=9000))


@given(st.lists(record, min_size=1, max_size=70))
def test_what_is_written_is_read_here_and_by_others(records: list[tuple[bytes, bytes | None]]) -> None:
    batch = bytes(encode_batch(records, 1_700_000_000_000, producer_id=7, producer_epoch=3))
    header = read_header(batch)
    check_batch(batch, header)
    assert list(decode_batch(batch, header)) == [(i, key, value) for i, (key, value) in enumerate(records)]
    foreign = MemoryRecords(batch).next_batch()
    assert foreign is not None
    assert foreign.is_transactional
    assert (foreign.producer_id, foreign.producer_epoch, foreign.base_sequence) == (7, 3, -1)
    read = [(r.offset, r.key, r.value, r.timestamp) for r in foreign]
    assert read == [(i, key, value, 1_700_000_000_000) for i, (key, value) in enumerate(records)]


@given(st.binary(max_size=100), st.integers(0, 3))
def test_damaged_records_are_refused(garbage: bytes, count: int) -> None:
    batch = encode_batch([(b"k", b"v")], 0)
    header = read_header(batch)._replace(record_count=count, batch_length=49 + len(garbage))
    try:
        for _ in decode_batch(bytes(batch[:61]) + garbage, header):
            pass
    except Refusal:
        return


@pytest.mark.parametrize("cut", [1, 2, 3, 4, 6])
def test_a_record_that_ends_too_early_is_refused(cut: int) -> None:
    """Also where the bytes end just before the value that they announce: that is not an empty value."""
    batch = bytes(encode_batch([(b"k", b"value")], 0))
    shorter = bytes([batch[61] - 2 * cut]) + batch[62:-cut]
    header = read_header(batch)._replace(batch_length=len(batch) - 12 - cut)
    with pytest.raises(Refusal, match="damaged"):
        list(decode_batch(batch[:61] + shorter, header))


def test_a_compressed_batch_is_refused() -> None:
    batch = encode_batch([(b"k", b"v")], 0)
    with pytest.raises(Refusal, match="compressed"):
        list(decode_batch(batch, read_header(batch)._replace(attributes=3)))
