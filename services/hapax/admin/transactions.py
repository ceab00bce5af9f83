"""/v1/transactions and /v1/hanging-transactions."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import APIRouter, Body, Query, Response
from pydantic import BaseModel, Field

from hapax.admin.answers import LARGEST_INT32, LARGEST_INT64, Caller, IdempotencyKey, Name, RequestBody, answer
from hapax.admin.callers import Caller as RequestCaller
from hapax.admin.context import Context
from hapax.admin.needs import Routes
from hapax.admin.paging import Cursor, Limit, page
from hapax.admin.problems import Problem
from hapax.admin.topics import find_partition
from hapax.client import Admin
from hapax.client.producers import (
    ABORT_BREAKS_PROMISE,
    COMMIT_BREAKS_PROMISE,
    Hanging,
    PartitionProducer,
    TransactionDetail,
    open_on,
)
from hapax.core.access.resources import DESCRIBE_TOPIC, DESCRIBE_TRANSACTIONAL_ID, READ_TOPIC
from hapax.core.errors import ErrorCode
from hapax.runtime import telemetry

log = telemetry.logger("rest")

_STATES: Final = (
    "Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "PrepareEpochFence", "Dead",
)


class TransactionSummary(BaseModel):
    transactional_id: str = Field(examples=["loader-1"])
    producer_id: int
    state: str = Field(examples=["Ongoing"])


class TransactionPage(BaseModel):
    items: list[TransactionSummary]
    next_cursor: str | None


class TransactionPartition(BaseModel):
    topic: str
    partition: int
    open: bool = Field(
        description="Whether the transaction is open in this partition. Its marker is not stored, and consumers wait.")
    marker: str = Field(
        description="`not due` while the transaction is undecided, then `missing` or `stored`; `unknown` for internal "
        "and deleted topics.")
    first_offset: int | None
    records: int | None = Field(description="Records of this transaction so far.")


class Token(BaseModel):
    scope: str
    value: int
    records: int
    committed_ms: int
    owner: str = Field(default="", description="Owner of the scope, for a Spark sink the query's id; empty: none.")
    number: int = Field(default=0, description="The owner's own number of the commit, such as Spark's batch id.")


class Fencing(BaseModel):
    cause: str
    at_ms: int
    by: str
    fenced: str


class Transaction(BaseModel):
    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    opened_ms: int = Field(description="-1 if no transaction is open.")
    holder: str = Field(description="Client id and address of the producer that holds the id.")
    last_outcome: str | None
    decided_ms: int
    partition_count: int
    partitions: list[TransactionPartition] = Field(description="At most 100.")
    tokens: list[Token]
    fencing: Fencing | None
    serial: int = Field(description="Number of the open transaction, or of the last one; 0 if there was none.")
    two_phase: bool = Field(
        description="Whether the open transaction is under two-phase commit: no time limit ends it, and it may be "
        "prepared.")


class Why(RequestBody):
    reason: str = Field(
        min_length=3, max_length=200, description="Shown to the fenced producer and kept in the events.")


class AbortTransaction(Why):
    serial: int = Field(
        ge=1, le=LARGEST_INT64,
        description="The transaction's serial, from its description. No other transaction is aborted, so an abort "
        "whose answer was lost may be repeated.")


class AbortedTransaction(BaseModel):
    transactional_id: str
    serial: int
    reason: str
    before: str = Field(description="The state before the abort.")
    state: str = Field(description="The state now. Markers may not be written yet.")
    warning: str | None = Field(description="What this may have broken; null: nothing.")


class CommitTransaction(Why):
    serial: int = Field(
        ge=1, le=LARGEST_INT64,
        description="The transaction's serial, from its description. No other transaction is committed, so a commit "
        "whose answer was lost may be repeated.")


class CommittedTransaction(AbortedTransaction):
    before: str = Field(description="The state before the commit.")


class TwoPhaseTransaction(BaseModel):
    transactional_id: str = Field(examples=["dual-writer-1"])
    producer_id: int = Field(description="With the epoch: the identity that its producer saved when it prepared.")
    producer_epoch: int
    started_ms: int
    partitions: int


class TwoPhasePage(BaseModel):
    items: list[TwoPhaseTransaction]
    next_cursor: str | None


class HangingTransaction(BaseModel):
    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    first_offset: int
    last_timestamp_ms: int
    transactional_id: str = Field(description="Empty if it is unknown.")
    why: str


class HangingPage(BaseModel):
    items: list[HangingTransaction]
    next_cursor: str | None


class AbortHanging(Why):
    topic: str = Field(min_length=1, max_length=249)
    partition: int = Field(ge=0, le=LARGEST_INT32)
    producer_id: int = Field(ge=0, le=LARGEST_INT64)
    first_offset: int | None = Field(
        None, ge=0, le=LARGEST_INT64,
        description="The transaction's first offset, from the list. No other transaction is aborted, so an abort "
        "whose answer was lost may be repeated.")


class AbortedHanging(BaseModel):
    topic: str
    partition: int
    producer_id: int
    first_offset: int | None
    reason: str


def routes(context: Context) -> APIRouter:
    router = Routes(context.keys, "/v1", "transactions")
    view, clients = context.view, context.clients

    @router.get("/transactions", response_model=TransactionPage)
    async def list_transactions(
        caller: Caller, limit: Limit = 100, cursor: Cursor = None,
        state: Annotated[list[str], Query(max_length=8, description="One of " + ", ".join(_STATES))] = [],  # noqa: B006
        producer_id: Annotated[list[int], Query(max_length=100)] = [],  # noqa: B006
        prefix: Annotated[str, Query(max_length=1024, description="Only ids with this prefix.")] = "",
    ) -> Response:
        """The transactional ids that the coordinators know."""
        unknown = [each for each in state if each not in _STATES]
        if unknown:
            raise Problem(422, f"There is no state {unknown[0][:100]!r}; there are {', '.join(_STATES)}.")
        if any(not 0 <= each <= LARGEST_INT64 for each in producer_id):
            raise Problem(422, f"A producer id is a number from 0 to {LARGEST_INT64}.")
        found = await clients.call(
            lambda admin: admin.list_transactions(states=state, producer_ids=producer_id))
        chosen = (
            each for each in found
            if each.transactional_id.startswith(prefix)
            and caller.may(DESCRIBE_TRANSACTIONAL_ID, each.transactional_id))
        items, following = page(chosen, lambda each: (each.transactional_id,), limit, cursor)
        return answer({
            "items": [
                {"transactional_id": each.transactional_id, "producer_id": each.producer_id, "state": each.state}
                for each in items],
            "next_cursor": following,
        })

    @router.get("/transactions/{transactional_id}", response_model=Transaction)
    async def describe(transactional_id: Name, caller: Caller) -> Response:
        """One transactional id: its holder, its open transaction, and which markers are stored."""
        found = await clients.call(lambda admin: _described(admin, transactional_id))
        shown = [each for each in found["partitions"] if caller.may(DESCRIBE_TOPIC, each["topic"])]
        hidden = len(found["partitions"]) - len(shown)
        return answer(found | {"partitions": shown, "partition_count": found["partition_count"] - hidden})

    @router.post("/transactions/{transactional_id}/abort", response_model=AbortedTransaction)
    async def abort(
        transactional_id: Name,
        why: Annotated[AbortTransaction, Body(examples=[{"reason": "the job was cancelled", "serial": 12}])],
        caller: Caller, idempotency_key: IdempotencyKey = None,
    ) -> Response:
        """Aborts the transaction with this serial, and fences its producer. The producer's error has the reason."""

        async def work(admin: Admin) -> tuple[TransactionDetail, TransactionDetail]:
            before = await admin.fence_and_abort(
                transactional_id, by=_by(caller, why.reason), where="REST", serial=why.serial)
            return before, await admin.describe_transactional_id(transactional_id)

        before, now = await clients.call(work)
        log.info("transaction aborted", transactional_id=transactional_id, by=caller.name, reason=why.reason)
        return answer({
            "transactional_id": transactional_id, "serial": why.serial, "reason": why.reason, "before": before.state,
            "state": now.state, "warning": ABORT_BREAKS_PROMISE if before.two_phase else None})

    @router.post("/transactions/{transactional_id}/commit", response_model=CommittedTransaction)
    async def commit(
        transactional_id: Name,
        why: Annotated[CommitTransaction, Body(examples=[{"reason": "the database committed", "serial": 12}])],
        caller: Caller, idempotency_key: IdempotencyKey = None,
    ) -> Response:
        """Commits the transaction with this serial, which is under two-phase commit, and fences its producer."""

        async def work(admin: Admin) -> tuple[TransactionDetail, TransactionDetail]:
            before = await admin.commit_prepared(
                transactional_id, by=_by(caller, why.reason), where="REST", serial=why.serial)
            return before, await admin.describe_transactional_id(transactional_id)

        before, now = await clients.call(work)
        log.info("transaction committed", transactional_id=transactional_id, by=caller.name, reason=why.reason)
        return answer({
            "transactional_id": transactional_id, "serial": why.serial, "reason": why.reason, "before": before.state,
            "state": now.state, "warning": COMMIT_BREAKS_PROMISE if before.two_phase else None})

    @router.get("/two-phase-transactions", response_model=TwoPhasePage)
    async def list_two_phase(caller: Caller, limit: Limit = 100, cursor: Cursor = None) -> Response:
        """The open transactions under two-phase commit. They have no time limit, and consumers wait for their end."""
        async with context.heavy:
            found = await clients.call(lambda admin: admin.list_two_phase())
        shown = (each for each in found if caller.may(DESCRIBE_TRANSACTIONAL_ID, each.transactional_id))
        items, following = page(shown, lambda each: (each.transactional_id,), limit, cursor)
        return answer({"items": [
            {
                "transactional_id": each.transactional_id, "producer_id": each.producer_id,
                "producer_epoch": each.producer_epoch, "started_ms": each.started_ms,
                "partitions": len(each.partitions),
            }
            for each in items], "next_cursor": following})

    @router.get("/hanging-transactions", response_model=HangingPage)
    async def list_hanging(
        caller: Caller, limit: Limit = 100, cursor: Cursor = None,
        older_than_ms: Annotated[
            int, Query(
                ge=0, le=LARGEST_INT64,
                description="Also list transactions known to a coordinator if they wrote nothing for this many ms."),
        ] = 900_000,
    ) -> Response:
        """Transactions that are open on a partition but at no coordinator, or in which nothing was written lately."""
        found: list[Hanging] = []
        if caller.may_any(READ_TOPIC):
            async with context.heavy:
                found = await clients.call(
                    lambda admin: admin.find_hanging(context.ports.clock.now_ms(), older_than_ms))
        shown = (each for each in found if caller.may(READ_TOPIC, each.partition.topic))
        items, following = page(
            shown, lambda each: (each.partition.topic, each.partition.partition, each.producer_id), limit, cursor)
        return answer({"items": [
            {
                "topic": each.partition.topic, "partition": each.partition.partition,
                **{name: value for name, value in each._asdict().items() if name != "partition"},
            }
            for each in items], "next_cursor": following})

    @router.post("/hanging-transactions/abort", response_model=AbortedHanging)
    async def abort_hanging(
        wanted: Annotated[AbortHanging, Body(examples=[
            {"topic": "flights", "partition": 0, "producer_id": 4001, "first_offset": 17,
             "reason": "its producer is gone for good"}])],
        caller: Caller, idempotency_key: IdempotencyKey = None,
    ) -> Response:
        """Aborts a producer's transaction on one partition, whether or not a coordinator knows it."""
        where = find_partition(view, wanted.topic, wanted.partition)
        if not await clients.call(lambda admin: admin.abort_hanging(where, wanted.producer_id, wanted.first_offset)):
            since = "" if wanted.first_offset is None else f" that begins at offset {wanted.first_offset}"
            raise Problem(
                404, f"Producer {wanted.producer_id} has no open transaction in "
                f"{wanted.topic}-{wanted.partition}{since}.",
                code=ErrorCode.UNKNOWN_PRODUCER_ID.name)
        log.info(
            "hanging transaction aborted", topic=wanted.topic, partition=wanted.partition,
            producer_id=wanted.producer_id, by=caller.name, reason=wanted.reason)
        return answer(wanted.model_dump())

    return router


def _by(caller: RequestCaller, reason: str) -> str:
    return f"{caller.name}: {reason}"


async def _described(admin: Admin, transactional_id: str) -> dict[str, Any]:
    found = await admin.describe_transactional_id(transactional_id)
    held: list[PartitionProducer] = []
    known = {topic.name for topic in await admin.list_topics()} if found.partitions else set()
    places = [each for each in found.partitions if each.topic in known and not each.topic.startswith("__")]
    if places:
        held = open_on(await admin.partition_producers(places), transactional_id, found.producer_id)
    opened = {each.partition: each for each in held}
    decided = found.state.startswith("Prepare")
    partitions = []
    for each in found.partitions:
        here = opened.get(each)
        asked = each in places
        marker = "unknown" if not asked else "not due" if not decided else "missing" if here else "stored"
        partitions.append({
            "topic": each.topic, "partition": each.partition, "open": here is not None, "marker": marker,
            "first_offset": None if here is None else here.transaction_start_offset,
            "records": None if here is None else here.transaction_records,
        })
    document = found._asdict() | {"partitions": partitions, "tokens": list(found.tokens)}
    del document["instance"]
    return document
