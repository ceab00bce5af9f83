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
])
def test_lines_of_kafka(line: str, mechanisms: tuple[str, ...], name: str | None, password: str | None) -> None:
    assert parsed(line) == (mechanisms, name, password)


@pytest.mark.parametrize(("line", "sentence"), [
    ("", "must be a line"),
    ("com.example.LoginModule required password=hidden;", "must be a line"),
    ("org.apache.kafka.common.security.kerberos.Krb5LoginModule required password=hidden;", "must be a line"),
    (f'{SCRAM} perhaps username="a" password="hidden";', "must be a line"),
    (f'{SCRAM} required username="a" password="hidden"', "semicolon"),
    (f'{SCRAM} required username="a" password="hidden"; {PLAIN} required;', "semicolon"),
    (f'{SCRAM} required username="a" password="hidden;', "semicolon"),
    (f'{SCRAM} required username="a" password="hid\\den";', "semicolon"),
    (f'{SCRAM} required username="a" password="hidden" password="hidden";', "twice"),
    (f'{SCRAM} required username="a" pasword="hidden";', "pasword is not supported"),
    (f'{SCRAM} required username="a" password="hidden" tokenauth="true";', "tokenauth is not supported"),
    (f'{SCRAM} required username="a";', "password is missing"),
    (f'{BEARER} required clientId="a" clientSecret="hidden";', "clientId is not supported"),
])
def test_what_is_refused(line: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as refused:
        parsed(line)
    assert "hidden" not in str(refused.value)


def test_the_password_is_not_shown() -> None:
    assert "hidden" not in repr(parsed(f'{SCRAM} required username="a" password="hidden";'))
