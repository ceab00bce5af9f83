"""A backup of a cluster that runs, restored into another one and compared record by record."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from conftest import end_clusters, start_cluster
from hapax.backup import manifests
from hapax.backup.cluster import BackedUpCluster
from hapax.backup.point_in_time import Moment, as_of
from hapax.backup.store import open_store
from hapax.client import Admin, Consumer, HapaxError, Producer, StartFrom, TopicPartition
from hapax.client.admin import NewTopic
from hapax.client.leases import Lease, Leases
from hapax.client.tokens import CommitToken
from hapax.codec.records import encode_records
from hapax.core.errors import ErrorCode
from hapax.core.types import PartitionIndex
from hapax.local.cluster import LocalCluster
from hapax.wire import messages
from integration.backup_world import (
    INPUT,
    PLAIN,
    SUMS,
    Log,
    Writers,
    contents,
    hapax,
    judge,
    judge_records,
    offsets_of,
    read,
)

ALL = (INPUT, "left", "right", SUMS, PLAIN)
FIRST = TopicPartition(PLAIN, PartitionIndex(0))


async def backup(place: str, cluster: LocalCluster, *words: str) -> dict[str, Any]:
    done = await asyncio.to_thread(hapax, "backup", place, "--bootstrap", cluster.bootstrap, "--json", *words)
    return json.loads(done.stdout)  # type: ignore[no-any-return]


@dataclass
class World:
    source: LocalCluster
    target: LocalCluster
    place: Path
    backups: list[dict[str, Any]]
    surely: dict[str, int]
    plain: list[bytes]
    written: Log
    lease: Lease
    late: StartFrom
    """A producer of the source that goes on after the backup."""
    transactional: tuple[int, int]
    """Producer id and epoch of `feeder-0` in the source."""
    restored: dict[str, Any]


async def make(source: LocalCluster, target: LocalCluster, place: Path) -> World:
    writers = Writers(source.bootstrap)
    await writers.create()
    lease, late = await write_otherwise(source.bootstrap)
    await delete_within_a_batch(source.bootstrap)
    await write_large(source.bootstrap)
    writers.start()
    await writers.until(20)
    backups = [await backup(str(place), source)]
    await writers.until(50)
    surely, plain = dict(writers.committed), list(writers.sent)
    backups.append(await backup(str(place), source))
    await writers.until(len(writers.committed) + 10)
    await writers.stop()
    async with Admin({"bootstrap.servers": source.bootstrap}) as admin:
        (described,) = await admin.describe_transactions(["feeder-0"])
    done = await asyncio.to_thread(hapax, "restore", str(place), "--to", target.bootstrap, "--json")
    return World(
        source, target, place, backups, surely, plain, await read(source.bootstrap, ALL), lease, late,
        (described.producer_id, described.producer_epoch), json.loads(done.stdout))


async def delete_within_a_batch(bootstrap: str) -> None:
    """Deletes two records of a batch of five."""
    async with BackedUpCluster({"bootstrap.servers": bootstrap}) as cluster:
        await cluster.create_topics([NewTopic("deleted", 1)])
        async with Producer({"bootstrap.servers": bootstrap}) as producer:
            now = time.time_ns() // 1_000_000  # older ones would expire
            await producer.send_batch("deleted", 0, encode_records([(now, None, b"%d" % n, ()) for n in range(5)]), 5)
            await producer.flush()
        await cluster.delete_records(TopicPartition("deleted", PartitionIndex(0)), 2)


async def write_large(bootstrap: str) -> None:
    """Two records that are larger than a call of the restore may be."""
    async with Admin({"bootstrap.servers": bootstrap}) as admin:
        await admin.create_topics([NewTopic("large", 1, -1, {"max.message.bytes": str(8 << 20)})])
    async with Producer({"bootstrap.servers": bootstrap, "max.request.size": 8 << 20}) as producer:
        for number in range(2):
            data = random.Random(number).randbytes(7 << 20)
            batch = encode_records([(time.time_ns() // 1_000_000, None, data, ())])
            await producer.send_batch("large", 0, batch, 1)
        await producer.flush()


async def write_otherwise(bootstrap: str) -> tuple[Lease, StartFrom]:
    """With a lease, with a commit token, and with a producer id of its own."""
    async with Leases({"bootstrap.servers": bootstrap}) as leases:
        lease = await leases.take("loader", [FIRST], expire_ms=600_000, holder="source")
    start = StartFrom(lease.producer_id, lease.generation, lease.next_sequences, leased=True)
    async with Producer({"bootstrap.servers": bootstrap}, start_from=start) as producer:
        for number in range(7):
            await producer.send_and_wait(PLAIN, b"loaded %d" % number, partition=0)
    async with Producer({"bootstrap.servers": bootstrap, "transactional.id": "tokens"}) as producer:
        producer.begin()
        await producer.send("left", json.dumps({"txn": "tokens-1", "of": 1, "place": 0}).encode(), partition=0)
        await producer.commit(CommitToken("query", 5, records=1, allow_unknown_history=True))
    async with Producer({"bootstrap.servers": bootstrap}) as producer:
        report = await producer.send_and_wait(PLAIN, b"before", partition=0)
    return lease, StartFrom(report.producer_id, report.generation, {FIRST: report.sequence + 1})


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("backup")
    with ExitStack() as ending:
        clusters: list[LocalCluster] = []
        ending.callback(end_clusters, clusters)
        for name in ("source", "target"):
            clusters.append(start_cluster(folder / name))
        yield asyncio.run(make(clusters[0], clusters[1], folder / "backups"))


async def test_a_restored_backup_is_what_was_committed_at_its_moment(world: World) -> None:
    restored = await read(world.target.bootstrap, ALL)
    found = await judge(world.written, restored, world.target.bootstrap, surely=world.surely, plain=world.plain)
    assert found >= 50
    assert world.backups[1]["base"] == world.backups[0]["backup"] and world.restored["groups"] == 1
    assert 0 < world.backups[1]["uploaded_bytes"] < sum(
        path.stat().st_size for path in (world.place / "objects").rglob("*") if path.is_file())


async def test_records_that_were_deleted_stay_so(world: World) -> None:
    found = (await read(world.target.bootstrap, ["deleted"]))["deleted", 0]
    assert {offset: record[1] for offset, record in found.items()} == {2: b"2", 3: b"3", 4: b"4"}


async def test_records_of_several_megabytes_are_restored(world: World) -> None:
    (found,) = (await read(world.target.bootstrap, ["large"])).values()
    assert [record[1] for record in found.values()] == [random.Random(n).randbytes(7 << 20) for n in range(2)]


async def test_topics_are_opened_with_their_settings(world: World) -> None:
    async with Admin({"bootstrap.servers": world.target.bootstrap}) as admin:
        config = await admin.topic_config(PLAIN)
        assert config["retention.ms"].value == "-1" and config["retention.ms"].source == "topic"
        assert config["restoring"].source != "topic"


async def test_a_producer_of_the_former_cluster_is_refused(world: World) -> None:
    """A producer that continues its sequence, one that restarts at sequence 0 under its old id, a lease's former
    holder."""
    before = await read(world.target.bootstrap, [PLAIN])
    restarted = StartFrom(world.late.producer_id, world.late.generation)
    leased = StartFrom(world.lease.producer_id, world.lease.generation, {FIRST: 7}, leased=True)
    for start in (world.late, restarted, leased):
        async with Producer({"bootstrap.servers": world.target.bootstrap}, start_from=start) as producer:
            with pytest.raises(HapaxError) as refused:
                await producer.send_and_wait(PLAIN, b"of a zombie", partition=0)
        assert refused.value.code in (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED), refused.value
    after = await read(world.target.bootstrap, [PLAIN])
    assert after == before


async def test_a_former_transaction_cannot_be_decided(world: World) -> None:
    producer_id, epoch = world.transactional
    async with Admin({"bootstrap.servers": world.target.bootstrap}) as admin:
        peer = await admin._cluster.coordinator_peer("transaction", "feeder-0")
        answer = await peer.call(messages.EndTxnRequest(
            transactional_id="feeder-0", producer_id=producer_id, producer_epoch=epoch, committed=True))
    assert answer.error_code in (ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.PRODUCER_FENCED,
                                 ErrorCode.INVALID_PRODUCER_EPOCH)


async def test_new_producer_ids_are_above_all_former_ones(world: World) -> None:
    floor = 1 << 32
    async with Producer({"bootstrap.servers": world.target.bootstrap}) as producer:
        report = await producer.send_and_wait(PLAIN, b"new", partition=1)
    assert report.producer_id >= floor
    async with Producer({"bootstrap.servers": world.target.bootstrap, "transactional.id": "feeder-1"}) as producer:
        producer.begin()
        report = await producer.send_and_wait("right", b"new", partition=1)
        await producer.commit()
    assert report.producer_id >= floor
    ended = max(offset for offset in world.written["right", 1])
    assert report.offset <= ended + 1, "offsets go on where the backup ends"


async def test_a_lease_keeps_its_progress_and_gets_another_id(world: World) -> None:
    async with Leases({"bootstrap.servers": world.target.bootstrap}) as leases:
        assert (await leases.progress("loader"))[FIRST].records == 7
        taken = await leases.take("loader", [FIRST])
    assert taken.producer_id != world.lease.producer_id
    assert taken.progress[FIRST] == 7


async def test_a_commit_token_is_known_in_the_restored_cluster(world: World) -> None:
    async with Producer({"bootstrap.servers": world.target.bootstrap, "transactional.id": "tokens"}) as producer:
        producer.begin()
        await producer.send("left", b"again", partition=0)
        assert (await producer.commit(CommitToken("query", 5, records=1))).already


async def test_consumers_continue_where_they_were(world: World) -> None:
    settings = {"bootstrap.servers": world.target.bootstrap, "group.id": "summing", "auto.offset.reset": "earliest"}
    async with Consumer(settings) as consumer:
        consumer.assign([(INPUT, 0)])
        committed = await offsets_of(world.target.bootstrap, "summing")
        assert await consumer.position((INPUT, 0)) == committed[TopicPartition(INPUT, PartitionIndex(0))] > 0


def test_both_clusters_have_an_event(world: World) -> None:
    for cluster, kind, backup in (
        (world.source, "backup_taken", world.backups[1]["backup"]),
        (world.target, "backup_restored", world.restored["backup"]),
    ):
        told = hapax("events", "tail", "--event", kind, "--json", "--bootstrap", cluster.bootstrap).stdout
        assert backup in [json.loads(line)["backup"] for line in told.splitlines()]


def test_a_cluster_that_is_not_empty_is_refused(world: World) -> None:
    done = hapax("restore", str(world.place), "--to", world.target.bootstrap, ok=False)
    assert "the cluster is not empty" in done.stderr


def test_backups_of_two_clusters_are_kept_apart(world: World) -> None:
    done = hapax("backup", str(world.place), "--bootstrap", world.target.bootstrap, ok=False)
    assert "give each cluster a place of its own" in done.stderr


def test_an_intact_backup_verifies(world: World) -> None:
    done = json.loads(hapax("verify", str(world.place), "--json").stdout)
    assert done["ok"] and len(done["backups"]) == 2


@pytest.mark.parametrize("damage", ["flipped", "missing", "cut", "manifest", "newer", "another"])
def test_damage_is_named_and_nothing_is_restored(world: World, tmp_path: Path, damage: str) -> None:
    place = tmp_path / "copy"
    shutil.copytree(world.place, place)
    manifest = sorted((place / "manifests").iterdir())[-1]
    files = [path for path in (place / "objects").rglob("*") if path.is_file()]
    stored = max(files, key=lambda path: path.stat().st_size)
    data = bytearray(stored.read_bytes())
    named, says = stored, "SHA-256"
    if damage == "flipped":
        data[len(data) // 2] ^= 1
        stored.write_bytes(data)
    elif damage == "missing":
        stored.unlink()
        says = "missing"
    elif damage == "cut":
        stored.write_bytes(data[:-1])
        says = "bytes"
    elif damage == "manifest":
        manifest.write_bytes(manifest.read_bytes().replace(b'"topics"', b'"topicz"', 1))
        named = manifest
    elif damage == "newer":
        manifest.write_bytes(manifest.read_bytes().replace(b'"format":1', b'"format":2', 1))
        named, says = manifest, "format 2"
    else:
        other = sorted((place / "manifests").iterdir())[0]
        manifest.write_bytes(other.read_bytes())
        named, says = manifest, "is the manifest of backup"
    verified = hapax("verify", str(place), "--json", ok=False)
    faults = json.loads(verified.stdout)["damage"]
    assert any(named.name in fault and says in fault for fault in faults), faults
    refused = hapax("restore", str(place), "--to", world.target.bootstrap, ok=False)
    assert named.name in refused.stderr and says in refused.stderr


def test_every_moment_of_a_backup_is_consistent(world: World) -> None:
    """Without a cluster: what a restore would write, at many times and offsets."""
    store = open_store(str(world.place))
    manifest = manifests.read(store, world.backups[1]["backup"])
    first = manifests.read(store, world.backups[0]["backup"]).taken_ms
    chance = random.Random(3)
    moments = [Moment(at_ms=chance.randrange(first, manifest.taken_ms)) for _ in range(10)]
    left = manifest.part(TopicPartition("left", PartitionIndex(1)))
    read_from = manifest.part(TopicPartition(INPUT, PartitionIndex(2)))
    assert left is not None and read_from is not None
    for part in (left, read_from):
        moments += [Moment(offsets={part.name: chance.randrange(part.end * 3 // 4, part.end)}) for _ in range(3)]
    numbers = set()
    for moment in moments:
        earlier = as_of(store, manifest, moment)
        restored, offsets = contents(store, earlier)
        known = {name: records for name, records in restored.items() if name[0] in ALL}
        numbers.add(judge_records(world.written, known, offsets))
        for name, offset in (moment.offsets or {}).items():
            assert all(each < offset for each in restored[name])
    assert len(numbers) > 1


def test_a_moment_that_the_backups_do_not_have_is_refused(world: World) -> None:
    for words, says in (
        (("--at", "1000"), "the history of transactions and groups begins at"),
        (("--at", "2100-01-01T00:00:00Z"), "choose a later backup"),
        (("--offsets", "left:1=99999999"), "choose one of them instead"),
        (("--offsets", "absent:0=1"), "has no partition absent:0"),
    ):
        done = hapax("restore", str(world.place), "--to", world.target.bootstrap, *words, ok=False)
        assert says in done.stderr
