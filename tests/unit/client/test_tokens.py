"""Calls with commit tokens while the coordinator is being restarted."""

from __future__ import annotations

import pytest

from hapax.client.errors import RetriableError
from hapax.client.tokens import transactions_call


class RestartingCoordinator:
    """A cluster in which node 100 coordinates and is not registered at the moment."""

    def __init__(self) -> None:
        self.forgotten: list[tuple[str, str]] = []

    async def coordinator(self, kind: str, key: str) -> int:
        return 100

    async def rpc_address(self, node_id: int) -> str | None:
        return {0: "127.0.0.1:1", 101: "127.0.0.1:2"}.get(node_id)

    def forget_coordinator(self, kind: str, key: str) -> None:
        self.forgotten.append((kind, key))


async def test_a_coordinator_that_is_not_registered_is_looked_for_again() -> None:
    cluster = RestartingCoordinator()
    with pytest.raises(RetriableError, match="coordinator 100 is not registered"):
        await transactions_call(cluster, "t", "EndTransaction", b"")  # type: ignore[arg-type]
    assert cluster.forgotten == [("transaction", "t")]
