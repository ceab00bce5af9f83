"""One shard of the transaction coordinator: its ids, and what may be pending on each.

See `transaction_states` for the rules and the table, `transaction_requests` for how a service drives this class.
Every method that is named after a request decides and changes nothing but the pending mark; `replay` alone changes
state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hapax.core.transaction_record import Record, Transaction
from hapax.core.transaction_requests import (
    AbortHanging,
    AddPartitionsToTxn,
    CheckWinners,
    CloseConnection,
    Decision,
    Effect,
    EndTransaction,
    EndTxn,
    GetCommitToken,
    Held,
    InitProducerId,
    JoinTransaction,
    Limits,
    MarkerResult,
    MarkersProgress,
    NeedProducerId,
    Now,
    ProducerIdReserve,
    RenewTransaction,
    VerifyPartitions,
    WinnerCheck,
)
from hapax.core.types import Serial

Answer = Decision | Held | NeedProducerId | CloseConnection


class TransactionShard:
    """All methods raise `Refusal` (or its `Fenced`, which says by whom); nothing has changed then."""

    def __init__(self, limits: Limits, ids: ProducerIdReserve, newest_connection: int = -1) -> None:
        """`newest_connection`: the process's newest connection serial when the shard arrived here (rule 4)."""
        self.limits = limits
        self.ids = ids
        self.transactions: dict[str, Transaction] = {}

    # --- log ---

    def load(self, record: Record) -> None:
        """Applies a record read from the shard's log at a take-over. No effects; `resume` gives them at the end."""
        raise NotImplementedError

    def resume(self, now: Now) -> Iterator[Effect]:
        """After the load: markers of every decided transaction, timers of every open one."""
        raise NotImplementedError

    def replay(self, record: Record, now: Now) -> list[Effect]:
        """Applies a decision's record once it is durable; the id is no longer pending: ask its held calls again."""
        raise NotImplementedError

    def withdraw(self, record: Record) -> None:
        """The record was certainly not written (refused before any append). Where that is uncertain, give the shard up
        and load it again."""
        raise NotImplementedError

    # --- calls of clients and brokers ---

    def init_producer_id(self, request: InitProducerId, now: Now) -> Answer:
        raise NotImplementedError

    def add_partitions_to_txn(self, request: AddPartitionsToTxn, now: Now) -> Answer:
        """Also AddOffsetsToTxn, with the group's partition of `__consumer_offsets`."""
        raise NotImplementedError

    def verify_partitions(self, request: VerifyPartitions, now: Now) -> Answer:
        raise NotImplementedError

    def end_txn(self, request: EndTxn, now: Now) -> Answer:
        raise NotImplementedError

    def join_transaction(self, request: JoinTransaction, now: Now) -> Answer:
        raise NotImplementedError

    def renew_transaction(self, request: RenewTransaction, now: Now) -> Answer:
        raise NotImplementedError

    def end_transaction(
        self, request: EndTransaction, now: Now, missing: tuple[WinnerCheck, ...] | None = None
    ) -> Answer | CheckWinners:
        """`missing`: the answer to `CheckWinners`, None before it was asked for; empty: every record is there."""
        raise NotImplementedError

    def get_commit_token(self, request: GetCommitToken, now: Now) -> Answer:
        raise NotImplementedError

    def abort_hanging(self, request: AbortHanging, now: Now) -> Answer:
        raise NotImplementedError

    # --- results and time ---

    def markers_answered(
        self, transactional_id: str, serial: Serial, results: Iterable[MarkerResult], now: Now
    ) -> MarkersProgress:
        """Answers may come late, twice, or for a transaction long completed."""
        raise NotImplementedError

    def time_out(self, transactional_id: str, now: Now) -> Decision | None:
        """The id's timer fired. None: nothing to do (decided, renewed, or pending: then the replay starts it anew)."""
        raise NotImplementedError

    def expired(self, now: Now) -> list[str]:
        """Ids to call `expire` for; to be asked now and then (hourly)."""
        raise NotImplementedError

    def expire(self, transactional_id: str, now: Now) -> Decision | None:
        """A tombstone for an id that nobody has used for its expiry time."""
        raise NotImplementedError

    # --- queries ---

    def describe(self, transactional_id: str) -> Transaction:
        """For DescribeTransactions. Refuses an unknown id (TRANSACTIONAL_ID_NOT_FOUND)."""
        raise NotImplementedError

    def list(
        self, now: Now, states: Iterable[str] = (), producer_ids: Iterable[int] = (), duration_ms: int = -1
    ) -> list[Transaction]:
        """For ListTransactions: `states` by Kafka's names; `duration_ms`: open at least so long; empty: all."""
        raise NotImplementedError

    def transactional_id_of(self, producer_id: int) -> str | None:
        """The id that uses this producer id, as its own or a member's."""
        raise NotImplementedError
