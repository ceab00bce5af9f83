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
_LINE: Final = re.compile(
    rf"\s*{_PACKAGE}(?P<module>[A-Za-z.]+)\s+(?:required|requisite|sufficient|optional)(?P<rest>.*)", re.DOTALL)
_OPTION: Final = re.compile(
    r'\s+(?P<name>[A-Za-z][A-Za-z0-9_.]*)\s*=\s*(?:"(?P<quoted>(?:[^"\\\n]|\\["\\])*)"|(?P<bare>[^\s";=\\]+))')
_PASSWORD_OPTIONS: Final = ("username", "password")


class JaasConfig(NamedTuple):
    mechanisms: tuple[str, ...]
    """Those that the module is for."""
    name: str | None
    password: str | None

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
    known = () if mechanisms == (OAUTHBEARER,) else _PASSWORD_OPTIONS
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise ValueError(
            f"its option {unknown[0]} is not supported; {found['module']} has "
            + (" and ".join(known) or "none here: set sasl.oauthbearer.token.file"))
    missing = [each for each in known if each not in options]
    if missing:
        raise ValueError(f"its option {missing[0]} is missing")
    return JaasConfig(mechanisms, options.get("username"), options.get("password"))


def _options(rest: str) -> dict[str, str]:
    options: dict[str, str] = {}
    place = 0
    while (found := _OPTION.match(rest, place)) is not None:
        if found["name"] in options:
            raise ValueError(f"its option {found['name']} is there twice")
        quoted = found["quoted"]
        options[found["name"]] = found["bare"] if quoted is None else re.sub(r'\\(["\\])', r"\1", quoted)
        place = found.end()
    if re.fullmatch(r"\s*;\s*", rest[place:]) is None:
        raise ValueError(
            f"after {len(options)} options it goes on otherwise than NAME=\"VALUE\" or a semicolon; within quotes, "
            'write \\" and \\\\ for a quote and a backslash')
    return options
