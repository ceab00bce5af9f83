"""Counts input, output, lost and doubled records."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import dataclass

from hapax.client import Consumer
from hapax_spark.demo.flights_csv import WindowTotal


@dataclass(frozen=True)
class Count:
    """One topic compared with its input, in records."""

    input: int
    output: int
    lost: int
    duplicated: int


async def _read(bootstrap: str, topic: str) -> list[tuple[bytes | None, bytes | None]]:
    """Every committed (key, value) of a topic, in order within a partition. Waits until open transactions are
    decided."""
    settings = {"bootstrap.servers": bootstrap, "auto.offset.reset": "earliest", "enable.auto.commit": "false"}
    # A commit is answered before its markers are written, so the last stable offset may not include the last
    # transaction.
    async with Consumer({**settings, "isolation.level": "read_uncommitted"}) as consumer:
        partitions = await consumer.partitions(topic)
        ends = await consumer.end_offsets(partitions)
    found: list[tuple[bytes | None, bytes | None]] = []
    async with Consumer({**settings, "isolation.level": "read_committed"}) as consumer:
        consumer.assign(partitions)
        while True:
            records = await consumer.poll(timeout_ms=200, max_records=20_000)
            found += [(record.key, record.value) for record in records]
            if not records and all([await consumer.position(p) >= end for p, end in ends.items()]):
                return found


def count_lines(bootstrap: str, topic: str, inputs: int) -> Count:
    """The key of each record is the line number of its input; the inputs are the lines 1 to `inputs`."""
    keys = Counter(int(key) for key, _ in asyncio.run(_read(bootstrap, topic)) if key is not None)
    lost = sum(1 for number in range(1, inputs + 1) if number not in keys)
    return Count(inputs, keys.total(), lost, keys.total() - len(keys))


def differing_windows(bootstrap: str, topic: str, expected: dict[str, WindowTotal]) -> dict[str, str]:
    """Windows whose last total differs from the expected one: key -> the total that was found."""
    last: dict[str, WindowTotal] = {}
    for key, value in asyncio.run(_read(bootstrap, topic)):
        assert key is not None and value is not None
        total = json.loads(value)
        last[key.decode()] = WindowTotal(total["flights"], total["departed"], total["delay_minutes"])
    return {
        key: f"expected {expected.get(key)}, found {last.get(key)}"
        for key in expected.keys() | last.keys()
        if expected.get(key) != last.get(key)
    }
