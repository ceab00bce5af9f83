"""Errors of commits. Each situation has its own error, which states what happened and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from hapax.client import Conflict, LastToken, TokenConflictError
from hapax.client.identities import IdentityInfo
from hapax_spark.errors import CheckpointError
from hapax_spark.fingerprints import OFFSETS, RECORDS, records_in
from hapax_spark.tokens import FirstName, Token


class CommitRefusedError(RuntimeError):
    """The cluster has another commit in place of this one. No record of the batch is visible, and none is lost."""


class OldCheckpointError(CommitRefusedError):
    """The batch is older than the newest one of its query."""


class ScopeTakenError(CommitRefusedError):
    """The scope belongs to another query."""


class OtherRecordsError(CommitRefusedError):
    """The batch was committed with other records."""


class RecordCountError(CommitRefusedError):
    """The batch was committed with another number of records."""


class OtherDriverError(CommitRefusedError):
    """Another driver of the same query writes, or wrote, the same batch."""


class SharedTransactionalIdError(CommitRefusedError):
    """Two queries write under one transactional id, and each ends the other's transactions."""


class FencedByOthersError(CommitRefusedError):
    """Another program initialised or fenced the transactional id."""


class TransactionLostError(RuntimeError):
    """The batch's transaction ended before the driver could commit it. No record of the batch is visible."""

    def __init__(self, token: Token, timeout_ms: int, reason: str) -> None:
        super().__init__(
            f"the transaction of batch {token.value} ({token.transactional_id}) ended before it could be committed: "
            f"{reason.rstrip('.')}. Nothing of the batch is visible and it may be replayed. If it had been silent for "
            f"longer than transaction.timeout.ms={timeout_ms}, raise that option or lower maxOffsetsPerTrigger"
        )


def refusal(
    token: Token, error: TokenConflictError, cluster_id: str, kinds: Sequence[str] = ()
) -> Exception:
    """The error for a token that the cluster refuses because of another commit. `kinds`: of the batch's
    fingerprints."""
    newest = error.newest
    if error.conflict is Conflict.OTHER_RUN:
        return _other_run(token)
    if error.conflict is Conflict.UNKNOWN_HISTORY or newest is None:
        return _unknown_history(token, newest, cluster_id)
    if error.conflict is Conflict.OTHER_PAST:
        return _other_past(token, newest) if token.value > newest.number else _unknown_past(token, newest)
    if error.conflict is Conflict.OTHER_WORK:
        compared = next((kind for kind in kinds if kind in newest.fingerprints), None)
        if compared is None:
            return _incomparable(token, newest)
        if compared == records_in(token.within):
            return _second_write(token, newest)
        return _other_work(token, newest, by_records=compared == RECORDS)
    return _SENTENCES[error.conflict](token, newest)


def _unknown_history(token: Token, newest: LastToken | None, cluster_id: str) -> CheckpointError:
    if newest is None:
        return CheckpointError(
            f"This is {token.what}, but the cluster {cluster_id!r} knows no commit of {token.scope!r} under the "
            f"transactional id {token.transactional_id!r}: the checkpoint belongs to another cluster or query, the "
            "option scope, txnAppId or transactional.id was changed, or the cluster has deleted the last commit after "
            "transactional.token.expiration.ms. Nothing of this batch was written. Use the original cluster and "
            "options, or a new checkpointLocation. If you know that all earlier batches were committed, set "
            "allowUnknownHistory=true to continue"
        )
    of_whom = "it" if newest.owner == token.owner else f"the scope {token.scope!r}, which belongs to {newest.owner},"
    left_out = (
        ", or the function of foreachBatch left them out (let it write every batch, even an empty one, or set "
        "txnConsecutive=false)"
        if token.is_version
        else ""
    )
    return CheckpointError(
        f"This is {token.what}, but the newest commit that the cluster {cluster_id!r} knows of {of_whom} is "
        f"{_named(newest)}. The batches in between were not committed here: they were written to another cluster or by "
        f"another sink, or an older copy of the cluster was restored{left_out}. Find out where their records are. To "
        f"write the missing records, use a new checkpointLocation with startingOffsets after {_named(newest)} and "
        f"continueFrom={_commit(newest)}. To continue without them, set allowUnknownHistory=true"
    )


def _other_past(token: Token, newest: LastToken) -> CheckpointError:
    return CheckpointError(
        f"This is {token.what}, but the batch before it is not the one that was committed under that number, "
        f"{_named(newest)}: files of the checkpoint were modified or mixed with those of a copy, another job has "
        "continued from a copy, or an older copy of the cluster was restored. Nothing of this batch was written. Use "
        f"the checkpoint that committed {_named(newest)}, or a new checkpointLocation with startingOffsets after that "
        f"batch and continueFrom={_commit(newest)}. If you know that no record is missing, set "
        "allowUnknownHistory=true to continue"
    )


def _unknown_past(token: Token, newest: LastToken) -> CheckpointError:
    before = token.value - 1
    kind = "version" if token.is_version else "batch"
    return CheckpointError(
        f"This is {token.what}. continueFrom permits to write again from there, but the {kind} {before} before it, as "
        f"this checkpoint has it, is not among the newest commits here, of which the last is {_named(newest)}. It was "
        "marked as done without having been committed, files of the checkpoint were modified or mixed with those of a "
        "copy, or it was committed before the last 100 commits or by a release that did not remember them. Nothing of "
        f"this batch was written. If {kind} {before} was not committed, its records are missing: delete the files of "
        f"that batch and of later ones in the checkpoint's folders 'offsets' and 'commits', and start the query again. "
        f"If you know that no record before this {kind} is missing, set allowUnknownHistory=true for its commit"
    )


def _older(token: Token, newest: LastToken) -> OldCheckpointError:
    return OldCheckpointError(
        f"This is {token.what}, but {_named(newest)} is already committed: {_whence(token)}, or another job continues "
        "from a copy of it. Nothing of this batch was written. Use the checkpoint that progressed to "
        f"{_named(newest)}. To write the records from this batch on once more, in addition to the committed ones, set "
        f"continueFrom={_commit(newest)}"
    )


def scope_taken(token: Token, newest: LastToken) -> ScopeTakenError:
    return ScopeTakenError(
        f"The scope {token.scope!r} belongs to {newest.owner or 'another query'}. Its newest commit is "
        f"{_named(newest)}; this is {token.what}. Nothing of this batch was written. Two queries cannot share a scope: "
        "give this one another scope, or leave the option out. If this query replaces the other one, with a new "
        "checkpoint, stop the other one, start this one where the other one ended (startingOffsets), and set "
        f"continueFrom={_commit(newest)}"
    )


def _second_write(token: Token, newest: LastToken) -> OtherRecordsError:
    return OtherRecordsError(
        f"Two writes of one micro-batch have the same name: this is {token.what}, which was already committed by the "
        f"same run of the query, with other records ({_told(newest)}). Nothing of this write was written. Give each "
        "write its own txnAppId, or combine both into one write, with the column 'topic'"
    )


def _other_work(token: Token, newest: LastToken, *, by_records: bool) -> OtherRecordsError:
    unsteady = (
        " If the query computes other records from the same input in each run (random numbers, the current time, sums "
        "of floating point numbers in another order), allowOtherRecords=true keeps the committed ones."
        if by_records
        else ""
    )
    if by_records and OFFSETS in newest.fingerprints:
        unsteady += " So does the option checkpointLocation, if the driver can read that folder, as it could before."
    return OtherRecordsError(
        f"This is {token.what}, which was already committed, but as other work ({_told(newest)}): {_whence(token)}, or "
        "another job continues from a copy of it, or writes to another topic. Nothing of this batch was "
        f"written.{unsteady} Use the checkpoint that committed it, and only one job for each checkpoint. To write this "
        f"batch's records in addition to the committed ones, set continueFrom={_commit(newest)}"
    )


def _incomparable(token: Token, newest: LastToken) -> OtherRecordsError:
    known, now = ("its records", "Spark's plan") if RECORDS in newest.fingerprints else ("Spark's plan", "its records")
    return OtherRecordsError(
        f"This is {token.what}, which was already committed ({_told(newest)}), but it cannot be determined whether as "
        f"the same work: the commit is known by {known}, this run by {now}, because the driver could read the "
        "checkpoint only one of the two times. Nothing of this run was written. Give the driver the same access to "
        "the checkpoint (option checkpointLocation) as at the commit. If this is the checkpoint that committed the "
        "batch, allowOtherRecords=true keeps the committed records and continues"
    )


def _other_count(token: Token, newest: LastToken) -> RecordCountError:
    return RecordCountError(
        f"This is {token.what}, which was already committed, from the same input but with another number of records "
        f"({_told(newest)}): the query or its source does not return the same rows each time. Nothing of this run was "
        "written. Make it deterministic, or set allowOtherRecordCount=true to keep the committed records and continue"
    )


def _other_run(token: Token) -> OtherDriverError:
    return OtherDriverError(
        f"Another driver runs {token.what} at the same time. Nothing of this driver's run was written. Stop one of the "
        "drivers; the other one continues, or can be restarted"
    )


_SENTENCES = {
    Conflict.OLDER: _older,
    Conflict.OTHER_OWNER: scope_taken,
    Conflict.OTHER_COUNT: _other_count,
}


def ended(token: Token, timeout_ms: int, reason: str, info: IdentityInfo | None) -> Exception:
    """The error for a transaction that ended before its commit, derived from the coordinator's state of the id."""
    if info is None:
        return TransactionLostError(token, timeout_ms, reason)
    newest = newest_in(token.scope, info)
    if token.owner and newest is not None and newest.owner == token.owner and newest.number == token.value:
        return OtherDriverError(
            f"Another driver has committed {token.what} in the meantime ({_told(newest)}). Nothing of this driver's "
            "run was written. Stop one of the drivers; the other one continues, or can be restarted"
        )
    cause = info.fencing.cause if info.fencing is not None else ""
    if cause == "newer_token":
        opened = info.open_token
        others = [each for each in info.tokens if each.scope != token.scope]
        other = opened if opened is not None and opened.scope != token.scope else max(
            others, key=lambda each: each.committed_ms, default=None)  # fmt: skip
        if other is None:
            return _other_run(token)
        return SharedTransactionalIdError(
            f"The transaction of {token.what} was ended by one of scope {other.scope!r}: both write under the "
            f"transactional id {token.transactional_id!r}, which has one transaction at a time. Nothing of this batch "
            "is visible and it may be replayed. Give each query its own transactional.id, or leave the option out"
        )
    if cause == "initialized":
        assert info.fencing is not None
        by = " ".join(filter(None, (info.fencing.by_client, info.fencing.by_peer))) or "an unknown client"
        return FencedByOthersError(
            f"The transaction of {token.what} was ended by {by} at {_when(info.fencing.at_ms)}, which took or fenced "
            f"its transactional id {token.transactional_id!r}. Nothing of this batch is visible and it may be "
            "replayed. If the query was stopped intentionally, restart it; otherwise give the other client another "
            "transactional id"
        )
    return TransactionLostError(token, timeout_ms, reason)


def newest_in(scope: str, info: IdentityInfo) -> LastToken | None:
    return next((each for each in info.tokens if each.scope == scope), None)


def renamed(token: Token, name: FirstName, former: FirstName, known: IdentityInfo | None) -> CheckpointError | None:
    """The error for a first batch that was started under a `former` name, if it was committed there or may yet be.
    `known`: the coordinator's state of the former transactional id."""
    first = f"This is {token.what}, the first one of its checkpoint. It was started "
    under = f"as scope {former.scope!r} under the transactional id {former.transactional_id!r}"
    nothing = "Nothing of this run was written."
    if former.cluster != name.cluster:
        return CheckpointError(
            f"{first}in the cluster {former.cluster!r}, where it may be committed; this is {name.cluster!r}. {nothing} "
            "Use the original cluster and options, or a new checkpointLocation. allowUnknownHistory=true writes the "
            "batch here as well"
        )
    if known is None:
        return None
    owners = (former.owner, token.owner)
    newest = newest_in(former.scope, known)
    if newest is not None and newest.owner in owners:
        changed = "the option scope or transactional.id was changed" if former.owner == token.owner else (
            f"by query {former.owner}, so the checkpoint's file 'metadata' was lost or is that of another query")
        return CheckpointError(
            f"{first}{under}, and committed there ({_named(newest)}): {changed}. {nothing} Continue under the original "
            "name, or use a new checkpointLocation with startingOffsets after this batch. allowUnknownHistory=true "
            "writes its records once more"
        )
    if newest is not None and newest.owner:
        return CheckpointError(
            f"{first}{under}, and may have been committed there: the scope had no owner then, or this query continued "
            f"it, and it now belongs to query {newest.owner} ({_named(newest)}). {nothing} Find out whether the "
            "batch's records are there. If they are, use a new checkpointLocation with startingOffsets after this "
            "batch; if not, allowUnknownHistory=true writes them"
        )
    opened = known.open_token if known.state == "Ongoing" else None  # otherwise its outcome is decided
    if opened is not None and opened.scope == former.scope and opened.owner in owners:
        return CheckpointError(
            f"{first}{under}, in a transaction that is open and may still be committed. {nothing} Stop the driver that "
            "writes it, if one runs, and try again when the transaction has timed out (transaction.timeout.ms), or "
            "continue under the original name"
        )
    return None


def _whence(token: Token) -> str:
    """Possible reasons why a number is reused. A query's checkpoint contains its id, an application's does not."""
    return "the checkpoint is an older copy" + (", or a new one, which counts from 0" if token.is_version else "")


def _commit(newest: LastToken) -> str:
    """The value for the option continueFrom."""
    return f"{newest.owner}:{newest.value}"


def _named(newest: LastToken) -> str:
    return f"batch {newest.number} ({_told(newest)})"


def _told(newest: LastToken) -> str:
    return f"{newest.records} records, {_when(newest.committed_ms)}"


def _when(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds")
