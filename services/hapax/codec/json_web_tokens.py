"""JSON Web Tokens (RFC 7519) of OAUTHBEARER: whose they are, by the issuer's public keys (RFC 7517).

What a token says of itself decides nothing: the algorithm must be one of ours and fit the type of the key that the
token names, so that neither `none` nor a public key used as a shared secret passes. A header that demands what this
program may not know (`crit`, `b64`) is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from hapax.core.sasl.exchange import Failure, Success, name_fault

PublicKey = rsa.RSAPublicKey | ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey

_RSA: Final = frozenset(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"))
_CURVES: Final = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
_READERS: Final[dict[str, Callable[[dict[str, Any]], Any]]] = {
    "RSA": RSAAlgorithm.from_jwk, "EC": ECAlgorithm.from_jwk, "OKP": OKPAlgorithm.from_jwk}
_LEAST_RSA_BITS: Final = 2048
_MOST_KEYS: Final = 256
_LONGEST_REASON: Final = 200
_LAST_MOMENT_S: Final = 2**53


class VerificationKey(NamedTuple):
    key: PublicKey
    algorithms: frozenset[str]
    """With which it may be used."""


class TokenRules(NamedTuple):
    issuer: str
    audiences: tuple[str, ...]
    """The token must have one of them."""
    name_claim: str = "sub"
    """Names the principal."""
    skew_s: int = 30
    """By how much clocks may differ."""


KeySet = Mapping[str, VerificationKey]
"""By key id."""


class UnknownKey(NamedTuple):
    """The token names a key that is not in the set."""

    key_id: str


def read_key_set(document: bytes) -> dict[str, VerificationKey]:
    """The keys that signatures may be checked with, by their ids. Entries that are no such keys are left out. Raises
    ValueError where the document is no key set."""
    try:
        found = json.loads(document)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not JSON: {error}") from None
    entries = found.get("keys") if isinstance(found, dict) else None
    if not isinstance(entries, list):
        raise ValueError("it is no JSON Web Key Set")
    keys: dict[str, VerificationKey] = {}
    for entry in entries[:_MOST_KEYS]:
        if not isinstance(entry, dict) or not isinstance(entry.get("kid"), str):
            continue
        key = _key(entry)
        if key is not None:
            keys.setdefault(entry["kid"], key)
    return keys


def _key(entry: dict[str, Any]) -> VerificationKey | None:
    if entry.get("use", "sig") != "sig" or "d" in entry:
        return None
    operations = entry.get("key_ops", ["verify"])
    if not isinstance(operations, list) or "verify" not in operations:
        return None
    try:
        key = _READERS[entry["kty"]](entry)
    except Exception:  # the library raises several types for malformed members
        return None
    algorithms = _algorithms_of(key)
    if "alg" in entry:
        algorithms &= {entry["alg"]} if isinstance(entry["alg"], str) else set()
    return VerificationKey(key, algorithms) if algorithms else None


def _algorithms_of(key: object) -> frozenset[str]:
    if isinstance(key, rsa.RSAPublicKey):
        return _RSA if key.key_size >= _LEAST_RSA_BITS else frozenset()
    if isinstance(key, ec.EllipticCurvePublicKey):
        return frozenset(filter(None, (_CURVES.get(key.curve.name),)))
    return frozenset(("EdDSA",)) if isinstance(key, ed25519.Ed25519PublicKey) else frozenset()


def verify(token: str, keys: KeySet, rules: TokenRules, now_s: float) -> Success | Failure | UnknownKey:
    """Whose the token is and until when. Never raises."""
    try:
        header = jwt.get_unverified_header(token)
    except Exception:  # the library raises several types for malformed parts
        return Failure("the token's header is malformed")
    for demanding in ("crit", "b64"):
        if demanding in header:
            return Failure(f"the token's header has {demanding}, which is not supported")
    key_id, algorithm = header.get("kid"), header.get("alg")
    if not isinstance(key_id, str) or not isinstance(algorithm, str):
        return Failure("the token names no key or no algorithm")
    key = keys.get(key_id)
    if key is None:
        return UnknownKey(key_id)
    if algorithm not in key.algorithms:
        return Failure(f"the token's algorithm {algorithm[:20]!r} is not one of its key's")
    try:
        claims = jwt.decode(
            token, key.key, algorithms=[algorithm],
            options={"verify_exp": False, "verify_nbf": False, "verify_iat": False, "verify_aud": False,
                     "verify_iss": False, "verify_sub": False, "verify_jti": False})
    except Exception as error:
        return Failure(f"the token is not genuine: {str(error)[:_LONGEST_REASON]}")
    return _judged(claims, rules, now_s)


def _judged(claims: dict[str, Any], rules: TokenRules, now_s: float) -> Success | Failure:
    """By the claims of a genuine token. Here and not by the library, whose checks read another clock."""
    expires = _moment(claims.get("exp"))
    if expires is None:
        return Failure("the token has no exp")
    if now_s >= expires + rules.skew_s:
        return Failure("the token has expired")
    for claim in ("nbf", "iat"):
        if claim in claims:
            since = _moment(claims[claim])
            if since is None or now_s < since - rules.skew_s:
                return Failure(f"the token's {claim} is in the future or malformed")
    if claims.get("iss") != rules.issuer:
        return Failure("the token is of another issuer")
    given = claims.get("aud")
    audiences: Sequence[Any] = given if isinstance(given, list) else [given]
    if not any(isinstance(each, str) and each in rules.audiences for each in audiences):
        return Failure("the token is for another audience")
    name: Any = claims.get(rules.name_claim)
    if not isinstance(name, str) or (fault := name_fault(name)):
        return Failure(f"the token's {rules.name_claim} is no user name: {fault if isinstance(name, str) else ''}")
    return Success(name, b"", int((expires + rules.skew_s) * 1000))


def _moment(value: object) -> float | None:
    """Seconds since 1970."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if 0 <= value <= _LAST_MOMENT_S else None  # NaN neither
