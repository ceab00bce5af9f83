"""Which overdue answers end a connection."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from hapax.client import liveness
from hapax.client.errors import RetriableError
from hapax.client.liveness import Liveness
from hapax.client.metadata import Leader

SILENT, OTHER = 1, 2


class FakePeer:
    def __init__(self, request: str, waiting_s: float) -> None:
        self.request, self.waiting_s = request, waiting_s
        self.closed_because = ""

    def waiting(self) -> tuple[str, float]:
        return self.request, self.waiting_s

    def close(self, reason: str) -> None:
        self.closed_because = reason


class FakeCluster:
    """Metadata and coordinators as the cluster tells them from now on."""

    def __init__(self, purpose: str, peer: FakePeer, leader: int, owner: int | None = None) -> None:
        self.options = {"fetch.max.wait.ms": 500}
        self._peer, self._purpose, self._owner = peer, purpose, owner
        self.topics = {"t": SimpleNamespace(partitions={0: Leader(leader, 1)})}
        self.looked = asyncio.Event()
        self.given_up: list[Any] = []

    def connecting(self) -> list[Any]:
        """For as long as the peer's request waits."""
        since = asyncio.get_running_loop().time() - self._peer.waiting_s
        return [(SILENT, self._purpose, since)] if not self.given_up else []

    def give_up_connecting(self, node_id: int, purpose: str) -> None:
        self.given_up.append((node_id, purpose))

    def open_peers(self) -> list[Any]:
        self.looked.set()
        return [((SILENT, self._purpose), self._peer)] if not self._peer.closed_because else []

    async def refreshed(self, timeout_ms: int) -> None:
        await asyncio.sleep(0)

    def coordinated_by(self, node_id: int) -> list[tuple[str, str]]:
        return [("transaction", "x")] if node_id == SILENT else []

    async def coordinator(self, kind: str, key: str, *, again: bool) -> int:
        assert again
        if self._owner is None:
            raise RetriableError("nobody yet")
        return self._owner


@pytest.mark.parametrize(
    ("purpose", "request_name", "waiting_s", "leader", "owner", "closed"),
    [
        ("data", "ProduceRequest", 2.5, OTHER, None, True),
        ("data", "ProduceRequest", 1.5, OTHER, None, False),
        ("data", "ProduceRequest", 9.0, SILENT, None, False),
        ("data", "ProduceRequest", 9.0, -1, None, False),
        ("data", "CreateTopicsRequest", 9.0, OTHER, None, False),
        ("fetch", "FetchRequest", 2.4, OTHER, None, False),
        ("fetch", "FetchRequest", 2.6, OTHER, None, True),
        ("coordinator", "EndTxnRequest", 2.5, SILENT, OTHER, True),
        ("coordinator", "EndTxnRequest", 2.5, OTHER, SILENT, False),
        ("coordinator", "EndTxnRequest", 2.5, OTHER, None, False),
    ],
)
async def test_only_a_node_that_was_replaced_is_left(
    monkeypatch: pytest.MonkeyPatch, purpose: str, request_name: str, waiting_s: float, leader: int, owner: int | None,
    closed: bool,
) -> None:
    monkeypatch.setattr(liveness, "_CHECK_EVERY_S", 0)
    peer = FakePeer(request_name, waiting_s)
    cluster = FakeCluster(purpose, peer, leader, owner)
    task = asyncio.ensure_future(Liveness(cluster).run())  # type: ignore[arg-type]
    for _ in range(3):
        cluster.looked.clear()
        await cluster.looked.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert bool(peer.closed_because) == closed
    if request_name in liveness._LEADER_REQUESTS or purpose == "coordinator":
        patient = purpose == "fetch"  # what is being connected polls nothing yet
        assert cluster.given_up == ([(SILENT, purpose)] if closed or patient else [])
