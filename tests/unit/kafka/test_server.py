"""The listener above a connection that records what is sent: order, bounds, and what bad requests get."""

from __future__ import annotations

import asyncio
import logging
import random
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from hapax.core.access.principals import ANONYMOUS, user
from hapax.core.errors import ErrorCode
from hapax.core.group.values import JoinAnswer, SyncAnswer
from hapax.kafka.api import (
    api_versions,
    end_txn,
    fetch,
    find_coordinator,
    init_producer_id,
    join_group,
    list_offsets,
    produce,
    sync_group,
    txn_offset_commit,
)
from hapax.kafka.registry import all_apis
from hapax.kafka.server import KafkaServer, ServerLimits, Session
from hapax.kafka.table import DEFERRED, ApiTable, CloseConnection, RequestContext
from hapax.runtime.ports import Chunk, FrameConnection, FrameHandler, FrameLimits, FrameListener
from hapax.runtime.telemetry import Metrics
from hapax.wire.messages import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    JoinGroupRequest,
    ListOffsetsRequest,
    ListOffsetsResponse,
    SyncGroupRequest,
)


class Recorder:
    """A `FrameConnection` that keeps what is sent."""

    def __init__(self, serial: int = 1) -> None:
        self.serial = serial
        self.peer = "10.0.0.1:5000"
        self.sent: list[bytes] = []
        self.reading = True
        self.closed_for: str | None = None

    def send(self, chunks: Sequence[Chunk]) -> None:
        assert self.closed_for is None, "an answer after the connection was closed"
        self.sent.append(b"".join(chunk if isinstance(chunk, bytes) else bytes(chunk) for chunk in chunks))  # type: ignore[arg-type]

    def unsent_bytes(self) -> int:
        return 0

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def close(self, reason: str = "") -> None:
        self.closed_for = reason

    def drop(self) -> None:
        self.closed_for = "dropped"

    def correlation_ids(self) -> list[int]:
        return [struct.unpack(">i", sent[:4])[0] for sent in self.sent]


class Listening:
    """A `Network` whose connections the test makes."""

    async def listen(
        self, host: str, port: int, accept: Callable[[FrameConnection], FrameHandler], limits: FrameLimits
    ) -> FrameListener:
        self.accept = accept
        return None  # type: ignore[return-value]


class ListeningNode:
    def __init__(self, limits: ServerLimits | None = None, metrics: Metrics | None = None) -> None:
        self.table = ApiTable(all_apis())
        api_versions.register(self.table)
        self.server = KafkaServer(Listening(), self.table, limits, metrics)  # type: ignore[arg-type]
        self._serial = 0

    def connect(self) -> tuple[Session, Recorder]:
        self._serial += 1
        connection = Recorder(self._serial)
        session = self.server._accept(connection)
        return session, connection


def header(key: int, version: int, correlation_id: int, client_id: bytes | None = b"me", tags: bytes = b"") -> bytes:
    size = -1 if client_id is None else len(client_id)
    return struct.pack(">hhih", key, version, correlation_id, size) + (client_id or b"") + tags


def frame(key: int, version: int, correlation_id: int, body: bytes = b"", **parts: Any) -> memoryview:
    return memoryview(header(key, version, correlation_id, **parts) + body)


PRODUCE_3 = (produce.ROW.key, 3)


class Calls:
    """A raw handler that leaves every request open until the test answers it."""

    def __init__(self) -> None:
        self.open: list[RequestContext] = []

    def __call__(self, ctx: RequestContext, body: memoryview) -> object:
        self.open.append(ctx)
        return DEFERRED


# --- order --------------------------------------------------------------------------------------------------------


async def test_answers_leave_in_the_order_of_the_requests_however_they_are_made() -> None:
    node, calls = ListeningNode(), Calls()
    node.table.on_raw(produce.ROW, calls)
    node.table.on_raw(fetch.ROW, lambda ctx, body: (b"at once",))
    later = asyncio.get_running_loop().create_future()

    async def awaited(ctx: RequestContext, request: Any) -> Any:
        await later
        return ListOffsetsResponse(throttle_time_ms=0, topics=[])

    node.table.on(list_offsets.ROW, awaited)
    session, connection = node.connect()
    body = bytes(ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=[]).encode(version=2))
    session.on_frame(frame(*PRODUCE_3, 1))
    session.on_frame(frame(list_offsets.ROW.key, 2, 2, body))
    session.on_frame(frame(fetch.ROW.key, 4, 3))
    session.on_frame(frame(*PRODUCE_3, 4))
    session.on_frame(frame(fetch.ROW.key, 4, 5))
    calls.open[1].respond([b"second produce"])
    assert connection.sent == []
    calls.open[0].respond([b"first produce"])
    assert connection.correlation_ids() == [1]
    later.set_result(None)
    for _ in range(3):
        await asyncio.sleep(0)
    assert connection.correlation_ids() == [1, 2, 3, 4, 5]
    assert connection.sent[3] == struct.pack(">i", 4) + b"second produce"
    assert node.server.bytes_in_flight == 0


async def test_a_request_without_an_answer_does_not_hold_up_the_next() -> None:
    node, calls = ListeningNode(), Calls()
    node.table.on_raw(produce.ROW, calls)
    session, connection = node.connect()
    for n in range(3):
        session.on_frame(frame(*PRODUCE_3, n))
    calls.open[0].respond(None)
    calls.open[2].respond([b"third"])
    calls.open[1].respond(None)
    assert connection.correlation_ids() == [2]
    assert node.server.bytes_in_flight == 0


async def test_answering_within_the_call_and_deferring_is_the_same() -> None:
    node = ListeningNode()

    def at_once(ctx: RequestContext, body: memoryview) -> object:
        ctx.respond([b"x"])
        return DEFERRED

    node.table.on_raw(produce.ROW, at_once)
    session, connection = node.connect()
    session.on_frame(frame(*PRODUCE_3, 1))
    assert connection.correlation_ids() == [1]
    assert node.server.bytes_in_flight == 0


async def test_answering_twice_is_a_fault() -> None:
    node, calls = ListeningNode(), Calls()
    node.table.on_raw(produce.ROW, calls)
    session, _ = node.connect()
    session.on_frame(frame(*PRODUCE_3, 1))
    calls.open[0].respond(None)
    with pytest.raises(RuntimeError, match="twice"):
        calls.open[0].respond(None)


# --- headers ------------------------------------------------------------------------------------------------------


async def test_headers_of_all_versions_and_their_tagged_fields() -> None:
    node = ListeningNode()
    seen: list[tuple[str | None, int, bytes]] = []

    def note(ctx: RequestContext, body: memoryview) -> object:
        seen.append((ctx.client_id, ctx.api_version, bytes(body)))
        return (b"!",)

    node.table.on_raw(produce.ROW, note)
    session, connection = node.connect()
    session.on_frame(frame(produce.ROW.key, 3, 1, b"body", client_id=None))
    session.on_frame(frame(produce.ROW.key, 8, 2, b"body", client_id="é".encode()))
    session.on_frame(frame(produce.ROW.key, 9, 3, b"body", tags=b"\x00"))
    session.on_frame(frame(produce.ROW.key, 9, 4, b"body", tags=b"\x02\x00\x03abc\x90\x4e\x00"))
    assert seen == [(None, 3, b"body"), ("é", 8, b"body"), ("me", 9, b"body"), ("me", 9, b"body")]
    assert connection.sent == [b"\0\0\0\1!", b"\0\0\0\2!", b"\0\0\0\3\0!", b"\0\0\0\4\0!"]


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"\x00\x00\x00",
        b"\x00\x00\x00\x03\x00\x00\x00\x01\x00\x09me",                      # a client id past the end
        b"\x00\x00\x00\x03\x00\x00\x00\x01\x00\x02\xff\xfe",                 # not UTF-8
        header(0, 9, 1),                                                     # no tagged fields where they must be
        header(0, 9, 1, tags=b"\x01\x00\x7f" + b"x"),                        # a tagged field past the end
        header(0, 9, 1, tags=b"\xff" * 30),
        header(99, 0, 1),
        header(-1, 0, 1),
        header(4, 0, 1),                                                     # Kafka's own, between its brokers
        header(0, 2, 1),
        header(0, 14, 1),
        header(0, -1, 1),
        header(2, 4, 1) + b"\xff" * 40,
        header(2, 11, 1, tags=b"\x00") + b"\xff" * 40,
        header(2, 4, 1) + b"\x00\x00\x00\x00\x00\x7f\xff\xff\xff",
    ],
)
async def test_a_bad_request_closes_its_connection_with_one_line(
    bad: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    node = ListeningNode()
    node.table.on_raw(produce.ROW, lambda ctx, body: (b"never",))
    node.table.on(list_offsets.ROW, lambda ctx, request: pytest.fail("decoded"))
    session, connection = node.connect()
    with caplog.at_level(logging.WARNING, "hapax"):
        session.on_frame(memoryview(bad))
        session.on_frame(frame(api_versions.ROW.key, 0, 2))
    assert connection.closed_for
    assert connection.sent == []
    assert len(caplog.records) == 1
    assert node.server.bytes_in_flight == 0


async def test_answers_that_were_complete_before_a_bad_request_are_not_taken_back() -> None:
    node = ListeningNode()
    session, connection = node.connect()
    session.on_frame(frame(api_versions.ROW.key, 0, 1))
    session.on_frame(frame(99, 0, 2))
    assert connection.correlation_ids() == [1]
    assert connection.closed_for


async def test_a_request_longer_than_its_api_ever_needs_is_refused_before_it_is_decoded() -> None:
    node = ListeningNode()
    node.table.on(list_offsets.ROW, lambda ctx, request: pytest.fail("decoded"))
    session, connection = node.connect()
    session.on_frame(frame(list_offsets.ROW.key, 2, 1, bytes(2 << 20)))
    assert connection.closed_for and "limit" in connection.closed_for


# --- ApiVersions --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(5))
async def test_api_versions_in_every_version(version: int) -> None:
    node = ListeningNode()
    session, connection = node.connect()
    request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
    tags = b"\0" if version >= 3 else b""
    session.on_frame(frame(api_versions.ROW.key, version, 7, bytes(request.encode(version=version)), tags=tags))
    answer = ApiVersionsResponse.decode(connection.sent[0], version=version, header=True)
    assert answer.error_code == 0
    versions = {entry.api_key: (entry.min_version, entry.max_version) for entry in answer.api_keys}
    assert versions[produce.ROW.key] == (0, 13)
    assert versions[fetch.ROW.key] == (4, 18)
    assert versions[end_txn.ROW.key] == (0, 5)
    assert {init_producer_id.ROW.key, txn_offset_commit.ROW.key, find_coordinator.ROW.key} <= versions.keys()
    if version >= 3:
        levels = {f.name: (f.min_version_level, f.max_version_level) for f in answer.finalized_features}
        assert levels == {
            "group.version": (1, 1), "hapax.conditional.append": (1, 1), "transaction.version": (2, 2)}


async def test_a_newer_api_versions_is_answered_in_version_0_with_error_35_and_the_whole_list() -> None:
    node = ListeningNode()
    session, connection = node.connect()
    session.on_frame(frame(api_versions.ROW.key, 99, 7, b"whatever it has", tags=b"\x09"))
    answer = ApiVersionsResponse.decode(connection.sent[0], version=0, header=True)
    assert answer.error_code == 35
    assert len(answer.api_keys) == len(all_apis())
    assert answer.header.correlation_id == 7
    assert connection.closed_for is None


# --- handlers that fail -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [CloseConnection("fenced by a newer connection"), ValueError("a bug")])
async def test_a_handler_that_raises_closes_the_connection_with_one_line(
    error: Exception, caplog: pytest.LogCaptureFixture, task_failures: Counter[str]
) -> None:
    node = ListeningNode()

    def at_once(ctx: RequestContext, body: memoryview) -> object:
        raise error

    async def later(ctx: RequestContext, body: memoryview) -> list[bytes]:
        raise error

    with caplog.at_level(logging.WARNING, "hapax"):
        for handler in (at_once, lambda ctx, body: later(ctx, body)):
            caplog.clear()
            node.table.on_raw(produce.ROW, handler)
            session, connection = node.connect()
            session.on_frame(frame(*PRODUCE_3, 1))
            for _ in range(3):
                await asyncio.sleep(0)
            assert connection.closed_for
            assert len(caplog.records) == 1
            assert node.server.bytes_in_flight == 0
    assert task_failures["request"] == (0 if isinstance(error, CloseConnection) else 2)


async def test_an_answer_that_cannot_be_encoded_closes_the_connection(
    caplog: pytest.LogCaptureFixture, task_failures: Counter[str]
) -> None:
    node = ListeningNode()
    node.table.on(list_offsets.ROW, lambda ctx, request: ListOffsetsResponse(topics=7))
    session, connection = node.connect()
    body = bytes(ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=[]).encode(version=2))
    session.on_frame(frame(list_offsets.ROW.key, 2, 1, body))
    assert connection.closed_for
    assert len(caplog.records) == 1


# --- bounds -------------------------------------------------------------------------------------------------------


async def test_a_connection_with_many_requests_open_is_not_read_until_half_are_answered() -> None:
    node, calls = ListeningNode(ServerLimits(max_requests_in_flight=4)), Calls()
    node.table.on_raw(produce.ROW, calls)
    session, connection = node.connect()
    for n in range(4):
        assert connection.reading
        session.on_frame(frame(*PRODUCE_3, n))
    assert not connection.reading
    calls.open[0].respond(None)
    assert not connection.reading
    calls.open[1].respond(None)
    assert connection.reading


async def test_answers_that_wait_for_an_earlier_one_count_too() -> None:
    node, calls = ListeningNode(ServerLimits(max_connection_bytes=10_000)), Calls()
    node.table.on_raw(produce.ROW, calls)
    node.table.on_raw(fetch.ROW, lambda ctx, body: (bytes(6_000),))
    session, connection = node.connect()
    session.on_frame(frame(*PRODUCE_3, 1))
    session.on_frame(frame(fetch.ROW.key, 4, 2))
    assert connection.reading
    session.on_frame(frame(fetch.ROW.key, 4, 3))
    assert not connection.reading
    calls.open[0].respond([b"first"])
    assert connection.reading
    assert connection.correlation_ids() == [1, 2, 3]
    assert node.server.bytes_in_flight == 0


@pytest.mark.parametrize("api, version", [(join_group, 9), (sync_group, 5)])
async def test_members_that_wait_for_a_round_do_not_use_up_the_memory_of_requests(api: Any, version: int) -> None:
    """The last member of a large group could not be read, and the others would wait for it."""
    node = ListeningNode(ServerLimits(max_node_bytes=2_000))
    rounds = asyncio.get_running_loop().create_future()

    class Coordinator:
        async def join_group(self, request: Any) -> Any:
            return await rounds

        sync_group = join_group

    if api is join_group:
        join_group.register(node.table, random.Random(1), Coordinator())
        request: Any = JoinGroupRequest(
            group_id="g", session_timeout_ms=10_000, rebalance_timeout_ms=60_000, member_id="m",
            group_instance_id=None, protocol_type="consumer", reason=None,
            protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=bytes(1_500))])
        rounds_answer: Any = JoinAnswer(ErrorCode.NONE, "m", 1, "consumer", "range", "m")
    else:
        sync_group.register(node.table, Coordinator())
        request = SyncGroupRequest(
            group_id="g", generation_id=1, member_id="m" * 1_500, group_instance_id=None, protocol_type="consumer",
            protocol_name="range", assignments=[])
        rounds_answer = SyncAnswer(ErrorCode.NONE, "consumer", "range", b"")
    members = [node.connect() for _ in range(5)]
    for number, (session, connection) in enumerate(members):
        session.on_frame(frame(api.ROW.key, version, number, bytes(request.encode(version=version)), tags=b"\0"))
        await asyncio.sleep(0)
        assert connection.reading, number
    assert node.server.bytes_in_flight == 0
    rounds.set_result(rounds_answer)
    for _ in range(5):
        await asyncio.sleep(0)
    assert [connection.correlation_ids() for _, connection in members] == [[number] for number in range(5)]
    assert node.server.bytes_in_flight == 0


async def test_a_node_short_of_memory_reads_nobody_who_adds_to_it_until_half_is_free() -> None:
    node, calls = ListeningNode(ServerLimits(max_node_bytes=10_000)), Calls()
    node.table.on_raw(produce.ROW, calls)
    (one, a), (two, b), (three, c) = node.connect(), node.connect(), node.connect()
    one.on_frame(frame(*PRODUCE_3, 1, bytes(9_000)))
    assert a.reading
    two.on_frame(frame(*PRODUCE_3, 1, bytes(2_000)))
    three.on_frame(frame(*PRODUCE_3, 1, bytes(100)))
    assert (a.reading, b.reading, c.reading) == (True, False, False)
    three.on_closed("gone")
    calls.open[2].respond([b"x"])
    calls.open[1].respond([b"x"])
    assert not b.reading
    calls.open[0].respond([b"x"])
    assert b.reading
    assert node.server.bytes_in_flight == 0


async def test_what_the_listener_counts() -> None:
    metrics = Metrics()
    node = ListeningNode(metrics=metrics)
    session, _ = node.connect()
    node.connect()
    session.on_frame(frame(api_versions.ROW.key, 0, 1))
    session.on_frame(frame(api_versions.ROW.key, 0, 2))
    session.on_frame(frame(99, 0, 3))
    page = metrics.render().decode()
    assert 'hapax_requests_total{api="ApiVersions"} 2\n' in page
    assert 'hapax_request_seconds_count{api="ApiVersions"} 2\n' in page
    assert "Produce" not in page.partition("hapax_request_seconds_bucket")[2]
    assert "hapax_requests_refused_total 1\n" in page
    assert "hapax_connections 2\n" in page


# --- a connection that goes away ----------------------------------------------------------------------------------


class Range:
    fd, position, size = 0, 0, 100

    def __init__(self) -> None:
        self.released = 0

    def read(self) -> bytes:
        return bytes(100)

    def release(self) -> None:
        self.released += 1


async def test_what_is_left_when_a_connection_goes_is_finished_and_released() -> None:
    node, calls = ListeningNode(), Calls()
    node.table.on_raw(fetch.ROW, calls)
    session, connection = node.connect()
    for n in range(3):
        session.on_frame(frame(fetch.ROW.key, 4, n, bytes(1000)))
    waiting, late = Range(), Range()
    calls.open[1].respond([waiting])
    session.on_closed("gone")
    assert calls.open[0].closed
    assert waiting.released == 1
    calls.open[0].respond([late])
    calls.open[2].fail(ValueError("nobody hears it"))
    assert late.released == 1
    assert connection.sent == []
    assert node.server.bytes_in_flight == 0
    assert node.server.sessions == set()


async def test_long_polls_end_with_their_connection_and_other_handlers_run_on() -> None:
    node = ListeningNode()
    forever = asyncio.get_running_loop().create_future()
    ended: list[str] = []

    async def poll(ctx: RequestContext, body: memoryview) -> list[bytes]:
        try:
            await forever
        finally:
            ended.append("poll")
        return []

    async def commit(ctx: RequestContext, body: memoryview) -> list[bytes]:
        await asyncio.shield(forever)
        ended.append("commit")
        return []

    node.table.on_raw(fetch.ROW, lambda ctx, body: poll(ctx, body), cancel_on_close=True)
    node.table.on_raw(produce.ROW, lambda ctx, body: commit(ctx, body))
    session, _ = node.connect()
    session.on_frame(frame(*PRODUCE_3, 1))
    session.on_frame(frame(fetch.ROW.key, 4, 2))
    await asyncio.sleep(0)
    session.on_closed("gone")
    for _ in range(3):
        await asyncio.sleep(0)
    assert ended == ["poll"]


# --- who asks -----------------------------------------------------------------------------------------------------


async def test_a_request_has_the_principal_of_its_connection_and_the_address_without_the_port() -> None:
    node, calls = ListeningNode(), Calls()
    node.table.on_raw(produce.ROW, calls)
    session, connection = node.connect()
    session.on_frame(frame(*PRODUCE_3, 1))
    assert (calls.open[0].principal, calls.open[0].host) == (ANONYMOUS, "10.0.0.1")
    session.principal = user("CN=app,O=shop")
    connection.peer = "::1:5000"
    session.on_frame(frame(*PRODUCE_3, 2))
    assert (calls.open[1].principal, calls.open[1].host) == ("User:CN=app,O=shop", "::1")
