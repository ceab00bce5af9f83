"""Each clock of a shard goes on after an exception that nobody expected."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from unit.coordinator.coordinator_world import CoordinatorWorld, run


class Fault(Exception):
    pass


@pytest.mark.parametrize("name", ["transactional-id-expiry", "offsets-expiry"])
def test_expiry_goes_on(name: str, task_failures: Counter[str]) -> None:
    async def scenario(world: CoordinatorWorld) -> None:
        await world.start(("t", 1))
        shards = world.coordinator(world.coordinators()[0]).shards
        shard: Any = shards.txn_shards()[0] if name == "transactional-id-expiry" else shards.group_shards()[0]

        def look(*rest: object) -> None:
            raise Fault

        shard.machine.expired = shard.machine.decide_expiry = look
        former = shard._expiry
        former.cancel()
        shard._expire()
        assert shard._expiry is not former, "it looks again"

    run(scenario)
    assert task_failures == {name: 1}
