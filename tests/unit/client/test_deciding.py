"""A transaction whose decision outlasts the call that asked for it: who asks again learns what was decided."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from hapax.client.errors import RetriableError, SaslAuthenticationFailed, WrongState
from hapax.client.producer import Committed, Producer
from hapax.core.errors import ErrorCode
from hapax.core.producer.states import State
from hapax.wire import messages
from hapax.wire.peer import Capabilities, PeerClosed
from unit.client.sending_world import FakeCluster, FakePeer, answer

_VERSIONS = {
    messages.ProduceRequest.API_KEY: (3, 13),
    messages.InitProducerIdRequest.API_KEY: (0, 6),
    messages.EndTxnRequest.API_KEY: (0, 5),
    messages.TxnOffsetCommitRequest.API_KEY: (0, 5),
}


async def until(true: Callable[[], bool]) -> None:
    """Lets the loop turn until it is so."""
    for _ in iter(true, True):
        await asyncio.sleep(0)


class Coordinator:
    """Answers InitProducerId at once, and EndTxn when the test says so."""

    def __init__(self) -> None:
        self.capabilities = Capabilities(_VERSIONS, {"transaction.version": 2})
        self.asked: asyncio.Queue[Any] = asyncio.Queue()
        self.waiting: deque[asyncio.Future[Any]] = deque()
        self.epoch = 0

    async def call(self, message: Any, *, version: int) -> Any:
        if isinstance(message, messages.InitProducerIdRequest):
            return SimpleNamespace(error_code=0, producer_id=7, producer_epoch=0)
        decided: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.waiting.append(decided)
        self.asked.put_nowait(message)
        return await decided

    def decide(self) -> None:
        self.epoch += 1
        self.waiting.popleft().set_result(SimpleNamespace(error_code=0, producer_id=7, producer_epoch=self.epoch))


class World(FakeCluster):
    def __init__(self) -> None:
        super().__init__(**{"transactional.id": "t", "max.block.ms": 5000})
        self.coordinator = Coordinator()
        self.node: FakePeer = self.open()
        self.node.capabilities = self.coordinator.capabilities
        self.producer = Producer(
            {"bootstrap.servers": "127.0.0.1:1", "linger.ms": 0, "transactional.id": "t", "max.block.ms": 20},
            cluster=self)  # type: ignore[arg-type]

    async def coordinator_peer(self, kind: str, key: str) -> Coordinator:
        return self.coordinator

    def forget_coordinator(self, kind: str, key: str) -> None: ...

    async def write(self) -> None:
        """One record in a transaction, which its leader has."""
        self.producer.begin()
        await self.write_one()

    async def write_one(self) -> None:
        delivery = await self.producer.send("a", b"1")
        await until(lambda: bool(self.node.answers))
        answer(self.node)
        await delivery

    async def decided(self) -> None:
        self.coordinator.decide()
        engine = self.producer._engine
        await until(lambda: self.producer.state is State.READY and not engine._tasks)


@pytest.fixture
async def world() -> World:
    world = World()
    await world.producer.start()
    return world


async def test_a_commit_that_is_decided_after_its_time_out_is_confirmed_to_the_caller_that_asks_again(
    world: World,
) -> None:
    """With any other answer the caller would write the records again."""
    await world.write()
    with pytest.raises(RetriableError):
        await world.producer.commit()
    await world.decided()
    with pytest.raises(WrongState, match="cannot abort in state READY"):
        await world.producer.abort()
    assert await world.producer.commit() == Committed()
    with pytest.raises(WrongState, match="cannot commit in state READY"):
        await world.producer.commit()
    await world.producer.close()


@pytest.mark.parametrize("steps", range(8))
async def test_a_commit_that_is_cancelled_around_its_decision_is_confirmed_to_the_caller_that_asks_again(
    world: World, steps: int
) -> None:
    await world.write()
    committing = asyncio.ensure_future(world.producer.commit())
    assert (await world.coordinator.asked.get()).committed
    world.coordinator.decide()
    for _ in range(steps):
        await asyncio.sleep(0)
    learnt = committing.done() or not committing.cancel()
    await asyncio.gather(committing, return_exceptions=True)
    if learnt:
        assert committing.result() == Committed()
    else:
        assert committing.cancelled()
        assert await world.producer.commit() == Committed()
    await world.producer.close()


async def test_an_abort_that_is_decided_after_its_time_out_is_confirmed_as_an_abort(world: World) -> None:
    await world.write()
    with pytest.raises(RetriableError):
        await world.producer.abort()
    with pytest.raises(WrongState, match="cannot commit in state ABORTING_TRANSACTION"):
        await world.producer.commit()
    await world.decided()
    with pytest.raises(WrongState, match="cannot commit in state READY"):
        await world.producer.commit()
    await world.producer.abort()
    with pytest.raises(WrongState, match="cannot abort in state READY"):
        await world.producer.abort()
    await world.producer.close()


async def test_an_outcome_that_nobody_asked_for_is_not_the_next_transactions(world: World) -> None:
    await world.write()
    with pytest.raises(RetriableError):
        await world.producer.commit()
    await world.decided()
    await world.write()
    committing = asyncio.ensure_future(world.producer.commit())
    for _ in range(2):
        assert (await world.coordinator.asked.get()).committed
    assert not committing.done()
    world.coordinator.decide()
    assert await committing == Committed()
    await world.producer.close()


async def test_the_next_transaction_may_begin_before_the_last_ones_waiter_has_learnt_the_outcome(world: World) -> None:
    await world.write()
    committing = asyncio.ensure_future(world.producer.commit())
    await world.coordinator.asked.get()
    world.coordinator.decide()
    await until(lambda: world.producer.state is State.READY)
    world.producer.begin()
    assert await committing == Committed()
    await world.producer.abort()
    await world.producer.close()


async def test_a_producer_whose_close_is_cancelled_is_closed(world: World) -> None:
    await world.write()
    closing = asyncio.ensure_future(world.producer.close())
    assert not (await world.coordinator.asked.get()).committed
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert world.producer._engine.closed and not world.producer._engine._tasks
    assert not world.listeners
    with pytest.raises(WrongState, match="closed"):
        world.producer.begin()


@pytest.mark.parametrize("answered", [True, False])
async def test_who_is_not_let_in_any_more_learns_whether_the_commit_may_have_been_made(
    world: World, answered: bool
) -> None:
    """The password was changed while the answer was awaited, and the connection broke."""
    refusal = SaslAuthenticationFailed("no entry", code=ErrorCode.SASL_AUTHENTICATION_FAILED)
    await world.write()
    committing = asyncio.ensure_future(world.producer.commit())
    await world.coordinator.asked.get()

    async def refuse(kind: str, key: str) -> Coordinator:
        raise refusal

    world.coordinator_peer = refuse  # type: ignore[method-assign]
    waiting = world.coordinator.waiting.popleft()
    if answered:
        waiting.set_result(messages.EndTxnResponse(
            throttle_time_ms=0, error_code=ErrorCode.NOT_COORDINATOR, producer_id=-1, producer_epoch=-1))
    else:
        waiting.set_exception(PeerClosed("broken"))
    with pytest.raises(SaslAuthenticationFailed, match="no entry") as failed:
        while True:
            try:
                await committing
            except RetriableError:
                committing = asyncio.ensure_future(world.producer.commit())
    assert ("may have taken effect" in str(failed.value)) is not answered
    assert world.producer.state is State.FATAL_ERROR
    async with asyncio.timeout(20):
        await world.producer.close()
