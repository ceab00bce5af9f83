"""How often a query that lost a batch's transaction is started again; what Spark does then is in integration tests."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from pyspark.errors import StreamingQueryException

from hapax_spark.queries import await_termination

LOST = "hapax_spark.cluster.TransactionLostError: the transaction of batch 1 (job) ended before it could be committed"


class Progress(NamedTuple):
    batchId: int


class Query:
    """Ends as told, after `batch` was committed; -1: none was."""

    name = "job"

    def __init__(self, batch: int, failure: str) -> None:
        self.lastProgress = None if batch < 0 else Progress(batch)
        self._failure = failure

    def awaitTermination(self) -> None:
        if self._failure:
            raise StreamingQueryException(self._failure)


def runs(*ends: tuple[int, str], retries: int) -> tuple[int, str]:
    """How many were started, and what was raised."""
    left: list[Any] = [Query(*end) for end in ends]
    started = []

    def start() -> Any:
        started.append(left.pop(0))
        return started[-1]

    try:
        await_termination(start, retries)
    except StreamingQueryException as error:
        return len(started), str(error)
    return len(started), ""


def test_it_ends_well_after_losses() -> None:
    assert runs((0, LOST), (-1, LOST), (1, ""), retries=2) == (3, "")


def test_it_gives_up_where_no_batch_comes_between() -> None:
    assert runs((0, LOST), (-1, LOST), (-1, LOST), (1, ""), retries=2) == (3, LOST)


def test_a_batch_between_makes_it_the_first_loss_again() -> None:
    assert runs((0, LOST), (1, LOST), (2, LOST), (3, LOST), (4, ""), retries=1) == (5, "")


@pytest.mark.parametrize("failure", ["hapax_spark.arrow.SchemaError: a row has a null topic", "anything else"])
def test_another_failure_is_the_callers(failure: str) -> None:
    assert runs((0, failure), (1, ""), retries=3) == (1, failure)
