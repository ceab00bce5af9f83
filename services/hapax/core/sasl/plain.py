"""PLAIN (RFC 4616): the password itself, in one message. For connections under TLS only."""

from __future__ import annotations

from hapax.core.sasl.exchange import (
    LONGEST_NAME,
    LONGEST_PASSWORD,
    Failure,
    FindCredential,
    PasswordCheck,
    prepared,
)


class PlainExchange:
    def __init__(self, find: FindCredential) -> None:
        """`find`: the credential that a user's password is compared with."""
        self._find = find
        self._ended = False

    def step(self, token: bytes) -> Failure | PasswordCheck:
        if self._ended:
            return Failure("a token after the end of the exchange")
        self._ended = True
        try:
            parts = token.decode("utf-8").split("\0")
        except UnicodeDecodeError:
            return Failure("the message is not UTF-8")
        if len(parts) != 3:
            return Failure("the message is malformed")
        authzid, given, password = parts
        if len(given.encode()) > LONGEST_NAME or len(password.encode()) > LONGEST_PASSWORD:
            return Failure("the user name or the password is too long")
        if authzid and authzid != given:
            return Failure("it asks for the rights of another user")
        name = prepared(given)
        if not name or not password:
            return Failure("the user name or the password is empty or malformed")
        return PasswordCheck(name, password, self._find(name))
