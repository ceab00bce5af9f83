"""Administration of transactional ids, for operators rather than writers (Hapax only)."""

from __future__ import annotations

from typing import Any, Final, NamedTuple, TypeVar

from google.protobuf.message import Message

from hapax.client.admin import Admin
from hapax.client.errors import from_code
from hapax.client.tokens import LastToken, transactions_call
from hapax.core.errors import ErrorCode
from hapax.core.types import PartitionIndex, TopicPartition
from hapax.rpc.gen.hapax.v1 import transactions_pb2 as pb
from hapax.runtime.ports import RpcError

_ELSEWHERE: Final = (
    ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.CONCURRENT_TRANSACTIONS,
)
"""The call has to be repeated, possibly at another node."""


class FencingInfo(NamedTuple):
    """Who fenced which producer, when and from where. A text is empty where it is unknown."""

    cause: str
    """`initialized`, `timed_out` or `newer_token`."""
    at_ms: int
    by_client: str
    by_peer: str
    fenced_client: str
    fenced_peer: str
    fenced_epoch: int
    serial: int = 0
    """Of the transaction that was open at that time, or else the last one."""


class IdentityInfo(NamedTuple):
    """Times are wall-clock times; -1: none."""

    transactional_id: str
    state: str
    """In Kafka's spelling."""
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    opened_ms: int
    partitions: tuple[TopicPartition, ...]
    """Of the open transaction, at most a hundred partitions."""
    partition_count: int
    instance: str
    """Identifies the current holder of the id. It changes with each new holder."""
    holder_client: str
    holder_peer: str
    committed: bool | None
    """How the last transaction ended. None: there was none."""
    decided_ms: int
    tokens: tuple[LastToken, ...]
    fencing: FencingInfo | None
    serial: int = 0
    """Of the open transaction, or else the last one."""
    open_token: LastToken | None = None
    """Of the open multi-writer transaction, which is not committed yet."""
    two_phase: bool = False
    """Whether the open transaction is under two-phase commit: another system decides it, however long that takes."""


_Answer = TypeVar("_Answer", bound=Message)


class Identities(Admin):
    """An admin client that also creates ids and fences producers. Its calls raise HapaxError, and NotHapaxError where
    the cluster is another system."""

    async def describe(self, transactional_id: str) -> IdentityInfo | None:
        """None: no producer has used the id, or it has expired."""
        request = pb.DescribeTransactionalIdRequest(transactional_id=transactional_id)
        answer = await self._ask(
            transactional_id, "DescribeTransactionalId", request, pb.DescribeTransactionalIdResponse)
        if answer.error == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            return None
        _check(answer, f"describing {transactional_id!r}")
        return _described(transactional_id, answer)

    async def ensure(self, transactional_id: str) -> tuple[int, int]:
        """Returns the producer id and epoch of a transactional id. An unused id gets them now. No producer is
        fenced."""
        request = pb.EnsureTransactionalIdRequest(transactional_id=transactional_id)
        answer = await self._ask(transactional_id, "EnsureTransactionalId", request, pb.EnsureTransactionalIdResponse)
        _check(answer, f"making sure of {transactional_id!r}")
        return answer.producer_id, answer.producer_epoch

    async def fence(self, transactional_id: str, instance: str, by: str, host: str = "", serial: int = 0) -> int:
        """Fences that instance and aborts its open transaction. Does nothing if another instance has taken its place.
        Returns the current epoch. May be repeated. The fenced producer is told who did it (`by`). With a `serial` other
        than 0, fences only while that transaction is open, and otherwise raises FatalError with INVALID_TXN_STATE."""
        request = pb.FenceProducerRequest(
            transactional_id=transactional_id, instance=instance, client_id=by, host=host, serial=serial)
        answer = await self._ask(transactional_id, "FenceProducer", request, pb.FenceProducerResponse)
        _check(answer, f"fencing {transactional_id!r}")
        return answer.producer_epoch

    async def _ask(self, transactional_id: str, method: str, request: Message, response: type[_Answer]) -> _Answer:
        self._check_usable()

        async def attempt() -> _Answer:
            try:
                raw = await transactions_call(self._cluster, transactional_id, method, request.SerializeToString())
            except RpcError:
                self._cluster.forget_coordinator("transaction", transactional_id)
                raise
            answer = response.FromString(raw)
            if answer.error in _ELSEWHERE:  # type: ignore[attr-defined]
                self._cluster.forget_coordinator("transaction", transactional_id)
                _check(answer, method)
            return answer

        return await self._cluster.within(self._timeout, method, attempt)


def _check(answer: Any, what: str) -> None:
    if answer.error:
        raise from_code(answer.error, what, answer.reason)


def _described(transactional_id: str, answer: pb.DescribeTransactionalIdResponse) -> IdentityInfo:
    fencing = answer.fencing
    return IdentityInfo(
        transactional_id, answer.state, answer.producer_id, answer.producer_epoch, answer.timeout_ms, answer.opened_ms,
        tuple(TopicPartition(each.topic, PartitionIndex(each.partition)) for each in answer.partitions),
        answer.partition_count, answer.instance, answer.holder_client_id, answer.holder_peer,
        answer.committed if answer.decided else None, answer.decided_ms if answer.decided else -1,
        tuple(LastToken.decode(token) for token in answer.tokens),
        FencingInfo(
            fencing.cause, fencing.at_ms, fencing.client_id, fencing.peer, fencing.fenced_client_id,
            fencing.fenced_peer, fencing.fenced_epoch, fencing.serial)
        if answer.HasField("fencing") else None,
        answer.serial,
        LastToken.decode(answer.open_token) if answer.HasField("open_token") else None,
        answer.two_phase,
    )
