"""Drives a transaction shard the way a service does, with a log of encoded records, a clock and markers at hand."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from hapax.codec.transaction_log import decode_record, encode_record
from hapax.core.errors import ErrorCode
from hapax.core.transaction.machine import TransactionShard
from hapax.core.transaction.policy import TransactionPolicies
from hapax.core.transaction.record import (
    ProducerIdentity,
    Record,
    Token,
    Tombstone,
    Transaction,
    TransactionPartition,
)
from hapax.core.transaction.requests import (
    AbortHanging,
    AddPartitionsToTxn,
    Caller,
    CheckWinners,
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
    NeedProducerId,
    RenewTransaction,
    SendMarkers,
    VerifyPartitions,
    Winner,
    WinnerPartition,
)
from hapax.core.types import Now

ID = "app"
WALL = 1_700_000_000_000


class Ids:
    """A reserve of producer ids; `left` of them."""

    def __init__(self, first: int = 1000, left: int = 1 << 40) -> None:
        self.next, self.left = first, left

    def take(self) -> Any:
        if self.left == 0:
            return None
        self.left -= 1
        self.next += 1
        return self.next - 1


def partition(index: int = 0, topic: str = "t", topic_id: int = 1) -> TransactionPartition:
    return TransactionPartition(topic, topic_id.to_bytes(16, "big"), index)  # type: ignore[arg-type]


class Driver:
    """`ask_*` make one call each; `run_*` carry it through to its reply, persisting and marking on the way."""

    def __init__(self, limits: Limits | None = None, ids: Ids | None = None) -> None:
        self.limits = limits or Limits()
        self.ids = ids or Ids()
        self.monotonic = 0
        self.log: list[tuple[bytes, bytes | None]] = []
        self.effects: list[Effect] = []
        self.markers: dict[str, SendMarkers] = {}
        self.connection = -1
        self.policies = TransactionPolicies()
        self.shard = TransactionShard(self.limits, self.ids, policy_of=self.policies.of)

    @property
    def now(self) -> Now:
        return Now(self.monotonic, WALL + self.monotonic)  # type: ignore[arg-type]

    def txn(self, transactional_id: str = ID) -> Transaction:
        return self.shard.transactions[transactional_id]

    def caller(self, version: int = 9, client_id: str = "client") -> Caller:
        return Caller(client_id, "10.0.0.1:5000", self.monotonic, self.connection, version)  # type: ignore[arg-type]

    # --- the service's part ---

    def persist(self, decision: Decision) -> list[Effect]:
        record = decision.record
        assert record is not None
        entries = encode_record(record)
        if not isinstance(record, Tombstone):
            assert decode_record(*entries[0]) == record, "the log keeps the whole record"
        self.log += entries
        return self.replay(record)

    def replay(self, record: Record) -> list[Effect]:
        effects = self.shard.replay(record, self.now)
        self._note(effects)
        return effects

    def _note(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            self.effects.append(effect)
            if isinstance(effect, SendMarkers):
                self.markers[effect.transactional_id] = effect

    def mark(self, transactional_id: str = ID, error: ErrorCode = ErrorCode.NONE) -> None:
        """Every marker of the id is answered, and the completion persisted."""
        sent = self.markers[transactional_id]
        results = [
            MarkerResult(marker.producer_id, each.by_id, error)
            for marker in sent.markers
            for each in marker.partitions
        ]
        progress = self.shard.markers_answered(transactional_id, sent.serial, results, self.now)
        if progress.decision is not None:
            del self.markers[transactional_id]
            self.persist(progress.decision)

    def take_over(self) -> list[Effect]:
        """Another coordinator loads the log."""
        self.shard = TransactionShard(self.limits, self.ids, policy_of=self.policies.of)
        self.markers.clear()
        for entry in self.log:
            record = decode_record(*entry)
            if record is not None:
                self.shard.load(record)
        effects = list(self.shard.resume(self.now))
        self._note(effects)
        return effects

    def run(self, name: str, request: Any) -> Any:
        """The reply. Raises the machine's Refusal."""
        checked = False
        for _ in range(10):
            answer = getattr(self.shard, name)(request, self.now)
            if checked:
                self.shard.winners_checked(request.transactional_id)
            if isinstance(answer, Decision):
                if answer.record is not None:
                    self.persist(answer)
                if answer.reply is not None:
                    return answer.reply
            elif isinstance(answer, CheckWinners):
                request, checked = replace(request, missing=()), True
            elif not isinstance(answer, Held):
                return answer
            if request.transactional_id in self.markers:
                self.mark(request.transactional_id)
        raise AssertionError("the call never ends")

    # --- requests ---

    def init(self, identity: tuple[int, int] = (-1, -1), **more: Any) -> InitProducerId:
        more.setdefault("caller", self.caller())
        more.setdefault("timeout_ms", 60_000)
        return InitProducerId(ID, producer_id=identity[0], producer_epoch=identity[1], **more)  # type: ignore[arg-type]

    def add(self, identity: tuple[int, int], *partitions: TransactionPartition, **more: Any) -> AddPartitionsToTxn:
        more.setdefault("caller", self.caller())
        return AddPartitionsToTxn(ID, *identity, partitions or (partition(),), **more)  # type: ignore[arg-type]

    def verify(
        self, identity: tuple[int, int], *partitions: TransactionPartition, add: bool = True, **more: Any
    ) -> VerifyPartitions:
        more.setdefault("caller", self.caller())
        return VerifyPartitions(ID, *identity, partitions or (partition(),), add, **more)  # type: ignore[arg-type]

    def end(self, identity: tuple[int, int], commit: bool = True, version: int = 2) -> EndTxn:
        return EndTxn(ID, *identity, commit, self.caller(5 if version == 2 else 3), version)  # type: ignore[arg-type]

    def join(self, value: int = 0, key: str = "task-0", scope: str = "q", **more: Any) -> JoinTransaction:
        more.setdefault("caller", self.caller())
        more.setdefault("timeout_ms", 60_000)
        return JoinTransaction(ID, Token(scope, value), key, **more)

    def end_token(
        self, value: int | None = 0, commit: bool = True, identity: tuple[int, int] = (-1, -1), scope: str = "q",
        **more: Any,
    ) -> EndTransaction:  # fmt: skip
        token = None if value is None else Token(scope, value)
        return EndTransaction(
            ID, commit, self.caller(), token, producer_id=identity[0], producer_epoch=identity[1], **more
        )  # type: ignore[arg-type]  # fmt: skip

    def renew(self, serial: int, timeout_ms: int = 60_000, token: Token | None = None) -> RenewTransaction:
        return RenewTransaction(ID, serial, timeout_ms, self.caller(), token)  # type: ignore[arg-type]

    def token(self, scope: str = "q") -> GetCommitToken:
        return GetCommitToken(ID, scope, self.caller())

    def hanging(self, identity: tuple[int, int], at: TransactionPartition, transactional_id: str = ID) -> AbortHanging:
        return AbortHanging(transactional_id, *identity, at, 17, self.caller())  # type: ignore[arg-type]

    # --- whole calls ---

    def run_init(self, identity: tuple[int, int] = (-1, -1), **more: Any) -> ProducerIdentity:
        return self.run("init_producer_id", self.init(identity, **more))

    def run_add(self, identity: tuple[int, int], *partitions: TransactionPartition) -> Any:
        return self.run("add_partitions_to_txn", self.add(identity, *partitions))

    def run_verify(self, identity: tuple[int, int], *partitions: TransactionPartition, **more: Any) -> Any:
        return self.run("verify_partitions", self.verify(identity, *partitions, **more))

    def run_end(self, identity: tuple[int, int], commit: bool = True, version: int = 2) -> ProducerIdentity:
        return self.run("end_txn", self.end(identity, commit, version))

    def run_join(self, value: int = 0, key: str = "task-0", **more: Any) -> Any:
        return self.run("join_transaction", self.join(value, key, **more))

    def run_end_token(self, value: int | None = 0, commit: bool = True, **more: Any) -> Any:
        return self.run("end_transaction", self.end_token(value, commit, **more))


def winner(identity: tuple[int, int], *partitions: TransactionPartition, last_sequence: int = 9) -> Winner:
    wins = tuple(WinnerPartition(each, last_sequence) for each in partitions)  # type: ignore[arg-type]
    return Winner(*identity, wins)  # type: ignore[arg-type]


__all__ = ["ID", "WALL", "Driver", "Ids", "NeedProducerId", "partition", "winner"]
