"""Commit tokens (rule 7): is this commit new, a repetition, or one without a past?

A token makes a commit idempotent for an engine that replays: its value is stored with the very decision, and only a
commit stores one. What is not newer than the newest of its scope has been committed, whatever became of the caller.
"""

from __future__ import annotations

from hapax.core.errors import ErrorCode, Refusal
from hapax.core.transaction_record import CommittedToken, Token, Transaction
from hapax.core.transaction_requests import (
    CommitTokenFound,
    Decision,
    EndTransaction,
    GetCommitToken,
    JoinTransaction,
)
from hapax.core.transaction_steps import Context


def check_token(token: Token) -> None:
    """Refuses what is no token: no scope, or a negative value."""
    if not token.scope:
        raise Refusal(ErrorCode.INVALID_REQUEST, "a commit token needs a scope that names the query, file or job")
    if token.value < 0:
        raise Refusal(ErrorCode.INVALID_REQUEST, f"commit token {token.value} of {token.scope} is negative")


def already_committed(transaction: Transaction | None, token: Token) -> CommittedToken | None:
    """The newest committed token of the scope, where `token` is not newer than it."""
    newest = transaction.committed_token(token.scope) if transaction else None
    return newest if newest is not None and token.value <= newest.value else None


def check_count(newest: CommittedToken, request: EndTransaction) -> None:
    """A replay of the newest token with another number of records is not the same work: it fails loudly.

    Of older tokens only the newest one's value is known, so their number cannot be compared.
    """
    assert request.token is not None
    if request.token.value < newest.value or request.record_count == newest.record_count:
        return
    if not request.allow_other_count:
        raise Refusal(
            ErrorCode.INVALID_TXN_STATE,
            f"commit token {newest.value} of {newest.scope} was committed with {newest.record_count} records, "
            f"this replay has {request.record_count}",
        )


def check_history(
    transaction: Transaction | None, token: Token, request: JoinTransaction | EndTransaction, context: Context
) -> None:
    """A token above 0 whose scope has no history: its past may have been lost, and with it what is committed."""
    if transaction is not None:
        if transaction.committed_token(token.scope) is not None:
            return
        if len(transaction.tokens) >= context.limits.max_scopes:
            raise Refusal(
                ErrorCode.INVALID_REQUEST,
                f"{transaction.transactional_id} has {len(transaction.tokens)} scopes of commit tokens already",
            )
    if token.value > 0 and not request.allow_unknown_history:
        raise Refusal(
            ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
            f"commit token {token.value} of {token.scope} has no history here: what came before it may be lost",
        )


def committed_now(transaction: Transaction, request: EndTransaction, context: Context) -> CommittedToken:
    """What a commit stores."""
    assert request.token is not None
    return CommittedToken(
        scope=request.token.scope,
        value=request.token.value,
        record_count=request.record_count,
        serial=transaction.serial,
        committed_at_ms=context.now.wall,
    )


def get_commit_token(transaction: Transaction | None, request: GetCommitToken, _: Context) -> Decision:
    """The newest committed token of a scope. An engine decides on it what to replay, so it is confirmed (rule 12)."""
    found = transaction.committed_token(request.scope) if transaction else None
    return Decision(None, CommitTokenFound(found), confirm=True)
