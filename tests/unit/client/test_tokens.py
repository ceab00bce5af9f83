"""Calls with commit tokens while the coordinator fails or is being restarted."""

from __future__ import annotations

from typing import Any

import pytest

from hapax.client.environment import RealPorts
from hapax.client.errors import RetriableError
from hapax.client.settings import producer_options
from hapax.client.tokens import CommitToken, TokenOutcome, Told, end_with_token, transactions_call
from hapax.core.producer.machine import ClientProducer, ProducerOptions
from hapax.core.producer.partition_queue import Identity
from hapax.core.producer.states import State
from hapax.core.types import ProducerEpoch, ProducerId
from hapax.rpc.gen.hapax.v1 import transactions_pb2 as pb
from hapax.runtime.ports import RpcError, RpcStatus


class FailingCoordinator:
    """A cluster whose coordinator fails some calls, and commits then."""

    def __init__(self, *statuses: RpcStatus) -> None:
        self.statuses = list(statuses)
        self.options = producer_options({
            "bootstrap.servers": "127.0.0.1:1", "retry.backoff.ms": 1, "retry.backoff.max.ms": 1,
            "request.timeout.ms": 1000})
        self.clock_ms = 0
        self.ports = RealPorts()

    def now(self) -> int:
        self.clock_ms += 100
        return self.clock_ms

    async def coordinator(self, kind: str, key: str) -> int:
        return 100

    async def rpc_address(self, node_id: int) -> str:
        return "127.0.0.1:1"

    def forget_coordinator(self, kind: str, key: str) -> None: ...

    def channel(self, address: str) -> FailingCoordinator:
        return self

    async def call(self, method: str, request: bytes, seconds: float) -> bytes:
        if self.statuses:
            raise RpcError(self.statuses.pop(0), "told so")
        return pb.EndTransactionResponse(outcome=TokenOutcome.COMMITTED.value, producer_id=7).SerializeToString()


async def ended(*statuses: RpcStatus) -> tuple[Told | None, ClientProducer]:
    machine = ClientProducer(ProducerOptions(transactional=True), Identity(ProducerId(7), ProducerEpoch(0)))
    cluster: Any = FailingCoordinator(*statuses)
    return await end_with_token(cluster, "t", machine, CommitToken("q", 1)), machine


async def test_a_commit_whose_coordinator_failed_is_repeated() -> None:
    told, _ = await ended("INTERNAL", "UNAVAILABLE", "DEADLINE_EXCEEDED", "UNKNOWN")
    assert told is not None and told.outcome is TokenOutcome.COMMITTED


async def test_a_commit_that_is_refused_ends_the_producer() -> None:
    told, machine = await ended("PERMISSION_DENIED")
    assert told is None and machine.state is State.FATAL_ERROR


async def test_a_commit_that_another_process_got_is_repeated() -> None:
    """The coordinator's pod is gone, and a broker has its address."""
    told, _ = await ended(*["UNIMPLEMENTED"] * 4, "UNAVAILABLE", *["UNIMPLEMENTED"] * 4)
    assert told is not None and told.outcome is TokenOutcome.COMMITTED


async def test_a_commit_that_no_process_knows_ends_the_producer() -> None:
    told, machine = await ended(*["UNIMPLEMENTED"] * 100)
    assert told is None and machine.state is State.FATAL_ERROR


async def test_other_calls_to_a_coordinator_whose_address_another_process_has_are_repeated() -> None:
    cluster: Any = FailingCoordinator("UNIMPLEMENTED")
    with pytest.raises(RetriableError, match="no coordinator"):
        await transactions_call(cluster, "t", "DescribeTransactionalId", b"")


class RestartingCoordinator:
    """A cluster in which node 100 coordinates and is not registered at the moment."""

    def __init__(self) -> None:
        self.forgotten: list[tuple[str, str]] = []

    async def coordinator(self, kind: str, key: str) -> int:
        return 100

    async def rpc_address(self, node_id: int) -> str | None:
        return {0: "127.0.0.1:1", 101: "127.0.0.1:2"}.get(node_id)

    def forget_coordinator(self, kind: str, key: str) -> None:
        self.forgotten.append((kind, key))


async def test_a_coordinator_that_is_not_registered_is_looked_for_again() -> None:
    cluster = RestartingCoordinator()
    with pytest.raises(RetriableError, match="coordinator 100 is not registered"):
        await transactions_call(cluster, "t", "EndTransaction", b"")  # type: ignore[arg-type]
    assert cluster.forgotten == [("transaction", "t")]
