"""The one counter of producer ids in the metadata store, moved by compare-and-swap."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from hapax.codec.metadata import Keys, PidCounterRecord
from hapax.core.producer.pid_blocks import MAX_PRODUCER_ID, PidBlock, next_block
from hapax.core.types import ProducerId
from hapax.runtime.ports import Compare, MetadataStore, Put, Randomness
from hapax.runtime.rollback_guard import RollbackGuard

_CONTENTION_PAUSE_S = 0.01


class BlockAllocator:
    """Allocates blocks of producer ids. No id is allocated twice, whichever process allocates and however it ends."""

    def __init__(self, store: MetadataStore, keys: Keys, guard: RollbackGuard, random: Randomness) -> None:
        self._store = store
        self._key = keys.pid_next
        self._guard = guard
        self._random = random
        self._one_at_a_time = asyncio.Lock()
        self._known: tuple[int, bytes, PidCounterRecord] | None = None
        """Mod revision, value and record after this process's last step. Saves a read unless another one allocates."""

    async def check(self) -> None:
        """Raises StoreRefused where the counter is behind what this node has seen; MetadataUnavailable."""
        async with self._one_at_a_time:
            _, _, counter = await self._read()
            self._guard.check_producer_counter(counter.next)

    async def allocate(self, size: int) -> PidBlock:
        """Raises MetadataUnavailable (the block, if there was one, is wasted), StoreRefused, ValueError."""
        async with self._one_at_a_time:
            while True:
                read = self._known or await self._read()
                self._known = None
                counter = read[2]
                self._guard.check_producer_counter(counter.next)
                block = next_block(counter.next, size)
                if await self._move(read, replace(counter, next=ProducerId(block.end))):
                    return block

    async def reserve(self, floor: int) -> tuple[int, int]:
        """Every id that is allocated from now on is at least `floor`, and lower ones are refused. Neither goes back.
        Returns the counter and the former floor. Raises MetadataUnavailable, StoreRefused, ValueError."""
        if not 0 <= floor <= MAX_PRODUCER_ID:
            raise ValueError(f"producer ids are from 0 to {MAX_PRODUCER_ID}, not {floor}")
        async with self._one_at_a_time:
            while True:
                self._known = None
                read = await self._read()
                counter = read[2]
                self._guard.check_producer_counter(counter.next)
                if floor <= counter.floor:
                    return counter.next, counter.floor
                raised = PidCounterRecord(ProducerId(max(counter.next, floor)), floor)
                if await self._move(read, raised):
                    return raised.next, counter.floor

    async def _move(self, read: tuple[int, bytes, PidCounterRecord], moved: PidCounterRecord) -> bool:
        """False: another process was faster."""
        revision, value, _ = read
        compares = [Compare(self._key, "mod_revision", revision)]
        if revision:
            # A store that was restored may have reached the same revision with another value.
            compares.append(Compare(self._key, "value", value))
        encoded = moved.encode()
        result = await self._store.txn(compares, [Put(self._key, encoded)])
        if result.succeeded:
            self._guard.note_producer_id(moved.next - 1)
            self._known = (result.revision, encoded, moved)
            return True
        await asyncio.sleep(_CONTENTION_PAUSE_S * self._random.random())
        return False

    async def _read(self) -> tuple[int, bytes, PidCounterRecord]:
        kv = await self._store.get(self._key)
        if kv is None:
            return 0, b"", PidCounterRecord(ProducerId(0))
        return kv.mod_revision, kv.value, PidCounterRecord.decode(kv.value)
