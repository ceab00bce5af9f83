"""The client's side of logins, against the server's and against servers that cheat."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hapax.core.sasl.client import (
    Accepted,
    BearerClient,
    ClientExchange,
    ClientKeys,
    Derive,
    Distrusted,
    PlainClient,
    Say,
    ScramClient,
    password_fault,
    token_fault,
)
from hapax.core.sasl.exchange import Exchange, Failure, PasswordCheck, Success, TokenCheck, prepared
from hapax.core.sasl.oauthbearer import OAuthBearerExchange
from hapax.core.sasl.plain import PlainExchange
from hapax.core.sasl.scram import ScramExchange
from hapax.core.sasl.scram_keys import (
    ScramCredential,
    ScramMechanism,
    credential_of,
    decoy,
    default_shape,
    salted_password,
)

SHA_256 = ScramMechanism.SCRAM_SHA_256
NONCES = st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters=","), min_size=1, max_size=40)
NAMES = st.text(min_size=1, max_size=20).filter(lambda text: prepared(text) == text and "\0" not in text)
PASSWORDS = st.text(min_size=1, max_size=20).filter(lambda text: not password_fault("name", text))


def credential(mechanism: ScramMechanism, password: str, salt: bytes, iterations: int = 4096) -> ScramCredential:
    return credential_of(mechanism, salt, salted_password(mechanism, password, salt, iterations), iterations)


@dataclass
class Users:
    """Of a server."""

    mechanism: ScramMechanism
    known: dict[str, ScramCredential] = field(default_factory=dict)

    def find(self, name: str) -> ScramCredential:
        return self.known.get(name) or decoy(bytes(32), name, [default_shape(self.mechanism)])


def run(client: ClientExchange, server: Exchange, password: str = "", tokens: tuple[str, ...] = ()) -> tuple[Any, Any]:
    """What each side ends with; None: it waits for the other."""
    message, found = client.begin(), None
    for _ in range(10):
        outcome: Any = server.step(message)
        if isinstance(outcome, PasswordCheck):
            outcome = outcome.outcome()
        if isinstance(outcome, TokenCheck):
            assert isinstance(server, OAuthBearerExchange)
            outcome = server.checked(Success("alice") if outcome.token in tokens else Failure("it is not genuine"))
        if isinstance(outcome, Failure):
            return None, outcome
        step: Any = client.step(outcome.token)
        if isinstance(step, Derive):
            assert isinstance(client, ScramClient)
            step = client.derived(step.outcome(password))
        if isinstance(outcome, Success):
            found = outcome
        if not isinstance(step, Say):
            return step, found
        message = step.message
    raise AssertionError("no end")


@given(st.sampled_from(ScramMechanism), NAMES, PASSWORDS, st.binary(min_size=1, max_size=30), NONCES, NONCES)
def test_scram_with_the_right_password(
    mechanism: ScramMechanism, name: str, password: str, salt: bytes, one: str, other: str
) -> None:
    users = Users(mechanism, {name: credential(mechanism, password, salt)})
    step, outcome = run(ScramClient(mechanism, name, one), ScramExchange(users.find, other), password)
    assert isinstance(step, Accepted)
    assert isinstance(outcome, Success) and outcome.name == name


@given(PASSWORDS, PASSWORDS)
def test_scram_with_another_password(password: str, guess: str) -> None:
    users = Users(SHA_256, {"alice": credential(SHA_256, password, b"salt")})
    step, outcome = run(ScramClient(SHA_256, "alice", "one"), ScramExchange(users.find, "other"), guess)
    if guess == password:
        assert isinstance(step, Accepted)
    else:
        assert step is None and isinstance(outcome, Failure)


@given(NAMES, PASSWORDS)
def test_plain(name: str, password: str) -> None:
    users = Users(SHA_256, {name: credential(SHA_256, password, b"salt")})
    step, outcome = run(PlainClient(name, password), PlainExchange(users.find))
    assert isinstance(step, Accepted) and outcome.name == name
    step, outcome = run(PlainClient(name, password + "x"), PlainExchange(users.find))
    assert step is None and isinstance(outcome, Failure)


@given(st.from_regex(r"[A-Za-z0-9_\-]{1,9}\.[A-Za-z0-9_\-]{1,9}\.[A-Za-z0-9_\-]{1,9}", fullmatch=True))
def test_bearer_tokens(token: str) -> None:
    assert token_fault(token) == ""
    step, outcome = run(BearerClient(token), OAuthBearerExchange(), tokens=(token,))
    assert isinstance(step, Accepted) and outcome.name == "alice"
    step, outcome = run(BearerClient(token), OAuthBearerExchange())
    assert step is None and outcome.reason == "it is not genuine"  # acknowledged, so that the server says why


def test_the_example_of_rfc_7677() -> None:
    client = ScramClient(SHA_256, "user", "rOprNGfwEbeRWgbNEkqO")
    assert client.begin() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    work = client.step(b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096")
    assert isinstance(work, Derive)
    assert client.derived(work.outcome("pencil")) == Say(
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=")
    assert client.step(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=") == Accepted()


# --- servers that cheat ------------------------------------------------------------------------------------------


def begun(answer: bytes = b"r=one-other,s=c2FsdA==,i=4096") -> tuple[ScramClient, Any]:
    client = ScramClient(SHA_256, "alice", "one")
    client.begin()
    return client, client.step(answer)


def test_a_server_that_does_not_know_the_password_is_distrusted() -> None:
    """It lets everybody in, and so hears what is meant for another."""
    class Imposter(ScramExchange):
        def step(self, token: bytes) -> Any:
            outcome = super().step(token)
            return Success("alice", b"v=" + base64.b64encode(bytes(32))) if isinstance(outcome, Failure) else outcome

    users = Users(SHA_256, {"alice": credential(SHA_256, "a guess", b"salt")})
    step, outcome = run(ScramClient(SHA_256, "alice", "one"), Imposter(users.find, "other"), "secret")
    assert isinstance(outcome, Success)
    assert isinstance(step, Distrusted) and "does not prove" in step.reason


@pytest.mark.parametrize("answer", [b"", b"v=", b"e=other-error", b"v=%%%", b"v=" + base64.b64encode(bytes(31)),
                                    b"w=" + base64.b64encode(bytes(32))])
def test_a_server_that_says_nothing_of_the_password_is_distrusted(answer: bytes) -> None:
    client, work = begun()
    client.derived(work.outcome("secret"))
    assert isinstance(client.step(answer), Distrusted)


def test_a_server_that_accepts_before_the_proof_is_distrusted() -> None:
    _, step = begun(b"")
    assert isinstance(step, Distrusted)
    _, step = begun(b"v=" + base64.b64encode(bytes(32)))
    assert isinstance(step, Distrusted)


@pytest.mark.parametrize(("answer", "reason"), [
    (b"r=one,s=c2FsdA==,i=4096", "nonce"),
    (b"r=two-other,s=c2FsdA==,i=4096", "nonce"),
    (b"r=on,s=c2FsdA==,i=4096", "nonce"),
    (b"r=one-other,s=c2FsdA==,i=4095", "fewer than 4096"),
    (b"r=one-other,s=c2FsdA==,i=1", "fewer than 4096"),
    (b"r=one-other,s=c2FsdA==,i=1000001", "too long"),
    (b"r=one-other,s=c2FsdA==,i=99999999999", "malformed"),
    (b"r=one-other,s=c2FsdA==,i=-4096", "malformed"),
    (b"r=one-other,s=c2FsdA,i=4096", "salt"),
    (b"m=must,r=one-other,s=c2FsdA==,i=4096", "malformed"),
    (b"e=unknown-user", "malformed"),
    (b"r=one-other,s=" + base64.b64encode(bytes(4097)) + b",i=4096", "salt"),
])
def test_a_first_message_that_endangers_the_password_is_distrusted(answer: bytes, reason: str) -> None:
    client, step = begun(answer)
    assert isinstance(step, Distrusted) and reason in step.reason
    assert isinstance(client.step(b"r=one-other,s=c2FsdA==,i=4096"), Distrusted)


@given(st.binary(max_size=80), st.binary(max_size=80))
def test_no_bytes_are_taken_for_a_proof(first: bytes, last: bytes) -> None:
    for client in (ScramClient(SHA_256, "alice", "one"), begun()[0]):
        client.begin()
        step = client.step(first)
        assert isinstance(step, Derive | Distrusted)
        if isinstance(step, Derive):
            client.derived(step.outcome("secret"))
            assert isinstance(client.step(last), Distrusted)


def test_an_exchange_has_one_end() -> None:
    for client in (PlainClient("alice", "secret"), BearerClient("a.b.c")):
        assert isinstance(client.step(b""), Accepted)
        assert isinstance(client.step(b""), Distrusted)
    refused = BearerClient("a.b.c")
    assert refused.step(b'{"status":"invalid_token"}') == Say(b"\x01")
    assert isinstance(refused.step(b""), Distrusted)  # it must not be let in after all


# --- what is sent ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "password", "fault"), [
    ("", "secret", "user name is empty"), ("alice", "", "password is empty"),
    ("ali\0ce", "secret", "zero"), ("alice", "sec\0ret", "zero"), ("alice", "\ud800", "Unicode"),
    ("alice", "secret, with = and ü", ""),
])
def test_names_and_passwords_that_change_the_message_are_refused(name: str, password: str, fault: str) -> None:
    found = password_fault(name, password)
    assert fault in found and bool(found) == bool(fault)
    assert password not in found or not password


@pytest.mark.parametrize("token", ["", "a b", "a\x01host=x", "a,b", "ü", "a\n", "=a"])
def test_tokens_that_change_the_message_are_refused(token: str) -> None:
    assert token_fault(token)


def test_keys_are_not_shown() -> None:
    keys = Derive(SHA_256, b"salt", 4096).outcome("secret")
    assert repr(keys) == str(keys) == "ClientKeys"
    assert isinstance(keys, ClientKeys)
