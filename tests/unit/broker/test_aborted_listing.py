"""Entries of aborted transactions that are wrong and still plausible: the segments' markers put them right."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from hapax.codec.batch import iterate_batches
from hapax.codec.control import decode_control
from hapax.codec.records import decode_batch, encode_records
from hapax.core.batch import CONTROL, TRANSACTIONAL
from hapax.core.control import Marker
from hapax.core.partition.aborted_index import AbortedTransaction
from hapax.log.layout import LOG, TXN_INDEX
from hapax.log.segment import Segment
from hapax.log.soundness import NOWHERE, Damage
from hapax.log.txn_index import encode_aborted
from hapax.runtime.disk import RealDisk
from hapax.runtime.settings import Settings
from unit.broker.broker_fixtures import FOLDER, Harness

NOW = 1_700_000_000_000
SETTINGS = Settings(log_segment_bytes=1500, durability="page-cache")
COMPACT = Settings(
    log_cleanup_policy="compact", log_segment_bytes=1500, log_snapshot_interval_bytes=5000, durability="page-cache")


class World(Harness):
    """Transactions of some producers across several segments, as a broker finds them after a clean stop."""

    def __init__(self, disk: RealDisk, settings: Settings) -> None:
        super().__init__(disk, settings)
        self.told: list[str] = []
        object.__setattr__(self.context, "mislisted", self._mislisted)

    def _mislisted(self, replica: object, segment: Segment, count: int) -> None:
        self.told.append(segment.path(TXN_INDEX))

    async def written(self, rng: random.Random, steps: int = 160) -> None:
        await self.open(internal=True)
        began: dict[int, int] = {}
        for step in range(steps):
            producer_id = rng.randrange(4)
            if rng.random() < 0.7:
                began.setdefault(producer_id, step)
                result = await self.calls.result(self.produce_internal(encode_records(
                    [(NOW, b"k%d" % rng.randrange(30), b"v%d" % step, ())], transactional=True,
                    producer_id=producer_id, producer_epoch=0, base_sequence=-1,
                )))
                assert result.error == 0
            else:
                began.pop(producer_id, None)
                self.replica.append_control(Marker(producer_id, 0, rng.random() < 0.5, 0, step, 0, -1, 0))
            if self.replica.maintenance.checkpoint is not None:
                await self.replica.maintenance.checkpoint

    def write_entries(self, segment: Segment, entries: list[AbortedTransaction]) -> None:
        (Path(self.disk.root) / FOLDER / segment.path(TXN_INDEX)).write_bytes(encode_aborted(entries))

    def entries_in_files(self) -> list[bytes]:
        paths = [Path(self.disk.root) / FOLDER / segment.path(TXN_INDEX) for segment in self.replica.log.segments]
        return [path.read_bytes() if path.exists() else b"" for path in paths]

    async def survey(self) -> None:
        for segment in self.replica.log.segments:
            await self.replica.log.surveys.run(segment)
        while self.replica.maintenance.checkpoint is not None:
            await self.replica.maintenance.checkpoint

    async def restarted(self) -> None:
        await self.replica.close()
        await self.open(clean=True, internal=True)

    def seen(self) -> list[bytes]:
        """The values that a read_committed reader is given, one batch at a time."""
        machine, found = self.replica.machine, []
        data = self.log_bytes()
        for position, header in iterate_batches(data):
            if header.attributes & CONTROL or header.base_offset >= machine.last_stable_offset:
                continue
            aborted = machine.aborted_transactions(header.base_offset, header.next_offset)
            if not any(
                entry.producer_id == header.producer_id and entry.first_offset <= header.base_offset
                for entry in aborted
            ):
                found += [record.value for record in decode_batch(data, position, header.size)]
        return found

    def committed(self) -> list[bytes]:
        """The same, from the markers alone."""
        return [value for _, value in self.keyed()]

    def latest(self) -> dict[bytes, bytes]:
        """Of each key the last committed value."""
        return dict(self.keyed())

    def keyed(self) -> list[tuple[bytes, bytes]]:
        data, machine = self.log_bytes(), self.replica.machine
        pending: dict[int, list[tuple[int, bytes, bytes]]] = {}
        found: list[tuple[int, bytes, bytes]] = []
        for position, header in iterate_batches(data):
            if header.attributes & CONTROL:
                control = decode_control(data, header, position)
                mine = pending.pop(header.producer_id, [])
                found += mine if isinstance(control, Marker) and control.commit else []
            elif header.attributes & TRANSACTIONAL:
                pending.setdefault(header.producer_id, []).extend(
                    (header.base_offset, record.key, record.value)
                    for record in decode_batch(data, position, header.size))
        return [(key, value) for offset, key, value in sorted(found) if offset < machine.last_stable_offset]


def plausible(entries: list[AbortedTransaction], base: int, end: int, rng: random.Random) -> list[AbortedTransaction]:
    """One of them is another one, or gone, or there is one more."""
    wrong, kind, at = list(entries), rng.choice(["producer", "first", "marker", "stable", "gone", "more"]), 0
    if kind == "more" or not entries:
        taken = {entry.last_offset for entry in entries}
        last = rng.choice([offset for offset in range(max(base, 1), end) if offset not in taken])
        wrong.append(AbortedTransaction(rng.randrange(4), rng.randrange(last), last, last + 1))
        return sorted(wrong, key=lambda entry: entry.last_offset)
    at = rng.randrange(len(entries))
    entry = entries[at]
    if kind == "producer":
        wrong[at] = entry._replace(producer_id=(entry.producer_id + rng.randrange(1, 4)) % 4)
    elif kind == "first":
        wrong[at] = entry._replace(first_offset=rng.randrange(entry.last_offset))
    elif kind == "stable":
        wrong[at] = entry._replace(last_stable_offset=rng.randrange(entry.last_offset + 2))
    elif kind == "marker":
        low = entries[at - 1].last_offset + 1 if at else base
        high = entries[at + 1].last_offset if at + 1 < len(entries) else end
        last = rng.randrange(max(low, entry.first_offset + 1), high)
        wrong[at] = entry._replace(last_offset=last, last_stable_offset=min(entry.last_stable_offset, last + 1))
    else:
        del wrong[at]
    return wrong


@pytest.mark.parametrize("seed", range(60))
async def test_a_wrong_but_plausible_entry_is_put_right(folder: RealDisk, seed: int) -> None:
    rng = random.Random(seed)
    world = World(folder, SETTINGS)
    await world.written(rng)
    await world.survey()
    entries = list(world.replica.machine.aborted)
    assert world.seen() == world.committed()
    await world.restarted()
    good = world.entries_in_files()
    await world.survey()
    assert (world.told, world.entries_in_files()) == ([], good), "nothing was wrong"
    assert all(segment.markers_checked for segment in world.replica.log.segments)
    await world.replica.close()
    segments = world.replica.log.segments
    number = rng.randrange(len(segments) - 1)
    base, end = segments[number].base_offset, segments[number + 1].base_offset
    mine = [entry for entry in entries if base <= entry.last_offset < end]
    wrong = plausible(mine, base, end, rng)
    world.write_entries(segments[number], wrong)
    await world.open(clean=True, internal=True)
    assert not world.told
    await world.survey()
    assert world.seen() == world.committed()
    if any(a[:3] != b[:3] for a, b in zip(mine, wrong, strict=False)) or len(mine) != len(wrong):
        assert world.told, (mine, wrong)
    assert [entry[:3] for entry in world.replica.machine.aborted] == [entry[:3] for entry in entries]
    after, told = list(world.replica.machine.aborted), len(world.told)
    await world.restarted()
    assert list(world.replica.machine.aborted) == after, "the files were written, too"
    await world.survey()
    assert len(world.told) == told


@pytest.mark.parametrize("seed", range(12))
async def test_compaction_removes_nothing_that_only_a_wrong_entry_takes_for_aborted(
    folder: RealDisk, seed: int
) -> None:
    rng = random.Random(seed)
    world = World(folder, COMPACT)
    await world.written(rng)
    before = world.latest()
    entries = list(world.replica.machine.aborted)
    await world.replica.close()
    marked = rng.choice(entries)
    segments = world.replica.log.segments
    number = max(i for i, segment in enumerate(segments) if segment.base_offset <= marked.last_offset)
    base = segments[number].base_offset
    end = segments[number + 1].base_offset if number + 1 < len(segments) else NOWHERE
    mine = [entry for entry in entries if base <= entry.last_offset < end]
    longer = marked._replace(first_offset=0, last_stable_offset=0)
    world.write_entries(segments[number], [longer if entry == marked else entry for entry in mine])
    await world.open(clean=True, internal=True)
    done = await world.replica.maintenance.compact()
    assert done is not None and done.bytes_after < done.bytes_before
    left = world.committed()
    assert world.latest() == before
    told = len(world.told)
    await world.restarted()
    await world.survey()
    assert world.seen() == world.committed() == left
    assert len(world.told) == told, "what compaction removed refutes nothing"


async def test_a_damaged_segment_is_told_of_once_however_often_compaction_comes_by(folder: RealDisk) -> None:
    world = World(folder, COMPACT)
    await world.written(random.Random(3))
    await world.replica.close()
    path = Path(world.disk.root) / FOLDER / world.replica.log.segments[1].path(LOG)
    data = bytearray(path.read_bytes())
    data[70] ^= 1
    path.write_bytes(data)
    found: list[Damage] = []
    object.__setattr__(world.context, "damaged", lambda replica, damage: found.append(damage))
    await world.open(clean=True, internal=True)
    for _ in range(3):
        assert await world.replica.maintenance.compact() is None
    assert len(found) == 1


async def test_a_segment_that_has_left_the_log_can_be_checked_to_its_end(folder: RealDisk) -> None:
    world = World(folder, SETTINGS)
    await world.written(random.Random(4))
    await world.restarted()
    segment = world.replica.log.segments[0]
    segment.hold()
    world.replica.log.drop_first(1)
    await world.replica.log.surveys.run(segment)
    segment.release()
    await world.survey()
    assert world.seen() == world.committed()
