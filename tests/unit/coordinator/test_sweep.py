"""The one event is lost, and a coordinator's sweep notices (rule 25)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import uvloop

from hapax.coordinator import transactions
from hapax.coordinator.sweep import is_running, timer_in
from hapax.core.errors import ErrorCode
from hapax.wire.peer import PeerClosed
from unit.coordinator.coordinator_world import CoordinatorWorld, run

ID = "app"


async def begun(world: CoordinatorWorld, timeout_ms: int = 60_000) -> tuple[int, int]:
    me = await world.init(ID, timeout_ms)
    assert await world.add(ID, me, "t", 0) == [0]
    assert (await world.produce(ID, me, "t", 0, b"v")).error_code == 0
    return me


def state(world: CoordinatorWorld) -> str:
    return world.txn_shard(ID).machine.describe(ID).state.name


async def corrected(world: CoordinatorWorld, self_corrections: Counter[str], kind: str) -> None:
    await world.cluster.wait_until(lambda: self_corrections[kind] > 0, f"{kind} is corrected")


def test_a_transaction_without_a_timer_gets_one(self_corrections: Counter[str]) -> None:
    async def scenario(world: CoordinatorWorld) -> None:
        await world.start(("t", 1))
        began = world.loop.time()
        await begun(world, timeout_ms=20_000)
        shard = world.txn_shard(ID)
        shard._stop_timer(ID)
        await world.cluster.wait_until(lambda: state(world) == "COMPLETE_ABORT", "it timed out")
        assert 20 <= world.loop.time() - began < 21

    run(scenario)
    assert self_corrections == {"timer": 1}


def test_markers_that_were_lost_on_their_way_are_sent_again(self_corrections: Counter[str]) -> None:
    async def scenario(world: CoordinatorWorld) -> None:
        await world.start(("t", 1))
        me = await begun(world)
        sender: Any = world.txn_shard(ID)._markers
        send, sender.send = sender.send, lambda shard, markers: None
        assert (await world.end(ID, me, True)).error_code == 0
        sender.send = send
        await world.cluster.wait_until(lambda: state(world) == "COMPLETE_COMMIT", "it is complete")

    run(scenario)
    assert self_corrections == {"markers": 1}


def test_an_id_whose_record_never_comes_to_the_log_is_free_again(
    self_corrections: Counter[str], task_failures: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(world: CoordinatorWorld) -> None:
        await world.start(("t", 1))
        me = await begun(world)

        def lost(*rest: object) -> None:
            raise OSError("lost between the decision and the log")

        with monkeypatch.context() as patched:
            patched.setattr(world.txn_shard(ID), "persist", lost)
            with pytest.raises(PeerClosed):
                await world.end(ID, me, True)
        await corrected(world, self_corrections, "pending_record")
        assert (await world.end(ID, me, True)).error_code == 0
        await world.cluster.wait_until(lambda: state(world) == "COMPLETE_COMMIT", "it is complete")

    run(scenario)
    assert self_corrections == {"pending_record": 1}


def test_a_completion_that_nothing_waits_for_is_appended(self_corrections: Counter[str]) -> None:
    async def scenario(world: CoordinatorWorld) -> None:
        await world.start(("t", 1))
        me = await begun(world)
        shard = world.txn_shard(ID)
        assert (await world.end(ID, me, True)).error_code == 0
        await world.cluster.wait_until(lambda: shard._completer is not None, "it waits")
        assert shard._completer is not None
        shard._completer.cancel()
        await corrected(world, self_corrections, "completion")
        await world.cluster.wait_until(
            lambda: shard.machine.transactions[ID].state.name == "COMPLETE_COMMIT", "it is stored")

    run(scenario)
    assert self_corrections == {"completion": 1}


def test_a_held_call_whose_timer_is_lost_is_answered(
    self_corrections: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(world: CoordinatorWorld) -> None:
        await world.start(("t", 1))
        me = await begun(world)
        world.cluster.world.blocked_methods.add("WriteMarkers")
        assert (await world.end(ID, me, True)).error_code == 0
        call_later = world.loop.call_later

        def losing(delay: float, callback: Callable[..., Any], *rest: Any, **context: Any) -> asyncio.TimerHandle:
            timer = call_later(delay, callback, *rest, **context)
            if callback is transactions._finish:
                timer.cancel()
            return timer

        with monkeypatch.context() as patched:
            patched.setattr(world.loop, "call_later", losing)
            assert await world.add(ID, me, "t", 0) == [ErrorCode.CONCURRENT_TRANSACTIONS]
        assert self_corrections == {"held_call": 1}
        world.cluster.world.blocked_methods.clear()

    run(scenario)


@pytest.mark.parametrize("kind", ["txn", "group"])
def test_a_shard_that_looks_for_nothing_expired_begins_to(kind: str, self_corrections: Counter[str]) -> None:
    async def scenario(world: CoordinatorWorld) -> None:
        await world.start(("t", 1))
        shards = world.coordinator(world.coordinators()[0]).shards
        shard: Any = (shards.txn_shards() if kind == "txn" else shards.group_shards())[0]
        lost = shard._expiry
        lost.cancel()
        await corrected(world, self_corrections, "expiry_timer")
        assert shard._expiry is not lost

    run(scenario)
    assert self_corrections == {"expiry_timer": 1}


def test_a_timer_that_is_due_at_once_can_be_asked_on_the_services_loop() -> None:
    async def ask() -> None:
        loop = asyncio.get_running_loop()
        fired = loop.create_future()
        timer = timer_in(0, fired.set_result, None)
        assert is_running(timer, loop.time())
        await fired
        timer.cancel()
        assert not is_running(timer, loop.time())

    uvloop.run(ask())
