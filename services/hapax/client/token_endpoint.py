"""Tokens of an OpenID provider for a client's id and secret (KIP-768; RFC 6749, the grant `client_credentials`).

The secret goes to the one URL that the settings name: over TLS, or to this machine itself; through no proxy, and no
redirection is followed.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import io
import ipaddress
import json
import math
import ssl
from collections.abc import Awaitable, Callable
from http.client import HTTPException, HTTPResponse
from typing import Any, Final, NamedTuple
from urllib.parse import quote_plus, urlencode, urlsplit

from hapax.client.credentials import OAuthToken, Secret, Unusable
from hapax.core.errors import ErrorCode
from hapax.runtime.ports import Clock
from hapax.wire.peer import PeerDistrusted, PeerError, PeerLoginRefused

_MOST_BYTES: Final = 1 << 20
_LONGEST_TEXT: Final = 200
_MAY_PASS: Final = frozenset((408, 425, 429))
"""Of the answers 4xx, those to which another attempt may have a better one."""


class Endpoint(NamedTuple):
    url: str
    secure: bool
    host: str
    port: int
    target: str


class Grant(NamedTuple):
    endpoint: Endpoint
    client_id: str
    client_secret: Secret
    scope: str | None
    url_encoded: bool
    """Whether id and secret are encoded as in a form, as RFC 6749 says and Kafka does only if it is told to."""
    authorities: str | None
    """PEM file; None: the system's."""

    def __repr__(self) -> str:
        return f"Grant({self.endpoint.url}, {self.client_id})"


def endpoint_of(url: str) -> Endpoint:
    """Raises ValueError."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ValueError("it is no URL") from None
    host = parts.hostname or ""
    if parts.scheme not in ("http", "https") or not host:
        raise ValueError("it must be https:// and a host, or file:// and an absolute path")
    if parts.username is not None or parts.password is not None or parts.fragment:
        raise ValueError("it must not have a user, a password or a fragment")
    if not url.isascii() or any(each <= " " or each == "\x7f" for each in url):
        raise ValueError("it has characters that no URL has")
    secure = parts.scheme == "https"
    if not secure and not _is_this_machine(host):
        raise ValueError("it must be https, since the client's secret is sent there; http is for this machine alone")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Endpoint(url, secure, host, port or (443 if secure else 80), target)


def _is_this_machine(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def token_from_endpoint(grant: Grant, clock: Clock) -> Callable[[], Awaitable[OAuthToken]]:
    endpoint = grant.endpoint

    async def fetch() -> OAuthToken:
        secret = await grant.client_secret()
        try:
            status, content = await _ask(endpoint, _request(grant, secret), grant.authorities)
        except ssl.SSLCertVerificationError as error:
            raise PeerDistrusted(
                f"{endpoint.url}: its certificate is refused: {error.verify_message or error}") from None
        except (HTTPException, ValueError, asyncio.IncompleteReadError) as error:
            raise Unusable(f"{endpoint.url} does not answer as HTTP does: {type(error).__name__}") from None
        except OSError as error:
            raise Unusable(f"{endpoint.url}: {error}") from None
        if status != 200:
            said = _tidy(_reason(content).replace(secret, "***"))
            text = f"{endpoint.url} answers {status}" + (f": {said}" if said else "")
            if 300 <= status < 500 and status not in _MAY_PASS:
                raise PeerLoginRefused(text, ErrorCode.SASL_AUTHENTICATION_FAILED)
            raise PeerError(f"no token for the login: {text}")
        return _token(content, endpoint.url, clock.now_ms())

    return fetch


def _request(grant: Grant, secret: str) -> bytes:
    encoded = quote_plus if grant.url_encoded else str
    credentials = base64.b64encode(f"{encoded(grant.client_id)}:{encoded(secret)}".encode()).decode()
    form = {"grant_type": "client_credentials", **({"scope": grant.scope} if grant.scope else {})}
    body = urlencode(form)
    endpoint = grant.endpoint
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    return "\r\n".join((
        f"POST {endpoint.target} HTTP/1.1", f"Host: {host}:{endpoint.port}", f"Authorization: Basic {credentials}",
        "Accept: application/json", "Content-Type: application/x-www-form-urlencoded", f"Content-Length: {len(body)}",
        "User-Agent: hapax", "Connection: close", "", body)).encode("ascii")


async def _ask(endpoint: Endpoint, request: bytes, authorities: str | None) -> tuple[int, bytes]:
    """Raises OSError, HTTPException, ValueError."""
    context = await asyncio.to_thread(_context, authorities) if endpoint.secure else None
    reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port, ssl=context, limit=1 << 16)
    try:
        writer.write(request)
        content = bytearray()
        while chunk := await reader.read(1 << 16):
            content += chunk
            if len(content) > _MOST_BYTES:
                raise ValueError("it is too long")
    finally:
        writer.transport.abort()
    response = HTTPResponse(_Received(bytes(content)), method="POST")  # type: ignore[arg-type]
    response.begin()
    return response.status, response.read()


def _context(authorities: str | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=authorities)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


class _Received:
    """What `HTTPResponse` needs of a socket."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def makefile(self, mode: str) -> io.BytesIO:
        return io.BytesIO(self._content)


def _object(content: bytes) -> dict[str, Any]:
    """Empty: it is none."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _reason(content: bytes) -> str:
    """`error` and `error_description` (RFC 6749, 5.2)."""
    found = _object(content)
    said = [each for name in ("error", "error_description") if isinstance(each := found.get(name), str)]
    return ": ".join(said)


def _tidy(text: str) -> str:
    return "".join(each if each.isprintable() else "?" for each in text[:_LONGEST_TEXT])


def _token(content: bytes, url: str, now_ms: int) -> OAuthToken:
    """Raises Unusable."""
    found = _object(content)
    token = found.get("access_token")
    if not isinstance(token, str):
        raise Unusable(f"{url} answers without an access_token")
    life_s = _seconds(found.get("expires_in"))
    if life_s is None:
        claims = _claims(token)
        end, begin = _seconds(claims.get("exp")), _seconds(claims.get("iat"))
        # By the issuer's clock alone, from which this machine's may differ.
        life_s = None if end is None or begin is None else end - begin
    return OAuthToken(token, None if life_s is None or life_s <= 0 else now_ms + int(life_s * 1000))


def _seconds(value: object) -> float | None:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 12:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return min(float(value), 1e12) if value > 0 else None


def _claims(token: str) -> dict[str, Any]:
    """Of a JSON Web Token, which is the issuer's word about itself here: nothing is trusted because of it."""
    parts = token.split(".")
    if len(parts) != 3:
        return {}
    try:
        return _object(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (binascii.Error, ValueError):
        return {}
