"""What a SASL exchange is to the connection that carries it: tokens in, outcomes out.

A mechanism is a machine with one method, `step(token)`. It returns

* `Challenge`: the client must answer this token;
* `Success`: the client is who it says; the token, if it has one, goes with the good news;
* `Failure`: it is not. The reason is for the log. Clients are told one fixed text, the same for an unknown user and a
  wrong password;
* `PasswordCheck` or `TokenCheck`: work that a machine does not do itself, since it takes long or needs keys. Its
  outcome is given to `PasswordCheck.outcome` or to `checked`.

An exchange that has failed or succeeded takes no further step.
"""

from __future__ import annotations

import hmac
import stringprep
import unicodedata
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from hapax.core.sasl.scram_keys import ScramCredential, ScramMechanism, keys_of, salted_password

SCRAM_SHA_256: Final = ScramMechanism.SCRAM_SHA_256.sasl_name
SCRAM_SHA_512: Final = ScramMechanism.SCRAM_SHA_512.sasl_name
PLAIN: Final = "PLAIN"
OAUTHBEARER: Final = "OAUTHBEARER"
MECHANISMS: Final = (SCRAM_SHA_256, SCRAM_SHA_512, PLAIN, OAUTHBEARER)
SHOWS_SECRETS: Final = frozenset((PLAIN, OAUTHBEARER))
"""What the client sends is enough to log in as the client."""

_NAMELESS: Final = "ANONYMOUS"
"""Of `access.principals.ANONYMOUS`, which on many clusters is the nodes' principal."""
LONGEST_NAME: Final = 1024
"""Bytes of UTF-8 of a user's name."""
LONGEST_PASSWORD: Final = 4096
"""Bytes of UTF-8."""


class Challenge(NamedTuple):
    token: bytes


class Success(NamedTuple):
    name: str
    """Of the principal: `User:<name>`."""
    token: bytes = b""
    expires_ms: int | None = None
    """When the credential ends, in milliseconds since 1970; None: it does not."""
    credential: ScramCredential | None = None
    """What the password was compared with; None: there was no password."""


class Failure(NamedTuple):
    reason: str


class PasswordCheck(NamedTuple):
    """Whether this password has these keys: up to 30 ms of computation (PBKDF2)."""

    name: str
    password: str
    credential: ScramCredential
    """Of the user, or a decoy that no password fits."""

    def __repr__(self) -> str:
        """Without the password: it must not get into a log."""
        return f"PasswordCheck({self.name!r})"

    def outcome(self) -> Success | Failure:
        """Takes as long for a decoy as for a user's. A password may be meant as it is or in SASLprep's form: Kafka's
        clients hash it as it is, other programs prepare it."""
        candidates = dict.fromkeys(each for each in (self.password, prepared(self.password)) if each is not None)
        fits = False
        for candidate in candidates:
            credential = self.credential
            salted = salted_password(credential.mechanism, candidate, credential.salt, credential.iterations)
            stored_key, _ = keys_of(credential.mechanism, salted)
            fits |= hmac.compare_digest(stored_key, credential.stored_key)
        if fits and not self.credential.decoy:
            return Success(self.name, credential=self.credential)
        return Failure(f"the password is wrong or the user {self.name!r} unknown")


class TokenCheck(NamedTuple):
    """Whether this JSON Web Token is genuine and whose it is."""

    token: str

    def __repr__(self) -> str:
        """Without the token: it must not get into a log."""
        return "TokenCheck()"


Outcome = Challenge | Success | Failure
Step = Outcome | PasswordCheck | TokenCheck


class Exchange(Protocol):
    def step(self, token: bytes) -> Step: ...


FindCredential = Callable[[str], ScramCredential]
"""The credential of a user, by name; for a user who has none, a decoy."""


def prepared(text: str) -> str | None:
    """SASLprep (RFC 4013, of a query): the form in which equal texts are equal. None: it has characters that no name or
    password may have, such as control characters."""
    if text.isascii() and text.isprintable():
        return text
    mapped = "".join(
        " " if stringprep.in_table_c12(each) else each for each in text if not stringprep.in_table_b1(each))
    form = unicodedata.ucd_3_2_0.normalize("NFKC", mapped)
    if any(table(each) for each in form for table in _PROHIBITED):
        return None
    rightward = [stringprep.in_table_d1(each) for each in form]
    if any(rightward) and (
        any(stringprep.in_table_d2(each) for each in form) or not (rightward[0] and rightward[-1])
    ):
        return None
    return form


_PROHIBITED: Final = (
    stringprep.in_table_c12, stringprep.in_table_c21_c22, stringprep.in_table_c3, stringprep.in_table_c4,
    stringprep.in_table_c5, stringprep.in_table_c6, stringprep.in_table_c7, stringprep.in_table_c8,
    stringprep.in_table_c9,
)


def name_fault(name: str) -> str:
    """Why no user may have this name; empty: one may."""
    if not name:
        return "a user name must not be empty"
    if len(name.encode("utf-8", "surrogatepass")) > LONGEST_NAME:
        return f"a user name has at most {LONGEST_NAME} bytes"
    if name == _NAMELESS:
        return f"no user may be called {name}, as clients that do not log in are"
    if prepared(name) != name:
        return "a user name must be in SASLprep's form (RFC 4013), without control characters"
    return ""
