"""What a refused commit says: what may have happened, and what to do."""

from __future__ import annotations

import pytest

from hapax.client import Conflict, TokenConflictError
from hapax_spark.options import parse
from hapax_spark.refusals import refusal
from hapax_spark.tokens import Token

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
    assert "the option scope, txnAppId or transactional.id is another than before" in said
