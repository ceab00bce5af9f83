"""A connection's deadlines: a client that does not read, or sends by halves, is let go, whatever else it does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from uvicorn.config import Config
from uvicorn.server import ServerState

from hapax.admin.server import Connection, Limits
from hapax.runtime import telemetry
from hapax.runtime.settings import Settings

REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n"


class Timer:
    def __init__(self, callback: Callable[..., None]) -> None:
        self.callback, self.live = callback, True

    def cancel(self) -> None:
        self.live = False


class Loop:
    """The test's own, but for its timers."""

    def __init__(self) -> None:
        self.timers: list[Timer] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio.get_running_loop(), name)

    def call_later(self, _: float, callback: Callable[..., None], *arguments: Any) -> Timer:
        self.timers.append(Timer(callback))
        return self.timers[-1]

    def fire(self) -> None:
        """All that were set before."""
        for timer in list(self.timers):
            if timer.live:
                timer.cancel()
                timer.callback()


class Transport:
    """Its buffer is full as soon as a body was written."""

    def __init__(self) -> None:
        self.connection: Any = None
        self.closed = self.aborted = False

    def write(self, data: bytes) -> None:
        if len(data) > 1000:
            self.connection.pause_writing()

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.aborted = True

    def get_extra_info(self, _: str) -> None:
        return None

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


async def app(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"200000")]})
    await send({"type": "http.response.body", "body": bytes(100_000), "more_body": True})
    await send({"type": "http.response.body", "body": bytes(100_000)})


@pytest.fixture
async def world() -> tuple[Connection, Transport, Loop]:
    loop, transport = Loop(), Transport()
    made = type("Limited", (Connection,), {"limits": Limits(Settings(), telemetry.Metrics())})
    config = Config(app, http=made, ws="none", lifespan="off", log_config=None, access_log=False)
    connection = made(config, ServerState(), {}, loop)
    transport.connection = connection
    connection.connection_made(transport)
    return connection, transport, loop


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_byte_that_is_sent_does_not_stand_for_reading(world: tuple[Connection, Transport, Loop]) -> None:
    connection, transport, loop = world
    connection.data_received(REQUEST + b"\r\n")
    await turns()
    connection.data_received(b"G")
    loop.fire()
    assert transport.aborted


async def test_who_stops_reading_at_the_end_of_an_answer_is_let_go(
    world: tuple[Connection, Transport, Loop]
) -> None:
    connection, transport, loop = world
    connection.data_received(REQUEST + b"Connection: close\r\n\r\n")
    await turns()
    connection.resume_writing()
    await turns()
    assert transport.closed  # what is left in the buffer is still to be read
    connection.resume_writing()
    loop.fire()
    assert transport.aborted


async def test_who_has_read_an_answer_has_time_for_the_next_request(
    world: tuple[Connection, Transport, Loop]
) -> None:
    connection, transport, loop = world
    connection.data_received(REQUEST + b"\r\n")
    await turns()
    connection.resume_writing()
    await turns()
    connection.resume_writing()
    loop.fire()  # uvicorn's own, for connections without a request
    assert transport.closed and not transport.aborted
