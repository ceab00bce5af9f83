"""Carries out a User's plan: in the cluster by the controller's calls, under the resource's name as the owner, and in
its Secret."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from hapax.core.access.bindings import Filter
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.quota.entities import USER, entity_of
from hapax.core.sasl.scram_keys import keys_of, salted_password
from hapax.local.authority import Authority
from hapax.rpc.gen.hapax.internal.v1 import controller_pb2 as pb
from hapax.runtime.administration import Administration
from hapax.runtime.asker import Asker
from hapax_operator.api import KubeApi
from hapax_operator.plan_user import (
    Action,
    AuthoritySeen,
    DeleteSecret,
    Issue,
    RemovePassword,
    SetBindings,
    SetPassword,
    SetQuotas,
    UserSeen,
    WriteSecret,
)
from hapax_operator.user_resource import UserResource
from hapax_operator.user_secret import Certificate, Contents, SecretSeen, changed_secret, new_secret, with_certificate

_TIMEOUT_MS: Final = 20_000
_ITERATIONS: Final = 4096
"""The password is random: more of them would protect it no better."""
_SALT_LETTERS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
_SALT_LENGTH: Final = 26
"""As Kafka's tools make it, so that a user is not told apart by the salt."""
_PASSWORD_BYTES: Final = 32
_DAY_MS: Final = 86_400_000


def fresh_password() -> str:
    return secrets.token_urlsafe(_PASSWORD_BYTES)


class ClientAuthority(NamedTuple):
    """Signs certificates of clients."""

    authority: Authority
    seen: AuthoritySeen
    chain: bytes
    """PEM of what lies between a certificate and the authority that the listeners trust; empty: nothing."""


def read_authority(folder: Path | None) -> ClientAuthority | None:
    """From `ca.crt` and `ca.key` of the folder; None: they are not there, or cannot be used together."""
    if folder is None:
        return None
    try:
        pem = (folder / "ca.crt").read_bytes()
        certificate = x509.load_pem_x509_certificate(pem)
        key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
    except (OSError, ValueError, TypeError):
        return None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        return None
    digest = hashlib.sha256(certificate.public_bytes(serialization.Encoding.DER)).hexdigest()
    until_ms = int(certificate.not_valid_after_utc.timestamp() * 1000)
    chain = b"" if certificate.issuer == certificate.subject else pem
    return ClientAuthority(Authority(certificate, key), AuthoritySeen(digest, until_ms), chain)


async def apply_to_user(
    administration: Administration, api: KubeApi, resource: UserResource, action: Action, seen: UserSeen,
    authority: ClientAuthority | None, now_ms: int,
) -> bool:
    """False: a Secret has changed since it was read. Raises Refusal, KubeRefused, KubeUnavailable."""
    match action:
        case WriteSecret(contents, over):
            return await _write(api, resource, contents, over)
        case Issue(name, days, rotate, over):
            assert authority is not None
            made = await asyncio.to_thread(_issued, authority, name, days, rotate, now_ms)
            return await _write(api, resource, with_certificate(seen.listeners, seen.ca or "", made), over)
        case DeleteSecret(uid):
            await api.end(secret_path(resource), uid)
        case _:
            await apply_to_cluster(administration, resource.owner, action)
    return True


async def apply_to_cluster(administration: Administration, owner: str, action: Action) -> None:
    """An action that does not concern a Secret. In the audit log it is the owner's. Raises Refusal."""
    administration = administration.by(Asker(f"hapax-operator for {owner}", "", "User"))
    match action:
        case SetBindings(add, remove):
            answer = await administration.alter_acls(
                _TIMEOUT_MS, add=add, remove=[Filter(*each) for each in remove], owner=owner)
            for added in answer.added:
                _check(added.error, added.reason)
            for removed in answer.removed:
                _check(removed.error, removed.reason)
                for acl in removed.acls:
                    _check(acl.error, acl.reason)
        case SetQuotas(user, changes):
            (altered,) = await administration.alter_quotas(
                [(entity_of({USER: user}), changes)], _TIMEOUT_MS, owner=owner)
            _check(altered.error, altered.reason)
        case SetPassword(user, mechanism, password):
            salt = "".join(secrets.choice(_SALT_LETTERS) for _ in range(_SALT_LENGTH)).encode()
            salted = await asyncio.to_thread(salted_password, mechanism, password, salt, _ITERATIONS)
            stored_key, server_key = keys_of(mechanism, salted)
            change = pb.ScramChange(
                user=user, mechanism=mechanism, salt=salt, stored_key=stored_key, server_key=server_key,
                iterations=_ITERATIONS)
            await _alter(administration, owner, change)
        case RemovePassword(user, mechanism):
            await _alter(administration, owner, pb.ScramChange(user=user, mechanism=mechanism, remove=True))


async def _alter(administration: Administration, owner: str, change: pb.ScramChange) -> None:
    (result,) = await administration.alter_scram_credentials([change], _TIMEOUT_MS, owner)
    if not (change.remove and result.error == ErrorCode.RESOURCE_NOT_FOUND):
        _check(result.error, result.reason)


async def _write(api: KubeApi, resource: UserResource, contents: Contents, over: SecretSeen | None) -> bool:
    if over is None:
        collection = secret_path(resource).rpartition("/")[0]
        await api.create(collection, new_secret(resource, contents))
        return True  # one that was made meanwhile is seen in the next look
    return await api.merge(secret_path(resource), changed_secret(over, contents))


def secret_path(resource: UserResource) -> str:
    return f"/api/v1/namespaces/{resource.meta.ref.namespace}/secrets/{resource.secret}"


def _issued(authority: ClientAuthority, name: str, days: int, rotate: str, now_ms: int) -> Certificate:
    since = datetime.fromtimestamp(now_ms / 1000, UTC)
    until_ms = min(now_ms + days * _DAY_MS, authority.seen.until_ms)
    valid = timedelta(milliseconds=until_ms - now_ms)
    certificate, key = authority.authority.issue(f"CN={name}", use="client", valid=valid, since=since)
    chain = (certificate + authority.chain).decode()
    return Certificate(chain, key.decode(), name, rotate, now_ms, until_ms, authority.seen.digest)


def _check(error: int, reason: str) -> None:
    if error:
        raise Refusal(ErrorCode(error), reason)
