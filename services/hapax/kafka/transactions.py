"""What the calls of transactions need of a coordinator.

A module in `hapax.kafka.api` builds the core's request, asks the coordinator and encodes the reply. A node that is no
coordinator has no such object and answers NOT_COORDINATOR.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from hapax.core.transaction.machine import Answer, TransactionShard
from hapax.core.transaction.record import TransactionPartition
from hapax.core.transaction.requests import Caller, Reply, Request
from hapax.core.types import Now, TopicPartition
from hapax.kafka.table import RequestContext

_Request = TypeVar("_Request", bound=Request)


class TransactionCoordinator(Protocol):
    def caller(self, ctx: RequestContext) -> Caller:
        """The client, its connection, and the time at which the request arrived."""
        ...

    def resolve(
        self, partitions: Sequence[TopicPartition]
    ) -> tuple[tuple[TransactionPartition, ...], tuple[TopicPartition, ...]]:
        """The partitions that exist, with their topic ids, and those that do not exist."""
        ...

    def offsets_partition(self, group_id: str) -> TransactionPartition:
        """The partition of `__consumer_offsets` that holds the group. Raises Refusal."""
        ...

    async def ask(self, decide: Callable[[TransactionShard, _Request, Now], Answer], request: _Request) -> Reply:
        """`decide` is the machine's method for the request, e.g. `TransactionShard.end_txn`.

        Raises Refusal, or CloseConnection where a newer connection has superseded the caller's.
        """
        ...
