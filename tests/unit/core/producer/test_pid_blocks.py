from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hapax.core.producer.pid_blocks import MAX_BLOCK_SIZE, MAX_PRODUCER_ID, PidBlock, PidBlocks, StaleBlock, next_block
from hapax.core.types import ProducerId


@given(st.lists(st.integers(1, 50), max_size=20), st.lists(st.booleans(), max_size=300))
def test_every_id_is_given_once_and_in_order(sizes: list[int], steps: list[bool]) -> None:
    """`steps`: take an id, or fetch the next block from a counter that others move too."""
    blocks, counter, highest, taken, held = PidBlocks(5), 0, -1, [], 0
    for take in steps:
        if take:
            producer_id = blocks.take()
            assert (producer_id is None) == (held == 0)
            if producer_id is not None:
                taken.append(producer_id)
                held -= 1
        elif sizes:
            block = next_block(counter, sizes.pop())
            blocks.add(block, highest)
            counter, highest, held = block.end + 7, block.end - 1, held + block.size
        assert blocks.remaining == held
        assert blocks.wants_block == (held < 5)
    assert taken == sorted(set(taken))


def test_a_block_that_reaches_back_is_refused_whole() -> None:
    blocks = PidBlocks(1)
    blocks.add(PidBlock(ProducerId(10), 5), highest_seen=9)
    with pytest.raises(StaleBlock, match="10 to 14, but 14 is in use"):
        blocks.add(PidBlock(ProducerId(10), 5), highest_seen=14)
    assert [blocks.take() for _ in range(6)] == [10, 11, 12, 13, 14, None]


@pytest.mark.parametrize(("counter", "size"), [
    (0, 0), (0, -1), (0, MAX_BLOCK_SIZE + 1), (-1, 1), (MAX_PRODUCER_ID, 1), (MAX_PRODUCER_ID - 99, 100)])
def test_no_block_of_a_bad_size_or_past_the_last_id(counter: int, size: int) -> None:
    with pytest.raises(ValueError):
        next_block(counter, size)


def test_the_last_block() -> None:
    assert next_block(MAX_PRODUCER_ID - 100, 100) == PidBlock(ProducerId(MAX_PRODUCER_ID - 100), 100)


def test_ids_of_before_a_restore_are_given_up() -> None:
    """Also those of a block in use, and only those below the floor."""
    blocks = PidBlocks(prefetch_below=1)
    for first in (0, 10, 100):
        blocks.add(PidBlock(ProducerId(first), 10), first - 1)
    assert blocks.take() == 0
    blocks.drop_below(15)
    assert blocks.remaining == 15 and blocks.take() == 15
    blocks.drop_below(1000)
    assert blocks.remaining == 0 and blocks.take() is None
