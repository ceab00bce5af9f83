"""The log of events: each is written once the topic takes it, and none holds up the others for good."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from hapax.core.types import NodeId, RegistrationEpoch
from hapax.runtime.clock import SystemClock
from hapax.wire import events
from hapax.wire.events import EventLog


class Topic:
    """Takes batches of values up to `limit` bytes."""

    def __init__(self, limit: int = 1 << 20) -> None:
        self.limit = limit
        self.taken: list[bytes] = []
        self.batches: list[int] = []
        self.arrived = asyncio.Event()

    async def send(self, log: EventLog, records: list[tuple[bytes, bytes]]) -> None:
        await asyncio.sleep(0)
        if sum(len(value) for _, value in records) > self.limit:
            raise events._TooLarge
        self.taken += [key for key, _ in records]
        self.batches.append(sum(len(value) for _, value in records))
        self.arrived.set()

    async def has(self, kind: str) -> None:
        async with asyncio.timeout(10):
            while kind.encode() not in self.taken:
                self.arrived.clear()
                await self.arrived.wait()


def log_to(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> EventLog:
    monkeypatch.setattr(EventLog, "_send", lambda log, records: topic.send(log, records))
    nothing: Any = None
    return EventLog(
        nothing, SystemClock(), nothing, random.Random(1), NodeId(0), RegistrationEpoch(1), bytes(16))


async def test_an_event_that_is_too_large_for_the_topic_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = Topic(limit=500)
    log = log_to(topic, monkeypatch)
    for number in range(20):
        log.record(f"small-{number}")
    log.record("large", holder="x" * 1000)
    log.record("after")
    await topic.has("after")
    assert topic.taken == [*(f"small-{number}".encode() for number in range(20)), b"after"], "in order, each once"
    assert log.dropped == 1
    await log.close()


async def test_a_batch_of_events_has_a_bound_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = Topic(limit=1 << 30)
    log = log_to(topic, monkeypatch)
    for number in range(50):
        log.record(f"{number}", holder="x" * 30_000)
    await topic.has("49")
    assert max(topic.batches) <= 256 << 10
    assert log.dropped == 0
    await log.close()


async def test_an_event_is_written_though_it_comes_just_as_the_writer_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = Topic()
    log = log_to(topic, monkeypatch)
    log.record("first")
    writer = log._writer
    assert writer is not None
    loop = asyncio.get_running_loop()

    def at_its_end() -> None:
        """In the turn of the loop in which the writer has ended, and its callbacks have not run."""
        if writer.done():
            log.record("last")
        else:
            loop.call_soon(at_its_end)

    loop.call_soon(at_its_end)
    await topic.has("last")
    await log.close()


async def test_nothing_is_written_after_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = Topic()
    log = log_to(topic, monkeypatch)
    await log.close()
    log.record("late")
    assert log._writer is None
    assert topic.taken == []
