"""A refused write says who fenced its producer: the partition knows the newer epoch, the coordinator the rest."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from hapax.broker import fenced_by
from hapax.broker.fenced_by import FencedBy
from hapax.broker.verifier import VERIFY_PARTITIONS
from hapax.core.errors import ErrorCode
from hapax.core.hashing import shard_of
from hapax.rpc.gen.hapax.internal.v1 import coordinator_pb2
from hapax.runtime.disk import RealDisk
from hapax.runtime.ports import RpcError
from unit.broker.broker_fixtures import Harness, batch

STALE = "producer 7: epoch 0 was fenced by epoch 1 at offset 0"
WHO = "epoch 0 of producer 7 is not current: x was initialised again at T by app-2 from 10.0.0.7:1"


class Coordinator:
    """Answers questions once `answers` is set, and keeps them."""

    def __init__(self) -> None:
        self.asked: list[coordinator_pb2.VerifyPartitionsRequest] = []
        self.answers = asyncio.Event()
        self.answers.set()
        self.answer: coordinator_pb2.VerifyPartitionsResponse | RpcError = coordinator_pb2.VerifyPartitionsResponse(
            error=ErrorCode.PRODUCER_FENCED, reason=WHO)

    def rpc_channel(self, address: str) -> Any:
        async def call(method: str, request: bytes, timeout: float) -> bytes:
            assert (address, method) == ("coordinator:1", VERIFY_PARTITIONS)
            self.asked.append(coordinator_pb2.VerifyPartitionsRequest.FromString(request))
            await self.answers.wait()
            if isinstance(self.answer, RpcError):
                raise self.answer
            return self.answer.SerializeToString()

        return SimpleNamespace(call=call)


class Zombies:
    def __init__(self, harness: Harness, coordinator: Coordinator) -> None:
        self._harness = harness
        self.owned = True

        def owner(shard: int) -> Any:
            assert shard == shard_of("x", 50)
            return SimpleNamespace(hot_address="coordinator:1") if self.owned else None

        view: Any = SimpleNamespace(cluster=SimpleNamespace(txn_shards=50), txn_shard_owner=owner)
        self.fenced_by = FencedBy(coordinator, view)  # type: ignore[arg-type]
        harness.replica.context = replace(harness.context, settle_refused=self.fenced_by.settle)

    def write(self, transactional_id: str = "x") -> int:
        return self._harness.produce(
            batch(producer_id=7, epoch=0, sequence=0, transactional=bool(transactional_id)),
            transactional_id=transactional_id)

    async def reason(self, number: int) -> str:
        result = await self._harness.calls.result(number)
        assert result.error == ErrorCode.INVALID_PRODUCER_EPOCH
        return result.reason


@pytest.fixture
async def coordinator() -> Coordinator:
    return Coordinator()


@pytest.fixture
async def zombies(folder: RealDisk, coordinator: Coordinator) -> AsyncIterator[Zombies]:
    harness = Harness(folder)
    await harness.open()
    await harness.produced(batch(producer_id=7, epoch=1, sequence=0))
    made = Zombies(harness, coordinator)
    yield made
    await made.fenced_by.close()


async def test_the_coordinator_is_asked_once_for_each_zombie(zombies: Zombies, coordinator: Coordinator) -> None:
    coordinator.answers.clear()
    together = [zombies.write(), zombies.write()]
    coordinator.answers.set()
    assert [await zombies.reason(number) for number in together] == [f"{STALE}; {WHO}"] * 2
    assert await zombies.reason(zombies.write()) == f"{STALE}; {WHO}"
    (question,) = coordinator.asked
    assert (question.transactional_id, question.producer_id, question.producer_epoch) == ("x", 7, 0)
    assert not question.add and not question.partitions, "it registers nothing"


@pytest.mark.parametrize("answer", [
    RpcError("UNAVAILABLE", "gone"),
    coordinator_pb2.VerifyPartitionsResponse(error=ErrorCode.NOT_COORDINATOR, reason="moved"),
    coordinator_pb2.VerifyPartitionsResponse(),
], ids=["no answer", "moved", "not fenced"])
async def test_what_the_coordinator_does_not_know_is_asked_again_next_time(
    zombies: Zombies, coordinator: Coordinator, answer: Any
) -> None:
    known, coordinator.answer = coordinator.answer, answer
    assert await zombies.reason(zombies.write()) == STALE
    coordinator.answer = known
    assert await zombies.reason(zombies.write()) == f"{STALE}; {WHO}"


async def test_no_write_waits_for_a_shard_without_an_owner(zombies: Zombies, coordinator: Coordinator) -> None:
    zombies.owned = False
    assert await zombies.reason(zombies.write()) == STALE and coordinator.asked == []


async def test_a_producer_without_transactions_has_no_coordinator(zombies: Zombies, coordinator: Coordinator) -> None:
    assert await zombies.reason(zombies.write("")) == STALE and coordinator.asked == []


async def test_questions_are_bounded_and_have_a_limit_of_time(
    zombies: Zombies, coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fenced_by, "_ASKED_AT_ONCE", 0)
    assert await zombies.reason(zombies.write()) == STALE and coordinator.asked == []
    monkeypatch.setattr(fenced_by, "_ASKED_AT_ONCE", 1)
    monkeypatch.setattr(fenced_by, "_PATIENCE_S", 0.0)
    coordinator.answers.clear()
    assert await zombies.reason(zombies.write()) == STALE and len(coordinator.asked) == 1
