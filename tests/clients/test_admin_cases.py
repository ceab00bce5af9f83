"""The table of reassignments and elections against Apache Kafka: the codes that Hapax answers are Kafka's own."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest

from clients.kafka_from_maven import KafkaFromMaven
from clients.other import WHOLE
from hapax.runtime.network import TcpNetwork
from hapax.wire import messages
from hapax.wire.peer import Peer
from integration.waiting import until
from unit.controller.admin_cases import ASSIGNMENTS, CASES, LED, MOVES, check


@pytest.mark.skipif(not WHOLE, reason="four brokers are for make test-clients")
def test_apache_kafka_answers_with_the_same_codes(tmp_path: Path) -> None:
    """A code that differs stands in the table as Kafka's, and in docs/protocol.md with the reason."""
    with contextlib.ExitStack() as stack:
        first = KafkaFromMaven(tmp_path / "0", 0)
        brokers = [first, *(KafkaFromMaven(tmp_path / str(n), n, first) for n in (1, 2, 3))]
        for broker in brokers:
            stack.callback(broker.kill)
            broker.start()
        asyncio.run(_all_cases(brokers))


async def _all_cases(brokers: list[KafkaFromMaven]) -> None:
    host, _, port = brokers[0].bootstrap.rpartition(":")
    peer = await Peer.connect(TcpNetwork(), host, int(port))

    async def ask(name: str, version: int, **fields: Any) -> Any:
        request, response = getattr(messages, f"{name}Request"), getattr(messages, f"{name}Response")
        return await peer.submit_raw(
            request, version, [request(**fields).encode(version=version)],
            decode=lambda body: response.decode(body, version=version))

    async def metadata() -> Any:
        return await ask(
            "Metadata", 9, topics=[messages.MetadataRequest.MetadataRequestTopic(name=name) for name in LED],
            allow_auto_topic_creation=False, include_cluster_authorized_operations=False,
            include_topic_authorized_operations=False)

    async def leaders() -> dict[str, list[int]]:
        return {
            topic.name: [p.leader_id for p in sorted(topic.partitions, key=lambda p: p.partition_index)]
            for topic in (await metadata()).topics}

    async def registered() -> bool:
        return len((await metadata()).brokers) == len(brokers)

    async def copied() -> bool:
        (topic,) = [t for t in (await metadata()).topics if t.name == "cases"]
        return any(p.partition_index == 0 and 2 in p.isr_nodes for p in topic.partitions)

    await until(registered, "all brokers")
    creatable = messages.CreateTopicsRequest.CreatableTopic
    for name, assignment in ASSIGNMENTS.items():
        answer = await ask("CreateTopics", 7, timeout_ms=9000, validate_only=False, topics=[creatable(
            name=name, num_partitions=-1, replication_factor=-1, configs=[], assignments=[
                creatable.CreatableReplicaAssignment(partition_index=index, broker_ids=replicas)
                for index, replicas in enumerate(assignment)])])
        assert [topic.error_code for topic in answer.topics] == [0]
    brokers[3].kill()  # it stays registered, fenced: Kafka accepts it as a target

    async def dead() -> bool:
        return await leaders() == LED

    await until(dead, "the leaders without broker 3")
    moves = messages.AlterPartitionReassignmentsRequest.ReassignableTopic
    await ask("AlterPartitionReassignments", 0, timeout_ms=5000, topics=[moves(name="cases", partitions=[
        moves.ReassignablePartition(partition_index=index, replicas=target) for index, target in MOVES.items()])])
    await until(copied, "the copy on broker 2")
    for case in CASES:
        await check(case, ask, of_kafka=True)
    peer.close()
