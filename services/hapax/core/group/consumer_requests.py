"""Checks of a ConsumerGroupHeartbeat that do not depend on the group's state."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from hapax.core.errors import ErrorCode, Refusal
from hapax.core.group.values import ConsumerGroupHeartbeat, Partitions
from hapax.core.types import LONGEST_NAME_BYTES

JOIN: Final = 0
LEAVE: Final = -1
PAUSE: Final = -2
"""A static member leaves for a while: its partitions are kept for it until its session ends."""
UNCHANGED: Final = -1
"""The value of a rebalance timeout that was not sent."""
FIRST_VERSION_WITH_CLIENT_IDS: Final = 1
"""From this version on, clients generate their member ids themselves."""


def check(request: ConsumerGroupHeartbeat, assignors: Collection[str]) -> None:
    """Raises Refusal: INVALID_REQUEST, UNSUPPORTED_ASSIGNOR."""
    epoch = request.member_epoch
    if not request.group_id:
        raise _invalid("the group id must not be empty")
    if not request.member_id and (
        request.version >= FIRST_VERSION_WITH_CLIENT_IDS or epoch > JOIN or epoch == LEAVE
    ):
        raise _invalid("the member id must not be empty")
    if request.instance_id == "":
        raise _invalid("the instance id must not be empty")
    if request.rack_id == "":
        raise _invalid("the rack id must not be empty")
    if request.rebalance_timeout_ms < UNCHANGED:
        raise _invalid("the rebalance timeout must not be negative")
    if epoch == JOIN:
        if request.rebalance_timeout_ms == UNCHANGED:
            raise _invalid("a joining member must send its rebalance timeout")
        if request.owned is None or request.owned:
            raise _invalid("a joining member must send an empty list of owned partitions")
        if request.subscribed_names is None and request.subscribed_regex is None:
            raise _invalid("a joining member must subscribe to names or to a regular expression")
        for name in (request.member_id, request.instance_id):  # they are stored in records
            if name is not None and len(name.encode(errors="replace")) > LONGEST_NAME_BYTES:
                raise _invalid(f"a member id or instance id must not be longer than {LONGEST_NAME_BYTES} bytes")
    elif epoch == PAUSE:
        if request.instance_id is None:
            raise _invalid("only a member with an instance id can leave with epoch -2")
    elif epoch < PAUSE:
        raise _invalid(f"invalid member epoch {epoch}")
    if request.server_assignor is not None and request.server_assignor not in assignors:
        raise Refusal(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"unknown assignor {request.server_assignor!r}; known: {', '.join(assignors)}")


def is_full(request: ConsumerGroupHeartbeat) -> bool:
    """Whether the member sends all fields: it joins, or has missed an answer. The answer then has all fields too."""
    return (
        request.rebalance_timeout_ms != UNCHANGED and request.owned is not None
        and (request.subscribed_names is not None or request.subscribed_regex is not None)
    )


def owned_partitions(request: ConsumerGroupHeartbeat) -> Partitions | None:
    if request.owned is None:
        return None
    return frozenset((topic.topic_id, index) for topic in request.owned for index in topic.partitions)


def _invalid(reason: str) -> Refusal:
    return Refusal(ErrorCode.INVALID_REQUEST, reason)
