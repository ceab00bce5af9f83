"""Bearer tokens from a file, which may change while the service runs, and what their roles permit.

    # name     role       token
    grafana    read-only  KNcBkFSTZaMkV5MRxTvPhjFAkFOkUaCD
    ci         admin      sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
    billing    acl        sha256:2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae

The holder of a token is the principal `User:NAME`. Its role adds to what ACLs permit: `acl` nothing, `read-only` the
metadata of everything that no ACL denies, `admin` all, as to a super user. With a hash instead of the token, only its
user needs to store the token itself. If the file becomes unreadable or has a bad line, the last good version stays in
force, and the log states why. A file that becomes empty revokes every token: a service does not start with one, but who
takes the last token out of it means that.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal, NamedTuple, cast, get_args

from hapax.core.sasl.exchange import name_fault
from hapax.runtime import telemetry

log = telemetry.logger("tokens")

Role = Literal["read-only", "admin", "acl"]

ROLES: Final = get_args(Role)
LEAST_LENGTH: Final = 16
LOOK_EVERY_S: Final = 1.0
_HASH: Final = "sha256:"
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/=-]+")
"""The characters that a bearer token may contain (RFC 6750)."""


class TokenFileError(OSError):
    """The file cannot be used. The message names the file and the line, and never quotes the line's content."""


class Holder(NamedTuple):
    name: str
    role: Role


def parse(text: str, source: str, *, may_be_empty: bool = False) -> list[tuple[bytes, Holder]]:
    """(SHA-256 of the token, its user). Raises TokenFileError."""
    found: list[tuple[bytes, Holder]] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split("#", 1)[0].split()
        if not words:
            continue
        if len(words) != 3:
            raise TokenFileError(f"{source}, line {number}: expected NAME ROLE TOKEN")
        name, role, token = words
        if role not in ROLES:
            raise TokenFileError(f"{source}, line {number}: the role must be " + " or ".join(ROLES))
        if fault := name_fault(name):
            raise TokenFileError(f"{source}, line {number}: {fault}")
        if token.startswith(_HASH):
            hexadecimal = token.removeprefix(_HASH)
            if not re.fullmatch(r"[0-9a-fA-F]{64}", hexadecimal):
                raise TokenFileError(f"{source}, line {number}: sha256: must be followed by 64 hex digits")
            digest = bytes.fromhex(hexadecimal)
        elif len(token) < LEAST_LENGTH or not _TOKEN.fullmatch(token):
            raise TokenFileError(
                f"{source}, line {number}: a token must have at least {LEAST_LENGTH} characters: letters, digits or "
                "._~+/=-")
        else:
            digest = hashlib.sha256(token.encode()).digest()
        if any(digest == other for other, _ in found):
            raise TokenFileError(f"{source}, line {number}: this token occurs twice in the file")
        found.append((digest, Holder(name, cast(Role, role))))
    if not found and not may_be_empty:
        raise TokenFileError(f"{source}: the file has no tokens, so that every request would be refused")
    return found


class Tokens:
    """`now` is a clock in seconds. The file is read again by the first call after `LOOK_EVERY_S` seconds."""

    def __init__(self, path: Path, now: Callable[[], float]) -> None:
        """Raises TokenFileError, OSError."""
        self._path = path
        self._now = now
        self._looked_at = now()
        self._text = path.read_text(encoding="utf-8")
        self._known = parse(self._text, str(path))

    def holder(self, token: str) -> Holder | None:
        """The time that this takes does not depend on the token: its digest is compared with all known digests."""
        self._look()
        digest = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
        found: Holder | None = None
        for known, principal in self._known:
            if hmac.compare_digest(known, digest):
                found = principal
        return found

    def _look(self) -> None:
        if self._now() - self._looked_at < LOOK_EVERY_S:
            return
        self._looked_at = self._now()
        try:
            # Compares contents, not modification times: a mounted Secret changes by a symbolic link to other files.
            text = self._path.read_text(encoding="utf-8")
            if text == self._text:
                return
            self._text = text
            self._known = parse(text, str(self._path), may_be_empty=True)
            log.info("tokens read again", file=self._path, tokens=len(self._known))
        except (OSError, UnicodeDecodeError) as error:
            log.error("the tokens file cannot be used; the last good version stays in force", error=error)
