"""Where the secrets of the client's logins come from: settings, files, a program's own function, an OpenID provider.

Each source is a coroutine function. It raises OSError or Unusable where there is nothing to be had at the moment, and
PeerLoginRefused or PeerDistrusted where another attempt would fail likewise. No message holds a secret.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from hapax.runtime import supervision

_LEAST_MS: Final = 100_000_000_000
"""An instant below it (1973) was given in seconds."""


class OAuthToken(NamedTuple):
    token: str
    expires_ms: int | None = None
    """Milliseconds since 1970. None: unknown, so that each login asks for another token."""

    def __repr__(self) -> str:
        return f"OAuthToken(expires_ms={self.expires_ms})"


Given = OAuthToken | tuple[str, int | None] | str
TokenProvider = Callable[[], Given | Awaitable[Given]]
Secret = Callable[[], Awaitable[str]]


class Unusable(ValueError):
    """What a source has returned. The message holds no secret."""


def secret_of(value: str | None, file: str | None) -> Secret:
    """One of the two is given. A file may be replaced at any time, as Kubernetes replaces those of a Secret."""
    async def read() -> str:
        if file is None:
            assert value is not None
            return value
        return first_line(await asyncio.to_thread(Path(file).read_bytes), file)

    return read


def first_line(content: bytes, name: str) -> str:
    """Raises Unusable."""
    try:
        line = content.decode().split("\n", 1)[0].removesuffix("\r")
    except UnicodeDecodeError:
        raise Unusable(f"{name} is not UTF-8") from None
    if not line:
        raise Unusable(f"the first line of {name} is empty")
    return line


def token_from_file(path: Path) -> Callable[[], Awaitable[OAuthToken]]:
    async def fetch() -> OAuthToken:
        """Kubernetes replaces the file long before the token ends: each login reads it again."""
        text = await asyncio.to_thread(path.read_bytes)
        return OAuthToken(text.decode("ascii", "replace").strip())

    return fetch


def token_from_provider(provider: Any) -> Callable[[], Awaitable[OAuthToken]]:
    blocked: asyncio.Future[Any] | None = None

    async def fetch() -> OAuthToken:
        if inspect.iscoroutinefunction(provider):
            given = await provider()
        else:
            given = await beside()
            if inspect.isawaitable(given):
                given = await given
        return _checked(given)

    async def beside() -> Any:
        """It may block, even for ever. Then later calls wait for the same thread, so that no more than one is lost."""
        nonlocal blocked
        if blocked is None or blocked.done():
            blocked = supervision.judged(asyncio.to_thread(provider))
            blocked.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(blocked)

    return fetch


def _checked(given: Any) -> OAuthToken:
    if isinstance(given, str):
        given = OAuthToken(given)
    if not isinstance(given, tuple) or len(given) != 2 or not isinstance(given[0], str):
        raise Unusable("its provider must return a text, or (token, expires_ms)")
    token, expires_ms = given
    if expires_ms is not None:
        if isinstance(expires_ms, bool) or not isinstance(expires_ms, int | float) or not abs(expires_ms) < 2**63:
            raise Unusable("its end must be a number, in milliseconds since 1970")
        if expires_ms < _LEAST_MS:
            raise Unusable("its end must be in milliseconds since 1970, not in seconds")
        expires_ms = int(expires_ms)
    return OAuthToken(token, expires_ms)
