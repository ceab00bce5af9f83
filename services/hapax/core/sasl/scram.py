"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677), the server's side, without channel binding.

An unknown user takes the same rounds with a decoy's salt, and fails at the end as a wrong password does. The client's
last message must repeat the whole nonce (a prefix would let a recorded login be used again, CVE-2024-56128) and the
header that it began with.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from typing import Final

from hapax.core.sasl.exchange import (
    LONGEST_NAME,
    Challenge,
    Failure,
    FindCredential,
    Outcome,
    Success,
    prepared,
)
from hapax.core.sasl.scram_keys import ScramCredential

_FIRST: Final = re.compile(
    rb"(?P<header>(?:n|y),(?:a=(?P<authzid>[^,\0]+))?,)(?P<bare>n=(?P<name>[^,\0]+),r=(?P<nonce>[!-+\--~]+)"
    rb"(?P<extensions>,.*)?)", re.DOTALL)
_FINAL: Final = re.compile(
    rb"(?P<without_proof>c=(?P<header>[A-Za-z0-9+/=]+),r=(?P<nonce>[!-+\--~]+)(?:,[A-Za-z]=[^,\0]+)*)"
    rb",p=(?P<proof>[A-Za-z0-9+/=]+)", re.DOTALL)
"""Both are tried on what anybody sends, and no more often than once at each byte: nothing in them fits in two ways."""
_LONGEST_NONCE: Final = 1024


class ScramExchange:
    def __init__(self, find: FindCredential, nonce: str) -> None:
        """`find`: for this exchange's mechanism. `nonce`: printable, without commas, never used before."""
        self._find = find
        self._nonce = nonce
        self._begun: tuple[str, ScramCredential, bytes, bytes, bytes] | None = None
        self._ended = False

    def step(self, token: bytes) -> Outcome:
        if self._ended:
            return Failure("a token after the end of the exchange")
        outcome = self._first(token) if self._begun is None else self._final(token, *self._begun)
        self._ended = not isinstance(outcome, Challenge)
        return outcome

    def _first(self, token: bytes) -> Outcome:
        found = _FIRST.fullmatch(token)
        if found is None:
            return Failure("the first message is malformed, or wants channel binding")
        if len(found["nonce"]) > _LONGEST_NONCE:
            return Failure("the nonce is too long")
        if found["extensions"]:
            # Kafka's `tokenauth=true` is a delegation token, which is not served. `m` is reserved for what must not be
            # passed over.
            return Failure("the first message has extensions")
        name = unescaped(found["name"])
        if name is None:
            return Failure("the user name is malformed")
        if found["authzid"] is not None and found["authzid"] != found["name"]:
            return Failure("it asks for the rights of another user")
        credential = self._find(name)
        nonce = found["nonce"] + self._nonce.encode("ascii")
        challenge = b"r=%s,s=%s,i=%d" % (nonce, base64.b64encode(credential.salt), credential.iterations)
        self._begun = name, credential, nonce, base64.b64encode(found["header"]), found["bare"] + b"," + challenge
        return Challenge(challenge)

    def _final(self, token: bytes, name: str, credential: ScramCredential, nonce: bytes, header: bytes,
               so_far: bytes) -> Outcome:
        found = _FINAL.fullmatch(token)
        if found is None:
            return Failure("the last message is malformed")
        if not hmac.compare_digest(found["nonce"], nonce):
            return Failure("the nonce is not the one of this exchange")
        if found["header"] != header:
            return Failure("the header is not the one of the first message")
        try:
            proof = base64.b64decode(found["proof"], validate=True)
        except binascii.Error:
            return Failure("the proof is malformed")
        mechanism = credential.mechanism
        if len(proof) != mechanism.key_bytes:
            return Failure("the proof is malformed")
        said = so_far + b"," + found["without_proof"]
        signature = hmac.digest(credential.stored_key, said, mechanism.digest)
        client_key = bytes(one ^ other for one, other in zip(proof, signature, strict=True))
        answer = base64.b64encode(hmac.digest(credential.server_key, said, mechanism.digest))
        fits = hmac.compare_digest(hashlib.new(mechanism.digest, client_key).digest(), credential.stored_key)
        if not fits or credential.decoy:
            return Failure(f"the password is wrong or the user {name!r} unknown")
        return Success(name, b"v=" + answer, credential=credential)


def unescaped(name: bytes) -> str | None:
    """A saslname's text: `=2C` is a comma, `=3D` an equals sign. None: it is malformed."""
    if len(name) > 3 * LONGEST_NAME or re.search(rb"=(?!2C|3D)", name):
        return None
    try:
        text = name.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return prepared(text.replace("=2C", ",").replace("=3D", "="))
