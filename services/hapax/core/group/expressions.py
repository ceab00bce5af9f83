"""Regular expressions of subscriptions. They use RE2, whose matching time is linear, and match whole topic names.

An expression is compiled when a member subscribes, and resolved outside of the machine. The machine asks for its topics
while it is not resolved, and again when the cluster's topics have changed.

An assignment tells a member that a topic exists. So an expression matches only topics that a member may describe: the
one of its members that was heard last, as in Kafka, where the heartbeat that leads to the question decides.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import Final

import re2

from hapax.core.errors import ErrorCode, Refusal
from hapax.core.group.consumer_state import ConsumerState
from hapax.core.group.values import ConsumerGroupHeartbeat, MemberValue, RegexQuestion, Topics
from hapax.core.types import Millis, Now

INTERVAL_MS: Final = 10_000
"""The shortest interval between two questions about the same expression."""

_LONGEST_BYTES: Final = 32_767
"""The limit of an expression: it is part of a record's key."""


def check_expression(regex: str) -> None:
    """Raises Refusal(INVALID_REGULAR_EXPRESSION) if the expression does not compile."""
    if len(regex.encode(errors="replace")) > _LONGEST_BYTES:
        raise Refusal(
            ErrorCode.INVALID_REGULAR_EXPRESSION, f"an expression must not have more than {_LONGEST_BYTES} bytes")
    options = re2.Options()
    options.log_errors = False
    try:
        re2.compile(regex, options)
    except (re2.error, UnicodeEncodeError) as error:
        raise Refusal(
            ErrorCode.INVALID_REGULAR_EXPRESSION, f"{regex!r} is not a valid RE2 regular expression: {_text(error)}"
        ) from error


class Questions:
    """Which expressions of a group were asked for, and when. A new coordinator asks once for all of them."""

    def __init__(self) -> None:
        self._asked: dict[str, tuple[Millis, int]] = {}
        """Expression -> (when it was last asked for, the version of the topics at that time)."""
        self._swept: int | None = None
        """The version of the topics at which all expressions were asked for."""

    def due(self, state: ConsumerState, value: MemberValue, topics: Topics, now: Now) -> list[str]:
        """The expressions to ask for at a member's heartbeat: the member's own if it is not resolved, and all if the
        topics have changed."""
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
        """Drops the note that an expression was asked for, because it was not."""
        self._asked.pop(regex, None)

    def keep_only(self, used: list[str]) -> None:
        self._asked = {regex: self._asked[regex] for regex in used if regex in self._asked}

    def forget_old(self, state: ConsumerState, now: Now) -> None:
        """Drops expressions that no member uses, because members may change theirs without limit. Those of the last
        interval are kept, so that none is asked for too often."""
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


class Askers:
    """Who sent the last heartbeat of each member that subscribes with an expression. Known in memory only: a new
    coordinator asks for an expression once it has heard one of its members."""

    def __init__(self) -> None:
        self._heard: dict[str, tuple[str, str]] = {}
        """Member id -> (principal, host). The member that was heard last comes last."""

    def hear(self, request: ConsumerGroupHeartbeat, member_id: str, value: MemberValue) -> None:
        self._heard.pop(member_id, None)
        if value.subscribed_regex:
            self._heard[member_id] = request.principal, request.client_host

    def questions(self, group_id: str, regexes: Sequence[str], state: ConsumerState) -> list[RegexQuestion]:
        """Without those of which no member has been heard yet."""
        if not regexes:
            return []
        askers: dict[str, tuple[str, str]] = {}
        for member_id, asker in self._heard.items():
            value = state.members.get(member_id)
            if value is not None and value.subscribed_regex:
                askers[value.subscribed_regex] = asker
        return [RegexQuestion(group_id, regex, *askers[regex]) for regex in regexes if regex in askers]

    def keep_only(self, members: Container[str]) -> None:
        self._heard = {each: asker for each, asker in self._heard.items() if each in members}

    def forget(self, member_id: str) -> None:
        self._heard.pop(member_id, None)


def _text(error: Exception) -> str:
    cause = error.args[0] if error.args else ""
    return cause.decode(errors="replace") if isinstance(cause, bytes) else str(cause)
