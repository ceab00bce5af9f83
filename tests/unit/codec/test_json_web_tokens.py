"""JSON Web Tokens: which are believed. Abuse case 16."""

from __future__ import annotations

import base64
import contextlib
import json
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from hypothesis import given
from hypothesis import strategies as st
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from hapax.codec.json_web_tokens import TokenRules, UnknownKey, read_key_set, verify
from hapax.core.sasl.exchange import Failure, Success

NOW = 1_700_000_000
RSA_KEY = rsa.generate_private_key(65537, 2048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())
ED_KEY = ed25519.Ed25519PrivateKey.generate()
RULES = TokenRules("https://issuer", ("hapax", "other"), "sub", 30)
CLAIMS: dict[str, Any] = {"iss": "https://issuer", "aud": "hapax", "sub": "alice", "exp": NOW + 600, "nbf": NOW - 10}


def entry(key: Any, kid: str, **members: Any) -> dict[str, Any]:
    kind = {rsa.RSAPrivateKey: RSAAlgorithm, ec.EllipticCurvePrivateKey: ECAlgorithm}
    maker: Any = next((made for each, made in kind.items() if isinstance(key, each)), OKPAlgorithm)
    return {**json.loads(maker.to_jwk(key.public_key())), "kid": kid, **members}


KEYS = read_key_set(json.dumps({"keys": [
    entry(RSA_KEY, "rsa"), entry(EC_KEY, "ec"), entry(ED_KEY, "ed"), entry(RSA_KEY, "ps", alg="PS256")]}).encode())


def token(key: Any = EC_KEY, algorithm: str = "ES256", kid: str | None = "ec", **claims: Any) -> str:
    """Claims that are None are left out."""
    given = {name: value for name, value in {**CLAIMS, **claims}.items() if value is not None}
    return jwt.encode(given, key, algorithm, headers={} if kid is None else {"kid": kid})


def judged(text: str, rules: TokenRules = RULES, now: float = NOW) -> Any:
    return verify(text, KEYS, rules, now)


@pytest.mark.parametrize(("key", "algorithm", "kid"), [
    (RSA_KEY, "RS256", "rsa"), (RSA_KEY, "RS512", "rsa"), (RSA_KEY, "PS256", "ps"), (EC_KEY, "ES256", "ec"),
    (ED_KEY, "EdDSA", "ed"),
])
def test_a_genuine_token_tells_who_its_bearer_is_and_until_when(key: Any, algorithm: str, kid: str) -> None:
    assert judged(token(key, algorithm, kid)) == Success("alice", b"", (NOW + 630) * 1000)


def test_a_pod_s_token() -> None:
    name = "system:serviceaccount:team:loader"
    claims = {"sub": name, "aud": ["hapax"], "kubernetes.io": {"namespace": "team"}}
    assert judged(token(RSA_KEY, "RS256", "rsa", **claims)).name == name


def test_another_claim_may_name_the_principal() -> None:
    rules = RULES._replace(name_claim="azp")
    assert judged(token(azp="app"), rules).name == "app"
    assert isinstance(judged(token(), rules), Failure)


def unsigned(header: dict[str, Any], claims: dict[str, Any] = CLAIMS, signature: bytes = b"") -> str:
    parts = [json.dumps(header).encode(), json.dumps(claims).encode(), signature]
    return ".".join(base64.urlsafe_b64encode(each).rstrip(b"=").decode() for each in parts)


def signed(header: dict[str, Any], claims: dict[str, Any] = CLAIMS) -> str:
    """By the curve's key, whatever it says. Made by hand: the library refuses some of it."""
    text = unsigned({"alg": "ES256", "kid": "ec", **header}, claims).rpartition(".")[0]
    signature = ECAlgorithm(ECAlgorithm.SHA256).sign(text.encode(), EC_KEY)
    return f"{text}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"


def by_public_key(kid: str, key: Any) -> str:
    """HS256 with the public key as the shared secret. Made by hand: the library refuses to."""
    import hashlib
    import hmac

    secret = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    text = unsigned({"alg": "HS256", "kid": kid}).rpartition(".")[0]
    signature = base64.urlsafe_b64encode(hmac.digest(secret, text.encode(), hashlib.sha256)).rstrip(b"=").decode()
    return f"{text}.{signature}"


@pytest.mark.parametrize("text", [
    unsigned({"alg": "none", "kid": "ec"}), unsigned({"alg": "None", "kid": "rsa"}), unsigned({"kid": "ec"}),
    by_public_key("rsa", RSA_KEY), by_public_key("ec", EC_KEY),
    token(ec.generate_private_key(ec.SECP256R1())), token(RSA_KEY, "RS256", "ps"), token(RSA_KEY, "RS256", "ec"),
    token(kid=None), signed({"crit": ["exp"]}), signed({"crit": []}), signed({"b64": True}), signed({"kid": 7}),
    token(EC_KEY, "ES256", "rsa"), token()[:-10] + "A" * 10, "", "a.b.c", "..", token() + ".x",
], ids=range(19))
def test_a_token_that_is_not_genuine_is_refused(text: str) -> None:
    assert isinstance(judged(text), Failure)


@pytest.mark.parametrize("claims", [
    {"iss": None}, {"iss": "https://else"}, {"iss": ["https://issuer"]}, {"aud": None}, {"aud": "else"}, {"aud": []},
    {"aud": ["else", 5]}, {"aud": {"hapax": 1}}, {"exp": None}, {"exp": NOW - 30}, {"exp": "soon"}, {"exp": True},
    {"exp": 1e300}, {"exp": 10**400}, {"exp": -1}, {"iat": -(10**400)},
    {"nbf": NOW + 31}, {"nbf": "x"}, {"iat": NOW + 31}, {"sub": None}, {"sub": ""},
    {"sub": 7}, {"sub": "a\nb"}, {"sub": "x" * 1025}, {"sub": "ANONYMOUS"},
], ids=lambda claims: str(claims)[:40])
def test_the_claims_must_be_right(claims: dict[str, Any]) -> None:
    given = {name: value for name, value in {**CLAIMS, **claims}.items() if value is not None}
    assert isinstance(judged(signed({}, given)), Failure)


def test_clocks_may_differ_by_the_skew() -> None:
    assert isinstance(judged(token(exp=NOW - 29)), Success)
    assert isinstance(judged(token(nbf=NOW + 29, iat=NOW + 29)), Success)
    assert isinstance(judged(token(exp=NOW - 1), RULES._replace(skew_s=0)), Failure)


def test_what_is_made_by_hand_is_genuine() -> None:
    """Else the refusals above would prove nothing."""
    assert isinstance(judged(signed({})), Success)


def test_a_key_that_is_not_known_is_told() -> None:
    assert judged(token(kid="new")) == UnknownKey("new")


def test_keys_that_no_signature_may_be_checked_with_are_left_out() -> None:
    private = json.loads(ECAlgorithm.to_jwk(EC_KEY))
    weak = rsa.generate_private_key(65537, 1024)
    entries = [
        {"kty": "oct", "kid": "shared", "k": "c2VjcmV0"}, {**private, "kid": "private"}, entry(weak, "weak"),
        entry(EC_KEY, "enc", use="enc"), entry(EC_KEY, "other", alg="HS256"), entry(EC_KEY, "ops", key_ops=["encrypt"]),
        {"kty": "EC", "kid": "broken", "crv": "P-256", "x": "AA", "y": "AA"}, {"kid": 5}, "x", entry(EC_KEY, "good"),
        entry(ED_KEY, "good"), {"kty": ["RSA"], "kid": "odd"},
    ]
    found = read_key_set(json.dumps({"keys": entries}).encode())
    assert set(found) == {"good"} and found["good"].algorithms == {"ES256"}  # the first of two with one id


@pytest.mark.parametrize("document", [b"", b"[]", b"{}", b'{"keys": 5}', b"\xff", b"[" * 100_000])
def test_what_is_no_key_set_is_refused(document: bytes) -> None:
    with pytest.raises(ValueError, match="it is"):
        read_key_set(document)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3), max_leaves=6)


@given(
    st.fixed_dictionaries({}, optional={
        name: _JSON for name in ("alg", "kid", "crit", "b64", "typ", "jwk", "jku", "x5c", "zip")}),
    st.dictionaries(st.sampled_from(["iss", "aud", "sub", "exp", "nbf", "iat"]), _JSON), st.binary(max_size=70))
def test_no_token_is_a_fault_or_let_in_unsigned(header: Any, claims: Any, signature: bytes) -> None:
    assert isinstance(judged(unsigned(header, claims, signature)), (Failure, UnknownKey))


@given(st.text(max_size=60), st.binary(max_size=60))
def test_no_text_is_a_fault(text: str, document: bytes) -> None:
    assert isinstance(judged(text), (Failure, UnknownKey))
    with contextlib.suppress(ValueError):
        assert read_key_set(document) == {}


@given(st.dictionaries(st.sampled_from(["kty", "kid", "crv", "x", "y", "n", "e", "use", "alg", "key_ops"]), _JSON))
def test_no_entry_of_a_key_set_is_a_fault(members: dict[str, Any]) -> None:
    read_key_set(json.dumps({"keys": [members, {**entry(EC_KEY, "ec"), **members}]}).encode())


@given(st.dictionaries(st.sampled_from(["iss", "aud", "sub", "exp", "nbf", "iat"]), _JSON, min_size=1))
def test_no_claims_of_a_genuine_token_are_a_fault(claims: Any) -> None:
    assert isinstance(judged(signed({}, {**CLAIMS, **claims})), (Failure, Success))
