"""Calls with commit tokens while the coordinator fails or is being restarted."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hapax.client.environment import RealPorts
from hapax.client.errors import RetriableError
from hapax.client.settings import producer_options
from hapax.client.tokens import (
    CommitToken,
    Conflict,
    LastToken,
    TokenConflictError,
    TokenOutcome,
    Told,
    end_with_token,
    transactions_call,
)
from hapax.core.errors import ErrorCode
from hapax.core.producer.machine import ClientProducer, ProducerOptions
from hapax.core.producer.partition_queue import Identity
from hapax.core.producer.states import State
from hapax.core.types import ProducerEpoch, ProducerId
from hapax.rpc.gen.hapax.v1 import transactions_pb2 as pb
from hapax.runtime.ports import RpcError, RpcStatus
from hapax.wire.peer import PeerError, PeerUnsupported


class FailingCoordinator:
    """A cluster whose coordinator fails some calls, and commits then."""

    cluster_id = None

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


async def ended(*statuses: RpcStatus) -> tuple[Told | TokenConflictError | None, ClientProducer]:
    machine = ClientProducer(ProducerOptions(transactional=True), Identity(ProducerId(7), ProducerEpoch(0)))
    cluster: Any = FailingCoordinator(*statuses)
    return await end_with_token(cluster, "t", machine, CommitToken("q", 1)), machine


async def test_a_commit_whose_coordinator_failed_is_repeated() -> None:
    told, _ = await ended("INTERNAL", "UNAVAILABLE", "DEADLINE_EXCEEDED", "UNKNOWN")
    assert isinstance(told, Told) and told.outcome is TokenOutcome.COMMITTED


async def test_a_commit_that_is_refused_ends_the_producer() -> None:
    told, machine = await ended("PERMISSION_DENIED")
    assert told is None and machine.state is State.FATAL_ERROR


async def test_a_token_that_is_refused_leaves_the_transaction_open_and_says_why() -> None:
    refusal = pb.EndTransactionResponse(
        error=ErrorCode.INVALID_TXN_STATE, reason="older than the newest, 5",
        conflict=pb.TokenConflict(cause=1, newest=pb.LastCommitToken(scope="q", value=5, record_count=3)))
    cluster: Any = FramingCoordinator(frame(refusal.SerializeToString()))
    machine = ClientProducer(ProducerOptions(transactional=True), Identity(ProducerId(7), ProducerEpoch(0)))
    machine.begin()
    told = await end_with_token(cluster, "t", machine, CommitToken("q", 1))
    assert isinstance(told, TokenConflictError) and "Abort the transaction" in str(told)
    assert told.conflict is Conflict.OLDER and told.newest == LastToken("q", 5, 3, 0)
    assert machine.state is State.ABORTABLE_ERROR


async def test_a_commit_whose_login_is_refused_says_so() -> None:
    """After an attempt whose answer was lost: the producer's error is that of a login."""
    told, machine = await ended("UNAVAILABLE", "UNAUTHENTICATED")
    assert told is None and machine.state is State.FATAL_ERROR
    assert machine.trouble is not None and machine.trouble.code == ErrorCode.SASL_AUTHENTICATION_FAILED


async def test_a_commit_that_another_process_got_is_repeated() -> None:
    """The coordinator's pod is gone, and a broker has its address."""
    told, _ = await ended(*["UNIMPLEMENTED"] * 4, "UNAVAILABLE", *["UNIMPLEMENTED"] * 4)
    assert isinstance(told, Told) and told.outcome is TokenOutcome.COMMITTED


async def test_a_commit_that_no_process_knows_ends_the_producer() -> None:
    told, machine = await ended(*["UNIMPLEMENTED"] * 100)
    assert told is None and machine.state is State.FATAL_ERROR


async def test_other_calls_to_a_coordinator_whose_address_another_process_has_are_repeated() -> None:
    cluster: Any = FailingCoordinator("UNIMPLEMENTED")
    with pytest.raises(RetriableError, match="no coordinator"):
        await transactions_call(cluster, "t", "DescribeTransactionalId", b"")


class RestartingCoordinator:
    """A cluster in which node 100 coordinates and is not registered at the moment."""

    cluster_id = None

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


class FramingCoordinator(FailingCoordinator):
    """A cluster whose coordinator takes calls as Kafka frames, too."""

    cluster_id = "c"  # type: ignore[assignment]

    def __init__(self, *answers: object) -> None:
        super().__init__()
        self.answers = list(answers)
        self.in_flight = 0
        self.by_grpc: list[str] = []
        self.framed: list[Any] = []
        self.forgotten: list[str] = []
        self.closed: list[str] = []
        self.address = "127.0.0.1:2"

    async def peer(self, node_id: int, purpose: str) -> Any:
        assert (node_id, purpose) == (100, "coordinator")
        return SimpleNamespace(
            in_flight=self.in_flight, call=self.framed_call, address=self.address, close=self.closed.append)

    async def framed_call(self, request: Any) -> Any:
        self.framed.append((request.cluster_id, request.method, request.payload))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def call(self, method: str, request: bytes, seconds: float) -> bytes:
        self.by_grpc.append(method.rpartition("/")[2])
        return b"by gRPC"

    def forget_coordinator(self, kind: str, key: str) -> None:
        self.forgotten.append(key)


def frame(payload: bytes = b"", code: int = 0, reason: str | None = None) -> Any:
    return SimpleNamespace(error_code=code, error_message=reason, payload=payload)


async def test_a_commit_is_a_frame_that_names_its_cluster() -> None:
    cluster: Any = FramingCoordinator(frame(b"decided"))
    assert await transactions_call(cluster, "t", "EndTransaction", b"end it") == b"decided"
    assert (cluster.framed, cluster.by_grpc) == ([("c", "EndTransaction", b"end it")], [])


@pytest.mark.parametrize("method", ["RenewTransaction", "GetCommitToken", "DescribeTransactionalId"])
async def test_what_no_batch_waits_for_is_grpc(method: str) -> None:
    cluster: Any = FramingCoordinator()
    await transactions_call(cluster, "t", method, b"")
    assert (cluster.framed, cluster.by_grpc) == ([], [method])


async def test_a_coordinator_of_an_earlier_version_is_called_by_grpc() -> None:
    cluster: Any = FramingCoordinator(PeerUnsupported("no such key"))
    assert await transactions_call(cluster, "t", "EndTransaction", b"") == b"by gRPC"


async def test_a_call_never_waits_behind_another_one_of_its_connection() -> None:
    """A join that is held until the last transaction is complete would hold another id's commit, too."""
    cluster: Any = FramingCoordinator()
    cluster.in_flight = 1
    assert await transactions_call(cluster, "t", "EndTransaction", b"") == b"by gRPC"
    assert cluster.framed == []


async def test_a_commit_with_many_winners_is_grpc() -> None:
    cluster: Any = FramingCoordinator()
    assert await transactions_call(cluster, "t", "EndTransaction", bytes(33 << 10)) == b"by gRPC"


async def test_a_node_that_coordinates_no_longer_is_forgotten() -> None:
    cluster: Any = FramingCoordinator(frame(code=ErrorCode.NOT_COORDINATOR))
    with pytest.raises(RetriableError):
        await transactions_call(cluster, "t", "EndTransaction", b"")
    assert cluster.forgotten == ["t"]


async def test_a_node_of_another_cluster_is_left() -> None:
    cluster: Any = FramingCoordinator(frame(code=ErrorCode.INCONSISTENT_CLUSTER_ID, reason="this is not cluster 'c'"))
    with pytest.raises(PeerError, match="this is not cluster 'c'"):
        await transactions_call(cluster, "t", "EndTransaction", b"")
    assert cluster.forgotten == ["t"] and len(cluster.closed) == 1


async def test_a_frame_whose_connection_failed_is_repeated_as_a_commit_is() -> None:
    committed = pb.EndTransactionResponse(outcome=TokenOutcome.COMMITTED.value, producer_id=7).SerializeToString()
    cluster: Any = FramingCoordinator(PeerError("gone"), frame(committed))
    machine = ClientProducer(ProducerOptions(transactional=True), Identity(ProducerId(7), ProducerEpoch(0)))
    told = await end_with_token(cluster, "t", machine, CommitToken("q", 1))
    assert isinstance(told, Told) and told.outcome is TokenOutcome.COMMITTED and len(cluster.framed) == 2
