"""Producer snapshots: Kafka's part is readable by itself, Hapax's part restores everything."""

from __future__ import annotations

from dataclasses import replace
from struct import Struct

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from hapax.codec.snapshot import DamagedSnapshot, SnapshotEncoder, decode_snapshot, encode_snapshot
from hapax.core.control import Marker, ProducerExpiry, ProducerFence, ShardFence
from hapax.core.errors import Refusal
from hapax.core.partition.machine import Duplicate, PartitionMachine
from scenarios.partition_log import LoggedPartition, data_header, digest

KAFKA_ENTRY = Struct(">qhiqiqiq")


def busy_partition() -> LoggedPartition:
    log = LoggedPartition()
    log.append_control(ShardFence(4, 100))
    for pid in range(40):
        for sequence in range(0, 14, 2):
            log.append(data_header(pid, 3, sequence, 2, timestamp=77))
    log.append_control(ProducerFence(5000, 1, 10))
    log.append_control(ProducerFence(5001, 1, 10_000))
    log.append_control(ProducerExpiry(150, 100))
    log.append(data_header(6000, 0, 0, 3, transactional=True, timestamp=5))
    log.append(data_header(6001, 0, 0, 1, transactional=True, timestamp=6))
    log.sync()
    log.append(data_header(6002, 0, 0, 1, transactional=True))
    log.append_control(Marker(6002, 1, False, 8, serial=12, shard=3))
    log.append_control(Marker(6001, 1, True, 8, serial=13, shard=3))
    log.partition.decide_expiry(12345)
    return log


def test_everything_is_restored() -> None:
    partition = busy_partition().partition
    data = encode_snapshot(partition.snapshot())
    restored = PartitionMachine(
        decode_snapshot(data, partition.log_end_offset),
        aborted=partition.aborted,
        leader_epochs=partition.leader_epochs.entries(),
    )
    assert digest(restored) == digest(partition)
    restored.advance_high_watermark(partition.high_watermark)
    assert restored.last_stable_offset == partition.last_stable_offset
    assert encode_snapshot(restored.snapshot()) == data


def test_kafkas_part_stands_by_itself() -> None:
    """Parsed here as Kafka does, from its schema."""
    partition = busy_partition().partition
    data = encode_snapshot(partition.snapshot())
    version, crc, count = Struct(">hIi").unpack_from(data)
    assert version == 1
    assert crc == crc32c(data[6:])
    entries = {}
    for fields in KAFKA_ENTRY.iter_unpack(data[10 : 10 + count * KAFKA_ENTRY.size]):
        entries[fields[0]] = fields[1:]
    assert set(entries) == {view.producer_id for view in partition.describe_producers()}
    last = partition.describe_producer(39)
    assert last is not None
    assert entries[39] == (3, 13, last.last_offset, 1, 77, -1, -1)
    assert entries[6000] == (0, 2, entries[6000][2], 2, 5, -1, partition.open_transactions()[0].first_offset)
    assert entries[6002][:3] == (1, -1, -1) and entries[6002][5:] == (8, -1)


def test_a_snapshot_of_kafkas_is_read_as_far_as_it_goes() -> None:
    entries = KAFKA_ENTRY.pack(7, 2, 9, 100, 4, 55, 3, -1) + KAFKA_ENTRY.pack(8, 0, 0, 101, 0, 56, 3, 101)
    body = (2).to_bytes(4, "big") + entries
    data = (1).to_bytes(2, "big") + crc32c(body).to_bytes(4, "big") + body
    partition = PartitionMachine(decode_snapshot(data, 102))
    assert partition.log_end_offset == 102
    assert partition.decide_append(data_header(7, 2, 5, 5), 0) == Duplicate(96, 100)
    assert [transaction.first_offset for transaction in partition.open_transactions()] == [101]
    view = partition.describe_producer(7)
    assert view is not None and (view.coordinator_epoch, view.last_timestamp) == (3, 55)


def test_a_snapshot_tells_a_retry_from_another_batch() -> None:
    log = LoggedPartition()
    log.append(data_header(7, 0, 0, 1, transactional=True, values=("a",)))
    log.append(data_header(7, 0, 1, 1, transactional=True, values=("b",)))
    partition = PartitionMachine(decode_snapshot(encode_snapshot(log.partition.snapshot()), 2))
    for sequence, value in ((0, "a"), (1, "b")):
        header = data_header(7, 0, sequence, 1, transactional=True, values=(value,))
        assert partition.decide_append(header, 0) == Duplicate(sequence, sequence)
        with pytest.raises(Refusal, match="holds another batch"):
            partition.decide_append(header._replace(crc=1), 0)


def test_a_snapshot_of_a_former_release_takes_what_fits_for_a_retry() -> None:
    log = LoggedPartition()
    log.append(data_header(7, 0, 0, 1, transactional=True, values=("a",)))
    former = replace(log.partition.snapshot(), open_transactions=[
        replace(transaction, checksums=()) for transaction in log.partition.open_transactions()
    ])
    partition = PartitionMachine(decode_snapshot(encode_snapshot(former), 1))
    assert partition.decide_append(data_header(7, 0, 0, 1, transactional=True, values=("b",)), 0) == Duplicate(0, 0)
    # What is replayed after the snapshot is known again.
    partition.replay(data_header(7, 0, 1, 1, transactional=True, values=("c",))._replace(base_offset=1))
    assert partition.decide_append(data_header(7, 0, 0, 1, transactional=True, values=("b",)), 0) == Duplicate(0, 0)
    with pytest.raises(Refusal, match="holds another batch"):
        partition.decide_append(data_header(7, 0, 1, 1, transactional=True, values=("d",)), 0)


def test_an_empty_partition_has_a_snapshot() -> None:
    data = encode_snapshot(PartitionMachine().snapshot())
    assert digest(PartitionMachine(decode_snapshot(data, 0))) == digest(PartitionMachine())


def test_encoding_goes_in_small_steps() -> None:
    log = LoggedPartition()
    for pid in range(5000):
        log.append(data_header(pid, 0, 0, 1))
    encoder = SnapshotEncoder(log.partition.snapshot())
    log.append(data_header(0, 0, 1, 1))  # the log goes on meanwhile; the snapshot does not
    assert sum(1 for _ in encoder) > 3
    assert encoder.result() == encode_snapshot(decode_snapshot(encoder.result(), 5000))


def test_damage_is_noticed() -> None:
    partition = busy_partition().partition
    data = encode_snapshot(partition.snapshot())
    offset = partition.log_end_offset
    for damaged in (
        b"", data[:9], data[:-1], data + b"x", bytes((data[0], 9)) + data[2:],
        data[:50] + bytes((data[50] ^ 1,)) + data[51:],
    ):
        with pytest.raises(DamagedSnapshot):
            decode_snapshot(damaged, offset)
    with pytest.raises(DamagedSnapshot, match="under the name of"):
        decode_snapshot(data, offset + 1)


@given(st.binary(max_size=300))
def test_random_sections_are_damage_and_nothing_else(tail: bytes) -> None:
    """Also where the CRC is right: a version from the future, counts that lie."""
    body = (0).to_bytes(4, "big") + b"HAPX\0\1" + tail
    data = (1).to_bytes(2, "big") + crc32c(body).to_bytes(4, "big") + body
    with pytest.raises(DamagedSnapshot):
        decode_snapshot(data, 0)


def test_a_snapshot_with_more_of_the_future_is_refused() -> None:
    partition = busy_partition().partition
    data = bytearray(encode_snapshot(replace(partition.snapshot())))
    at = data.index(b"HAPX") + 4
    data[at : at + 2] = (2).to_bytes(2, "big")
    data[2:6] = crc32c(bytes(data[6:])).to_bytes(4, "big")
    with pytest.raises(DamagedSnapshot, match="version 2 of Hapax's part"):
        decode_snapshot(bytes(data), partition.log_end_offset)
