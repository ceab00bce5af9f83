"""What the admin client asks of all coordinators: none that is alive is left out."""

from __future__ import annotations

from typing import Any

import pytest

from hapax.client.admin import Admin
from hapax.rpc.gen.hapax.v1 import groups_pb2 as pb


class Coordinators(Admin):
    """An Admin that is told of these coordinators, each with the groups and shards that it owns."""

    def __init__(self) -> None:
        super().__init__({"bootstrap.servers": "127.0.0.1:1", "retry.backoff.ms": 1})
        self.owned: dict[int, list[str]] = {}
        self._cluster._ask_for_addresses = self._told  # type: ignore[method-assign]
        self._cluster.channel = _Channel  # type: ignore[method-assign, assignment]
        _Channel.owned = self.owned

    async def _told(self) -> tuple[dict[int, str], str | None]:
        self._cluster._addresses_until = self._cluster.now() + 1000
        return {node: str(node) for node in self.owned}, None


class _Channel:
    owned: dict[int, list[str]]

    def __init__(self, address: str) -> None:
        self._groups = self.owned[int(address)]

    async def call(self, method: str, request: bytes, timeout: float) -> bytes:
        if method.endswith("/DescribeShards"):
            return pb.DescribeShardsResponse(shards=[
                pb.ShardState(kind="group", shard=shard, epoch=1, serving=True)
                for shard, _ in enumerate(self._groups)]).SerializeToString()
        return pb.ListGroupsResponse(
            groups=[pb.GroupSummary(group_id=name, committed=1) for name in self._groups]).SerializeToString()


async def _groups(admin: Admin) -> list[str]:
    return [each.group for each in await admin.list_groups()]


async def _owners(admin: Admin) -> list[str]:
    return [f"{each.owner}" for each in await admin.describe_shards()]


@pytest.mark.parametrize(("asked", "before", "after"), [
    (_groups, ["a", "b"], ["a", "b"]), (_owners, ["100", "100"], ["100", "101"])])
async def test_a_coordinator_that_has_just_taken_over_shards_is_asked_too(
    asked: Any, before: list[str], after: list[str]
) -> None:
    """Its groups would be missing from the list, as if they had been deleted."""
    admin = Coordinators()
    admin.owned[100] = ["a", "b"]
    assert await asked(admin) == before
    admin.owned[100].remove("b")
    admin.owned[101] = ["b"]
    assert await asked(admin) == after
