"""SASL of the client's connections: from its settings to `wire.login.Login`.

A token that says when it ends is used for four fifths of its time without asking for another; connections that need one
at the same time share one call. Where another one cannot be had, it is used to its end. A login that was refused is not
repeated with each connection: for a pause that doubles from a second to a minute, the refusal is told without asking
the server again. A refusal of the credential holds for all servers, one of the mechanism for the server that said so.
"""

from __future__ import annotations

import asyncio
import base64
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from hapax.client.credentials import (
    OAuthToken,
    Secret,
    TokenProvider,
    Unusable,
    secret_of,
    token_from_file,
    token_from_provider,
)
from hapax.client.environment import ClientPorts
from hapax.client.errors import SaslAuthenticationFailed, SettingsError
from hapax.client.jaas import JaasConfig
from hapax.client.settings import Options
from hapax.core.errors import ErrorCode
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
from hapax.runtime.ports import RpcError
from hapax.wire.peer import PeerDistrusted, PeerError, PeerLoginRefused

if TYPE_CHECKING:
    from hapax.client.token_endpoint import Endpoint

SASL_PLAINTEXT: Final = "SASL_PLAINTEXT"
SASL_SSL: Final = "SASL_SSL"
_WITHOUT_TLS: Final = "sasl.allow.secrets.without.tls"
"""Means something without a login too: a password may be set (`users.py`)."""
_KEYS_KNOWN: Final = 8
_PAUSE_MS: Final = (1_000, 60_000)
_KEPT_SHARE: Final = 0.8
"""Of a token's time."""
_ASKED_AGAIN_MS: Final = 5_000
"""After another token could not be had."""
_NONCE_BYTES: Final = 24
_RENEWED_AT: Final = (0.85, 0.95)
"""Of a session's time."""
_ALL_SERVERS: Final = ""


class _Refusal(NamedTuple):
    error: PeerLoginRefused
    until: int
    """On the monotonic clock."""
    pause_ms: int


class ClientLogin(ABC):
    """`wire.login.Login`, of one client."""

    def __init__(self, ports: ClientPorts, mechanism: str) -> None:
        self.mechanism = mechanism
        self._ports = ports
        self._refusals: dict[str, _Refusal] = {}
        """By address, or for all servers."""

    @abstractmethod
    async def exchange(self) -> ClientExchange:
        """Raises PeerError."""

    async def outdated(self, exchange: ClientExchange) -> bool:
        """Of an exchange that was refused: whether another credential has come since, so that the login may be tried
        again at once."""
        return False

    async def derive(self, exchange: ClientExchange, work: Derive) -> ClientStep:
        raise AssertionError(f"{self.mechanism} derives nothing")

    def shown(self, text: str) -> str:
        return text

    def renew_after_s(self, lifetime_ms: int) -> float:
        return lifetime_ms / 1000 * self._ports.random.uniform(*_RENEWED_AT)

    async def header(self) -> str:
        """`ports.CallLogin`: UNAVAILABLE where there is no credential at the moment, UNAUTHENTICATED where another
        attempt would fail likewise."""
        try:
            self.check()  # no server is asked about what the cluster's listeners have just refused
            return await self._header()
        except SaslAuthenticationFailed as error:
            raise RpcError("UNAUTHENTICATED", error.message) from None
        except (PeerLoginRefused, PeerDistrusted) as error:
            raise RpcError("UNAUTHENTICATED", str(error)) from None
        except PeerError as error:
            raise RpcError("UNAVAILABLE", str(error)) from None

    async def outdated_header(self, header: str) -> bool:
        """`ports.CallLogin`."""
        return await self.header() != header

    @abstractmethod
    async def _header(self) -> str:
        """Raises PeerError, RpcError."""

    def close(self) -> None:  # noqa: B027 (a login that keeps nothing has nothing to end)
        """Asks for no further credential."""

    # --- refusals ---------------------------------------------------------------------------------------------

    def check(self, address: str = _ALL_SERVERS) -> None:
        """Raises SaslAuthenticationFailed where the login was refused a moment ago."""
        now = self._ports.clock.monotonic_ms()
        for key in (_ALL_SERVERS, address):
            known = self._refusals.get(key)
            if known is not None and now < known.until:
                raise self.failure(known.error)

    def refused(self, refusal: PeerLoginRefused, address: str) -> None:
        now = self._ports.clock.monotonic_ms()
        key = _ALL_SERVERS if is_of_credential(refusal.code) else address
        known = self._refusals.get(key)
        if known is not None and now < known.until:
            return  # another connection's login failed at the same time
        pause_ms = _PAUSE_MS[0] if known is None else min(2 * known.pause_ms, _PAUSE_MS[1])
        self._refusals[key] = _Refusal(refusal, now + pause_ms, pause_ms)

    def succeeded(self, address: str) -> None:
        self._refusals.pop(_ALL_SERVERS, None)
        self._refusals.pop(address, None)

    @staticmethod
    def failure(refusal: PeerLoginRefused) -> SaslAuthenticationFailed:
        return SaslAuthenticationFailed(str(refusal), code=refusal.code)


def is_of_credential(code: int) -> bool:
    """Of a refusal: another server would refuse it likewise. False: this server is set up differently."""
    return code == ErrorCode.SASL_AUTHENTICATION_FAILED


class _Plain(PlainClient):
    def __init__(self, name: str, password: str) -> None:
        super().__init__(name, password)
        self.password = password


class _Scram(ScramClient):
    def __init__(self, mechanism: ScramMechanism, name: str, nonce: str, password: str) -> None:
        super().__init__(mechanism, name, nonce)
        self.password = password


class PasswordLogin(ClientLogin):
    def __init__(self, ports: ClientPorts, mechanism: str, name: str, password: Secret) -> None:
        super().__init__(ports, mechanism)
        self._name = name
        self._read = password
        self._newest = ""
        self._keys: dict[Derive, ClientKeys] = {}
        """Of the newest password."""

    async def exchange(self) -> ClientExchange:
        password = await self._password()
        if self.mechanism == PLAIN:
            return _Plain(self._name, password)
        nonce = base64.b64encode(self._ports.random.randbytes(_NONCE_BYTES)).decode("ascii")
        return _Scram(_scram(self.mechanism), self._name, nonce, password)

    async def _header(self) -> str:
        if ":" in self._name:
            raise RpcError(
                "UNAUTHENTICATED", f"the user {self._name!r} cannot log in to gRPC by a password: its name has a colon")
        return "Basic " + base64.b64encode(f"{self._name}:{await self._password()}".encode()).decode("ascii")

    async def outdated(self, exchange: ClientExchange) -> bool:
        assert isinstance(exchange, _Plain | _Scram)
        return await self._password() != exchange.password

    async def _password(self) -> str:
        try:
            password = await self._read()
        except (OSError, Unusable) as error:
            raise PeerError(f"no password for the login: {error}") from None
        if fault := password_fault(self._name, password):
            raise PeerError(f"no password for the login: {fault}")
        if password != self._newest:
            self._newest = password
            self._keys.clear()
        return password

    async def derive(self, exchange: ClientExchange, work: Derive) -> ClientStep:
        assert isinstance(exchange, _Scram)
        keys = self._keys.get(work) if exchange.password == self._newest else None
        if keys is None:
            keys = await aside(partial(work.outcome, exchange.password))
            if exchange.password == self._newest:
                while len(self._keys) >= _KEYS_KNOWN:
                    del self._keys[next(iter(self._keys))]
                self._keys[work] = keys
        return exchange.derived(keys)

    def shown(self, text: str) -> str:
        return text.replace(self._newest, "***") if self._newest else text


class _Token(NamedTuple):
    text: str
    asks_at: int
    """When another one is asked for, on the monotonic clock, as the next one."""
    ends_at: int


class _Kept(BearerClient):
    """With a token of an earlier login."""


class TokenLogin(ClientLogin):
    def __init__(self, ports: ClientPorts, fetch: Callable[[], Awaitable[OAuthToken]], timeout_ms: int) -> None:
        super().__init__(ports, OAUTHBEARER)
        self._fetch = fetch
        self._timeout_s = timeout_ms / 1000
        self._kept: _Token | None = None
        self._asking: asyncio.Task[str] | None = None
        self._last = ""
        self._untried = ""
        """The newest header, if its token was asked for to show it."""

    async def exchange(self) -> ClientExchange:
        kept = self._kept
        if kept is not None and self._ports.clock.monotonic_ms() < kept.asks_at:
            return _Kept(kept.text)
        if self._asking is None or self._asking.done():
            self._asking = supervision.once(self._ask(), "client-token", expected=(PeerError,))
        asking = self._asking
        try:
            return BearerClient(await asyncio.shield(asking))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if asking.cancelled() and not (task is not None and task.cancelling()):
                raise PeerError("no token for the login: the client was closed") from None
            raise
        except PeerError:
            now = self._ports.clock.monotonic_ms()
            kept = self._kept
            if kept is None or now >= kept.ends_at:
                raise
            self._kept = kept._replace(asks_at=min(now + _ASKED_AGAIN_MS, kept.ends_at))
            return _Kept(kept.text)

    async def _header(self) -> str:
        exchange = await self.exchange()
        assert isinstance(exchange, BearerClient)
        header = f"Bearer {exchange.token}"
        self._untried = "" if isinstance(exchange, _Kept) else header
        return header

    async def outdated_header(self, header: str) -> bool:
        kept = self._kept
        if header == self._untried or kept is None:
            return False
        if header == f"Bearer {kept.text}":
            self._kept = None  # the server's clock may be ahead, or the issuer may have changed its keys
        return True

    async def outdated(self, exchange: ClientExchange) -> bool:
        """The server's clock may be ahead, or the issuer may have changed its keys."""
        if not isinstance(exchange, _Kept):
            return False
        self._kept = None
        return True

    async def _ask(self) -> str:
        try:
            async with asyncio.timeout(self._timeout_s):
                token, expires_ms = await self._fetch()
        except TimeoutError:
            raise PeerError(f"no token for the login within {self._timeout_s:g} s") from None
        except PeerError:
            raise
        except (OSError, Unusable) as error:
            raise PeerError(f"no token for the login: {error}") from error
        except Exception as error:  # a program's own; its text may hold a secret
            raise PeerError(f"no token for the login: its provider raised {type(error).__name__}") from None
        if fault := token_fault(token):
            raise PeerError(f"no token for the login: {fault}")
        self._last = token
        kept = None
        if expires_ms is not None:
            left_ms = expires_ms - self._ports.clock.now_ms()
            if left_ms <= 0:
                raise PeerError("no token for the login: the one that was given has expired")
            now = self._ports.clock.monotonic_ms()
            kept = _Token(token, now + int(left_ms * _KEPT_SHARE), now + left_ms)
        self._kept = kept
        return token

    def refused(self, refusal: PeerLoginRefused, address: str) -> None:
        super().refused(refusal, address)
        if is_of_credential(refusal.code):
            self._kept = None

    def shown(self, text: str) -> str:
        return text.replace(self._last, "***") if self._last else text

    def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()


def login_of(options: Options, ports: ClientPorts) -> ClientLogin | None:
    """None: without a login. Raises SettingsError."""
    given = sorted(name for name in options.given if name.startswith("sasl.") and name != _WITHOUT_TLS)
    protocol = options["security.protocol"]
    if protocol not in (SASL_PLAINTEXT, SASL_SSL):
        if given:
            raise SettingsError(f"{given[0]} has no effect without security.protocol=SASL_SSL")
        return None
    mechanism = options["sasl.mechanism"] or options["sasl.mechanisms"]
    if options["sasl.mechanisms"] not in (None, mechanism):
        raise SettingsError("sasl.mechanism and sasl.mechanisms differ; they are two names of one setting")
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
        return _token_login(options, ports, jaas)
    others = [name for name in given if name.startswith("sasl.oauthbearer.")]
    if others:
        raise SettingsError(f"{others[0]} has no effect with sasl.mechanism={mechanism}")
    return _password_login(options, ports, mechanism, jaas)


def _password_login(options: Options, ports: ClientPorts, mechanism: str, jaas: JaasConfig | None) -> PasswordLogin:
    name, password, file = options["sasl.username"], options["sasl.password"], options["sasl.password.file"]
    if jaas is not None:
        if name is not None or password is not None or file is not None:
            raise SettingsError("give sasl.username and sasl.password or sasl.jaas.config, not both")
        name, password = jaas.name, jaas.password
    if name is None or (password is None and file is None):
        raise SettingsError(f"sasl.mechanism={mechanism} needs sasl.username and sasl.password (or sasl.password.file)")
    if password is not None and file is not None:
        raise SettingsError("give sasl.password or sasl.password.file, not both")
    if fault := password_fault(name, "-" if password is None else password):
        raise SettingsError(f"sasl.mechanism={mechanism}: {fault}")
    return PasswordLogin(ports, mechanism, name, secret_of(password, file))


def _token_login(options: Options, ports: ClientPorts, jaas: JaasConfig | None) -> TokenLogin:
    for name in ("sasl.username", "sasl.password", "sasl.password.file"):
        if options[name] is not None:
            raise SettingsError(f"{name} has no effect with sasl.mechanism={OAUTHBEARER}")
    provider: TokenProvider | None = options["sasl.oauthbearer.token.provider"]
    file: str | None = options["sasl.oauthbearer.token.file"]
    url: str | Endpoint | None = options["sasl.oauthbearer.token.endpoint.url"]
    given = [each for each in (provider, file, url) if each is not None]
    if len(given) != 1:
        raise SettingsError(
            f"sasl.mechanism={OAUTHBEARER} needs one of sasl.oauthbearer.token.file, "
            "sasl.oauthbearer.token.endpoint.url and (in a program) sasl.oauthbearer.token.provider")
    timeout_ms = options["socket.connection.setup.timeout.ms"]
    if url is not None and not isinstance(url, str):
        return _endpoint_login(options, ports, url, jaas, timeout_ms)
    for name in _OF_GRANT:
        if name in options.given:
            raise SettingsError(f"{name} has no effect without an https sasl.oauthbearer.token.endpoint.url")
    if jaas is not None and jaas.client is not None:
        raise SettingsError("clientId has no effect without an https sasl.oauthbearer.token.endpoint.url")
    path = file or url
    return TokenLogin(
        ports, token_from_provider(provider) if path is None else token_from_file(Path(path)), timeout_ms)


_ID: Final = ("sasl.oauthbearer.client.credentials.client.id", "sasl.oauthbearer.client.id")
_SECRET: Final = ("sasl.oauthbearer.client.credentials.client.secret", "sasl.oauthbearer.client.secret")
_SECRET_FILE: Final = "sasl.oauthbearer.client.secret.file"
_SCOPE: Final = "sasl.oauthbearer.scope"
_OF_GRANT: Final = (
    *_ID, *_SECRET, _SECRET_FILE, _SCOPE, "sasl.oauthbearer.header.urlencode", "https.ca.location")


def _endpoint_login(
    options: Options, ports: ClientPorts, endpoint: Endpoint, jaas: JaasConfig | None, timeout_ms: int
) -> TokenLogin:
    from hapax.client.token_endpoint import Grant, token_from_endpoint

    client = None if jaas is None else jaas.client
    ids = [each for each in (*(options[name] for name in _ID), client and client.id) if each is not None]
    secrets = [each for each in (*(options[name] for name in _SECRET), client and client.secret) if each is not None]
    file = options[_SECRET_FILE]
    scopes = [each for each in (options[_SCOPE], client and client.scope) if each is not None]
    if len(ids) != 1 or len(secrets) + (file is not None) != 1 or len(scopes) > 1:
        raise SettingsError(
            f"sasl.oauthbearer.token.endpoint.url={endpoint.url} needs {_ID[0]}, and {_SECRET[0]} or {_SECRET_FILE}, "
            "each once; a sasl.oauthbearer.scope at most once")
    for secret in secrets:
        if fault := password_fault(ids[0], secret):
            raise SettingsError(f"sasl.oauthbearer.token.endpoint.url: {fault}")
    grant = Grant(
        endpoint, ids[0], secret_of(secrets[0] if secrets else None, file), scopes[0] if scopes else None,
        options["sasl.oauthbearer.header.urlencode"], options["https.ca.location"])
    return TokenLogin(ports, token_from_endpoint(grant, ports.clock), timeout_ms)


def _scram(mechanism: str) -> ScramMechanism:
    return next(each for each in ScramMechanism if each.sasl_name == mechanism)
