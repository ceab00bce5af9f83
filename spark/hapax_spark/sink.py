"""Writes topics. Each micro-batch is one multi-writer transaction, named by a commit token (query id, batch id).

Every task attempt joins the transaction of its batch with a producer identity of its own, and reports at its end what
it wrote. The driver's `commit` is one call that names the winning attempts. The coordinator commits exactly their
records and aborts all others: losing and speculative attempts, and attempts of a dead driver. If the driver dies
before it has recorded the commit, Spark replays the batch with the same token and fingerprint, and the coordinator
answers 'already committed'. A batch with a known number that is other work, or older, is refused (`refusals`).
`abort` after a successful commit does nothing, because of the token.
"""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from hapax.client import Winner
from hapax_spark.arrow import OutputColumns, output_columns
from hapax_spark.cluster import kept_cluster
from hapax_spark.fingerprints import RECORDS, Digest, Fingerprints, Plan, RecordDigest, plan_of, records_in, together
from hapax_spark.first_batch import check_first_batch
from hapax_spark.options import OptionError, Options
from hapax_spark.refusals import TransactionLostError
from hapax_spark.tokens import MicroBatch, Token
from hapax_spark.worker_heap import freeze_loaded_modules

log = logging.getLogger("hapax.spark.sink")

_BATCH_ID: Final = "streaming.sql.batchId"
"""Spark sets this property for the tasks of a micro-batch, including those that `foreachBatch` starts."""
_RUN: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""The job group that Spark sets for a run, unless the function of `foreachBatch` sets another."""


JOIN_EARLY: Final = 16
"""The first tasks of a batch, as many, may join its transaction before they have rows."""


@dataclass
class AttemptMessage(WriterCommitMessage):
    """The report of one task attempt to the driver."""

    token: Token
    records: int
    serial: int = 0
    winner: Winner | None = None
    """None: the task had no rows, or the token was committed before."""
    digest: Digest | None = None
    """Fingerprint of the records, if there is no plan to identify the batch."""
    plan: Plan | None = None
    """Of the batch."""
    told: int = 0
    """The serial of the earlier transaction that committed the token; 0: the coordinator reported none."""


def write_attempt(
    options: Options, columns: OutputColumns, token: Token, rows: Iterator[pa.RecordBatch], plan: Plan | None = None
) -> AttemptMessage:
    """One task attempt: join, write, report. If the token is already committed, records are only counted and hashed."""
    with kept_cluster(options) as cluster:
        if options.delivery == "at-least-once":
            return AttemptMessage(token, cluster.send_plainly(rows, columns))
        attempt = cluster.join(token, uuid.uuid4().hex, columns, early=_place_in_batch() < JOIN_EARLY)
        records = 0
        digested = token.is_version or (token.owner and plan is None)
        digest = RecordDigest(options.topic) if digested else None
        try:
            for batch in rows:
                if digest is not None:
                    digest.add(batch)
                attempt.write(batch)
                records += batch.num_rows
            winner = attempt.finish()
            return AttemptMessage(
                token, records, attempt.serial, winner, digest.digest if digest else None, plan, attempt.told)
        finally:
            attempt.leave()


def fingerprints_of(token: Token, messages: list[AttemptMessage]) -> tuple[Fingerprints, Fingerprints]:
    """Fingerprints that show whether two batches with one number are the same work; also of the batch before, if it is
    known."""
    plan = next((m.plan for m in messages if m.plan is not None), None)
    planned, followed = ((), ()) if plan is None else (plan.fingerprints, plan.followed)
    if not token.is_version and (planned or not token.owner):
        return planned, followed
    digests = [m.digest for m in messages if m.digest is not None]
    records = together(digests)
    here = ((records_in(token.within), records),) if token.within else ()
    return (*here, *planned, (RECORDS, records)), followed


def commit_attempts(options: Options, token: Token, messages: list[AttemptMessage]) -> None:
    """The driver's commit. Raises the errors of `hapax_spark.refusals`."""
    winners = [m.winner for m in messages if m.winner is not None]
    serials = {m.serial for m in messages if m.winner is not None}
    told = max((m.told for m in messages), default=0)
    if told:  # some tasks wrote nothing because the token was committed: confirm that commit, or fail
        winners, serials = [], {told}
    if len(serials) > 1:
        reason = f"its tasks wrote in {len(serials)} transactions, so the first had timed out while others still worked"
        raise TransactionLostError(token, options.transaction_timeout_ms, reason)
    fingerprints, followed = fingerprints_of(token, messages)
    with kept_cluster(options) as cluster:
        outcome = cluster.commit(
            token, winners, records=sum(m.records for m in messages), serial=serials.pop() if serials else 0,
            fingerprints=fingerprints, followed=followed,
        )
    state = "had been committed before" if outcome.already or told else "committed"
    log.info("batch %d of %s %s, %d records", token.value, token.scope, state, outcome.records)


def abort_attempts(options: Options, token: Token) -> None:
    """Called when the driver has given the batch up. Has no effect if the token was committed after all."""
    with kept_cluster(options) as cluster:
        cluster.abort(token)


def _place_in_batch() -> int:
    """The number of this task among those of its batch."""
    context = TaskContext.get()
    return 0 if context is None else context.partitionId()


def _micro_batch() -> MicroBatch | None:
    """Of this task; None where Spark names none."""
    context = TaskContext.get()
    if context is None:
        return None
    batch, query = context.getLocalProperty(_BATCH_ID), context.getLocalProperty("sql.streaming.queryId")
    if batch is None or query is None:
        return None
    group = context.getLocalProperty("spark.jobGroup.id") or ""
    return MicroBatch(query, int(batch), group if _RUN.fullmatch(group) else "")


def _planned(plan: Plan | None, batch: MicroBatch) -> Plan | None:
    """The plan, if it is of this batch: the option may name another query's checkpoint, which may have progressed."""
    return plan if plan is not None and plan[:2] == (batch.query, batch.number) else None


class HapaxStreamWriter(DataSourceStreamArrowWriter):
    """`writeStream.format("hapax")`."""

    def __init__(self, options: Options, schema: StructType) -> None:
        if options.txn_app_id is not None:
            raise OptionError("txnAppId and txnVersion are for df.write, as in foreachBatch: a stream has batch ids")
        freeze_loaded_modules()
        self._options = options
        self._columns = output_columns(schema, options.topic)
        # Spark creates a writer when a batch is planned, on the driver, which may be able to read the checkpoint, and
        # sends it to the tasks. It creates another writer to commit or abort the batch. So the name of the first batch
        # is checked again while its transaction is open, because another driver may have changed it.
        self._plan = plan_of(options.checkpoint_location, options.topic)
        check_first_batch(options, self._plan)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        batch = _micro_batch()
        if batch is None:
            raise RuntimeError("this sink writes micro-batches only, but Spark set no batch id (continuous trigger?)")
        token = Token.for_query(self._options, *batch)
        return write_attempt(self._options, self._columns, token, iterator, _planned(self._plan, batch))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        attempts = [m for m in messages if isinstance(m, AttemptMessage)]
        if attempts and self._options.delivery == "exactly-once":
            commit_attempts(self._options, attempts[0].token, attempts)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        attempts = [m for m in messages if isinstance(m, AttemptMessage)]
        if attempts and self._options.delivery == "exactly-once":
            abort_attempts(self._options, attempts[0].token)


class HapaxBatchWriter(DataSourceArrowWriter):
    """`df.write.format("hapax")`: exactly once within one run of the write. Another run is another write, unless
    `txnAppId` and `txnVersion` name the same one."""

    def __init__(self, options: Options, schema: StructType) -> None:
        freeze_loaded_modules()
        self._options = options
        self._columns = output_columns(schema, options.topic)
        # Created on the driver and sent to the tasks with the writer.
        self._token = token = Token.for_write(options, uuid.uuid4().hex)
        # The folder, if versions are the numbers of micro-batches.
        self._plan = plan_of(options.checkpoint_location, options.topic, token.value) if token.is_version else None

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        token, plan, batch = self._token, None, _micro_batch()
        if batch is not None and self._options.delivery == "exactly-once":
            token, plan = token.in_micro_batch(self._options, batch), _planned(self._plan, batch)
        return write_attempt(self._options, self._columns, token, iterator, plan)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        attempts = [m for m in messages if isinstance(m, AttemptMessage)]
        if attempts and self._options.delivery == "exactly-once":
            commit_attempts(self._options, attempts[0].token, attempts)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        if self._options.delivery == "exactly-once":
            abort_attempts(self._options, self._token)
