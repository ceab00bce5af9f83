"""Reads a partition of one of the copy's own topics on the target, as far as it is committed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Final

from hapax.client.admin import Admin
from hapax.client.consumer import Consumer
from hapax.client.errors import FatalError, RetriableError
from hapax.client.readings import Chunk
from hapax.codec.records import decode_batch
from hapax.core.errors import ErrorCode
from hapax.core.types import TopicPartition

_HIDDEN_ATTEMPTS: Final = 100
_HIDDEN_S: Final = 0.05


_RIGHTS: Final = "The copy's user needs Read, Write and Create on it: grant what is missing"


class HiddenError(RetriableError):
    """An open transaction hides the rest."""


@contextmanager
def worded(topic: str, purpose: str) -> Iterator[None]:
    """Says of an error what the topic is. `purpose`: what the topic has."""
    try:
        yield
    except FatalError as error:
        advice = _RIGHTS if error.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED else error.advice
        raise FatalError(
            f"topic {topic!r} on the target, which has {purpose}, cannot be used: {error.message}", code=error.code,
            advice=advice) from error


async def records_of(
    target: Admin, reader: Consumer, partition: TopicPartition, *, attempts: int = _HIDDEN_ATTEMPTS
) -> AsyncIterator[tuple[bytes | None, bytes | None]]:
    """Key and value of each record up to the present high watermark. `reader`: read_committed. `attempts`: to read what
    an open transaction hides, 50 ms apart. Raises HapaxError."""
    offsets = (await target.listed_offsets([partition]))[partition]
    offset, tried = offsets.first, 0
    while offset < offsets.high_watermark:
        fetched = await reader.fetch(partition, offset)
        if not fetched.data:
            if fetched.last_stable >= offsets.high_watermark:
                break
            tried += 1
            if tried > attempts:
                raise HiddenError(
                    f"{partition.topic}-{partition.partition} on the target has an open transaction from offset"
                    f" {fetched.last_stable} on; another process of this copy commits it, or it times out",
                    code=ErrorCode.UNSTABLE_OFFSET_COMMIT)
            await asyncio.sleep(_HIDDEN_S)
            continue
        for header, position, visible in Chunk(fetched.data, fetched.aborted, True).batches():
            offset = header.next_offset
            for record in decode_batch(fetched.data, position, header.size) if visible else ():
                yield record.key, record.value
