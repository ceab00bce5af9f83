"""Commit tokens (rule 7): is a commit new, a repetition, or a conflict with another owner's commits?

A token makes a commit idempotent for an engine that replays. It is stored with the decision, and only a commit stores
one. A token describes its work by its owner (the query) and by fingerprints of the committed records. An engine replays
only its newest commit, so

- the newest commit is confirmed only to its owner, and only for the same work;
- an older commit is refused: the caller works from an older copy of its own state, so its records differ;
- a commit that does not follow the newest one is refused, because the commits between them are missing here. A commit
  that follows other work with the newest one's number is refused too, because the caller's history differs from the
  commits here;
- another owner is refused unless it names the commit that it continues after. Then its number 0 is the next value. An
  owner whose number is higher has its earlier commits elsewhere;
- the owner itself may name the newest commit, in order to commit an older number again. Work before that number which
  was never committed would be left out. So the work that the number follows has to be among the owner's commits, of
  which the newest are remembered by traces (`CommittedToken.past`).

A token without an owner is only a value, and every value up to the newest one counts as committed. The next owner to
commit takes over tokens from before owners were stored, with the same numbers.
"""

from __future__ import annotations

import hashlib
from enum import IntEnum
from typing import Final

from hapax.core.errors import ErrorCode, Refusal
from hapax.core.transaction.record import CommittedToken, Fingerprint, Token, Transaction
from hapax.core.transaction.requests import (
    CommitName,
    CommitTokenFound,
    Decision,
    EndTransaction,
    GetCommitToken,
    JoinTransaction,
    TokenWork,
)
from hapax.core.transaction.steps import Context
from hapax.core.types import LONGEST_NAME_BYTES

REMEMBERED: Final = 100
"""Commits before the newest one: as many as Spark keeps batches in a checkpoint.
Source: spark.sql.streaming.minBatchesToRetain."""
_TRACE_BYTES: Final = 8


class Conflict(IntEnum):
    """The reason why a token is refused. As in `hapax.v1.TokenConflict.Cause`."""

    OLDER = 1               # the owner has committed later work
    OTHER_OWNER = 2         # the scope belongs to another owner
    OTHER_WORK = 3          # the owner's newest commit was of other work
    OTHER_COUNT = 4         # the same work, with another number of records
    UNKNOWN_HISTORY = 5     # the commit before it is unknown here
    OTHER_RUN = 6           # another driver of the owner is writing the same commit
    OTHER_PAST = 7          # the commit before it was of other work here, or is none of those remembered


class TokenConflict(Refusal):
    """A refusal because of the scope's newest commit (`newest`; None: there is none)."""

    def __init__(self, cause: Conflict, reason: str, newest: CommittedToken | None) -> None:
        history = cause in (Conflict.UNKNOWN_HISTORY, Conflict.OTHER_PAST)
        super().__init__(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND if history else ErrorCode.INVALID_TXN_STATE, reason)
        self.cause = cause
        self.newest = newest


def check_token(token: Token, work: TokenWork) -> None:
    """Raises Refusal for a token without a scope, with a negative value, with work but no owner, or too long to be
    stored.
    """
    if not token.scope:
        raise Refusal(ErrorCode.INVALID_REQUEST, "a commit token needs a scope that names the query, file or job")
    prints = [each.kind for each in work.fingerprints] + [each.digest for each in work.fingerprints]
    for what, texts in (("scope", [token.scope]), ("owner", [work.owner]), ("run", [work.run]), ("work", prints)):
        size = sum(len(each.encode() if isinstance(each, str) else each) for each in texts)
        if size > LONGEST_NAME_BYTES:
            reason = f"the {what} of a commit token has {size} bytes; at most {LONGEST_NAME_BYTES} can be kept"
            raise Refusal(ErrorCode.INVALID_REQUEST, reason)
    if token.value < 0:
        raise Refusal(ErrorCode.INVALID_REQUEST, f"commit token {token.value} of {token.scope} is negative")
    if not work.owner and work != TokenWork():
        raise Refusal(ErrorCode.INVALID_REQUEST, f"commit token {token.value} of {token.scope} has no owner")


def placed(
    transaction: Transaction | None, token: Token, request: JoinTransaction | EndTransaction, context: Context
) -> Token | CommittedToken:
    """The token to commit, or the newest committed one where the caller repeats that. Raises TokenConflict."""
    newest = transaction.committed_token(token.scope) if transaction else None
    work = request.work
    if newest is None:
        _check_history(transaction, token, request, context)
        return token._replace(owner=work.owner)
    following = newest.value + 1
    onward = Token(token.scope, following, work.owner, following - token.value)
    continuing = work.continue_from == CommitName(newest.owner, newest.value)
    if newest.owner and newest.owner != work.owner:
        if not continuing:
            raise _other_owner(newest, work)
        if work.follows is None or request.allow_unknown_history:
            return onward
        raise _gap(token, newest, work)
    value = newest.base + token.value
    if value > newest.value:
        if not request.allow_unknown_history:
            _check_follows(newest, token, work)
        return Token(token.scope, value, work.owner, newest.base)
    if not work.owner:
        return newest
    if continuing:
        if value == newest.value and isinstance(request, EndTransaction) and _is_same(newest, work):
            return newest
        if not request.allow_unknown_history:
            _check_past(newest, token, work)
        return onward
    if value < newest.value:
        raise TokenConflict(
            Conflict.OLDER,
            f"commit token {token.value} of {token.scope} is older than the newest, {newest.number}, of {work.owner}",
            newest,
        )
    return newest


def check_same_work(newest: CommittedToken, request: EndTransaction) -> None:
    """Raises TokenConflict for a replay of the newest token with other work.

    Older tokens, which only callers without an owner repeat, are not stored, so they cannot be compared.
    """
    token = request.token
    assert token is not None
    if not request.work.owner and token.value < newest.value:
        return
    if not request.work.allow_other_work and not _is_same(newest, request.work):
        raise TokenConflict(
            Conflict.OTHER_WORK,
            f"commit token {newest.number} of {newest.scope} was committed with other work than this",
            newest,
        )
    if request.record_count != newest.record_count and not request.allow_other_count:
        raise TokenConflict(
            Conflict.OTHER_COUNT,
            f"commit token {newest.number} of {newest.scope} was committed with {newest.record_count} records, "
            f"this replay has {request.record_count}",
            newest,
        )


def _is_same(newest: CommittedToken, work: TokenWork) -> bool:
    """Whether the work is the same. A token without fingerprints is compared by its number of records alone."""
    return not newest.fingerprints or bool(_agree(newest, work.fingerprints))


def _agree(newest: CommittedToken, fingerprints: tuple[Fingerprint, ...]) -> bool | None:
    """Whether the fingerprints of the first common kind agree; None where no kind is common."""
    kept = dict(newest.fingerprints)
    return next((kept[kind] == digest for kind, digest in fingerprints if kind in kept), None)


def _check_follows(newest: CommittedToken, token: Token, work: TokenWork) -> None:
    if work.follows is None:
        return
    if newest.base + work.follows != newest.value:
        raise _gap(token, newest, work)
    if _agree(newest, work.followed) is False:
        raise TokenConflict(
            Conflict.OTHER_PAST,
            f"commit token {token.value} of {token.scope} follows another {work.follows} than was committed here",
            newest,
        )


def _check_past(newest: CommittedToken, token: Token, work: TokenWork) -> None:
    """Checks that an older number of the newest commit's owner follows work that was committed, too. Where no commit
    states an end, as the caller does, only the numbers are known."""
    comparable = newest.past or _agree(newest, work.followed) is not None
    if work.follows is None or not work.followed or not comparable:
        return
    known = newest.past + _traces(newest.number, newest.fingerprints)
    remembered = {known[at : at + _TRACE_BYTES] for at in range(0, len(known), _TRACE_BYTES)}
    if not any(trace(work.follows, each) in remembered for each in work.followed):
        raise TokenConflict(
            Conflict.OTHER_PAST,
            f"commit token {token.value} of {token.scope} follows a {work.follows} of {work.owner} that is not among "
            f"the commits remembered here, the newest of which is {newest.number}",
            newest,
        )


def trace(number: int, fingerprint: Fingerprint) -> bytes:
    """What is remembered of a commit by its owner's number and one of its fingerprints: 8 bytes. Two commits have the
    same trace by chance with a probability of 2^-64."""
    parts = (b"%d" % number, fingerprint.kind.encode(), fingerprint.digest)
    hashed = b"".join([len(part).to_bytes(4, "big") + part for part in parts])
    return hashlib.blake2b(hashed, digest_size=_TRACE_BYTES).digest()


def _traces(number: int, fingerprints: tuple[Fingerprint, ...]) -> bytes:
    return b"".join([trace(number, each) for each in fingerprints])


def _past(newest: CommittedToken | None, token: Token, work: TokenWork) -> bytes:
    """The traces that a commit after `newest` stores: of fingerprints of the kinds by which the owner says what it
    follows. Another owner's commits are forgotten, because it counts for itself."""
    if newest is None or not token.owner or newest.owner != token.owner:
        return b""
    kinds = {kind for kind, _ in work.followed}
    followed = next((each for each in newest.fingerprints if each.kind in kinds), None)
    added = b"" if followed is None else trace(newest.number, followed)
    return (newest.past + added)[-REMEMBERED * _TRACE_BYTES :]


def _gap(token: Token, newest: CommittedToken, work: TokenWork) -> TokenConflict:
    return TokenConflict(
        Conflict.UNKNOWN_HISTORY,
        f"commit token {token.value} of {token.scope} follows {work.follows} of {work.owner}, but the newest one here "
        f"is {newest.number} of {newest.owner or 'a caller without a name'}: what came between is not here",
        newest,
    )


def _other_owner(newest: CommittedToken, work: TokenWork) -> TokenConflict:
    return TokenConflict(
        Conflict.OTHER_OWNER,
        f"the commits of {newest.scope} are those of {newest.owner}, up to {newest.value}, not of "
        f"{work.owner or 'a caller without a name'}",
        newest,
    )


def _check_history(
    transaction: Transaction | None, token: Token, request: JoinTransaction | EndTransaction, context: Context
) -> None:
    """Checks a token in a scope without history. The scope's earlier commits may have been lost."""
    lasting = 0 if transaction is None else sum(not each.single_use for each in transaction.tokens)
    if transaction is not None and lasting >= context.limits.max_scopes:
        raise Refusal(
            ErrorCode.INVALID_REQUEST,
            f"{transaction.transactional_id} has {lasting} scopes of commit tokens: "
            "transaction.max.scopes of the coordinators allows no more. Raise it, or use another transactional id",
        )
    if (token.value > 0 or request.work.continue_from is not None) and not request.allow_unknown_history:
        raise TokenConflict(
            Conflict.UNKNOWN_HISTORY,
            f"commit token {token.value} of {token.scope} has no history here: what came before it may be lost",
            None,
        )


def committed_now(transaction: Transaction, token: Token, request: EndTransaction, context: Context) -> CommittedToken:
    """The token that a commit stores."""
    return CommittedToken(
        scope=token.scope,
        value=token.value,
        record_count=request.record_count,
        serial=transaction.serial,
        committed_at_ms=context.now.wall,
        owner=token.owner,
        base=token.base,
        fingerprints=request.work.fingerprints,
        single_use=request.single_use and not token.owner,
        past=_past(transaction.committed_token(token.scope), token, request.work),
    )


def get_commit_token(transaction: Transaction | None, request: GetCommitToken, _: Context) -> Decision:
    """The newest committed token of a scope. An engine uses it to decide what to replay, so it is confirmed (rule
    12)."""
    found = transaction.committed_token(request.scope) if transaction else None
    return Decision(None, CommitTokenFound(found), confirm=True)
