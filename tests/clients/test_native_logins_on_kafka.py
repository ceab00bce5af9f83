"""The native client logs in to Apache Kafka, renews its sessions there, and keeps its users' passwords."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clients.kafka_from_maven import KafkaFromMaven
from clients.logins import PASSWORD
from clients.other import new_name
from clients.secured import Secured, secured
from hapax.client import Admin, Consumer, FatalError, NewTopic, Producer, SaslAuthenticationFailed
from hapax.client.users import ScramDeletion, ScramUpsertion
from hapax.core.sasl.scram_keys import ScramMechanism
from integration.etcd_process import held_ports

VALUES = [b"v%d" % number for number in range(50)]
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_MODULES = {"PLAIN": "plain.PlainLoginModule", "SCRAM-SHA-256": "scram.ScramLoginModule",
            "SCRAM-SHA-512": "scram.ScramLoginModule"}


class Kafka(KafkaFromMaven):
    """With a listener that takes logins over TLS, whose sessions end every 1.5 s."""

    def __init__(self, folder: Path, tls: Secured) -> None:
        self._tls = tls
        (self.login_port,) = held_ports(self, 1)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "node.pem").write_bytes(
            (tls.folder / "node.key").read_bytes() + (tls.folder / "node.crt").read_bytes())
        super().__init__(folder)

    def _properties(self) -> str:
        lines = []
        for line in super()._properties().splitlines():
            if line.startswith(("listeners=", "advertised.listeners=")):
                line += f",SASL_SSL://127.0.0.1:{self.login_port}"
            elif line.startswith("listener.security.protocol.map="):
                line += ",SASL_SSL:SASL_SSL"
            lines.append(line)
        plain = PASSWORD.encode("unicode_escape").decode().replace("\\xfc", "\\u00fc")
        for mechanism, module in _MODULES.items():
            user = f' user_alice="{plain}"' if mechanism == "PLAIN" else ""
            lines.append(f"listener.name.sasl_ssl.{mechanism.lower()}.sasl.jaas.config="
                         f"org.apache.kafka.common.security.{module} required{user};")
        return "\n".join([
            *lines, "sasl.enabled.mechanisms=" + ",".join(MECHANISMS),
            "listener.name.sasl_ssl.connections.max.reauth.ms=1500", "ssl.keystore.type=PEM",
            f"ssl.keystore.location={self._folder / 'node.pem'}", ""])

    def settings(self, mechanism: str, password: str = PASSWORD) -> dict[str, Any]:
        return {
            "bootstrap.servers": f"127.0.0.1:{self.login_port}", "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self._tls.folder / "ca.crt"), "sasl.mechanism": mechanism,
            "sasl.username": "alice", "sasl.password": password}

    @property
    def open_listener(self) -> dict[str, Any]:
        return {"bootstrap.servers": self.bootstrap, "sasl.allow.secrets.without.tls": True}


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    target = Kafka(tmp_path_factory.mktemp("kafka"), secured(tmp_path_factory.mktemp("certificates")))
    try:
        target.start()
        asyncio.run(_set_passwords(target))
        yield target
    finally:
        target.kill()


async def _set_passwords(kafka: Kafka) -> None:
    async with Admin(kafka.open_listener) as admin:
        for mechanism in ScramMechanism:
            await admin.alter_user_scram_credentials([ScramUpsertion("alice", mechanism, PASSWORD)])


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_a_transaction_is_written_and_read(kafka: Kafka, mechanism: str) -> None:
    settings = kafka.settings(mechanism)
    topic = new_name()
    async with Admin(settings) as admin:
        await admin.create_topics([NewTopic(topic, 1, 1)])
    async with Producer({**settings, "transactional.id": topic}) as producer, producer.transaction():
        for value in VALUES:
            await producer.send(topic, value)
    seen: list[bytes | None] = []
    async with Consumer({**settings, "group.id": topic, "auto.offset.reset": "earliest"}) as consumer:
        consumer.subscribe([topic])
        while len(seen) < len(VALUES):
            seen += [record.value for record in await asyncio.wait_for(consumer.poll(timeout_ms=5_000), 60)]
    assert seen == VALUES


async def test_sessions_are_renewed_on_the_open_connection(kafka: Kafka) -> None:
    """Without retries a record that falls between two sessions would fail."""
    settings = kafka.settings("SCRAM-SHA-256")
    topic = new_name()
    async with Admin(settings) as admin:
        await admin.create_topics([NewTopic(topic, 1, 1)])
    async with Producer({**settings, "retries": 0, "enable.idempotence": False}) as producer:
        await producer.send_and_wait(topic, b"first")
        (peer,) = [peer for (_, purpose), peer in producer._engine.cluster.open_peers() if purpose == "data"]
        renewed, until = {peer._logged_in_at}, time.monotonic() + 90
        while len(renewed) < 4:
            await asyncio.gather(*[await producer.send(topic, b"x") for _ in range(20)])
            renewed.add(peer._logged_in_at)
            assert time.monotonic() < until and not peer.closed


async def test_what_kafka_refuses_is_told_at_once(kafka: Kafka) -> None:
    for mechanism in MECHANISMS:
        with pytest.raises(SaslAuthenticationFailed, match=r"(?i)authentication failed") as refused:
            await Admin(kafka.settings(mechanism, "guess")).start()
        assert "guess" not in str(refused.value)
    settings = kafka.settings("OAUTHBEARER")
    del settings["sasl.username"], settings["sasl.password"]
    with pytest.raises(SaslAuthenticationFailed, match=r"does not offer OAUTHBEARER; it offers: .*PLAIN"):
        await Admin({**settings, "sasl.oauthbearer.token.provider": lambda: "a.b.c"}).start()
    with pytest.raises(SaslAuthenticationFailed, match="listener with SASL"):
        await Admin({
            "bootstrap.servers": kafka.bootstrap, "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-256", "sasl.username": "alice", "sasl.password": PASSWORD}).start()


async def test_users_of_kafka(kafka: Kafka) -> None:
    sha_256 = ScramMechanism.SCRAM_SHA_256
    async with Admin(kafka.open_listener) as admin:
        await admin.alter_user_scram_credentials([ScramUpsertion("bob", sha_256, "first", 8192)])
        async with asyncio.timeout(30):
            while True:  # the broker answers from what it has replayed
                found = {each.user: each for each in await admin.describe_user_scram_credentials()}
                if "bob" in found:
                    break
        assert found["bob"] == ("bob", sha_256, 8192) and "alice" in found
        with pytest.raises(FatalError, match="iterations"):
            await admin.alter_user_scram_credentials([ScramUpsertion("bob", sha_256, "first", 100)])
        await admin.alter_user_scram_credentials([ScramDeletion("bob", sha_256)])
        with pytest.raises(FatalError, match="bob"):
            await admin.alter_user_scram_credentials([ScramDeletion("bob", sha_256)])
