"""Logins by an `Authorization` header, of the REST API and of public gRPC calls.

`Basic` (RFC 7617) has a user's name and password, which is compared with any of the user's SCRAM credentials, as PLAIN
does. `Bearer` (RFC 6750) has a signed token (JWT), which is checked as OAUTHBEARER does. Both are enough to log in as
the client: they belong under TLS.

Each request carries its password, and a comparison takes up to 30 ms of CPU. So a password that was right is remembered
for a minute: its HMAC under a key that only this process has. What is remembered counts only while the credential that
it was compared with is the user's. A wrong password is never remembered, and an unknown user takes as long as a wrong
password.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from hapax.core.sasl.exchange import Failure, PasswordCheck, Success
from hapax.core.sasl.plain import PlainExchange
from hapax.core.sasl.scram_keys import ScramCredential
from hapax.runtime.audit_events import SILENT, Audit
from hapax.runtime.password_checks import PasswordChecks
from hapax.runtime.ports import Clock, Randomness
from hapax.runtime.scram_image import ScramImage

if TYPE_CHECKING:
    from hapax.runtime.key_sets import IssuerKeys

REMEMBERED_MS: Final = 60_000
MOST_REMEMBERED: Final = 1024
LONGEST_HEADER: Final = 16 << 10
MOST_WAITING: Final = 128
"""Logins of one address that wait for a computation, or for the issuer's keys: its next one is refused."""
MOST_WAITING_IN_ALL: Final = 1024
"""From here on, an address has one that waits; from four times as many on, none."""
_SIGNED: Final = re.compile(r"[A-Za-z0-9_\-]+\.[A-Za-z0-9_\-]+\.[A-Za-z0-9_\-]*")


class TooManyLogins(Exception):
    """Too many logins wait already. Nothing was checked."""


class _Waiting:
    """Bounds the logins that wait. Requests are no connections: who sends one and leaves at once waits on, and could
    send any number. An address that fills its own places takes none of others."""

    def __init__(self) -> None:
        self._of: Counter[str] = Counter()

    @contextmanager
    def place(self, source: str) -> Iterator[None]:
        """Raises TooManyLogins."""
        total = self._of.total()
        most = MOST_WAITING if total < MOST_WAITING_IN_ALL else 1 if total < 4 * MOST_WAITING_IN_ALL else 0
        if self._of[source] >= most:
            raise TooManyLogins
        self._of[source] += 1
        try:
            yield
        finally:
            self._of[source] -= 1
            if not self._of[source]:
                del self._of[source]


class RightPasswords:
    """Which passwords were right a moment ago."""

    def __init__(self, scram: ScramImage, clock: Clock, random: Randomness) -> None:
        self._scram = scram
        self._clock = clock
        self._secret = random.randbytes(32)
        self._known: OrderedDict[bytes, tuple[int, ScramCredential]] = OrderedDict()
        """HMAC of name and password -> until when (ms, monotonic), and what it was compared with; the oldest first."""

    def __len__(self) -> int:
        return len(self._known)

    def find(self, name: str, password: str) -> ScramCredential | None:
        key = self._key(name, password)
        found = self._known.get(key)
        if found is None:
            return None
        until_ms, credential = found
        if self._clock.monotonic_ms() >= until_ms or not self._scram.is_current(name, credential):
            del self._known[key]
            return None
        return credential

    def remember(self, name: str, password: str, credential: ScramCredential) -> None:
        key = self._key(name, password)
        self._known.pop(key, None)
        self._known[key] = self._clock.monotonic_ms() + REMEMBERED_MS, credential
        while len(self._known) > MOST_REMEMBERED:
            self._known.popitem(last=False)

    def _key(self, name: str, password: str) -> bytes:
        text = f"{len(name)}:{name}{password}".encode("utf-8", "surrogatepass")
        return hmac.digest(self._secret, text, hashlib.sha256)


class HeaderLogins:
    """What `Authorization` headers are checked against."""

    def __init__(
        self, scram: ScramImage, clock: Clock, random: Randomness, *, passwords: bool, keys: IssuerKeys | None,
        audit: Audit = SILENT,
    ) -> None:
        """`passwords`: whether Basic is taken. `keys`: of the issuer of tokens; None: Bearer is not taken. `audit`:
        where those who ask here record what failed."""
        self.passwords = passwords
        self.keys = keys
        self.audit = audit
        self._scram = scram
        self._clock = clock
        self._right = RightPasswords(scram, clock, random)
        self._checks: PasswordChecks[Success | Failure] = PasswordChecks()
        self._waiting = _Waiting()

    async def basic(self, credentials: str, source: str) -> Success | Failure:
        """`credentials`: what follows `Basic`. `source`: the client's address; addresses take turns. Raises
        TooManyLogins."""
        if not self.passwords:
            return Failure("passwords are not taken")
        try:
            name, colon, password = base64.b64decode(credentials, validate=True).partition(b":")
        except ValueError:
            return Failure("the header is not Base64")
        if not colon:
            return Failure("the header has no password")
        check = PlainExchange(self._scram.find_for_plain).step(b"\0" + name + b"\0" + password)
        if not isinstance(check, PasswordCheck):
            return check
        known = self._right.find(check.name, check.password)
        if known is not None:
            return Success(check.name, credential=known)
        with self._waiting.place(source):
            outcome = await self._checks.run(source, check.outcome)
        if isinstance(outcome, Success) and outcome.credential is not None:
            if not self._scram.is_current(outcome.name, outcome.credential):
                return Failure("the credential was removed or replaced")
            self._right.remember(check.name, check.password, outcome.credential)
        return outcome

    async def bearer(self, token: str, source: str) -> Success | Failure:
        """`token`: what follows `Bearer`. Raises TooManyLogins."""
        if self.keys is None or not _SIGNED.fullmatch(token):
            return Failure("the token is unknown")
        return await self.keys.check(token, self._clock.now_ms() / 1000, lambda: self._waiting.place(source))

    async def check(self, header: str, source: str) -> Success | Failure:
        """A whole header. Raises TooManyLogins."""
        kind, _, rest = header.partition(" ")
        if len(header) > LONGEST_HEADER:
            return Failure("the header is too long")
        match kind.lower():
            case "basic":
                return await self.basic(rest.strip(), source)
            case "bearer":
                return await self.bearer(rest.strip(), source)
        return Failure("the header is neither Basic nor Bearer")
