"""A certificate authority of one's own: for a cluster on one machine, and for tests.

Keys are ECDSA on P-256: a server's handshake with one costs a third of RSA-2048's.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, Literal, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

Use = Literal["server", "client", "both"]

_SKEW: Final = timedelta(minutes=5)
"""Clocks may differ: a certificate is valid from a little earlier on."""
_USES: Final = {
    "server": [ExtendedKeyUsageOID.SERVER_AUTH],
    "client": [ExtendedKeyUsageOID.CLIENT_AUTH],
    "both": [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH],
}


class Issued(NamedTuple):
    """A certificate and its key, PEM."""

    certificate: bytes
    key: bytes

    def write(self, folder: Path, name: str) -> tuple[Path, Path]:
        """Writes `NAME.crt` and `NAME.key`, the latter readable by its owner alone. Returns both paths."""
        certificate, key = folder / f"{name}.crt", folder / f"{name}.key"
        replace_file(key, self.key, mode=0o600)
        replace_file(certificate, self.certificate)
        return certificate, key


class Authority:
    """Issues certificates."""

    def __init__(self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self._certificate = certificate
        self._key = key

    @classmethod
    def make(cls, name: str = "Hapax local authority", *, valid: timedelta = timedelta(days=3650)) -> Authority:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        return cls(_builder(subject, subject, key.public_key(), datetime.now(UTC), valid)
                   .add_extension(x509.BasicConstraints(ca=True, path_length=1), critical=True)
                   .add_extension(_key_usage(signs_certificates=True), critical=True)
                   .sign(key, hashes.SHA256()), key)

    @classmethod
    def read(cls, certificate: bytes, key: bytes) -> Authority:
        """`certificate` and `key`: PEM, as `certificate` and `key` of one that was made. Raises ValueError."""
        private = serialization.load_pem_private_key(key, None)
        if not isinstance(private, ec.EllipticCurvePrivateKey):
            raise ValueError("the authority's key is not of an elliptic curve")
        return cls(x509.load_pem_x509_certificate(certificate), private)

    @property
    def certificate(self) -> bytes:
        """PEM."""
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def key(self) -> bytes:
        """PEM. Who has it can issue."""
        return key_pem(self._key)

    def issue(
        self,
        subject: str,
        hosts: Sequence[str] = (),
        *,
        use: Use = "both",
        valid: timedelta = timedelta(days=90),
        since: datetime | None = None,
        key: ec.EllipticCurvePrivateKey | None = None,
        signs: bool = False,
    ) -> Issued:
        """`subject`: RFC 4514, such as `CN=alice,O=shop`. `hosts`: names and IP addresses that it may serve under,
        and URIs that it bears. `signs`: it is an authority of its own, whose certificates have this `use` alone and
        can sign nothing more."""
        key = key or ec.generate_private_key(ec.SECP256R1())
        builder = (
            _builder(x509.Name.from_rfc4514_string(subject), self._certificate.subject, key.public_key(),
                     since or datetime.now(UTC), valid)
            .add_extension(x509.BasicConstraints(ca=signs, path_length=0 if signs else None), critical=True)
            .add_extension(_key_usage(signs_certificates=signs), critical=True)
            .add_extension(x509.ExtendedKeyUsage(_USES[use]), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        if hosts:
            builder = builder.add_extension(x509.SubjectAlternativeName([_host(each) for each in hosts]), False)
        certificate = builder.sign(self._key, hashes.SHA256())
        return Issued(certificate.public_bytes(serialization.Encoding.PEM), key_pem(key))


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def replace_file(path: Path, content: bytes, mode: int = 0o644) -> None:
    """A reader sees the former content or this one, never a part."""
    temporary = path.with_name(path.name + ".new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    temporary.replace(path)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, since: datetime, valid: timedelta
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(since - _SKEW).not_valid_after(since + valid)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates, key_cert_sign=signs_certificates, crl_sign=signs_certificates,
        content_commitment=False, key_encipherment=False, data_encipherment=False, key_agreement=False,
        encipher_only=False, decipher_only=False)


def _host(name: str) -> x509.GeneralName:
    if "://" in name:
        return x509.UniformResourceIdentifier(name)
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
