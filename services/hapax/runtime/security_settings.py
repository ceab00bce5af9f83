"""Settings of listeners' security: protocols, certificates, and who a certificate belongs to; and who may do what.

Names are Kafka's. Those of listeners may be given for one alone: `listener.name.<name in lower case>.<setting>`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Annotated, Final, Literal

from hapax.core.access.principal_rules import PrincipalRules
from hapax.runtime.service_settings import SERVICE_SETTINGS, ServiceSettings
from hapax.runtime.setting_types import Between, Like, Millis, Principals

PLAINTEXT: Final = "PLAINTEXT"
SSL: Final = "SSL"
SASL_PLAINTEXT: Final = "SASL_PLAINTEXT"
SASL_SSL: Final = "SASL_SSL"
PROTOCOLS: Final = (PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL)
OVERRIDE: Final = "listener.name."


@dataclass(frozen=True, kw_only=True)
class SecuritySettings(ServiceSettings):
    """A part of `settings.Settings`."""

    listener_security_protocol_map: str = ""
    """The security protocol of each listener: `INSIDE:PLAINTEXT,OUTSIDE:SSL`. PLAINTEXT: neither encryption nor
    authentication. SSL: TLS. SASL_SSL: TLS, and clients log in. SASL_PLAINTEXT: they log in without TLS. Empty: a
    listener whose name is a protocol has that protocol, any other has PLAINTEXT. The first listener, which the nodes
    use among themselves, has that of `security.inter.broker.protocol`."""
    ssl_keystore_type: Literal["PEM"] = "PEM"
    """Format of keys and certificates. Only PEM is supported."""
    ssl_keystore_location: str | None = None
    """PEM file with the listener's private key and its certificate, followed by the issuers' certificates."""
    ssl_certificate_location: str | None = None
    """PEM file with the listener's certificate, followed by the issuers' certificates; with `ssl.key.location`, in
    place of `ssl.keystore.location`. It is the form in which cert-manager writes them (`tls.crt`)."""
    ssl_key_location: str | None = None
    """PEM file with the listener's private key (`tls.key`)."""
    ssl_keystore_certificate_chain: str | None = None
    """The listener's certificate and its issuers' as PEM text, in place of a file."""
    ssl_keystore_key: str | None = None
    """The listener's private key as PEM text, in place of a file."""
    ssl_key_password: str | None = None
    """Password of the private key, if it is encrypted."""
    ssl_truststore_type: Literal["PEM"] = "PEM"
    """Format of the authorities' certificates. Only PEM is supported."""
    ssl_truststore_location: str | None = None
    """PEM file with the certificates of the authorities that issue clients' certificates."""
    ssl_truststore_certificates: str | None = None
    """As PEM text, in place of a file."""
    ssl_client_auth: Literal["none", "requested", "required"] = "none"
    """Whether clients need a certificate. none: all clients are `User:ANONYMOUS`. requested: those without a
    certificate are. required: they are refused. A certificate that is expired, for servers only or of another authority
    is refused in any case."""
    ssl_enabled_protocols: Annotated[str, Like(r"TLSv1\.[23](,\s*TLSv1\.[23])*")] = "TLSv1.2,TLSv1.3"
    """Versions of TLS."""
    ssl_principal_mapping_rules: str = "DEFAULT"
    """How the distinguished name of a client's certificate becomes the name of a principal:
    `RULE:^CN=([^,]*),.*$/$1/L,DEFAULT`. The first rule whose pattern matches the whole name applies; DEFAULT takes the
    name as it is. A client that no rule matches is refused. Patterns are RE2's."""
    ssl_allow_dn_changes: bool = False
    """true: a new certificate may have another distinguished name."""
    ssl_allow_san_changes: bool = False
    """true: a new certificate may lack alternative names that the present one has."""
    ssl_reload_interval_ms: Millis = 5_000
    """Milliseconds between two looks at the files of certificates and keys. What has changed and passes the checks
    serves new connections; open ones stay. What does not pass them is not used, see
    `hapax_tls_certificates_refused`."""
    ssl_handshake_timeout_ms: Millis = 10_000
    """Milliseconds within which a TLS handshake must be complete."""
    ssl_max_handshakes: Annotated[int, Between(1)] = 2_000
    """Most incomplete TLS handshakes of one listener. With one more, the one whose client has been silent longest is
    given up."""
    ssl_max_handshakes_per_ip: Annotated[int, Between(1)] = 500
    """As `ssl.max.handshakes`, of one IPv4 address or one IPv6 network of 64 bits."""
    authorizer_class_name: Literal["", "acl", "org.apache.kafka.metadata.authorizer.StandardAuthorizer"] = ""
    """`acl`, or Kafka's name for the same: requests need a permission (ACL). Empty: everybody may do everything."""
    super_users: Principals = ""
    """Principals that need no permission, separated by semicolons: `User:admin;User:CN=operator,O=shop`."""
    allow_everyone_if_no_acl_found: bool = False
    """true: everybody may use a resource that no ACL names."""
    node_principals: Principals = ""
    """Principals of the cluster's own nodes, separated by semicolons. Their requests need one of these and the proof of
    a live registration; where this is empty, the proof alone."""


SECURITY_SETTINGS: Final = tuple(
    field.name.replace("_", ".") for field in fields(SecuritySettings)
    if field.name not in (
        "listener_security_protocol_map", "authorizer_class_name", "super_users", "allow_everyone_if_no_acl_found",
        "node_principals", *SERVICE_SETTINGS))
"""Those that a listener can have of its own."""
SECRETS: Final = frozenset(("ssl.keystore.key", "ssl.key.password"))
"""Values that no client is ever shown."""


def split_override(name: str, listeners: Iterable[str]) -> tuple[str, str] | None:
    """`listener.name.external.ssl.client.auth` -> (`EXTERNAL`, `ssl.client.auth`); None: it is no such name. In the
    environment, dots stand for a listener's underscores too."""
    rest = name.removeprefix(OVERRIDE)
    setting = next((each for each in SECURITY_SETTINGS if rest.endswith("." + each)), None)
    if rest == name or setting is None:
        return None
    given = rest.removesuffix("." + setting)
    known = {re.sub("_", ".", each.lower()): each for each in listeners}
    return known.get(re.sub("_", ".", given), given.upper()), setting


def protocol_map(text: str) -> dict[str, str]:
    """Listener -> protocol. Raises ValueError."""
    found: dict[str, str] = {}
    for entry in filter(None, (each.strip() for each in text.split(","))):
        name, colon, protocol = (each.strip().upper() for each in entry.rpartition(":"))
        if not colon or not name:
            raise ValueError(f"{entry!r} is not LISTENER:PROTOCOL")
        if protocol not in PROTOCOLS:
            raise ValueError(f"{protocol!r} is none of " + ", ".join(PROTOCOLS))
        if name in found:
            raise ValueError(f"{name} has two protocols")
        found[name] = protocol
    return found


def protocols_of(listeners: Iterable[str], text: str, inter_broker: str = PLAINTEXT) -> dict[str, str]:
    """The security protocol of each listener; `text`: listener.security.protocol.map, `inter_broker`:
    security.inter.broker.protocol. Raises ValueError."""
    given = protocol_map(text)
    found = {}
    for name in listeners:
        if name in given:
            found[name] = given[name]
        elif name in PROTOCOLS:
            found[name] = name
        elif given:
            raise ValueError(f"listener.security.protocol.map does not name the listener {name}")
        else:
            found[name] = PLAINTEXT
    first, *_ = found.items()
    if first[1] != inter_broker:
        raise ValueError(
            f"the nodes use the first listener, {first[0]}, among themselves, and security.inter.broker.protocol is"
            f" {inter_broker}: it cannot have {first[1]}. A listener for clients comes after it")
    return found


def check_rules(text: str) -> None:
    """Raises ValueError."""
    PrincipalRules(text)
