"""Who is at the other end: what a listener demands of its connections, and the principal that it gives them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from hapax.core.access.principal_rules import PrincipalRules
from hapax.core.access.principals import ANONYMOUS, Principal, user
from hapax.core.sasl.exchange import Failure, Success
from hapax.runtime.password_checks import PasswordChecks
from hapax.runtime.ports import FrameConnection, FrameLimits, Ports
from hapax.runtime.scram_image import ScramImage
from hapax.runtime.security_settings import PLAINTEXT, SASL_PLAINTEXT, SASL_SSL, SSL
from hapax.runtime.settings import Settings, SettingsError

if TYPE_CHECKING:
    from hapax.kafka.sasl import SaslListener
    from hapax.kafka.server import KafkaServer, Session
    from hapax.runtime.key_sets import IssuerKeys
    from hapax.runtime.service_tls import ServiceTls
    from hapax.runtime.tls import TlsCertificates

# What reads certificates is imported with the first listener that has TLS: 10 MB and 0.1 s that the others do not need.


class Unauthenticated(Exception):
    """The connection must be closed; the text says why, for the log."""


@dataclass(frozen=True, slots=True)
class ListenerSecurity:
    """What one listener demands."""

    protocol: str = PLAINTEXT
    tls: TlsCertificates | None = None
    rules: PrincipalRules | None = None
    reload_interval_ms: int = 5_000
    handshake_timeout_ms: int = 10_000
    max_handshakes: int = 2_000
    max_handshakes_per_address: int = 500
    sasl: SaslListener | None = None
    """None: clients do not log in."""
    services: ServiceTls | None = None
    """Of the listener of the cluster's own processes, which takes no others; None: of clients."""

    @property
    def keys(self) -> IssuerKeys | None:
        """Of the issuer of tokens that clients log in with."""
        return None if self.sasl is None else self.sasl.keys

    @property
    def keys_refresh_ms(self) -> int:
        assert self.sasl is not None
        return self.sasl.refresh_ms

    def session(self, server: KafkaServer, connection: FrameConnection, listener: str) -> Session:
        """Of a connection whose client must log in."""
        from hapax.kafka.sasl_session import SaslSession

        assert self.sasl is not None
        return SaslSession(server, connection, listener, self.sasl)

    def limits(self, frames: FrameLimits) -> FrameLimits:
        """`frames`, with the limits of TLS handshakes."""
        return replace(
            frames, handshake_timeout_ms=self.handshake_timeout_ms, max_handshakes=self.max_handshakes,
            max_handshakes_per_address=self.max_handshakes_per_address)

    def principal_of(self, connection: FrameConnection) -> Principal:
        """The principal of a connection that was just opened. Raises Unauthenticated."""
        if self.services is not None:
            return self.services.peer(connection.certificate).principal
        if self.sasl is not None or self.rules is None or not connection.certificate:
            return ANONYMOUS
        from hapax.codec.distinguished_names import subject_name

        try:
            subject = subject_name(connection.certificate)
        except ValueError as error:
            raise Unauthenticated(f"the name in the certificate cannot be read: {error}") from None
        name = self.rules.name_of(subject)
        if name is None:
            raise Unauthenticated(f"no rule of ssl.principal.mapping.rules gives a principal for {subject!r}")
        return user(name)


OPEN: Final = ListenerSecurity()


def listener_securities(settings: Settings, scram: ScramImage, ports: Ports) -> Mapping[str, ListenerSecurity]:
    """By listener. Raises SettingsError where a certificate cannot be used. `scram`: the users' credentials."""
    found: dict[str, ListenerSecurity] = {}
    services = None if ports.tls is None else ports.tls.services
    passwords: PasswordChecks[Success | Failure] = PasswordChecks()
    for name, protocol in settings.security_protocols.items():
        own = settings.of_listener(name)
        if not found and services is not None:  # the first one
            found[name] = _nodes_listener(services, own)
            continue
        tls = protocol in (SSL, SASL_SSL)
        security = _tls_listener(name, protocol, own) if tls else replace(OPEN, protocol=protocol)
        if protocol in (SASL_PLAINTEXT, SASL_SSL):
            from hapax.kafka.sasl import SaslListener

            try:
                security = replace(security, sasl=SaslListener(own, scram, ports, passwords, tls=tls))
            except ValueError as error:
                raise SettingsError(f"listener {name}: {error}") from None
        found[name] = security
    return found


def _nodes_listener(services: ServiceTls, own: Settings) -> ListenerSecurity:
    return ListenerSecurity(
        SSL, services.certificates, handshake_timeout_ms=own.ssl_handshake_timeout_ms,
        max_handshakes=own.ssl_max_handshakes, max_handshakes_per_address=own.ssl_max_handshakes_per_ip,
        services=services)


def _tls_listener(name: str, protocol: str, own: Settings) -> ListenerSecurity:
    from hapax.runtime.tls import TlsCertificates, TlsError, TlsOptions

    assert own.ssl_keystore_type == own.ssl_truststore_type == "PEM"
    try:
        certificates = TlsCertificates(TlsOptions.of(own), "server", name)
    except TlsError as error:
        raise SettingsError(f"listener {name}: {error}") from None
    return ListenerSecurity(
        protocol, certificates, PrincipalRules(own.ssl_principal_mapping_rules), own.ssl_reload_interval_ms,
        own.ssl_handshake_timeout_ms, own.ssl_max_handshakes, own.ssl_max_handshakes_per_ip)
