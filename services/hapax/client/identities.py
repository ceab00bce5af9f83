"""Administration of transactional ids, for operators and not for writers (Hapax only)."""

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
"""To be asked again, perhaps of another node."""


class FencingInfo(NamedTuple):
    """Who fenced whom, when and from where. A text is empty if it is unknown."""

    cause: str
    """`initialized`, `timed_out` or `newer_token`."""
    at_ms: int
    by_client: str
    by_peer: str
    fenced_client: str
    fenced_peer: str
    fenced_epoch: int
    serial: int = 0
    """Of the transaction that was open then, or the last one."""


class IdentityInfo(NamedTuple):
    """Times are wall clock, -1 where there is none."""

    transactional_id: str
    state: str
    """By Kafka's name."""
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    opened_ms: int
    partitions: tuple[TopicPartition, ...]
    """Of the open transaction, the first hundred."""
    partition_count: int
    instance: str
    """Identifies the current holder of the id; another holder has another one."""
    holder_client: str
    holder_peer: str
    committed: bool | None
    """How the last transaction ended; None: there was none."""
    decided_ms: int
    tokens: tuple[LastToken, ...]
    fencing: FencingInfo | None
    serial: int = 0
    """Of the transaction that is open, or else the last one."""
    open_token: LastToken | None = None
    """Of the open multi-writer transaction, not committed yet."""


_Answer = TypeVar("_Answer", bound=Message)


class Identities(Admin):
    """An admin client that also makes sure of ids, and fences. Calls raise HapaxError; NotHapaxError where the cluster
    is another system."""

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
        """Producer id and epoch of a transactional id; an unused one gets them now. No producer is fenced."""
        request = pb.EnsureTransactionalIdRequest(transactional_id=transactional_id)
        answer = await self._ask(transactional_id, "EnsureTransactionalId", request, pb.EnsureTransactionalIdResponse)
        _check(answer, f"making sure of {transactional_id!r}")
        return answer.producer_id, answer.producer_epoch

    async def fence(self, transactional_id: str, instance: str, by: str, host: str = "", serial: int = 0) -> int:
        """Fences that instance and aborts its open transaction; does nothing if another instance has taken its place.
        Returns the current epoch. May be repeated. The fenced producer is told `by`. `serial` not 0: only while that
        transaction is open, else FatalError with INVALID_TXN_STATE."""
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
    )
