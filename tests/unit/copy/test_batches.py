"""Batches of the source become batches that a client may write; damage ends what is read, and keeps what is sound."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c

from hapax.client.partitioner import partition_of
from hapax.codec.batch import check_batch, check_client_batch, patch_append_time, patch_prefix, read_header
from hapax.codec.control import encode_control
from hapax.codec.records import decode_batch, encode_records
from hapax.copy.batches import by_key, for_target, merged, parse
from hapax.core.control import Marker
from hapax.core.errors import ErrorCode


def batch(offset: int, count: int = 3, *, producer: int = -1, compression: int = 0, first: int = 0) -> bytearray:
    found = encode_records(
        ((1000 + i, f"k{i}".encode(), f"v{i}".encode(), (("h", b"x"),)) for i in range(first, first + count)),
        compression=compression, transactional=producer >= 0, producer_id=producer,
        producer_epoch=0 if producer >= 0 else -1, base_sequence=0 if producer >= 0 else -1)
    patch_prefix(found, offset, 7)
    return found


def marker(offset: int, producer: int, *, commit: bool) -> bytearray:
    found = encode_control(Marker(
        producer_id=producer, producer_epoch=0, commit=commit, coordinator_epoch=0, serial=-1, shard=-1), 2000)
    patch_prefix(found, offset, 7)
    return found


def rewritten(found: bytearray, at: int, form: str, value: int) -> bytearray:
    """A batch with another field of its header, and the CRC of that."""
    struct.pack_into(form, found, at, value)
    struct.pack_into(">I", found, 17, crc32c(bytes(found[21:])))
    return found


def values(data: bytearray | memoryview) -> list[tuple[int, bytes | None]]:
    return [(each.timestamp, each.value) for each in decode_batch(data, 0, len(data))]


@pytest.mark.parametrize("compression", range(5))
def test_a_batch_is_passed_on(compression: int) -> None:
    held, following, damage = parse(batch(5, compression=compression) + batch(8), (), 5)
    assert (following, damage) == (11, None)
    outgoing = for_target(held[0], 5)
    assert outgoing is not None
    header = read_header(outgoing.data)
    check_batch(outgoing.data, header)
    check_client_batch(header)
    assert (header.compression, outgoing.records, outgoing.spans) == (compression, 3, ((5, 3),))
    assert values(outgoing.data) == [(1000, b"v0"), (1001, b"v1"), (1002, b"v2")]


def test_a_batch_that_is_copied_from_its_middle_on() -> None:
    held, following, _ = parse(batch(5), (), 6)
    assert following == 8
    outgoing = for_target(held[0], 6)
    assert outgoing is not None
    assert (values(outgoing.data), outgoing.spans) == ([(1001, b"v1"), (1002, b"v2")], ((6, 2),))


def test_an_append_time_becomes_a_timestamp() -> None:
    data = batch(0)
    patch_append_time(data, 5000)
    held, _, _ = parse(data, (), 0)
    outgoing = for_target(held[0], 0)
    assert outgoing is not None
    check_client_batch(read_header(outgoing.data))
    assert values(outgoing.data) == [(5000, b"v0"), (5000, b"v1"), (5000, b"v2")]


def test_a_compacted_batch_keeps_its_records() -> None:
    """Of four offsets, one record is left out at the end."""
    data = rewritten(batch(0), 23, ">i", 3)
    held, following, _ = parse(data, (), 0)
    assert following == 4
    outgoing = for_target(held[0], 0)
    assert outgoing is not None
    check_client_batch(read_header(outgoing.data))
    assert (len(values(outgoing.data)), outgoing.spans) == (3, ((0, 3),))


def test_aborted_transactions_and_markers_are_left_out() -> None:
    data = batch(0, producer=1) + batch(3, producer=2) + marker(6, 1, commit=False) + batch(7, producer=1)
    data += marker(10, 2, commit=True) + marker(11, 1, commit=True)
    held, following, damage = parse(data, [(1, 0)], 0)
    assert (following, damage) == (12, None)
    assert [for_target(each, 0) is not None for each in held] == [False, True, False, True, False, False]
    assert [each.piece.commits for each in held] == [None, None, False, None, True, True]
    assert [each.piece.writer and each.piece.writer[0] for each in held] == [1, 2, 1, 1, 2, 1]


def test_what_is_before_a_damaged_batch_is_kept() -> None:
    damaged = batch(3)
    damaged[-1] ^= 1
    held, following, damage = parse(batch(0) + damaged + batch(6), (), 0)
    assert ([each.header.base_offset for each in held], following) == ([0], 3)
    assert damage is not None
    assert (damage.offset, damage.following, damage.code) == (3, 6, ErrorCode.CORRUPT_MESSAGE)


def test_what_a_damaged_batch_says_of_its_offsets_is_not_believed() -> None:
    damaged = batch(3)
    struct.pack_into(">i", damaged, 23, 1_000)  # lastOffsetDelta
    _, _, damage = parse(batch(0) + damaged + batch(6), (), 0)
    assert damage is not None
    assert (damage.offset, damage.following) == (3, 6)


def test_a_length_that_is_damaged_leads_nowhere() -> None:
    damaged = batch(3)
    struct.pack_into(">i", damaged, 8, 3)
    held, following, damage = parse(batch(0) + damaged, (), 0)
    assert ([each.header.base_offset for each in held], following) == ([0], 3)
    assert damage is not None
    assert (damage.offset, damage.following) == (3, -1)


@pytest.mark.parametrize("magic", [0, 1])
def test_old_message_formats_are_told(magic: int) -> None:
    # offset, size, CRC, magic, attributes, then a key and a value of no bytes
    message = struct.pack(">IbB", 0, magic, 0) + (b"\0" * 8 if magic else b"") + struct.pack(">ii", -1, -1)
    data = bytearray(struct.pack(">qi", 0, len(message)) + message)
    for read in (data, data * 3):
        held, following, damage = parse(bytearray(read), (), 0)
        assert (held, following) == ([], 0)
        assert damage is not None
        assert damage.code == ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT


def test_the_end_of_an_answer_may_be_incomplete() -> None:
    held, following, damage = parse((batch(0) + batch(3))[:-5], (), 0)
    assert (len(held), following, damage) == (1, 3, None)


def test_small_batches_become_one() -> None:
    data = b"".join(bytes(batch(3 * i, compression=3, first=3 * i)) for i in range(5))
    data += bytes(marker(15, 1, commit=True)) + bytes(batch(16, 2, compression=3, first=15))
    data += bytes(batch(18, 400, first=17)) + bytes(batch(418, 1, first=417)) + bytes(batch(419, 1, compression=1))
    held, following, damage = parse(bytearray(data), (), 1)
    assert (following, damage) == (420, None)
    found = list(merged(held, 1))
    for each in found:
        header = read_header(each.data)
        check_batch(each.data, header)
        check_client_batch(header)
        assert each.records == header.record_count == sum(count for _, count in each.spans)
    assert [(each.records, each.spans) for each in found] == [
        (16, ((1, 14), (16, 2))), (400, ((18, 400),)), (1, ((418, 1),)), (1, ((419, 1),))]
    assert [read_header(each.data).compression for each in found] == [3, 0, 0, 1]
    assert [value for each in found for _, value in values(each.data)] == [
        f"v{i}".encode() for i in (*range(1, 418), 0)]


def test_records_by_key() -> None:
    held, _, _ = parse(batch(0, 20) + batch(20, 20, first=20), (), 5)
    found = by_key(((each, 5) for each in held), 1, 3, 200)
    records = {number: [r for out in batches for r in decode_batch(out.data, 0, len(out.data))]
               for number, batches in found.items()}
    assert sum(map(len, records.values())) == 35
    assert all(partition_of(r.key or b"", 3) == number for number, of in records.items() for r in of)
    assert all([r.timestamp for r in of] == sorted(r.timestamp for r in of) for of in records.values())
    assert max(len(batches) for batches in found.values()) > 1
