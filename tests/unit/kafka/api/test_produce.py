"""The hand-written Produce codec against kafka.protocol, in every version."""

from __future__ import annotations

import random
import uuid
from typing import Any

import pytest

from hapax.core.partition.values import RecordError, WriteResult
from hapax.kafka.api.produce import PartitionRecords, decode_request, encode_response
from hapax.kafka.table import CloseConnection
from hapax.wire.messages import ProduceRequest, ProduceResponse, set_unknown_tag
from hapax.wire.peer import INTERNAL_WRITE_TAG

VERSIONS = range(3, 14)
IDS = [uuid.UUID(int=7), uuid.UUID(int=2**128 - 1)]
Topic = ProduceRequest.TopicProduceData


def request(version: int, transactional_id: str | None, records: list[bytes | None]) -> Any:
    message = ProduceRequest(transactional_id=transactional_id, acks=-1, timeout_ms=30_000, topic_data=[
        Topic(name=f"topic-{i}", topic_id=IDS[i], partition_data=[
            Topic.PartitionProduceData(index=10 * i + j, records=r) for j, r in enumerate(records)
        ])
        for i in range(2)
    ])
    return message


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("transactional_id", [None, "", "t" * 5, "ä" * 200])
@pytest.mark.parametrize("records", [[b"x"], [b"abc", None, b"", b"y" * 20_000], []])
def test_requests_decode_to_what_was_encoded(
    version: int, transactional_id: str | None, records: list[bytes | None]
) -> None:
    body = memoryview(bytearray(request(version, transactional_id, records).encode(version=version)))
    decoded = decode_request(body, version)
    assert (decoded.transactional_id, decoded.acks, decoded.timeout_ms) == (transactional_id, -1, 30_000)
    assert decoded.internal is None
    expected = [
        (IDS[i].bytes if version >= 13 else f"topic-{i}", 10 * i + j, r)
        for i in range(2) for j, r in enumerate(records)
    ]
    assert [
        (p.topic, p.partition, None if p.start < 0 else bytes(body[p.start : p.end])) for p in decoded.partitions
    ] == expected


@pytest.mark.parametrize("version", [9, 13])
def test_internal_writers_prove_themselves_in_a_tagged_field(version: int) -> None:
    message = request(version, None, [b"x"])
    set_unknown_tag(message, INTERNAL_WRITE_TAG, b"proof")
    set_unknown_tag(message, 5, b"something else")
    decoded = decode_request(memoryview(message.encode(version=version)), version)
    assert decoded.internal == b"proof"
    assert len(decoded.partitions) == 2


@pytest.mark.parametrize("version", VERSIONS)
def test_cut_and_damaged_requests_close_the_connection(version: int) -> None:
    body = request(version, "id", [b"abc", None]).encode(version=version)
    for length in range(len(body)):
        with pytest.raises(CloseConnection):
            decode_request(memoryview(body[:length]), version)
    with pytest.raises(CloseConnection, match="left over"):
        decode_request(memoryview(body + b"\0"), version)
    rng = random.Random(version)
    for _ in range(500):
        damaged = bytearray(body)
        for _ in range(rng.randrange(1, 4)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        try:
            decoded = decode_request(memoryview(damaged), version)
        except CloseConnection:
            continue
        assert all(-1 <= p.start <= p.end <= len(damaged) for p in decoded.partitions)


def test_a_count_that_lies_costs_nothing() -> None:
    with pytest.raises(CloseConnection, match="an array of 2147483647"):
        decode_request(memoryview(b"\xff\xff\xff\xff\0\0\0\0\x7f\xff\xff\xff"), 3)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("reason", ["", "why " * 60])
@pytest.mark.parametrize(("topics", "of_each"), [(2, 3), (1, 1), (1, 2), (2, 1)])
def test_responses_are_those_of_the_library(version: int, reason: str, topics: int, of_each: int) -> None:
    partitions = [
        PartitionRecords(IDS[i].bytes if version >= 13 else f"topic-{i}", j, 0, 0)
        for i in range(topics) for j in range(of_each)
    ]
    results = [
        WriteResult(
            n, 100 + n, 1_700_000_000_000 + n, 5, reason if n % 2 == 0 else "",
            tuple(RecordError(3 * i, "é" * 70 * i) for i in range(n)) if reason and n % 2 == 0 else ())
        for n in range(topics * of_each)
    ]
    Response = ProduceResponse.TopicProduceResponse
    expected = ProduceResponse(throttle_time_ms=0, responses=[
        Response(name=f"topic-{i}", topic_id=IDS[i], partition_responses=[
            Response.PartitionProduceResponse(
                index=partition.partition, error_code=result.error, base_offset=result.base_offset,
                log_append_time_ms=result.log_append_time_ms, log_start_offset=result.log_start_offset,
                record_errors=[
                    Response.PartitionProduceResponse.BatchIndexAndErrorMessage(
                        batch_index=each.position, batch_index_error_message=each.message)
                    for each in result.record_errors],
                error_message=result.reason or None,
            )
            for partition, result in list(zip(partitions, results, strict=True))[of_each * i : of_each * (i + 1)]
        ])
        for i in range(topics)
    ]).encode(version=version)
    assert encode_response(version, partitions, list(results)) == bytes(expected)
