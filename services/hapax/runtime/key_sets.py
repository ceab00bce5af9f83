"""An issuer's public keys, read from a file or an URL, and read again when they may have changed.

A key that is not known causes one more read, at most one a minute, however many tokens name unknown keys. A read that
fails changes nothing: the keys that are known go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import ssl
import threading
import urllib.request
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from hapax.codec.json_web_tokens import KeySet, TokenRules, UnknownKey, read_key_set, verify
from hapax.core.sasl.exchange import Failure, Success
from hapax.runtime import supervision, telemetry

if TYPE_CHECKING:
    from hapax.runtime.sasl_settings import SaslSettings

log = telemetry.logger("sasl")

LEAST_PAUSE_S: Final = 60.0
"""Between two reads that unknown keys cause."""
_FIRST_PAUSE_S: Final = 1.0
"""While no keys are known at all."""
_SILENCE_S: Final = 5.0
"""For which an issuer may be waited for."""
_WHOLE_S: Final = 20.0
"""Of one read, whatever comes meanwhile."""
_MOST_BYTES: Final = 1 << 20

Fetch = Callable[[], Awaitable[bytes]]


class IssuerKeys:
    """The keys of one listener's issuer, and the check of tokens by them."""

    def __init__(self, fetch: Fetch, rules: TokenRules, clock: Callable[[], float]) -> None:
        """`fetch`: the key set as JSON; raises OSError or ValueError. `clock`: seconds, monotonic."""
        self.keys: KeySet = {}
        self.rules = rules
        self.reads: Counter[str] = Counter()
        """By outcome, `succeeded` or `failed`."""
        self._fetch = fetch
        self._clock = clock
        self._read_at = float("-inf")
        self._reading: asyncio.Task[None] | None = None

    async def check(
        self, token: str, now_s: float, place: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext
    ) -> Success | Failure:
        """`now_s`: seconds since 1970. `place`: what a token waits in whose key is not known; it may raise. Tokens with
        known keys wait for nothing, so those that wait keep none of them out."""
        outcome = verify(token, self.keys, self.rules, now_s)
        if isinstance(outcome, UnknownKey):
            with place():
                await self._look_again()
            outcome = verify(token, self.keys, self.rules, now_s)
        if isinstance(outcome, UnknownKey):
            return Failure(f"the token's key {outcome.key_id[:64]!r} is unknown")
        return outcome

    async def _look_again(self) -> None:
        pause = LEAST_PAUSE_S if self.keys else _FIRST_PAUSE_S
        if self._reading is not None or self._clock() - self._read_at >= pause:
            await self.refresh()

    async def refresh(self) -> None:
        """Reads the keys, or waits for the read that is under way. Does not raise."""
        if self._reading is None:
            self._read_at = self._clock()
            self._reading = supervision.once(self._read(), "key-set")
        await asyncio.shield(self._reading)

    async def _read(self) -> None:
        try:
            self.keys = read_key_set(await self._fetch())
            self.reads["succeeded"] += 1
        except (OSError, ValueError, HTTPException) as error:
            self.reads["failed"] += 1
            log.error("the issuer's keys cannot be read; those that are known stay", known=len(self.keys),
                      reason=str(error)[:200])
        finally:
            self._reading = None


def issuer_keys(settings: SaslSettings, clock: Callable[[], float]) -> IssuerKeys:
    """Of a listener that takes tokens."""
    audiences = tuple(filter(None, (each.strip() for each in settings.sasl_oauthbearer_expected_audience.split(","))))
    rules = TokenRules(
        settings.sasl_oauthbearer_expected_issuer, audiences, settings.sasl_oauthbearer_sub_claim_name,
        settings.sasl_oauthbearer_clock_skew_seconds)
    url = settings.sasl_oauthbearer_jwks_endpoint_url

    async def fetch() -> bytes:
        return await asyncio.to_thread(
            read_document, url, settings.sasl_oauthbearer_jwks_ca_location,
            settings.sasl_oauthbearer_jwks_token_location)

    return IssuerKeys(fetch, rules, clock)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Only the URL that is allowed is fetched, none that it points to."""

    def redirect_request(self, *arguments: Any, **named: Any) -> None:
        return None


class _Sockets(urllib.request.HTTPHandler, urllib.request.HTTPSHandler):
    """Keeps the sockets that it opens, so that the whole read, not only each piece of it, has an end."""

    def __init__(self, context: ssl.SSLContext) -> None:
        super().__init__()
        self.late = False
        self._sockets: list[socket.socket] = []
        self._given = context

    def http_open(self, request: urllib.request.Request) -> Any:
        return self.do_open(self._kept(HTTPConnection), request)

    def https_open(self, request: urllib.request.Request) -> Any:
        return self.do_open(self._kept(HTTPSConnection), request, context=self._given)

    def _kept(self, kind: type[HTTPConnection]) -> Any:
        opened = self._opened

        class Kept(kind):  # type: ignore[valid-type, misc]
            def connect(self) -> None:
                super().connect()
                opened(self.sock)

        return Kept

    def _opened(self, opened: socket.socket) -> None:
        self._sockets.append(opened)
        if self.late:
            raise TimeoutError("the connection took too long")

    def cut(self) -> None:
        """From another thread: the read ends at once."""
        self.late = True
        for each in self._sockets:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(each, socket.SHUT_RDWR)  # not TLS's own, which a reading thread must call


def read_document(
    url: str, authorities: str | None = None, token_location: str | None = None, whole_s: float = _WHOLE_S
) -> bytes:
    """The content of a file: URL, or what an http or https URL answers within `whole_s` seconds. Blocks. Raises
    OSError, ValueError or HTTPException."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        with Path(unquote(parts.path)).open("rb") as file:
            return _bounded(file.read(_MOST_BYTES + 1))
    if parts.scheme not in ("http", "https"):
        raise ValueError(f"{url}: neither a file nor http")
    request = urllib.request.Request(url)
    if token_location and parts.scheme == "https":
        request.add_unredirected_header("Authorization", "Bearer " + _token(token_location))
    sockets = _Sockets(ssl.create_default_context(cafile=authorities or None))
    opener = urllib.request.build_opener(_NoRedirect, sockets)
    cut = threading.Timer(whole_s, sockets.cut)
    cut.daemon = True
    cut.start()
    try:
        with opener.open(request, timeout=_SILENCE_S) as answer:
            content = _bounded(answer.read(_MOST_BYTES + 1))
    finally:
        cut.cancel()
    if sockets.late:
        # what was read may be a part
        raise TimeoutError(f"the answer took longer than {whole_s} s")
    return content


def _token(location: str) -> str:
    """Raises OSError, ValueError. No error shows it."""
    token = Path(location).read_bytes().strip()
    if not re.fullmatch(rb"[!-~]+", token):
        raise ValueError(f"{location} holds no token")
    return token.decode("ascii")


def _bounded(content: bytes) -> bytes:
    if len(content) > _MOST_BYTES:
        raise ValueError(f"it has more than {_MOST_BYTES} bytes")
    return content
