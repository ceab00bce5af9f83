"""TLS and logins of the load's clients: the file of the native client, as librdkafka has it."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from confluent_kafka import Producer
from hapax_load.connecting import VARIABLE, librdkafka, native, translated

from hapax.client.login import login_of
from hapax.client.settings import Options

SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required username=\"alice\" password=\"secret\";"


def test_both_clients_have_the_settings_of_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "client.properties"
    file.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\ngroup.id=other\n"
        + "sasl.jaas.config=" + SCRAM.replace("\\", "\\\\"))
    monkeypatch.setenv(VARIABLE, str(file))
    found = librdkafka("127.0.0.1:1", **{"log_level": 0})
    assert found == {
        "bootstrap.servers": "127.0.0.1:1", "security.protocol": "SASL_PLAINTEXT", "sasl.mechanisms": "SCRAM-SHA-256",
        "sasl.username": "alice", "sasl.password": "secret", "log_level": 0}
    Producer(found)  # raises for a setting that it does not know
    options = Options(native("127.0.0.1:1"), "a")
    login = login_of(options, None)  # type: ignore[arg-type]
    assert login is not None and login.mechanism == "SCRAM-SHA-256"


def test_without_a_file_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert librdkafka("a:1", **{"client.id": "x"}) == {"bootstrap.servers": "a:1", "client.id": "x"}
    assert native("a:1") == {"bootstrap.servers": "a:1"}


def test_certificates() -> None:
    assert translated({
        "security.protocol": "SSL", "ssl.truststore.type": "PEM", "ssl.truststore.location": "/ca",
        "ssl.keystore.location": "/both", "ssl.endpoint.identification.algorithm": ""}) == {
            "security.protocol": "SSL", "ssl.ca.location": "/ca", "ssl.certificate.location": "/both",
            "ssl.key.location": "/both", "ssl.endpoint.identification.algorithm": "none"}


def test_what_librdkafka_does_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^ssl\.enabled\.protocols is not"):
        translated({"ssl.enabled.protocols": "TLSv1.3"})


def test_tokens_come_from_the_file_each_time(tmp_path: Path) -> None:
    file = tmp_path / "token"
    read = translated({"sasl.oauthbearer.token.file": str(file)})["oauth_cb"]
    for end in (1_800_000_000, 1_900_000_000):
        claims = base64.urlsafe_b64encode(json.dumps({"exp": end}).encode()).decode().rstrip("=")
        file.write_text(f"e30.{claims}.c2ln\n")
        assert read("") == (f"e30.{claims}.c2ln", end)
    for text in ("opaque", "a.b.c", "e30.e30.x"):
        file.write_text(text)
        with pytest.raises(ValueError, match="no JSON Web Token"):
            read("")


def test_an_openid_provider(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hidden\n")
    expected = {
        "sasl.oauthbearer.method": "oidc", "sasl.oauthbearer.token.endpoint.url": "https://issuer.example/token",
        "sasl.oauthbearer.client.id": "shop", "sasl.oauthbearer.client.secret": "hidden",
        "sasl.oauthbearer.scope": "kafka"}
    url = {"sasl.oauthbearer.token.endpoint.url": "https://issuer.example/token"}
    module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
    assert translated({
        **url, "sasl.oauthbearer.client.credentials.client.id": "shop", "sasl.oauthbearer.scope": "kafka",
        "sasl.oauthbearer.client.secret.file": str(tmp_path / "secret")}) == expected
    assert translated({
        **url, "sasl.jaas.config": f'{module} required clientId="shop" clientSecret="hidden" scope="kafka";'
    }) == expected
    Producer({"security.protocol": "SASL_PLAINTEXT", "sasl.mechanisms": "OAUTHBEARER", **expected})
    assert translated({"sasl.password.file": str(tmp_path / "secret")}) == {"sasl.password": "hidden"}
