"""One multi-writer transaction of a large micro-batch: 1,000 tasks that each write to 200 partitions, with fsync.

Measures the bytes that the coordinator's log takes for it, the coordinator's CPU time, and how long the commit takes:
until it is answered, and until a read_committed reader sees every record. HAPAX_BENCH_TASKS=200x40 measures less.
"""

from __future__ import annotations

import asyncio
import os
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench.bench_transactions import cpu_seconds, local_cluster
from bench.figures import record
from bench.raw_client import Connection, frame, make_topic
from hapax.client import CommitToken, MultiWriter, Winner
from hapax.client.multiwriter import Joined
from hapax.codec.records import encode_records
from hapax.local.cluster import LocalCluster
from hapax.wire.messages import FetchRequest, FetchResponse, ProduceResponse

TASKS, PARTITIONS = (int(part) for part in os.environ.get("HAPAX_BENCH_TASKS", "1000x200").split("x"))
TOPIC = "bench-tasks"
PRODUCE_VERSION = 12
"""The first version with which the leader registers a partition by itself."""
BUSY = frozenset({19, 51})
"""NOT_ENOUGH_REPLICAS, CONCURRENT_TRANSACTIONS: the coordinator did not answer in time, and a client retries."""
CONNECTIONS = 4
AT_ONCE = 50
PATIENCE_MS = 600_000
READ_COMMITTED = 1


def bytes_of_log(folder: Path) -> int:
    """Size of the transaction coordinators' log, of all shards. Its segments are so large that none is compacted."""
    return sum(path.stat().st_size for path in folder.glob("broker-0/__transaction_state-*/*.log"))


async def join_all(cluster: LocalCluster, token: CommitToken) -> list[Joined]:
    limit = asyncio.Semaphore(AT_ONCE)
    async with MultiWriter(settings_of(cluster), "bench-tasks") as transactions:

        async def one(number: int) -> Joined:
            async with limit:
                return await transactions.join(token, f"task-{number}-attempt-0-0123456789abcdef")

        first = await one(0)
        return [first, *await asyncio.gather(*(one(number) for number in range(1, TASKS)))]


def settings_of(cluster: LocalCluster) -> dict[str, Any]:
    return {
        "bootstrap.servers": cluster.bootstrap, "request.timeout.ms": PATIENCE_MS, "max.block.ms": PATIENCE_MS,
        "transaction.timeout.ms": PATIENCE_MS,
    }


def produce_frame(joined: Joined) -> bytes:
    """A batch of one record for every partition. The leader asks about all partitions in one call."""
    batch = bytes(encode_records(
        [(1_700_000_000_000, None, b"x" * 100, [])], producer_id=joined.producer_id, producer_epoch=joined.epoch,
        base_sequence=0, transactional=True,
    ))
    name, transactional_id = TOPIC.encode(), joined.transactional_id.encode()
    body = [
        bytes((len(transactional_id) + 1,)), transactional_id, struct.pack(">hi", -1, PATIENCE_MS), b"\2",
        bytes((len(name) + 1,)), name, varint(PARTITIONS + 1),
    ]
    for partition in range(PARTITIONS):
        body += (struct.pack(">i", partition), varint(len(batch) + 1), batch, b"\0")
    return frame(0, PRODUCE_VERSION, b"".join([*body, b"\0\0"]), flexible=True)


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out) + bytes((value,))


def write_all(bootstrap: str, members: list[Joined]) -> None:
    def write(share: list[Joined]) -> None:
        connection = Connection(bootstrap)
        for joined in share:
            codes = set(BUSY)
            while not BUSY.isdisjoint(codes):
                connection.socket.sendall(produce_frame(joined))
                answer = ProduceResponse.decode(memoryview(connection.read_frame())[5:], version=PRODUCE_VERSION)
                codes = {p.error_code for topic in answer.responses for p in topic.partition_responses}
            assert codes == {0}, codes

    with ThreadPoolExecutor(CONNECTIONS) as pool:
        list(pool.map(write, (members[number::CONNECTIONS] for number in range(CONNECTIONS))))


async def commit(cluster: LocalCluster, token: CommitToken, winners: list[Winner]) -> float:
    """Seconds from the commit call to its answer."""
    async with MultiWriter(settings_of(cluster), "bench-tasks") as transactions:
        await transactions.committed_token(token.scope)  # connects before the clock starts
        began = time.perf_counter()
        committed = await transactions.commit(token, winners)
        assert not committed.already
        return time.perf_counter() - began


def wait_until_readable(bootstrap: str) -> None:
    """Waits until the last stable offset of each partition is behind every record and marker: a broker holds a fetch
    from that offset until the last stable offset moves."""
    connection = Connection(bootstrap)
    Topic, stable = FetchRequest.FetchTopic, [0] * PARTITIONS
    for partition in range(PARTITIONS):
        while stable[partition] < 2 * TASKS:
            asked = Topic.FetchPartition(
                partition=partition, current_leader_epoch=-1, fetch_offset=stable[partition], last_fetched_epoch=-1,
                log_start_offset=-1, partition_max_bytes=1)  # fmt: skip
            request = FetchRequest(
                replica_id=-1, max_wait_ms=30_000, min_bytes=1, max_bytes=1, isolation_level=READ_COMMITTED,
                session_id=0, session_epoch=-1, topics=[Topic(topic=TOPIC, partitions=[asked])],
                forgotten_topics_data=[], rack_id="")  # fmt: skip
            found = connection.call(request, FetchResponse, 12).responses[0].partitions[0]
            assert found.error_code == 0, found
            stable[partition] = found.last_stable_offset


def main() -> None:
    with local_cluster(f"transaction.state.log.segment.bytes={1 << 30}") as (cluster, processes):
        folder = cluster.folder.path
        make_topic(cluster.bootstrap, TOPIC, PARTITIONS)
        token = CommitToken("bench", 0, records=TASKS * PARTITIONS)
        before, cpu = bytes_of_log(folder), cpu_seconds(processes)
        began = time.perf_counter()
        members = asyncio.run(join_all(cluster, token))
        joined_s = time.perf_counter() - began
        write_all(cluster.bootstrap, members)
        written_s = time.perf_counter() - began - joined_s
        winners = [
            Winner(m.producer_id, m.epoch, tuple((TOPIC, partition, 0) for partition in range(PARTITIONS)), PARTITIONS)
            for m in members
        ]
        at_commit = cpu_seconds(processes)
        began = time.perf_counter()
        answered_s = asyncio.run(commit(cluster, token, winners))
        wait_until_readable(cluster.bootstrap)
        readable_s = time.perf_counter() - began
        after, size = cpu_seconds(processes), bytes_of_log(folder) - before
    record("tasks_log", size / 1e6, "MB", at_most=20)
    record("tasks_commit_answered", answered_s, "s", at_most=10)
    record("tasks_commit_readable", readable_s, "s", at_most=10)
    record("tasks_join", joined_s, "s")
    record("tasks_write", written_s, "s")
    for name in ("coordinator-0", "broker-0"):
        record(f"tasks_cpu_{name}_until_commit", at_commit[name] - cpu[name], "s")
        record(f"tasks_cpu_{name}_commit", after[name] - at_commit[name], "s")


if __name__ == "__main__":
    main()
