"""OAUTHBEARER (RFC 7628): a JSON Web Token in one message.

A token that is refused is answered with a challenge that says so in JSON. The client acknowledges it with the byte
0x01, and only then the exchange has failed. Clients that see the failure at once would not know why.
"""

from __future__ import annotations

import re
from typing import Final

from hapax.core.sasl.exchange import Challenge, Failure, Outcome, Success, TokenCheck
from hapax.core.sasl.scram import unescaped

_MESSAGE: Final = re.compile(
    rb"n,(?:a=(?P<authzid>[^,\0]+))?,\x01(?P<pairs>(?:[A-Za-z]+=[^\0\x01]*\x01)+)\x01", re.DOTALL)
_BEARER: Final = re.compile(rb"[Bb][Ee][Aa][Rr][Ee][Rr] +([A-Za-z0-9_\-]+\.[A-Za-z0-9_\-]+\.[A-Za-z0-9_\-]*)")
INVALID: Final = b'{"status":"invalid_token"}'
_ACKNOWLEDGED: Final = b"\x01"


class OAuthBearerExchange:
    def __init__(self) -> None:
        self._authzid: str | None = None
        self._refused_for = ""
        self._asked = False
        self._ended = False

    def step(self, token: bytes) -> Outcome | TokenCheck:
        if self._refused_for:
            self._ended = True
            if token != _ACKNOWLEDGED:
                return Failure(f"{self._refused_for}; and the refusal was not acknowledged")
            return Failure(self._refused_for)
        if self._asked or self._ended:
            return Failure("a token after the end of the exchange")
        self._asked = True
        found = _MESSAGE.fullmatch(token)
        if found is None:
            self._ended = True
            return Failure("the message is malformed, or wants channel binding")
        pairs = [pair.partition(b"=") for pair in found["pairs"].split(b"\x01")[:-1]]
        given = [value for key, _, value in pairs if key == b"auth"]
        bearer = _BEARER.fullmatch(given[0].strip()) if len(given) == 1 else None
        if found["authzid"] is not None:
            self._authzid = unescaped(found["authzid"])
            if self._authzid is None:
                return self._refuse("the authorization identity is malformed")
        if bearer is None:
            return self._refuse("the message has no bearer token that is a signed JSON Web Token")
        return TokenCheck(bearer[1].decode("ascii"))

    def checked(self, outcome: Success | Failure) -> Outcome:
        """What the check of the token has found."""
        if isinstance(outcome, Failure):
            return self._refuse(outcome.reason)
        if self._authzid is not None and self._authzid != outcome.name:
            return self._refuse("it asks for the rights of another user")
        self._ended = True
        return outcome

    def _refuse(self, reason: str) -> Challenge:
        self._refused_for = reason
        return Challenge(INVALID)
