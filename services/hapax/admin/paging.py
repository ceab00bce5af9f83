"""Lists in pages: `limit` and an opaque `cursor`, which names the last thing of the page before.

A page that follows is right whatever was added or removed meanwhile: nothing that stayed is told twice or left out.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Final, TypeVar

from fastapi import Query

from hapax.admin.problems import invalid

T = TypeVar("T")

Limit = Annotated[int, Query(ge=1, le=1000, description="How many at most.")]
_LONGEST_PART: Final = 200
"""Characters of a name in a cursor. JSON makes twelve bytes of one at most, and a request's head has 16 KiB."""
Cursor = Annotated[
    str | None, Query(max_length=8192, description="`next_cursor` of the page before.", examples=["WyJmbGlnaHRzIl0"])
]


def page(
    found: Iterable[T], key: Callable[[T], tuple[Any, ...]], limit: int, cursor: str | None,
) -> tuple[list[T], str | None]:
    """What of `found`, sorted by its key, belongs to this page, and the cursor for the next. Raises Problem."""
    def place(each: T) -> tuple[Any, ...]:
        return tuple(_shortened(part) for part in key(each))

    after = None if cursor is None else decode(cursor)
    ordered = sorted(found, key=place)
    if after is not None:
        try:
            ordered = [each for each in ordered if place(each) > after]
        except TypeError:
            raise _bad_cursor() from None
    return ordered[:limit], encode(place(ordered[limit - 1])) if len(ordered) > limit else None


def _shortened(part: Any) -> Any:
    """An id has up to 32,767 bytes. Those that begin alike for long are in the order of their hashes."""
    if not isinstance(part, str) or len(part) <= _LONGEST_PART:
        return part
    return part[:_LONGEST_PART] + hashlib.sha256(part.encode("utf-8", "backslashreplace")).hexdigest()


def encode(key: tuple[Any, ...]) -> str:
    return base64.urlsafe_b64encode(json.dumps(list(key)).encode()).decode().rstrip("=")


def decode(cursor: str) -> tuple[Any, ...]:
    """Raises Problem."""
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        key = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
    except (ValueError, RecursionError):
        raise _bad_cursor() from None
    if not isinstance(key, list) or not all(isinstance(part, str | int) for part in key):
        raise _bad_cursor()
    return tuple(key)


def _bad_cursor() -> Exception:
    return invalid("This cursor is none that was given out here.", "query.cursor")
