"""Settings of logins (SASL). Names are Kafka's where Kafka has them. Each may be given for one listener alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from hapax.core.sasl.exchange import MECHANISMS, OAUTHBEARER, PLAIN, SHOWS_SECRETS
from hapax.runtime.setting_types import Between, Like, Millis

_LIST: Final = r"(?:[^,\s]+(?:,\s*[^,\s]+)*)?"


@dataclass(frozen=True, kw_only=True)
class SaslSettings:
    """A part of `settings.Settings`."""

    sasl_enabled_mechanisms: Annotated[str, Like(_LIST)] = "SCRAM-SHA-256,SCRAM-SHA-512"
    """How clients may log in at a listener with SASL_SSL or SASL_PLAINTEXT: of SCRAM-SHA-256, SCRAM-SHA-512, PLAIN and
    OAUTHBEARER, separated by commas. The password of PLAIN is that of the user's SCRAM credentials."""
    sasl_allow_secrets_without_tls: bool = False
    """true: a listener without TLS takes what is enough to log in as somebody: the passwords of PLAIN, the tokens of
    OAUTHBEARER, the salted passwords of AlterUserScramCredentials. Only where the network itself is trusted."""
    sasl_server_max_receive_size: Annotated[int, Between(1024, 524_288)] = 65_536
    """Bytes of the largest request that is read before a login."""
    sasl_login_timeout_ms: Millis = 10_000
    """Milliseconds within which a client must have logged in."""
    sasl_max_logins: Annotated[int, Between(1)] = 2_000
    """Most connections of one listener that have not logged in. With one more, the one whose client has been waited for
    longest is closed."""
    sasl_max_logins_per_ip: Annotated[int, Between(1)] = 500
    """As `sasl.max.logins`, of one IPv4 address or one IPv6 network of 64 bits."""
    connections_max_reauth_ms: Annotated[int, Between(0)] = 0
    """Milliseconds after which a client must log in again on its open connection (KIP-368); one that does not is
    disconnected at its next request. 0: no limit but the end of the token that it has logged in with."""
    sasl_oauthbearer_expected_issuer: str = ""
    """The `iss` that tokens must have. Needed for OAUTHBEARER. For the tokens of Kubernetes' service accounts it is
    the API server's `--service-account-issuer`."""
    sasl_oauthbearer_expected_audience: Annotated[str, Like(_LIST)] = ""
    """Values separated by commas; tokens must have one of them as `aud`. Needed for OAUTHBEARER."""
    sasl_oauthbearer_jwks_endpoint_url: Annotated[str, Like(r"(?:file:///\S+|https?://\S+)?")] = ""
    """Where the issuer's public keys are (a JSON Web Key Set): `file:///...`, or an URL that
    `sasl.oauthbearer.allowed.urls` lists. Needed for OAUTHBEARER."""
    sasl_oauthbearer_jwks_endpoint_refresh_ms: Annotated[int, Between(1000)] = 3_600_000
    """Milliseconds between two reads of the keys. A token with a key that is not known causes one more, at most once a
    minute."""
    sasl_oauthbearer_jwks_ca_location: str | None = None
    """PEM file with the authorities of the certificate at `sasl.oauthbearer.jwks.endpoint.url`; unset: the system's."""
    sasl_oauthbearer_jwks_token_location: str | None = None
    """File with a token that is sent to an https URL of keys, as Kubernetes' API server wants it. Read each time."""
    sasl_oauthbearer_allowed_urls: Annotated[str, Like(_LIST)] = ""
    """URLs that may be fetched, separated by commas. An http URL may be listed too; its keys are as trustworthy as the
    network."""
    sasl_oauthbearer_sub_claim_name: Annotated[str, Like(r"\S+")] = "sub"
    """The claim that names the principal. Kubernetes' service accounts are `system:serviceaccount:NAMESPACE:NAME`."""
    sasl_oauthbearer_clock_skew_seconds: Annotated[int, Between(0, 3600)] = 30
    """Seconds by which the issuer's clock may differ from this one."""


def split_list(text: str) -> tuple[str, ...]:
    return tuple(filter(None, (each.strip() for each in text.split(","))))


def enabled_mechanisms(settings: SaslSettings, *, tls: bool) -> tuple[str, ...]:
    """Of a listener; `settings`: as they are for it. Raises ValueError where they do not fit together."""
    chosen = tuple(dict.fromkeys(each.upper() for each in split_list(settings.sasl_enabled_mechanisms)))
    if not chosen:
        raise ValueError("sasl.enabled.mechanisms is empty")
    for each in chosen:
        if each not in MECHANISMS:
            raise ValueError(f"sasl.enabled.mechanisms: {each} is none of " + ", ".join(MECHANISMS))
        if each in SHOWS_SECRETS and not tls and not settings.sasl_allow_secrets_without_tls:
            what = "passwords" if each == PLAIN else "tokens"
            raise ValueError(
                f"{each} would send {what} in clear: use SASL_SSL, or set sasl.allow.secrets.without.tls=true")
    if OAUTHBEARER in chosen:
        check_tokens(settings)
    return chosen


def check_tokens(settings: SaslSettings) -> None:
    """Raises ValueError."""
    for name in ("expected.issuer", "expected.audience", "jwks.endpoint.url"):
        if not getattr(settings, "sasl_oauthbearer_" + name.replace(".", "_")):
            raise ValueError(f"OAUTHBEARER needs sasl.oauthbearer.{name}")
    url = settings.sasl_oauthbearer_jwks_endpoint_url
    if not url.startswith("file:") and url not in split_list(settings.sasl_oauthbearer_allowed_urls):
        raise ValueError(f"sasl.oauthbearer.allowed.urls does not list {url}")
