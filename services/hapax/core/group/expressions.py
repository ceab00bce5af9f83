"""Regular expressions of subscriptions: RE2's, whose time to match is linear. They match a topic's whole name."""

from __future__ import annotations

import re2

from hapax.core.errors import ErrorCode, Refusal

_LONGEST_BYTES = 32_767
"""It is part of a record's key."""


def check(regex: str) -> None:
    """Raises Refusal: INVALID_REGULAR_EXPRESSION where it does not compile."""
    if len(regex.encode(errors="replace")) > _LONGEST_BYTES:
        raise Refusal(
            ErrorCode.INVALID_REGULAR_EXPRESSION, f"a regular expression has at most {_LONGEST_BYTES} bytes")
    options = re2.Options()
    options.log_errors = False
    try:
        re2.compile(regex, options)
    except (re2.error, UnicodeEncodeError) as error:
        raise Refusal(
            ErrorCode.INVALID_REGULAR_EXPRESSION, f"{regex!r} is no regular expression of RE2: {_text(error)}"
        ) from error


def _text(error: Exception) -> str:
    cause = error.args[0] if error.args else ""
    return cause.decode(errors="replace") if isinstance(cause, bytes) else str(cause)
