"""TLS between the cluster's own processes: each proves its role and id, and both sides check the other's.

`ServiceTls` holds one process's certificate. A connection that it opens goes to a process that it names
(`to`), and only to that one: the certificate at the other end must name it. A connection that it accepts comes from a
process of the same cluster (`CALLERS` in `core/access/services.py` says which call each role may make). Host names play
no part, so a pod's address may change.
"""

from __future__ import annotations

import ssl
from dataclasses import replace
from typing import Final, Literal

from hapax.codec.service_certificates import service_name
from hapax.core.access.services import ServiceName
from hapax.runtime.ports import FrameLimits, HandshakeOutcome
from hapax.runtime.security_settings import SSL
from hapax.runtime.settings import Settings, SettingsError
from hapax.runtime.tls import TlsCertificates, TlsError, TlsOptions

NAME: Final = "services"
"""What metrics and log lines call these ports."""


def http_certificates(settings: Settings) -> TlsCertificates | None:
    """Of /healthz and /metrics. None: plain HTTP. Raises SettingsError."""
    if settings.http_security_protocol != SSL:
        return None
    return _certificates("http.security.protocol=SSL", _own(settings), "server", "http")


def public_certificates(settings: Settings, name: str) -> TlsCertificates:
    """Of what clients see that is no Kafka listener. Raises SettingsError."""
    return _certificates(f"{name}.security.protocol=SSL", TlsOptions.of(settings), "server", name)


def etcd_certificates(settings: Settings) -> TlsCertificates | None:
    """Towards etcd. None: plain HTTP. Raises SettingsError."""
    if not settings.etcd_over_tls:
        return None
    own = _own(settings)
    if settings.etcd_ssl_keystore_location or settings.etcd_ssl_certificate_location:
        own = replace(
            own, keystore_location=settings.etcd_ssl_keystore_location or "",
            chain_location=settings.etcd_ssl_certificate_location or "",
            key_location=settings.etcd_ssl_key_location or "")
    authorities = settings.etcd_ssl_truststore_location or own.authorities_location
    return _certificates(
        "etcd.endpoints=https://...", replace(own, authorities_location=authorities), "client", "etcd")


def _own(settings: Settings) -> TlsOptions:
    return TlsOptions(
        keystore_location=settings.service_ssl_keystore_location or "",
        chain_location=settings.service_ssl_certificate_location or "",
        key_location=settings.service_ssl_key_location or "",
        authorities_location=settings.service_ssl_truststore_location or "", verify_host=False)


def _certificates(
    wanted_by: str, options: TlsOptions, side: Literal["server", "client"], name: str
) -> TlsCertificates:
    try:
        return TlsCertificates(options, side, name)
    except TlsError as error:
        raise SettingsError(f"{wanted_by}: {error}") from None


class WrongService(ssl.SSLCertVerificationError):
    """The certificate is sound, but names another process, or none."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.verify_message = reason


class ServiceTls:
    """What a process is in its cluster."""

    def __init__(self, settings: Settings, role: str, node_id: int) -> None:
        """`node_id`: -1 where the process takes any free one. Raises SettingsError where the certificate cannot be
        used, or names another process than this one."""
        options = replace(_own(settings), versions=("TLSv1.3",), client_auth="required")
        self.cluster_id = settings.cluster_id
        self._own = ServiceName(settings.cluster_id, role, node_id)
        try:
            self.certificates = TlsCertificates(options, "server", NAME, self._check_own)
            self._client = TlsCertificates(options, "client", f"{NAME}, outgoing", self._check_own)
            if not options.authorities_location:
                raise TlsError("service.ssl.truststore.location is not set")
        except TlsError as error:
            raise SettingsError(f"security.inter.broker.protocol=SSL: {error}") from None
        self._limits = FrameLimits(
            handshake_timeout_ms=settings.ssl_handshake_timeout_ms, max_handshakes=settings.ssl_max_handshakes,
            max_handshakes_per_address=settings.ssl_max_handshakes_per_ip)
        self.incoming = Incoming(self)

    def _check_own(self, certificate: bytes) -> None:
        """Raises ValueError for what the other processes would not take from this one."""
        named = service_name(certificate)
        if not named.stands_for(self._own):
            raise ValueError(f"the certificate of service.ssl.* names {named}, and this process is {self._own}")

    @property
    def limits(self) -> FrameLimits:
        """The limits of handshakes; the rest are defaults."""
        return self._limits

    def to(self, role: str, node_id: int) -> Outgoing:
        """For connections to one process. Cheap to make."""
        return Outgoing(self._client, ServiceName(self.cluster_id, role, node_id))

    def peer(self, certificate: bytes) -> ServiceName:
        """Who has this certificate (DER). Raises ValueError for one that names no process of this cluster."""
        if not certificate:
            raise ValueError("it has no certificate")
        name = service_name(certificate)
        if name.cluster_id != self.cluster_id:
            raise ValueError(f"the certificate names {name}, of another cluster than {self.cluster_id}")
        return name

    async def reload_aside(self) -> None:
        """Takes over new files, if they pass the checks of `TlsCertificates.reload`."""
        await self.certificates.reload_aside()
        await self._client.reload_aside()


class Incoming:
    """`ports.TlsContexts` of a service port."""

    name = NAME

    def __init__(self, services: ServiceTls) -> None:
        self._services = services

    def context(self) -> ssl.SSLContext:
        return self._services.certificates.context()

    def handshake_ended(self, outcome: HandshakeOutcome) -> None:
        self._services.certificates.handshake_ended(outcome)

    def check(self, certificate: bytes) -> None:
        try:
            self._services.peer(certificate)
        except ValueError as error:
            raise WrongService(str(error)) from None


class Outgoing:
    """`ports.TlsContexts` of connections to one process."""

    name = NAME

    def __init__(self, certificates: TlsCertificates, wanted: ServiceName) -> None:
        self._certificates = certificates
        self._wanted = wanted

    def context(self) -> ssl.SSLContext:
        return self._certificates.context()

    def handshake_ended(self, outcome: HandshakeOutcome) -> None:
        self._certificates.handshake_ended(outcome)

    def check(self, certificate: bytes) -> None:
        try:
            name = service_name(certificate)
        except ValueError as error:
            raise WrongService(str(error)) from None
        if not name.stands_for(self._wanted):
            raise WrongService(f"the certificate names {name}, and {self._wanted} is called")
