"""What the load's users, copiers and audit are made of, by each login: one file of settings for the native client and
for librdkafka. tests/integration/test_load.py has locust's processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from hapax_load.audit import Reading, audit, create_topics
from hapax_load.connecting import VARIABLE, librdkafka
from hapax_load.copier import Copier
from hapax_load.ledger import Fact, Ledger
from hapax_load.topics import ALL, PLAIN, value_of

from clients.logins import MECHANISMS, PASSWORD, Logins, set_password
from clients.other import WHOLE
from clients.secured import free_ports
from conftest import end_cluster, start_cluster
from hapax.local.cluster import LocalCluster

LOGINS = (*MECHANISMS, "certificate") if WHOLE else ("SCRAM-SHA-512", "OAUTHBEARER", "certificate")
"""In `make test` one of those by which a password is shown; tests/clients/test_native_logins.py has all of them."""
RECORDS = 20


@pytest.fixture(scope="module")
def certified() -> int:
    """The port of the listener on which a certificate is the login."""
    return free_ports()


@pytest.fixture(scope="module")
def node(users: Logins, certified: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    settings = users.settings(
        "authorizer.class.name=acl", "super.users=User:alice;User:CN=client,O=shop;User:ANONYMOUS",
        "listener.name.ssl.ssl.client.auth=required", f"ssl.truststore.location={users.tls.folder / 'ca.crt'}")
    settings[0] += f",SSL://127.0.0.1:{certified}+node.id"
    running = start_cluster(tmp_path_factory.mktemp("load"), settings=settings)
    set_password(running.bootstrap, "alice")
    yield running
    end_cluster(running)


def file_of(users: Logins, login: str, folder: Path) -> Path:
    lines = {"ssl.ca.location": str(users.tls.folder / "ca.crt")}
    if login == "certificate":
        lines |= {"security.protocol": "SSL", "ssl.certificate.location": str(users.tls.folder / "client.crt"),
                  "ssl.key.location": str(users.tls.folder / "client.key")}
    else:
        lines |= {"security.protocol": "SASL_SSL", "sasl.mechanism": login}
        if login == "OAUTHBEARER":
            (folder / "token").write_text(users.token())
            lines["sasl.oauthbearer.token.file"] = str(folder / "token")
        else:
            (folder / "password").write_text(PASSWORD)
            lines |= {"sasl.username": "alice", "sasl.password.file": str(folder / "password")}
    path = folder / "client.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    return path


@pytest.mark.parametrize("login", LOGINS)
def test_the_load_s_clients_log_in(
    users: Logins, certified: int, node: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, login: str
) -> None:
    bootstrap = f"127.0.0.1:{certified}" if login == "certificate" else users.bootstrap
    monkeypatch.setenv(VARIABLE, str(file_of(users, login, tmp_path)))
    create_topics(bootstrap, 1, replace=True)
    producer = Producer(librdkafka(bootstrap))
    for number in range(RECORDS):
        producer.produce(PLAIN, value_of("w", number, 50), partition=0)
    assert producer.flush(60) == 0
    copier = Copier(bootstrap, 0)
    copied = 0
    while copied < RECORDS:
        copied += copier.step()
    copier.close()
    with Reading(bootstrap, ALL) as reading:
        reading.to_the_end()
    verdicts = audit(reading.seen, Ledger([Fact(PLAIN, "w", "kept", 0, RECORDS)]), copied=True)
    assert all(verdict.clean for verdict in verdicts.values()), verdicts
    assert verdicts[PLAIN].kept == RECORDS
