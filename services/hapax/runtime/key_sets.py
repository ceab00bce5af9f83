"""An issuer's public keys, read from a file or an URL, and read again when they may have changed.

A key that is not known causes one more read, at most one a minute, however many tokens name unknown keys. A read that
fails changes nothing: the keys that are known go on.
"""

from __future__ import annotations

import asyncio
import ssl
import urllib.request
from collections import Counter
from collections.abc import Awaitable, Callable
from http.client import HTTPException
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
_FETCH_S: Final = 5.0
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

    async def check(self, token: str, now_s: float) -> Success | Failure:
        """`now_s`: seconds since 1970."""
        outcome = verify(token, self.keys, self.rules, now_s)
        if isinstance(outcome, UnknownKey):
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


def read_document(url: str, authorities: str | None = None, token_location: str | None = None) -> bytes:
    """The content of a file: URL, or what an http or https URL answers. Blocks. Raises OSError, ValueError."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        with Path(unquote(parts.path)).open("rb") as file:
            return _bounded(file.read(_MOST_BYTES + 1))
    if parts.scheme not in ("http", "https"):
        raise ValueError(f"{url}: neither a file nor http")
    request = urllib.request.Request(url)
    if token_location and parts.scheme == "https":
        request.add_unredirected_header("Authorization", "Bearer " + Path(token_location).read_text("ascii").strip())
    context = ssl.create_default_context(cafile=authorities or None)
    opener = urllib.request.build_opener(_NoRedirect, urllib.request.HTTPSHandler(context=context))
    with opener.open(request, timeout=_FETCH_S) as answer:
        return _bounded(answer.read(_MOST_BYTES + 1))


def _bounded(content: bytes) -> bytes:
    if len(content) > _MOST_BYTES:
        raise ValueError(f"it has more than {_MOST_BYTES} bytes")
    return content
