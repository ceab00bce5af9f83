"""Principals: who sends a request, as `Type:name`.

Authentication gives each connection its principal. Listeners without authentication give `ANONYMOUS`, as in Kafka.
"""

from __future__ import annotations

from typing import Final, NewType

Principal = NewType("Principal", str)
"""`Type:name`, such as `User:alice` or `User:CN=app,O=shop`. The type is never empty and has no colon."""

USER: Final = "User"
"""The only type that authentication gives."""
ANONYMOUS: Final = Principal("User:ANONYMOUS")
EVERY_USER: Final = Principal("User:*")
"""In a binding: all principals of the type User. As a connection's principal it is an ordinary name."""


def user(name: str) -> Principal:
    return Principal(f"{USER}:{name}")


def parsed(text: str) -> Principal:
    """Raises ValueError where `text` is not `Type:name`. The name may have colons."""
    kind, colon, name = text.partition(":")
    if not (kind and colon and name):
        raise ValueError(f"a principal is written Type:name, not {text!r}")
    return Principal(text)
