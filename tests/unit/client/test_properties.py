"""Java's properties, as Kafka's tools read them from --command-config."""

from __future__ import annotations

from pathlib import Path

import pytest

from hapax.client.errors import SettingsError
from hapax.client.jaas import parsed
from hapax.client.properties import parse_properties, read_properties

FILE = r"""
# as in Kafka's documentation
! and this
security.protocol=SASL_SSL
sasl.mechanism = SCRAM-SHA-256
  sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \
      username="alice" \
    password="a=b#c\\"d";
ssl.truststore.location : /etc/ca.crt
client.id   my client
empty=
"""


def test_a_file_of_kafka_s_tools() -> None:
    found = parse_properties(FILE)
    assert {name: value for name, value in found.items() if name != "sasl.jaas.config"} == {
        "security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-256", "ssl.truststore.location": "/etc/ca.crt",
        "client.id": "my client", "empty": ""}
    assert parsed(found["sasl.jaas.config"])[1:3] == ("alice", 'a=b#c"d')


@pytest.mark.parametrize(("text", "found"), [
    ("a=b\r\nc=d\re=f", {"a": "b", "c": "d", "e": "f"}),
    ("a=1 \\", {"a": "1 "}),
    (r"a\=b\:c\ d=e", {"a=b:c d": "e"}),
    (r"a=\u00fc\tb\\c\d", {"a": "ü\tb\\cd"}),
    ("a=b\\\\\nc=d", {"a": "b\\", "c": "d"}),
    (r"a=\ud83d\ude00 \ud83d", {"a": "\U0001f600 \ud83d"}),
    ("a=\u00a0\u2003b\u2028c\x0bd ", {"a": "\u00a0\u2003b\u2028c\x0bd "}),
    ("a=1\na=2", {"a": "2"}),
    ("a=b\\\n#c\nd=e", {"a": "b#c", "d": "e"}),
    ("a", {"a": ""}), ("a==b", {"a": "=b"}), ("a : = b", {"a": "= b"}), ("", {}),
])
def test_lines(text: str, found: dict[str, str]) -> None:
    assert parse_properties(text) == found


@pytest.mark.parametrize(("content", "sentence"), [
    (b"a=b\n=hidden", "line 2 has no name"), (rb"a=hidden\u12", "line 1"), (b"a=hidden\xff", "not UTF-8")])
def test_what_cannot_be_read(tmp_path: Path, content: bytes, sentence: str) -> None:
    file = tmp_path / "client.properties"
    file.write_bytes(content)
    with pytest.raises(SettingsError, match=sentence) as refused:
        read_properties(file)
    assert "hidden" not in str(refused.value)
