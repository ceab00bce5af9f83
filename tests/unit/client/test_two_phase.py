"""Two-phase commit (KIP-939): nothing but the caller's word, which is the other system's, ends what is prepared."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from hapax.client.errors import FatalError
from hapax.client.producer import Producer
from hapax.core.errors import ErrorCode
from hapax.core.producer.states import State
from hapax.wire import messages
from unit.client.test_deciding import Coordinator, World


class Keeping(Coordinator):
    async def call(self, message: Any, *, version: int) -> Any:
        if isinstance(message, messages.InitProducerIdRequest):
            assert version == 6 and message.enable2_pc and message.keep_prepared_txn
            return SimpleNamespace(
                error_code=0, producer_id=7, producer_epoch=0, ongoing_txn_producer_id=-1,
                ongoing_txn_producer_epoch=-1)
        return await super().call(message, version=version)

    def refuse(self, code: ErrorCode) -> None:
        self.waiting.popleft().set_result(messages.EndTxnResponse(
            throttle_time_ms=0, error_code=int(code), producer_id=-1, producer_epoch=-1))


class TwoPhaseWorld(World):
    coordinator: Keeping

    def __init__(self) -> None:
        super().__init__()
        self.coordinator = Keeping()
        self.node.capabilities = self.coordinator.capabilities
        self.producer = Producer(
            {
                "bootstrap.servers": "127.0.0.1:1", "linger.ms": 0, "transactional.id": "t", "max.block.ms": 60_000,
                "transaction.two.phase.commit.enable": True,
            },
            cluster=self)  # type: ignore[arg-type]


@pytest.fixture
async def world() -> TwoPhaseWorld:
    world = TwoPhaseWorld()
    await world.producer.start()
    return world


async def test_a_block_that_raises_after_it_has_prepared_aborts_nothing(world: TwoPhaseWorld) -> None:
    """The database's commit may have raised although it took effect."""
    producer = world.producer
    with pytest.raises(ConnectionError):
        async with producer.transaction():
            await world.write_one()
            prepared = await producer.prepare()
            raise ConnectionError("the database did not answer")
    assert producer.state is State.PREPARED_TRANSACTION and world.coordinator.asked.empty()
    completing = asyncio.ensure_future(producer.complete(prepared))
    assert (await world.coordinator.asked.get()).committed
    world.coordinator.decide()
    assert await completing is True
    await producer.close()


async def test_a_block_that_raises_before_it_has_prepared_aborts(world: TwoPhaseWorld) -> None:
    async def work() -> None:
        async with world.producer.transaction():
            await world.write_one()
            raise ConnectionError("the database did not answer")

    working = asyncio.ensure_future(work())
    assert not (await world.coordinator.asked.get()).committed
    world.coordinator.decide()
    with pytest.raises(ConnectionError):
        await working
    await world.producer.close()


@pytest.mark.parametrize("code", [ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.INVALID_TXN_STATE])
async def test_a_commit_that_is_refused_leaves_what_is_prepared_to_a_later_instance(
    world: TwoPhaseWorld, code: ErrorCode
) -> None:
    """An error that a producer answers with an abort would break what the database has decided, at the latest in
    `close`."""
    await world.write()
    prepared = await world.producer.prepare()
    completing = asyncio.ensure_future(world.producer.complete(prepared))
    assert (await world.coordinator.asked.get()).committed
    world.coordinator.refuse(code)
    with pytest.raises(FatalError):
        await completing
    await world.producer.close()
    assert world.coordinator.asked.empty()
