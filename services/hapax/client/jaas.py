"""`sasl.jaas.config`, as far as clients of Kafka need it: one line that names a login module and its options.

    org.apache.kafka.common.security.scram.ScramLoginModule required username="alice" password="secret";

No message repeats an option's value.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from hapax.core.sasl.exchange import OAUTHBEARER, PLAIN, SCRAM_SHA_256, SCRAM_SHA_512

_PACKAGE: Final = r"org\.apache\.kafka\.common\.security\."
_MODULES: Final = {
    "scram.ScramLoginModule": (SCRAM_SHA_256, SCRAM_SHA_512),
    "plain.PlainLoginModule": (PLAIN,),
    "oauthbearer.OAuthBearerLoginModule": (OAUTHBEARER,),
}
_BETWEEN: Final = r"(?:\s|//[^\n]*(?:\n|$)|/\*(?:[^*]|\*(?!/))*\*/)"
"""White space and comments."""
_LINE: Final = re.compile(
    rf"{_BETWEEN}*{_PACKAGE}(?P<module>[A-Za-z.]+){_BETWEEN}+(?i:required|requisite|sufficient|optional)(?P<rest>.*)",
    re.DOTALL)
_OPTION: Final = re.compile(
    rf"{_BETWEEN}+(?P<name>[A-Za-z][A-Za-z0-9_.]*){_BETWEEN}*={_BETWEEN}*"
    r"""(?:"(?P<double>(?:[^"\\\r\n]|\\.)*)"|'(?P<single>(?:[^'\\\r\n]|\\.)*)'|(?P<bare>[^\s"';=\\/]+))""")
_END: Final = re.compile(rf"{_BETWEEN}*;{_BETWEEN}*")
_ESCAPE: Final = re.compile(r"\\(.)")
_LETTERS: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_PASSWORD_OPTIONS: Final = ("username", "password")
_CLIENT_OPTIONS: Final = ("clientId", "clientSecret")
_SCOPE: Final = "scope"


class JaasClient(NamedTuple):
    """Of an OpenID provider."""

    id: str
    secret: str
    scope: str | None

    def __repr__(self) -> str:
        return f"JaasClient({self.id})"


class JaasConfig(NamedTuple):
    mechanisms: tuple[str, ...]
    """Those that the module is for."""
    name: str | None
    password: str | None
    client: JaasClient | None = None

    def __repr__(self) -> str:
        return f"JaasConfig({', '.join(self.mechanisms)})"


def parsed(text: str) -> JaasConfig:
    """Raises ValueError."""
    found = _LINE.fullmatch(text)
    mechanisms = None if found is None else _MODULES.get(found["module"])
    if found is None or mechanisms is None:
        raise ValueError(
            "it must be a line 'org.apache.kafka.common.security.scram.ScramLoginModule required username=\"...\" "
            "password=\"...\";', or have plain.PlainLoginModule or oauthbearer.OAuthBearerLoginModule instead")
    options = _options(found["rest"])
    of_tokens = mechanisms == (OAUTHBEARER,)
    needed = _PASSWORD_OPTIONS if not of_tokens else _CLIENT_OPTIONS if options else ()
    known = (*_CLIENT_OPTIONS, _SCOPE) if of_tokens else _PASSWORD_OPTIONS
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise ValueError(f"its option {unknown[0]} is not supported; {found['module']} has " + " and ".join(known))
    missing = [each for each in needed if each not in options]
    if missing:
        raise ValueError(f"its option {missing[0]} is missing")
    if of_tokens and options:
        client = JaasClient(options["clientId"], options["clientSecret"], options.get(_SCOPE))
        return JaasConfig(mechanisms, None, None, client)
    return JaasConfig(mechanisms, options.get("username"), options.get("password"))


def _options(rest: str) -> dict[str, str]:
    options: dict[str, str] = {}
    place = 0
    while (found := _OPTION.match(rest, place)) is not None:
        if found["name"] in options:
            raise ValueError(f"its option {found['name']} is there twice")
        quoted = found["double"] if found["single"] is None else found["single"]
        options[found["name"]] = found["bare"] if quoted is None else _ESCAPE.sub(_unescaped, quoted)
        place = found.end()
    if _END.fullmatch(rest, place) is None:
        raise ValueError(
            f"after {len(options)} options it goes on otherwise than NAME=\"VALUE\" or a semicolon; within quotes, "
            'write \\" and \\\\ for a quote and a backslash')
    return options


def _unescaped(found: re.Match[str]) -> str:
    """As Java's StreamTokenizer, by which Kafka reads the line: a backslash before another character stands for that
    character. It reads digits after one as the number of a character: refused, since it is never meant."""
    letter = found[1]
    if letter.isdigit():
        raise ValueError("a backslash before a digit within quotes is not supported; write \\\\ for a backslash")
    return _LETTERS.get(letter, letter)
