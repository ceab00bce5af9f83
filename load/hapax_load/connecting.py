"""How the load's clients reach a cluster with TLS and logins: a file as `hapax --command-config` takes it.

HAPAX_COMMAND_CONFIG names it, so that every process of a load has it and no command line shows what is in it.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from hapax.client.credentials import first_line
from hapax.client.jaas import parsed
from hapax.client.properties import read_properties
from hapax.client.settings import SETTINGS

VARIABLE: Final = "HAPAX_COMMAND_CONFIG"
_SAME: Final = frozenset({
    "security.protocol", "sasl.username", "sasl.password", "ssl.ca.location", "ssl.certificate.location",
    "ssl.key.location", "ssl.key.password", "ssl.endpoint.identification.algorithm", "https.ca.location",
    "sasl.oauthbearer.client.id", "sasl.oauthbearer.client.secret", "sasl.oauthbearer.scope",
})
_RENAMED: Final = {
    "sasl.mechanism": "sasl.mechanisms", "sasl.mechanisms": "sasl.mechanisms",
    "ssl.truststore.location": "ssl.ca.location", "ssl.truststore.certificates": "ssl.ca.pem",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem", "ssl.keystore.key": "ssl.key.pem",
    "sasl.oauthbearer.client.credentials.client.id": "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.credentials.client.secret": "sasl.oauthbearer.client.secret",
}
_FIRST_LINES: Final = {
    "sasl.password.file": "sasl.password", "sasl.oauthbearer.client.secret.file": "sasl.oauthbearer.client.secret"}
"""Files that the native client reads for each login, and librdkafka has no setting for: read once."""
_NO_EFFECT: Final = (
    "ssl.truststore.type", "ssl.keystore.type", "sasl.allow.secrets.without.tls", "sasl.login.callback.handler.class")
_PROTECTS: Final = ("ssl.", "sasl.", "security.", "https.")


def native(bootstrap: str) -> dict[str, object]:
    """Of the native client."""
    return {**_given(), "bootstrap.servers": bootstrap}


def librdkafka(bootstrap: str, **more: Any) -> dict[str, Any]:
    return {"bootstrap.servers": bootstrap, **translated(_given()), **more}


@cache
def _read(path: str) -> dict[str, str]:
    return read_properties(Path(path))


def _given() -> dict[str, str]:
    path = os.environ.get(VARIABLE, "")
    return {} if not path else {k: v for k, v in _read(path).items() if k.startswith(_PROTECTS)}


def translated(given: Mapping[str, str]) -> dict[str, Any]:
    """Settings of the native client as librdkafka has them. Raises ValueError for those it has not."""
    found: dict[str, Any] = {}
    for name, value in given.items():
        if name in _SAME:
            found[name] = value
        elif name in _RENAMED:
            found[_RENAMED[name]] = value
        elif name == "ssl.keystore.location":  # one file with certificate and key
            found["ssl.certificate.location"] = found["ssl.key.location"] = value
        elif name == "sasl.jaas.config":
            jaas = parsed(value)
            if jaas.name is not None:
                found["sasl.username"], found["sasl.password"] = jaas.name, jaas.password
            if jaas.client is not None:
                found["sasl.oauthbearer.client.id"] = jaas.client.id
                found["sasl.oauthbearer.client.secret"] = jaas.client.secret
                if jaas.client.scope is not None:
                    found["sasl.oauthbearer.scope"] = jaas.client.scope
        elif name in _FIRST_LINES:
            found[_FIRST_LINES[name]] = first_line(Path(value).read_bytes(), value)
        elif name in ("sasl.oauthbearer.token.file", "sasl.oauthbearer.token.endpoint.url"):
            where = SETTINGS[name].read(value)
            if isinstance(where, str):
                found["oauth_cb"] = _tokens(Path(where))
            else:
                found["sasl.oauthbearer.method"], found["sasl.oauthbearer.token.endpoint.url"] = "oidc", value
        elif name not in _NO_EFFECT:
            raise ValueError(f"{name} is not a setting that the load's clients have")
    if found.get("ssl.endpoint.identification.algorithm") == "":
        found["ssl.endpoint.identification.algorithm"] = "none"
    return found


def _tokens(file: Path) -> Callable[[str], tuple[str, float]]:
    """librdkafka wants to know when a token ends: what the JSON Web Token itself says."""
    def read(config: str) -> tuple[str, float]:
        token = file.read_text(encoding="ascii").strip()
        try:
            claims = token.split(".")[1]
            return token, float(json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))["exp"])
        except (IndexError, KeyError, TypeError, binascii.Error, ValueError):
            raise ValueError(f"{file} holds no JSON Web Token with an end") from None

    return read
