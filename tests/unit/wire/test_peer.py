"""The outgoing connection: order, time-outs, endings, versions, tags. The other side is written out by hand."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from hapax.runtime.ports import FrameConnection, FrameHandler, FrameLimits
from hapax.wire.messages import (
    ApiVersionsResponse,
    MetadataRequest,
    MetadataResponse,
    ProduceRequest,
    ProduceResponse,
    unknown_tag,
)
from hapax.wire.peer import (
    Peer,
    PeerClosed,
    PeerTimeout,
    PeerUnsupported,
    ProtocolViolation,
)

OFFER = [(0, 3, 13), (3, 0, 13), (18, 0, 4)]


class Wire:
    """A connection to nowhere that keeps the frames sent, and a network that hands it out."""

    def __init__(self, answer_versions: bool = True) -> None:
        self.serial = 1
        self.peer = "127.0.0.1:1"
        self.certificate = b""
        self.sent: list[bytes] = []
        self.dropped = False
        self.handler: FrameHandler
        self.answer_versions = answer_versions
        self.arrived = asyncio.Event()

    async def connect(
        self, host: str, port: int, opened: Callable[[FrameConnection], FrameHandler], limits: FrameLimits,
        tls: object = None,
    ) -> FrameConnection:
        self.handler = opened(self)
        return self

    def send(self, chunks: Sequence[Any]) -> None:
        frame = b"".join(bytes(c) for c in chunks)
        self.sent.append(frame)
        self.arrived.set()
        key, version, correlation_id = struct.unpack_from(">hhi", frame)
        if key == 18 and self.answer_versions:
            response = ApiVersionsResponse(
                error_code=0,
                api_keys=[ApiVersionsResponse.ApiVersion(api_key=k, min_version=a, max_version=b) for k, a, b in OFFER],
            )
            asyncio.get_running_loop().call_soon(self.deliver, correlation_id, response.encode(version=version))

    def deliver(self, correlation_id: int, body: bytes, tagged: bool = False) -> None:
        header = correlation_id.to_bytes(4, "big") + (b"\0" if tagged else b"")
        self.handler.on_frame(memoryview(header + body))

    def unsent_bytes(self) -> int:
        return 0

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def close(self, reason: str = "") -> None: ...

    def drop(self) -> None:
        self.dropped = True


def produce(version: int, acks: int = -1) -> ProduceRequest:
    return ProduceRequest(version=version, transactional_id=None, acks=acks, timeout_ms=1000, topic_data=[])


def metadata(name: str) -> bytes:
    response = MetadataResponse(
        throttle_time_ms=0, brokers=[], cluster_id=name, controller_id=0, topics=[], error_code=0
    )
    return bytes(response.encode(version=12))


async def connected(wire: Wire) -> Peer:
    return await Peer.connect(wire, "h", 1, client_id="t")  # type: ignore[arg-type]


async def test_versions_are_negotiated_and_answers_pair_with_requests_in_order() -> None:
    wire = Wire()
    peer = await connected(wire)
    assert peer.capabilities.pick(ProduceRequest) == 13
    assert peer.capabilities.pick(ProduceRequest, at_most=11) == 11
    with pytest.raises(PeerUnsupported, match="ProduceRequest"):
        peer.capabilities.pick(ProduceRequest, at_least=14)
    first = peer.submit(MetadataRequest(topics=[]), version=12)
    second = peer.submit(MetadataRequest(topics=[]), version=12)
    assert peer.in_flight == 2
    wire.deliver(1, metadata("a"), tagged=True)
    wire.deliver(2, metadata("b"), tagged=True)
    assert ((await first).cluster_id, (await second).cluster_id) == ("a", "b")


async def test_an_older_peer_refuses_the_newest_version_request_with_its_list() -> None:
    wire = Wire(answer_versions=False)
    connecting = asyncio.ensure_future(connected(wire))
    await wire.arrived.wait()
    refusal = ApiVersionsResponse(
        error_code=35, api_keys=[ApiVersionsResponse.ApiVersion(api_key=18, min_version=0, max_version=2)]
    )
    wire.arrived.clear()
    wire.deliver(0, refusal.encode(version=0))
    await wire.arrived.wait()
    assert struct.unpack_from(">hh", wire.sent[1]) == (18, 2)
    answer = ApiVersionsResponse(
        error_code=0, api_keys=[ApiVersionsResponse.ApiVersion(api_key=3, min_version=0, max_version=7)]
    )
    wire.deliver(1, answer.encode(version=2))
    peer = await connecting
    assert peer.capabilities.versions == {3: (0, 7)}


async def test_an_answer_out_of_order_closes_the_connection_and_fails_everything() -> None:
    wire = Wire()
    peer = await connected(wire)
    first = peer.submit(MetadataRequest(topics=[]), version=12)
    second = peer.submit(MetadataRequest(topics=[]), version=12)
    wire.deliver(2, metadata("b"), tagged=True)
    for answer in (first, second):
        with pytest.raises(ProtocolViolation, match="correlation id 2 instead of 1"):
            await answer
    assert wire.dropped
    with pytest.raises(PeerClosed, match="correlation id"):
        peer.submit(MetadataRequest(topics=[]), version=12)


async def test_an_answer_that_cannot_be_decoded_closes_the_connection() -> None:
    wire = Wire()
    peer = await connected(wire)
    answer = peer.submit(MetadataRequest(topics=[]), version=12)
    wire.deliver(1, b"\x00\x00", tagged=True)
    with pytest.raises(ProtocolViolation, match="cannot be decoded"):
        await answer
    assert wire.dropped and peer.closed


async def test_a_timeout_fails_all_that_is_in_flight() -> None:
    wire = Wire()
    peer = await connected(wire)
    reasons: list[str] = []
    peer.on_close = reasons.append
    patient = peer.submit(MetadataRequest(topics=[]), version=12)
    with pytest.raises(PeerTimeout, match="MetadataRequest"):
        await peer.call(MetadataRequest(topics=[]), version=12, timeout_ms=5)
    with pytest.raises(PeerTimeout):
        await patient
    assert wire.dropped and len(reasons) == 1


async def test_a_connection_closed_by_the_peer_fails_pending_requests_and_later_ones() -> None:
    wire = Wire()
    peer = await connected(wire)
    pending = peer.submit(MetadataRequest(topics=[]), version=12)
    wire.handler.on_closed("connection reset")
    with pytest.raises(PeerClosed, match="connection reset"):
        await pending
    with pytest.raises(PeerClosed):
        await peer.call(MetadataRequest(topics=[]), version=12)


async def test_acks_0_waits_for_no_answer() -> None:
    wire = Wire()
    peer = await connected(wire)
    assert await peer.call(produce(9, acks=0), version=9) is None
    assert peer.in_flight == 0


async def test_unknown_tags_travel_on_the_request() -> None:
    wire = Wire()
    peer = await connected(wire)
    peer.submit(produce(13), version=13, tags={10000: b"x" * 200, 3: b"y"})
    body = wire.sent[-1][8 + 2 + 1 + 1 :]
    decoded = ProduceRequest.decode(body, version=13)
    assert unknown_tag(decoded, 10000) == b"x" * 200
    assert unknown_tag(decoded, 3) == b"y"
    assert unknown_tag(decoded, 4) is None
    with pytest.raises(ValueError, match="no tagged fields"):
        peer.submit(produce(8), version=8, tags={10000: b""})


async def test_a_raw_body_is_sent_as_it_is_and_its_answer_decoded() -> None:
    wire = Wire()
    peer = await connected(wire)
    body = produce(9).encode(version=9)
    answer = peer.submit_raw(ProduceRequest, 9, (body[:2], memoryview(body)[2:]))
    assert wire.sent[-1].endswith(body)
    wire.deliver(1, ProduceResponse(responses=[], throttle_time_ms=7).encode(version=9), tagged=True)
    assert (await answer).throttle_time_ms == 7


# --- throttled --------------------------------------------------------------------------------------------------------


async def test_a_throttled_connection_sends_nothing_until_the_peer_reads_again() -> None:
    wire = Wire()
    peer = await connected(wire)
    first = peer.submit(MetadataRequest(topics=[]), version=12)
    in_flight = peer.submit(MetadataRequest(topics=[]), version=12, timeout_ms=150)
    sent = len(wire.sent)
    told = MetadataResponse(
        throttle_time_ms=200, brokers=[], cluster_id="a", controller_id=0, topics=[], error_code=0)
    wire.deliver(1, bytes(told.encode(version=12)), tagged=True)
    assert (await first).cluster_id == "a", "the answer itself does not wait"
    assert 0.1 < peer.throttled_s <= 0.2
    held = [peer.submit(MetadataRequest(topics=[]), version=12, timeout_ms=100) for _ in range(2)]
    await peer.submit(produce(9, acks=0), version=9)
    assert len(wire.sent) == sent, "they wait"
    began = asyncio.get_running_loop().time()
    wire.arrived.clear()
    await wire.arrived.wait()
    assert asyncio.get_running_loop().time() - began > 0.1
    assert [struct.unpack_from(">h", each)[0] for each in wire.sent[sent:]] == [3, 3, 0], "in the order of the calls"
    assert peer.throttled_s == 0
    wire.deliver(2, metadata("b"), tagged=True)
    assert (await in_flight).cluster_id == "b", "time during which it was not read does not count"
    wire.deliver(3, metadata("c"), tagged=True)
    wire.deliver(4, metadata("d"), tagged=True)
    assert [(await each).cluster_id for each in held] == ["c", "d"]


async def test_what_waits_for_a_throttle_fails_with_its_connection() -> None:
    wire = Wire()
    peer = await connected(wire)
    first = peer.submit(MetadataRequest(topics=[]), version=12)
    told = MetadataResponse(
        throttle_time_ms=60_000, brokers=[], cluster_id="a", controller_id=0, topics=[], error_code=0)
    wire.deliver(1, bytes(told.encode(version=12)), tagged=True)
    await first
    held = peer.submit(MetadataRequest(topics=[]), version=12)
    sent = len(wire.sent)
    peer.close("enough")
    with pytest.raises(PeerClosed, match="enough"):
        await held
    assert peer._release is None and len(wire.sent) == sent
