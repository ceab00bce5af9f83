"""Paged lists: `limit`, and an opaque `cursor` that names the last item of the previous page.

Items may be added or removed between two pages. An item that exists throughout is listed exactly once.
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

Limit = Annotated[int, Query(ge=1, le=1000, description="The maximum number of items in the answer.")]
_LONGEST_PART: Final = 200
"""Characters of a name in a cursor. JSON encodes a character in at most twelve bytes, and a request's head is limited
to 16 KiB."""
Cursor = Annotated[
    str | None, Query(max_length=8192, description="`next_cursor` of the previous page.", examples=["WyJmbGlnaHRzIl0"])
]


def page(
    found: Iterable[T], key: Callable[[T], tuple[Any, ...]], limit: int, cursor: str | None,
) -> tuple[list[T], str | None]:
    """The items of `found` on this page, sorted by `key`, and the cursor of the next page. Raises Problem."""
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
    """Bounds a cursor's length: an id has up to 32,767 bytes. Ids with the same first 200 characters are ordered by
    their hashes."""
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
    return invalid("The cursor was not issued by this API.", "query.cursor")
