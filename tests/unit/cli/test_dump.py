"""`hapax dump` reads what the broker and the coordinators write."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hapax.cli.dump import entries, files_of
from hapax.cli.main import application
from hapax.codec.batch import patch_prefix
from hapax.codec.control import encode_control
from hapax.codec.internal_records import encode_batch
from hapax.core.control import Marker, ShardFence
from hapax.core.partition.aborted_index import AbortedTransaction
from hapax.log.txn_index import encode_aborted


def partition(tmp_path: Path, name: str, *batches: bytearray) -> Path:
    """A partition's folder with one segment of these batches at consecutive offsets."""
    folder = tmp_path / name
    folder.mkdir()
    data, offset = b"", 0
    for batch in batches:
        patch_prefix(batch, offset, 0)
        offset += struct.unpack_from(">i", batch, 57)[0]
        data += batch
    log = folder / "00000000000000000000.log"
    log.write_bytes(data)
    return log


def test_batches_markers_and_records(tmp_path: Path) -> None:
    log = partition(
        tmp_path,
        "flights-0",
        encode_batch([(b"a", b"1"), (b"b", None)], 1_000, producer_id=7, producer_epoch=2),
        encode_control(Marker(7, 2, commit=True, coordinator_epoch=5, serial=3), 1_001),
    )
    first, marker = entries(log)
    assert (first["offset"], first["last_offset"], first["kind"]) == (0, 1, "transactional")
    assert (first["producer_id"], first["producer_epoch"]) == (7, 2)
    assert (marker["offset"], marker["kind"]) == (2, "control")
    assert marker["content"]["type"] == "Marker"
    assert (marker["content"]["commit"], marker["content"]["serial"]) == (True, 3)
    records = [entry for entry in entries(log, records=True) if entry["kind"] == "record"]
    assert [(each["offset"], each["key"], each["value"]) for each in records] == [(0, "a", "1"), (1, "b", None)]


def test_a_torn_tail_and_a_flipped_bit_are_shown(tmp_path: Path) -> None:
    log = partition(tmp_path, "t-0", encode_batch([(b"a", b"1")], 1), encode_batch([(b"b", b"2")], 2))
    whole = log.read_bytes()
    log.write_bytes(whole[:-3])
    whole_batch, torn = entries(log)
    assert "damaged" not in whole_batch
    assert torn["position"] == len(whole) // 2
    flipped = bytearray(whole)
    flipped[65] ^= 1
    log.write_bytes(flipped)
    damaged, behind_it = entries(log)
    assert "CRC" in damaged["damaged"]
    assert behind_it["offset"] == 1 and "damaged" not in behind_it


def test_an_internal_topic_is_decoded(tmp_path: Path) -> None:
    from hapax.codec.offsets_log import encode_key, encode_value
    from hapax.core.group.offsets import CommittedOffset, OffsetRecord
    from hapax.core.types import LeaderEpoch, Offset, PartitionIndex, TimestampMs, TopicPartition

    offset = CommittedOffset(Offset(42), LeaderEpoch(0), metadata="m", commit_timestamp=TimestampMs(9))
    record = OffsetRecord("readers", TopicPartition("flights", PartitionIndex(1)), offset)
    log = partition(
        tmp_path,
        "__consumer_offsets-3",
        encode_control(ShardFence(4, 100), 1),
        encode_batch([(encode_key(record), encode_value(record))], 2),
    )
    fence, _, group = entries(log)
    assert fence["content"] == {"type": "ShardFence", "shard_epoch": 4, "node_id": 100}
    assert group["content"]["group"] == "readers"
    assert group["content"]["value"]["offset"] == 42


def test_groups_and_their_members_are_decoded(tmp_path: Path) -> None:
    from hapax.codec.offsets_log import encode_key, encode_value
    from hapax.core.group.values import ClassicGroupRecord, CurrentRecord, CurrentValue, TargetRecord
    from hapax.core.types import TopicId

    topic = TopicId(bytes([1]) * 16)
    records = (
        TargetRecord("readers", "m", frozenset({(topic, 2), (topic, 1)})),
        CurrentRecord("readers", "m", CurrentValue(4, 3, 1, ((topic, 1, 2),), ())),
    )
    batch = encode_batch([
        *((encode_key(record), encode_value(record)) for record in records),
        (encode_key(ClassicGroupRecord("gone", None)), None), (b"\0\x0a\0\1g", b"a share group's member"),
    ], 2)
    log = partition(tmp_path, "__consumer_offsets-3", batch)
    _, target, current, gone, other = entries(log)
    assert target["content"] == {
        "type": "TargetRecord", "group": "readers", "member_id": "m", "value": [[topic, 1], [topic, 2]]}
    assert current["content"]["value"] == {
        "type": "CurrentValue", "epoch": 4, "previous_epoch": 3, "state": 1, "assigned": [[topic, 1, 2]],
        "pending_revocation": []}
    assert gone["content"] == {"type": "ClassicGroupRecord", "group": "gone", "value": None}
    assert other["content"] == "000a000167"


def test_a_members_deltas_and_what_removes_them(tmp_path: Path) -> None:
    from hapax.codec.transaction_log import encode_record
    from hapax.core.transaction.record import Delta, Member, Tombstone
    from hapax.core.types import Millis, ProducerEpoch, ProducerId, Serial, TimestampMs

    delta = Delta(
        transactional_id="id", serial=Serial(1), elapsed_ms=Millis(0), limit_ms=Millis(1),
        last_update_ms=TimestampMs(0), member=Member("task", ProducerId(15), ProducerEpoch(0)),
    )  # fmt: skip
    records = [*encode_record(delta), *encode_record(Tombstone("id", (ProducerId(15),)))]
    log = partition(tmp_path, "__transaction_state-3", encode_batch([*records, (b"\x7f\xff", None)], 1))
    _, written, removed, member_removed, unknown = entries(log)
    assert (written["kind"], written["key"], written["content"]["type"]) == ("member", "id", "Delta")
    assert (removed["kind"], removed["key"], removed["content"]["type"]) == ("transaction", "id", "Tombstone")
    assert member_removed == {
        "offset": 2, "kind": "member", "key": "id", "content": {"type": "Tombstone", "producer_id": 15}
    }
    assert (unknown["kind"], unknown["content"]) == ("unknown key", "7fff")


def test_indexes(tmp_path: Path) -> None:
    index = tmp_path / "00000000000000000100.index"
    index.write_bytes(struct.pack(">IIII", 5, 0, 9, 4096) + b"torn")
    assert list(entries(index)) == [{"offset": 105, "position": 0}, {"offset": 109, "position": 4096}]
    times = tmp_path / "00000000000000000100.timeindex"
    times.write_bytes(struct.pack(">qI", 1_700_000_000_000, 7))
    assert list(entries(times)) == [{"timestamp": 1_700_000_000_000, "offset": 107}]
    aborted = tmp_path / "00000000000000000100.txnindex"
    aborted.write_bytes(encode_aborted([AbortedTransaction(7, 100, 110, 111)]))
    assert next(iter(entries(aborted)))["producer_id"] == 7
    assert files_of(tmp_path) == [index, times, aborted]


@pytest.mark.parametrize("as_json", [False, True])
def test_the_command(tmp_path: Path, as_json: bool) -> None:
    log = partition(tmp_path, "flights-0", encode_batch([(b"a", b"1")], 1_000))
    words = ["dump", str(log.parent), "--records", *(["--json"] if as_json else [])]
    result = CliRunner().invoke(application(["dump"]), words)
    assert result.exit_code == 0, result.output
    if as_json:
        lines = [json.loads(line) for line in result.output.splitlines()]
        assert [line["kind"] for line in lines] == ["data", "record"]
    else:
        assert "flights-0" in result.output
    log.write_bytes(log.read_bytes()[:-1])
    assert CliRunner().invoke(application(["dump"]), words).exit_code == 1
