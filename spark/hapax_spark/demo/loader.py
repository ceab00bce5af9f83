"""The loader: reads the CSV line by line, and writes each line exactly once, even if it is killed repeatedly.

It has no state of its own. When it starts, it takes over the lease of its name, which fences an earlier instance that
may still run, and gets the number of its records in each partition. A line's partition depends only on its number, so
these numbers are those of the lines to skip in each partition.
"""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter

from hapax.client import Admin, Leases, NewTopic, Producer, TopicPartition
from hapax_spark.demo.flights_csv import PARTITIONS, lines

LEASE_MS = 60_000


async def load(bootstrap: str, topic: str, limit: int | None) -> tuple[int, int]:
    """Returns (lines skipped because they were already stored, lines written now)."""
    settings = {"bootstrap.servers": bootstrap}
    async with Admin(settings) as admin:
        await admin.create_topics([NewTopic(topic, PARTITIONS)], exist_ok=True)
    partitions = [TopicPartition(topic, p) for p in range(PARTITIONS)]  # type: ignore[arg-type]
    async with Leases(settings) as leases:
        lease = await leases.take(f"loader-{topic}", partitions, expire_ms=LEASE_MS, holder="flights loader")
        stored = {int(p.partition): count for p, count in lease.progress.items()}
        seen: Counter[int] = Counter()
        written = 0
        renew_at = asyncio.get_running_loop().time() + LEASE_MS / 2000
        writing = {**settings, "linger.ms": 5, "batch.size": 65536}
        async with Producer(writing, start_from=lease.start_from()) as producer:
            for line in lines(limit):
                seen[line.partition] += 1
                if seen[line.partition] <= stored.get(line.partition, 0):
                    continue
                await producer.send(topic, line.text.encode(), b"%d" % line.number, partition=line.partition)
                written += 1
                if written % 1000 == 0 and asyncio.get_running_loop().time() > renew_at:
                    lease = await leases.renew(lease, LEASE_MS)
                    renew_at = asyncio.get_running_loop().time() + LEASE_MS / 2000
            await producer.flush()
        await leases.release(lease)
    return sum(stored.values()), written


def main() -> None:
    parser = argparse.ArgumentParser(description="Load flights.csv into a topic, resuming where it stopped")
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", default="flights")
    parser.add_argument("--limit", type=int, help="load at most this many lines")
    args = parser.parse_args()
    skipped, written = asyncio.run(load(args.bootstrap, args.topic, args.limit))
    print(f"skipped {skipped} lines that were stored before, wrote {written}")


if __name__ == "__main__":
    main()
