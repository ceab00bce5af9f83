"""Requests of the cluster's own nodes to internal topics, encoded by hand, since every transaction needs several.

Produce goes by topic id, with acks=all and a proof of the writer; ListOffsets asks where logs end. The proof is a
tagged field of the request (`INTERNAL_WRITE_TAG`): the epoch of the writing shard (-1: none), the node's registration
epoch and the session of its registration. A leader accepts it only while the registration is live, and refuses a shard
epoch that is not the last fence's (rules 1 and 17).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from hapax.codec.varint import uvarint
from hapax.core.types import NO_SHARD_EPOCH, PartitionIndex, RegistrationEpoch, ShardEpoch, TopicId
from hapax.wire.peer import INTERNAL_WRITE_TAG

PRODUCE_VERSION: Final = 13
LIST_OFFSETS_VERSION: Final = 6

_PROOF: Final = struct.Struct(">iq16s")
_I32: Final = struct.Struct(">i")
_NO_REPLICA_UNCOMMITTED: Final = _I32.pack(-1) + b"\0"
_ANY_EPOCH_LATEST: Final = struct.pack(">iq", -1, -1) + b"\0"


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


def encode_list_ends(partitions: Mapping[str, Sequence[PartitionIndex]], proof_: bytes) -> bytes:
    """The body of a ListOffsets request of version `LIST_OFFSETS_VERSION` for the ends of partitions, by topic."""
    chunks = [_NO_REPLICA_UNCOMMITTED, uvarint(len(partitions) + 1)]
    for topic, of_topic in partitions.items():
        name = topic.encode()
        chunks += (uvarint(len(name) + 1), name, uvarint(len(of_topic) + 1))
        for partition in of_topic:
            chunks += (_I32.pack(partition), _ANY_EPOCH_LATEST)
        chunks.append(b"\0")
    chunks.append(b"\1" + uvarint(INTERNAL_WRITE_TAG) + uvarint(len(proof_)) + proof_)
    return b"".join(chunks)
