"""Keys go where Kafka's own client sends them; records without a key move on with each batch."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from hapax.client.partitioner import Sticky, murmur2, partition_of


@pytest.mark.parametrize(
    ("key", "expected"),
    [  # from the unit tests of Kafka's Utils.murmur2
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2(key: bytes, expected: int) -> None:
    assert murmur2(key) == expected & 0xFFFFFFFF
    assert partition_of(key, 5) == (expected & 0x7FFFFFFF) % 5


def test_without_a_key_a_batch_stays_together_and_the_next_goes_elsewhere() -> None:
    sticky = Sticky(random.Random(1))
    available = [0, 1, 2]
    seen = []
    for _ in range(20):
        first = sticky.partition("t", available)
        assert sticky.partition("t", available) == first
        seen.append(first)
        sticky.batch_closed("t", first, available)
    assert all(a != b for a, b in pairwise(seen))
    assert sticky.partition("t", [7]) == 7, "a partition that lost its leader is left"
