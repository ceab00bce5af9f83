"""The client's tasks go on after an exception that nobody expected."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from hapax.client.cluster import ClusterClient
from hapax.client.settings import Options
from hapax_sim.loop import SimLoop


class Fault(Exception):
    pass


def run(work: Coroutine[Any, Any, None]) -> None:
    """On virtual time."""
    loop = SimLoop()
    try:
        loop.run_until_complete(work)
    finally:
        loop.close()


async def started(answers: list[Exception | None]) -> ClusterClient:
    """`answers`: of the questions for metadata, the first one at the start."""
    ports: Any = SimpleNamespace(random=random.Random(1), clock=SimpleNamespace(monotonic_ms=lambda: 0))
    cluster = ClusterClient(Options({"bootstrap.servers": "a:1"}, "c"), ports)

    async def ask() -> None:
        answer = answers.pop(0)
        if answer is not None:
            raise answer

    cluster._ask = ask  # type: ignore[method-assign]
    await cluster.start()
    return cluster


def test_metadata_is_refreshed_on(task_failures: Counter[str]) -> None:
    async def history() -> None:
        answers: list[Exception | None] = [None, Fault(), None, None, None]
        cluster = await started(answers)
        async with asyncio.timeout(1000):
            asked = asyncio.get_running_loop().time()
            await cluster.refreshed(60_000)
            assert asyncio.get_running_loop().time() - asked < 1, "those who wait are not forgotten"
            assert len(answers) == 3
            await cluster.refreshed(60_000)
        assert len(answers) == 2
        await cluster.close()

    run(history())
    assert task_failures == {"client-metadata": 1}


def test_liveness_checks_go_on_after_a_failure(task_failures: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[None] = []

    async def history() -> None:
        cluster = await started([None])
        enough = asyncio.Event()

        def open_peers() -> list[Any]:
            looks.append(None)
            if len(looks) == 1:
                raise Fault
            enough.set()
            return []

        cluster.open_peers = open_peers  # type: ignore[method-assign]
        async with asyncio.timeout(1000):
            await enough.wait()
        await cluster.close()

    run(history())
    assert task_failures == {"client-liveness": 1}
