"""Certificates of Users: what the operator's authority signs, for how long, and what it cannot sign."""

from __future__ import annotations

import ssl
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import pytest
from cryptography import x509

from hapax.core.access.principal_rules import PrincipalRules
from hapax.local.authority import Authority, Issued
from hapax.runtime.telemetry import Metrics
from hapax_operator.access_file import AccessFile
from hapax_operator.apply_user import ClientAuthority, _issued, read_authority
from hapax_operator.user_resource import UserResource, read_user
from hapax_operator.users import ClusterAccess, UserReconciler, _read

ROOT = Authority.make("clients", valid=timedelta(days=1825))
DAY_MS = 86_400_000


def now_ms() -> int:
    return int(datetime.now(UTC).timestamp() * 1000)


def authority(folder: Path, issued: Issued) -> ClientAuthority:
    (folder / "ca.crt").write_bytes(issued.certificate)
    (folder / "ca.key").write_bytes(issued.key)
    found = read_authority(folder)
    assert found is not None
    return found


@pytest.fixture
def users(tmp_path: Path) -> ClientAuthority:
    return authority(tmp_path, ROOT.issue("CN=users", use="client", signs=True, valid=timedelta(days=100)))


def accepts(folder: Path, chain: bytes, purpose: str) -> bool:
    """Whether openssl, which trusts the root alone, takes the first certificate for the purpose."""
    (folder / "root.pem").write_bytes(ROOT.certificate)
    (folder / "chain.pem").write_bytes(chain)
    return subprocess.run(
        ["openssl", "verify", "-CAfile", str(folder / "root.pem"), "-untrusted", str(folder / "chain.pem"),
         "-purpose", purpose, str(folder / "chain.pem")], capture_output=True, check=False).returncode == 0


def test_a_listener_that_trusts_the_root_takes_what_the_operator_signs(users: ClientAuthority, tmp_path: Path) -> None:
    made = _issued(users, "shop.app", 30, "", now_ms())
    assert made.chain.count("BEGIN CERTIFICATE") == 2, "without the authority between, no listener can trust it"
    served = ROOT.issue("CN=node", ["localhost"], use="server")
    for name, each in (("server", served), ("client", Issued(made.chain.encode(), made.key.encode()))):
        (tmp_path / f"{name}.pem").write_bytes(each.certificate + each.key)
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cadata=ROOT.certificate.decode())
    server.verify_mode = ssl.CERT_REQUIRED
    client = ssl.create_default_context(cadata=ROOT.certificate.decode())
    server.load_cert_chain(tmp_path / "server.pem")
    client.load_cert_chain(tmp_path / "client.pem")
    inward, outward = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = (client.wrap_bio(inward, outward, server_hostname="localhost"),
             server.wrap_bio(outward, inward, server_side=True))
    for _ in range(6):
        for side in sides:
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    assert dict(each[0] for each in sides[1].getpeercert()["subject"]) == {"commonName": "shop.app"}  # type: ignore


def test_the_operator_can_sign_neither_servers_nor_authorities(users: ClientAuthority, tmp_path: Path) -> None:
    client = users.authority.issue("CN=a", use="client").certificate + users.chain
    assert accepts(tmp_path, client, "sslclient")
    for use, purpose in (("server", "sslserver"), ("both", "sslserver")):
        forged = users.authority.issue("CN=node", ["localhost"], use=cast(Any, use)).certificate + users.chain
        assert not accepts(tmp_path, forged, purpose), f"{use}: it would pass for a node"
    # The root of this test would allow none below either; another one may.
    own = x509.load_pem_x509_certificate(users.chain).extensions.get_extension_for_class(x509.BasicConstraints).value
    assert own.ca and own.path_length == 0
    below = users.authority.issue("CN=below", use="client", signs=True)
    deeper = Authority.read(*below).issue("CN=a", use="client").certificate
    assert not accepts(tmp_path, deeper + below.certificate + users.chain, "sslclient")


def test_no_certificate_outlives_what_signed_it(users: ClientAuthority) -> None:
    now = now_ms()
    short, long = (_issued(users, "shop.app", days, "", now) for days in (30, 365))
    assert short.not_after_ms == now + 30 * DAY_MS and long.not_after_ms == users.seen.until_ms < now + 101 * DAY_MS
    for made in (short, long):
        until = x509.load_pem_x509_certificate(made.chain.encode()).not_valid_after_utc
        assert abs(until.timestamp() * 1000 - made.not_after_ms) <= 1000


def test_a_root_is_shown_to_nobody_and_halves_of_two_authorities_are_none(tmp_path: Path) -> None:
    own = authority(tmp_path, Issued(ROOT.certificate, ROOT.key))
    assert own.chain == b"" and _issued(own, "a", 1, "", now_ms()).chain.count("BEGIN") == 1
    (tmp_path / "ca.key").write_bytes(Authority.make().key)
    assert read_authority(tmp_path) is None


def test_a_file_that_is_not_there_is_not_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "ca.crt").write_text("pem")
    assert [_read(path) for path in ("", str(tmp_path / "none"), str(tmp_path / "empty"), str(tmp_path / "ca.crt"))
            ] == ["", None, None, "pem"]


def test_users_of_one_principal_are_rivals_whatever_their_names() -> None:
    rules = PrincipalRules("RULE:^CN=(.*)$/$1/L")
    world = cast(Any, None)
    reconciler = UserReconciler(
        world, world, world, world, world, Metrics(), ClusterAccess(AccessFile(), True, rules))

    def user(name: str, login: str, called: str) -> UserResource:
        found = read_user({
            "metadata": {"namespace": "shop", "name": name, "uid": name, "generation": 1,
                         "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": MappingProxyType({"authentication": {"type": login, "userName": called}})}, rules)
        reconciler._known_as(found)
        return found

    rivals = [user("a", "Tls", "Shop.App"), user("b", "Tls", "shop.APP"), user("c", "Scram", "shop.app")]
    user("d", "Scram", "shop.other")
    for each in rivals:
        assert {rival.meta.uid for rival in reconciler._claimants(each)} == {"a", "b", "c"}, each.name
