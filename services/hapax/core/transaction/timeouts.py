"""Time-outs: aborts a transaction past its limit and removes an id past its expiry (rules 7 and 14).

A transaction's limit is a monotonic timer. After a take-over the timer continues from the elapsed time in the last
record. The time between that record and the take-over is not known, so the limit may come later but never sooner.
An id expires after days, by the wall clock of its last record.
"""

from __future__ import annotations

from hapax.core.transaction.record import FencingCause, Tombstone, Transaction
from hapax.core.transaction.requests import Decision, Limits
from hapax.core.transaction.states import TABLE, Event, State
from hapax.core.transaction.steps import Context, fence
from hapax.core.types import NO_PRODUCER_ID, Now, ProducerId


def time_out(transaction: Transaction, context: Context) -> Decision | None:
    """Aborts the open transaction if its limit has passed, under a raised epoch. A transaction under two-phase commit
    has none: it may be prepared, and its outcome decided elsewhere."""
    if TABLE[transaction.state, Event.TIME_OUT] is not State.PREPARE_EPOCH_FENCE:
        return None
    if context.elapsed_ms < transaction.limit_ms:
        return None
    aborted = fence(transaction, context, FencingCause.TIMED_OUT, caller=None)
    return Decision(aborted, reply=None, pending=State.PREPARE_EPOCH_FENCE)


def is_expired(transaction: Transaction, limits: Limits, now: Now) -> bool:
    """Whether the id was unused for its expiry time. An id with a commit token has a longer expiry time, because a lost
    token would let a replayed batch in again. An id with single-use scopes only has a short one, because such a scope
    never commits again."""
    if TABLE[transaction.state, Event.EXPIRE] is not State.DEAD:
        return False
    if any(not token.single_use for token in transaction.tokens):
        keep = limits.token_id_expiration_ms
    elif transaction.tokens and transaction.producer_id == NO_PRODUCER_ID:
        keep = limits.single_use_keep_ms
    else:
        keep = limits.id_expiration_ms
    return now.wall - transaction.last_update_ms >= keep


def expire(
    transaction: Transaction, deltas: tuple[ProducerId, ...], limits: Limits, now: Now
) -> Decision | None:
    """`deltas`: the members whose deltas the log may hold, of any transaction of the id."""
    if not is_expired(transaction, limits, now):
        return None
    return Decision(Tombstone(transaction.transactional_id, deltas), reply=None, pending=State.DEAD)
