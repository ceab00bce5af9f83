"""The one counter of producer ids in the metadata store, moved by compare-and-swap."""

from __future__ import annotations

import asyncio

from hapax.codec.metadata import Keys, PidCounterRecord
from hapax.core.producer.pid_blocks import PidBlock, next_block
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
        self._known: tuple[int, bytes, int] | None = None
        """Mod revision, value and counter after this process's last step. Saves a read unless another one allocates."""

    async def check(self) -> None:
        """Raises StoreRefused where the counter is behind what this node has seen; MetadataUnavailable."""
        async with self._one_at_a_time:
            _, _, counter = await self._read()
            self._guard.check_producer_counter(counter)

    async def allocate(self, size: int) -> PidBlock:
        """Raises MetadataUnavailable (the block, if there was one, is wasted), StoreRefused, ValueError."""
        async with self._one_at_a_time:
            while True:
                revision, value, counter = self._known or await self._read()
                self._known = None
                self._guard.check_producer_counter(counter)
                block = next_block(counter, size)
                moved = PidCounterRecord(ProducerId(block.end)).encode()
                compares = [Compare(self._key, "mod_revision", revision)]
                if revision:
                    # A store that was restored may have reached the same revision with another value.
                    compares.append(Compare(self._key, "value", value))
                result = await self._store.txn(compares, [Put(self._key, moved)])
                if result.succeeded:
                    self._guard.note_producer_id(block.end - 1)
                    self._known = (result.revision, moved, block.end)
                    return block
                await asyncio.sleep(_CONTENTION_PAUSE_S * self._random.random())

    async def _read(self) -> tuple[int, bytes, int]:
        kv = await self._store.get(self._key)
        return (0, b"", 0) if kv is None else (kv.mod_revision, kv.value, PidCounterRecord.decode(kv.value).next)


