"""ListTransactions (66): the transactional ids of a coordinator's shards.

The filters are state, producer id, age and, from version 2, a pattern for the id.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from hapax.core.access.resources import DESCRIBE_TRANSACTIONAL_ID
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.transaction.record import Transaction
from hapax.core.transaction.states import State
from hapax.kafka.needs import Asking, Need, Outcome, Passing
from hapax.kafka.table import SMALL_FRAME_BYTES, ApiRow, ApiTable, RequestContext, Role
from hapax.wire.messages import ListTransactionsResponse

ROW: Final = ApiRow(
    key=66, name="ListTransactions", versions=(0, 2), flexible_from=0, max_frame_bytes=SMALL_FRAME_BYTES,
    answered_by=Role.COORDINATOR, elsewhere=ErrorCode.NONE,
    need=Need("lists the ids with Describe TransactionalId", lambda asking, request: _check(asking)))

TransactionState = ListTransactionsResponse.TransactionState

STATE_NAMES: Final = frozenset(state.kafka_name for state in State)


@dataclass(frozen=True, slots=True)
class Filters:
    """Empty, -1 and None: no filter."""

    states: tuple[str, ...]
    producer_ids: tuple[int, ...]
    duration_ms: int
    """Only transactions that began longer ago than this many milliseconds."""
    pattern: str | None


class ListsTransactions(Protocol):
    async def list_transactions(self, filters: Filters) -> Sequence[Transaction]:
        """Raises Refusal: COORDINATOR_LOAD_IN_PROGRESS while a shard loads, INVALID_REGULAR_EXPRESSION."""
        ...


def register(table: ApiTable, coordinator: ListsTransactions) -> None:
    async def handle(ctx: RequestContext, request: Any) -> Any:
        version = ctx.api_version
        unknown = [name for name in request.state_filters if name not in STATE_NAMES]
        known = tuple(name for name in request.state_filters if name in STATE_NAMES)
        filters = Filters(
            known, tuple(request.producer_id_filters), request.duration_filter if version >= 1 else -1,
            (request.transactional_id_pattern or None) if version >= 2 else None,
        )
        try:
            # A request for unknown states alone has no matches.
            listed = () if unknown and not known else await coordinator.list_transactions(filters)
        except Refusal as refusal:
            return refused(request, version, refusal.code)
        return ListTransactionsResponse(
            throttle_time_ms=0, error_code=0, unknown_state_filters=unknown, transaction_states=[
                TransactionState(transactional_id=t.transactional_id, producer_id=t.producer_id,
                                 transaction_state=t.state.kafka_name)
                for t in listed
            ],
        )

    table.on(ROW, handle)


def _check(asking: Asking) -> Outcome:
    def finish(answer: Any) -> Any:
        answer.transaction_states = [
            each for each in answer.transaction_states
            if asking.rights.may(DESCRIBE_TRANSACTIONAL_ID, each.transactional_id)]
        return answer

    return Passing(finish)


def refused(request: Any, version: int, code: ErrorCode) -> Any:
    return ListTransactionsResponse(
        throttle_time_ms=0, error_code=int(code), unknown_state_filters=[], transaction_states=[]
    )
