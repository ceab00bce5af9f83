"""A segment's `.txnindex` in Kafka's format: the transactions whose ABORT marker lies in the segment.

An entry has 34 bytes: i16 version 0, i64 producer id, i64 first offset, i64 last offset, i64 last stable offset.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from hapax.core.partition.machine import AbortedTransaction
from hapax.log.durable import sync_file
from hapax.runtime.ports import Folder

ENTRY_SIZE: Final = 34
_ENTRY = struct.Struct(">hqqqq")
_VERSION: Final = 0


def encode_aborted(entries: Sequence[AbortedTransaction]) -> bytes:
    return b"".join(_ENTRY.pack(_VERSION, *entry) for entry in entries)


def decode_aborted(data: bytes) -> list[AbortedTransaction]:
    """A torn last entry is ignored. Raises ValueError for an unknown version."""
    entries = []
    for version, *fields in _ENTRY.iter_unpack(data[: len(data) - len(data) % ENTRY_SIZE]):
        if version != _VERSION:
            raise ValueError(f"transaction index entry of version {version}")
        entries.append(AbortedTransaction(*fields))
    return entries


def read_aborted(folder: Folder, path: str) -> list[AbortedTransaction]:
    """All entries of a file. [] if it is missing."""
    try:
        file = folder.open(path)
    except FileNotFoundError:
        return []
    try:
        return decode_aborted(file.read(0, file.size()))
    finally:
        file.close()


async def append_aborted(folder: Folder, path: str, entries: Sequence[AbortedTransaction]) -> None:
    """Appends entries to a file durably. They overwrite a torn last entry."""
    file = folder.open(path, create=True)
    try:
        if file.size() % ENTRY_SIZE:
            file.truncate(file.size() - file.size() % ENTRY_SIZE)
        file.append([encode_aborted(entries)])
        await sync_file(file)
    finally:
        file.close()


def cut_aborted(folder: Folder, path: str, offset: int) -> None:
    """Removes the entries whose marker is at or above `offset`. Recovery's scan finds them again."""
    kept = [entry for entry in read_aborted(folder, path) if entry.last_offset < offset]
    if folder.exists(path):
        file = folder.open(path)
        file.truncate(len(kept) * ENTRY_SIZE)
        file.close()
