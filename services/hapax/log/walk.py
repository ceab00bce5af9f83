"""Reads a segment's file batch by batch for tools: with every check of the codec, and with the place and reason of
damage.

Maps the file instead of using the disk port, because tools read files that no service of theirs writes.
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
    """A whole, undamaged batch. `data` holds its bytes, which are valid until the walk continues."""

    position: int
    header: BatchHeader
    data: bytes


class Broken(NamedTuple):
    """Bytes that are not a whole, undamaged batch."""

    position: int
    reason: str
    torn: bool
    """The file ends within the batch, as a crash leaves it after the last write."""
    size: int
    """Up to the end of the file. If the walk continues after the batch, the size of the batch."""


def walk(path: Path) -> Iterator[Batch | Broken]:
    """The batches of a file, in order. Continues after a batch of which only the content is damaged. Ends where no
    further batch can be found."""
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
    # The length of this batch is trusted only if an undamaged batch with a higher offset follows.
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
