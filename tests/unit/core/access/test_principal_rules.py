"""ssl.principal.mapping.rules. Names are those that Kafka 3.9's SslPrincipalMapper gives, except where said."""

from __future__ import annotations

from time import perf_counter

import pytest

from hapax.core.access.principal_rules import PrincipalRules

FULL = "CN=kafka1.Example.com,OU=Infra,O=Org"


@pytest.mark.parametrize(("rules", "name", "expected"), [
    ("DEFAULT", FULL, FULL),
    ("RULE:^CN=(.*?),OU=([^,]*),.*$/$1@$2/L", FULL, "kafka1.example.com@infra"),
    ("RULE:^CN=(.*?),.*$/$1/U,DEFAULT", FULL, "KAFKA1.EXAMPLE.COM"),
    ("RULE:^CN=(.*?),.*$/$1/U,DEFAULT", "CN=admin", "CN=admin"),
    ("RULE:CN=.*/x/,DEFAULT", r"O=x\,CN\=admin,CN=bob", r"O=x\,CN\=admin,CN=bob"),
    (" RULE:^CN=([^,]*)$/$1/ , RULE:^CN=([^,]*),.*$/$1-$2-$10/L ", "CN=admin", "admin"),
    (" RULE:^CN=([^,]*)$/$1/ , RULE:^CN=([^,]*),.*$/$1-$2-$10/L ", FULL, "kafka1.example.com-$2-kafka1.example.com0"),
    (r"RULE:CN=(.*)\/(.*),O=.*/$1\/$2\$/", "CN=a/b,O=c", "a/b$"),
    (r"RULE:^CN=(.*)$/\$1/", "CN=a", "$1"),
    ("RULE:^CN=(.*)$/$2/", "CN=a", "$2"),
    ("RULE:^cn=(.*)$/$1/", "CN=a", None),
    ("RULE:nothing/x/", FULL, None),
    ("RULE:CN=(admin)/$1/", "CN=admin,O=else", None),
])
def test_names_are_mapped_as_by_kafka(rules: str, name: str, expected: str | None) -> None:
    assert PrincipalRules(rules).name_of(name) == expected


@pytest.mark.parametrize("rules", ["DEFAULT", "RULE:CN=(.*)/$1/", "RULE:CN=.*//"])
def test_an_empty_name_is_no_principal(rules: str) -> None:
    """Kafka makes it `User:`, which every certificate without a name would share."""
    assert PrincipalRules(rules).name_of("" if rules == "DEFAULT" else "CN=") is None


def test_the_replacement_is_made_once() -> None:
    """Kafka replaces every match within the name, the empty one at its end too, which gives `yy`."""
    assert PrincipalRules("RULE:.*/y/").name_of("CN=a") == "y"


@pytest.mark.parametrize("rules", [
    "", "bad", "RULE:a/b", "RULE:a/b/X", "DEFAULT,", "RULE:a/b/L,,DEFAULT", "RULE:a/b/LDEFAULT", "DEFAULT DEFAULT",
    "RULE:(/x/", "RULE:(?=a)a/x/", r"RULE:(a)\1/x/",
])
def test_what_is_no_rule_is_refused(rules: str) -> None:
    with pytest.raises(ValueError, match=r"neither DEFAULT nor|not a pattern of RE2"):
        PrincipalRules(rules)


def test_a_pattern_that_is_slow_elsewhere_takes_linear_time() -> None:
    rules = PrincipalRules(r"RULE:^CN=((a+)+)+b$/$1/,DEFAULT")
    name = "CN=" + "a" * 50_000
    began = perf_counter()
    assert rules.name_of(name) == name
    assert perf_counter() - began < 1.0
