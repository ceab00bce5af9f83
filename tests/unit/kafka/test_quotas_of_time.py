"""`request_percentage`: the time of the event loop that requests take, on a stopwatch that the test moves."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from hapax.core.quota.entities import REQUEST_PERCENTAGE, USER
from hapax.kafka.api import api_versions, list_offsets, metadata
from hapax.kafka.table import RequestContext
from hapax.wire import messages
from unit.kafka.test_quotas import MeteredNode, metered


class Watch:
    """A stopwatch on which only what a test says takes time."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("busy", ["later", "encoding"])
def test_time_is_charged_also_after_a_wait_and_for_the_answer(busy: str) -> None:
    """It is known only when the answer has left: the next request is judged by it."""
    async def scenario(node: MeteredNode) -> None:
        watch = node.server.stopwatch = Watch()

        class Topics(list[Any]):
            """What encodes them takes its time, once."""

            left_s = 3 if busy == "encoding" else 0

            def __iter__(self) -> Any:
                watch.now += self.left_s
                self.left_s = 0
                return super().__iter__()

        async def handle(ctx: RequestContext, request: Any) -> Any:
            await asyncio.sleep(0.1)
            try:
                await asyncio.wait_for(asyncio.get_running_loop().create_future(), 0.1)
            except TimeoutError:
                watch.now += 3 if busy == "later" else 0
            return messages.ListOffsetsResponse(throttle_time_ms=0, topics=Topics())

        node.table.on(list_offsets.ROW, handle)
        node.set({USER: None}, request_percentage=50.0)
        session, connection = node.connect()
        body = bytes(messages.ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=[]).encode(version=2))
        told = []
        for _ in range(4):
            node.send(session, list_offsets.ROW, 2, body)
            await asyncio.sleep(0.3)
            told.append(messages.ListOffsetsResponse.decode(
                memoryview(connection.sent[-1])[4:], version=2).throttle_time_ms)
        assert told[:2] == [0, 0] and told[3] > 0 and not connection.reading

    metered(scenario)


def test_a_handler_that_waits_is_cancelled_and_fails_as_ever() -> None:
    async def scenario(node: MeteredNode) -> None:
        ended: list[str] = []

        async def handle(ctx: RequestContext, request: Any) -> Any:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                ended.append("cancelled")
                raise

        node.table.on(list_offsets.ROW, handle, cancel_on_close=True)
        node.set({USER: None}, request_percentage=50.0)
        session, _ = node.connect()
        body = bytes(messages.ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=[]).encode(version=2))
        node.send(session, list_offsets.ROW, 2, body)
        await asyncio.sleep(1)
        session.on_closed("gone")
        await asyncio.sleep(1)
        assert ended == ["cancelled"]

    metered(scenario)


def test_time_on_the_loop_is_charged_whatever_the_request() -> None:
    async def scenario(node: MeteredNode) -> None:
        watch = node.server.stopwatch = Watch()

        def listed(ctx: RequestContext, request: Any) -> Any:
            watch.now += 1
            return messages.ListOffsetsResponse(throttle_time_ms=0, topics=[])

        def kept(ctx: RequestContext, body: memoryview) -> object:
            watch.now += 1
            return (bytes(4) + b"kept",)

        node.table.on(list_offsets.ROW, listed)
        node.table.on_raw(metadata.ROW, kept)
        node.set({USER: None}, request_percentage=50.0)
        session, connection = node.connect()
        body = bytes(messages.ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=[]).encode(version=2))
        told = []
        for _ in range(8):
            node.send(session, list_offsets.ROW, 2, body)
            told.append(messages.ListOffsetsResponse.decode(
                memoryview(connection.sent[-1])[4:], version=2).throttle_time_ms)
        assert told == [*[0] * 5, *[1000] * 3], "at most a second at a time"
        assert not connection.reading
        node.send(session, metadata.ROW, 3, b"")
        assert connection.sent[-1][4:] == (1000).to_bytes(4, "big") + b"kept"
        node.send(session, metadata.ROW, 2, b"")
        assert connection.sent[-1][4:] == bytes(4) + b"kept", "this version has no field for it"
        sent = len(connection.sent)
        node.send(session, api_versions.ROW, 2, b"")
        assert len(connection.sent) == sent + 1
        assert node.quotas.throttled == {REQUEST_PERCENTAGE: 5}

    metered(scenario)
