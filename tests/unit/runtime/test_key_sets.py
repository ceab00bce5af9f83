"""The keys of an issuer of tokens: when they are read, and from where. Abuse cases 17 and 18."""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import json
import socket
import threading
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path

import pytest

from hapax.core.sasl.exchange import Failure, Success
from hapax.runtime.key_sets import LEAST_PAUSE_S, IssuerKeys, read_document
from hapax.runtime.sasl_settings import SaslSettings, enabled_mechanisms
from unit.codec.test_json_web_tokens import EC_KEY, ED_KEY, NOW, RULES, entry, token


class Issuer:
    """Serves a key set, or fails."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.document: bytes | Exception = document("ec")
        self.reads = 0
        self.keys = IssuerKeys(self.fetch, RULES, lambda: self.now)

    async def fetch(self) -> bytes:
        self.reads += 1
        await asyncio.sleep(0)
        if isinstance(self.document, Exception):
            raise self.document
        return self.document


def document(*ids: str) -> bytes:
    return json.dumps({"keys": [entry(EC_KEY, each) for each in ids]}).encode()


async def test_the_first_tokens_wait_for_one_read() -> None:
    issuer = Issuer()
    outcomes = await asyncio.gather(*(issuer.keys.check(token(), NOW) for _ in range(5)))
    assert all(isinstance(each, Success) for each in outcomes) and issuer.reads == 1


async def test_unknown_keys_cause_one_read_a_minute() -> None:
    """Abuse case 17."""
    issuer = Issuer()
    await issuer.keys.refresh()
    issuer.now += LEAST_PAUSE_S
    for number in range(50):
        assert isinstance(await issuer.keys.check(token(kid=f"random{number}"), NOW), Failure)
        issuer.now += 1
    assert issuer.reads == 2
    issuer.now += LEAST_PAUSE_S
    issuer.document = document("ec", "new")
    assert isinstance(await issuer.keys.check(token(kid="new"), NOW), Success)
    assert issuer.reads == 3


@pytest.mark.parametrize("failure", [OSError("away"), b"rubbish"])
async def test_a_failed_read_keeps_the_known_keys(failure: Exception | bytes) -> None:
    """Abuse case 18."""
    issuer = Issuer()
    await issuer.keys.refresh()
    issuer.document = failure
    await issuer.keys.refresh()
    assert isinstance(await issuer.keys.check(token(), NOW), Success)
    assert issuer.keys.reads == {"succeeded": 1, "failed": 1}
    issuer.now += LEAST_PAUSE_S
    assert isinstance(await issuer.keys.check(token(kid="new"), NOW), Failure)


async def test_a_key_that_is_withdrawn_opens_nothing() -> None:
    issuer = Issuer()
    await issuer.keys.refresh()
    issuer.document = json.dumps({"keys": [entry(ED_KEY, "ec")]}).encode()
    await issuer.keys.refresh()
    assert isinstance(await issuer.keys.check(token(), NOW), Failure)


async def test_while_no_keys_are_known_they_are_read_more_often() -> None:
    issuer = Issuer()
    issuer.document = OSError("away")
    assert isinstance(await issuer.keys.check(token(), NOW), Failure)
    issuer.document = document("ec")
    assert isinstance(await issuer.keys.check(token(), NOW), Failure)
    issuer.now += 1
    assert isinstance(await issuer.keys.check(token(), NOW), Success)
    assert issuer.reads == 2


# --- where they are read ----------------------------------------------------------------------------------------------


class Handler(http.server.BaseHTTPRequestHandler):
    seen: list[dict[str, str]]

    def do_GET(self) -> None:
        self.seen.append(dict(self.headers))
        if self.path == "/elsewhere":
            self.send_response(302)
            self.send_header("Location", "/keys")
            self.end_headers()
            return
        body = b"x" * (2 << 20) if self.path == "/large" else document("ec")
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None: ...


@pytest.fixture
def server() -> Iterator[str]:
    Handler.seen = []
    running = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=running.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{running.server_address[1]}"
    running.shutdown()
    running.server_close()


def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / "key set.json"
    path.write_bytes(document("ec"))
    assert read_document(path.as_uri()) == document("ec")
    with pytest.raises(OSError, match="No such file"):
        read_document("file:///no/file")


def test_an_url(server: str, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret")
    assert read_document(f"{server}/keys", token_location=str(tmp_path / "token")) == document("ec")
    assert "Authorization" not in Handler.seen[0]  # not in clear
    with pytest.raises(OSError, match="302"):  # only what is allowed is fetched
        read_document(f"{server}/elsewhere")
    with pytest.raises(ValueError, match="more than"):
        read_document(f"{server}/large")


def test_a_token_that_cannot_be_sent_is_not_told(tmp_path: Path) -> None:
    """What a read fails with is logged."""
    for text in ("eyJhbGci\nOiJub25l", "eyJhbGci\x00OiJub25l", "eyJhbGci OiJub25l\xe4", ""):
        (tmp_path / "token").write_text(text)
        with pytest.raises(ValueError, match="token") as raised:
            read_document("https://127.0.0.1:1/keys", token_location=str(tmp_path / "token"))
        assert "eyJh" not in str(raised.value) and "OiJub25l" not in str(raised.value)


@pytest.mark.parametrize("sends", [b"HTTP/1.0 200 OK\r\n\r\n", b"HTTP/1.0 200 OK\r\nX: "])
def test_an_issuer_that_sends_its_keys_byte_by_byte_is_given_up(sends: bytes) -> None:
    """While one read goes on, no other begins, and a key that was withdrawn would stay."""
    stop = threading.Event()

    def drip(listening: socket.socket) -> None:
        client, _ = listening.accept()
        with client, contextlib.suppress(OSError):
            client.sendall(sends)
            while not stop.wait(0.02):
                client.sendall(b" ")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=drip, args=(listening,))
        thread.start()
        try:
            with pytest.raises((OSError, ValueError, HTTPException)):
                read_document(f"http://127.0.0.1:{listening.getsockname()[1]}/keys", whole_s=0.3)
        finally:
            stop.set()
            thread.join(30)
    assert not thread.is_alive()


# --- settings ---------------------------------------------------------------------------------------------------------

TOKENS = {
    "sasl_enabled_mechanisms": "OAUTHBEARER", "sasl_oauthbearer_expected_issuer": "i",
    "sasl_oauthbearer_expected_audience": "a", "sasl_oauthbearer_jwks_endpoint_url": "file:///keys"}


@pytest.mark.parametrize(("settings", "tls", "sentence"), [
    ({"sasl_enabled_mechanisms": "GSSAPI"}, True, "GSSAPI is none of"),
    ({"sasl_enabled_mechanisms": ""}, True, "is empty"),
    ({"sasl_enabled_mechanisms": "SCRAM-SHA-256,PLAIN"}, False, "passwords in clear"),
    (TOKENS, False, "tokens in clear"),
    ({**TOKENS, "sasl_oauthbearer_expected_issuer": ""}, True, "needs sasl.oauthbearer.expected.issuer"),
    ({**TOKENS, "sasl_oauthbearer_expected_audience": ""}, True, "needs sasl.oauthbearer.expected.audience"),
    ({**TOKENS, "sasl_oauthbearer_jwks_endpoint_url": ""}, True, "needs sasl.oauthbearer.jwks.endpoint.url"),
    ({**TOKENS, "sasl_oauthbearer_jwks_endpoint_url": "https://x/keys"}, True, "does not list https://x/keys"),
])
def test_settings_that_would_let_somebody_in_are_refused(settings: dict[str, str], tls: bool, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        enabled_mechanisms(SaslSettings(**settings), tls=tls)  # type: ignore[arg-type]


def test_settings_that_fit_together() -> None:
    assert enabled_mechanisms(SaslSettings(), tls=False) == ("SCRAM-SHA-256", "SCRAM-SHA-512")
    plain = SaslSettings(sasl_enabled_mechanisms="plain, SCRAM-SHA-512", sasl_allow_secrets_without_tls=True)
    assert enabled_mechanisms(plain, tls=False) == ("PLAIN", "SCRAM-SHA-512")
    listed = {**TOKENS, "sasl_oauthbearer_jwks_endpoint_url": "https://x/keys",
              "sasl_oauthbearer_allowed_urls": "https://y/keys, https://x/keys"}
    assert enabled_mechanisms(SaslSettings(**listed), tls=True) == ("OAUTHBEARER",)
