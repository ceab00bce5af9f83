"""ssl.principal.mapping.rules: from a certificate's distinguished name to a principal's name, as in Kafka (KIP-371).

`RULE:pattern/replacement/[LU]`, separated by commas; the first whose pattern matches the whole name gives the result.
`$1` is the pattern's first group, L and U change its case, `\\` takes the next character as it is. `DEFAULT` gives the
name itself. A name that no rule matches gives no principal: its connection is refused, not made anonymous.

Patterns run on RE2, whose time is linear in the name, which a client chooses. RE2 knows no look-around and no
back-references in patterns. Other than in Kafka, whose replacement is repeated for each match within the name, the
replacement is made once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

import re2

DEFAULT: Final = "DEFAULT"
_RULE: Final = re.compile(
    r"\s*(?:DEFAULT|RULE:(?P<pattern>(?:\\.|[^\\/])*)/(?P<replacement>(?:\\.|[^\\/])*)/(?P<case>[LU]?))\s*(?P<end>,|$)")
_MOST_DIGITS: Final = 3


@dataclass(frozen=True, slots=True)
class _Rule:
    pattern: Any
    """None: DEFAULT."""
    replacement: str
    case: str

    def apply(self, name: str) -> str | None:
        if self.pattern is None:
            return name
        match = self.pattern.fullmatch(name)
        if match is None:
            return None
        result = _expand(self.replacement, [match.group(0), *match.groups()])
        return result.lower() if self.case == "L" else result.upper() if self.case == "U" else result


class PrincipalRules:
    """Rules that were read once, for any number of names."""

    def __init__(self, text: str = DEFAULT) -> None:
        """Raises ValueError, which says what is wrong where."""
        self._rules: list[_Rule] = []
        position, more = 0, True
        while more:
            found = _RULE.match(text, position)
            if found is None:
                raise ValueError(
                    f"{text[position:].strip()!r} is neither DEFAULT nor RULE:pattern/replacement/ and L, U or nothing")
            position, more = found.end(), found["end"] == ","
            self._rules.append(_Rule(None, "", "") if found["pattern"] is None else _compiled(found))

    def name_of(self, distinguished_name: str) -> str | None:
        """A principal's name, without its type; None: no rule gives one."""
        for rule in self._rules:
            name = rule.apply(distinguished_name)
            if name is not None:
                return name or None
        return None


def _compiled(found: re.Match[str]) -> _Rule:
    options = re2.Options()
    options.log_errors = False
    try:
        pattern = re2.compile(found["pattern"], options)
    except re2.error as error:
        reason = error.args[0] if error.args else error
        text = reason.decode() if isinstance(reason, bytes) else str(reason)
        raise ValueError(f"{found['pattern']!r} is not a pattern of RE2: {text}") from None
    return _Rule(pattern, found["replacement"], found["case"])


def _expand(replacement: str, groups: list[str | None]) -> str:
    """A reference to a group that the pattern does not have is text, as in Kafka."""
    result: list[str] = []
    position = 0
    while position < len(replacement):
        char = replacement[position]
        position += 1
        if char == "\\" and position < len(replacement):
            result.append(replacement[position])
            position += 1
        elif char == "$" and (group := _reference(replacement, position, len(groups))) is not None:
            number, position = group
            result.append(groups[number] or "")
        else:
            result.append(char)
    return "".join(result)


def _reference(text: str, position: int, groups: int) -> tuple[int, int] | None:
    """The number of a group, of as many digits as make one that exists, and the position after it."""
    for end in range(min(len(text), position + _MOST_DIGITS), position, -1):
        digits = text[position:end]
        if digits.isascii() and digits.isdigit() and int(digits) < groups:
            return int(digits), end
    return None
