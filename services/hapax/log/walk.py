"""A segment's file read batch by batch for tools: every check of the codec, and where and why reading stopped.

Maps the file instead of going through the disk port: tools read what no service of theirs writes.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from hapax.codec.batch import CURRENT_MAGIC, HEADER_SIZE, check_batch, crc_matches, read_header
from hapax.core.batch import BatchHeader
from hapax.core.errors import Refusal


class Batch(NamedTuple):
    """A whole, undamaged batch. `data` is its bytes, valid until the walk goes on."""

    position: int
    header: BatchHeader
    data: bytes


class Broken(NamedTuple):
    """Bytes that are no whole, undamaged batch."""

    position: int
    reason: str
    torn: bool
    """The file ends within the batch: what a crash leaves behind the last write."""
    size: int
    """To the end of the file; or of the batch, where the walk goes on behind it."""


def walk(path: Path) -> Iterator[Batch | Broken]:
    """The batches of a file, in order. Ends at the first place from which no batch can be found any more; goes on
    behind a batch of which only the content is damaged."""
    with path.open("rb") as file:
        size = path.stat().st_size
        if size == 0:
            return
        with mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as data:
            position = 0
            while position < size:
                try:
                    header = read_header(data[position : position + HEADER_SIZE])
                    batch = data[position : position + max(header.size, HEADER_SIZE)]
                    check_batch(batch, header)
                except Refusal as refusal:
                    broken = _broken(data, position, str(refusal))
                    yield broken
                    if position + broken.size == size:
                        return
                    position += broken.size
                    continue
                yield Batch(position, header, batch)
                position += header.size


def _broken(data: mmap.mmap, position: int, reason: str) -> Broken:
    left = len(data) - position
    if left < HEADER_SIZE:
        return Broken(position, reason, True, left)
    header = read_header(data[position : position + HEADER_SIZE])
    sane = header.magic == CURRENT_MAGIC and header.size >= HEADER_SIZE and header.last_offset_delta >= 0
    if not sane or header.size >= left:
        return Broken(position, reason, sane and header.size > left, left)
    following = data[position + header.size : position + header.size + HEADER_SIZE]
    # Only where an undamaged batch of a later offset follows is the length of this one to be believed.
    if len(following) == HEADER_SIZE:
        after = read_header(following)
        end = position + header.size + after.size
        if (
            after.magic == CURRENT_MAGIC
            and after.base_offset > header.base_offset
            and end <= len(data)
            and crc_matches(data[position + header.size : end], after)
        ):
            return Broken(position, reason, False, header.size)
    return Broken(position, reason, False, left)
