"""How long a coordinator takes to load a shard: ten million past transactions of 10,000 ids, compacted.

Compaction leaves one record for each id, and the part of the log that it has not reached yet: in the worst case a whole
active segment. Both are written directly into the broker's folder.
"""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.figures import record
from hapax.codec.batch import patch_prefix
from hapax.codec.internal_records import encode_batch
from hapax.codec.transaction_log import encode_key, encode_value
from hapax.core.hashing import shard_of
from hapax.core.transaction.record import Transaction, TransactionPartition
from hapax.core.transaction.states import State
from hapax.core.types import PartitionIndex, ProducerEpoch, ProducerId, Serial, TimestampMs, TopicId
from hapax.local.cluster import LocalCluster
from hapax.runtime.settings import Settings

IDS = 10_000
TRANSACTIONS = 10_000_000
SHARD = 7
LOADS = 3
PARTITIONS = tuple(
    TransactionPartition("flights", TopicId(bytes(range(16))), PartitionIndex(index)) for index in range(2)
)


def transaction(transactional_id: str, number: int, state: State, serial: int) -> Transaction:
    return Transaction(
        transactional_id=transactional_id, state=state, producer_id=ProducerId(number),
        producer_epoch=ProducerEpoch(serial % 30_000), partitions=() if state is State.COMPLETE_COMMIT else PARTITIONS,
        start_ms=TimestampMs(1_700_000_000_000), last_update_ms=TimestampMs(1_700_000_000_000), serial=Serial(serial),
    )


def ids_of_shard() -> list[str]:
    found = []
    number = 0
    while len(found) < IDS:
        if shard_of(f"producer-{number}", 50) == SHARD:
            found.append(f"producer-{number}")
        number += 1
    return found


def write_log(path: Path, tail_bytes: int) -> tuple[int, int]:
    """Writes the tail after the 10,000 records that compaction left, whose offsets are far apart. Returns the tail's
    (records, bytes)."""
    ids = ids_of_shard()
    offset = 0
    with path.open("wb") as file:
        for number, transactional_id in enumerate(ids):
            offset = TRANSACTIONS // IDS * number * 2
            past = transaction(transactional_id, number, State.COMPLETE_COMMIT, TRANSACTIONS // IDS)
            file.write(batch(past, offset))
        offset = 2 * TRANSACTIONS
        count = size = 0
        while size < tail_bytes:
            number = count // 2 % IDS
            state = State.PREPARE_COMMIT if count % 2 else State.ONGOING
            data = batch(transaction(ids[number], number, state, 2_000 + count // 2 // IDS), offset + count)
            file.write(data)
            size += len(data)
            count += 1
        for number, transactional_id in enumerate(ids):  # at rest: no timer and no marker is needed
            file.write(batch(transaction(transactional_id, number, State.COMPLETE_COMMIT, 9_000), offset + count))
            count += 1
    return count, path.stat().st_size


def batch(past: Transaction, offset: int) -> bytearray:
    data = encode_batch([(encode_key(past.transactional_id), encode_value(past))], 1_700_000_000_000)
    patch_prefix(data, offset, 0)
    return data


def up(folder: str) -> LocalCluster:
    """A cluster whose blocks of producer ids cover all ids in the log, because ids that were never allocated are
    refused."""
    command = [sys.executable, "-m", "hapax.cli.main", "local", "up", "--dir", folder, "--port", "0", "--detach",
               "--set", "log.level=DEBUG", "--set", f"pid.block.size={IDS}"]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    return LocalCluster(folder)


def loads(cluster: LocalCluster) -> list[int]:
    """Duration of each load of the shard so far, in ms, from its fence on."""
    return [int(ms) for ms in re.findall(rf"serving kind=txn shard={SHARD} .*records=[1-9]\d* ms=(\d+)",
                                         cluster.log("coordinator-0"))]


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="hapax-bench-") as folder:
        up(folder).down()
        partition = Path(folder) / "broker-0" / f"__transaction_state-{SHARD}"
        for path in partition.iterdir():
            if path.name[0].isdigit():
                path.unlink()
        (Path(folder) / "broker-0" / ".kafka_cleanshutdown").unlink()
        records, size = write_log(partition / f"{0:020d}.log", Settings().transaction_state_log_segment_bytes)
        cluster = up(folder)
        try:
            for load in range(1, LOADS + 1):
                deadline = time.monotonic() + 60
                while len(loads(cluster)) < load and time.monotonic() < deadline:
                    time.sleep(0.1)
                if load < LOADS:
                    cluster.restart("coordinator-0")
            taken = loads(cluster)
        finally:
            cluster.down()
    record("shard_load", statistics.median(taken) / 1000, "s", at_most=2.0)
    record("shard_load_bytes", size / 1e6, "MB")
    record("shard_load_uncompacted_records", records, "")


if __name__ == "__main__":
    main()
