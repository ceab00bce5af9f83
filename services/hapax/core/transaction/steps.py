"""Makes the next record for each step of a transaction: begin, decide, complete.

These functions are pure constructors. Their callers have checked that the step is allowed.
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
    NO_LIMIT,
    NO_TIMEOUT_MS,
    CommittedToken,
    Fencing,
    FencingCause,
    LastOutcome,
    Member,
    PartitionSet,
    ProducerIdentity,
    Transaction,
    TransactionPartition,
)
from hapax.core.transaction.requests import Caller, Held, Limits, ProducerIdReserve
from hapax.core.transaction.states import State
from hapax.core.types import (
    LONGEST_NAME_BYTES,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    Millis,
    Now,
    ProducerEpoch,
    ProducerId,
    Serial,
)


@dataclass(frozen=True, slots=True)
class Context:
    """A decision's input beside the id's state and the request."""

    limits: Limits
    ids: ProducerIdReserve
    now: Now
    elapsed_ms: Millis
    """How long the id's open transaction has been open, by the monotonic clock; 0 where none is."""
    policy: TransactionPolicy = UNLIMITED
    """The policy that applies to the id."""
    checking: bool = False
    """A commit waits to learn what its winners' partitions hold."""
    under_way: DeltasInFlight | None = None
    """Members' records that are being written. The transaction includes them, the log may not."""
    waiting: Mapping[ProducerId, PartitionSet] = field(default_factory=dict)
    """Partitions that members ask to register while another record of theirs is being written."""

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
    """Checks a new id: a longer one could be decided but never written. Raises Refusal."""
    if not transactional_id:
        raise Refusal(ErrorCode.INVALID_REQUEST, "the transactional id is empty")
    size = len(transactional_id.encode())
    if size > LONGEST_NAME_BYTES:
        reason = f"the transactional id has {size} bytes; at most {LONGEST_NAME_BYTES} can be kept"
        raise Refusal(ErrorCode.INVALID_REQUEST, reason)


def by_policy(context: Context) -> str:
    """The end of a refusal's sentence, which names the policy. Empty where the limit is the cluster's own."""
    return f", by the policy of {context.policy.owner}" if context.policy.owner else ""


def begin(
    transaction: Transaction,
    context: Context,
    *,
    timeout_ms: int,
    client_version: int,
    partitions: tuple[TransactionPartition, ...] = (),
) -> Transaction:
    """Opens the next transaction of the id with its first partitions. The caller adds its members. Its limit is at most
    what is allowed now, which may be less than when the producer was initialised."""
    return replace(
        transaction,
        state=State.ONGOING,
        serial=Serial(transaction.serial + 1),
        timeout_ms=timeout_ms,
        client_version=client_version,
        partitions=partitions,
        runs=(),
        start_ms=context.now.wall,
        last_update_ms=context.now.wall,
        elapsed_ms=Millis(0),
        limit_ms=Millis(min(timeout_ms, context.max_timeout_ms)),
    )


def begin_own(
    transaction: Transaction,
    context: Context,
    *,
    client_version: int,
    partitions: tuple[TransactionPartition, ...] = (),
) -> Transaction:
    """Opens the next transaction of the single writer. Under two-phase commit it has no limit."""
    timeout = NO_TIMEOUT_MS if transaction.two_phase else transaction.timeout_ms
    begun = begin(
        transaction, context, timeout_ms=timeout, client_version=client_version, partitions=partitions)
    return replace(begun, limit_ms=NO_LIMIT) if transaction.two_phase else begun


def opened(transaction: Transaction, context: Context, *, client_version: int) -> Transaction:
    """The open transaction. Where none is open, a new one of the single writer without partitions, so that the end of
    an empty transaction has a serial too."""
    if transaction.is_open:
        return transaction
    return begin_own(transaction, context, client_version=client_version)


def raise_epoch(
    transaction: Transaction, *, by_itself: bool, next_producer_id: ProducerId = NO_PRODUCER_ID
) -> Transaction:
    """Raises the epoch by one. `by_itself`: the producer asked for it, so its retries under the old epoch are
    recognised. Of a kept transaction, both epochs rise: the transaction's own, which its markers have, and the
    holder's, so that what former holders sent is refused after the decision too.
    """
    if transaction.is_kept:
        holder = transaction.identity
        rotated = next_producer_id != NO_PRODUCER_ID
        return replace(
            transaction,
            producer_epoch=ProducerEpoch(transaction.producer_epoch + 1),
            last_producer_epoch=holder.producer_epoch if by_itself else NO_PRODUCER_EPOCH,
            previous_producer_id=holder.producer_id,
            next_producer_id=next_producer_id if rotated else holder.producer_id,
            next_producer_epoch=FIRST_EPOCH if rotated else ProducerEpoch(holder.producer_epoch + 1),
        )
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
    """The decision: PREPARE_*, or COMPLETE_* at once where no partition needs a marker.

    `token` becomes the newest of its scope. `members` carry the partitions that each of them has won.
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
    """The COMPLETE record of a decided transaction, after every marker is stored."""
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
    if done.is_kept:
        return _passed_on(done)
    return done if done.next_producer_id == NO_PRODUCER_ID else replace_producer_id(done, done.next_producer_id)


def _passed_on(transaction: Transaction) -> Transaction:
    """After the decision of a kept transaction: only the identity of its holder is left."""
    identity, former = transaction.identity, transaction.previous_producer_id
    return replace(
        transaction,
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
        previous_producer_id=NO_PRODUCER_ID if former == identity.producer_id else former,
        next_producer_id=NO_PRODUCER_ID,
        next_producer_epoch=NO_PRODUCER_EPOCH,
    )


def replace_producer_id(transaction: Transaction, producer_id: ProducerId) -> Transaction:
    """Replaces a producer id whose epochs are used up. `last_producer_epoch` stays and now belongs to the old id."""
    return replace(
        transaction,
        producer_id=producer_id,
        producer_epoch=FIRST_EPOCH,
        previous_producer_id=transaction.producer_id,
        next_producer_id=NO_PRODUCER_ID,
    )


def fence(
    transaction: Transaction, context: Context, cause: FencingCause, caller: Caller | None, *, commit: bool = False
) -> Transaction:
    """Aborts the open transaction against its producer's will, under a raised epoch (of every member, where it has
    members). `commit`: an operator commits it instead."""
    fencing = describe_fence(transaction, context.now, cause, caller)
    if not transaction.is_multi_writer:
        transaction = raise_epoch(transaction, by_itself=False)
    return decide(replace(transaction, fencing=fencing), context, commit=commit)


def describe_fence(
    transaction: Transaction, now: Now, cause: FencingCause, caller: Caller | None
) -> Fencing:
    """Describes a fencing of the current producer, or of all members of the open transaction."""
    of_members = transaction.is_multi_writer
    producer_id, epoch = transaction.identity
    return Fencing(
        cause=cause,
        at_ms=now.wall,
        client_id=caller.client_id if caller else "",
        peer=caller.peer if caller else "",
        fenced_producer_id=NO_PRODUCER_ID if of_members else producer_id,
        fenced_epoch=NO_PRODUCER_EPOCH if of_members else epoch,
        serial=transaction.serial,
        fenced=None if of_members else transaction.holder,
    )


_SINGLE_USE_KEPT: Final = 20
"""Maximum number of single-use scopes' tokens in a record. A lost answer is requested again before the id has had this
many further commits."""


def _with_token(
    tokens: tuple[CommittedToken, ...], newest: CommittedToken, limits: Limits
) -> tuple[CommittedToken, ...]:
    """Tokens of single-use scopes come last, as in the log, and only for as long as a repeated request may come."""
    after = (*(token for token in tokens if token.scope != newest.scope), newest)
    since = newest.committed_at_ms - limits.single_use_keep_ms
    single = [token for token in after if token.single_use and token.committed_at_ms > since]
    return (*(token for token in after if not token.single_use), *single[-_SINGLE_USE_KEPT:])


def _reusable(members: tuple[Member, ...]) -> tuple[ProducerIdentity, ...]:
    """The members' identities after the markers, which have raised each epoch by one. A producer id whose epochs are
    used up is dropped."""
    return tuple(
        ProducerIdentity(member.producer_id, ProducerEpoch(member.producer_epoch + 1))
        for member in members
        if member.producer_epoch < LAST_EPOCH
    )
