"""Reads the topics from a subscription of the consumer protocol that is embedded in the classic one.

The coordinator treats a member's metadata as opaque bytes, with one exception: which topics a group reads decides which
offsets may expire or be deleted. Version 0 is the prefix of every version (source: Kafka's ConsumerProtocolSubscription
schema), so nothing after the topics is looked at.
"""

from __future__ import annotations

import struct
from typing import Final

PROTOCOL_TYPE: Final = "consumer"
_HEAD: Final = struct.Struct(">hi")
_LENGTH: Final = struct.Struct(">h")


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
