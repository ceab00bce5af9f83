"""Fetch between brokers: the hand-written sides against kafka.protocol's and the server's own."""

from __future__ import annotations

from hapax.core.types import NodeId, RegistrationEpoch, TopicId
from hapax.kafka.api.fetch import FetchedPartition, FetchResult, decode_follower, decoded, encode_response
from hapax.wire.internal_writes import read_proof
from hapax.wire.messages import FetchRequest, FetchResponse
from hapax.wire.replica_fetch import FETCH_VERSION, Naming, decode_response, encode_request

ONE, TWO = TopicId(b"1" * 16), TopicId(b"2" * 16)


def test_what_a_follower_sends_is_kafkas_fetch_with_its_proof() -> None:
    named = [
        Naming(ONE, 0, 5, 100, 4, 10, 1 << 20, 90), Naming(TWO, 3, 1, 0, -1, 0, 0, 0), Naming(ONE, 1, 5, 7, 5, 0, 9, 7),
    ]
    body = b"".join(encode_request(
        NodeId(2), RegistrationEpoch(77), b"s" * 16, session_id=4, session_epoch=9, max_wait_ms=500, max_bytes=1000,
        named=named, forgotten=[(ONE, 8), (ONE, 9)],
    ))
    assert decode_follower(memoryview(body)) is None, "somebody is forgotten: for the library to decode"
    message = FetchRequest.decode(body, version=FETCH_VERSION)
    assert (message.replica_state.replica_id, message.replica_state.replica_epoch) == (2, 77)
    request = decoded(message, FETCH_VERSION)
    assert (request.replica_id, request.session_id, request.session_epoch) == (2, 4, 9)
    assert (request.max_wait_ms, request.min_bytes, request.max_bytes, request.committed) == (500, 1, 1000, False)
    assert read_proof(request.proof) == (-1, 77, b"s" * 16)
    assert [tuple(p) for p in request.partitions] == [
        (ONE, 0, 100, 1 << 20, 5, 4, 90, 10), (ONE, 1, 7, 9, 5, 5, 7, 0), (TWO, 3, 0, 0, 1, -1, 0, 0),
    ]
    assert request.forgotten == [(ONE, 8), (ONE, 9)]
    assert request.answered == -1, "none was read yet"


def test_what_followers_send_for_each_write_is_decoded_by_hand_as_by_the_library() -> None:
    for named in (
        [], [Naming(ONE, 0, 5, 100, 4, 10, 1 << 20, 90)],
        [Naming(topic, p, 2**31 - 1, 2**60, -1, 0, 0, 2**59) for topic in (ONE, TWO) for p in range(200)],
    ):
        body = b"".join(encode_request(
            NodeId(2), RegistrationEpoch(2**40), bytes(range(16)), session_id=1, session_epoch=9, max_wait_ms=500,
            max_bytes=1000, named=named, forgotten=[], answered=8,
        ))
        found = decode_follower(memoryview(body))
        assert found is not None and found.answered == 8
        assert found == decoded(FetchRequest.decode(body, version=FETCH_VERSION), FETCH_VERSION)
        for size in range(0, len(body), 1 + len(body) // 100):
            assert decode_follower(memoryview(body[:size])) is None


def test_an_ordinary_replicas_fetch_has_synced_what_it_asks_from() -> None:
    body = FetchRequest(
        max_wait_ms=1, min_bytes=1, max_bytes=1, isolation_level=0, session_id=0, session_epoch=0,
        replica_state=FetchRequest.ReplicaState(replica_id=1, replica_epoch=3),
        topics=[FetchRequest.FetchTopic(topic_id="31313131-3131-3131-3131-313131313131", partitions=[
            FetchRequest.FetchTopic.FetchPartition(
                partition=0, current_leader_epoch=1, fetch_offset=42, last_fetched_epoch=1, log_start_offset=0,
                partition_max_bytes=10)
        ])], forgotten_topics_data=[], rack_id="",
    ).encode(version=FETCH_VERSION)
    request = decoded(FetchRequest.decode(body, version=FETCH_VERSION), FETCH_VERSION)
    assert request.partitions[0].synced_end == 42
    assert request.proof == b""


def test_a_leaders_answer_is_read_back() -> None:
    class Range:
        fd, position, size = -1, 0, 200

        def read(self) -> bytes:
            return bytes(range(200))

        def release(self) -> None: ...

    result = FetchResult(0, 7, [
        FetchedPartition(ONE, 0, 0, 50, 50, 3, None, Range()),
        FetchedPartition(ONE, 1, 6, leader=(1, 4)),
        FetchedPartition(TWO, 2, 0, 9, 9, 0, diverging=(3, 8)),
    ])
    body = b"".join(
        chunk if isinstance(chunk, (bytes, bytearray)) else chunk.read() for chunk in encode_response(17, result)
    )
    answer = decode_response(memoryview(body))
    assert (answer.error, answer.session_id) == (0, 7)
    first, second, third = answer.partitions
    assert (first.topic_id, first.partition, first.error, first.high_watermark, first.log_start_offset) == (
        ONE, 0, 0, 50, 3)
    assert bytes(first.records) == bytes(range(200))
    assert (second.partition, second.error, bytes(second.records)) == (1, 6, b"")
    assert (third.topic_id, third.partition, third.diverging) == (TWO, 2, (3, 8))
    assert FetchResponse.decode(body, version=FETCH_VERSION).responses[1].partitions[0].diverging_epoch.end_offset == 8
