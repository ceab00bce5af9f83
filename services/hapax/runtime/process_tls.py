"""By what a process proves itself on the ports that are no Kafka listeners, and the look at its files."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from hapax.core.access.principal_rules import PrincipalRules
from hapax.runtime import supervision
from hapax.runtime.metrics import Metrics
from hapax.runtime.ports import Randomness
from hapax.runtime.security_settings import SSL
from hapax.runtime.settings import Settings

if TYPE_CHECKING:
    from hapax.runtime.service_tls import ServiceTls
    from hapax.runtime.tls import TlsCertificates


class ProcessTls:
    """What is None is not used: plaintext."""

    def __init__(self, role: str, settings: Settings) -> None:
        """Raises SettingsError where something that is set cannot be used."""
        from hapax.runtime.service_tls import (
            ServiceTls,
            etcd_certificates,
            http_certificates,
            public_certificates,
        )

        self.services: ServiceTls | None = None
        """Between the cluster's processes."""
        if settings.security_inter_broker_protocol == SSL:
            self.services = ServiceTls(settings, role, -1 if settings.node_id_generation_enable else settings.node_id)
        self.etcd = etcd_certificates(settings)
        self.http = http_certificates(settings)
        """Of /healthz and /metrics."""
        self.public: TlsCertificates | None = None
        """Of the public gRPC services."""
        if role != "admin" and settings.public_rpc_security_protocol == SSL:
            self.public = public_certificates(settings, "public.rpc")
        self.handshake_ms = settings.ssl_handshake_timeout_ms
        self.rules = PrincipalRules(settings.ssl_principal_mapping_rules)
        """Who a client of the public gRPC services is by its certificate."""
        self.admin: TlsCertificates | None = None
        """Of the REST API."""
        if role == "admin" and settings.admin_security_protocol == SSL:
            self.admin = public_certificates(settings, "admin")
        self._watching: asyncio.Task[None] | None = None

    @classmethod
    def of(cls, role: str, settings: Settings, metrics: Metrics) -> ProcessTls | None:
        """None: the process uses none, and need not import what reads certificates, which takes 10 MB and 0.1 s.
        Raises SettingsError."""
        protocols = (
            settings.security_inter_broker_protocol, settings.http_security_protocol,
            settings.public_rpc_security_protocol, settings.admin_security_protocol)
        if SSL not in protocols and not settings.etcd_over_tls:
            return None
        made = cls(role, settings)
        if made.services is not None:
            metrics.certificates["services"] = made.services.certificates
        others = (made.etcd, made.http, made.public, made.admin)
        metrics.certificates.update({each.name: each for each in others if each is not None})
        return made

    def watch(self, reload_etcd: Callable[[], Awaitable[None]], interval_s: float, random: Randomness) -> None:
        """Takes over new files while the process runs. `reload_etcd`: of the store."""

        async def look() -> None:
            for each in (self.services, self.http, self.public, self.admin):
                if each is not None:
                    await each.reload_aside()
            await reload_etcd()

        self._watching = supervision.every(interval_s, look, "tls-reload", random)

    async def close(self) -> None:
        if self._watching is not None:
            await supervision.end(self._watching)
