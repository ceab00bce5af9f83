"""What names a batch write that is part of a micro-batch (`foreachBatch`)."""

from __future__ import annotations

import uuid

import pytest

from hapax.client import Conflict, LastToken, TokenConflictError
from hapax_spark.fingerprints import END, OFFSETS, RECORDS, records_in
from hapax_spark.options import OptionError, Options, parse
from hapax_spark.refusals import refusal
from hapax_spark.tokens import MicroBatch, Token


def options(**given: str) -> Options:
    return parse({"kafka.bootstrap.servers": "127.0.0.1:9092", "topic": "out", **given})


def batch(number: int) -> MicroBatch:
    return MicroBatch("query", number, str(uuid.uuid4()))


def test_a_write_without_a_name_is_refused_in_a_micro_batch() -> None:
    chosen = options()
    with pytest.raises(OptionError, match=r"part of batch 3 .* Set 'txnAppId', and 'txnVersion' to the batch id"):
        Token.for_write(chosen, "write").in_micro_batch(chosen, batch(3))


@pytest.mark.parametrize(("version", "given", "allowed", "consecutive"), [
    ("3", {}, False, True),
    ("3", {"allowUnknownHistory": "true"}, True, True),
    ("3", {"txnConsecutive": "false"}, False, False),  # the function leaves batches out
    ("1767225600", {}, True, False),  # versions that are counted otherwise may begin anywhere
    ("1767225600", {"txnConsecutive": "true"}, False, True),
])
def test_a_batchs_version_needs_the_one_before_as_in_a_stream(
    version: str, given: dict[str, str], allowed: bool, consecutive: bool
) -> None:
    chosen = options(txnAppId="app", txnVersion=version, **given)
    token = Token.for_write(chosen, "write").in_micro_batch(chosen, batch(3))
    assert (token.value, token.allow_unknown_history) == (int(version), allowed)
    assert token.consecutive == consecutive


@pytest.mark.parametrize("given", [
    {"scope": "daily"}, {"scope": "daily", "txnAppId": "app", "txnVersion": "0"}, {"txnAppId": "app"},
    {"txnAppId": "", "txnVersion": "0"},
])
def test_a_write_that_is_named_by_half_or_twice_is_refused(given: dict[str, str]) -> None:
    with pytest.raises(OptionError, match=r"leave 'scope' out|set 'txnAppId' and 'txnVersion' together"):
        Token.for_write(options(**given), "write")


def told(token: Token, conflict: Conflict, kinds: tuple[str, ...], *kept: str) -> str:
    """What is said of a batch with fingerprints of these kinds, where a commit with others is `kept`."""
    newest = LastToken("app", 3, 10, 0, token.owner, 3, kept) if kept else None
    return str(refusal(token, TokenConflictError("", code=1, conflict=conflict, newest=newest), "cluster", kinds))


def test_what_is_said_of_a_name_is_true_of_it() -> None:
    """The cause that is likely is among those that are named, and the advice helps there."""
    chosen = options(txnAppId="app", txnVersion="3")
    token = Token.for_write(chosen, "write").in_micro_batch(chosen, batch(3))
    query = Token.for_query(chosen, "query", 3)
    here = records_in(token.within)
    planned = (here, OFFSETS, END, RECORDS)
    assert "Two writes of one micro-batch have the same name" in told(token, Conflict.OTHER_WORK, planned, *planned)
    former = (records_in("another run"), OFFSETS, END, RECORDS)
    by_plan = told(token, Conflict.OTHER_WORK, planned, *former)
    assert "was already committed, but as other work" in by_plan and "allowOtherRecords" not in by_plan
    by_records = told(token, Conflict.OTHER_WORK, (here, RECORDS), *former)
    assert "sums of floating point numbers" in by_records and "So does the option checkpointLocation" in by_records
    assert "checkpointLocation, if" not in told(token, Conflict.OTHER_WORK, (here, RECORDS), RECORDS)
    assert "left them out" in told(token, Conflict.UNKNOWN_HISTORY, planned, RECORDS)
    assert "left them out" not in told(query, Conflict.UNKNOWN_HISTORY, (), RECORDS)


def test_other_records_are_allowed_for_a_batch_that_is_run_again_and_for_no_other_write() -> None:
    chosen = options(txnAppId="app", txnVersion="3", allowOtherRecords="true")
    token = Token.for_write(chosen, "write").in_micro_batch(chosen, batch(3))
    here = records_in(token.within)
    assert token.allows(((here, b""), (RECORDS, b"")), (records_in("another run"), RECORDS))
    assert not token.allows(((here, b""), (RECORDS, b"")), (here, RECORDS))
    assert not token.allows(((here, b""), (OFFSETS, b""), (RECORDS, b"")), (OFFSETS, RECORDS))
