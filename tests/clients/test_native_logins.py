"""The native client logs in, by each mechanism, on a real cluster."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from clients.logins import MECHANISMS, PASSWORD, Logins, set_password
from clients.other import new_name
from conftest import end_cluster, start_cluster
from hapax.cli.main import application
from hapax.client import (
    Admin,
    Consumer,
    NewTopic,
    Producer,
    SaslAuthenticationFailed,
    SettingsError,
    blocking,
)
from hapax.client.users import ScramDeletion, ScramUpsertion
from hapax.core.sasl.scram_keys import ScramMechanism
from hapax.local.cluster import LocalCluster
from integration.scraping import scraped, total

VALUES = [b"v%d" % number for number in range(50)]
of_each_mechanism = pytest.mark.parametrize("mechanism", MECHANISMS)


@pytest.fixture(scope="module")
def node(users: Logins, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Sessions end every 1.5 s."""
    settings = users.settings("num.partitions=1", "connections.max.reauth.ms=1500")
    running = start_cluster(tmp_path_factory.mktemp("logins"), settings=settings)
    set_password(running.bootstrap, "alice")
    yield running
    end_cluster(running)


def native(users: Logins, mechanism: str, name: str = "alice", password: str = PASSWORD) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "bootstrap.servers": users.bootstrap, "security.protocol": "SASL_SSL", "sasl.mechanism": mechanism,
        "ssl.ca.location": str(users.tls.folder / "ca.crt")}
    if mechanism == "OAUTHBEARER":
        return {**settings, "sasl.oauthbearer.token.provider": lambda: users.token(name)}
    return {**settings, "sasl.username": name, "sasl.password": password}


async def new_topic(settings: dict[str, Any]) -> str:
    name = new_name()
    async with Admin(settings) as admin:
        await admin.create_topics([NewTopic(name, 1, 1)])
    return name


@of_each_mechanism
async def test_a_transaction_is_written_and_read(users: Logins, node: LocalCluster, mechanism: str) -> None:
    settings = native(users, mechanism)
    topic = await new_topic(settings)
    async with Producer({**settings, "transactional.id": topic}) as producer, producer.transaction():
        for value in VALUES:
            await producer.send(topic, value)
    seen: list[bytes | None] = []
    async with Consumer({**settings, "group.id": topic, "auto.offset.reset": "earliest"}) as consumer:
        consumer.subscribe([topic])
        while len(seen) < len(VALUES):
            seen += [record.value for record in await asyncio.wait_for(consumer.poll(timeout_ms=5_000), 30)]
    assert seen == VALUES


def test_the_blocking_clients_log_in(users: Logins, node: LocalCluster, tmp_path: Path) -> None:
    """With a token from a file, as a pod has it."""
    settings = native(users, "OAUTHBEARER")
    del settings["sasl.oauthbearer.token.provider"]
    settings["sasl.oauthbearer.token.file"] = str(tmp_path / "token")
    (tmp_path / "token").write_text(users.token() + "\n")
    topic = new_name()
    with blocking.Admin(settings) as admin:
        admin.create_topics([NewTopic(topic, 1, 1)])
    with blocking.Producer({**settings, "transactional.id": topic}) as producer, producer.transaction():
        for value in VALUES:
            producer.send(topic, value)
    with blocking.Consumer({**settings, "auto.offset.reset": "earliest"}) as consumer:
        consumer.assign(consumer.partitions(topic))
        seen: list[bytes | None] = []
        while len(seen) < len(VALUES):
            seen += [record.value for record in consumer.poll(30_000)]
    assert seen == VALUES


@of_each_mechanism
async def test_sessions_are_renewed_and_no_request_fails(users: Logins, node: LocalCluster, mechanism: str) -> None:
    """Over several lifetimes of a session, with requests in flight all the time."""
    def renewed() -> float:
        return total(scraped(node, "broker-0"), "hapax_sasl_logins_total", outcome="renewed", mechanism=mechanism)

    def begun() -> float:
        return total(scraped(node, "broker-0"), "hapax_sasl_logins_total", outcome="succeeded", mechanism=mechanism)

    settings = native(users, mechanism)
    topic = await new_topic(settings)
    before = renewed()
    async with Producer({**settings, "retries": 0, "enable.idempotence": False}) as producer:
        await producer.send_and_wait(topic, b"first")
        connections = begun()
        count, until = 1, time.monotonic() + 90
        while renewed() < before + 3:
            deliveries = [await producer.send(topic, b"x") for _ in range(20)]
            await asyncio.gather(*deliveries)  # raises if one fails, since none is sent twice
            count += 20
            assert time.monotonic() < until
        assert begun() == connections  # the same ones all the time
    async with Admin(settings) as admin:
        assert (await admin.describe_topic(topic)).name == topic


def told_at_once(began: float) -> None:
    """Well before the time-outs of calls, 30 s and more."""
    assert time.monotonic() - began < 15


@pytest.mark.parametrize(("name", "password"), [("alice", "guess"), ("mallory", PASSWORD)])
@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "PLAIN"])
async def test_a_wrong_password_is_told_at_once(
    users: Logins, node: LocalCluster, mechanism: str, name: str, password: str
) -> None:
    settings = native(users, mechanism, name, password)
    for client in (Admin(settings), Producer(settings), Consumer(settings)):
        began = time.monotonic()
        with pytest.raises(SaslAuthenticationFailed, match="invalid credentials with SASL mechanism") as refused:
            await client.start()
        told_at_once(began)
        assert password not in str(refused.value) and refused.value.code == 58


async def test_a_token_that_is_not_genuine_is_told_at_once(users: Logins, node: LocalCluster) -> None:
    settings = native(users, "OAUTHBEARER")
    settings["sasl.oauthbearer.token.provider"] = lambda: users.token(aud="elsewhere")
    with pytest.raises(SaslAuthenticationFailed, match="invalid credentials"):
        await Admin(settings).start()


async def test_a_listener_without_logins_says_so(users: Logins, node: LocalCluster) -> None:
    settings = native(users, "SCRAM-SHA-256")
    del settings["ssl.ca.location"]
    with pytest.raises(SaslAuthenticationFailed, match="listener with SASL"):
        await Admin({
            **settings, "security.protocol": "SASL_PLAINTEXT", "bootstrap.servers": node.bootstrap}).start()


async def test_a_password_that_is_replaced_ends_what_uses_the_former_one(users: Logins, node: LocalCluster) -> None:
    own = native(users, "SCRAM-SHA-256", "carol", "first")
    async with Admin(native(users, "SCRAM-SHA-256")) as admin:
        await admin.alter_user_scram_credentials(
            [ScramUpsertion("carol", ScramMechanism.SCRAM_SHA_256, "first")])
        topic = await new_topic(own)
        async with Producer(own) as producer:
            await producer.send_and_wait(topic, b"x")
            await admin.alter_user_scram_credentials(
                [ScramUpsertion("carol", ScramMechanism.SCRAM_SHA_256, "second")])
            began = time.monotonic()
            with pytest.raises(SaslAuthenticationFailed, match="invalid credentials"):
                while time.monotonic() < began + 60:
                    await producer.send_and_wait(topic, b"x")
            told_at_once(began)
        async with Admin({**own, "sasl.password": "second"}) as again:
            assert topic in [each.name for each in await again.list_topics()]
        await admin.alter_user_scram_credentials([ScramDeletion("carol", ScramMechanism.SCRAM_SHA_256)])


async def test_a_password_is_not_sent_in_clear(node: LocalCluster) -> None:
    change = [ScramUpsertion("dave", ScramMechanism.SCRAM_SHA_256, "in clear")]
    async with Admin({"bootstrap.servers": node.bootstrap}) as admin:
        with pytest.raises(SettingsError, match="over TLS only"):
            await admin.alter_user_scram_credentials(change)
        assert all(each.user != "dave" for each in await admin.describe_user_scram_credentials())


class Issuer:
    """A token endpoint for one client, on this machine."""

    def __init__(self, users: Logins) -> None:
        self.users = users
        self.seconds = 600.0
        self.secret = "of the shop"
        self.away = False
        self.asked = 0
        self.server: asyncio.Server

    async def __aenter__(self) -> Issuer:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.asked += 1
        known = base64.b64encode(f"shop:{self.secret}".encode()) in head
        status = "503 Away" if self.away else "200 OK" if known else "401 Unauthorized"
        content = json.dumps({
            "access_token": self.users.token("alice", seconds=self.seconds), "expires_in": self.seconds}
            if known else {"error": "invalid_client"})
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(content)}\r\n\r\n{content}".encode())
        writer.close()

    def settings(self) -> dict[str, Any]:
        given = native(self.users, "OAUTHBEARER")
        del given["sasl.oauthbearer.token.provider"]
        port = self.server.sockets[0].getsockname()[1]
        return {**given, "sasl.oauthbearer.token.endpoint.url": f"http://127.0.0.1:{port}/token",
                "sasl.oauthbearer.client.credentials.client.id": "shop",
                "sasl.oauthbearer.client.credentials.client.secret": self.secret}


async def test_tokens_of_an_openid_provider(users: Logins, node: LocalCluster) -> None:
    """Sessions are renewed while the provider is away, and transactions go on."""
    async with Issuer(users) as issuer:
        settings = issuer.settings()
        topic = await new_topic(settings)
        async with Producer({**settings, "transactional.id": topic}) as producer:
            async with producer.transaction():
                await producer.send(topic, b"first")
            issuer.away = True
            until = time.monotonic() + 4
            while time.monotonic() < until:
                async with producer.transaction():
                    await producer.send(topic, b"x")
        assert issuer.asked <= 2, "one for each client"
        with pytest.raises(SaslAuthenticationFailed, match=r"answers 401: invalid_client"):
            issuer.away = False
            await Admin({**settings, "sasl.oauthbearer.client.credentials.client.secret": "guess"}).start()


async def test_a_token_that_ends_during_a_transaction_is_replaced(users: Logins, node: LocalCluster) -> None:
    async with Issuer(users) as issuer:
        issuer.seconds = 3.0
        settings = issuer.settings()
        topic = await new_topic(settings)
        async with Producer({**settings, "transactional.id": topic}) as producer, producer.transaction():
            until = time.monotonic() + 7
            while time.monotonic() < until:
                await (await producer.send(topic, b"x"))
        assert issuer.asked >= 3


async def test_a_password_file_that_is_replaced(users: Logins, node: LocalCluster, tmp_path: Path) -> None:
    """The password is changed at the cluster while a transaction is open, and in the file a moment later."""
    own = native(users, "SCRAM-SHA-256", "erin")
    del own["sasl.password"]
    file = tmp_path / "password"
    file.write_text("first\n")
    own["sasl.password.file"] = str(file)
    async with Admin(native(users, "SCRAM-SHA-256")) as admin:
        await admin.alter_user_scram_credentials([ScramUpsertion("erin", ScramMechanism.SCRAM_SHA_256, "first")])
        topic = await new_topic(own)
        async with Producer({**own, "transactional.id": topic}) as producer, producer.transaction():
            for value in VALUES[:10]:
                await (await producer.send(topic, value))
            file.write_text("second\n")
            await admin.alter_user_scram_credentials(
                [ScramUpsertion("erin", ScramMechanism.SCRAM_SHA_256, "second")])
            for value in VALUES[10:]:
                await (await producer.send(topic, value))
        async with Consumer({**own, "auto.offset.reset": "earliest", "isolation.level": "read_committed"}) as consumer:
            consumer.assign(await consumer.partitions(topic))
            seen: list[bytes | None] = []
            while len(seen) < len(VALUES):
                seen += [record.value for record in await asyncio.wait_for(consumer.poll(timeout_ms=5_000), 30)]
        assert seen == VALUES
        await admin.alter_user_scram_credentials([ScramDeletion("erin", ScramMechanism.SCRAM_SHA_256)])


# --- the command -------------------------------------------------------------------------------------------------


@pytest.fixture
def hapax(users: Logins, node: LocalCluster, tmp_path: Path) -> Callable[..., Result]:
    """With a file as Kafka's tools take it, of alice unless told otherwise."""
    def run(
        *words: str, given: str = "", name: str = "alice", password: str = PASSWORD, mechanism: str = "SCRAM-SHA-512",
    ) -> Result:
        module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
        config = tmp_path / "client.properties"
        config.write_text(f"""# of {name}
security.protocol=SASL_SSL
sasl.mechanism={mechanism}
ssl.truststore.type=PEM
ssl.truststore.location={users.tls.folder / "ca.crt"}
sasl.jaas.config=org.apache.kafka.common.security.{module} required \\
    username="{name}" \\
    password="{password}";
""")
        arguments = [*words, "--bootstrap", users.bootstrap, "--command-config", str(config)]
        return CliRunner().invoke(application([words[0]]), arguments, input=given)

    return run


def done(result: Result) -> str:
    assert result.exit_code == 0, result.output
    return result.stdout


def test_users_of_the_command(hapax: Callable[..., Result], tmp_path: Path) -> None:
    (tmp_path / "password").write_text("of bob\nnot this line\n")
    done(hapax("user", "set-password", "bob", "--password-file", str(tmp_path / "password")))
    listed = json.loads(done(hapax("user", "list", "--user", "bob", "--json")))
    assert listed == [{"user": "bob", "mechanism": f"SCRAM-SHA-{bits}", "iterations": 4096} for bits in (256, 512)]
    assert "alice" in done(hapax("user", "list"))
    done(hapax("topic", "list", name="bob", password="of bob"))
    done(hapax("user", "set-password", "bob", "--password-file", "-", "--mechanism", "scram-sha-512", given="later\n"))
    refused = hapax("topic", "list", name="bob", password="of bob")
    assert refused.exit_code == 1 and "invalid credentials" in refused.output and "of bob" not in refused.output
    done(hapax("topic", "list", name="bob", password="later"))
    assert len(json.loads(done(hapax("user", "remove", "bob", "--json")))) == 2
    gone = hapax("user", "remove", "bob")
    assert gone.exit_code == 4 and "does not exist" in gone.output


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"])
def test_users_change_and_remove_their_own_passwords(hapax: Callable[..., Result], mechanism: str) -> None:
    """Each of the two changes ends the sessions of its mechanism."""
    def own(*words: str, password: str, given: str = "") -> Result:
        return hapax(*words, given=given, name="frank", password=password, mechanism=mechanism)

    done(hapax("user", "set-password", "frank", "--password-file", "-", given="first \u2028\n"))
    done(own("user", "set-password", "frank", "--password-file", "-", given="second\n", password="first \u2028"))
    done(own("topic", "list", password="second"))
    assert len(json.loads(done(own("user", "remove", "frank", "--json", password="second")))) == 2
    assert "invalid credentials" in own("topic", "list", password="second").output


@pytest.mark.parametrize(("words", "sentence"), [
    (("--iterations", "1000000000"), "16384"), (("--iterations", "4095"), "4096"),
    (("--password-file", "-"), "standard input is empty")])
def test_passwords_that_are_not_set(hapax: Callable[..., Result], words: tuple[str, ...], sentence: str) -> None:
    refused = hapax("user", "set-password", "bob", *words, given="\n")
    assert refused.exit_code == 2 and sentence in refused.output


def test_records_of_the_command(hapax: Callable[..., Result]) -> None:
    topic = new_name()
    done(hapax("topic", "create", topic))
    done(hapax("produce", topic, given="one\ntwo\n"))
    assert done(hapax("consume", topic, "--from-beginning", "--until-end")) == "one\ntwo\n"


@pytest.mark.parametrize("words", [("user", "set-password", "bob", "secret"), ("user", "set-password", "bob")])
def test_passwords_are_no_arguments(hapax: Callable[..., Result], words: tuple[str, ...]) -> None:
    refused = hapax(*words)
    assert refused.exit_code == 2
