"""The operator's file (`--access FILE`, JSON): what namespaces may own, and how clients reach the cluster. The chart
writes it from the values `namespacePolicy` and `users`.

    {"namespaces": [
       {"names": ["*"], "topics": ["{namespace}.*"], "groups": ["{namespace}.*"],
        "transactionalIds": ["{namespace}.*"], "users": ["{namespace}.*"]}],
     "reservedPrincipals": ["User:admin"],
     "clients": {
       "bootstrapServers": "hapax.example:9093", "securityProtocol": "SASL_SSL",
       "mechanisms": ["SCRAM-SHA-512", "SCRAM-SHA-256", "OAUTHBEARER"],
       "tlsBootstrapServers": "hapax.example:9094", "caFile": "/etc/hapax/ca.crt",
       "authorityFolder": "/etc/hapax/clients-ca"}}

`clients` is for the profiles in Users' Secrets. Without the file, every namespace may own everything.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hapax_operator.namespace_policy import UNRESTRICTED, BadPolicy, NamespacePolicy, read_policy

_PROTOCOLS: Final = ("SASL_SSL", "SASL_PLAINTEXT")
_MECHANISMS: Final = ("SCRAM-SHA-512", "SCRAM-SHA-256", "OAUTHBEARER")


@dataclass(frozen=True, slots=True)
class Listeners:
    """Where clients log in."""

    bootstrap: str = ""
    """host:port of the listener with SASL; empty: there is none."""
    protocol: str = "SASL_SSL"
    mechanisms: tuple[str, ...] = _MECHANISMS
    """Those that it takes."""
    tls_bootstrap: str = ""
    """Of the listener that takes certificates."""
    ca_file: str = ""
    """PEM of the authority that signed the listeners' certificates. Empty: one that clients trust anyway."""
    authority_folder: str = ""
    """With `ca.crt` and `ca.key` of the authority that signs clients' certificates. Empty: there is none."""


@dataclass(frozen=True, slots=True)
class AccessFile:
    policy: NamespacePolicy = UNRESTRICTED
    listeners: Listeners = Listeners()


def load(path: Path) -> AccessFile:
    """Raises BadPolicy, OSError."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise BadPolicy(f"{path} is not JSON: {error}") from None
    try:
        return read_file(document)
    except BadPolicy as error:
        raise BadPolicy(f"{path}: {error}") from None


def read_file(document: Any) -> AccessFile:
    """Raises BadPolicy."""
    if not isinstance(document, Mapping):
        raise BadPolicy("it must be an object")
    unknown = sorted(str(each) for each in document if each not in ("namespaces", "reservedPrincipals", "clients"))
    if unknown:
        raise BadPolicy(f"unknown key {unknown[0]!r}")
    return AccessFile(read_policy(document), _listeners(document.get("clients") or {}))


def _listeners(clients: Any) -> Listeners:
    names = ("bootstrapServers", "securityProtocol", "tlsBootstrapServers", "caFile", "authorityFolder")
    if not isinstance(clients, Mapping):
        raise BadPolicy("clients must be an object")
    for name, value in clients.items():
        if name not in (*names, "mechanisms"):
            raise BadPolicy(f"clients has the unknown key {name!r}")
        if name in names and not isinstance(value, str):
            raise BadPolicy(f"clients.{name} must be a string")
    protocol = clients.get("securityProtocol") or _PROTOCOLS[0]
    if protocol not in _PROTOCOLS:
        raise BadPolicy(f"clients.securityProtocol is {' or '.join(_PROTOCOLS)}")
    mechanisms = clients.get("mechanisms", list(_MECHANISMS))
    if not isinstance(mechanisms, list) or not set(mechanisms) <= set(_MECHANISMS):
        raise BadPolicy(f"clients.mechanisms are some of {', '.join(_MECHANISMS)}")
    return Listeners(
        clients.get("bootstrapServers", ""), protocol, tuple(mechanisms), clients.get("tlsBootstrapServers", ""),
        clients.get("caFile", ""), clients.get("authorityFolder", ""))
