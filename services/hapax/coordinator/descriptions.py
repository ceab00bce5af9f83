"""Descriptions of a transactional id for tools. Describing changes nothing (rule 20)."""

from __future__ import annotations

from typing import Final

from hapax.core.transaction.admin import instance_of
from hapax.core.transaction.record import NO_TIMEOUT_MS, CommittedToken, LastOutcome, Token, Transaction
from hapax.core.transaction.states import State
from hapax.core.transaction.tokens import TokenConflict
from hapax.rpc.gen.hapax.v1 import lease_pb2
from hapax.rpc.gen.hapax.v1 import transactions_pb2 as pb

_SHOWN_PARTITIONS: Final = 100


def description(transaction: Transaction) -> pb.DescribeTransactionalIdResponse:
    running = transaction.is_open or transaction.is_decided
    partitions = sorted({(each.topic, each.partition) for each in transaction.every_partition}) if running else []
    outcome = last_outcome(transaction)
    holder = transaction.holder
    return pb.DescribeTransactionalIdResponse(
        state=transaction.state.kafka_name, producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        timeout_ms=NO_TIMEOUT_MS if transaction.has_no_limit else transaction.timeout_ms,
        opened_ms=transaction.start_ms if running else -1,
        partitions=[
            lease_pb2.Partition(topic=topic, partition=index) for topic, index in partitions[:_SHOWN_PARTITIONS]
        ],
        partition_count=len(partitions), instance=instance_of(transaction),
        holder_client_id=holder.client_id if holder else "", holder_peer=holder.peer if holder else "",
        decided=outcome is not None, committed=outcome is not None and outcome.committed,
        decided_ms=outcome.at_ms if outcome else -1,
        tokens=[_committed(token) for token in transaction.tokens],
        fencing=_fencing(transaction), serial=transaction.serial, open_token=_open(transaction.open_token),
        two_phase=transaction.has_no_limit, holder_producer_id=transaction.identity.producer_id,
        holder_producer_epoch=transaction.identity.producer_epoch,
    )


def conflict(refusal: TokenConflict) -> pb.TokenConflict:
    newest = None if refusal.newest is None else _committed(refusal.newest)
    return pb.TokenConflict(cause=pb.TokenConflict.Cause.Name(refusal.cause), newest=newest)


def _committed(token: CommittedToken) -> pb.LastCommitToken:
    return pb.LastCommitToken(
        scope=token.scope, value=token.value, record_count=token.record_count, committed_at_ms=token.committed_at_ms,
        owner=token.owner, number=token.number, fingerprints=[each.kind for each in token.fingerprints],
    )


def _open(token: Token | None) -> pb.LastCommitToken | None:
    if token is None:
        return None
    return pb.LastCommitToken(scope=token.scope, value=token.value, owner=token.owner, number=token.number)


def last_outcome(transaction: Transaction) -> LastOutcome | None:
    """The outcome. A record of an earlier version has it only as its state."""
    if transaction.outcome is not None:
        return transaction.outcome
    if transaction.state in (State.COMPLETE_COMMIT, State.COMPLETE_ABORT):
        return LastOutcome(transaction.state is State.COMPLETE_COMMIT, transaction.last_update_ms)
    return None


def _fencing(transaction: Transaction) -> pb.Fencing | None:
    fencing = transaction.fencing
    if fencing is None:
        return None
    fenced = fencing.fenced
    return pb.Fencing(
        cause=fencing.cause.name.lower(), at_ms=fencing.at_ms, client_id=fencing.client_id, peer=fencing.peer,
        fenced_client_id=fenced.client_id if fenced else "", fenced_peer=fenced.peer if fenced else "",
        fenced_epoch=fencing.fenced_epoch, serial=fencing.serial,
    )
