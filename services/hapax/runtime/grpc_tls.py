"""TLS of gRPC's library: credentials from certificates that may be replaced while a process runs."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import grpc
from cryptography import x509

from hapax.codec.distinguished_names import name_text
from hapax.core.access.principal_rules import PrincipalRules
from hapax.core.access.principals import ANONYMOUS, Principal, user
from hapax.runtime.ports import RpcError

if TYPE_CHECKING:
    from hapax.runtime.tls import TlsCertificates


def channel_credentials(certificates: TlsCertificates) -> grpc.ChannelCredentials:
    """Of an outgoing channel. They stay what they are: a new certificate needs a new channel."""
    chain, key, authorities = certificates.pem
    return grpc.ssl_channel_credentials(authorities or None, key or None, chain or None)


def server_credentials(certificates: TlsCertificates) -> grpc.ServerCredentials:
    """Of a listener. Each handshake gets the certificates that are current."""
    shown: list[int] = [certificates.reloads]

    def configured() -> Any:
        chain, key, authorities = certificates.pem
        return grpc.ssl_server_certificate_configuration([(key, chain)], authorities or None)

    def fetch() -> Any:
        if shown[0] == certificates.reloads:
            return None  # what the listener has
        shown[0] = certificates.reloads
        return configured()

    return grpc.dynamic_ssl_server_credentials(
        configured(), fetch, require_client_authentication=certificates.client_auth == "required")


class CertificatePrincipals:
    """Who the clients of a listener are, by their certificates."""

    def __init__(self, rules: PrincipalRules) -> None:
        self._rules = rules
        self._of = lru_cache(256)(self._read)

    def principal(self, context: Any) -> Principal:
        """Raises RpcError where no rule gives the certificate's name a principal."""
        shown = context.auth_context().get("x509_pem_cert", ())
        return self._of(shown[0]) if shown else ANONYMOUS

    def _read(self, pem: bytes) -> Principal:
        try:
            subject = name_text(x509.load_pem_x509_certificate(pem).subject.public_bytes())
        except ValueError as error:
            raise RpcError("UNAUTHENTICATED", f"the name in the certificate cannot be read: {error}") from None
        name = self._rules.name_of(subject)
        if name is None:
            raise RpcError(
                "UNAUTHENTICATED", f"no rule of ssl.principal.mapping.rules gives a principal for {subject!r}")
        return user(name)
