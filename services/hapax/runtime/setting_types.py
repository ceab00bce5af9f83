"""Types of settings: what bounds a value, and how it is read from text."""

from __future__ import annotations

import re
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin


class Between(NamedTuple):
    """Bounds of a number, inclusive."""

    least: int
    most: int = 2**63 - 1


class Like(NamedTuple):
    """What a whole text must look like."""

    pattern: str


Bytes = Annotated[int, Between(1)]
Millis = Annotated[int, Between(1)]
Count = Annotated[int, Between(1, 1_000_000)]
Unlimited = Annotated[int, Between(-1)]
"""-1: no limit."""
Principals = Annotated[str, Like(r"(?:[^:;]+:[^;]+(?:;[^:;]+:[^;]+)*)?")]
"""`Type:name`, separated by semicolons."""
MaybeMillis = Annotated[int, Between(-1)] | None


def read_value(kind: Any, text: str) -> Any:
    """A setting's value from its text, by the type of its field. Raises ValueError."""
    if get_origin(kind) in (Union, UnionType):
        if text == "":
            return None
        (kind,) = (each for each in get_args(kind) if each is not NoneType)
    bounds = None
    if get_origin(kind) is Annotated:
        kind, bounds = get_args(kind)
    if get_origin(kind) is Literal:
        if text not in get_args(kind):
            raise ValueError("must be " + " or ".join(repr(each) for each in get_args(kind)))
        return text
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise ValueError("must be true or false")
        return text.lower() == "true"
    if kind is int:
        try:
            number = int(text)
        except ValueError:
            raise ValueError("must be an integer") from None
        if isinstance(bounds, Between) and not bounds.least <= number <= bounds.most:
            most = f" and at most {bounds.most}" if bounds.most < 2**63 - 1 else ""
            raise ValueError(f"must be at least {bounds.least}{most}")
        return number
    if isinstance(bounds, Like) and not re.fullmatch(bounds.pattern, text):
        raise ValueError(f"must match {bounds.pattern}")
    return text
