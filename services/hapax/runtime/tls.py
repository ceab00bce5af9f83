"""Certificates, keys and authorities of TLS: read from PEM, checked, and replaced while connections are open.

Names and formats are Kafka's (KIP-651): PEM text in a setting, or files. `TlsCertificates` holds what one listener or
one client uses. `reload` reads again, and replaces it only with what is proven: the key belongs to the certificate, the
chain is whole and not expired, the name has not changed, and a handshake in memory succeeds. Otherwise the present
certificate goes on, and the reason is kept for the metric and the log. So two files that are replaced one after the
other do no harm: between the two writes the pair does not match, and nothing changes.

Connections use the context that was current when their handshake began. Sessions are not resumed: a ticket would die
with its context, and a resumed session would skip the check of the client's certificate.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import ssl
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import serialization

from hapax.runtime import telemetry
from hapax.runtime.ports import HandshakeOutcome
from hapax.runtime.security_settings import SecuritySettings

log = telemetry.logger("tls")

VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_PEM: Final = re.compile(r"(-----BEGIN [A-Z0-9 ]+-----)([A-Za-z0-9+/=\s]+)(-----END [A-Z0-9 ]+-----)\s*")
_CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""For TLS 1.2: only forward secrecy and authenticated encryption. TLS 1.3 has nothing else."""


class TlsError(Exception):
    """Certificates, keys or authorities that cannot be used; the message says which and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsOptions:
    """Where the parts are. A text takes precedence over a file. Empty: not given."""

    chain: str = ""
    """PEM of the certificate, followed by those of its issuers."""
    key: str = ""
    """PEM of the private key."""
    key_password: str = ""
    keystore_location: str = ""
    """File with both chain and key."""
    chain_location: str = ""
    key_location: str = ""
    authorities: str = ""
    """PEM of the certificates that peers' certificates must be issued by."""
    authorities_location: str = ""
    versions: tuple[str, ...] = tuple(VERSIONS)
    client_auth: Literal["none", "requested", "required"] = "none"
    """Of a server: whether clients must have a certificate."""
    verify_host: bool = True
    """Of a client: whether the server's certificate must name the host that is connected to."""
    allow_dn_changes: bool = False
    allow_san_changes: bool = False

    @classmethod
    def of(cls, settings: SecuritySettings) -> TlsOptions:
        """Of a listener of clients."""
        return cls(
            chain=pem_text(settings.ssl_keystore_certificate_chain), key=pem_text(settings.ssl_keystore_key),
            key_password=settings.ssl_key_password or "", keystore_location=settings.ssl_keystore_location or "",
            chain_location=settings.ssl_certificate_location or "", key_location=settings.ssl_key_location or "",
            authorities=pem_text(settings.ssl_truststore_certificates),
            authorities_location=settings.ssl_truststore_location or "",
            versions=tuple(each.strip() for each in settings.ssl_enabled_protocols.split(",")),
            client_auth=settings.ssl_client_auth,
            allow_dn_changes=settings.ssl_allow_dn_changes, allow_san_changes=settings.ssl_allow_san_changes,
        )


class Material(NamedTuple):
    """What `TlsOptions` lead to at one moment."""

    chain: bytes
    key: bytes
    authorities: bytes


class TlsCertificates:
    """`ports.TlsContexts` of one listener or one client."""

    def __init__(
        self, options: TlsOptions, side: Literal["server", "client"], name: str = "",
        fits: Callable[[bytes], None] = lambda certificate: None,
    ) -> None:
        """Raises TlsError. `name`: of the listener, for messages. `fits`: raises ValueError for a certificate (DER)
        that this process cannot show. A certificate that has expired is accepted here, with a log line: a node that
        restarts must not be worse off than one that runs."""
        self.name = name
        self.outcomes: Counter[HandshakeOutcome] = Counter()
        """Handshakes by outcome."""
        self.reloads = 0
        """Certificates replaced since the start."""
        self.refused_reloads = 0
        """Replacements that were refused. One set of files counts once."""
        self.refusal: str | None = None
        """Why the files as they are now are not used; None: they are."""
        self._options = options
        self._side: Final = side
        self._fits = fits
        self._material = read_material(options)
        self._refused: Material | None = None
        self._certificates = _parsed(self._material, options)
        self._check_fits(self._certificates)
        self._context = make_context(options, self._material, self._certificates, side)
        if self._certificates and (fault := _outside_validity(self._certificates, datetime.now(UTC))):
            log.error("the certificate of a listener is not valid", listener=name, reason=fault)

    def context(self) -> ssl.SSLContext:
        return self._context

    def handshake_ended(self, outcome: HandshakeOutcome) -> None:
        self.outcomes[outcome] += 1

    def check(self, certificate: bytes) -> None:
        """Nothing: OpenSSL has checked what there is to check."""

    @property
    def client_auth(self) -> str:
        return self._options.client_auth

    @property
    def pem(self) -> Material:
        """What is in use; the key without what else its file may hold."""
        return self._material._replace(key=_only_key(self._material.key))

    @property
    def der(self) -> bytes:
        """The certificate that peers are shown; empty: none."""
        return self._certificates[0].public_bytes(serialization.Encoding.DER) if self._certificates else b""

    @property
    def expires(self) -> datetime | None:
        """When the first certificate of the chain expires; None: there is none."""
        return min((each.not_valid_after_utc for each in self._certificates), default=None)

    def listening_context(self) -> ssl.SSLContext:
        """For a server of another library, which takes one context for all its life: each handshake gets the one that
        is current."""
        context = make_context(self._options, self._material, self._certificates, self._side)

        def swap(tls: ssl.SSLObject, name: str | None, former: ssl.SSLContext) -> None:
            tls.context = self._context

        context.sni_callback = swap  # type: ignore[assignment]
        return context

    def reload(self, now: datetime | None = None) -> bool:
        """Reads again. True: another certificate or other authorities serve from now on. Never raises: what cannot be
        used is logged and counted, once for each content. Takes some milliseconds; may run in a thread."""
        fresh: Material | None = None
        try:
            fresh = read_material(self._options)
            if fresh == self._material:
                self.refusal = self._refused = None
                return False
            # Also what was refused before: a certificate may have been valid only from a moment later on, or this
            # clock was wrong.
            certificates = _parsed(fresh, self._options)
            if certificates and (fault := _outside_validity(certificates, now or datetime.now(UTC))):
                raise TlsError(fault)
            self._check_unchanged_names(certificates)
            self._check_fits(certificates)
            context = make_context(self._options, fresh, certificates, self._side)
        except Exception as error:  # what reads certificates has exceptions of several libraries
            told = fresh == self._refused if fresh is not None else self.refusal == str(error)
            self.refusal, self._refused = str(error), fresh
            if told:
                return False
            self.refused_reloads += 1
            log.error("new certificates are not used; the present ones stay", listener=self.name, reason=str(error))
            return False
        self._material, self._certificates, self._context = fresh, certificates, context
        self.refusal = self._refused = None
        self.reloads += 1
        log.info("new certificates are in use", listener=self.name, expires=str(self.expires))
        return True

    async def reload_aside(self) -> None:
        """`reload` in a thread: it takes longer than the loop may be held."""
        await asyncio.to_thread(self.reload)

    def days_left(self, now: datetime | None = None) -> float:
        """Until the first certificate of the chain expires; negative: since then."""
        expires = self.expires
        return 0.0 if expires is None else (expires - (now or datetime.now(UTC))).total_seconds() / 86_400

    def _check_fits(self, certificates: list[x509.Certificate]) -> None:
        try:
            self._fits(certificates[0].public_bytes(serialization.Encoding.DER) if certificates else b"")
        except ValueError as error:
            raise TlsError(str(error)) from None

    def _check_unchanged_names(self, fresh: list[x509.Certificate]) -> None:
        """As Kafka: clients and ACLs know a node by its name, so a certificate of another name is a mistake."""
        former = self._certificates
        if not former or not fresh:
            return
        if not self._options.allow_dn_changes and former[0].subject != fresh[0].subject:
            raise TlsError(
                f"the certificate's name changes from {former[0].subject.rfc4514_string()} to"
                f" {fresh[0].subject.rfc4514_string()} (ssl.allow.dn.changes=true would allow it)")
        lost = _alternative_names(former[0]) - _alternative_names(fresh[0])
        if lost and not self._options.allow_san_changes:
            raise TlsError(
                f"the new certificate lacks the names {', '.join(sorted(lost))}"
                " (ssl.allow.san.changes=true would allow it)")


def pem_text(text: str | None) -> str:
    """PEM from a setting, where a line break may be written `\\n` or be a space, as in Kafka's own settings."""
    return _PEM.sub(_with_line_breaks, (text or "").replace("\\n", "\n"))


def _with_line_breaks(found: re.Match[str]) -> str:
    head, body, foot = found.groups()
    return f"{head}\n" + "\n".join(body.split()) + f"\n{foot}\n"


def read_material(options: TlsOptions) -> Material:
    """Raises TlsError where a file cannot be read, or is empty: while it is written in place, what is missing must not
    stand for "trust the system's authorities", or "show no certificate"."""
    both = _read(options.keystore_location)
    return Material(
        chain=options.chain.encode() or _read(options.chain_location) or both,
        key=options.key.encode() or _read(options.key_location) or both,
        authorities=options.authorities.encode() or _read(options.authorities_location),
    )


def _read(location: str) -> bytes:
    if not location:
        return b""
    try:
        content = Path(location).read_bytes()
    except OSError as error:
        raise TlsError(f"{location}: {error.strerror or error}") from None
    if not content.strip():
        raise TlsError(f"{location}: the file is empty")
    return content


def _parsed(material: Material, options: TlsOptions) -> list[x509.Certificate]:
    """The chain, after a check that it is one and that the key belongs to it; [] where none is given."""
    if not material.chain and not material.key:
        return []
    if not material.chain or not material.key:
        raise TlsError("a certificate and its key must be given together")
    try:
        chain = x509.load_pem_x509_certificates(material.chain)
    except ValueError as error:
        raise TlsError(f"the certificate is not PEM: {error}") from None
    try:
        password = options.key_password.encode() or None
        key = serialization.load_pem_private_key(_only_key(material.key), password)
    except (ValueError, TypeError) as error:
        raise TlsError(f"the private key cannot be read: {error}") from None
    form = (serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    if key.public_key().public_bytes(*form) != chain[0].public_key().public_bytes(*form):
        raise TlsError("the private key does not belong to the certificate")
    for lower, upper in itertools.pairwise(chain):
        try:
            lower.verify_directly_issued_by(upper)
        except Exception as error:  # the library raises several types, InvalidSignature among them
            raise TlsError(
                f"{lower.subject.rfc4514_string()} is not issued by the next certificate of the chain,"
                f" {upper.subject.rfc4514_string()}: {error or type(error).__name__}") from None
    return chain


def _only_key(pem: bytes) -> bytes:
    """The key's part of a file that may hold certificates as well."""
    begin = pem.find(b"PRIVATE KEY-----")
    begin = pem.rfind(b"-----BEGIN ", 0, begin) if begin >= 0 else -1
    end = pem.find(b"PRIVATE KEY-----", pem.find(b"-----END ", begin))
    return pem[begin : end + len(b"PRIVATE KEY-----")] + b"\n" if 0 <= begin < end else pem


def _outside_validity(chain: list[x509.Certificate], now: datetime) -> str:
    for each in chain:
        if now > each.not_valid_after_utc:
            return f"the certificate {each.subject.rfc4514_string()} expired at {each.not_valid_after_utc}"
        if now < each.not_valid_before_utc:
            return f"the certificate {each.subject.rfc4514_string()} is valid from {each.not_valid_before_utc}"
    return ""


def _alternative_names(certificate: x509.Certificate) -> set[str]:
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return set()
    return {str(each.value) for each in found.value}


# --- contexts -----------------------------------------------------------------------------------------------------


def make_context(
    options: TlsOptions, material: Material, chain: list[x509.Certificate], side: Literal["server", "client"]
) -> ssl.SSLContext:
    """Raises TlsError. A server's context has proven itself by a handshake in memory."""
    if side == "server" and not chain:
        raise TlsError("a listener with TLS needs a certificate (ssl.keystore.certificate.chain or a location)")
    if side == "server" and options.client_auth != "none" and not material.authorities:
        raise TlsError(f"ssl.client.auth={options.client_auth} needs ssl.truststore.certificates or its location")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if side == "server" else ssl.PROTOCOL_TLS_CLIENT)
    try:
        chosen = [VERSIONS[name] for name in options.versions]
        context.minimum_version, context.maximum_version = min(chosen), max(chosen)
        context.set_ciphers(_CIPHERS)
        context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
        if side == "server":
            context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
            context.num_tickets = 0
        if chain:
            password = options.key_password or None
            with _file(material.chain) as certificate, _file(_only_key(material.key)) as key:
                context.load_cert_chain(certificate, key, (lambda: password or ""))
        if material.authorities:
            # An authority may be an intermediate one, as in Java.
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
            context.load_verify_locations(cadata=material.authorities.decode("ascii"))
        elif side == "client":
            context.load_default_certs()
    except (ssl.SSLError, OSError, ValueError) as error:
        raise TlsError(f"OpenSSL refuses them: {error}") from None
    if side == "server":
        _prove(context)
        context.verify_mode = {
            "none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED,
        }[options.client_auth]
    else:
        context.check_hostname = options.verify_host
        if chain:
            _prove(_as_server(context, options, material))
    return context


def _as_server(client: ssl.SSLContext, options: TlsOptions, material: Material) -> ssl.SSLContext:
    """A client's certificate, shown by a server: so that a handshake in memory can prove it too."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version, context.maximum_version = client.minimum_version, client.maximum_version
    with _file(material.chain) as certificate, _file(_only_key(material.key)) as key:
        context.load_cert_chain(certificate, key, (lambda: options.key_password))
    return context


@contextmanager
def _file(content: bytes) -> Iterator[str]:
    """A file for OpenSSL, which reads keys from nothing else. It is in memory where the system can."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("pem", os.MFD_CLOEXEC)
        try:
            os.write(descriptor, content)
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
    else:
        with tempfile.NamedTemporaryFile() as file:  # its mode is 0600
            file.write(content)
            file.flush()
            yield file.name


def _prove(context: ssl.SSLContext) -> None:
    """A whole handshake with a client that believes everything. Raises TlsError."""
    believer = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    believer.check_hostname = False
    believer.verify_mode = ssl.CERT_NONE
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = believer.wrap_bio(back, there, server_side=False)
    server = context.wrap_bio(there, back, server_side=True)
    left = {"client": client, "server": server}
    for _ in range(8):
        for name, side in list(left.items()):
            try:
                side.do_handshake()
                del left[name]
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError as error:
                raise TlsError(f"a handshake with them fails: {error}") from None
        if not left:
            return
    raise TlsError("a handshake with them does not end")
