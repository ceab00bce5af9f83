"""Secrets of certificates: what one holds (`observe`), and what it is to hold (`content`).

    NAME.crt, NAME.key                         a leaf and its key
    services-ca.crt, clients-ca.crt            the trusted issuers
    username, password                         of a user
    client.properties, mounted.properties      the user's settings of a client (`certificates_spec`)
    tokens.json                                keys of the API server for the tokens of service accounts (RFC 7517)

The Secret of the issuers has `AUTHORITY.ID.crt` and `AUTHORITY.ID.key` for each, and `state.json`. All files are PEM,
keys are ECDSA on P-256.
"""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import ExtendedKeyUsageOID

from hapax.local.authority import Authority
from hapax_operator.certificates_spec import Spec, client_settings, mounted_settings
from hapax_operator.plan_certificates import (
    AUTHORITIES,
    CLIENTS,
    AddIssuer,
    Forget,
    Holder,
    HolderSeen,
    Issuer,
    IssuerAction,
    KeepTrusting,
    Leaf,
    LeafSeen,
    MarkTrusted,
    MarkUnused,
    Use,
)

Data = dict[str, bytes]
"""Files of a Secret."""
STATE: Final = "state.json"
TOKENS: Final = "tokens.json"
ROTATE: Final = "hapax.dev/rotate-"
"""Before an authority: an annotation of the issuers' Secret. Another value than before asks for a new issuer."""
_PASSWORD_BYTES: Final = 24
_SPLIT: Final = b"-----END CERTIFICATE-----\n"


def decoded(body: Mapping[str, Any]) -> Data:
    """The files of a Secret's body. What is no base64 cannot be there."""
    return {name: base64.b64decode(value) for name, value in (body.get("data") or {}).items()}


def encoded(data: Mapping[str, bytes]) -> dict[str, str]:
    return {name: base64.b64encode(value).decode() for name, value in sorted(data.items())}


# --- certificates -------------------------------------------------------------------------------------------------


def issuer_id(certificate: x509.Certificate) -> str:
    """Of an issuer's own certificate."""
    return certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value.digest.hex()


def leaf_seen(chain: bytes, key: bytes) -> LeafSeen | None:
    """None: it cannot be read, or the key is another's."""
    try:
        certificate = x509.load_pem_x509_certificate(chain)
        private = serialization.load_pem_private_key(key, None)
        form = (serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
        if private.public_key().public_bytes(*form) != certificate.public_key().public_bytes(*form):
            return None
        issuer = certificate.extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value.key_identifier
        uses = set(certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)
        signs = _signs(certificate)
    except (ValueError, TypeError, x509.ExtensionNotFound):
        return None
    serves, connects = ExtendedKeyUsageOID.SERVER_AUTH in uses, ExtendedKeyUsageOID.CLIENT_AUTH in uses
    use: Use = "both" if serves and connects else "server" if serves else "client"
    return LeafSeen(
        (issuer or b"").hex(), certificate.subject.rfc4514_string(), _names(certificate), use,
        int(certificate.not_valid_before_utc.timestamp()), int(certificate.not_valid_after_utc.timestamp()),
        certificate.serial_number, signs)


def _signs(certificate: x509.Certificate) -> bool:
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return False


def _names(certificate: x509.Certificate) -> frozenset[str]:
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return frozenset()
    return frozenset(str(each.value) for each in found)


def bundle_seen(pem: bytes) -> dict[str, bytes]:
    """Issuers of a file of trusted ones: id -> PEM. What cannot be read is left out."""
    found = {}
    for part in pem.split(_SPLIT):
        if part.strip():
            try:
                found[issuer_id(x509.load_pem_x509_certificate(part + _SPLIT))] = part.lstrip() + _SPLIT
            except (ValueError, x509.ExtensionNotFound):
                continue
    return found


# --- the issuers' Secret ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Issuers:
    """The issuers and the keeper's state."""

    known: Mapping[str, tuple[Issuer, ...]] = field(default_factory=dict)
    files: Data = field(default_factory=dict)
    store_ready: bool = False
    answered: Mapping[str, str] = field(default_factory=dict)
    """Authority -> the value of its annotation that was followed last."""

    @classmethod
    def read(cls, data: Data) -> Issuers:
        """Raises ValueError: the Secret is damaged, and what it held must not be replaced."""
        if not data:
            return cls()
        try:
            state = json.loads(data[STATE])
            if state["v"] != 1:
                raise ValueError(f"{STATE} is of version {state['v']}")
            known = {
                authority: tuple(_issuer(data, authority, each) for each in entries)
                for authority, entries in state["issuers"].items()}
            files = {name: content for name, content in data.items() if name != STATE}
            return cls(known, files, bool(state["store_ready"]), dict(state["answered"]))
        except (KeyError, TypeError, AttributeError, x509.ExtensionNotFound) as error:
            raise ValueError(f"the Secret of the issuers cannot be read: {error!r}") from None

    def data(self) -> Data:
        state = {
            "v": 1, "store_ready": self.store_ready, "answered": dict(self.answered),
            "issuers": {authority: [
                {"id": each.id, "trusted_at": each.trusted_at, "unused_at": each.unused_at} for each in entries]
                for authority, entries in self.known.items()},
        }
        return {**self.files, STATE: json.dumps(state, indent=1, sort_keys=True).encode()}

    def with_store_ready(self) -> Issuers:
        return replace(self, store_ready=True)

    def bundle(self, authority: str) -> bytes:
        """The file of trusted issuers."""
        return b"".join(self.files[f"{authority}.{each.id}.crt"] for each in self.known.get(authority, ()))

    def authority(self, authority: str, issuer: Issuer) -> Authority:
        name = f"{authority}.{issuer.id}"
        return Authority.read(self.files[f"{name}.crt"], self.files[f"{name}.key"])

    def asked(self, annotations: Mapping[str, str]) -> frozenset[str]:
        """Authorities for which somebody wants a new issuer."""
        return frozenset(
            each for each in AUTHORITIES
            if annotations.get(ROTATE + each, "") not in ("", self.answered.get(each, "")))

    def changed(
        self, actions: Sequence[IssuerAction], spec: Spec, now: int, found: Mapping[str, bytes],
        annotations: Mapping[str, str],
    ) -> Issuers:
        """After the actions. `found`: certificates of issuers, by id, that are in other Secrets."""
        after = self
        for action in actions:
            after = after._after(action, spec, now, found, annotations)
        return after

    def _after(
        self, action: IssuerAction, spec: Spec, now: int, found: Mapping[str, bytes], annotations: Mapping[str, str]
    ) -> Issuers:
        authority = action.authority
        entries = self.known.get(authority, ())
        files = dict(self.files)
        answered = self.answered
        match action:
            case AddIssuer(_, trusted, known):
                if known:
                    certificate = found[known]
                else:
                    made = Authority.make(
                        f"Hapax {spec.cluster} {authority}", valid=timedelta(seconds=spec.authority_s))
                    certificate, known = made.certificate, issuer_id(x509.load_pem_x509_certificate(made.certificate))
                    files[f"{authority}.{known}.key"] = made.key
                    if asked := annotations.get(ROTATE + authority):
                        answered = {**answered, authority: asked}
                files[f"{authority}.{known}.crt"] = certificate
                entries = (*entries, replace_times(certificate, Issuer(known, 0, 0, 0 if trusted else None)))
            case KeepTrusting(_, known):
                files[f"{authority}.{known}.crt"] = found[known]
                entries = (*entries, replace_times(found[known], Issuer(known, 0, 0, now, signs=False)))
            case MarkTrusted(_, known):
                entries = tuple(each._replace(trusted_at=now) if each.id == known else each for each in entries)
            case MarkUnused(_, known, unused):
                entries = tuple(
                    each._replace(unused_at=now if unused else None) if each.id == known else each for each in entries)
            case Forget(_, known):
                entries = tuple(each for each in entries if each.id != known)
                for suffix in ("crt", "key"):
                    files.pop(f"{authority}.{known}.{suffix}", None)
        return replace(self, known={**self.known, authority: entries}, files=files, answered=answered)


def _issuer(data: Data, authority: str, entry: Mapping[str, Any]) -> Issuer:
    name = f"{authority}.{entry['id']}"
    issuer = Issuer(
        str(entry["id"]), 0, 0, entry["trusted_at"], entry["unused_at"], f"{name}.key" in data)
    return replace_times(data[f"{name}.crt"], issuer)


def replace_times(certificate: bytes, issuer: Issuer) -> Issuer:
    found = x509.load_pem_x509_certificate(certificate)
    return issuer._replace(
        since=int(found.not_valid_before_utc.timestamp()), until=int(found.not_valid_after_utc.timestamp()))


# --- holders ------------------------------------------------------------------------------------------------------


def holder_seen(holder: Holder, spec: Spec, data: Data, tokens: bytes | None = None) -> HolderSeen:
    """`tokens`: the API server's keys; None: they are not known now, and those that the holder has stay."""
    leaves = {}
    for leaf in holder.leaves:
        found = leaf_seen(data.get(f"{leaf.name}.crt", b""), data.get(f"{leaf.name}.key", b""))
        if found is not None:
            leaves[leaf.name] = found
    trusted = {each: frozenset(bundle_seen(data.get(f"{each}-ca.crt", b""))) for each in AUTHORITIES}
    complete = not holder.user or _complete(holder, spec, data)
    if holder.tokens and tokens is not None:
        complete &= data.get(TOKENS) == tokens
    return HolderSeen(leaves, trusted, complete)


def _complete(holder: Holder, spec: Spec, data: Data) -> bool:
    try:
        return bool(data["password"]) and data.items() >= _user_files(holder.user, spec, data).items()
    except (KeyError, UnicodeDecodeError):
        return False


def content(
    holder: Holder, spec: Spec, issuers: Issuers, present: Data, issue: Iterable[str],
    signers: Mapping[str, Issuer | None], offers: Mapping[tuple[str, str], tuple[bytes, bytes]], now: int,
    tokens: bytes | None = None,
) -> Data:
    """The files of the holder. Leaves that are not in `issue` stay. `offers`: certificates and keys of another system;
    the others are issued here. `tokens`: as of `holder_seen`."""
    fresh = set(issue)
    data: Data = {}
    for leaf in holder.leaves:
        files = (f"{leaf.name}.crt", f"{leaf.name}.key")
        if leaf.name not in fresh:
            data |= {name: present[name] for name in files}
            continue
        offer = offers.get((holder.name, leaf.name))
        if offer is None:
            signing = signers[leaf.authority]
            assert signing is not None
            offer = issuers.authority(leaf.authority, signing).issue(
                leaf.subject, sorted(leaf.names), use=leaf.use, signs=leaf.signs,
                valid=timedelta(seconds=_valid_s(leaf, signing, spec, now)), since=datetime.fromtimestamp(now, UTC))
        data |= dict(zip(files, offer, strict=True))
    for each in AUTHORITIES:
        data[f"{each}-ca.crt"] = issuers.bundle(each)
    if holder.tokens and (keys := present.get(TOKENS) if tokens is None else tokens) is not None:
        data[TOKENS] = keys
    if holder.user:
        data["username"] = holder.user.encode()
        data["password"] = present.get("password") or secrets.token_urlsafe(_PASSWORD_BYTES).encode()
        data |= _user_files(holder.user, spec, data)
    return data


def _valid_s(leaf: Leaf, signing: Issuer, spec: Spec, now: int) -> int:
    """An authority lasts as long as the one that signs it: what it signs ends with it."""
    return max(signing.until - now, 1) if leaf.signs else spec.certificate_s


def _user_files(user: str, spec: Spec, data: Data) -> Data:
    """Raises KeyError, UnicodeDecodeError."""
    password = data["password"].decode()
    return {
        "username": user.encode(),
        "client.properties": client_settings(
            spec, user, password, data["user.crt"].decode(), data["user.key"].decode(),
            data[f"{CLIENTS}-ca.crt"].decode()).encode(),
        "mounted.properties": mounted_settings(spec, user, password).encode(),
    }


