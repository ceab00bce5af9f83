"""Tokens for a client's id and secret (KIP-768), from a real HTTP server that says what the test wants."""

from __future__ import annotations

import asyncio
import base64
import datetime
import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from hapax.client.environment import RealPorts
from hapax.client.errors import SettingsError
from hapax.client.login import TokenLogin, login_of
from hapax.client.settings import Options
from hapax.core.sasl.client import BearerClient, ClientExchange
from hapax.wire.peer import PeerDistrusted, PeerError, PeerLoginRefused

SECRET = "hidden:wörd +%"
ID = "sasl.oauthbearer.client.credentials.client.id"
THE_SECRET = "sasl.oauthbearer.client.credentials.client.secret"
URL = "sasl.oauthbearer.token.endpoint.url"
MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"


def body(status: str = "200 OK", content: object = None, *headers: str) -> bytes:
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    return "\r\n".join((f"HTTP/1.1 {status}", *headers, f"Content-Length: {len(text)}", "", "")).encode() + text


class Provider:
    """Answers each request with `answer`, and closes."""

    def __init__(self) -> None:
        self.answer: bytes = body(content={"access_token": "a.b.c", "expires_in": 100})
        self.pause: asyncio.Event | None = None
        self.asked: list[bytes] = []
        self.server: asyncio.Server

    async def start(self, context: ssl.SSLContext | None = None) -> None:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=context)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.startswith(b"Content-Length"))
        self.asked.append(head + await reader.readexactly(length))
        if self.pause is not None:
            await self.pause.wait()
        writer.write(self.answer)
        writer.close()


@pytest.fixture
async def provider() -> AsyncIterator[Provider]:
    made = Provider()
    await made.start()
    yield made
    made.server.close()


def login_to(url: str, **given: object) -> TokenLogin:
    settings = {
        "bootstrap.servers": "a:1", "security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER", URL: url,
        **(given or {ID: "shop", THE_SECRET: SECRET})}
    found = login_of(Options(settings, "a"), RealPorts())
    assert isinstance(found, TokenLogin)
    return found


def to(provider: Provider, **given: object) -> TokenLogin:
    return login_to(f"http://{provider.address}/oauth/token?tenant=1", **given)


def token_in(exchange: ClientExchange) -> str:
    assert isinstance(exchange, BearerClient)
    return exchange.begin().split(b"Bearer ")[1].strip(b"\x01").decode()


@pytest.mark.parametrize("given", [
    {ID: "shop", THE_SECRET: SECRET, "sasl.oauthbearer.scope": "kafka & co"},
    {"sasl.oauthbearer.client.id": "shop", "sasl.oauthbearer.client.secret": SECRET,
     "sasl.oauthbearer.scope": "kafka & co"},
    {"sasl.jaas.config": f'{MODULE} required clientId="shop" clientSecret="{SECRET}" scope="kafka & co";'},
    {"sasl.jaas.config": f'{MODULE} required clientId="shop" clientSecret="{SECRET}";',
     "sasl.oauthbearer.scope": "kafka & co"},
])
async def test_what_is_asked(provider: Provider, given: dict[str, object]) -> None:
    login = to(provider, **given)
    assert token_in(await login.exchange()) == token_in(await login.exchange()) == "a.b.c"
    (asked,) = provider.asked
    head, _, form = asked.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    assert lines[0] == "POST /oauth/token?tenant=1 HTTP/1.1"
    assert form == b"grant_type=client_credentials&scope=kafka+%26+co"
    assert f"Host: {provider.address}" in lines and "Content-Type: application/x-www-form-urlencoded" in lines
    (authorization,) = (line for line in lines if line.startswith("Authorization: Basic "))
    assert base64.b64decode(authorization.split()[2]).decode() == f"shop:{SECRET}"


async def test_id_and_secret_as_in_a_form(provider: Provider) -> None:
    await to(provider, **{ID: "a b", THE_SECRET: SECRET, "sasl.oauthbearer.header.urlencode": True}).exchange()
    (line,) = (line for line in provider.asked[0].split(b"\r\n") if line.startswith(b"Authorization"))
    assert base64.b64decode(line.split()[2]) == b"a+b:hidden%3Aw%C3%B6rd+%2B%25"
    assert provider.asked[0].endswith(b"grant_type=client_credentials")


async def test_the_secret_is_read_from_its_file_each_time(provider: Provider, tmp_path: Path) -> None:
    provider.answer = body(content={"access_token": "a.b.c"})
    file = tmp_path / "secret"
    login = to(provider, **{ID: "shop", "sasl.oauthbearer.client.secret.file": str(file)})
    with pytest.raises(PeerError, match="No such file"):
        await login.exchange()
    for secret in ("first", "second"):
        file.write_text(secret + "\n")
        await login.exchange()
        assert base64.b64encode(f"shop:{secret}".encode()) in provider.asked[-1]


def claims(**content: object) -> str:
    return "e30." + base64.urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=") + ".c2ln"


@pytest.mark.parametrize(("content", "kept_s"), [
    ({"access_token": "a.b.c", "expires_in": 100}, 80), ({"access_token": "a.b.c", "expires_in": "100"}, 80),
    ({"access_token": claims(iat=1_000, exp=1_100)}, 80),  # by the issuer's clock, whatever this one says
    ({"access_token": claims(exp=1_100)}, None), ({"access_token": "opaque"}, None),
    ({"access_token": "a.b.c", "expires_in": 0}, None), ({"access_token": "a.b.c", "expires_in": -5}, None),
    ({"access_token": "a.b.c", "expires_in": True}, None), ({"access_token": "a.!.c", "expires_in": None}, None),
    ({"access_token": "a.b.c", "expires_in": 1e300}, 8e11), ({"access_token": claims(iat=9, exp=5)}, None),
])
async def test_how_long_a_token_is_used(provider: Provider, content: dict[str, object], kept_s: float | None) -> None:
    provider.answer = body(content=content)
    login = to(provider)
    try:
        await login.exchange()
    except PeerError as error:
        assert "characters" in str(error) and content["access_token"] == "a.!.c"
    if kept_s is None:
        assert login._kept is None
    else:
        assert login._kept is not None
        left_ms = login._kept.asks_at - RealPorts().clock.monotonic_ms()
        assert left_ms / 1000 == pytest.approx(kept_s, rel=0.1)


@pytest.mark.parametrize("status", ["400 Bad Request", "401 Unauthorized", "403 Forbidden", "404 Not Found",
                                    "302 Found"])
async def test_a_refusal_is_told_and_is_no_matter_of_time(provider: Provider, status: str) -> None:
    provider.answer = body(
        status, {"error": "invalid_client", "error_description": f"not {SECRET}\x1b[0m"}, "Location: http://other/")
    with pytest.raises(PeerLoginRefused, match=rf"answers {status[:3]}: invalid_client: not \*\*\*\?\[0m") as refused:
        await to(provider).exchange()
    assert refused.value.code == 58 and len(provider.asked) == 1


@pytest.mark.parametrize(("answer", "sentence"), [
    (body("500 Oops", {"error": "x"}), "answers 500: x"), (body("503 Oops", b"<html>"), "answers 503$"),
    (body("429 Slowly", {"error": 7}), "answers 429$"), (body("408 Late", b""), "answers 408$"),
    (b"", "does not answer as HTTP does"), (b"SSH-2.0-x\r\n", "does not answer as HTTP does"),
    (body(content={"access_token": "a.b.c"})[:-3], "does not answer as HTTP does"),
    (body(content=[]), "without an access_token"), (body(content=b"[" * 100_000), "without an access_token"),
    (body(content={"access_token": 7}), "without an access_token"),
    (body(content={"access_token": f"{SECRET}\x01"}), "characters"), (body(content={"access_token": ""}), "empty"),
    (body(content=b"x" * (1 << 20)), "does not answer as HTTP does"),
])
async def test_what_may_pass(provider: Provider, answer: bytes, sentence: str) -> None:
    provider.answer = answer
    with pytest.raises(PeerError, match=sentence) as failed:
        await to(provider).exchange()
    assert not isinstance(failed.value, PeerLoginRefused) and SECRET not in str(failed.value)


async def test_a_provider_that_is_away(provider: Provider) -> None:
    provider.server.close()
    await provider.server.wait_closed() if not provider.server.sockets else None
    with pytest.raises(PeerError, match=r"no token for the login: http://127\.0\.0\.1:1/"):
        await login_to("http://127.0.0.1:1/").exchange()


async def test_a_provider_that_never_answers(provider: Provider) -> None:
    provider.pause = asyncio.Event()
    login = to(provider, **{ID: "shop", THE_SECRET: SECRET, "socket.connection.setup.timeout.ms": 100})
    with pytest.raises(PeerError, match="within"):
        await login.exchange()
    provider.pause.set()


async def test_answers_in_pieces(provider: Provider) -> None:
    provider.answer = (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"9\r\n{\"access_\r\n10\r\ntoken\": \"a.b.c\"}\r\n0\r\n\r\n")
    assert token_in(await to(provider).exchange()) == "a.b.c"


# --- TLS ---------------------------------------------------------------------------------------------------------


def certificate(folder: Path, host: str) -> ssl.SSLContext:
    """Its own authority; also writes it to ca.pem."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "issuer")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
        .serial_number(x509.random_serial_number()).not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256()))
    (folder / "ca.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "ca.pem", folder / "key.pem")
    return context


@pytest.mark.parametrize(("host", "trusted"), [("localhost", True), ("localhost", False), ("elsewhere", True)])
async def test_the_secret_is_sent_to_none_but_the_provider(tmp_path: Path, host: str, trusted: bool) -> None:
    provider = Provider()
    await provider.start(certificate(tmp_path, host))
    url = f"https://localhost:{provider.address.split(':')[1]}/"
    given = {ID: "shop", THE_SECRET: SECRET, **({"https.ca.location": str(tmp_path / "ca.pem")} if trusted else {})}
    login = login_to(url, **given)
    if trusted and host == "localhost":
        assert token_in(await login.exchange()) == "a.b.c"
    else:
        with pytest.raises(PeerDistrusted, match="its certificate is refused"):
            await login.exchange()
        assert provider.asked == []
    provider.server.close()


# --- settings ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("url", "sentence"), [
    ("http://issuer.example/token", "must be https"), ("http://10.0.0.1/", "must be https"),
    ("http://localhost.example/", "must be https"), ("http://127.0.0.1.example/", "must be https"),
    (f"https://shop:{SECRET}@issuer.example/", "must not have a user"), ("https://a/#b", "a fragment"),
    ("https:///token", "a host"), ("https://a:b/", "is no URL"), ("ftp://a/", "must be https"),
    ("https://a/\r\nX: y", "characters"), ("https://a/b c", "characters"), ("https://ä/", "characters"),
    ("https://[::1/", "is no URL"), ("file://x/token", "absolute path"),
])
def test_urls_that_are_refused(url: str, sentence: str) -> None:
    with pytest.raises(SettingsError, match=sentence) as refused:
        login_to(url)
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("url", ["http://127.0.0.2:80/x", "http://[::1]/x", "http://localhost:8080", "https://a.example"])
def test_urls_that_may_be_used(url: str) -> None:
    assert SECRET not in repr(login_to(url))


@pytest.mark.parametrize(("given", "sentence"), [
    ({ID: "shop"}, "each once"), ({THE_SECRET: SECRET}, "each once"),
    ({ID: "shop", "sasl.oauthbearer.client.id": "shop", THE_SECRET: SECRET}, "each once"),
    ({ID: "shop", THE_SECRET: SECRET, "sasl.oauthbearer.client.secret.file": "x"}, "each once"),
    ({ID: "shop", THE_SECRET: SECRET,
      "sasl.jaas.config": f'{MODULE} required clientId="shop" clientSecret="{SECRET}";'}, "each once"),
    ({ID: "shop", THE_SECRET: SECRET + "\0"}, "zero character"),
    ({ID: "shop", THE_SECRET: 7}, "^" + THE_SECRET + ": it"),
    ({ID: "shop", THE_SECRET: SECRET, "sasl.oauthbearer.token.file": "x"}, "needs one of"),
    ({ID: "shop", THE_SECRET: SECRET, "sasl.username": "x"}, "no effect"),
])
def test_settings_that_do_not_fit_together(given: dict[str, object], sentence: str) -> None:
    with pytest.raises(SettingsError, match=sentence) as refused:
        login_to("https://issuer.example/", **given)
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("given", [
    {ID: "shop"}, {THE_SECRET: SECRET}, {"sasl.oauthbearer.scope": "x"}, {"https.ca.location": "x"},
    {"sasl.jaas.config": f'{MODULE} required clientId="shop" clientSecret="{SECRET}";'}])
def test_a_file_needs_none_of_it(given: dict[str, object]) -> None:
    with pytest.raises(SettingsError, match="no effect") as refused:
        login_to("file:///var/token", **given)
    assert SECRET not in str(refused.value)


