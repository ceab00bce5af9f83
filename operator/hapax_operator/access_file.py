"""The operator's file (`--access FILE`, JSON): what namespaces may own, how clients reach the cluster, and what copiers
of Mirrors are. The chart writes it from the values `namespacePolicy`, `users` and `image`.

    {"namespaces": [
       {"names": ["*"], "topics": ["{namespace}.*"], "groups": ["{namespace}.*"],
        "transactionalIds": ["{namespace}.*"], "users": ["{namespace}.*"]}],
     "reservedPrincipals": ["User:admin"],
     "clients": {
       "bootstrapServers": "hapax.example:9093", "securityProtocol": "SASL_SSL",
       "mechanisms": ["SCRAM-SHA-512", "SCRAM-SHA-256", "OAUTHBEARER"],
       "tlsBootstrapServers": "hapax.example:9094", "caFile": "/etc/hapax/ca.crt",
       "authorityFolder": "/etc/hapax/clients-ca"},
     "copiers": {
       "bootstrapServers": "hapax.hapax.svc:9092", "image": "registry.example/hapax:1",
       "imagePullPolicy": "IfNotPresent", "imagePullSecrets": []}}

`clients` is for the profiles in Users' Secrets; `copiers` has the cluster's address and the image for Mirrors. Without
the file, every namespace may own everything.
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
class Copiers:
    """What Mirrors are carried out with, unless they say otherwise."""

    bootstrap: str = ""
    """Of this cluster, within Kubernetes; empty: unknown."""
    image: str = ""
    pull_policy: str = "IfNotPresent"
    pull_secrets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AccessFile:
    policy: NamespacePolicy = UNRESTRICTED
    listeners: Listeners = Listeners()
    copiers: Copiers = Copiers()


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
    known = ("namespaces", "reservedPrincipals", "clients", "copiers")
    unknown = sorted(str(each) for each in document if each not in known)
    if unknown:
        raise BadPolicy(f"unknown key {unknown[0]!r}")
    return AccessFile(
        read_policy(document), _listeners(document.get("clients") or {}), _copiers(document.get("copiers") or {}))


def _copiers(copiers: Any) -> Copiers:
    if not isinstance(copiers, Mapping):
        raise BadPolicy("copiers must be an object")
    for name, value in copiers.items():
        if name not in ("bootstrapServers", "image", "imagePullPolicy", "imagePullSecrets"):
            raise BadPolicy(f"copiers has the unknown key {name!r}")
        if not isinstance(value, list if name == "imagePullSecrets" else str):
            raise BadPolicy(f"copiers.{name} must be a {'list' if name == 'imagePullSecrets' else 'string'}")
    return Copiers(
        copiers.get("bootstrapServers", ""), copiers.get("image", ""), copiers.get("imagePullPolicy") or "IfNotPresent",
        tuple(str(each) for each in copiers.get("imagePullSecrets") or ()))


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
