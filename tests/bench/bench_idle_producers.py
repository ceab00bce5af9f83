"""A million idle idempotent producers on one broker: the memory of the process, and the cost of a look-up.

Each producer has a full window of five batches, written through the partition's own `decide_append` and `replay`. Run:

    PYTHONPATH=tests python -m bench idle_producers
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from hapax.core.batch import BatchHeader
from hapax.core.partition.machine import APPEND, PartitionMachine

TARGET_MB = 300
BATCHES = 5


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def header(producer_id: int, sequence: int, offset: int) -> BatchHeader:
    return BatchHeader(offset, 100, 0, 2, 0, 0, 0, 0, 0, producer_id, 0, sequence, 1)


def append(partition: PartitionMachine, producer_id: int, sequence: int) -> None:
    batch = header(producer_id, sequence, partition.log_end_offset)
    if partition.decide_append(batch, 0) is not APPEND:
        raise AssertionError(f"producer {producer_id} was refused")
    partition.replay(batch)


def fill(partitions: list[PartitionMachine], producers: int) -> float:
    """Writes one batch of each producer, round after round, so that no row is in the processor's cache. Returns the CPU
    seconds of the last round."""
    started = 0.0
    for sequence in range(BATCHES):
        started = time.process_time()
        for producer_id in range(producers):
            append(partitions[producer_id % len(partitions)], producer_id, sequence)
    return time.process_time() - started


def one_producer(partition: PartitionMachine, producer_id: int, batches: int) -> float:
    """CPU seconds for consecutive batches of one producer, while all others are idle."""
    started = time.process_time()
    for sequence in range(BATCHES, BATCHES + batches):
        append(partition, producer_id, sequence)
    return time.process_time() - started


def longest_pause_of_expiry(partition: PartitionMachine) -> float:
    """All producers expire at once. Returns the longest single call, in CPU seconds, until all of them are removed."""
    partition.decide_expiry(0)
    longest, now = 0.0, partition.expiry_ms
    while partition.producers.count:
        started = time.process_time()
        expiry = partition.decide_expiry(now)
        if expiry is not None:
            batch = BatchHeader(partition.log_end_offset, 60, 0, 2, 0, 0x20, 0, 0, 0, -1, -1, -1, 1)
            partition.replay_control(batch, expiry)
        longest = max(longest, time.process_time() - started)
    return longest


def measure(producers: int, partitions: int) -> dict[str, float]:
    held = [PartitionMachine() for _ in range(partitions)]
    cold = fill(held, producers)
    resident = resident_mb()
    hot = one_producer(held[0], 0, 100_000)
    return {
        "resident_mb": resident,
        "cold_us": cold / producers * 1e6,
        "hot_us": hot / 100_000 * 1e6,
        "pause_ms": longest_pause_of_expiry(held[0]) * 1e3,
    }


def main(producers: int = 1_000_000, partitions: int = 1) -> None:
    """Runs in a separate process, so that the runner's memory is not counted. One partition is the worst case; with
    more partitions, the same producers take less."""
    from bench.figures import record

    command = [sys.executable, __file__, str(producers), str(partitions)]
    measured = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    record("idle producers, whole process", measured["resident_mb"], "MB", at_most=TARGET_MB)
    record("decide and replay a batch", measured["hot_us"], "us", at_most=8)
    record("decide and replay, a million cold producers in turn", measured["cold_us"], "us")
    record("expiry of all, longest pause", measured["pause_ms"], "ms", at_most=10)


if __name__ == "__main__":
    print(json.dumps(measure(*(int(argument) for argument in sys.argv[1:]))))
