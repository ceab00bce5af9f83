"""SASL of the client's connections: from its settings to `wire.login.Login`.

A token comes from a callable or a file. It is kept until four fifths of its time have passed; connections that need one
at the same time share one call. A login that was refused is not repeated with each connection: for a pause that doubles
from a second to a minute, the refusal is told without asking the server again.
"""

from __future__ import annotations

import asyncio
import base64
import inspect
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from hapax.client.environment import ClientPorts
from hapax.client.errors import SaslAuthenticationFailed, SettingsError
from hapax.client.jaas import JaasConfig
from hapax.client.settings import Options
from hapax.core.sasl.client import (
    BearerClient,
    ClientExchange,
    ClientKeys,
    ClientStep,
    Derive,
    PlainClient,
    ScramClient,
    password_fault,
    token_fault,
)
from hapax.core.sasl.exchange import OAUTHBEARER, PLAIN, SHOWS_SECRETS
from hapax.core.sasl.scram_keys import ScramMechanism
from hapax.runtime import supervision
from hapax.runtime.aside import aside
from hapax.wire.peer import PeerError, PeerLoginRefused

SASL_PLAINTEXT: Final = "SASL_PLAINTEXT"
SASL_SSL: Final = "SASL_SSL"
_WITHOUT_TLS: Final = "sasl.allow.secrets.without.tls"
"""Means something without a login too: a password may be set (`users.py`)."""
_KEYS_KNOWN: Final = 8
_PAUSE_MS: Final = (1_000, 60_000)
_KEPT_SHARE: Final = 0.8
"""Of a token's time."""
_NONCE_BYTES: Final = 24
_RENEWED_AT: Final = (0.85, 0.95)
"""Of a session's time."""
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


class _Unusable(Exception):
    """What a provider has returned. The message holds no secret."""


class ClientLogin:
    """`wire.login.Login`, of one client."""

    def __init__(self, options: Options, ports: ClientPorts, mechanism: str) -> None:
        self.mechanism = mechanism
        self._ports = ports
        self._refusal: PeerLoginRefused | None = None
        self._refused_until = 0
        self._pause_ms = _PAUSE_MS[0]

    async def exchange(self) -> ClientExchange:
        raise NotImplementedError

    async def derive(self, exchange: ClientExchange, work: Derive) -> ClientStep:
        raise NotImplementedError

    def shown(self, text: str) -> str:
        return text

    def renew_after_s(self, lifetime_ms: int) -> float:
        return lifetime_ms / 1000 * self._ports.random.uniform(*_RENEWED_AT)

    # --- refusals ---------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raises SaslAuthenticationFailed where the login was refused a moment ago."""
        if self._refusal is not None and self._ports.clock.monotonic_ms() < self._refused_until:
            raise self.failure(self._refusal)

    def refused(self, refusal: PeerLoginRefused) -> None:
        now = self._ports.clock.monotonic_ms()
        if self._refusal is not None and now < self._refused_until:
            return  # another connection's login failed at the same time
        self._refusal = refusal
        self._refused_until = now + self._pause_ms
        self._pause_ms = min(2 * self._pause_ms, _PAUSE_MS[1])

    def succeeded(self) -> None:
        self._refusal, self._pause_ms = None, _PAUSE_MS[0]

    @staticmethod
    def failure(refusal: PeerLoginRefused) -> SaslAuthenticationFailed:
        return SaslAuthenticationFailed(str(refusal), code=refusal.code)


class PasswordLogin(ClientLogin):
    def __init__(self, options: Options, ports: ClientPorts, mechanism: str, name: str, password: str) -> None:
        super().__init__(options, ports, mechanism)
        self._name = name
        self._password = password
        self._keys: dict[Derive, ClientKeys] = {}

    async def exchange(self) -> ClientExchange:
        if self.mechanism == PLAIN:
            return PlainClient(self._name, self._password)
        nonce = base64.b64encode(self._ports.random.randbytes(_NONCE_BYTES)).decode("ascii")
        return ScramClient(_scram(self.mechanism), self._name, nonce)

    async def derive(self, exchange: ClientExchange, work: Derive) -> ClientStep:
        assert isinstance(exchange, ScramClient)
        keys = self._keys.get(work)
        if keys is None:
            keys = await aside(partial(work.outcome, self._password))
            while len(self._keys) >= _KEYS_KNOWN:
                del self._keys[next(iter(self._keys))]
            self._keys[work] = keys
        return exchange.derived(keys)

    def shown(self, text: str) -> str:
        return text.replace(self._password, "***")


class TokenLogin(ClientLogin):
    def __init__(self, options: Options, ports: ClientPorts, fetch: Callable[[], Awaitable[OAuthToken]]) -> None:
        super().__init__(options, ports, OAUTHBEARER)
        self._fetch = fetch
        self._timeout_s = options["socket.connection.setup.timeout.ms"] / 1000
        self._kept: tuple[str, int] | None = None
        """A token and the time until which it is used."""
        self._asking: asyncio.Task[str] | None = None
        self._last = ""

    async def exchange(self) -> ClientExchange:
        if self._kept is not None and self._ports.clock.now_ms() < self._kept[1]:
            return BearerClient(self._kept[0])
        if self._asking is None or self._asking.done():
            self._asking = supervision.once(self._ask(), "client-token", expected=(PeerError,))
        return BearerClient(await asyncio.shield(self._asking))

    async def _ask(self) -> str:
        self._kept = None
        try:
            async with asyncio.timeout(self._timeout_s):
                token, expires_ms = await self._fetch()
        except TimeoutError:
            raise PeerError(f"no token for the login within {self._timeout_s:g} s") from None
        except (OSError, _Unusable) as error:
            raise PeerError(f"no token for the login: {error}") from error
        except Exception as error:  # a program's own; its text may hold a secret
            raise PeerError(f"no token for the login: its provider raised {type(error).__name__}") from error
        if fault := token_fault(token):
            raise PeerError(f"no token for the login: {fault}")
        self._last = token
        now = self._ports.clock.now_ms()
        if expires_ms is not None:
            if expires_ms <= now:
                raise PeerError("no token for the login: the one that was given has expired")
            self._kept = token, now + int((expires_ms - now) * _KEPT_SHARE)
        return token

    def refused(self, refusal: PeerLoginRefused) -> None:
        super().refused(refusal)
        self._kept = None

    def shown(self, text: str) -> str:
        return text.replace(self._last, "***") if self._last else text


def login_of(options: Options, ports: ClientPorts) -> ClientLogin | None:
    """None: without a login. Raises SettingsError."""
    given = sorted(name for name in options.given if name.startswith("sasl.") and name != _WITHOUT_TLS)
    protocol = options["security.protocol"]
    if protocol not in (SASL_PLAINTEXT, SASL_SSL):
        if given:
            raise SettingsError(f"{given[0]} has no effect without security.protocol=SASL_SSL")
        return None
    mechanism = options["sasl.mechanism"] or options["sasl.mechanisms"]
    if mechanism is None:
        raise SettingsError(f"security.protocol={protocol} needs a sasl.mechanism")
    if protocol == SASL_PLAINTEXT and mechanism in SHOWS_SECRETS and not options[_WITHOUT_TLS]:
        raise SettingsError(
            f"sasl.mechanism={mechanism} shows its secret to all who see the connection: use "
            "security.protocol=SASL_SSL, or set sasl.allow.secrets.without.tls=true")
    jaas: JaasConfig | None = options["sasl.jaas.config"]
    if jaas is not None and mechanism not in jaas.mechanisms:
        raise SettingsError(f"sasl.jaas.config has the login module of {' and '.join(jaas.mechanisms)}, "
                            f"not of sasl.mechanism={mechanism}")
    if mechanism == OAUTHBEARER:
        return _token_login(options, ports)
    others = [name for name in given if name.startswith("sasl.oauthbearer.")]
    if others:
        raise SettingsError(f"{others[0]} has no effect with sasl.mechanism={mechanism}")
    return _password_login(options, ports, mechanism, jaas)


def _password_login(options: Options, ports: ClientPorts, mechanism: str, jaas: JaasConfig | None) -> PasswordLogin:
    name, password = options["sasl.username"], options["sasl.password"]
    if jaas is not None:
        if name is not None or password is not None:
            raise SettingsError("give sasl.username and sasl.password or sasl.jaas.config, not both")
        name, password = jaas.name, jaas.password
    if name is None or password is None:
        raise SettingsError(f"sasl.mechanism={mechanism} needs sasl.username and sasl.password")
    if fault := password_fault(name, password):
        raise SettingsError(f"sasl.mechanism={mechanism}: {fault}")
    return PasswordLogin(options, ports, mechanism, name, password)


def _token_login(options: Options, ports: ClientPorts) -> TokenLogin:
    for name in ("sasl.username", "sasl.password"):
        if options[name] is not None:
            raise SettingsError(f"{name} has no effect with sasl.mechanism={OAUTHBEARER}")
    provider: TokenProvider | None = options["sasl.oauthbearer.token.provider"]
    file: str | None = options["sasl.oauthbearer.token.file"] or options["sasl.oauthbearer.token.endpoint.url"]
    if (provider is None) == (file is None):
        raise SettingsError(
            f"sasl.mechanism={OAUTHBEARER} needs sasl.oauthbearer.token.file or (in a program) "
            "sasl.oauthbearer.token.provider, and not both")
    return TokenLogin(options, ports, _from_file(Path(file)) if file is not None else _from_provider(provider))


def _from_file(path: Path) -> Callable[[], Awaitable[OAuthToken]]:
    async def fetch() -> OAuthToken:
        """Kubernetes replaces the file long before the token ends: each login reads it again."""
        text = await asyncio.to_thread(path.read_bytes)
        return OAuthToken(text.decode("ascii", "replace").strip())

    return fetch


def _from_provider(provider: Any) -> Callable[[], Awaitable[OAuthToken]]:
    async def fetch() -> OAuthToken:
        if inspect.iscoroutinefunction(provider):
            given = await provider()
        else:  # it may block
            given = await asyncio.to_thread(provider)
            if inspect.isawaitable(given):
                given = await given
        if isinstance(given, str):
            given = OAuthToken(given)
        if not isinstance(given, tuple) or len(given) != 2 or not isinstance(given[0], str):
            raise _Unusable("its provider must return a text, or (token, expires_ms)")
        token, expires_ms = given
        if expires_ms is not None:
            if isinstance(expires_ms, bool) or not isinstance(expires_ms, int | float):
                raise _Unusable("its end must be a number, in milliseconds since 1970")
            if expires_ms < _LEAST_MS:
                raise _Unusable("its end must be in milliseconds since 1970, not in seconds")
            expires_ms = int(expires_ms)
        return OAuthToken(token, expires_ms)

    return fetch


def _scram(mechanism: str) -> ScramMechanism:
    return next(each for each in ScramMechanism if each.sasl_name == mechanism)
