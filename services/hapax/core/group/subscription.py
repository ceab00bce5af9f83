"""Reads subscriptions and assignments of the consumer protocol that is embedded in the classic one.

The coordinator treats both as opaque bytes, with two exceptions: which topics a group reads decides which offsets may
expire or be deleted, and a description of a group shows what its members were given. Version 0 is the prefix of every
version (source: Kafka's ConsumerProtocolSubscription schema), so nothing after it is looked at.
"""

from __future__ import annotations

import struct
from typing import Final

PROTOCOL_TYPE: Final = "consumer"
_HEAD: Final = struct.Struct(">hi")
_LENGTH: Final = struct.Struct(">h")
_COUNT: Final = struct.Struct(">i")


def assigned_partitions(assignment: bytes) -> tuple[tuple[str, int], ...] | None:
    """(topic, partition) of an assignment of the consumer protocol (source: Kafka's ConsumerProtocolAssignment schema);
    None where the bytes are none. An empty assignment may have no bytes at all."""
    if not assignment:
        return ()
    try:
        version, count = _HEAD.unpack_from(assignment)
        if version < 0 or not 0 <= count <= len(assignment):
            return None
        at = _HEAD.size
        found: list[tuple[str, int]] = []
        for _ in range(count):
            (length,) = _LENGTH.unpack_from(assignment, at)
            at += _LENGTH.size
            if length < 0 or at + length > len(assignment):
                return None
            topic = assignment[at : at + length].decode()
            at += length
            (numbers,) = _COUNT.unpack_from(assignment, at)
            at += _COUNT.size
            if not 0 <= numbers <= (len(assignment) - at) // _COUNT.size:
                return None
            for each in range(numbers):
                found.append((topic, _COUNT.unpack_from(assignment, at + each * _COUNT.size)[0]))
            at += numbers * _COUNT.size
    except (struct.error, UnicodeDecodeError):
        return None
    return tuple(found)


def subscribed_topics(metadata: bytes) -> tuple[str, ...] | None:
    """Names in the order of the subscription; None where the bytes are no such subscription."""
    try:
        version, count = _HEAD.unpack_from(metadata)
        if version < 0 or not 0 <= count <= len(metadata):
            return None
        at = _HEAD.size
        topics = []
        for _ in range(count):
            (length,) = _LENGTH.unpack_from(metadata, at)
            at += _LENGTH.size
            if length < 0 or at + length > len(metadata):
                return None
            topics.append(metadata[at : at + length].decode())
            at += length
    except (struct.error, UnicodeDecodeError):
        return None
    return tuple(topics)
