"""Regular expressions of subscriptions: RE2's, whose time to match is linear. They match a topic's whole name.

An expression is compiled when a member subscribes, and resolved outside of the machine. It is asked for when it is not
resolved yet, and again when the cluster's topics have changed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import re2

from hapax.core.errors import ErrorCode, Refusal
from hapax.core.group.consumer_state import ConsumerState
from hapax.core.group.values import MemberValue, Topics
from hapax.core.types import Millis, Now

INTERVAL_MS: Final = 10_000
"""An expression is asked for again no sooner than this."""

_LONGEST_BYTES: Final = 32_767
"""It is part of a record's key."""


def check_expression(regex: str) -> None:
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


class Questions:
    """Which expressions of a group were asked for, and when. A new coordinator asks for all of them once."""

    def __init__(self) -> None:
        self._asked: dict[str, tuple[Millis, int]] = {}
        """Expression -> (when it was last asked for, the version of the topics then)."""
        self._swept: int | None = None
        """Version of the topics at which every expression was asked for."""

    def due(self, state: ConsumerState, value: MemberValue, topics: Topics, now: Now) -> list[str]:
        """At a member's heartbeat: its own expression where it is not resolved, and all where the topics have
        changed."""
        regex = value.subscribed_regex
        if topics.version != self._swept:
            used = state.expressions()
            if all(each in self._asked and self._asked[each][1] == topics.version for each in used):
                self._swept = topics.version
        elif regex and regex not in state.regexes:
            used = [regex]
        else:
            return []
        return [each for each in used if self._may_ask(state, each, topics, now)]

    def asked(self, regexes: Iterable[str], topics: Topics, now: Now) -> None:
        for regex in regexes:
            self._asked[regex] = (now.monotonic, topics.version)

    def forget(self, regex: str) -> None:
        """It was not asked for after all."""
        self._asked.pop(regex, None)

    def keep_only(self, used: list[str]) -> None:
        self._asked = {regex: self._asked[regex] for regex in used if regex in self._asked}

    def forget_old(self, state: ConsumerState, now: Now) -> None:
        """Members may change their expressions for ever. Those of the last interval are kept, so that none is asked for
        too often."""
        if len(self._asked) > 2 * len(state.subscriptions):
            used = set(state.expressions())
            self._asked = {
                regex: asked for regex, asked in self._asked.items()
                if regex in used or now.monotonic < asked[0] + INTERVAL_MS
            }

    def _may_ask(self, state: ConsumerState, regex: str, topics: Topics, now: Now) -> bool:
        if regex not in self._asked:
            return True
        at, version = self._asked[regex]
        return now.monotonic >= at + INTERVAL_MS and (version != topics.version or regex not in state.regexes)


def _text(error: Exception) -> str:
    cause = error.args[0] if error.args else ""
    return cause.decode(errors="replace") if isinstance(cause, bytes) else str(cause)
