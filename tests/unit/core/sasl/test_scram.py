"""SCRAM against the examples of the RFCs, against a client of its own, and against clients that cheat."""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hapax.core.access.principals import ANONYMOUS
from hapax.core.sasl.exchange import (
    Challenge,
    Failure,
    PasswordCheck,
    Success,
    TokenCheck,
    name_fault,
    prepared,
)
from hapax.core.sasl.plain import PlainExchange
from hapax.core.sasl.scram import ScramExchange, unescaped
from hapax.core.sasl.scram_keys import (
    Decoy,
    ScramCredential,
    ScramMechanism,
    Shape,
    credential_of,
    decoy,
    default_shape,
    salted_password,
    shape_of,
)

SHA_256, SHA_512 = ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512
SECRET = bytes(range(32))
SHAPES = [default_shape(SHA_256)]


def credential(password: str, mechanism: ScramMechanism = SHA_256, salt: bytes = b"salt") -> ScramCredential:
    return credential_of(mechanism, salt, salted_password(mechanism, password, salt, 4096), 4096)


ALICE = {mechanism: credential("secret", mechanism) for mechanism in ScramMechanism}


def exchange(nonce: str = "server", mechanism: ScramMechanism = SHA_256) -> ScramExchange:
    """Of a server that knows alice."""
    return ScramExchange(
        lambda name: ALICE[mechanism] if name == "alice" else decoy(SECRET, name, [default_shape(mechanism)]), nonce)


def proof_of(password: str, said: bytes, salt: bytes, iterations: int, mechanism: ScramMechanism = SHA_256) -> bytes:
    """What a client computes."""
    salted = hashlib.pbkdf2_hmac(mechanism.digest, password.encode(), salt, iterations)
    key = hmac.digest(salted, b"Client Key", mechanism.digest)
    signature = hmac.digest(hashlib.new(mechanism.digest, key).digest(), said, mechanism.digest)
    return base64.b64encode(bytes(a ^ b for a, b in zip(key, signature, strict=True)))


def log_in(
    found: ScramExchange, name: str = "alice", password: str = "secret", *, header: bytes = b"n,,",
    again: bytes | None = None, nonce: Any = None, mechanism: ScramMechanism = SHA_256,
) -> Any:
    """`again`: the header as the last message repeats it; `nonce`: what it does to the whole nonce."""
    bare = b"n=%s,r=client" % name.encode()
    first = found.step(header + bare)
    if not isinstance(first, Challenge):
        return first
    fields = dict(part.split(b"=", 1) for part in first.token.split(b","))
    whole = fields[b"r"] if nonce is None else nonce(fields[b"r"])
    without = b"c=%s,r=%s" % (base64.b64encode(header if again is None else again), whole)
    said = bare + b"," + first.token + b"," + without
    proof = proof_of(password, said, base64.b64decode(fields[b"s"]), int(fields[b"i"]), mechanism)
    return found.step(without + b",p=" + proof)


def test_the_example_of_rfc_7677() -> None:
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    stored = credential("pencil", SHA_256, salt)
    found = ScramExchange(lambda name: stored, "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    assert found.step(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO") == Challenge(
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096")
    outcome = found.step(
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=")
    assert outcome == Success("user", b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=", credential=stored)


@pytest.mark.parametrize("mechanism", ScramMechanism)
def test_a_password_lets_its_user_in(mechanism: ScramMechanism) -> None:
    outcome = log_in(exchange(mechanism=mechanism), mechanism=mechanism)
    assert isinstance(outcome, Success) and outcome.name == "alice" and outcome.token.startswith(b"v=")
    assert isinstance(log_in(exchange(mechanism=mechanism), password="guess", mechanism=mechanism), Failure)


def test_an_unknown_user_fails_where_and_as_a_wrong_password_does() -> None:
    """Abuse case 13."""
    first = exchange().step(b"n,,n=mallory,r=client")
    known = exchange().step(b"n,,n=alice,r=client")
    assert isinstance(first, Challenge) and isinstance(known, Challenge)
    assert [part.split(b"=")[0] for part in first.token.split(b",")] == [b"r", b"s", b"i"]
    assert exchange().step(b"n,,n=mallory,r=client") == first  # the same salt each time
    assert isinstance(log_in(exchange(), "mallory", "secret"), Failure)


def test_no_proof_fits_a_decoy_even_if_its_keys_are_known() -> None:
    """A decoy's keys are derived from the secret: who has both must still not get in."""
    known = Decoy(*credential("secret"))
    assert isinstance(log_in(ScramExchange(lambda name: known, "server")), Failure)
    assert isinstance(PasswordCheck("alice", "secret", known).outcome(), Failure)


@pytest.mark.parametrize("changed", [
    lambda whole: b"client", lambda whole: whole[:-1], lambda whole: b"clientother", lambda whole: whole + b"x",
    lambda whole: b"server",
])
def test_the_whole_nonce_must_come_back(changed: Any) -> None:
    """Abuse case 14; CVE-2024-56128."""
    assert isinstance(log_in(exchange(), nonce=changed), Failure)


def test_a_recorded_login_is_worth_nothing() -> None:
    """Abuse case 14."""
    recorded = exchange("first")
    challenge = recorded.step(b"n,,n=alice,r=client")
    assert isinstance(challenge, Challenge)
    without = b"c=biws,r=clientfirst"
    last = without + b",p=" + proof_of(
        "secret", b"n=alice,r=client," + challenge.token + b"," + without, b"salt", 4096)
    assert isinstance(recorded.step(last), Success)
    assert isinstance(recorded.step(last), Failure)
    later = exchange("second")
    later.step(b"n,,n=alice,r=client")
    assert isinstance(later.step(last), Failure)


def test_the_header_must_come_back() -> None:
    assert isinstance(log_in(exchange(), again=b"y,,"), Failure)
    assert isinstance(log_in(exchange(), header=b"y,,"), Success)


def test_only_one_s_own_rights_can_be_asked_for() -> None:
    """Abuse case 15."""
    assert isinstance(log_in(exchange(), header=b"n,a=alice,"), Success)
    assert isinstance(log_in(exchange(), header=b"n,a=admin,"), Failure)


@pytest.mark.parametrize("first", [
    b"", b"n", b"n,,", b"n,,n=alice", b"n,,r=client,n=alice", b"p=tls-unique,,n=alice,r=c", b"n,,n=,r=c", b"n,,n=a,r=",
    b"n,,n=alice,r=cl\0ient", b"n,,n=al=ice,r=c", b"n,,n=alice,r=c,tokenauth=true", b"n,,m=x,n=alice,r=c",
    b"n,,n=alice,r=c,m=x", b"n,,n=\xff,r=c", b"n,,n=alice,r=\xc3\xa4", b"n,,n=a\nb,r=c", b"n,,n=alice,r=" + b"c" * 2000,
    b"n,,n=alice,r=c\n", b"x,,n=alice,r=c",
])
def test_a_malformed_first_message_fails(first: bytes) -> None:
    assert isinstance(exchange().step(first), Failure)


@pytest.mark.parametrize("last", [
    b"", b"c=biws", b"c=biws,r=clientserver", b"c=biws,r=clientserver,p=", b"c=biws,r=clientserver,p=AAAA",
    b"c=biws,r=clientserver,p=!", b"c=biws,r=clientserver,p=" + base64.b64encode(bytes(32)),
    b"c=biws,r=clientserver,p=" + base64.b64encode(bytes(64)), b"r=clientserver,c=biws,p=AAAA",
])
def test_a_malformed_last_message_fails_and_ends_the_exchange(last: bytes) -> None:
    found = exchange()
    assert isinstance(found.step(b"n,,n=alice,r=client"), Challenge)
    assert isinstance(found.step(last), Failure)
    assert isinstance(found.step(b"n,,n=alice,r=client"), Failure)


@pytest.mark.parametrize("first", [
    b"n,,n=alice,r=c" + b",a=x" * 24 + b"\0", b"n,,n=alice,r=c" + b",a=x" * 10_000,
    b"n,,n=" + b"a=2C" * 10_000 + b",r=c",
    b"n,a=" + b"a" * 60_000, b"n,,n=alice,r=" + b"c," * 30_000])
def test_a_first_message_is_refused_in_little_time(first: bytes) -> None:
    """The loop of the whole node waits for it, and anybody may send it."""
    began = time.thread_time()
    assert isinstance(exchange().step(first), Failure)
    assert time.thread_time() - began < 0.5


def test_a_last_message_is_refused_in_little_time() -> None:
    for last in (b"c=biws,r=c" + b",a=x" * 15_000 + b"\0", b"c=biws,r=c" + b",p=A" * 15_000 + b",",
                 b"c=" + b"A" * 60_000, b"c=biws,r=" + b"c" * 60_000):
        found = exchange()
        assert isinstance(found.step(b"n,,n=alice,r=client"), Challenge)
        began = time.thread_time()
        assert isinstance(found.step(last), Failure)
        assert time.thread_time() - began < 0.5


@given(st.lists(st.binary(max_size=80) | st.sampled_from([b"n,,n=alice,r=c", b"c=biws,r=cserver,p=AAAA"]), max_size=4))
def test_no_bytes_are_a_fault_or_let_anybody_in(tokens: list[bytes]) -> None:
    found, plain = exchange(), PlainExchange(lambda name: ALICE[SHA_256])
    for token in tokens:
        assert isinstance(found.step(token), (Challenge, Failure))
        step = plain.step(token)
        assert isinstance(step, (Failure, PasswordCheck))


# --- names ----------------------------------------------------------------------------------------------------------


@given(st.text())
def test_a_name_is_unescaped_as_it_was_escaped(name: str) -> None:
    escaped = name.replace("=", "=3D").replace(",", "=2C")
    try:
        raw = escaped.encode()
    except UnicodeEncodeError:
        return
    assert unescaped(raw) == prepared(name)


@pytest.mark.parametrize(("text", "form"), [
    ("I\u00adX", "IX"), ("user", "user"), ("USER", "USER"), ("\u00aa", "a"), ("\u2168", "IX"), ("\u0007", None),
    ("\u0627\u0031", None), ("a\u00a0b", "a b"),
])
def test_the_examples_of_rfc_4013(text: str, form: str | None) -> None:
    assert prepared(text) == form


@pytest.mark.parametrize("name", ["", "a\nb", "\u2168", "x" * 1025, "a\u00adb", ANONYMOUS.partition(":")[2]])
def test_names_that_no_user_may_have(name: str) -> None:
    assert name_fault(name)


@pytest.mark.parametrize("name", ["alice", "CN=a,O=b", "a b", "ключ", "system:serviceaccount:team:loader", "x" * 1024])
def test_names_that_a_user_may_have(name: str) -> None:
    assert not name_fault(name)


# --- decoys ---------------------------------------------------------------------------------------------------------


def test_a_decoy_looks_like_some_user_s_credential_and_stays_as_it_is() -> None:
    shapes = [Shape(SHA_256, 4096, 26, True), Shape(SHA_256, 8192, 64, False), Shape(SHA_256, 16384, 12, False)]
    seen = set()
    for number in range(60):
        made = decoy(SECRET, f"user{number}", shapes)
        assert shape_of(made)._replace(textual=False) in {each._replace(textual=False) for each in shapes}
        assert len(made.stored_key) == len(made.server_key) == 32 and made.decoy
        assert made == decoy(SECRET, f"user{number}", list(reversed(shapes)))
        seen.add(made.iterations)
    assert seen == {4096, 8192, 16384}
    assert decoy(SECRET, "a", shapes).salt != decoy(b"other", "a", shapes).salt


@pytest.mark.parametrize(("length", "least", "beyond"), [
    (26, 36**25, 1 << 130), (25, 36**24, 36**25), (22, 36**21, 36**22)])
def test_a_decoy_s_salt_is_such_as_kafka_s_tools_make(length: int, least: int, beyond: int) -> None:
    """They write a number of 130 bits to the base of 36. With 26 digits it always begins with a 1: another digit would
    tell that there is no such user."""
    salts = {decoy(SECRET, f"user{number}", [Shape(SHA_256, 4096, length, True)]).salt for number in range(300)}
    assert len(salts) == 300
    for salt in salts:
        assert len(salt) == length and salt == salt.lower() and least <= int(salt, 36) < beyond
    assert min(int(salt, 36) for salt in salts) < least + (beyond - least) // 20
    assert max(int(salt, 36) for salt in salts) > beyond - (beyond - least) // 20


def test_another_user_s_new_shape_changes_few_decoys() -> None:
    before = [Shape(SHA_256, 4096 + each, 26, True) for each in range(9)]
    names = [f"user{number}" for number in range(200)]
    changed = sum(
        decoy(SECRET, name, before) != decoy(SECRET, name, [*before, Shape(SHA_256, 16384, 26, True)])
        for name in names)
    assert 0 < changed < 60


def test_keys_are_not_shown() -> None:
    shown = repr(ALICE[SHA_256])
    assert "4096" in shown and ALICE[SHA_256].stored_key.hex() not in shown and repr(b"salt") not in shown


def test_what_a_client_sent_is_not_shown() -> None:
    """Tracebacks and the names of tasks get into logs."""
    assert "hunter2" not in repr(PasswordCheck("alice", "hunter2", ALICE[SHA_256]))
    assert "hunter2" not in repr(PasswordCheck("alice", "hunter2", ALICE[SHA_256]).outcome)
    assert "eyJh" not in repr(TokenCheck("eyJh.eyJh.sig"))


# --- PLAIN ----------------------------------------------------------------------------------------------------------


def plain(token: bytes) -> Any:
    step = PlainExchange(lambda name: ALICE[SHA_512] if name == "alice" else decoy(SECRET, name, SHAPES)).step(token)
    return step.outcome() if isinstance(step, PasswordCheck) else step


def test_plain() -> None:
    assert plain(b"\0alice\0secret") == Success("alice", credential=ALICE[SHA_512])
    assert plain(b"alice\0alice\0secret") == Success("alice", credential=ALICE[SHA_512])
    assert isinstance(plain(b"admin\0alice\0secret"), Failure)  # abuse case 15
    for wrong in (b"\0alice\0guess", b"\0mallory\0secret", b"\0alice\0", b"\0\0secret", b"alice\0secret", b"",
                  b"\0alice\0secret\0", b"\0alice\0\xff", b"\0" + b"a" * 1025 + b"\0x", b"\0a\0" + b"x" * 4097):
        assert isinstance(plain(wrong), Failure), wrong


def test_a_password_may_be_meant_as_it_is_or_prepared() -> None:
    for stored in ("\u2168", "IX"):
        known = credential(stored)
        step = PlainExchange(lambda name, known=known: known).step("\0alice\0\u2168".encode())
        assert isinstance(step, PasswordCheck) and isinstance(step.outcome(), Success)


def test_a_check_takes_the_same_computation_for_an_unknown_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Abuse case 13."""
    made: list[tuple[str, int]] = []

    def counted(mechanism: ScramMechanism, password: str, salt: bytes, iterations: int) -> bytes:
        made.append((mechanism.digest, iterations))
        return bytes(32)

    monkeypatch.setattr("hapax.core.sasl.exchange.salted_password", counted)
    for known in (ALICE[SHA_256], decoy(SECRET, "mallory", SHAPES)):
        PasswordCheck("x", "guess", known).outcome()
    assert made == [("sha256", 4096)] * 2
