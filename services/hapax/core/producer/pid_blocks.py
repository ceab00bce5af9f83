"""Blocks of producer ids: how the one counter moves, and what a node still has in hand.

1. The counter only rises, so ids of different blocks never meet. What a crash or a lost answer leaves of a block is
   wasted, never handed out by anybody else.
2. A node asks for its next block while it still has ids, so that no caller waits at the end of a block.
3. A block that does not begin above everything this node has seen in use comes from a store that went backwards
   (rule 12): it is refused whole.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from hapax.core.types import ProducerId

MAX_PRODUCER_ID: Final = 2**63 - 1
MAX_BLOCK_SIZE: Final = 1_000_000


class PidBlock(NamedTuple):
    first: ProducerId
    size: int

    @property
    def end(self) -> int:
        """The first id after the block."""
        return self.first + self.size


class StaleBlock(Exception):
    """The block holds ids that are in use already."""


def next_block(counter: int, size: int) -> PidBlock:
    """The block that begins at `counter`, the first id that no node holds.

    Raises ValueError for a bad size, or where no ids are left.
    """
    if not 1 <= size <= MAX_BLOCK_SIZE:
        raise ValueError(f"a block has between 1 and {MAX_BLOCK_SIZE} ids, not {size}")
    if counter < 0 or counter > MAX_PRODUCER_ID - size:
        raise ValueError(f"no block of {size} ids from {counter}")
    return PidBlock(ProducerId(counter), size)


class PidBlocks:
    """The ids that one node may still give out. `prefetch_below`: ask for more when fewer ids are left."""

    def __init__(self, prefetch_below: int) -> None:
        self._prefetch_below = prefetch_below
        self._blocks: deque[PidBlock] = deque()
        self._given_of_first = 0
        self.remaining = 0

    @property
    def wants_block(self) -> bool:
        return self.remaining < self._prefetch_below

    def take(self) -> ProducerId | None:
        """The next id, which is never returned again; None where a block must be added first."""
        if not self._blocks:
            return None
        block = self._blocks[0]
        producer_id = ProducerId(block.first + self._given_of_first)
        self._given_of_first += 1
        self.remaining -= 1
        if self._given_of_first == block.size:
            self._blocks.popleft()
            self._given_of_first = 0
        return producer_id

    def drop_below(self, floor: int) -> None:
        """Gives up the ids below `floor`, which are of before a restore."""
        while self._blocks and self._blocks[0].first + self._given_of_first < floor:
            block = self._blocks[0]
            dropped = min(block.size, floor - block.first) - self._given_of_first
            self._given_of_first += dropped
            self.remaining -= dropped
            if self._given_of_first == block.size:
                self._blocks.popleft()
                self._given_of_first = 0

    def add(self, block: PidBlock, highest_seen: int) -> None:
        """`highest_seen`: the highest producer id that this node saw in use, its own blocks included.

        Raises StaleBlock.
        """
        if block.first <= highest_seen:
            raise StaleBlock(
                f"was given producer ids {block.first} to {block.end - 1}, but {highest_seen} is in use already: "
                "the metadata store lost writes or was restored from an old backup"
            )
        self._blocks.append(block)
        self.remaining += block.size
