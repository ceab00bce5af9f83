"""Certificates: what is used, what is refused with which sentence, and what replaces what while a listener serves."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtensionOID, NameOID

from hapax.local.authority import Authority, Issued, replace_file
from hapax.runtime.tls import TlsCertificates, TlsError, TlsOptions, pem_text

AUTHORITY = Authority.make()
NODE = AUTHORITY.issue("CN=node,O=hapax", ["node", "127.0.0.1"])
SUCCESSOR = AUTHORITY.issue("CN=node,O=hapax", ["node", "127.0.0.1"])


def options(issued: Issued = NODE, **more: object) -> TlsOptions:
    return TlsOptions(chain=issued.certificate.decode(), key=issued.key.decode(), **more)  # type: ignore[arg-type]


def other_key() -> bytes:
    return Authority.make().issue("CN=x").key


def unreadable_names() -> tuple[bytes, bytes]:
    """A certificate whose alternative names are no ASN.1, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([
        x509.NameAttribute(NameOID.ORGANIZATION_NAME, "hapax"), x509.NameAttribute(NameOID.COMMON_NAME, "node")])
    made = x509.CertificateBuilder(
        name, name, key.public_key(), 1, datetime.now(UTC) - timedelta(1), datetime.now(UTC) + timedelta(9)
    ).add_extension(x509.UnrecognizedExtension(ExtensionOID.SUBJECT_ALTERNATIVE_NAME, b"\0\1"), False).sign(
        key, hashes.SHA256())
    return made.public_bytes(serialization.Encoding.PEM), key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


# --- what is refused ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("given", "sentence"), [
    (TlsOptions(), "needs a certificate"),
    (TlsOptions(chain=NODE.certificate.decode()), "together"),
    (TlsOptions(key=NODE.key.decode()), "together"),
    (TlsOptions(chain="x", key=NODE.key.decode()), "certificate is not PEM"),
    (TlsOptions(chain=NODE.certificate.decode(), key="x"), "private key cannot be read"),
    (TlsOptions(chain=NODE.certificate.decode(), key=other_key().decode()), "does not belong to the certificate"),
    (TlsOptions(chain=(NODE.certificate + SUCCESSOR.certificate).decode(), key=NODE.key.decode()),
     "is not issued by the next certificate"),
    (options(client_auth="required"), "needs ssl.truststore"),
    (options(client_auth="required", authorities="x"), "OpenSSL refuses"),
    (TlsOptions(keystore_location="/no/such/file"), "/no/such/file: No such file"),
])
def test_what_cannot_be_used_says_why(given: TlsOptions, sentence: str) -> None:
    with pytest.raises(TlsError, match=sentence):
        TlsCertificates(given, "server")


@pytest.mark.parametrize("form", ["one file", "two files", "text", "one line", "escaped", "with its authority"])
def test_pem_is_taken_from_texts_and_files(tmp_path: Path, form: str) -> None:
    certificate, key = NODE.write(tmp_path, "node")
    both = tmp_path / "both.pem"
    both.write_bytes(NODE.key + NODE.certificate)
    given = {
        "one file": TlsOptions(keystore_location=str(both)),
        "two files": TlsOptions(chain_location=str(certificate), key_location=str(key)),
        "text": options(),
        "one line": TlsOptions(
            chain=pem_text(NODE.certificate.decode().replace("\n", " ")),
            key=pem_text(NODE.key.decode().replace("\n", " "))),
        "escaped": TlsOptions(
            chain=pem_text(NODE.certificate.decode().replace("\n", "\\n")),
            key=pem_text(NODE.key.decode().replace("\n", "\\n"))),
        "with its authority": TlsOptions(
            chain=(NODE.certificate + AUTHORITY.certificate).decode(), key=NODE.key.decode()),
    }[form]
    assert 89 < TlsCertificates(given, "server").days_left() < 91


def test_keys_may_be_encrypted_or_rsa() -> None:
    key = serialization.load_pem_private_key(NODE.key, None)
    encrypted = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"pass"))
    given = TlsOptions(chain=NODE.certificate.decode(), key=encrypted.decode(), key_password="pass")
    assert TlsCertificates(given, "server").expires is not None
    with pytest.raises(TlsError, match="private key cannot be read"):
        TlsCertificates(TlsOptions(chain=NODE.certificate.decode(), key=encrypted.decode()), "server")
    rsa_key = rsa.generate_private_key(65537, 2048)
    assert not isinstance(rsa_key, ec.EllipticCurvePrivateKey)
    issued = AUTHORITY.issue("CN=r", key=rsa_key)  # type: ignore[arg-type]
    assert TlsCertificates(options(issued), "server").expires is not None


def test_keys_are_written_for_their_owner_alone(tmp_path: Path) -> None:
    _, key = NODE.write(tmp_path, "node")
    assert key.stat().st_mode & 0o777 == 0o600


def test_no_file_with_the_key_stays_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    before = set(os.listdir("/proc/self/fd"))
    TlsCertificates(options(), "server")
    assert set(os.listdir("/proc/self/fd")) <= before
    assert list(tmp_path.iterdir()) == []


def test_a_server_offers_1_2_and_1_3_without_tickets() -> None:
    context = TlsCertificates(options(), "server").context()
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert context.maximum_version is ssl.TLSVersion.TLSv1_3
    assert context.num_tickets == 0 and context.options & ssl.OP_NO_TICKET
    weak = [each["name"] for each in context.get_ciphers() if "CBC" in each["name"] or each["name"][-3:] == "SHA"]
    assert weak == []
    only = TlsCertificates(options(versions=("TLSv1.3",)), "server").context()
    assert only.minimum_version is ssl.TLSVersion.TLSv1_3


# --- replacement --------------------------------------------------------------------------------------------------


class Files:
    """A listener whose certificate and key are files."""

    def __init__(self, folder: Path, **more: object) -> None:
        self.certificate, self.key = NODE.write(folder, "node")
        self.tls = TlsCertificates(
            TlsOptions(chain_location=str(self.certificate), key_location=str(self.key), **more),  # type: ignore[arg-type]
            "server", "OUTSIDE")
        self.former = self.tls.context()

    def put(self, certificate: bytes | None = None, key: bytes | None = None) -> None:
        if certificate is not None:
            replace_file(self.certificate, certificate)
        if key is not None:
            replace_file(self.key, key)

    def assert_kept(self, sentence: str) -> None:
        assert not self.tls.reload()
        assert self.tls.context() is self.former
        assert self.tls.refusal is not None and sentence in self.tls.refusal
        refused = self.tls.refused_reloads
        assert not self.tls.reload()
        assert self.tls.refused_reloads == refused, "one content is refused once"


def test_files_that_do_not_change_change_nothing(tmp_path: Path) -> None:
    files = Files(tmp_path)
    assert not files.tls.reload()
    assert files.tls.context() is files.former
    assert files.tls.refusal is None


def test_between_two_writes_the_former_pair_serves(tmp_path: Path) -> None:
    """Abuse case 34: the files of a rotation are not replaced at the same moment."""
    files = Files(tmp_path)
    files.put(certificate=SUCCESSOR.certificate)
    files.assert_kept("does not belong")
    assert files.tls.refused_reloads == 1
    files.put(key=SUCCESSOR.key)
    assert files.tls.reload()
    assert files.tls.context() is not files.former
    assert (files.tls.refusal, files.tls.reloads) == (None, 1)


def test_what_was_refused_and_taken_back_raises_no_alarm(tmp_path: Path) -> None:
    files = Files(tmp_path)
    files.put(key=SUCCESSOR.key)
    files.assert_kept("does not belong")
    files.put(key=NODE.key)
    assert not files.tls.reload()
    assert files.tls.refusal is None


def test_a_certificate_that_came_too_early_serves_from_its_time_on(tmp_path: Path) -> None:
    """The issuer's clock is ahead of the node's. The files do not change once more."""
    files = Files(tmp_path)
    tomorrow = datetime.now(UTC) + timedelta(1)
    files.put(*AUTHORITY.issue("CN=node,O=hapax", ["node", "127.0.0.1"], since=tomorrow))
    files.assert_kept("is valid from")
    assert files.tls.reload(tomorrow + timedelta(hours=1))
    assert (files.tls.refusal, files.tls.reloads, files.tls.refused_reloads) == (None, 1, 1)


def test_a_node_whose_clock_was_wrong_takes_the_certificate_that_came_meanwhile(tmp_path: Path) -> None:
    files = Files(tmp_path)
    files.put(*SUCCESSOR)
    assert not files.tls.reload(datetime.now(UTC) + timedelta(days=400))
    assert files.tls.refusal is not None and "expired" in files.tls.refusal
    assert files.tls.reload()


@pytest.mark.parametrize(("spoil", "sentence"), [
    (lambda files: files.put(certificate=b"", key=b""), "the file is empty"),
    (lambda files: files.put(*unreadable_names()), "subject_alternative_name"),
    (lambda files: files.put(certificate=NODE.certificate[:300]), "not PEM"),
    (lambda files: files.certificate.unlink(), "No such file"),
    (lambda files: files.put(*AUTHORITY.issue(
        "CN=node,O=hapax", ["node", "127.0.0.1"], since=datetime.now(UTC) - timedelta(9), valid=timedelta(1))),
     "expired at"),
    (lambda files: files.put(*AUTHORITY.issue(
        "CN=node,O=hapax", ["node", "127.0.0.1"], since=datetime.now(UTC) + timedelta(1))), "is valid from"),
    (lambda files: files.put(*AUTHORITY.issue("CN=other,O=hapax", ["node", "127.0.0.1"])), "ssl.allow.dn.changes"),
    (lambda files: files.put(*AUTHORITY.issue("CN=node,O=hapax", ["node"])), "ssl.allow.san.changes"),
])
def test_bad_files_leave_the_former_certificate_in_use(
    tmp_path: Path, spoil: Callable[[Files], None], sentence: str
) -> None:
    files = Files(tmp_path)
    spoil(files)
    files.assert_kept(sentence)
    NODE.write(tmp_path, "node")
    assert not files.tls.reload()
    assert files.tls.refusal is None


def test_other_names_are_taken_where_that_is_allowed(tmp_path: Path) -> None:
    files = Files(tmp_path, allow_dn_changes=True, allow_san_changes=True)
    files.put(*AUTHORITY.issue("CN=other", ["other"]))
    assert files.tls.reload()


def test_authorities_are_replaced_too(tmp_path: Path) -> None:
    authorities = tmp_path / "ca.crt"
    replace_file(authorities, AUTHORITY.certificate)
    files = Files(tmp_path, authorities_location=str(authorities), client_auth="required")
    replace_file(authorities, AUTHORITY.certificate + Authority.make("next").certificate)
    assert files.tls.reload()
    assert len(files.tls.context().get_ca_certs()) == 2
    replace_file(authorities, b"")
    files.former = files.tls.context()
    files.assert_kept("the file is empty")


@pytest.mark.parametrize("content", [b"", b"\n"])
def test_an_empty_truststore_is_not_the_system_s(tmp_path: Path, content: bytes) -> None:
    """A file that is written in place is empty for a moment. A client would trust every public authority."""
    authorities = tmp_path / "ca.crt"
    replace_file(authorities, content)
    given = TlsOptions(authorities_location=str(authorities))
    with pytest.raises(TlsError, match=r"ca\.crt: the file is empty"):
        TlsCertificates(given, "client")
    replace_file(authorities, AUTHORITY.certificate)
    tls = TlsCertificates(given, "client")
    replace_file(authorities, content)
    assert not tls.reload()
    assert len(tls.context().get_ca_certs()) == 1 and tls.pem.authorities == AUTHORITY.certificate


def test_an_empty_keystore_takes_no_client_its_certificate(tmp_path: Path) -> None:
    both = tmp_path / "both.pem"
    replace_file(both, NODE.key + NODE.certificate)
    tls = TlsCertificates(TlsOptions(keystore_location=str(both)), "client")
    shown = tls.der
    replace_file(both, b"")
    assert not tls.reload()
    assert tls.der == shown and "empty" in (tls.refusal or "")


def test_an_expired_certificate_does_not_keep_a_node_from_starting() -> None:
    expired = AUTHORITY.issue("CN=node", since=datetime.now(UTC) - timedelta(9), valid=timedelta(1))
    assert TlsCertificates(options(expired), "server").days_left() < -7
