"""security.protocol and ssl.* of the client: what they lead to, and what is refused."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from hapax.client.errors import SettingsError
from hapax.client.security import certificates_of
from hapax.client.settings import Options, known_to
from hapax.local.authority import Authority

AUTHORITY = Authority.make()
ISSUED = AUTHORITY.issue("CN=alice", use="client")


def options(**given: object) -> Options:
    dotted = {name.replace("_", "."): value for name, value in given.items()}
    return Options({"bootstrap.servers": "a:1", **dotted}, "a")


def test_plaintext_is_the_default() -> None:
    assert certificates_of(options()) is None


def test_hosts_are_checked_unless_that_is_turned_off() -> None:
    authorities = AUTHORITY.certificate.decode()
    given = {"security_protocol": "ssl", "ssl_truststore_certificates": authorities}
    strict = certificates_of(options(**given))
    lenient = certificates_of(options(**given, ssl_endpoint_identification_algorithm=""))
    assert strict is not None and strict.context().check_hostname
    assert lenient is not None and not lenient.context().check_hostname
    assert lenient.context().verify_mode is ssl.CERT_REQUIRED


@pytest.mark.parametrize("name", ["ssl.truststore.location", "ssl.ca.location"])
def test_authorities_come_from_kafka_s_setting_or_librdkafka_s(tmp_path: Path, name: str) -> None:
    (tmp_path / "ca.crt").write_bytes(AUTHORITY.certificate)
    found = certificates_of(options(security_protocol="SSL", **{name: str(tmp_path / "ca.crt")}))
    assert found is not None and len(found.context().get_ca_certs()) == 1


@pytest.mark.parametrize(("given", "sentence"), [
    ({"security_protocol": "TLS"}, "one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
    ({"ssl_ca_location": "x"}, "no effect without security.protocol=SSL"),
    ({"security_protocol": "SSL", "ssl_ca_location": "/no/file"}, "/no/file: No such file"),
    ({"security_protocol": "SSL", "ssl_keystore_type": "JKS"}, "must be PEM"),
    ({"security_protocol": "SSL", "ssl_enabled_protocols": "TLSv1.1"}, r"TLSv1\.2"),
    ({"security_protocol": "SSL", "ssl_endpoint_identification_algorithm": "ldap"}, "https"),
    ({"security_protocol": "SSL", "ssl_keystore_certificate_chain": ISSUED.certificate.decode()}, "together"),
])
def test_what_cannot_be_used_is_refused(given: dict[str, object], sentence: str) -> None:
    with pytest.raises(SettingsError, match=sentence):
        certificates_of(options(**given))


def test_a_file_for_all_clients_may_have_settings_of_others() -> None:
    given = {"acks": "all", "group.id": "g", "client.id": "c", "linger.msec": "1"}
    assert known_to("c", given) == {"group.id": "g", "client.id": "c", "linger.msec": "1"}
