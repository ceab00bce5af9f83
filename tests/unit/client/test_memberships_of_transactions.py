"""Offsets of partitions that a member has no more do not get into its transactions.

In the classic protocol the coordinator compares the generation only, and a member whose partition has moved to another
member has the newest generation all the same.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hapax.client.consumer import Consumer
from hapax.client.coordination import ConsumerGroup, Coordination
from hapax.client.environment import RealPorts
from hapax.core.errors import ErrorCode
from hapax.core.producer.machine import ClientProducer, ProducerOptions
from hapax.core.producer.partition_queue import Identity
from hapax.core.producer.states import State
from hapax.core.types import PartitionIndex, ProducerEpoch, ProducerId, TopicPartition
from hapax.wire import messages
from hapax.wire.peer import Capabilities

HAS, GAVE_UP = (TopicPartition("t", PartitionIndex(each)) for each in (0, 1))


async def sent_by(
    group: ConsumerGroup, *partitions: Any, transactions: int = 2, newest: int = 5
) -> tuple[bool, ClientProducer, list[Any]]:
    machine = ClientProducer(ProducerOptions(transactional=True))
    machine.initialize()
    machine.initialized(Identity(ProducerId(1), ProducerEpoch(0)), transactions)
    machine.begin()
    machine.offsets_sent()
    calls: list[Any] = []

    async def call(message: Any, *, version: int) -> Any:
        calls.append(message)
        return SimpleNamespace(topics=[], error_code=0)

    async def coordinator_peer(*_: str) -> Any:
        return SimpleNamespace(
            capabilities=Capabilities({
                messages.AddOffsetsToTxnRequest.API_KEY: (0, 1), messages.TxnOffsetCommitRequest.API_KEY: (0, newest)}),
            call=call)

    cluster: Any = SimpleNamespace(coordinator_peer=coordinator_peer, options={
        "retry.backoff.ms": 1, "retry.backoff.max.ms": 1}, ports=RealPorts())
    accepted = await Coordination(cluster, machine, "x").send_offsets(dict.fromkeys(partitions, 5), group)
    return accepted, machine, calls


async def test_a_member_sends_offsets_of_what_it_has() -> None:
    accepted, machine, calls = await sent_by(ConsumerGroup("g", 4, "m", None, frozenset({HAS})), HAS)
    assert accepted and machine.state is State.IN_TRANSACTION and len(calls) == 1


@pytest.mark.parametrize("assigned", [frozenset({HAS}), frozenset()])
async def test_one_partition_that_it_gave_up_aborts_the_transaction(assigned: frozenset[TopicPartition]) -> None:
    accepted, machine, calls = await sent_by(ConsumerGroup("g", 4, "m", None, assigned), HAS, GAVE_UP)
    assert not accepted and calls == []
    assert machine.state is State.ABORTABLE_ERROR and machine.trouble is not None
    assert machine.trouble.code is ErrorCode.ILLEGAL_GENERATION
    assert "is not assigned to this member of group 'g'" in machine.trouble.reason


async def test_a_group_without_members_takes_offsets_of_any_partition() -> None:
    accepted, _, calls = await sent_by(ConsumerGroup("g"), GAVE_UP)
    assert accepted and len(calls) == 1


async def test_a_cluster_that_checks_no_membership_takes_no_offsets_of_members() -> None:
    """Before Kafka 2.5 it takes those of a member that was replaced."""
    member = ConsumerGroup("g", 4, "m", None, frozenset({HAS}))
    accepted, machine, _ = await sent_by(member, HAS, transactions=1, newest=2)
    assert not accepted and machine.state is State.FATAL_ERROR and machine.trouble is not None
    assert machine.trouble.code is ErrorCode.UNSUPPORTED_VERSION
    assert (await sent_by(member, HAS, transactions=1, newest=3))[0]
    assert (await sent_by(ConsumerGroup("g"), HAS, transactions=1, newest=2))[0]


def test_a_consumer_passes_what_it_has() -> None:
    consumer = Consumer({"bootstrap.servers": "127.0.0.1:1", "group.id": "g"})
    assert consumer.group_metadata() == ConsumerGroup("g")
    member: Any = SimpleNamespace(
        identity=lambda: SimpleNamespace(generation=4, member_id="m", instance_id="i"), tenures=lambda: {HAS: 1})
    consumer._member = member
    assert consumer.group_metadata() == ConsumerGroup("g", 4, "m", "i", frozenset({HAS}))
