"""Topics that are asked for together are made together, and each is answered for itself."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from hapax.core.errors import ErrorCode, Refusal
from hapax.rpc.gen.hapax.v1 import cluster_admin_pb2 as pb
from hapax_operator.topic_making import TopicMaker


class Controller:
    def __init__(self, failure: Exception | None = None) -> None:
        self.calls: list[list[str]] = []
        self.failure = failure

    async def create_topics(self, specs: list[pb.TopicSpec], timeout_ms: int) -> list[pb.TopicResult]:
        self.calls.append([spec.name for spec in specs])
        await asyncio.sleep(0)
        if self.failure is not None:
            raise self.failure
        return [pb.TopicResult(name=spec.name, error=36 if spec.name == "t-1" else 0) for spec in specs]


async def make(controller: Any, count: int) -> list[Any]:
    maker = TopicMaker(controller, 1000)
    try:
        return await asyncio.gather(
            *(maker.create(pb.TopicSpec(name=f"t-{number}")) for number in range(count)), return_exceptions=True)
    finally:
        await maker.close()


async def test_one_call_for_all_and_an_answer_for_each() -> None:
    controller = Controller()
    results = await make(controller, 3)
    assert controller.calls == [["t-0", "t-1", "t-2"]]
    assert [(each.name, each.error) for each in results] == [("t-0", 0), ("t-1", 36), ("t-2", 0)]


async def test_a_call_is_bounded() -> None:
    controller = Controller()
    assert len(await make(controller, 250)) == 250
    assert [len(call) for call in controller.calls] == [100, 100, 50]


@pytest.mark.parametrize("failure", [Refusal(ErrorCode.REQUEST_TIMED_OUT, "nobody"), ValueError("a fault")])
async def test_a_call_that_fails_is_everybody_s_failure(failure: Exception) -> None:
    results = await make(Controller(failure), 2)
    assert [type(each) for each in results] == [Refusal, Refusal]


async def test_who_gives_up_waiting_holds_up_nobody() -> None:
    controller = Controller()
    maker = TopicMaker(controller, 1000)  # type: ignore[arg-type]
    first = asyncio.ensure_future(maker.create(pb.TopicSpec(name="a")))
    second = asyncio.ensure_future(maker.create(pb.TopicSpec(name="b")))
    await asyncio.sleep(0)
    first.cancel()
    assert (await second).name == "b"
    await maker.close()


class Numbering(Controller):
    """Its topics have ids. The second one has no leader in time."""

    async def create_topics(self, specs: list[pb.TopicSpec], timeout_ms: int) -> list[pb.TopicResult]:
        results = await super().create_topics(specs, timeout_ms)
        for number, each in enumerate(results):
            each.topic_id = number.to_bytes(16, "big")
            each.error = ErrorCode.REQUEST_TIMED_OUT if each.error else 0
        return results


async def test_it_knows_for_which_resource_a_topic_was_made() -> None:
    maker = TopicMaker(Numbering(), 1000)  # type: ignore[arg-type]
    await asyncio.gather(*(maker.create(pb.TopicSpec(name=f"t-{each}", made_by=f"uid-{each}")) for each in range(2)))
    assert [maker.made_for(number.to_bytes(16, "big").hex()) for number in range(3)] == ["uid-0", "uid-1", ""]
    await maker.close()


async def test_what_it_remembers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hapax_operator.topic_making._REMEMBERED", 1)
    maker = TopicMaker(Numbering(), 1000)  # type: ignore[arg-type]
    await asyncio.gather(*(maker.create(pb.TopicSpec(name=f"t-{each}", made_by=f"uid-{each}")) for each in range(2)))
    assert [maker.made_for(number.to_bytes(16, "big").hex()) for number in range(2)] == ["", "uid-1"]
    await maker.close()
