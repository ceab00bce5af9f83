"""The queue of keys, and statuses that are written no oftener than needed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

import pytest

from hapax_operator.conditions import Condition, merged
from hapax_operator.resources import BadResource, read_producer, read_topic
from hapax_operator.status import StatusWriter
from hapax_operator.work_queue import WorkQueue
from hapax_sim.loop import SimLoop


async def test_a_key_is_in_the_queue_once_and_in_one_worker_s_hands() -> None:
    queue: WorkQueue[str] = WorkQueue()
    for key in "aab":
        queue.add(key)
    assert [await queue.get(), await queue.get()] == ["a", "b"]
    queue.add("a")
    queue.add("a")
    assert len(queue) == 2  # both in hand
    queue.done("b")
    queue.done("a")
    assert await queue.get() == "a"
    queue.done("a")
    assert len(queue) == 0


def test_a_worker_that_waits_for_long_is_named_with_what_it_waits_for(caplog: pytest.LogCaptureFixture) -> None:
    async def asks() -> None:
        await asyncio.get_running_loop().create_future()

    async def works(queue: WorkQueue[str]) -> None:
        await queue.get()
        await asks()

    async def history() -> None:
        queue: WorkQueue[str] = WorkQueue()
        worker = asyncio.ensure_future(works(queue))
        queue.add("a")
        await asyncio.sleep(29)
        assert caplog.messages == []
        await asyncio.sleep(32)
        worker.cancel()
        queue.done("a")
        await asyncio.sleep(100)

    with caplog.at_level(logging.WARNING):
        loop = SimLoop()
        try:
            loop.run_until_complete(history())
        finally:
            loop.close()
    fields = [each.fields for each in caplog.records]  # type: ignore[attr-defined]
    assert [(each["what"], each["seconds"]) for each in fields] == [("a", 30), ("a", 60)]
    assert all(each["waits_in"].endswith("works > " + asks.__qualname__) for each in fields), fields


async def test_what_fails_comes_back_later_each_time_until_it_succeeds() -> None:
    queue: WorkQueue[str] = WorkQueue()
    loop = asyncio.get_running_loop()

    def due() -> float:
        return queue._timers["a"].when() - loop.time()

    queue.again("a")
    assert due() == pytest.approx(0.5, abs=0.1)
    queue.add("a")
    await queue.get()
    queue.again("a")
    assert due() == pytest.approx(1.0, abs=0.1)
    queue.add_after("a", 60)
    assert due() < 2  # the sooner one counts
    queue.succeeded("a")
    queue.close()


def topic(status: Mapping[str, Any] | None = None, generation: int = 1) -> Any:
    return read_topic({
        "metadata": {"name": "a", "namespace": "n", "uid": "u", "generation": generation}, "spec": {},
        "status": status or {}})


class Clock:
    def __init__(self) -> None:
        self.now = 1_800_000_000_000

    def now_ms(self) -> int:
        return self.now


class Api:
    def __init__(self) -> None:
        self.status: dict[str, Any] = {}
        self.patches = 0

    async def put_status(self, meta: Any, status: Mapping[str, Any]) -> Mapping[str, Any]:
        self.patches += 1
        self.status = {name: value for name, value in {**self.status, **status}.items() if value is not None}
        return {"metadata": {}, "status": self.status}


async def test_a_status_is_written_when_it_differs_and_calmly() -> None:
    clock, api = Clock(), Api()
    writer = StatusWriter(api, clock, lambda ref, body: None)  # type: ignore[arg-type]
    ready = [Condition("Ready", "True", "AsDescribed", "fine")]

    async def write(fields: dict[str, Any], conditions: list[Condition] = ready, generation: int = 1) -> float | None:
        return await writer.write(topic(api.status, generation), fields, conditions)

    assert await write({"inSync": "1/2"}) == 0
    assert await write({"inSync": "1/2"}) == 0
    assert api.patches == 1
    clock.now += 4000
    assert await write({"inSync": "2/2"}) == 6.0  # nobody waits for it
    assert api.patches == 1
    assert await write({"inSync": "2/2"}, generation=2) == 0  # somebody waits for this
    assert await write({"inSync": "2/2"}, [Condition("Ready", "False", "NoLeader", "none")], 2) == 0
    assert api.patches == 3
    clock.now += 10_000
    assert await write({"inSync": None}, [Condition("Ready", "False", "NoLeader", "none")], 2) == 0
    assert "inSync" not in api.status


def test_a_transition_keeps_its_time_while_the_status_stays() -> None:
    from datetime import UTC, datetime

    first = merged([], [Condition("Ready", "True", "A", "a")], 1, datetime(2026, 1, 1, tzinfo=UTC))
    second = merged(first, [Condition("Ready", "True", "B", "b")], 2, datetime(2026, 1, 2, tzinfo=UTC))
    third = merged(second, [Condition("Ready", "False", "C", "c")], 2, datetime(2026, 1, 3, tzinfo=UTC))
    assert [each[0]["lastTransitionTime"][:10] for each in (first, second, third)] == [
        "2026-01-01", "2026-01-01", "2026-01-03"]


@pytest.mark.parametrize(("spec", "why"), [
    ({"transactionalId": "a", "transactionalIdPrefix": "b"}, "either"), ({}, "either"),
    ({"transactionalId": 7}, "string"), ({"transactionalId": "a", "fence": "x"}, "number"),
])
def test_a_body_that_an_older_definition_let_through_is_refused_with_a_sentence(spec: Any, why: str) -> None:
    with pytest.raises(BadResource, match=why):
        read_producer({"metadata": {"name": "a", "namespace": "n", "uid": "u"}, "spec": spec})
