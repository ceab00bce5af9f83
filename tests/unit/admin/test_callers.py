"""Who sends a request: each way in gives the principal that a Kafka listener would give, and nothing else gives one."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from pathlib import Path
from typing import Any

import pytest

from hapax.core.access.principals import user
from hapax.local.authority import Authority
from hapax.runtime.authorization_header import MOST_REMEMBERED, REMEMBERED_MS, RightPasswords
from hapax.runtime.settings import Settings, SettingsError, load
from unit.admin.rest_world import Clock, Random, Rest, basic, bearer
from unit.codec.test_json_web_tokens import EC_KEY, NOW, entry, token

VERSION = "/v1/version"
PASSWORD = "correct horse"


@pytest.fixture
async def rest(tmp_path: Path) -> Rest:
    made = Rest(tmp_path, ways="tokens,passwords,certificates", bindings=[])
    made.set_password("alice", PASSWORD)
    return made


async def who(rest: Rest, auth: str | None, certificate: bytes = b"") -> str:
    scope: Any = {"client": ("192.0.2.7", 2), "state": {"certificate": certificate}}
    return (await rest.callers.identify(scope, auth)).principal


def certificate(subject: str) -> bytes:
    return ssl.PEM_cert_to_DER_cert(Authority.make().issue(subject, use="client").certificate.decode())


async def test_each_way_in_gives_its_principal(rest: Rest) -> None:
    assert await who(rest, bearer("billing")) == user("billing")
    assert await who(rest, basic("alice", PASSWORD)) == user("alice")
    assert await who(rest, None, certificate("CN=carol,O=shop")) == user("CN=carol,O=shop")
    assert await who(rest, basic("alice", PASSWORD), certificate("CN=carol")) == user("alice"), "the header counts"


def issuing(folder: Path) -> Settings:
    keys = folder / "keys.json"
    keys.write_text(json.dumps({"keys": [entry(EC_KEY, "ec")]}))
    return Settings(
        admin_auth="tokens,oauthbearer", admin_security_protocol="SSL",
        sasl_oauthbearer_expected_issuer="https://issuer", sasl_oauthbearer_expected_audience="hapax",
        sasl_oauthbearer_jwks_endpoint_url=keys.as_uri())


@pytest.mark.parametrize(("claims", "principal"), [
    ({}, user("alice")), ({"sub": "system:serviceaccount:team:loader"}, user("system:serviceaccount:team:loader")),
    ({"aud": "other"}, None), ({"iss": "https://elsewhere"}, None), ({"exp": NOW - 60}, None), ({"exp": None}, None),
    ({"nbf": NOW + 60}, None), ({"sub": "ANONYMOUS"}, None), ({"kid": "random"}, None),
])
async def test_signed_tokens(tmp_path: Path, claims: dict[str, Any], principal: str | None) -> None:
    """Abuse case 16."""
    rest = Rest(tmp_path, settings=issuing(tmp_path), bindings=[])
    rest.clock.ms = NOW * 1000
    auth = f"Bearer {token(**claims)}"
    if principal is not None:
        assert await who(rest, auth) == principal
        return
    refused = await rest.ask("GET", VERSION, auth=auth)
    assert refused.status == 401 and refused.body["detail"] == "The credentials are not valid."
    assert refused.headers["WWW-Authenticate"] == 'Bearer realm="hapax", error="invalid_token"'


async def test_no_algorithm_is_none(tmp_path: Path) -> None:
    """Abuse case 16."""
    rest = Rest(tmp_path, settings=issuing(tmp_path), bindings=[])
    head, claims, _ = token().split(".")
    bare = base64.urlsafe_b64encode(b'{"alg":"none","kid":"ec"}').rstrip(b"=").decode()
    for text in (f"{bare}.{claims}.", f"{head}.{claims}.", "a.b.c", "x" * 15_000):
        assert (await rest.ask("GET", VERSION, auth=f"Bearer {text}")).status == 401


@pytest.mark.parametrize("auth", [
    None, "", "Bearer", "Bearer  ", "Basic", "Basic !", "Basic " + base64.b64encode(b"alice").decode(),
    basic("alice", ""), basic("", PASSWORD), basic("alice", PASSWORD + "x"), basic("no-user-of-this-name", PASSWORD),
    basic("alice\0bob", PASSWORD), basic("a" * 5000, PASSWORD), "Digest x", "bearer-token-without-a-kind",
    basic("alice", "x" * 10_000), "Basic " + base64.b64encode(b"\xff\xfe:x").decode(), "Basic \xe4",
])
async def test_who_is_not_known_is_told_so_alike_and_leaves_nothing(rest: Rest, auth: str | None) -> None:
    """Nothing of its body is read, and its idempotency key leaves nothing."""
    headers = {} if auth is None else {"authorization": auth}
    refused = await rest.ask("POST", "/v1/topics", {"name": "t"}, idempotency_key="mine", **headers)
    assert refused.status == 401 and refused.headers["connection"] == "close"
    assert refused.headers["WWW-Authenticate"].startswith('Bearer realm="hapax"')
    assert 'Basic realm="hapax", charset="UTF-8"' in refused.headers["WWW-Authenticate"]
    assert refused.body["type"] == "urn:hapax:problem:unauthorized"
    wanted = "Send credentials, in the header Authorization or as a client's certificate."
    assert refused.body["detail"] == (wanted if auth is None else "The credentials are not valid.")
    assert rest.read == 0
    assert rest.store.model.list("/") == ([], 1)


async def test_an_unknown_user_is_answered_as_a_wrong_password_is(rest: Rest) -> None:
    """Abuse case 13: the same bytes, after the same number of rounds."""
    computed = Counting(rest)
    answers = [await rest.ask("GET", VERSION, auth=basic(name, "wrong")) for name in ("alice", "no-user-of-this-name")]
    assert computed.count == 2
    assert answers[0] == answers[1]
    rounds = {rest.scram.find_for_plain(name).iterations for name in ("alice", "no-user-of-this-name")}
    assert rounds == {4096}


async def test_a_wrong_header_is_refused_whatever_certificate_goes_with_it(rest: Rest) -> None:
    shown = certificate("CN=carol")
    assert (await rest.ask("GET", VERSION, certificate=shown)).status == 200
    assert (await rest.ask("GET", VERSION, certificate=shown, auth=basic("alice", "wrong"))).status == 401
    assert (await rest.ask("GET", VERSION, certificate=shown, auth="Bearer unknown")).status == 401


async def test_a_certificate_that_no_rule_maps_gives_nothing(tmp_path: Path) -> None:
    """Abuse cases 6 and 7."""
    settings = Settings(
        admin_auth="certificates", admin_security_protocol="SSL", ssl_client_auth="required",
        ssl_principal_mapping_rules="RULE:^CN=([a-z]+)$/$1/")
    rest = Rest(tmp_path, settings=settings, bindings=[])
    assert await who(rest, None, certificate("CN=admin")) == user("admin")
    for subject in (r"O=x\,CN=admin", "CN=admin,O=shop"):
        refused = await rest.ask("GET", VERSION, certificate=certificate(subject))
        assert refused.status == 401 and refused.headers["WWW-Authenticate"] == 'ClientCertificate realm="hapax"'
    assert (await rest.ask("GET", VERSION, certificate=b"rubbish")).status == 401
    assert (await rest.ask("GET", VERSION)).status == 401


async def test_certificates_count_only_where_they_are_a_way_in(tmp_path: Path) -> None:
    rest = Rest(tmp_path, ways="tokens", bindings=[])
    assert (await rest.ask("GET", VERSION, certificate=certificate("CN=carol"))).status == 401
    assert (await rest.ask("GET", VERSION, auth=basic("alice", PASSWORD))).status == 401


class Counting:
    """Counts the passwords that are computed."""

    def __init__(self, rest: Rest) -> None:
        self.count = 0
        checks = rest.callers._logins._checks  # type: ignore[union-attr]
        run = checks.run

        async def counted(address: str, check: Any) -> Any:
            self.count += 1
            return await run(address, check)

        checks.run = counted  # type: ignore[method-assign]


async def test_a_right_password_is_computed_once_a_minute(rest: Rest) -> None:
    computed = Counting(rest)
    for _ in range(5):
        assert (await rest.ask("GET", VERSION, auth=basic("alice", PASSWORD))).status == 200
    assert computed.count == 1
    rest.clock.ms += REMEMBERED_MS
    assert (await rest.ask("GET", VERSION, auth=basic("alice", PASSWORD))).status == 200
    assert computed.count == 2


async def test_a_wrong_password_is_computed_each_time(rest: Rest) -> None:
    computed = Counting(rest)
    for _ in range(3):
        assert (await rest.ask("GET", VERSION, auth=basic("alice", "wrong"))).status == 401
    assert computed.count == 3


@pytest.mark.parametrize("following", [None, "another one"])
async def test_a_password_that_was_changed_counts_no_more_from_the_next_request_on(
    rest: Rest, following: str | None
) -> None:
    """Abuse case 27."""
    assert (await rest.ask("GET", VERSION, auth=basic("alice", PASSWORD))).status == 200
    rest.set_password("alice", following)
    assert (await rest.ask("GET", VERSION, auth=basic("alice", PASSWORD))).status == 401
    if following:
        assert (await rest.ask("GET", VERSION, auth=basic("alice", following))).status == 200


async def test_a_password_that_is_changed_while_it_is_checked_opens_nothing(rest: Rest) -> None:
    checks = rest.callers._logins._checks  # type: ignore[union-attr]
    run = checks.run

    async def changing(address: str, check: Any) -> Any:
        outcome = await run(address, check)
        rest.set_password("alice", "another one")
        return outcome

    checks.run = changing  # type: ignore[method-assign]
    assert (await rest.ask("GET", VERSION, auth=basic("alice", PASSWORD))).status == 401


async def test_what_is_remembered_is_bounded_and_is_no_password(rest: Rest) -> None:
    known = RightPasswords(rest.scram, Clock(), Random())  # type: ignore[arg-type]
    credential = rest.scram.find_for_plain("alice")
    for number in range(MOST_REMEMBERED + 10):
        known.remember("alice", f"{PASSWORD} {number}", credential)
    assert len(known) == MOST_REMEMBERED
    assert known.find("alice", f"{PASSWORD} 0") is None
    assert known.find("alice", f"{PASSWORD} {MOST_REMEMBERED}") == credential
    assert PASSWORD.encode() not in repr(vars(known)).encode()


async def test_name_and_password_are_not_mixed_up(rest: Rest) -> None:
    rest.set_password("ab", "c")
    rest.set_password("a", "bc")
    known = RightPasswords(rest.scram, Clock(), Random())  # type: ignore[arg-type]
    known.remember("ab", "c", rest.scram.find_for_plain("ab"))
    assert known.find("ab", "c") is not None and known.find("a", "bc") is None


async def test_who_is_anonymous_may_do_what_acls_permit_to_everybody(tmp_path: Path) -> None:
    closed = Rest(tmp_path, ways="none", bindings=[])
    assert (await closed.ask("GET", "/v1/nodes")).status == 403
    opened: Any = Rest(tmp_path, ways="none")
    scope: Any = {"client": ("192.0.2.7", 2), "state": {}}
    assert (await opened.callers.identify(scope, None)).principal == user("ANONYMOUS")


async def test_logins_are_counted(rest: Rest) -> None:
    await rest.ask("GET", VERSION, auth=basic("alice", PASSWORD))
    await rest.ask("GET", VERSION, auth=basic("alice", "wrong"))
    await rest.ask("GET", VERSION, auth="Bearer unknown")
    outcomes = rest.callers._outcomes
    assert outcomes.labels("passwords", "succeeded").value == 1
    assert outcomes.labels("passwords", "failed").value == outcomes.labels("tokens", "failed").value == 1


async def test_many_at_once_do_not_keep_others_out(rest: Rest) -> None:
    """A password is computed beside the loop: whoever has a token does not wait."""
    guesses = [asyncio.create_task(rest.ask("GET", VERSION, auth=basic("alice", f"guess {n}"))) for n in range(20)]
    await asyncio.sleep(0)
    assert (await rest.ask("GET", VERSION, auth=bearer("billing"))).status == 200
    assert not all(each.done() for each in guesses)
    assert {each.status for each in await asyncio.gather(*guesses)} == {401}


@pytest.mark.parametrize(("settings", "why"), [
    ({"admin_auth": "passwords"}, "without TLS"), ({"admin_auth": "oauthbearer"}, "without TLS"),
    ({"admin_auth": "certificates"}, "admin.security.protocol"),
    ({"admin_auth": "certificates", "admin_security_protocol": "SSL"}, "ssl.client.auth"),
    ({"admin_auth": "oauthbearer", "admin_security_protocol": "SSL"}, "sasl.oauthbearer.expected.issuer"),
])
async def test_ways_that_cannot_be_are_refused_at_the_start(
    tmp_path: Path, settings: dict[str, Any], why: str
) -> None:
    with pytest.raises(SettingsError, match=why):
        Rest(tmp_path, settings=Settings(**settings))


@pytest.mark.parametrize("given", ["tokens,none", "", "password", "none,none"])
def test_no_other_ways_can_be_set(given: str) -> None:
    with pytest.raises(SettingsError, match=r"admin\.auth"):
        load([f"admin.auth={given}"], environment={})
    assert load(["admin.auth=tokens, certificates"], environment={}).admin_ways == ("tokens", "certificates")


async def test_failed_logins_and_refusals_are_audited_without_secrets(rest: Rest) -> None:
    await rest.ask("GET", VERSION)
    await rest.ask("GET", VERSION, auth=basic("alice", "a-wrong-one"))
    await rest.ask("GET", VERSION, auth="Bearer a-token-of-nobody")
    await rest.ask("GET", VERSION, certificate=b"rubbish")
    await rest.ask("DELETE", "/v1/topics/t", auth=bearer("viewer"))
    await rest.ask("GET", "/v1/topics/t", auth=bearer("billing"))
    found = [
        (event, who, fields.get("mechanism", fields.get("operation"))) for event, who, _, fields in rest.audit.lines]
    assert found == [
        ("login_failed", None, ""), ("login_failed", None, "Basic"), ("login_failed", None, "Bearer"),
        ("login_failed", None, "TLS"), ("refused", user("viewer"), "DELETE"), ("refused", user("billing"), "Describe")]
    assert {address for _, _, address, _ in rest.audit.lines} == {"192.0.2.7"}
    assert "a-wrong-one" not in str(rest.audit.lines) and "a-token-of-nobody" not in str(rest.audit.lines)


async def test_logins_that_wait_are_bounded(rest: Rest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who sends a request and closes the connection waits on: the number of connections does not bound it."""
    assert (await rest.ask("GET", VERSION, auth=basic("alice", PASSWORD))).status == 200
    monkeypatch.setattr("hapax.runtime.authorization_header.MOST_WAITING", 0)
    refused = await rest.ask("GET", VERSION, auth=basic("alice", "wrong"))
    assert refused.status == 503 and refused.body["retriable"]
    assert (await rest.ask("GET", VERSION, auth=basic("alice", PASSWORD))).status == 200
    assert (await rest.ask("GET", VERSION, auth=bearer("billing"))).status == 200


async def test_two_headers_are_no_login(rest: Rest) -> None:
    """A proxy that judges by one of them must not be told by the other."""
    for first, second in ((bearer("billing"), bearer("boss")), (bearer("boss"), "Bearer unknown")):
        sent: list[Any] = []

        async def send(message: Any, sent: list[Any] = sent) -> None:
            sent.append(message)

        await rest.gate({
            "type": "http", "method": "GET", "path": VERSION, "query_string": b"", "state": {},
            "headers": [(b"authorization", first.encode()), (b"authorization", second.encode())],
            "client": ("192.0.2.7", 2)}, send, send)
        assert sent[0]["status"] == 400


@pytest.mark.parametrize(("headers", "status"), [
    ({"sec_fetch_site": "cross-site"}, 403), ({"sec_fetch_site": "same-site"}, 403),
    ({"origin": "https://elsewhere"}, 403), ({"origin": "null"}, 403),
    ({"origin": "https://rest:8080.elsewhere"}, 403),
    ({"sec_fetch_site": "same-origin", "origin": "https://outside"}, 405), ({"sec_fetch_site": "none"}, 405),
    ({"origin": "https://rest:8080"}, 405), ({}, 405),
])
async def test_a_page_of_another_site_changes_nothing(rest: Rest, headers: dict[str, str], status: int) -> None:
    """Its browser adds the certificate, or the password that it remembers."""
    told = await rest.ask("POST", VERSION, auth=basic("alice", PASSWORD), host="rest:8080", **headers)
    assert told.status == status
    assert (await rest.ask("GET", VERSION, auth=basic("alice", PASSWORD), host="rest:8080", **headers)).status == 200


async def test_the_audit_log_names_who_asks_for_a_change(tmp_path: Path) -> None:
    """The controller's line names the service, since that is what has asked the cluster."""
    class Admin:
        async def delete_group_offsets(self, group: str) -> int:
            if group == "broken":
                raise RuntimeError("a defect")
            return 3

    rest = Rest(tmp_path, ways="tokens,passwords", bindings=None, admin=Admin())
    rest.set_password("alice", PASSWORD)
    auth = basic("alice", PASSWORD)
    assert (await rest.ask("DELETE", "/v1/groups/g", auth=auth)).status == 200
    assert (await rest.ask("DELETE", "/v1/groups/broken", auth=auth)).status == 500
    assert (await rest.ask("DELETE", "/v1/nothing", auth=auth)).status == 404
    assert (await rest.ask("GET", VERSION, auth=auth)).status == 200
    assert rest.audit.lines == [
        ("rest_change", user("alice"), "192.0.2.7",
         {"call": "REST", "operation": "DELETE", "resource": f"/v1/groups/{group}", "status": status})
        for group, status in (("g", 200), ("broken", 500))]
