"""Listeners' security protocols, and the principals of their connections."""

from __future__ import annotations

import random
import ssl
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hapax.core.access.principals import ANONYMOUS
from hapax.kafka.security import Unauthenticated, listener_securities
from hapax.local.authority import Authority, Issued
from hapax.runtime.scram_image import ScramImage
from hapax.runtime.security_settings import split_override
from hapax.runtime.settings import SettingsError, load

AUTHORITY = Authority.make()
NODE = AUTHORITY.issue("CN=node", ["127.0.0.1"])


class Connection:
    def __init__(self, issued: Issued | None) -> None:
        self.certificate = b"" if issued is None else ssl.PEM_cert_to_DER_cert(issued.certificate.decode())


def loaded(*flags: str):  # type: ignore[no-untyped-def]
    ports: Any = SimpleNamespace(clock=None, random=random.Random(1), tls=None)
    return listener_securities(load(flags, environment={}), ScramImage(random.Random(1)), ports)


def securities(folder: Path, *flags: str):  # type: ignore[no-untyped-def]
    certificate, key = NODE.write(folder, "node")
    (folder / "ca.crt").write_bytes(AUTHORITY.certificate)
    return loaded(
        "listeners=PLAINTEXT://:9092,OUT_SIDE://:9093,OTHER://:9094",
        "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,OUT_SIDE:SSL,OTHER:SSL",
        f"ssl.certificate.location={certificate}", f"ssl.key.location={key}",
        f"ssl.truststore.location={folder / 'ca.crt'}", *flags)


def test_each_listener_has_its_own_protocol_and_settings(tmp_path: Path) -> None:
    found = securities(
        tmp_path, "ssl.client.auth=requested", "listener.name.out_side.ssl.client.auth=required",
        "listener.name.other.ssl.handshake.timeout.ms=77")
    assert found["PLAINTEXT"].tls is None
    assert found["OUT_SIDE"].tls.context().verify_mode is ssl.CERT_REQUIRED
    assert found["OTHER"].tls.context().verify_mode is ssl.CERT_OPTIONAL
    assert (found["OTHER"].handshake_timeout_ms, found["OUT_SIDE"].handshake_timeout_ms) == (77, 10_000)


def test_the_certificate_s_name_is_the_principal(tmp_path: Path) -> None:
    security = securities(tmp_path)["OTHER"]
    assert security.principal_of(Connection(AUTHORITY.issue("CN=alice,O=shop"))) == "User:CN=alice,O=shop"
    assert security.principal_of(Connection(None)) == ANONYMOUS
    assert securities(tmp_path)["PLAINTEXT"].principal_of(Connection(None)) == ANONYMOUS


def test_a_name_that_no_rule_maps_is_refused_not_anonymous(tmp_path: Path) -> None:
    """Abuse case 6."""
    security = securities(tmp_path, "ssl.principal.mapping.rules=RULE:^CN=([a-z]*),O=shop$/$1/")["OTHER"]
    assert security.principal_of(Connection(AUTHORITY.issue("CN=alice,O=shop"))) == "User:alice"
    with pytest.raises(Unauthenticated, match="CN=alice,O=else"):
        security.principal_of(Connection(AUTHORITY.issue("CN=alice,O=else")))


def test_an_organisation_that_is_called_like_an_attribute_is_not_admin(tmp_path: Path) -> None:
    """Abuse case 7."""
    security = securities(tmp_path, "ssl.principal.mapping.rules=RULE:^(?:.*,)?CN=admin$/admin/,DEFAULT")["OTHER"]
    evil = AUTHORITY.issue("CN=bob,O=x\\,CN=admin")
    assert security.principal_of(Connection(evil)) == "User:CN=bob,O=x\\,CN\\=admin"


def test_a_name_without_a_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Unauthenticated):
        securities(tmp_path)["OTHER"].principal_of(Connection(AUTHORITY.issue("")))


@pytest.mark.parametrize(("flags", "sentence"), [
    (["listeners=PLAINTEXT://:1,A://:2", "listener.security.protocol.map=PLAINTEXT:PLAINTEXT"], "does not name .* A"),
    (["listener.security.protocol.map=PLAINTEXT:SSL"], "cannot have SSL"),
    (["listener.security.protocol.map=PLAINTEXT"], "not LISTENER:PROTOCOL"),
    (["listener.security.protocol.map=PLAINTEXT:TLS"], "none of PLAINTEXT, SSL"),
    (["listener.security.protocol.map=A:SSL,a:SSL"], "A has two protocols"),
    (["listeners=SASL_SSL://:1"], "cannot have SASL_SSL"),
    (["sasl.oauthbearer.jwks.endpoint.url=ftp://x/y"], "must match"),
    (["sasl.server.max.receive.size=2147483647"], "at most 524288"),
    (["listener.name.away.ssl.client.auth=none"], "listeners names no AWAY"),
    (["listener.name.plaintext.ssl.client.oath=none"], "no such setting"),
    (["listener.name.plaintext.num.partitions=3"], "no such setting"),
    (["ssl.principal.mapping.rules=RULE:(/x/"], "not a pattern of RE2"),
    (["ssl.keystore.type=JKS"], "PEM"),
    (["ssl.enabled.protocols=TLSv1.1"], "must match"),
])
def test_bad_settings_are_refused(flags: list[str], sentence: str) -> None:
    with pytest.raises(SettingsError, match=sentence):
        load(flags, environment={})


def test_a_certificate_that_cannot_be_used_keeps_the_node_from_starting() -> None:
    with pytest.raises(SettingsError, match="listener SSL: /no/file: No such file"):
        loaded("listeners=PLAINTEXT://:1,SSL://:2", "ssl.keystore.location=/no/file")


def test_a_listener_with_sasl_has_its_own_mechanisms(tmp_path: Path) -> None:
    certificate, key = NODE.write(tmp_path, "node")
    found = loaded(
        "listeners=PLAINTEXT://:1,SASL_PLAINTEXT://:2,OUTSIDE://:3",
        "listener.security.protocol.map=OUTSIDE:SASL_SSL,PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT",
        f"ssl.certificate.location={certificate}", f"ssl.key.location={key}",
        "listener.name.outside.sasl.enabled.mechanisms=PLAIN", "listener.name.outside.connections.max.reauth.ms=5000")
    assert found["PLAINTEXT"].sasl is None and found["PLAINTEXT"].tls is None
    inside, outside = found["SASL_PLAINTEXT"], found["OUTSIDE"]
    assert (inside.tls, inside.sasl.mechanisms) == (None, ("SCRAM-SHA-256", "SCRAM-SHA-512"))
    assert outside.tls is not None and outside.sasl.mechanisms == ("PLAIN",)
    assert (inside.sasl.max_reauth_ms, outside.sasl.max_reauth_ms) == (0, 5000)


def test_a_certificate_is_no_login(tmp_path: Path) -> None:
    """Under SASL_SSL the login alone gives the principal."""
    certificate, key = NODE.write(tmp_path, "node")
    security = loaded("listeners=PLAINTEXT://:1,SASL_SSL://:2", f"ssl.certificate.location={certificate}",
                      f"ssl.key.location={key}")["SASL_SSL"]
    assert security.principal_of(Connection(AUTHORITY.issue("CN=alice"))) == ANONYMOUS


def test_passwords_in_clear_need_tls_or_a_setting() -> None:
    flags = ["listeners=PLAINTEXT://:1,SASL_PLAINTEXT://:2", "sasl.enabled.mechanisms=PLAIN"]
    with pytest.raises(SettingsError, match="listener SASL_PLAINTEXT: PLAIN would send passwords in clear"):
        loaded(*flags)
    found = loaded(*flags, "listener.name.sasl_plaintext.sasl.allow.secrets.without.tls=true")
    assert found["SASL_PLAINTEXT"].sasl.mechanisms == ("PLAIN",)


def test_names_with_underscores_can_be_overridden_in_the_environment() -> None:
    assert split_override("listener.name.out.side.ssl.key.location", ["OUT_SIDE"]) == ("OUT_SIDE", "ssl.key.location")
    assert split_override("listener.name.out_side.ssl.key.location", ["OUT_SIDE"]) == ("OUT_SIDE", "ssl.key.location")
    assert split_override("ssl.key.location", ["OUT_SIDE"]) is None


def test_overrides_outlive_a_topic_s_configuration() -> None:
    settings = load([
        "listeners=PLAINTEXT://:1,A://:2", "listener.name.a.ssl.client.auth=required"], environment={})
    topic = settings.for_topic({"retention.ms": "5"})
    assert topic.of_listener("A").ssl_client_auth == "required"
