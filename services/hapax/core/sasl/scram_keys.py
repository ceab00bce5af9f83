"""Keys of SCRAM (RFC 5802, RFC 7677): what a server stores of a password, and what a decoy looks like."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from enum import IntEnum
from typing import Final, NamedTuple

_DEFAULT_ITERATIONS: Final = 4096
"""Of Kafka's tools."""


class ScramMechanism(IntEnum):
    """Numbers are those of Kafka's protocol."""

    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2

    @property
    def sasl_name(self) -> str:
        return self.name.replace("_", "-")

    @property
    def digest(self) -> str:
        """As `hashlib` calls it."""
        return "sha256" if self is ScramMechanism.SCRAM_SHA_256 else "sha512"

    @property
    def key_bytes(self) -> int:
        return 32 if self is ScramMechanism.SCRAM_SHA_256 else 64


class ScramCredential(NamedTuple):
    """What is stored of a user's password for one mechanism. It is not enough to log in: for that one must know the
    client's key, of which `stored_key` is the hash."""

    mechanism: ScramMechanism
    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    @property
    def decoy(self) -> bool:
        """It stands for a user who does not exist. No password fits it."""
        return False

    def __repr__(self) -> str:
        """Without the keys: they must not get into a log."""
        return f"ScramCredential({self.mechanism.sasl_name}, {self.iterations} iterations)"


class Decoy(ScramCredential):
    __slots__ = ()

    @property
    def decoy(self) -> bool:
        return True


def salted_password(mechanism: ScramMechanism, password: str, salt: bytes, iterations: int) -> bytes:
    """Takes 1 to 30 ms."""
    return hashlib.pbkdf2_hmac(mechanism.digest, password.encode("utf-8", "surrogatepass"), salt, iterations)


def keys_of(mechanism: ScramMechanism, salted: bytes) -> tuple[bytes, bytes]:
    """StoredKey and ServerKey of a salted password."""
    client_key = hmac.digest(salted, b"Client Key", mechanism.digest)
    return hashlib.new(mechanism.digest, client_key).digest(), hmac.digest(salted, b"Server Key", mechanism.digest)


def credential_of(mechanism: ScramMechanism, salt: bytes, salted: bytes, iterations: int) -> ScramCredential:
    return ScramCredential(mechanism, salt, *keys_of(mechanism, salted), iterations)


class Shape(NamedTuple):
    """What the first answer to a login shows of a credential, and how much work its check is."""

    mechanism: ScramMechanism
    iterations: int
    salt_bytes: int
    textual: bool
    """Its salt has only digits and lower-case letters, as Kafka's own tools make it."""


_TEXT: Final = b"0123456789abcdefghijklmnopqrstuvwxyz"
_KAFKA_SALT: Final = 1 << 130
"""Kafka's tools write a number below this one to the base of 36."""
_LONGEST_KAFKA_SALT: Final = 26
_TEXTUAL: Final = frozenset(_TEXT)


def shape_of(credential: ScramCredential) -> Shape:
    return Shape(
        credential.mechanism, credential.iterations, len(credential.salt), _TEXTUAL.issuperset(credential.salt))


def default_shape(mechanism: ScramMechanism) -> Shape:
    return Shape(mechanism, _DEFAULT_ITERATIONS, 26, True)


def decoy(secret: bytes, name: str, shapes: Iterable[Shape]) -> Decoy:
    """The credential that a user who has none seems to have: always the same one, of the shape that some user's really
    has. `secret`: the cluster's; who does not know it cannot tell the salt from a random one. `shapes`: not empty.

    The shape is the one with the highest hash for this name. So another user's new shape changes few decoys."""
    what = name.encode("utf-8", "surrogatepass")
    shape = max(shapes, key=lambda each: _draw(secret, f"shape {tuple(each)}", what, 8))
    salt = _draw(secret, f"salt {int(shape.mechanism)}", what, shape.salt_bytes)
    if shape.textual:
        salt = _textual(salt, _draw(secret, "number", what, 64))
    key_bytes = shape.mechanism.key_bytes
    return Decoy(
        shape.mechanism, salt, _draw(secret, "stored key", what, key_bytes),
        _draw(secret, "server key", what, key_bytes), shape.iterations)


def _textual(salt: bytes, drawn: bytes) -> bytes:
    """As long as `salt`. With as many digits as Kafka's tools give, it is a number that these could have drawn: another
    first digit would tell that it is a decoy's."""
    base, length = len(_TEXT), len(salt)
    if length > _LONGEST_KAFKA_SALT:
        return bytes(_TEXT[each % base] for each in salt)
    least = base ** (length - 1)
    number = least + int.from_bytes(drawn, "big") % (min(base**length, _KAFKA_SALT) - least)
    return bytes(_TEXT[number // base**place % base] for place in reversed(range(length)))


def _draw(secret: bytes, purpose: str, name: bytes, size: int) -> bytes:
    drawn = b""
    while len(drawn) < size:
        drawn += hmac.digest(secret, purpose.encode() + len(drawn).to_bytes(4, "big") + name, "sha512")
    return drawn[:size]
