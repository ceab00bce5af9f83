"""What a refused commit says: what may have happened, and what to do."""

from __future__ import annotations

import pytest

from hapax.client import Conflict, LastToken, TokenConflictError
from hapax.client.identities import IdentityInfo
from hapax_spark.options import parse
from hapax_spark.refusals import refusal, renamed
from hapax_spark.tokens import FirstName, Token

GIVEN = {"kafka.bootstrap.servers": "127.0.0.1:9092", "topic": "out", "transactional.id": "mine"}


@pytest.mark.parametrize(("token", "first"), [
    (Token.for_query(parse({**GIVEN, "scope": "delays"}), "the-query", 3), "This is batch 3 of query the-query, but"),
    (Token.for_write(parse({**GIVEN, "txnAppId": "delays", "txnVersion": "3"}), "w"), "This is version 3 of txnAppId="),
])
def test_a_name_that_is_not_known_may_have_been_changed(token: Token, first: str) -> None:
    error = TokenConflictError("unknown", code=0, conflict=Conflict.UNKNOWN_HISTORY, newest=None)
    said = str(refusal(token, error, "the-cluster"))
    assert said.startswith(first)
    assert "'the-cluster' knows no commit of 'delays' under the transactional id 'mine'" in said
    assert "the option scope, txnAppId or transactional.id was changed" in said


@pytest.mark.parametrize(("state", "refused"), [("Ongoing", True), ("PrepareAbort", False)])
def test_a_first_batch_that_is_being_aborted_may_be_written_under_another_name(state: str, refused: bool) -> None:
    """Its transaction keeps its token until each partition has the marker: for as long as one has no leader."""
    token = Token("spark-new", "new", 0, owner="q")
    former, name = FirstName("c", "spark-old", "old", "q"), FirstName("c", "spark-new", "new", "q")
    opened = LastToken("old", 0, 0, 0, "q", 0)
    known = IdentityInfo(
        "spark-old", state, 1, 1, 60_000, 1, (), 0, "i", "", "", None, -1, (), None, open_token=opened)
    assert (renamed(token, name, former, known) is not None) == refused


def test_an_older_version_that_follows_no_commit_says_which_one_is_missing() -> None:
    token = Token.for_write(parse({**GIVEN, "txnAppId": "delays", "txnVersion": "3"}), "w")
    newest = LastToken("delays", 7, 40, 0, token.owner, 5)
    error = TokenConflictError("unknown", code=0, conflict=Conflict.OTHER_PAST, newest=newest)
    said = str(refusal(token, error, "the-cluster"))
    assert said.startswith("This is version 3 of txnAppId=delays. continueFrom permits to write again from there, but ")
    assert "the version 2 before it" in said and "the last is batch 5 (40 records" in said
    newer = str(refusal(Token.for_write(parse({**GIVEN, "txnAppId": "delays", "txnVersion": "6"}), "w"), error, "c"))
    assert "is not the one that was committed under that number" in newer
