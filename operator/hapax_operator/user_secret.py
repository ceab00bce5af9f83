"""A User's Secret: what it has for clients, and how the operator recognises what it wrote. Pure.

The Secret is the only place where a password or a private key is kept. Its annotation `hapax.dev/credential` says what
the credential was made for, and bears a digest over all of it: where that does not fit, somebody else has changed the
Secret. The digest of 32 random bytes tells nothing about them.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from hapax.core.sasl.scram_keys import ScramMechanism
from hapax_operator.access_file import Listeners
from hapax_operator.resources import GROUP, VERSION
from hapax_operator.user_resource import UserResource

CREDENTIAL: Final = "hapax.dev/credential"
"""An annotation."""
TOKEN_FILE: Final = "/var/run/secrets/hapax/token"
"""Where the profile expects the token of a service account."""
_OURS: Final = frozenset((
    "client.properties", "bootstrap.servers", "security.protocol", "sasl.mechanism", "sasl.jaas.config", "username",
    "password", "ca.crt", "tls.crt", "tls.key"))
"""Keys that the operator writes. It leaves others alone."""
_RANDOM: Final = re.compile(r"[A-Za-z0-9_-]{43,}")
"""At least 32 bytes, as `secrets.token_urlsafe` writes them."""
_MODULES: Final = "org.apache.kafka.common.security."


class Password(NamedTuple):
    mechanism: ScramMechanism
    text: str
    rotate: str
    """`spec.rotate` when it was made."""
    since_ms: int
    """Wall-clock time."""

    def __repr__(self) -> str:
        """Without the text: it must not get into a log."""
        return f"Password({self.mechanism.sasl_name}, {self.rotate!r}, {self.since_ms})"


class Certificate(NamedTuple):
    chain: str
    """PEM; as the key."""
    key: str
    name: str
    """The common name."""
    rotate: str
    not_before_ms: int
    not_after_ms: int
    authority: str
    """Digest of the authority's certificate."""

    def __repr__(self) -> str:
        return f"Certificate({self.name!r}, {self.rotate!r}, until {self.not_after_ms})"


@dataclass(frozen=True, slots=True)
class SecretSeen:
    """An existing Secret of the User's name."""

    uid: str
    version: str
    ours: bool
    """Whether the operator made it for this very resource."""
    data: Mapping[str, str]
    credential: str = ""
    """The annotation."""

    def __repr__(self) -> str:
        return f"SecretSeen({self.uid!r}, ours={self.ours})"

    def password(self) -> Password | None:
        """None: it has none that the operator wrote."""
        try:
            told = json.loads(self.credential)
            found = Password(
                ScramMechanism(told["mechanism"]), self.data["password"], told["rotate"], told["since"])
        except (ValueError, KeyError, TypeError):
            return None
        strong = _RANDOM.fullmatch(found.text) is not None
        return found if strong and self.credential == _password_told(found) else None

    def certificate(self) -> Certificate | None:
        """As `password`."""
        try:
            told = json.loads(self.credential)
            found = Certificate(
                self.data["tls.crt"], self.data["tls.key"], told["name"], told["rotate"], told["since"], told["until"],
                told["authority"])
        except (ValueError, KeyError, TypeError):
            return None
        return found if self.credential == _certificate_told(found) else None


def read_secret(body: Mapping[str, Any], resource: UserResource) -> SecretSeen:
    metadata = body["metadata"]
    owners = metadata.get("ownerReferences") or ()
    return SecretSeen(
        metadata["uid"], metadata["resourceVersion"],
        any(each.get("uid") == resource.meta.uid for each in owners),
        {key: base64.b64decode(value).decode("utf-8", "replace") for key, value in (body.get("data") or {}).items()},
        (metadata.get("annotations") or {}).get(CREDENTIAL, ""))


class Contents(NamedTuple):
    """What the operator wants a Secret to have."""

    data: Mapping[str, str]
    credential: str

    def __repr__(self) -> str:
        return f"Contents({', '.join(self.data)})"

    def are_in(self, secret: SecretSeen) -> bool:
        present = {key: value for key, value in secret.data.items() if key in _OURS}
        return present == self.data and secret.credential == self.credential


def new_secret(resource: UserResource, contents: Contents) -> dict[str, Any]:
    """The body of a Secret, which is deleted with the resource."""
    ref = resource.meta.ref
    return {
        "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
        "metadata": {
            "name": resource.secret, "namespace": ref.namespace,
            "labels": {"app.kubernetes.io/managed-by": "hapax-operator"},
            "annotations": {CREDENTIAL: contents.credential},
            "ownerReferences": [{
                "apiVersion": f"{GROUP}/{VERSION}", "kind": "User", "name": ref.name, "uid": resource.meta.uid,
                "controller": True}],
        },
        "data": {key: _encoded(value) for key, value in contents.data.items()},
    }


def changed_secret(secret: SecretSeen, contents: Contents) -> dict[str, Any]:
    """The merge patch for this version of it."""
    return {
        "metadata": {
            "uid": secret.uid, "resourceVersion": secret.version, "annotations": {CREDENTIAL: contents.credential}},
        "data": {
            **{key: None for key in secret.data if key in _OURS},
            **{key: _encoded(value) for key, value in contents.data.items()}},
    }


def with_password(resource: UserResource, listeners: Listeners, ca: str, password: Password) -> Contents:
    """`ca`: PEM; empty: clients trust the listeners' authority anyway."""
    mechanism = password.mechanism.sasl_name
    jaas = f'{_MODULES}scram.ScramLoginModule required username="{resource.name}" password="{password.text}";'
    data = _profile(listeners.bootstrap, listeners.protocol, ca, {
        "sasl.mechanism": mechanism, "sasl.jaas.config": jaas})
    return Contents({**data, "username": resource.name, "password": password.text}, _password_told(password))


def with_certificate(listeners: Listeners, ca: str, certificate: Certificate) -> Contents:
    data = _profile(listeners.tls_bootstrap, "SSL", ca, {}, {
        "ssl.keystore.type": "PEM", "ssl.keystore.certificate.chain": certificate.chain,
        "ssl.keystore.key": certificate.key})
    return Contents(
        {**data, "tls.crt": certificate.chain, "tls.key": certificate.key}, _certificate_told(certificate))


def with_token(listeners: Listeners, ca: str) -> Contents:
    """For a pod whose token is mounted at `TOKEN_FILE`. There is nothing secret in it."""
    data = _profile(listeners.bootstrap, listeners.protocol, ca, {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.jaas.config": f"{_MODULES}oauthbearer.OAuthBearerLoginModule required;",
    }, {
        "sasl.login.callback.handler.class": f"{_MODULES}oauthbearer.OAuthBearerLoginCallbackHandler",
        "sasl.oauthbearer.token.endpoint.url": f"file://{TOKEN_FILE}"})
    return Contents(data, "")


def _profile(
    bootstrap: str, protocol: str, ca: str, keys: Mapping[str, str], more: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The file `client.properties`, and its settings as keys of their own; `more` is in the file alone."""
    single = {"bootstrap.servers": bootstrap, "security.protocol": protocol, **keys}
    trust = {}
    if ca and protocol in ("SSL", "SASL_SSL"):
        trust = {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": ca}
    lines = {**single, **trust, **(more or {})}
    text = "".join(f"{name}={_escaped(value)}\n" for name, value in lines.items())
    return {**single, "client.properties": text, **({"ca.crt": ca} if trust else {})}


def _escaped(value: str) -> str:
    """As a value of Java's properties."""
    return value.strip().replace("\\", "\\\\").replace("\n", "\\n")


def _encoded(value: str) -> str:
    return base64.b64encode(value.encode()).decode()


def _password_told(password: Password) -> str:
    mechanism, text, rotate, since_ms = password
    return _told({"mechanism": int(mechanism), "rotate": rotate, "since": since_ms}, text)


def _certificate_told(certificate: Certificate) -> str:
    chain, key, name, rotate, since_ms, until_ms, authority = certificate
    return _told(
        {"name": name, "rotate": rotate, "since": since_ms, "until": until_ms, "authority": authority}, chain, key)


def _told(facts: Mapping[str, Any], *secrets: str) -> str:
    digest = hashlib.sha256(json.dumps([facts, secrets], sort_keys=True).encode()).hexdigest()
    return json.dumps({**facts, "digest": digest}, sort_keys=True)
