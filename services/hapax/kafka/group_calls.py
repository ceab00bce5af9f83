"""What the calls about consumer groups have in common."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar
from uuid import UUID

from hapax.core.errors import ErrorCode, Refusal
from hapax.core.types import LONGEST_NAME_BYTES
from hapax.kafka.table import RequestContext
from hapax.runtime.ports import Randomness

_ID_SUFFIX_BYTES: Final = 37
"""A member's id is its client's or instance's with a hyphen and a UUID."""
_AT_A_TIME: Final = 100

_Answered = TypeVar("_Answered")


def check_group_id(group_id: str) -> None:
    """Raises Refusal: 24 for an empty id and for one that no record can hold."""
    if not group_id:
        raise Refusal(ErrorCode.INVALID_GROUP_ID, "the group id is empty")
    if _too_long(group_id):
        raise Refusal(ErrorCode.INVALID_GROUP_ID, f"the group id is longer than {LONGEST_NAME_BYTES} bytes")


def check_names(*names: str | None) -> None:
    """Raises Refusal: 42 for a name that no record can hold. Most names of a group's records have an int16 length."""
    if any(name is not None and _too_long(name) for name in names):
        raise Refusal(ErrorCode.INVALID_REQUEST, f"a name is longer than {LONGEST_NAME_BYTES - _ID_SUFFIX_BYTES} bytes")


def _too_long(name: str) -> bool:
    limit = LONGEST_NAME_BYTES - _ID_SUFFIX_BYTES
    return len(name) * 4 > limit and len(name.encode()) > limit


def fresh_id(random: Randomness) -> str:
    """A random UUID (version 4) as text."""
    return str(UUID(bytes=random.randbytes(16), version=4))


def client_host(ctx: RequestContext) -> str:
    """The client's address as Kafka shows it: `/127.0.0.1`."""
    return f"/{ctx.connection.peer.rpartition(':')[0]}"


async def each_of(
    names: Sequence[str], ask: Callable[[str], Awaitable[_Answered]]
) -> list[_Answered]:
    """Asks about each, a hundred at a time, and returns the answers in order. `ask` raises nothing."""
    answers: list[_Answered] = []
    for start in range(0, len(names), _AT_A_TIME):
        answers += await asyncio.gather(*(ask(name) for name in names[start : start + _AT_A_TIME]))
    return answers
