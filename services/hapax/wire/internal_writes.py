"""Produce requests of the cluster's own nodes to internal topics: by topic id, acks=all, with a proof of the writer.

The proof is a tagged field of the request (`INTERNAL_WRITE_TAG`): the epoch of the writing shard (-1: none), the node's
registration epoch and the session of its registration. A leader accepts it only while the registration is live, and
refuses a shard epoch that is not the last fence's (rules 1 and 17).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from hapax.codec.varint import uvarint
from hapax.core.types import NO_SHARD_EPOCH, PartitionIndex, RegistrationEpoch, ShardEpoch, TopicId
from hapax.wire.peer import INTERNAL_WRITE_TAG

PRODUCE_VERSION: Final = 13

_PROOF: Final = struct.Struct(">iq16s")
_I32: Final = struct.Struct(">i")


class InternalBatch(NamedTuple):
    """One record batch for one partition."""

    topic_id: TopicId
    partition: PartitionIndex
    batch: bytes | bytearray


def proof(
    registration: RegistrationEpoch, session: bytes, shard_epoch: ShardEpoch = NO_SHARD_EPOCH
) -> bytes:
    """The content of the tagged field."""
    return _PROOF.pack(shard_epoch, registration, session)


def read_proof(content: bytes) -> tuple[ShardEpoch, RegistrationEpoch, bytes] | None:
    """(shard epoch, registration, session) of a tagged field; None where the content is malformed."""
    if len(content) != _PROOF.size:
        return None
    shard_epoch, registration, session = _PROOF.unpack(content)
    return ShardEpoch(shard_epoch), RegistrationEpoch(registration), session


def encode_produce(batches: Sequence[InternalBatch], timeout_ms: int, proof_: bytes) -> list[bytes | bytearray]:
    """The body of a Produce request of version `PRODUCE_VERSION`. Each partition occurs at most once."""
    topics: dict[TopicId, list[InternalBatch]] = {}
    for batch in batches:
        topics.setdefault(batch.topic_id, []).append(batch)
    chunks: list[bytes | bytearray] = [b"\0\xff\xff" + _I32.pack(timeout_ms) + uvarint(len(topics) + 1)]
    for topic_id, of_topic in topics.items():
        chunks.append(topic_id + uvarint(len(of_topic) + 1))
        for _, partition, data in of_topic:
            chunks.append(_I32.pack(partition) + uvarint(len(data) + 1))
            chunks.append(data)
            chunks.append(b"\0")
        chunks.append(b"\0")
    chunks.append(b"\1" + uvarint(INTERNAL_WRITE_TAG) + uvarint(len(proof_)) + proof_)
    return chunks
