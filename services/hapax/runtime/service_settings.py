"""Settings of TLS on the ports that are no Kafka listeners: between the cluster's processes, to etcd, and for HTTP."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Final, Literal

from hapax.runtime.sasl_settings import SaslSettings, split_list
from hapax.runtime.setting_types import Like

Protocol = Literal["PLAINTEXT", "SSL"]
_WAY: Final = "(?:certificates|passwords|oauthbearer)"


@dataclass(frozen=True, kw_only=True)
class ServiceSettings(SaslSettings):
    """A part of `settings.Settings`."""

    security_inter_broker_protocol: Protocol = "PLAINTEXT"
    """How the cluster's processes talk to each other: on the first of `listeners`, on `rpc.listen` and on
    `frames.listen`. SSL: by TLS, and each process proves its role and id by a certificate (`service.ssl.*`). These
    ports then take only such processes, and each call only from the roles that need it. Set it alike on all
    processes."""
    service_ssl_keystore_location: str | None = None
    """PEM file with the key and the certificate by which this process proves its name to the others, followed by the
    issuers' certificates. The certificate has the alternative name `spiffe://CLUSTER/ROLE/ID` (a URI), such as
    `spiffe://hapax/broker/0`; the ID may be missing for PID allocators, controllers and the REST API. It must be valid
    for servers and for clients."""
    service_ssl_certificate_location: str | None = None
    """PEM file with that certificate; with `service.ssl.key.location`, in place of `service.ssl.keystore.location`."""
    service_ssl_key_location: str | None = None
    """PEM file with the key of that certificate."""
    service_ssl_truststore_location: str | None = None
    """PEM file with the authorities of the other processes' certificates. It should be an authority that issues for
    this cluster only."""
    etcd_ssl_keystore_location: str | None = None
    """PEM file with the key and certificate that etcd is shown, where an address in `etcd.endpoints` begins with
    `https://`. Default: those of `service.ssl.*`. The certificate's common name is the user of etcd."""
    etcd_ssl_certificate_location: str | None = None
    """PEM file with that certificate; with `etcd.ssl.key.location`, in place of `etcd.ssl.keystore.location`."""
    etcd_ssl_key_location: str | None = None
    """PEM file with the key of that certificate."""
    etcd_ssl_truststore_location: str | None = None
    """PEM file with the authorities of etcd's certificates. Default: `service.ssl.truststore.location`."""
    etcd_username: str | None = None
    """The user of etcd, where it has a password (`etcd.password.location`). Default: the common name of the
    certificate."""
    etcd_password_location: str | None = None
    """File with the password of `etcd.username`. It is read at each login, so a new password needs no restart."""
    public_rpc_security_protocol: Protocol = "PLAINTEXT"
    """SSL: the public gRPC services are served by TLS, with the certificates of `ssl.*`. With
    `ssl.client.auth=required` a client's certificate is needed, and gives the client its principal; otherwise clients
    are `User:ANONYMOUS`."""
    public_rpc_auth: Annotated[str, Like(rf"{_WAY}(?:,\s*{_WAY})*")] = "certificates"
    """How clients of the public gRPC services prove who they are, where these have TLS; several ways are separated by
    commas. certificates: with `ssl.client.auth=required`, see `public.rpc.security.protocol`. passwords: a user's,
    which is compared with its SCRAM credentials. oauthbearer: a signed token of the issuer in `sasl.oauthbearer.*`.
    With passwords or oauthbearer, a client that shows neither them nor a certificate is refused, and not anonymous."""
    http_security_protocol: Protocol = "PLAINTEXT"
    """SSL: /healthz, /readyz, /syncz and /metrics are served by TLS, with the certificate of `service.ssl.*`. No
    client's certificate is asked for, so probes work; on Kubernetes they need `scheme: HTTPS`."""
    admin_security_protocol: Protocol = "PLAINTEXT"
    """SSL: the REST API is served by TLS, with the certificates of `ssl.*`."""

    @property
    def public_rpc_ways(self) -> tuple[str, ...]:
        """Of `public.rpc.auth`."""
        return split_list(self.public_rpc_auth)


SERVICE_SETTINGS: Final = frozenset(
    each.name for each in fields(ServiceSettings) if each.name not in {own.name for own in fields(SaslSettings)})
