"""Who sends a request to the REST API, and what it may do.

A caller proves itself in one of the ways of `admin.auth`, and is then the same principal as on a Kafka listener. An
`Authorization` header counts for more than a client's certificate: one that is wrong is refused, whatever certificate
goes with it. All that is wrong is answered alike, so that an answer does not tell which users exist.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from starlette.types import Scope

from hapax.admin.metrics import LOGINS
from hapax.admin.problems import Problem, unavailable
from hapax.admin.tokens import Role, Tokens
from hapax.core.access.index import Decision, UnknownBindings
from hapax.core.access.principal_rules import PrincipalRules
from hapax.core.access.principals import ANONYMOUS, Principal, user
from hapax.core.access.resources import CLUSTER_NAME, Action, Operation
from hapax.core.access.rights import Rights
from hapax.core.hosts import plain_host
from hapax.core.sasl.exchange import Failure
from hapax.runtime import telemetry
from hapax.runtime.access import Access
from hapax.runtime.addresses import source_of
from hapax.runtime.audit_events import SILENT, Audit
from hapax.runtime.authorization_header import HeaderLogins, TooManyLogins
from hapax.runtime.incidents import Incidents
from hapax.runtime.ports import Ports
from hapax.runtime.sasl_settings import check_tokens
from hapax.runtime.scram_image import ScramImage
from hapax.runtime.security_settings import SSL
from hapax.runtime.settings import Settings, SettingsError

if TYPE_CHECKING:
    from hapax.runtime.key_sets import IssuerKeys

log = telemetry.logger("rest")

TOKENS: Final = "tokens"
PASSWORDS: Final = "passwords"
OAUTHBEARER: Final = "oauthbearer"
CERTIFICATES: Final = "certificates"
NONE: Final = "none"

_SUCCEEDED: Final = "succeeded"
_FAILED: Final = "failed"
_CHALLENGES: Final = {
    PASSWORDS: 'Basic realm="hapax", charset="UTF-8"', TOKENS: 'Bearer realm="hapax"',
    OAUTHBEARER: 'Bearer realm="hapax"', CERTIFICATES: 'ClientCertificate realm="hapax"',
}
"""HTTP wants a challenge in each 401; for certificates no scheme is registered."""
_MECHANISMS: Final = {PASSWORDS: "Basic", TOKENS: "Bearer", OAUTHBEARER: "Bearer", CERTIFICATES: "TLS"}
"""As the audit log calls them."""


class AdminRights(Rights):
    """Of the tokens with the role `admin`: like a super user's."""

    def decide(self, action: Action, name: str) -> Decision:
        return Decision(True, None, "the role of its token")

    def may_any(self, action: Action) -> bool:
        return True


class ReaderRights(Rights):
    """Of the tokens with the role `read-only`: descriptions of everything, unless a binding denies them. Records only
    where a binding permits them."""

    def decide(self, action: Action, name: str) -> Decision:
        found = super().decide(action, name)
        described = action.operation in (Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS)
        if described and not found.allowed and found.rule is None and not isinstance(self.index, UnknownBindings):
            return Decision(True, None, "the role of its token")
        return found


_RIGHTS: Final[Mapping[Role | None, type[Rights]]] = {"admin": AdminRights, "read-only": ReaderRights}


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sends a request."""

    principal: Principal
    host: str
    """Its IP address."""
    access: Access | None
    """None: the cluster has no authoriser."""
    role: Role | None = None
    """Of its token; None: it has shown none from the file."""

    @property
    def name(self) -> str:
        """For people."""
        return self.principal.partition(":")[2]

    @property
    def may_change(self) -> bool:
        return self.role != "read-only"

    @property
    def rights(self) -> Rights | None:
        """By the bindings of now, not of when the request came; None: it may do everything."""
        if self.access is None:
            return None
        return self.access.rights(self.principal, self.host, _RIGHTS.get(self.role, Rights))

    def may(self, action: Action, name: str = CLUSTER_NAME) -> bool:
        rights = self.rights
        return rights is None or rights.may(action, name)

    def may_any(self, action: Action) -> bool:
        """On at least one resource of the type, by an ACL or as an administrator. Who may not is spared the cluster's
        work of finding what is left out then."""
        rights = self.rights
        return rights is None or rights.may_any(action)


class Callers:
    """The ways in."""

    def __init__(
        self, ways: tuple[str, ...], access: Access | None, metrics: telemetry.Metrics, complain: Incidents,
        *, tokens: Tokens | None = None, logins: HeaderLogins | None = None, rules: PrincipalRules | None = None,
        audit: Audit = SILENT,
    ) -> None:
        """`ways`: of `admin.auth`. `tokens`: the file's. `rules`: from a certificate's name to a principal's. `audit`:
        where failed logins are recorded."""
        self._audit = audit
        self._open = NONE in ways
        self._access = access
        self._complain = complain
        self._tokens = tokens
        self._logins = logins
        self._rules = rules
        self._challenges = list(dict.fromkeys(_CHALLENGES[way] for way in ways if way in _CHALLENGES))
        self._outcomes = metrics.counters(LOGINS)

    def anybody(self, scope: Scope) -> Caller:
        """Who has not proven anything."""
        client = scope.get("client")
        return Caller(ANONYMOUS, plain_host(client[0]) if client else "", self._access)

    async def identify(self, scope: Scope, authorization: str | None) -> Caller:
        """`authorization`: the header. Raises Problem (401)."""
        caller = self.anybody(scope)
        if self._open:
            return caller
        if authorization is not None:
            return await self._by_header(caller, authorization)
        certificate = scope.get("state", {}).get("certificate", b"")
        if self._rules is not None and certificate:
            return self._by_certificate(caller, certificate, self._rules)
        self._audit.record(
            "login_failed", None, caller.host, listener="REST", mechanism="", reason="it has shown no credentials")
        raise self._unauthorized("Send credentials, in the header Authorization or as a client's certificate.")

    async def _by_header(self, caller: Caller, header: str) -> Caller:
        kind, _, credentials = header.partition(" ")
        bearer = kind.lower() == "bearer"
        if bearer and self._tokens is not None:
            holder = self._tokens.holder(credentials.strip())
            if holder is not None:
                self._count(TOKENS, _SUCCEEDED)
                return replace(caller, principal=user(holder.name), role=holder.role)
        way = PASSWORDS if not bearer else TOKENS if self.keys is None else OAUTHBEARER
        outcome: Any = Failure("the token is unknown")
        if self._logins is not None:
            try:
                outcome = await self._logins.check(header, source_of(f"{caller.host}:0"))
            except TooManyLogins:
                raise unavailable("Too many logins are being checked.") from None
        if isinstance(outcome, Failure):
            self._failed(caller, way, outcome.reason)
            raise self._unauthorized("The credentials are not valid.", bearer)
        self._count(way, _SUCCEEDED)
        return replace(caller, principal=user(outcome.name))

    @property
    def keys(self) -> IssuerKeys | None:
        """Of the issuer of signed tokens."""
        return None if self._logins is None else self._logins.keys

    def _by_certificate(self, caller: Caller, certificate: bytes, rules: PrincipalRules) -> Caller:
        from hapax.codec.distinguished_names import subject_name

        name: str | None = None
        try:
            subject = subject_name(certificate)
            name = rules.name_of(subject)
            reason = f"no rule of ssl.principal.mapping.rules gives a principal for {subject!r}"
        except ValueError as error:
            reason = f"the name in the certificate cannot be read: {error}"
        if name is None:
            self._failed(caller, CERTIFICATES, reason)
            raise self._unauthorized("The certificate gives no principal.")
        self._count(CERTIFICATES, _SUCCEEDED)
        return replace(caller, principal=user(name))

    def _failed(self, caller: Caller, way: str, reason: str) -> None:
        self._count(way, _FAILED)
        self._complain("login", "a login failed", way=way, reason=reason, peer=caller.host)
        self._audit.record(
            "login_failed", None, caller.host, listener="REST", mechanism=_MECHANISMS[way], reason=reason)

    def _unauthorized(self, detail: str, bearer: bool = False) -> Problem:
        shown = [
            each + ', error="invalid_token"' if bearer and each.startswith("Bearer") else each
            for each in self._challenges]
        return Problem(401, detail, headers={"WWW-Authenticate": ", ".join(shown)})

    def _count(self, way: str, outcome: str) -> None:
        self._outcomes.labels(way, outcome).value += 1


def ways_in(
    settings: Settings, ports: Ports, scram: ScramImage, access: Access | None, tokens: Tokens | None,
    metrics: telemetry.Metrics,
) -> Callers:
    """Those of `admin.auth`. Raises SettingsError where they do not fit the other settings."""
    ways = settings.admin_ways
    _check(settings, ways)
    now = asyncio.get_running_loop().time
    logins: HeaderLogins | None = None
    keys: IssuerKeys | None = None
    if OAUTHBEARER in ways:
        from hapax.runtime.key_sets import issuer_keys  # 10 MB that others do not need

        keys = issuer_keys(settings, now)
    if keys is not None or PASSWORDS in ways:
        logins = HeaderLogins(scram, ports.clock, ports.random, passwords=PASSWORDS in ways, keys=keys)
    rules = PrincipalRules(settings.ssl_principal_mapping_rules) if CERTIFICATES in ways else None
    return Callers(
        ways, access, metrics, Incidents(log, now), tokens=tokens if TOKENS in ways else None, logins=logins,
        rules=rules, audit=ports.audit)


def _check(settings: Settings, ways: tuple[str, ...]) -> None:
    """Raises SettingsError."""
    tls = settings.admin_security_protocol == SSL
    for way in (PASSWORDS, OAUTHBEARER):
        if way in ways and not tls and not settings.sasl_allow_secrets_without_tls:
            raise SettingsError(
                f"admin.auth={way} without TLS would let {way} travel in clear: set admin.security.protocol=SSL, or "
                "sasl.allow.secrets.without.tls=true")
    if CERTIFICATES in ways and not (tls and settings.ssl_client_auth != "none"):
        raise SettingsError(
            "admin.auth=certificates needs admin.security.protocol=SSL and ssl.client.auth=requested or required")
    if OAUTHBEARER in ways:
        try:
            check_tokens(settings)
        except ValueError as error:
            raise SettingsError(f"admin.auth=oauthbearer: {error}") from None
