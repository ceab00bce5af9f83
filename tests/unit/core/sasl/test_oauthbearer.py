"""OAUTHBEARER's messages (RFC 7628)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hapax.core.sasl.exchange import Challenge, Failure, Success, TokenCheck
from hapax.core.sasl.oauthbearer import INVALID, OAuthBearerExchange

TOKEN = "aGVhZA.Ym9keQ.c2lnbmF0dXJl"
MESSAGE = f"n,,\x01auth=Bearer {TOKEN}\x01\x01".encode()


@pytest.mark.parametrize("message", [
    MESSAGE, MESSAGE.replace(b"Bearer", b"bearer"),
    f"n,,\x01host=a\x01port=9092\x01auth=Bearer {TOKEN}\x01\x01".encode(),
    f"n,,\x01auth=Bearer {TOKEN}\x01traceId=7\x01\x01".encode(),
])
def test_the_token_is_checked(message: bytes) -> None:
    found = OAuthBearerExchange()
    assert found.step(message) == TokenCheck(TOKEN)
    assert found.checked(Success("alice", b"", 5)) == Success("alice", b"", 5)
    assert isinstance(found.step(message), Failure)


def test_a_refused_token_fails_once_the_client_has_acknowledged_it() -> None:
    found = OAuthBearerExchange()
    found.step(MESSAGE)
    assert found.checked(Failure("expired")) == Challenge(INVALID)
    assert found.step(b"\x01") == Failure("expired")
    assert isinstance(found.step(MESSAGE), Failure)


def test_another_answer_to_a_refusal_fails_too() -> None:
    found = OAuthBearerExchange()
    found.step(MESSAGE)
    found.checked(Failure("expired"))
    assert isinstance(found.step(MESSAGE), Failure)


def test_only_one_s_own_rights_can_be_asked_for() -> None:
    """Abuse case 15."""
    for authzid, good in ((b"alice", True), (b"admin", False)):
        found = OAuthBearerExchange()
        found.step(MESSAGE.replace(b"n,,", b"n,a=" + authzid + b","))
        outcome = found.checked(Success("alice"))
        assert isinstance(outcome, Success) is good
        if not good:
            assert isinstance(found.step(b"\x01"), Failure)


@pytest.mark.parametrize("message", [
    b"n,,\x01auth=Basic abc\x01\x01", b"n,,\x01auth=Bearer \x01\x01", b"n,,\x01auth=Bearer a.b\x01\x01",
    b"n,,\x01host=a\x01\x01", MESSAGE[:-1] + b"auth=Bearer a.b.c\x01\x01", b"n,,\x01auth=Bearer a.b.c d\x01\x01",
])
def test_a_message_without_one_signed_token_is_answered_as_a_bad_token(message: bytes) -> None:
    found = OAuthBearerExchange()
    assert found.step(message) == Challenge(INVALID)
    assert isinstance(found.step(b"\x01"), Failure)


@pytest.mark.parametrize("message", [
    b"", b"n,,", b"p=x,,\x01auth=Bearer a.b.c\x01\x01", MESSAGE[:-1], b"\x01", b"n,,\x01\x01",
])
def test_a_malformed_message_fails(message: bytes) -> None:
    found = OAuthBearerExchange()
    assert isinstance(found.step(message), Failure)
    assert isinstance(found.step(MESSAGE), Failure)


@given(st.lists(st.binary(max_size=60) | st.just(MESSAGE), max_size=3))
def test_no_bytes_are_a_fault(tokens: list[bytes]) -> None:
    found = OAuthBearerExchange()
    for token in tokens:
        step = found.step(token)
        if isinstance(step, TokenCheck):
            step = found.checked(Failure("no"))
        assert isinstance(step, (Challenge, Failure))
