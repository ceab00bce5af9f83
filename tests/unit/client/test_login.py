"""sasl.* of the client: what they lead to, where tokens come from, how a refusal is remembered, and what is shown."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hapax.client.credentials import OAuthToken
from hapax.client.environment import Environment
from hapax.client.errors import SaslAuthenticationFailed, SettingsError, from_trouble
from hapax.client.login import ClientLogin, PasswordLogin, TokenLogin, login_of
from hapax.client.settings import Options
from hapax.core.errors import ErrorCode
from hapax.core.producer.error_kinds import ErrorKind
from hapax.core.producer.states import Trouble
from hapax.core.sasl.client import BearerClient, ClientExchange, Derive, PlainClient, ScramClient
from hapax.core.sasl.scram_keys import ScramMechanism
from hapax.wire.peer import PeerError, PeerLoginRefused

SECRET = "hidden word"
JAAS = "org.apache.kafka.common.security.{} required {};"


class Times:
    def __init__(self) -> None:
        self.ms = 1_800_000_000_000
        self.wall_ms = 0
        """By how much it was set."""

    def now_ms(self) -> int:
        return self.ms + self.wall_ms

    def monotonic_ms(self) -> int:
        return self.ms


def ports(times: Times | None = None) -> Environment:
    return Environment(times or Times(), None, random.Random(1))  # type: ignore[arg-type]


def options(**given: object) -> Options:
    dotted = {name.replace("_", "."): value for name, value in given.items()}
    return Options({"bootstrap.servers": "a:1", "security.protocol": "SASL_SSL", **dotted}, "a")


def password_login(mechanism: str = "SCRAM-SHA-256") -> PasswordLogin:
    found = login_of(options(sasl_mechanism=mechanism, sasl_username="alice", sasl_password=SECRET), ports())
    assert isinstance(found, PasswordLogin)
    return found


def token_login(provider: object, times: Times | None = None, **more: object) -> TokenLogin:
    found = login_of(
        options(sasl_mechanism="OAUTHBEARER", sasl_oauthbearer_token_provider=provider, **more), ports(times))
    assert isinstance(found, TokenLogin)
    return found


def token_in(exchange: ClientExchange) -> str:
    assert isinstance(exchange, BearerClient)
    return exchange.begin().split(b"Bearer ")[1].strip(b"\x01").decode()


# --- settings ----------------------------------------------------------------------------------------------------


def test_no_login_is_the_default() -> None:
    assert login_of(Options({"bootstrap.servers": "a:1"}, "a"), ports()) is None


@pytest.mark.parametrize("given", [
    {"sasl_mechanism": "SCRAM-SHA-512", "sasl_username": "alice", "sasl_password": SECRET},
    {"sasl_mechanisms": "SCRAM-SHA-512", "sasl_username": "alice", "sasl_password": SECRET},
    {"sasl_mechanism": "SCRAM-SHA-512",
     "sasl_jaas_config": JAAS.format("scram.ScramLoginModule", f'username="alice" password="{SECRET}"')},
])
async def test_a_name_and_a_password(given: dict[str, object]) -> None:
    found = login_of(options(**given), ports())
    assert found is not None and found.mechanism == "SCRAM-SHA-512"
    exchange = await found.exchange()
    assert isinstance(exchange, ScramClient) and exchange.begin().startswith(b"n,,n=alice,r=")


@pytest.mark.parametrize(("given", "sentence"), [
    ({"security_protocol": "SSL", "sasl_mechanism": "PLAIN"}, "no effect without security.protocol=SASL_SSL"),
    ({}, "needs a sasl.mechanism"),
    ({"sasl_mechanism": "GSSAPI"}, "must be one of SCRAM-SHA-256"),
    ({"sasl_mechanism": "PLAIN"}, "needs sasl.username and sasl.password"),
    ({"sasl_mechanism": "PLAIN", "sasl_username": "a"}, "needs sasl.username and sasl.password"),
    ({"sasl_mechanism": "PLAIN", "sasl_username": "a\0b", "sasl_password": SECRET}, "zero character"),
    ({"sasl_mechanism": "PLAIN", "sasl_username": "a", "sasl_password": 1234567}, "^sasl.password: it must be a text"),
    ({"sasl_mechanism": "PLAIN", "sasl_username": "a", "sasl_password": SECRET, "security_protocol": "SASL_PLAINTEXT"},
     "shows its secret"),
    ({"sasl_mechanism": "PLAIN",
      "sasl_jaas_config": JAAS.format("scram.ScramLoginModule", f'username="a" password="{SECRET}"')},
     "not of sasl.mechanism=PLAIN"),
    ({"sasl_mechanism": "PLAIN", "sasl_username": "a",
      "sasl_jaas_config": JAAS.format("plain.PlainLoginModule", f'username="a" password="{SECRET}"')}, "not both"),
    ({"sasl_mechanism": "PLAIN", "sasl_jaas_config": f"x {SECRET}"}, "^sasl.jaas.config: it must be a line"),
    ({"sasl_mechanism": "OAUTHBEARER"}, "needs one of sasl.oauthbearer.token.file"),
    ({"sasl_mechanism": "OAUTHBEARER", "sasl_oauthbearer_token_file": "x", "sasl_oauthbearer_token_provider": str},
     "needs one of"),
    ({"sasl_mechanism": "OAUTHBEARER", "sasl_oauthbearer_token_provider": "x"}, "a function"),
    ({"sasl_mechanism": "OAUTHBEARER", "sasl_oauthbearer_token_endpoint_url": "https://x/token"}, "client.secret"),
    ({"sasl_mechanism": "OAUTHBEARER", "sasl_oauthbearer_token_endpoint_url": "file://x/token"}, "file://"),
    ({"sasl_mechanism": "OAUTHBEARER", "sasl_login_callback_handler_class": "com.example.Handler"}, "it must be org"),
    ({"sasl_mechanism": "OAUTHBEARER", "sasl_oauthbearer_token_file": "x", "sasl_password": SECRET}, "no effect"),
    ({"sasl_mechanism": "PLAIN", "sasl_username": "a", "sasl_password": SECRET, "sasl_oauthbearer_token_file": "x"},
     "no effect with sasl.mechanism=PLAIN"),
    ({"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "OAUTHBEARER", "sasl_oauthbearer_token_file": "x"},
     "shows its secret"),
])
def test_what_cannot_be_used_is_refused(given: dict[str, object], sentence: str) -> None:
    with pytest.raises(SettingsError, match=sentence) as refused:
        login_of(options(**given), ports())
    assert SECRET not in str(refused.value) and "1234567" not in str(refused.value)


def test_scram_needs_no_tls() -> None:
    given = {"sasl_mechanism": "SCRAM-SHA-256", "sasl_username": "a", "sasl_password": SECRET}
    assert login_of(options(security_protocol="SASL_PLAINTEXT", **given), ports()) is not None


# --- secrets -----------------------------------------------------------------------------------------------------


async def test_nothing_shows_a_secret() -> None:
    login = password_login()
    exchange = await login.exchange()
    plain = await password_login("PLAIN").exchange()
    assert isinstance(plain, PlainClient)
    found = OAuthToken(SECRET, 1)
    read = options(sasl_mechanism="PLAIN", sasl_username="alice", sasl_password=SECRET)
    for each in (login, exchange, plain, found, read, token_login(lambda: SECRET)):
        assert SECRET not in repr(each) and SECRET not in str(each)
    assert login.shown(f"you said {SECRET}!") == "you said ***!"


async def test_keys_of_a_password_are_computed_once() -> None:
    login = password_login()
    work = Derive(ScramMechanism.SCRAM_SHA_256, b"salt", 4096)
    for number in range(3):
        exchange = await login.exchange()
        assert isinstance(exchange, ScramClient)
        nonce = exchange.begin().split(b"r=")[1]
        asked = exchange.step(b"r=" + nonce + b"x,s=c2FsdA==,i=4096")
        assert asked == work
        await login.derive(exchange, work)
        assert list(login._keys) == [work], number


async def test_nonces_differ() -> None:
    login = password_login()
    assert len({(await login.exchange()).begin() for _ in range(50)}) == 50


# --- tokens ------------------------------------------------------------------------------------------------------


class Source:
    """Tokens t1, t2, ... that last a hundred seconds."""

    def __init__(self, times: Times) -> None:
        self.times = times
        self.asked = 0

    def __call__(self) -> tuple[str, int]:
        self.asked += 1
        return f"t{self.asked}", self.times.ms + 100_000

    async def later(self) -> OAuthToken:
        return OAuthToken(*self())


@pytest.mark.parametrize("way", ["sync", "async"])
async def test_a_token_is_kept_for_four_fifths_of_its_time(way: str) -> None:
    times = Times()
    source = Source(times)
    login = token_login(source if way == "sync" else source.later, times)
    seen = []
    for at_s in (0, 79, 80, 159, 160, 500):
        times.ms = 1_800_000_000_000 + at_s * 1000
        seen.append(token_in(await login.exchange()))
    assert seen == ["t1", "t1", "t2", "t2", "t3", "t4"]


async def test_connections_that_log_in_at_once_share_a_token() -> None:
    times = Times()
    source = Source(times)
    login = token_login(source.later, times)
    found = await asyncio.gather(*(login.exchange() for _ in range(5)))
    assert source.asked == 1 and {token_in(each) for each in found} == {"t1"}


async def test_a_token_of_unknown_end_is_asked_for_each_time() -> None:
    tokens = iter("abc")
    login = token_login(lambda: next(tokens))
    assert [token_in(await login.exchange()) for _ in range(3)] == ["a", "b", "c"]


async def test_a_refused_token_is_not_used_again() -> None:
    times = Times()
    login = token_login(Source(times), times)
    assert token_in(await login.exchange()) == "t1"
    login.refused(PeerLoginRefused("no", 58), "a:1")
    assert token_in(await login.exchange()) == "t2"


@pytest.mark.parametrize("way", ["ours", "of Kafka's tools"])
async def test_the_file_is_read_for_each_login(tmp_path: Path, way: str) -> None:
    file = tmp_path / "to ken"
    given: dict[str, object] = {"sasl_oauthbearer_token_file": str(file)} if way == "ours" else {
        "sasl_oauthbearer_token_endpoint_url": file.as_uri(),
        "sasl_login_callback_handler_class":
            "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler",
        "sasl_jaas_config": JAAS.format("oauthbearer.OAuthBearerLoginModule", "")}
    login = login_of(options(sasl_mechanism="OAUTHBEARER", **given), ports())
    assert login is not None
    with pytest.raises(PeerError, match="No such file"):
        await login.exchange()
    for token in ("first.a.b", "second.a.b"):
        file.write_text(token + "\n")
        assert token_in(await login.exchange()) == token
    file.write_text("")
    with pytest.raises(PeerError, match="empty"):
        await login.exchange()


async def test_a_token_is_used_to_its_end_where_another_one_cannot_be_had() -> None:
    """An issuer that is away for a minute ends no client, and is not waited for by each connection."""
    times = Times()
    source = Source(times)
    away = False

    async def fetch() -> OAuthToken:
        source.asked += away
        if away:
            raise OSError("away")
        return await source.later()

    login = token_login(fetch, times)
    assert token_in(await login.exchange()) == "t1"
    away = True
    asked = []
    for at_s in (79, 80, 84, 86, 99):
        times.ms = 1_800_000_000_000 + at_s * 1000
        assert token_in(await login.exchange()) == "t1"
        asked.append(source.asked)
    assert asked == [1, 2, 2, 3, 4]
    times.ms += 1000
    with pytest.raises(PeerError, match="away"):
        await login.exchange()
    away = False
    assert token_in(await login.exchange()) == "t6"


async def test_a_clock_that_is_set_changes_nothing() -> None:
    """A token's time is counted by the clock that is not set."""
    times = Times()
    source = Source(times)
    login = token_login(source, times)
    await login.exchange()
    times.wall_ms = 3_600_000
    assert token_in(await login.exchange()) == "t1"
    times.wall_ms = -3_600_000
    times.ms += 81_000
    assert token_in(await login.exchange()) == "t2"


async def test_another_token_is_tried_where_one_of_an_earlier_login_is_refused() -> None:
    """The server's clock may be ahead of this one."""
    times = Times()
    login = token_login(Source(times), times)
    first = await login.exchange()
    assert not await login.outdated(first), "it came for this very login"
    kept = await login.exchange()
    assert token_in(kept) == "t1" and await login.outdated(kept)
    last = await login.exchange()
    assert token_in(last) == "t2" and not await login.outdated(last)


async def test_a_function_that_blocks_costs_one_thread_however_often_it_is_asked() -> None:
    """Threads are few. With none left, no password would be hashed and no file read any more."""
    go = threading.Event()
    calls = []

    def blocks() -> str:
        calls.append(1)
        assert go.wait(60)
        return "a.b.c"

    login = token_login(blocks, socket_connection_setup_timeout_ms=1)
    for _ in range(50):
        with pytest.raises(PeerError, match="within"):
            await login.exchange()
    assert len(calls) == 1
    go.set()
    login._timeout_s = 60
    assert token_in(await login.exchange()) == "a.b.c"


async def test_a_client_that_is_closed_waits_for_no_token() -> None:
    never = asyncio.Event()

    async def hang() -> str:
        await never.wait()
        return ""

    login = token_login(hang)
    waiting = asyncio.ensure_future(login.exchange())
    cancelled = asyncio.ensure_future(login.exchange())
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.sleep(0)
    login.close()
    with pytest.raises(PeerError, match="closed"):
        await waiting
    with pytest.raises(asyncio.CancelledError):
        await cancelled


def raising() -> str:
    raise ValueError(f"the secret is {SECRET}")


@pytest.mark.parametrize(("provider", "sentence"), [
    (lambda: 7, "must return a text"),
    (lambda: ("a.b.c", "soon"), "must be a number"),
    (lambda: ("a.b.c", 1_900_000_000), "not in seconds"),
    (lambda: ("a.b.c", 1_700_000_000_000), "has expired"),
    (lambda: SECRET, "characters"),
    (lambda: "", "empty"),
    (raising, "raised ValueError"),
])
async def test_tokens_that_cannot_be_used(provider: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(PeerError, match=sentence) as refused:
        await token_login(provider).exchange()
    assert SECRET not in str(refused.value)


async def test_a_provider_that_hangs_is_given_up() -> None:
    never = asyncio.Event()

    async def hang() -> str:
        await never.wait()
        return ""

    with pytest.raises(PeerError, match="within"):
        await token_login(hang, socket_connection_setup_timeout_ms=1).exchange()


# --- passwords in files ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
async def test_a_password_file_is_read_for_each_login(tmp_path: Path, mechanism: str) -> None:
    file = tmp_path / "password"
    login = login_of(options(
        sasl_mechanism=mechanism, sasl_username="alice", sasl_password_file=str(file)), ports())
    assert isinstance(login, PasswordLogin)
    with pytest.raises(PeerError, match="No such file"):
        await login.exchange()
    file.write_bytes("wörd \u2028 1\r\nnot this\n".encode())
    first = await login.exchange()
    work = Derive(ScramMechanism.SCRAM_SHA_256, b"salt", 4096)
    if mechanism == "PLAIN":
        assert first.begin() == "\0alice\0wörd \u2028 1".encode()
    else:
        await login.derive(first, work)
        assert login._keys[work] == work.outcome("wörd \u2028 1")
    assert not await login.outdated(first)
    file.write_text(SECRET)
    assert await login.outdated(first), "it was replaced: the login is tried again"
    second = await login.exchange()
    assert not await login.outdated(second) and login.shown(SECRET) == "***"
    if mechanism != "PLAIN":
        await login.derive(second, work)
        assert login._keys == {work: work.outcome(SECRET)}
    for content, sentence in ((b"", "is empty"), (b"\n", "is empty"), (b"\xff", "not UTF-8"), (b"a\0", "zero")):
        file.write_bytes(content)
        with pytest.raises(PeerError, match=sentence):
            await login.exchange()


async def test_a_password_that_is_replaced_amid_a_login_leaves_no_wrong_keys(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("former")
    login = login_of(options(
        sasl_mechanism="SCRAM-SHA-256", sasl_username="alice", sasl_password_file=str(file)), ports())
    assert isinstance(login, PasswordLogin)
    former = await login.exchange()
    file.write_text("present")
    present = await login.exchange()
    work = Derive(ScramMechanism.SCRAM_SHA_256, b"salt", 4096)
    await login.derive(former, work)
    assert login._keys == {}
    await login.derive(present, work)
    assert login._keys == {work: work.outcome("present")}


@pytest.mark.parametrize(("given", "sentence"), [
    ({"sasl_username": "a", "sasl_password": SECRET, "sasl_password_file": "x"}, "not both"),
    ({"sasl_password_file": "x"}, "needs sasl.username"),
    ({"sasl_password_file": "x",
      "sasl_jaas_config": JAAS.format("plain.PlainLoginModule", f'username="a" password="{SECRET}"')}, "not both"),
    ({"sasl_username": "a", "sasl_password": SECRET, "sasl_mechanisms": "SCRAM-SHA-256"}, "two names of one"),
])
def test_settings_of_passwords_that_contradict_each_other(given: dict[str, object], sentence: str) -> None:
    with pytest.raises(SettingsError, match=sentence) as refused:
        login_of(options(sasl_mechanism="PLAIN", **given), ports())
    assert SECRET not in str(refused.value)


# --- refusals ----------------------------------------------------------------------------------------------------


async def right() -> str:
    return "right"


def refuses(login: ClientLogin) -> bool:
    try:
        login.check("b:2")
    except SaslAuthenticationFailed as error:
        assert error.code == 58 and "no entry" in str(error)
        return True
    return False


def test_a_refused_login_is_asked_again_ever_more_rarely() -> None:
    times = Times()
    login = PasswordLogin(ports(times), "PLAIN", "app", right)
    pauses = []
    for _ in range(8):
        assert not refuses(login)
        login.refused(PeerLoginRefused("no entry", 58), "a:1")
        login.refused(PeerLoginRefused("no entry", 58), "a:1")  # another connection, at the same time
        began = times.ms
        while refuses(login):
            times.ms += 500
        pauses.append((times.ms - began) // 1000)
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]
    login.succeeded("a:1")
    login.refused(PeerLoginRefused("no entry", 58), "a:1")
    times.ms += 1000
    assert not refuses(login)


@pytest.mark.parametrize("code", [33, 34])
def test_a_server_without_the_mechanism_keeps_no_one_from_others(code: int) -> None:
    """Servers are set up one after the other."""
    login = PasswordLogin(ports(), "PLAIN", "app", right)
    login.refused(PeerLoginRefused("not here", code), "a:1")
    login.check("b:2")
    with pytest.raises(SaslAuthenticationFailed, match="not here"):
        login.check("a:1")
    login.succeeded("b:2")
    with pytest.raises(SaslAuthenticationFailed):
        login.check("a:1")
    login.succeeded("a:1")
    login.check("a:1")


def test_sessions_are_renewed_before_they_end_at_different_times() -> None:
    login = PasswordLogin(ports(), "PLAIN", "app", right)
    found = [login.renew_after_s(100_000) for _ in range(200)]
    assert 85 <= min(found) < 87 and 93 < max(found) <= 95


@pytest.mark.parametrize("kind", [ErrorKind.FATAL, ErrorKind.REFUSED])
def test_a_producer_that_is_not_let_in_says_so(kind: ErrorKind) -> None:
    error = from_trouble(Trouble(kind, ErrorCode.SASL_AUTHENTICATION_FAILED, "no entry"), maybe_written=True)
    assert isinstance(error, SaslAuthenticationFailed) and error.maybe_written
