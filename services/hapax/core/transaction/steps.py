"""The next record, for each way in which a transaction moves: begin, decide, complete.

Pure constructors: who may take the step has been checked by the caller.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from hapax.core.errors import ErrorCode, Refusal
from hapax.core.transaction.deltas import DeltasInFlight
from hapax.core.transaction.policy import UNLIMITED, TransactionPolicy
from hapax.core.transaction.record import (
    FIRST_EPOCH,
    LAST_EPOCH,
    CommittedToken,
    Fencing,
    FencingCause,
    LastOutcome,
    Member,
    PartitionSet,
    ProducerIdentity,
    Transaction,
)
from hapax.core.transaction.requests import Caller, Held, Limits, Now, ProducerIdReserve
from hapax.core.transaction.states import State
from hapax.core.types import (
    LONGEST_NAME_BYTES,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    Millis,
    ProducerEpoch,
    ProducerId,
    Serial,
)


@dataclass(frozen=True, slots=True)
class Context:
    """What a decision may know beside the id's state and the request."""

    limits: Limits
    ids: ProducerIdReserve
    now: Now
    elapsed_ms: Millis
    """How long the id's open transaction has been open, by the monotonic clock; 0 where none is."""
    policy: TransactionPolicy = UNLIMITED
    """The one that counts for the id."""
    checking: bool = False
    """A commit waits for what its winners' partitions hold."""
    under_way: DeltasInFlight | None = None
    """Records of members that are being written: the transaction has what they say, the log may not."""
    waiting: Mapping[ProducerId, PartitionSet] = field(default_factory=dict)
    """What members ask to register while another record of theirs is being written."""

    @property
    def max_timeout_ms(self) -> int:
        """The id's own limit where it has one (rule 20), else the cluster's."""
        return min(self.policy.max_timeout_ms or self.limits.max_timeout_ms, self.limits.max_timeout_ms)

    def is_under_way(self, producer_id: ProducerId) -> bool:
        """Whether a record of this member is being written."""
        return self.under_way is not None and self.under_way.of_member(producer_id)

    def hold(self, caller: Caller, reason: str) -> Held:
        """Raises CONCURRENT_TRANSACTIONS where the call has waited long enough."""
        until = Millis(caller.arrived + self.limits.hold_ms)
        if self.now.monotonic >= until:
            raise Refusal(ErrorCode.CONCURRENT_TRANSACTIONS, reason)
        return Held(until)


def check_transactional_id(transactional_id: str) -> None:
    """To be asked before an id is made: a longer one could be decided about, but never written. Raises Refusal."""
    if not transactional_id:
        raise Refusal(ErrorCode.INVALID_REQUEST, "the transactional id is empty")
    size = len(transactional_id.encode())
    if size > LONGEST_NAME_BYTES:
        reason = f"the transactional id has {size} bytes; at most {LONGEST_NAME_BYTES} can be kept"
        raise Refusal(ErrorCode.INVALID_REQUEST, reason)


def by_policy(context: Context) -> str:
    """Whose limit it is, for a refusal's sentence; empty where it is the cluster's own."""
    return f", by the policy of {context.policy.owner}" if context.policy.owner else ""


def begin(transaction: Transaction, context: Context, *, timeout_ms: int, client_version: int) -> Transaction:
    """The next transaction of the id is open. Its partitions or members are the caller's to add. Its limit is at
    most what is allowed now, whatever was when the producer was initialised."""
    return replace(
        transaction,
        state=State.ONGOING,
        serial=Serial(transaction.serial + 1),
        timeout_ms=timeout_ms,
        client_version=client_version,
        partitions=(),
        runs=(),
        start_ms=context.now.wall,
        last_update_ms=context.now.wall,
        elapsed_ms=Millis(0),
        limit_ms=Millis(min(timeout_ms, context.max_timeout_ms)),
    )


def opened(transaction: Transaction, context: Context, *, client_version: int) -> Transaction:
    """The open transaction; where none is, a new one without partitions, so that an empty end has a serial, too."""
    if transaction.is_open:
        return transaction
    return begin(transaction, context, timeout_ms=transaction.timeout_ms, client_version=client_version)


def raise_epoch(
    transaction: Transaction, *, by_itself: bool, next_producer_id: ProducerId = NO_PRODUCER_ID
) -> Transaction:
    """One epoch on. `by_itself`: the producer asked for it, so its retries under the old epoch are recognised."""
    last = transaction.producer_epoch if by_itself else NO_PRODUCER_EPOCH
    return replace(
        transaction,
        producer_epoch=ProducerEpoch(transaction.producer_epoch + 1),
        last_producer_epoch=last,
        previous_producer_id=NO_PRODUCER_ID,
        next_producer_id=next_producer_id,
    )


def decide(
    transaction: Transaction,
    context: Context,
    *,
    commit: bool,
    token: CommittedToken | None = None,
    members: tuple[Member, ...] | None = None,
) -> Transaction:
    """The decision: PREPARE_*, or COMPLETE_* at once where no partition waits for a marker.

    `token`: becomes the newest of its scope, with a commit. `members`: with what each has won.
    """
    prepared = replace(
        transaction,
        state=State.PREPARE_COMMIT if commit else State.PREPARE_ABORT,
        tokens=transaction.tokens if token is None else _with_token(transaction.tokens, token, context.limits),
        members=transaction.members if members is None else members,
        elapsed_ms=context.elapsed_ms,
        last_update_ms=context.now.wall,
        outcome=LastOutcome(commit, context.now.wall),
    )
    return prepared if prepared.every_partition else complete(prepared, context.now)


def complete(transaction: Transaction, now: Now) -> Transaction:
    """Every marker of a decided transaction is stored."""
    done = replace(
        transaction,
        state=State.COMPLETE_COMMIT if transaction.state is State.PREPARE_COMMIT else State.COMPLETE_ABORT,
        partitions=(),
        members=(),
        idle_members=transaction.idle_members + _reusable(transaction.members),
        open_token=None,
        runs=(),
        elapsed_ms=Millis(0),
        limit_ms=Millis(0),
        last_update_ms=now.wall,
    )
    return done if done.next_producer_id == NO_PRODUCER_ID else replace_producer_id(done, done.next_producer_id)


def replace_producer_id(transaction: Transaction, producer_id: ProducerId) -> Transaction:
    """The epochs of the producer id are used up. `last_producer_epoch` stays: it belongs to the old id now."""
    return replace(
        transaction,
        producer_id=producer_id,
        producer_epoch=FIRST_EPOCH,
        previous_producer_id=transaction.producer_id,
        next_producer_id=NO_PRODUCER_ID,
    )


def fence(transaction: Transaction, context: Context, cause: FencingCause, caller: Caller | None) -> Transaction:
    """Aborts the open transaction by another hand, under a raised epoch (of every member, where it has members)."""
    fencing = describe_fence(transaction, context.now, cause, caller)
    if not transaction.is_multi_writer:
        transaction = raise_epoch(transaction, by_itself=False)
    return decide(replace(transaction, fencing=fencing), context, commit=False)


def describe_fence(
    transaction: Transaction, now: Now, cause: FencingCause, caller: Caller | None
) -> Fencing:
    """What is kept about a fencing of the current producer, or of all members of the open transaction."""
    of_members = transaction.is_multi_writer
    return Fencing(
        cause=cause,
        at_ms=now.wall,
        client_id=caller.client_id if caller else "",
        peer=caller.peer if caller else "",
        fenced_producer_id=NO_PRODUCER_ID if of_members else transaction.producer_id,
        fenced_epoch=NO_PRODUCER_EPOCH if of_members else transaction.producer_epoch,
        serial=transaction.serial,
        fenced=None if of_members else transaction.holder,
    )


_SINGLE_USE_KEPT: Final = 20
"""Tokens of single-use scopes in a record at most: a commit is asked for again before the id has had as many others."""


def _with_token(
    tokens: tuple[CommittedToken, ...], newest: CommittedToken, limits: Limits
) -> tuple[CommittedToken, ...]:
    """Those of single-use scopes come last, as the log gives them back, and only while they may be asked for."""
    after = (*(token for token in tokens if token.scope != newest.scope), newest)
    since = newest.committed_at_ms - limits.single_use_keep_ms
    single = [token for token in after if token.single_use and token.committed_at_ms > since]
    return (*(token for token in after if not token.single_use), *single[-_SINGLE_USE_KEPT:])


def _reusable(members: tuple[Member, ...]) -> tuple[ProducerIdentity, ...]:
    """The markers have raised each member's epoch by one; an id whose epochs are used up is left behind."""
    return tuple(
        ProducerIdentity(member.producer_id, ProducerEpoch(member.producer_epoch + 1))
        for member in members
        if member.producer_epoch < LAST_EPOCH
    )
