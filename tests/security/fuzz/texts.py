"""What administrators and clients write: filters of ACLs, rules for principals' names, jaas lines."""

from __future__ import annotations

import random
import re
from typing import Any, Final, NamedTuple

from hapax.client.jaas import parsed
from hapax.core.access.bindings import checked_binding, checked_filter
from hapax.core.access.principal_rules import PrincipalRules
from hapax.core.errors import ErrorCode, Refusal
from security.fuzz.target import mutated, text_of

_NAMES: Final = (*("orders", "or", "*", "o", "orders2") * 3, "", "kafka-cluster", "a\nb", "n" * 1025)
_PRINCIPALS: Final = (*("User:alice", "User:*", "User:bob") * 5, "alice", "", "User:", "Group:x", "User:a\nb")
_LONG: Final = 20_000
_HOSTS: Final = (*("*", "10.0.0.1", "::1") * 4, "", "h" * 1025)


class AclCase(NamedTuple):
    binding: tuple[Any, ...]
    filter: tuple[Any, ...]
    """kind, name, pattern, principal, host, operation, permission, as in the request."""


class AclFilters:
    name = "acl-filters"
    kinds: Final = frozenset({"refused", "selected", "not selected"})

    def make(self, rng: random.Random) -> AclCase:
        def number(*usual: int) -> int:
            return rng.choice((*usual * 8, rng.randrange(-128, 128)))

        binding = (number(2, 3, 4, 5), rng.choice(_NAMES), number(3, 4), rng.choice(_PRINCIPALS), rng.choice(_HOSTS),
                   number(2, 3, 4, 8), number(2, 3))
        wanted = (number(1, 2, 3), rng.choice((None, *_NAMES)), number(1, 2, 3, 4), rng.choice((None, *_PRINCIPALS)),
                  rng.choice((None, *_HOSTS)), number(1, 2, 3, 4), number(1, 2, 3))
        if rng.random() < 0.5:  # one that describes the binding, with one part changed at most
            part = rng.randrange(14)
            wanted = tuple(wanted[i] if i == part else binding[i] for i in range(7))
        if rng.random() < 0.5:
            wanted = (*wanted[:1], rng.choice(_NAMES), rng.choice((1, 2, 2, 3, 4)), *wanted[3:])
        return AclCase(binding, wanted)

    def check(self, made: AclCase) -> str:
        try:
            binding = checked_binding(*made.binding)
            wanted = checked_filter(*made.filter)
        except Refusal as refusal:
            assert refusal.code is ErrorCode.INVALID_REQUEST and refusal.reason
            assert "\n" not in refusal.reason
            return "refused"
        assert "\n" not in str(binding)
        matches = wanted.matches(binding)
        assert matches is _modelled(made), "the model says otherwise"
        return "selected" if matches else "not selected"


def _modelled(made: AclCase) -> bool:
    """As Kafka documents it (KIP-290): ANY is 1, MATCH 2, LITERAL 3, PREFIXED 4."""
    own, wanted = made.binding, made.filter
    if any(each not in (1, mine) for each, mine in ((wanted[i], own[i]) for i in (0, 5, 6))):
        return False
    if any(each not in (None, mine) for each, mine in ((wanted[i], own[i]) for i in (3, 4))):
        return False
    name, pattern = wanted[1], wanted[2]
    if pattern in (3, 4) and pattern != own[2]:
        return False
    if name is None:
        return True
    if pattern == 2:
        return bool(own[1] in (name, "*") if own[2] == 3 else str(name).startswith(own[1]))
    return bool(name == own[1])


class RuleCase(NamedTuple):
    rules: tuple[tuple[str, str, str], ...]
    """Pattern, replacement, case; an empty pattern: DEFAULT."""
    name: str
    spoil: int

    @property
    def text(self) -> str:
        text = ",".join(f"RULE:{pattern}/{to}/{case}" if pattern else "DEFAULT" for pattern, to, case in self.rules)
        return text_of(mutated(text.encode(), random.Random(self.spoil))) if self.spoil else text


class PrincipalNames:
    name = "principal-rules"
    kinds: Final = frozenset({"no rule", "no name", "a name", "a changed rule"})
    _parts: Final = ("CN=", "([^,]*)", "(.*)", ",O=", "shop", "[a-z]+", "(a|b)?", ".*", "(?:x)*", "((a+)+)+", "^", "$")
    _targets: Final = ("$1", "$2", "x", "$0", "", "$1@$2", "-")

    def make(self, rng: random.Random) -> RuleCase:
        rules = tuple(
            ("".join(rng.choices(self._parts, k=rng.randrange(1, 5))) if rng.random() < 0.8 else "",
             rng.choice(self._targets), rng.choice(("", "", "L", "U"))) for _ in range(rng.randrange(1, 4)))
        name = "".join(rng.choices(
            ("CN=", "alice", "A", ",O=shop", ",O=", "a" * 12, "\\,", "ü", "x"), k=rng.randrange(6)))
        return RuleCase(rules, name, rng.choice((0, 0, rng.randrange(1, 1 << 30))))

    def check(self, made: RuleCase) -> str:
        try:
            rules = PrincipalRules(made.text)
        except ValueError as error:
            assert made.spoil or _unsound(made), f"it is a good rule: {error}"
            return "no rule"
        rules.name_of("CN=" + "a" * _LONG)  # in linear time; the model's engine would not end
        given = rules.name_of(made.name)
        assert given is None or given
        if made.spoil:
            return "a changed rule"
        assert given == self._modelled(made), f"the model gives {self._modelled(made)!r}, not {given!r}"
        return "no name" if given is None else "a name"

    def _modelled(self, made: RuleCase) -> str | None:
        for pattern, to, case in made.rules:
            if not pattern:
                return made.name or None
            if "((a+)+)+" in pattern:  # exponential in Python's engine; the language is the same
                pattern = pattern.replace("((a+)+)+", "((a+))")
            match = re.fullmatch(pattern, made.name)
            if match is not None:
                groups = [match[0], *(each or "" for each in match.groups())]
                result = re.sub(r"\$(\d)", lambda found, groups=groups: (  # type: ignore[misc]
                    groups[int(found[1])] if int(found[1]) < len(groups) else found[0]), to)
                result = result.lower() if case == "L" else result.upper() if case == "U" else result
                if result:
                    return result
                return None
        return None


def _unsound(made: RuleCase) -> bool:
    return any("$(?:x)*" in pattern or "^(?:x)*" in pattern for pattern, _, _ in made.rules)


class JaasCase(NamedTuple):
    options: tuple[tuple[str, str, str], ...]
    """Name, value, quote; no quote: as it is."""
    module: str
    spoil: int

    @property
    def text(self) -> str:
        def quoted(value: str, quote: str) -> str:
            if not quote:
                return value
            for char in ("\\", quote):
                value = value.replace(char, "\\" + char)
            return quote + value.replace("\n", "\\n").replace("\r", "\\r") + quote

        text = f"org.apache.kafka.common.security.{self.module} required" + "".join(
            f" {name}={quoted(value, quote)}" for name, value, quote in self.options) + ";"
        return text_of(mutated(text.encode(), random.Random(self.spoil))) if self.spoil else text


class JaasLines:
    name = "jaas"
    kinds: Final = frozenset({"refused", "read", "a changed line"})

    def make(self, rng: random.Random) -> JaasCase:
        def value(quote: str) -> str:
            letters = "aZ9_-.ü" if not quote else "aZ9 ;,=/*'\"\\\n\r#$ü//"
            return "hidden" + "".join(rng.choices(letters, k=rng.randrange(8)))

        options = []
        for name in ("username", "password"):
            quote = rng.choice(('"', '"', "'", ""))
            options.append((name, value(quote), quote))
        rng.shuffle(options)
        return JaasCase(
            tuple(options), rng.choice(("scram.ScramLoginModule", "plain.PlainLoginModule")),
            rng.choice((0, 0, rng.randrange(1, 1 << 30))))

    def check(self, made: JaasCase) -> str:
        wanted = {name: value for name, value, _ in made.options}
        try:
            found = parsed(made.text)
        except ValueError as error:
            assert made.spoil, f"it is a good line: {error}"
            assert "hidden" not in str(error), "the message shows a secret"
            return "refused"
        assert "hidden" not in repr(found)
        if not made.spoil:
            assert (found.name, found.password) == (wanted["username"], wanted["password"])
        return "a changed line" if made.spoil else "read"
