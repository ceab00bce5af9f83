"""The hand-written Fetch response against kafka.protocol, and what is read of a request, in every version."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from hapax.core.partition.machine import AbortedTransaction
from hapax.kafka.api.fetch import (
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResult,
    decoded,
    encode_response,
)
from hapax.wire.messages import FetchRequest as RequestMessage
from hapax.wire.messages import FetchResponse as ResponseMessage

VERSIONS = range(4, 19)
IDS = [uuid.UUID(int=7), uuid.UUID(int=2**128 - 1)]


class Bytes:
    """Records that are a range of a file."""

    fd = -1
    position = 0

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.size = len(data)

    def read(self) -> bytes:
        return self.data

    def release(self) -> None: ...


def joined(chunks: tuple[Any, ...]) -> bytes:
    return b"".join(c.read() if isinstance(c, Bytes) else bytes(c) for c in chunks)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("aborted", [None, [], [AbortedTransaction(7, 5, 9, 9), AbortedTransaction(8, 6, 10, 11)]])
@pytest.mark.parametrize("records", [b"", b"r" * 300])
def test_responses_are_those_of_the_library(
    version: int, aborted: list[AbortedTransaction] | None, records: bytes
) -> None:
    Topic = ResponseMessage.FetchableTopicResponse
    Part = Topic.PartitionData

    def part(index: int) -> Any:
        message = Part(
            partition_index=index, error_code=index, high_watermark=100, last_stable_offset=90, log_start_offset=3,
            aborted_transactions=None if aborted is None else [
                Part.AbortedTransaction(producer_id=a.producer_id, first_offset=a.first_offset) for a in aborted],
            preferred_read_replica=7 - index, records=records,
        )
        if index == 1 and version >= 12:
            message.diverging_epoch = Part.EpochEndOffset(epoch=4, end_offset=55)
            message.current_leader = Part.LeaderIdAndEpoch(leader_id=2, leader_epoch=9)
        return message

    expected = ResponseMessage(
        throttle_time_ms=0, error_code=3, session_id=77,
        responses=[
            Topic(topic=f"topic-{i}", topic_id=IDS[i], partitions=[part(j) for j in range(2)]) for i in range(2)
        ],
    ).encode(version=version)
    result = FetchResult(3, 77, [
        FetchedPartition(
            IDS[i].bytes if version >= 13 else f"topic-{i}", j, j, 100, 90, 3, aborted,
            Bytes(records) if records else None, (4, 55) if j == 1 else None, (2, 9) if j == 1 else None,
            7 - j,
        )
        for i in range(2) for j in range(2)
    ])
    assert joined(encode_response(version, result)) == bytes(expected)


@pytest.mark.parametrize("version", VERSIONS)
def test_an_empty_response(version: int) -> None:
    expected = ResponseMessage(throttle_time_ms=0, error_code=0, session_id=0, responses=[]).encode(version=version)
    assert joined(encode_response(version, FetchResult(0, 0, []))) == bytes(expected)


@pytest.mark.parametrize("version", VERSIONS)
def test_requests(version: int) -> None:
    Topic = RequestMessage.FetchTopic
    message = RequestMessage(
        replica_id=4, replica_state=RequestMessage.ReplicaState(replica_id=4, replica_epoch=1), max_wait_ms=500,
        min_bytes=1, max_bytes=1000, isolation_level=1, session_id=5, session_epoch=6,
        topics=[Topic(topic="t", topic_id=IDS[0], partitions=[
            Topic.FetchPartition(
                partition=3, current_leader_epoch=8, fetch_offset=42, last_fetched_epoch=7, log_start_offset=-1,
                partition_max_bytes=99)])],
        forgotten_topics_data=[RequestMessage.ForgottenTopic(topic="u", topic_id=IDS[1], partitions=[1, 2])],
        rack_id="r",
    )
    read = decoded(RequestMessage.decode(memoryview(message.encode(version=version)), version=version), version)
    by_id = version >= 13
    assert read == FetchRequest(
        4, 500, 1, 1000, True, 5 if version >= 7 else 0, 6 if version >= 7 else -1,
        [FetchPartition(
            IDS[0].bytes if by_id else "t", 3, 42, 99, 8 if version >= 9 else -1, 7 if version >= 12 else -1, 42)],
        [(IDS[1].bytes if by_id else "u", p) for p in (1, 2)] if version >= 7 else [],
        rack="r" if version >= 11 else "",
    )


@pytest.mark.parametrize("version", range(13, 19))
def test_a_request_with_the_id_zero(version: int) -> None:
    """The library decodes it to None."""
    Topic = RequestMessage.FetchTopic
    message = RequestMessage(
        max_wait_ms=500, min_bytes=1, max_bytes=1000, isolation_level=1, session_id=5, session_epoch=6,
        topics=[Topic(topic_id=uuid.UUID(int=0), partitions=[Topic.FetchPartition(
            partition=3, current_leader_epoch=8, fetch_offset=42, last_fetched_epoch=7, log_start_offset=-1,
            partition_max_bytes=99)])],
        forgotten_topics_data=[RequestMessage.ForgottenTopic(topic_id=uuid.UUID(int=0), partitions=[1])], rack_id="r")
    read = decoded(RequestMessage.decode(memoryview(message.encode(version=version)), version=version), version)
    assert [each.topic for each in read.partitions] == [bytes(16)] and list(read.forgotten) == [(bytes(16), 1)]
