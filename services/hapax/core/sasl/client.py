"""The client's side of a SASL exchange: what it says, and what it believes the server.

A mechanism is a machine. `begin` gives the first message; `step` takes each answer that the server has not called a
failure, and returns

* `Say`: the next message;
* `Derive`: work that the machine does not do itself, since it takes long. Its outcome is given to `derived`;
* `Accepted`: the exchange is complete, and the server is who it should be;
* `Distrusted`: the server is not to be talked to. The reason holds nothing secret.

Only `Accepted` lets a connection be used. A server that says that all is well before that is not believed: with SCRAM,
it would be one that does not know the password.

Names and passwords are used as they are, without SASLprep, as Kafka's own clients do.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from typing import Final, NamedTuple, Protocol

from hapax.core.sasl.scram_keys import ScramMechanism, salted_password

LEAST_ITERATIONS: Final = 4096
"""RFC 7677. A server that asks for fewer makes the password cheap to guess for who reads the exchange."""
MOST_ITERATIONS: Final = 1_000_000
"""Half a second of computation."""
_LONGEST_SALT: Final = 4096
_TOKEN: Final = re.compile(r"[A-Za-z0-9\-._~+/]+=*")
"""RFC 6750's b64token: what cannot break out of the message."""
_REFUSED: Final = b"\x01"
_SERVER_FIRST: Final = re.compile(
    rb"r=(?P<nonce>[!-+\--~]+),s=(?P<salt>[A-Za-z0-9+/=]+),i=(?P<iterations>[1-9][0-9]{0,9})"
    rb"(?:,[A-Za-z]=[^,\0]+)*", re.DOTALL)
_SERVER_FINAL: Final = re.compile(rb"v=(?P<signature>[A-Za-z0-9+/=]+)(?:,[A-Za-z]=[^,\0]+)*", re.DOTALL)


class Say(NamedTuple):
    message: bytes


class Derive(NamedTuple):
    """The keys of a password with this salt."""

    mechanism: ScramMechanism
    salt: bytes
    iterations: int

    def outcome(self, password: str) -> ClientKeys:
        """Takes 1 ms to half a second."""
        salted = salted_password(self.mechanism, password, self.salt, self.iterations)
        digest = self.mechanism.digest
        return ClientKeys(hmac.digest(salted, b"Client Key", digest), hmac.digest(salted, b"Server Key", digest))


class ClientKeys(NamedTuple):
    """As good as the password, for logging in to this cluster."""

    client_key: bytes
    server_key: bytes

    def __repr__(self) -> str:
        return "ClientKeys"


class Accepted(NamedTuple):
    pass


class Distrusted(NamedTuple):
    reason: str


ClientStep = Say | Derive | Accepted | Distrusted


class ClientExchange(Protocol):
    def begin(self) -> bytes: ...
    def step(self, token: bytes) -> ClientStep: ...


class PlainClient:
    """PLAIN (RFC 4616): the message contains the password."""

    def __init__(self, name: str, password: str) -> None:
        self._message = b"\0" + name.encode() + b"\0" + password.encode()
        self._ended = False

    def begin(self) -> bytes:
        return self._message

    def step(self, token: bytes) -> Accepted | Distrusted:
        if self._ended:
            return Distrusted("it went on after the end of the login")
        self._ended = True
        return Accepted()


class BearerClient:
    """OAUTHBEARER (RFC 7628)."""

    def __init__(self, token: str) -> None:
        """`token`: see `token_fault`."""
        self.token = token
        self._message = b"n,,\x01auth=Bearer " + token.encode("ascii") + b"\x01\x01"
        self._refused = self._ended = False

    def begin(self) -> bytes:
        return self._message

    def step(self, token: bytes) -> Say | Accepted | Distrusted:
        if self._refused or self._ended:
            return Distrusted("it refused the token, or accepted it, and then went on")
        if token:  # says in JSON why the token is refused; the failure itself follows
            self._refused = True
            return Say(_REFUSED)
        self._ended = True
        return Accepted()


class ScramClient:
    """SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677), without channel binding."""

    def __init__(self, mechanism: ScramMechanism, name: str, nonce: str) -> None:
        """`nonce`: printable, without commas, never used before."""
        self._mechanism = mechanism
        self._nonce = nonce.encode("ascii")
        escaped = name.replace("=", "=3D").replace(",", "=2C").encode()
        self._bare = b"n=" + escaped + b",r=" + self._nonce
        self._said = b""
        self._final = b""
        self._expected: bytes | None = None
        self._ended = False

    def begin(self) -> bytes:
        return b"n,," + self._bare

    def step(self, token: bytes) -> Derive | Accepted | Distrusted:
        if self._ended or (self._final and self._expected is None):
            return Distrusted("it went on after the end of the login")
        outcome = self._first(token) if not self._final else self._last(token)
        self._ended = not isinstance(outcome, Derive)
        return outcome

    def _first(self, token: bytes) -> Derive | Distrusted:
        found = _SERVER_FIRST.fullmatch(token)
        if found is None:
            return Distrusted("its first message is malformed")
        nonce, iterations = found["nonce"], int(found["iterations"])
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce):
            return Distrusted("its nonce does not continue this client's")
        if iterations < LEAST_ITERATIONS:
            return Distrusted(f"it asks for {iterations} iterations; fewer than {LEAST_ITERATIONS} protect no password")
        if iterations > MOST_ITERATIONS:
            return Distrusted(f"it asks for {iterations} iterations; more than {MOST_ITERATIONS} take too long")
        try:
            salt = base64.b64decode(found["salt"], validate=True)
        except binascii.Error:
            return Distrusted("its salt is malformed")
        if not 1 <= len(salt) <= _LONGEST_SALT:
            return Distrusted(f"its salt has {len(salt)} bytes")
        self._final = b"c=biws,r=" + nonce
        self._said = self._bare + b"," + token + b"," + self._final
        return Derive(self._mechanism, salt, iterations)

    def derived(self, keys: ClientKeys) -> Say:
        """What `Derive` asks for."""
        digest = self._mechanism.digest
        stored_key = hashlib.new(digest, keys.client_key).digest()
        signature = hmac.digest(stored_key, self._said, digest)
        proof = bytes(one ^ other for one, other in zip(keys.client_key, signature, strict=True))
        self._expected = hmac.digest(keys.server_key, self._said, digest)
        return Say(self._final + b",p=" + base64.b64encode(proof))

    def _last(self, token: bytes) -> Accepted | Distrusted:
        found = _SERVER_FINAL.fullmatch(token)
        assert self._expected is not None
        try:
            signature = b"" if found is None else base64.b64decode(found["signature"], validate=True)
        except binascii.Error:
            signature = b""
        if not hmac.compare_digest(signature, self._expected):
            return Distrusted("it does not prove that it knows the user's password")
        return Accepted()


def token_fault(token: str) -> str:
    """Why this text cannot be sent as a bearer token; empty: it can."""
    if not token:
        return "the token is empty"
    if _TOKEN.fullmatch(token) is None:
        return "the token has characters that no bearer token has (RFC 6750)"
    return ""


def password_fault(name: str, password: str) -> str:
    """Why these cannot be sent; empty: they can."""
    for what, text in (("the user name", name), ("the password", password)):
        if not text:
            return f"{what} is empty"
        if "\0" in text:
            return f"{what} has a zero character"
        if any("\ud800" <= each <= "\udfff" for each in text):
            return f"{what} is no Unicode text"
    return ""
