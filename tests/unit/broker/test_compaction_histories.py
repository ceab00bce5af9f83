"""Random histories of one compacted partition: deletes over many runs, runs that are called off, crashes that take
snapshots along, a cleanup policy that changes. A reader always finds what a dictionary would hold."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest

from hapax.codec.control import encode_control
from hapax.core.control import Marker
from hapax.runtime.disk import RealDisk
from unit.broker.broker_fixtures import FOLDER, Harness
from unit.broker.compaction_fixtures import NOW, SETTINGS, begin, image, offsets_write, records, write

DAY = 86_400_000
COMPRESSIONS = (0, 0, 1, 3)


class History:
    def __init__(self, harness: Harness, rng: random.Random) -> None:
        self.harness = harness
        self.rng = rng
        self.merged_bytes = rng.choice([2000, 4000, 100_000])
        self.holds: dict[str, str] = {}
        self.serial = 0
        self._merge()

    def _merge(self) -> None:
        log = self.harness.replica.log
        log.config = replace(log.config, compacted_segment_bytes=self.merged_bytes)

    async def writes(self, step: int) -> None:
        rng = self.rng
        for n in range(rng.randrange(10, 60)):
            if rng.random() < 0.2:
                await self._transaction(f"k{rng.randrange(12)}", f"{step}-{n}", commit=rng.random() < 0.5)
                continue
            keys: dict[str, str | None] = {
                f"k{rng.randrange(12)}": None if rng.random() < 0.4 else f"{step}-{n}"
                for _ in range(rng.randrange(1, 5))
            }
            at = NOW + rng.randrange(-5, 5)
            await write(self.harness, records(keys, at, compression=rng.choice(COMPRESSIONS)))
            for key, value in keys.items():
                if value is None:
                    self.holds.pop(key, None)
                else:
                    self.holds[key] = value

    async def _transaction(self, key: str, value: str, *, commit: bool) -> None:
        self.serial += 1
        await write(self.harness, offsets_write(7, self.serial, key, value))
        await write(self.harness, encode_control(Marker(7, self.serial, commit, 0, self.serial, 0), NOW))
        if commit:
            self.holds[key] = value

    async def compacts(self) -> None:
        keeping, rng = self.harness.replica.maintenance, self.rng
        self.harness.clock.now += rng.choice([0, DAY // 3, DAY, 2 * DAY])
        run = asyncio.ensure_future(keeping.compact())
        if rng.random() < 0.4:
            for _ in range(rng.randrange(1, 120)):
                await asyncio.sleep(0)
            await keeping.end_compaction()
        await run

    async def crashes(self) -> None:
        harness, rng = self.harness, self.rng
        end = harness.replica.log.end_offset
        if harness.replica.maintenance.checkpoint is not None:
            await harness.replica.maintenance.checkpoint
        harness.crash()
        for name in harness.disk.list(FOLDER):
            if name.endswith(".snapshot") and rng.random() < 0.2:
                harness.disk.remove(f"{FOLDER}/{name}")
        harness.settings = replace(SETTINGS, log_cleanup_policy=rng.choice(["compact", "compact", "delete"]))
        await harness.open(internal=True)
        self._merge()
        assert harness.replica.log.end_offset == end


@pytest.mark.parametrize("seed", range(3))
async def test_a_reader_finds_what_a_dictionary_would_hold(
    folder: RealDisk, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    if seed == 2:
        monkeypatch.setattr("hapax.log.compaction._MAX_KEYS", 3)  # runs end in the midst of segments
    history = History(await begin(folder), rng)
    for step in range(14):
        await history.writes(step)
        await history.compacts()
        assert image(history.harness) == history.holds
        if rng.random() < 0.4:
            await history.crashes()
            assert image(history.harness) == history.holds
