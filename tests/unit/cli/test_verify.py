"""`hapax verify` names what is wrong, and where, for each kind of file; and says nothing of what is right."""

from __future__ import annotations

import asyncio
import json
import shutil
import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c
from typer.testing import CliRunner

from golden.writing import T0, write_data_folder
from hapax.cli.main import application
from hapax.cli.verify import command
from hapax.cli.verify.findings import Findings
from hapax.cli.verify.replicas import Digest, Replica, compare_replicas
from hapax.codec.batch import CRC_START
from hapax.codec.snapshot import decode_snapshot, encode_snapshot
from hapax.core.partition.machine import PartitionMachine
from hapax.log.walk import Batch, walk

FLIGHTS = "flights-0"
FIRST, MIDDLE, LAST = (f"{FLIGHTS}/{offset:020d}" for offset in (0, 28, 54))


@pytest.fixture(scope="session")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("verify") / "broker-0"
    asyncio.run(write_data_folder(folder))
    return folder


@pytest.fixture
def folder(pristine: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pristine, tmp_path / "broker-0"))


def verify(*words: object) -> tuple[int, dict[str, Any]]:
    result = CliRunner().invoke(application(["verify"]), ["verify", "--json", *map(str, words)])
    return result.exit_code, json.loads(result.stdout)


def batches(log: Path) -> list[tuple[int, int]]:
    """(position, size) of each batch."""
    return [(found.position, found.header.size) for found in walk(log) if isinstance(found, Batch)]


def change(path: Path, position: int, data: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[position : position + len(data)] = data
    path.write_bytes(content)


def flip(path: Path, position: int) -> None:
    change(path, position, bytes([path.read_bytes()[position] ^ 1]))


def seal(log: Path, position: int, size: int) -> None:
    """Makes the CRC right again for what was changed."""
    content = log.read_bytes()
    change(log, position + 17, struct.pack(">I", crc32c(content[position + CRC_START : position + size])))


def test_what_was_written_is_right(folder: Path) -> None:
    code, said = verify(folder, "--records")
    assert (code, said["damage"], said["notes"]) == (0, [], [])
    (looked_at,) = said["folders"]
    assert looked_at["partitions"] == 4 and looked_at["segments"] == 6 and looked_at["snapshots"] == 5
    assert looked_at["stopped_cleanly"] and looked_at["cluster_id"] == "golden-cluster"


# --- one fault each -----------------------------------------------------------------------------------------------


def flip_a_bit(folder: Path) -> None:
    flip(folder / f"{MIDDLE}.log", batches(folder / f"{MIDDLE}.log")[1][0] + 100)


def cut_a_batch_out(folder: Path) -> None:
    log = folder / f"{MIDDLE}.log"
    position, size = batches(log)[2]
    content = log.read_bytes()
    log.write_bytes(content[:position] + content[position + size :])


def put_a_batch_in_twice(folder: Path) -> None:
    log = folder / f"{LAST}.log"
    position, size = batches(log)[-1]
    log.write_bytes(log.read_bytes() + log.read_bytes()[position : position + size])


def lose_a_segment(folder: Path) -> None:
    for path in folder.glob(f"{MIDDLE}.*"):
        path.unlink()


def lower_a_leader_epoch(folder: Path) -> None:
    log = folder / f"{LAST}.log"
    change(log, batches(log)[-2][0] + 12, struct.pack(">i", 1))


def repeat_a_sequence(folder: Path) -> None:
    log = folder / f"{FIRST}.log"
    position, size = batches(log)[4]
    change(log, position + 53, struct.pack(">i", 3))
    seal(log, position, size)


def point_into_a_batch(folder: Path) -> None:
    index = folder / f"{MIDDLE}.index"
    (said,) = struct.unpack_from(">I", index.read_bytes(), 12)
    change(index, 12, struct.pack(">I", said + 1))


def point_to_another_offset(folder: Path) -> None:
    index = folder / f"{MIDDLE}.index"
    (said,) = struct.unpack_from(">I", index.read_bytes(), 8)
    change(index, 8, struct.pack(">I", said + 1))


def tear_an_index(folder: Path) -> None:
    index = folder / f"{FIRST}.index"
    index.write_bytes(index.read_bytes()[:-3])


def mistake_a_time(folder: Path) -> None:
    index = folder / f"{MIDDLE}.timeindex"
    (said,) = struct.unpack_from(">q", index.read_bytes())
    change(index, 0, struct.pack(">q", said - 1))


def lose_an_aborted_transaction(folder: Path) -> None:
    (folder / f"{LAST}.txnindex").unlink()


def abort_another_producer(folder: Path) -> None:
    change(folder / f"{FIRST}.txnindex", 2, struct.pack(">q", 2_000))


def abort_from_another_offset(folder: Path) -> None:
    change(folder / f"{FIRST}.txnindex", 10, struct.pack(">q", 3))


def flip_a_snapshots_bit(folder: Path) -> None:
    flip(folder / f"{FLIGHTS}/{73:020d}.snapshot", 60)


def tell_another_sequence(folder: Path) -> None:
    path = folder / f"{FLIGHTS}/{73:020d}.snapshot"
    machine = PartitionMachine(decode_snapshot(path.read_bytes(), 73))
    producer = machine.producers.get(1_000)
    assert producer is not None
    machine.producers.put_batch(38, 2, 40, producer.last_timestamp, 39, 39)
    path.write_bytes(encode_snapshot(machine.snapshot()))


def forget_an_open_transaction(folder: Path) -> None:
    path = folder / f"{FLIGHTS}/{73:020d}.snapshot"
    snapshot = decode_snapshot(path.read_bytes(), 73)
    path.write_bytes(encode_snapshot(replace(snapshot, open_transactions=())))


def snapshot_of_the_future(folder: Path) -> None:
    path = folder / f"{FLIGHTS}/{73:020d}.snapshot"
    snapshot = decode_snapshot(path.read_bytes(), 73)
    later = PartitionMachine(snapshot)
    later.log_end_offset = 77
    path.with_name(f"{77:020d}.snapshot").write_bytes(encode_snapshot(later.snapshot()))


def mistake_a_leader_epochs_start(folder: Path) -> None:
    (folder / f"{FLIGHTS}/leader-epoch-checkpoint").write_text("0\n2\n0 0\n3 44\n")


def damage_the_leader_epochs(folder: Path) -> None:
    (folder / f"{FLIGHTS}/leader-epoch-checkpoint").write_text("0\n3\n0 0\n")


def lose_the_topics_id(folder: Path) -> None:
    (folder / f"{FLIGHTS}/partition.metadata").unlink()


def cut_what_a_clean_stop_left(folder: Path) -> None:
    log = folder / f"{LAST}.log"
    position, _ = batches(log)[-1]
    log.write_bytes(log.read_bytes()[:position])


def lose_a_partition(folder: Path) -> None:
    shutil.rmtree(folder / FLIGHTS)


def damage_a_coordinators_record(folder: Path) -> None:
    log = folder / f"__transaction_state-33/{0:020d}.log"
    position, size = batches(log)[1]
    at = log.read_bytes().index(b"t-ONGOING", position) + len(b"t-ONGOING")
    change(log, at + 2, b"\x00\x63")  # the value's version, behind its length
    seal(log, position, size)


def damage_a_committed_offset(folder: Path) -> None:
    log = folder / f"__consumer_offsets-3/{0:020d}.log"
    position, size = batches(log)[1]
    at = log.read_bytes().index(b"flights", position) + len(b"flights") + 4
    change(log, at + 1, b"\x00\x63")
    seal(log, position, size)


def damage_a_marker(folder: Path) -> None:
    log = folder / f"__consumer_offsets-3/{0:020d}.log"
    position, size = batches(log)[-1]
    change(log, position + 68, b"\x7f\x7f")
    seal(log, position, size)


def commit_what_is_not_there(folder: Path) -> None:
    path = folder / "replication-offset-checkpoint"
    path.write_text(path.read_text().replace("flights 0 73", "flights 0 74"))


def damage_the_high_watermarks(folder: Path) -> None:
    (folder / "replication-offset-checkpoint").write_text("0\n1\nflights\n")


def forget_the_cluster(folder: Path) -> None:
    (folder / "meta.properties").write_text("version=1\nnode.id=0\n")


def damage_what_was_seen(folder: Path) -> None:
    (folder / "metadata-seen.json").write_text("{}")


@pytest.mark.parametrize(
    ("damage", "file", "what", "offset"),
    [
        (flip_a_bit, f"{MIDDLE}.log", "CRC-32C does not match", 31),
        (cut_a_batch_out, f"{MIDDLE}.log", "offsets 34 to 36 are missing", 34),
        (put_a_batch_in_twice, f"{LAST}.log", "a batch with offset 71, but 73 was expected", 71),
        (lose_a_segment, f"{LAST}.log", "offsets 28 to 53 are missing", 28),
        (lower_a_leader_epoch, f"{LAST}.log", "leader epoch 1 after 3", 70),
        (repeat_a_sequence, f"{FIRST}.log", "producer 1000, epoch 0: sequence 3, but 6 was expected (again)", 8),
        (point_into_a_batch, f"{MIDDLE}.index", "where no batch begins", 36),
        (point_to_another_offset, f"{MIDDLE}.index", "that ends with 36", 37),
        (tear_an_index, f"{FIRST}.index", "the last entry is torn", None),
        (mistake_a_time, f"{MIDDLE}.timeindex", "the batch has", 33),
        (lose_an_aborted_transaction, f"{LAST}.txnindex", "does not list producer 2000 aborted 50 to 70", 50),
        (abort_another_producer, f"{FIRST}.txnindex", "producer 2000 has no abort marker at offset 24", 22),
        (abort_from_another_offset, f"{FIRST}.txnindex", "has producer 2001 aborted 3 to 24", 3),
        (flip_a_snapshots_bit, f"{FLIGHTS}/{73:020d}.snapshot", "CRC-32C does not match", 73),
        (tell_another_sequence, f"{FLIGHTS}/{73:020d}.snapshot", "last_sequence 38 instead of 35", 73),
        (forget_an_open_transaction, f"{FLIGHTS}/{73:020d}.snapshot", "open transaction of producer 2002 is in", 73),
        (snapshot_of_the_future, f"{FLIGHTS}/{77:020d}.snapshot", "but the log ends at 73", None),
        (mistake_a_leader_epochs_start, f"{FLIGHTS}/leader-epoch-checkpoint", "epoch 0 at offset 43", 43),
        (damage_the_leader_epochs, f"{FLIGHTS}/leader-epoch-checkpoint", "not a checkpoint of version 0", None),
        (lose_the_topics_id, f"{FLIGHTS}/partition.metadata", "is missing", None),
        (cut_what_a_clean_stop_left, f"{LAST}.log", "at the last clean stop", None),
        (lose_a_partition, FLIGHTS, "is missing; it was there", None),
        (damage_a_coordinators_record, f"__transaction_state-33/{0:020d}.log", "version 99", 1),
        (damage_a_committed_offset, f"__consumer_offsets-3/{0:020d}.log", "version 99", 1),
        (damage_a_marker, f"__consumer_offsets-3/{0:020d}.log", "cannot be decoded", 22),
        (commit_what_is_not_there, FLIGHTS, "ends at 73, but 74 was committed here", 73),
        (damage_the_high_watermarks, "replication-offset-checkpoint", "'flights'", None),
        (forget_the_cluster, "meta.properties", "names no cluster.id", None),
        (damage_what_was_seen, "metadata-seen.json", "is damaged", None),
    ],
)  # fmt: skip
def test_damage_is_named(
    folder: Path, damage: Callable[[Path], None], file: str, what: str, offset: int | None
) -> None:
    damage(folder)
    code, said = verify(folder)
    assert code == 1
    found = [each for each in said["damage"] if each["file"] == str(folder / file) and what in each["what"]]
    assert found, said["damage"]
    assert found[0].get("offset") == offset, found


def test_a_fault_within_a_segment_says_at_which_byte(folder: Path) -> None:
    position, _ = batches(folder / f"{MIDDLE}.log")[1]
    flip_a_bit(folder)
    _, said = verify(folder)
    assert said["damage"][0]["position"] == position


# --- what is no fault ---------------------------------------------------------------------------------------------


def test_a_torn_tail_of_an_unclean_stop_is_noted(folder: Path) -> None:
    (folder / ".kafka_cleanshutdown").unlink()
    log = folder / f"{LAST}.log"
    (folder / f"{FLIGHTS}/{73:020d}.snapshot").unlink()
    (folder / f"{LAST}.timeindex").unlink()
    (folder / "replication-offset-checkpoint").unlink()
    log.write_bytes(log.read_bytes()[:-5])
    code, said = verify(folder)
    assert (code, said["damage"]) == (0, [])
    assert "the next start removes them" in said["notes"][0]["what"]


def test_a_gap_is_compactions_in_compacted_topics_only(folder: Path) -> None:
    for name, number in (("__consumer_offsets-3", 1), (FLIGHTS, 0)):
        log = folder / name / f"{0:020d}.log"
        position, size = batches(log)[number]
        content = log.read_bytes()
        log.write_bytes(content[:position] + content[position + size :])
        for derived in (*log.parent.glob("*.index"), *log.parent.glob("*.snapshot")):
            derived.unlink()
    (folder / ".kafka_cleanshutdown").unlink()
    _, said = verify(folder)
    assert [each["what"] for each in said["damage"]] == ["offsets 0 to 0 are missing"]
    code, said = verify(folder, "--compacted", "flights")
    assert (code, said["damage"]) == (0, [])


# --- replicas -----------------------------------------------------------------------------------------------------


@pytest.fixture
def both(folder: Path) -> tuple[Path, Path]:
    other = Path(shutil.copytree(folder, folder.with_name("broker-1")))
    properties = other / "meta.properties"
    properties.write_text(properties.read_text().replace("node.id=0", "node.id=1"))
    return folder, other


def test_equal_replicas(both: tuple[Path, Path]) -> None:
    code, said = verify(both[0].parent)
    assert (code, said["damage"]) == (0, [])
    assert len(said["replicas"]) == 4 and all(each["equal"] for each in said["replicas"])


def test_a_segment_that_goes_before_it_is_compared_is_no_damage(
    both: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def compare(replicas: Sequence[Replica], findings: Findings) -> Digest:
        for replica in replicas:
            (replica.partition.folder / replica.partition.segments[0].name).unlink(missing_ok=True)
        return compare_replicas(replicas, findings)

    monkeypatch.setattr(command, "compare_replicas", compare)
    code, said = verify(both[0].parent)
    assert (code, said["damage"], said["replicas"]) == (0, [], [])
    assert all("was removed before" in each["what"] for each in said["notes"]) and len(said["notes"]) >= 4


def test_replicas_that_differ(both: tuple[Path, Path]) -> None:
    log = both[1] / f"{MIDDLE}.log"
    position, size = batches(log)[3]
    flip(log, position + 77)
    seal(log, position, size)
    code, said = verify(*both)
    assert code == 1
    (found,) = [each for each in said["damage"] if "differs from" in each["what"]]
    assert (found["file"], found["offset"], found["position"]) == (str(log), 37, position)


def test_replicas_may_differ_above_the_high_watermark_only(both: tuple[Path, Path]) -> None:
    for each in both:
        (each / ".kafka_cleanshutdown").unlink()
        checkpoint = each / "replication-offset-checkpoint"
        checkpoint.write_text(checkpoint.read_text().replace("flights 0 73", "flights 0 71"))
    log = both[1] / f"{LAST}.log"
    position, size = batches(log)[-1]
    change(log, position + 27, struct.pack(">q", T0))  # its base timestamp
    seal(log, position, size)
    (log.parent / "00000000000000000073.snapshot").unlink()  # it knows the checksum of the other's batch
    code, said = verify(*both)
    assert (code, said["damage"]) == (0, []), said["damage"]
    (both[0] / "replication-offset-checkpoint").unlink()
    (both[1] / "replication-offset-checkpoint").unlink()
    assert verify(*both)[0] == 1


def test_a_replica_that_lacks_what_is_committed(both: tuple[Path, Path]) -> None:
    cut_a_batch_out(both[1])
    _, said = verify(*both)
    assert any("lacks a batch" in each["what"] and each["offset"] == 34 for each in said["damage"])


# --- the command --------------------------------------------------------------------------------------------------


def test_for_people(folder: Path) -> None:
    result = CliRunner().invoke(application(["verify"]), ["verify", str(folder)])
    assert result.exit_code == 0 and "nothing is wrong" in result.output
    flip_a_bit(folder)
    result = CliRunner().invoke(application(["verify"]), ["verify", str(folder / FLIGHTS)])
    assert result.exit_code == 1
    assert f"{MIDDLE}.log" in result.output and "CRC-32C does not match" in result.output


def test_nothing_to_verify(tmp_path: Path) -> None:
    result = CliRunner().invoke(application(["verify"]), ["verify", str(tmp_path)])
    assert result.exit_code == 4
