"""sasl.jaas.config: lines that Kafka's users have, and lines that are refused without a word of their secrets."""

from __future__ import annotations

import pytest

from hapax.client.jaas import parsed

SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
BEARER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"


@pytest.mark.parametrize(("line", "mechanisms", "name", "password"), [
    (f'{SCRAM} required username="alice" password="sec;ret = 1";', ("SCRAM-SHA-256", "SCRAM-SHA-512"), "alice",
     "sec;ret = 1"),
    (f"{SCRAM} required\n  username=alice\n  password=secret ;\n", ("SCRAM-SHA-256", "SCRAM-SHA-512"), "alice",
     "secret"),
    (f'{PLAIN} required username = "a" password="say \\"x\\" \\\\";', ("PLAIN",), "a", 'say "x" \\'),
    (f"{BEARER} required;", ("OAUTHBEARER",), None, None),
    (f"  {BEARER}   required ; ", ("OAUTHBEARER",), None, None),
    (f"{PLAIN} REQUIRED username='a\"b' password='it\\'s';", ("PLAIN",), 'a"b', "it's"),
    (f"/* of alice */ {PLAIN} required // her name\n username=alice /* ; */ password=\"a//b/*\"; // end", ("PLAIN",),
     "alice", "a//b/*"),
    (f'{PLAIN} required username="a" password="tab\\tq\\q";', ("PLAIN",), "a", "tab\tqq"),
])
def test_lines_of_kafka(line: str, mechanisms: tuple[str, ...], name: str | None, password: str | None) -> None:
    assert parsed(line) == (mechanisms, name, password, None)


@pytest.mark.parametrize(("line", "sentence"), [
    ("", "must be a line"),
    ("com.example.LoginModule required password=hidden;", "must be a line"),
    ("org.apache.kafka.common.security.kerberos.Krb5LoginModule required password=hidden;", "must be a line"),
    (f'{SCRAM} perhaps username="a" password="hidden";', "must be a line"),
    (f'{SCRAM} required username="a" password="hidden"', "semicolon"),
    (f'{SCRAM} required username="a" password="hidden"; {PLAIN} required;', "semicolon"),
    (f'{SCRAM} required username="a" password="hidden;', "semicolon"),
    (f'{SCRAM} required username="a" password="hidden\\101";', "backslash before a digit"),
    (f"{SCRAM} required username='a' password='hidden\";", "semicolon"),
    (f"{SCRAM} required username=a password=hid'den;", "semicolon"),
    (f'{SCRAM} required username="a" password="hidden" password="hidden";', "twice"),
    (f'{SCRAM} required username="a" pasword="hidden";', "pasword is not supported"),
    (f'{SCRAM} required username="a" password="hidden" tokenauth="true";', "tokenauth is not supported"),
    (f'{SCRAM} required username="a";', "password is missing"),
    (f'{BEARER} required clientId="hidden";', "clientSecret is missing"),
    (f'{BEARER} required unsecuredLoginStringClaim_sub="hidden";', "unsecuredLoginStringClaim_sub is not supported"),
    (f'{SCRAM} required clientId="a" clientSecret="hidden";', "clientId is not supported"),
])
def test_what_is_refused(line: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as refused:
        parsed(line)
    assert "hidden" not in str(refused.value)


def test_a_client_of_an_openid_provider() -> None:
    found = parsed(f'{BEARER} required clientId="shop" clientSecret="hidden" scope="kafka write";')
    assert found.client is not None and tuple(found.client) == ("shop", "hidden", "kafka write")
    assert "hidden" not in repr(found) and "hidden" not in repr(found.client)
    other = parsed(f'{BEARER} required clientSecret="hidden" clientId="shop";').client
    assert other is not None and other.scope is None


def test_the_password_is_not_shown() -> None:
    assert "hidden" not in repr(parsed(f'{SCRAM} required username="a" password="hidden";'))
