"""The cost of a barrier: how long one caller waits for confirmed answers, on one broker and on three (replication 3).

Measures OffsetFetch, the end of a partition, an EndTxn that decides (the commit of its record confirms it), an EndTxn
that repeats a decision (answered from memory, after a barrier), and librdkafka's whole transactions.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable

from confluent_kafka.admin import AdminClient, NewTopic

from bench.bench_transactions import producer_of, transaction
from bench.figures import record
from hapax.core.errors import ErrorCode
from hapax.local.cluster import LocalCluster
from hapax.runtime.network import TcpNetwork
from hapax.wire import messages
from hapax.wire.peer import Peer

WARM_UP = 100
ASKED = 1_000
TRANSACTIONS = 300
GROUP, ID = "bench-readers", "bench-writer"
MOVING = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE)


async def connect(address: str) -> Peer:
    host, _, port = address.rpartition(":")
    return await Peer.connect(TcpNetwork(), host, int(port), client_id="bench")


async def coordinator(bootstrap: str, key: str, kind: int) -> Peer:
    asked = await connect(bootstrap)
    try:
        while True:
            found = await asked.call(messages.FindCoordinatorRequest(key=key, key_type=kind), version=2)
            if not found.error_code:
                return await connect(f"{found.host}:{found.port}")
            await asyncio.sleep(0.1)
    finally:
        asked.close()


async def until(call: Callable[[], Awaitable[int]]) -> None:
    async with asyncio.timeout(60):
        while (code := await call()) in MOVING or code == ErrorCode.CONCURRENT_TRANSACTIONS:  # noqa: ASYNC110
            await asyncio.sleep(0.002)
    assert code == 0, code


async def timed(call: Callable[[], Awaitable[int]]) -> float:
    """Milliseconds."""
    began = time.perf_counter()
    code = await call()
    took = time.perf_counter() - began
    assert code == 0, code
    return took * 1000


async def median(call: Callable[[], Awaitable[int]]) -> float:
    for _ in range(WARM_UP):
        await timed(call)
    return sorted([await timed(call) for _ in range(ASKED)])[ASKED // 2]


async def offsets(bootstrap: str) -> float:
    peer = await coordinator(bootstrap, GROUP, 0)
    topic = messages.OffsetCommitRequest.OffsetCommitRequestTopic
    commit = messages.OffsetCommitRequest(group_id=GROUP, generation_id_or_member_epoch=-1, member_id="", topics=[
        topic(name="bench", partitions=[topic.OffsetCommitRequestPartition(
            partition_index=0, committed_offset=7, committed_leader_epoch=-1, committed_metadata="")])])
    asked = messages.OffsetFetchRequest.OffsetFetchRequestTopic
    fetch = messages.OffsetFetchRequest(
        group_id=GROUP, require_stable=True, topics=[asked(name="bench", partition_indexes=[0])])

    async def committed() -> int:
        return int((await peer.call(commit, version=8)).topics[0].partitions[0].error_code)

    async def fetched() -> int:
        return int((await peer.call(fetch, version=7)).error_code)

    await until(committed)
    return await median(fetched)


async def ends(address: str) -> float:
    peer = await connect(address)
    topic = messages.ListOffsetsRequest.ListOffsetsTopic
    request = messages.ListOffsetsRequest(replica_id=-1, isolation_level=1, topics=[topic(
        name="bench", partitions=[topic.ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=-1)],
    )])

    async def asked() -> int:
        return int((await peer.call(request, version=6)).topics[0].partitions[0].error_code)

    return await median(asked)


async def transactions(bootstrap: str) -> tuple[float, float]:
    """(time of an EndTxn that decides, of one that repeats it), with version 1 and one partition without records."""
    peer = await coordinator(bootstrap, ID, 1)
    identity = [-1, -1]

    async def begun() -> int:
        answer = await peer.call(messages.InitProducerIdRequest(
            transactional_id=ID, transaction_timeout_ms=60_000, producer_id=-1, producer_epoch=-1), version=4)
        identity[:] = answer.producer_id, answer.producer_epoch
        return int(answer.error_code)

    await until(begun)
    topic = messages.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
    add = messages.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=ID, v3_and_below_producer_id=identity[0],
        v3_and_below_producer_epoch=identity[1], v3_and_below_topics=[topic(name="bench", partitions=[0])])
    end = messages.EndTxnRequest(
        transactional_id=ID, producer_id=identity[0], producer_epoch=identity[1], committed=True)

    async def added() -> int:
        answer = await peer.call(add, version=3)
        return int(answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code)

    async def ended() -> int:
        return int((await peer.call(end, version=3)).error_code)

    decided, repeated = [], []
    for _ in range(TRANSACTIONS):
        await until(added)
        decided.append(await timed(ended))
        await until(ended)  # the call is held until the markers are stored
        repeated.append(await timed(ended))
    return sorted(decided)[TRANSACTIONS // 2], sorted(repeated)[TRANSACTIONS // 2]


def whole(bootstrap: str) -> float:
    producer = producer_of(bootstrap, "bench-whole")
    times = []
    for _ in range(WARM_UP + TRANSACTIONS):
        began = time.perf_counter()
        transaction(producer, "bench")
        times.append((time.perf_counter() - began) * 1000)
    return sorted(times[WARM_UP:])[TRANSACTIONS // 2]


def measure(brokers: int) -> None:
    with tempfile.TemporaryDirectory(prefix="hapax-bench-") as folder:
        cluster = LocalCluster(folder)
        settings = [f"min.insync.replicas={2 if brokers > 1 else 1}"]
        state = cluster.up(brokers=brokers, owned=True, settings=settings)
        try:
            admin = AdminClient({"bootstrap.servers": state.bootstrap})
            for created in admin.create_topics([NewTopic("bench", 2, min(3, brokers))]).values():
                created.result(30)
            metadata = admin.list_topics("bench", 10)
            leader = metadata.brokers[metadata.topics["bench"].partitions[0].leader]
            bootstrap = state.bootstrap.partition(",")[0]
            of = f"{brokers}_broker" + "s" * (brokers > 1)
            record(f"offset_fetch_p50_{of}", asyncio.run(offsets(bootstrap)), "ms")
            record(f"list_offsets_p50_{of}", asyncio.run(ends(f"{leader.host}:{leader.port}")), "ms")
            decided, repeated = asyncio.run(transactions(bootstrap))
            record(f"end_txn_p50_{of}", decided, "ms")
            record(f"end_txn_repeated_p50_{of}", repeated, "ms")
            record(f"whole_transaction_p50_{of}", whole(state.bootstrap), "ms")
        finally:
            cluster.down()


def main() -> None:
    for brokers in (1, 3):
        measure(brokers)


if __name__ == "__main__":
    main()
