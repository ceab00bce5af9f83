"""Runs a query to its end, and restarts it if the transaction of a micro-batch is lost."""

from __future__ import annotations

import logging
from collections.abc import Callable

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming import StreamingQuery

from hapax_spark.refusals import TransactionLostError

log = logging.getLogger("hapax.spark.queries")


def await_termination(start: Callable[[], StreamingQuery], retries: int = 3) -> None:
    """Starts a query and waits for its end. `start` gives it the same checkpoint each time.

    If the transaction of a micro-batch is lost, none of its records is visible, and the query ends with
    TransactionLostError, because Spark retries failed tasks but not batches. This function starts the query again,
    which replays the batch, at most `retries` times in a row without a successful batch. Raises
    StreamingQueryException.
    """
    failed_batch, failures = -1, 0
    while True:
        query = start()
        try:
            query.awaitTermination()
            return
        except StreamingQueryException as error:
            if f"{TransactionLostError.__name__}: " not in str(error):
                raise
            last = query.lastProgress
            batch = -1 if last is None else last.batchId
            failures = failures + 1 if batch <= failed_batch or last is None else 1
            failed_batch = max(failed_batch, batch)
            if failures > retries:
                raise
            log.warning("query %s lost a batch's transaction; started again (%d of %d)", query.name, failures, retries)
