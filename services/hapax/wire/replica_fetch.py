"""Fetch (1) between brokers: a follower's requests and answers, encoded and decoded by hand, because records are
neither copied nor decoded.

The call is Kafka's Fetch, version 17, with a replica id and three tagged fields of Hapax's own: at the top level a
proof of the follower (the same as for internal writes) and the number of the last answer that it has read, and for each
partition the offset that it has synced up to.

A connection carries one session (KIP-227): a request names only the partitions that changed. Each naming allows one
answer with records, an error or a divergence. The follower then names the partition again, and reports its progress
with it. A naming with `max_bytes` 0 only reports. Answers without records carry a newer high watermark or log start,
at any time. A new request ends the wait of the previous one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from hapax.codec.varint import read_uvarint, uvarint
from hapax.core.types import NodeId, RegistrationEpoch, TopicId
from hapax.wire.internal_writes import proof
from hapax.wire.peer import INTERNAL_WRITE_TAG

FETCH_VERSION: Final = 17
SYNCED_END_TAG: Final = 10001
"""Tagged field of a partition in the request: i64, the follower has synced all records below this offset."""
ANSWERED_TAG: Final = 10002
"""Tagged field of a request: i32, number of the last answer on this connection that the follower has read (-1: none).
It tells the leader which of its answers the request was sent after (`hapax.core.partition.barrier`)."""

TOP: Final = struct.Struct(">iiibii")
"""Maximum wait, minimum bytes, maximum bytes, isolation, session id, session epoch."""
PARTITION: Final = struct.Struct(">iiqiqi")
"""Index, leader epoch, offset, last fetched epoch, log start, maximum bytes."""
_SYNCED: Final = struct.Struct(">q")
REPLICA: Final = struct.Struct(">iq")
"""Node id, registration."""
_I32: Final = struct.Struct(">i")
_HEAD: Final = struct.Struct(">ihi")
_ANSWER: Final = struct.Struct(">ihqqq")
_DIVERGING: Final = struct.Struct(">iq")
_TRANSACTION_BYTES: Final = 17
_MAX_TAGS: Final = 64

Key = tuple[bytes, int]
"""(topic id, partition)"""


class Naming(NamedTuple):
    """A partition in a follower's request."""

    topic_id: TopicId
    partition: int
    leader_epoch: int
    offset: int
    last_fetched_epoch: int
    log_start_offset: int
    max_bytes: int
    synced_end: int


class Answered(NamedTuple):
    """A partition in the leader's answer. `records` is valid while the frame is."""

    topic_id: bytes
    partition: int
    error: int
    high_watermark: int
    log_start_offset: int
    records: memoryview
    diverging: tuple[int, int] | None
    """(epoch, its end at the leader): the logs diverge at this offset or before it."""


class FetchAnswer(NamedTuple):
    error: int
    session_id: int
    partitions: Sequence[Answered]


def encode_request(
    node_id: NodeId, registration: RegistrationEpoch, session: bytes, *, session_id: int, session_epoch: int,
    max_wait_ms: int, max_bytes: int, named: Sequence[Naming], forgotten: Iterable[Key], answered: int = -1,
) -> list[bytes]:
    """The body of a Fetch of `FETCH_VERSION`. `session` proves the registration. `answered`: see `ANSWERED_TAG`."""
    body = bytearray(TOP.pack(max_wait_ms, 1, max_bytes, 0, session_id, session_epoch))
    topics: dict[bytes, list[Naming]] = {}
    for naming in named:
        topics.setdefault(naming.topic_id, []).append(naming)
    body += uvarint(len(topics) + 1)
    for topic_id, namings in topics.items():
        body += topic_id + uvarint(len(namings) + 1)
        for n in namings:
            body += PARTITION.pack(
                n.partition, n.leader_epoch, n.offset, n.last_fetched_epoch, n.log_start_offset, n.max_bytes)
            body += b"\1" + uvarint(SYNCED_END_TAG) + b"\x08" + _SYNCED.pack(n.synced_end)
        body += b"\0"
    gone: dict[bytes, list[int]] = {}
    for topic_id, partition in forgotten:
        gone.setdefault(topic_id, []).append(partition)
    body += uvarint(len(gone) + 1)
    for topic_id, partitions in gone.items():
        body += topic_id + uvarint(len(partitions) + 1)
        for partition in partitions:
            body += _I32.pack(partition)
        body += b"\0"
    shown = proof(registration, session)
    body += b"\1"  # no rack
    body += b"\3\1" + bytes((REPLICA.size + 1,)) + REPLICA.pack(node_id, registration) + b"\0"
    body += uvarint(INTERNAL_WRITE_TAG) + uvarint(len(shown)) + shown
    body += uvarint(ANSWERED_TAG) + bytes((_I32.size,)) + _I32.pack(answered)
    return [bytes(body)]


def decode_response(body: memoryview) -> FetchAnswer:
    """Decodes the body of a response, without its header. Raises ValueError, IndexError or struct.error."""
    _, error, session_id = _HEAD.unpack_from(body)
    answers: list[Answered] = []
    topics, at = read_uvarint(body, _HEAD.size)
    for _ in range(topics - 1):
        topic_id = bytes(body[at : at + 16])
        partitions, at = read_uvarint(body, at + 16)
        for _ in range(partitions - 1):
            answer, at = _partition(body, at, topic_id)
            answers.append(answer)
        at = _skip_tags(body, at)
    _skip_tags(body, at)
    return FetchAnswer(error, session_id, answers)


def _partition(body: memoryview, at: int, topic_id: bytes) -> tuple[Answered, int]:
    partition, error, high_watermark, _, log_start = _ANSWER.unpack_from(body, at)
    aborted, at = read_uvarint(body, at + _ANSWER.size)
    at += max(0, aborted - 1) * _TRANSACTION_BYTES + 4  # and the preferred replica
    size, at = read_uvarint(body, at)
    end = at + max(0, size - 1)
    if end > len(body):
        raise ValueError(f"records of {size - 1} bytes past the end of the frame")
    records = body[at:end]
    diverging = None
    tags, at = read_uvarint(body, end)
    for _ in range(_bounded(tags)):
        tag, at = read_uvarint(body, at)
        length, at = read_uvarint(body, at)
        if tag == 0:
            epoch, epoch_end = _DIVERGING.unpack_from(body, at)
            diverging = (epoch, epoch_end)
        at += length
    return Answered(topic_id, partition, error, high_watermark, log_start, records, diverging), at


def _bounded(count: int) -> int:
    if count > _MAX_TAGS:
        raise ValueError(f"{count} tagged fields")
    return count


def _skip_tags(body: memoryview, at: int) -> int:
    count, at = read_uvarint(body, at)
    for _ in range(_bounded(count)):
        _, at = read_uvarint(body, at)
        length, at = read_uvarint(body, at)
        at += length
    return at
