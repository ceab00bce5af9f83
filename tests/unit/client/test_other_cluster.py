"""A node's address may be given to a node of another cluster, which has topics and groups of the same names."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hapax.client.cluster import ClusterClient
from hapax.client.environment import RealPorts
from hapax.client.errors import RetriableError
from hapax.client.settings import Options
from hapax.wire.peer import Capabilities, Peer, PeerClosed, PeerError


class NodeConnection:
    """A connection to the node of an address. It answers Metadata as the cluster there does."""

    def __init__(self, network: Network, address: str) -> None:
        self.network, self.address = network, address
        self.capabilities = Capabilities()
        self.closed = False

    async def call(self, request: object, *, timeout_ms: int | None = None) -> Any:
        if self.closed:
            raise PeerClosed("closed")
        assert timeout_ms is not None
        self.network.patience_ms.append(timeout_ms)
        brokers = [SimpleNamespace(node_id=number, host="node", port=9000 + number) for number in (0, 1)]
        return SimpleNamespace(
            brokers=brokers, controller_id=0, cluster_id=self.network.clusters[self.address], topics=[],
            unknown_tags=None)

    def close(self, reason: str = "") -> None:
        self.closed = True


class Network:
    def __init__(self) -> None:
        self.clusters: dict[str, str | None] = {"node:9000": "one", "node:9001": "one"}
        """By address."""
        self.opened: list[NodeConnection] = []
        self.patience_ms: list[int] = []
        """With each question."""

    async def connect(self, network: object, host: str, port: int, **_: object) -> NodeConnection:
        self.opened.append(NodeConnection(self, f"{host}:{port}"))
        return self.opened[-1]


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Network:
    made = Network()
    monkeypatch.setattr(Peer, "connect", made.connect)
    return made


async def connected() -> ClusterClient:
    client = ClusterClient(Options({"bootstrap.servers": "node:9000", "retry.backoff.ms": 1}, "a"), RealPorts())
    await client.all_topics()
    assert client.cluster_id == "one"
    return client


async def test_metadata_of_another_cluster_is_not_taken(network: Network) -> None:
    client = await connected()
    network.opened[0].close()
    network.clusters["node:9000"] = "two"
    for _ in range(5):  # whichever node is tried first
        await client.all_topics()
        assert client.cluster_id == "one"
        network.opened[-1].close()
    assert all(node.closed for node in network.opened)
    assert {node.address for node in network.opened} == {"node:9000", "node:9001"}
    assert max(network.patience_ms) == 1500, "a node that stands still is replaced by another one"


async def test_a_client_without_a_node_of_its_cluster_says_why(network: Network) -> None:
    client = await connected()
    network.opened[0].close()
    network.clusters = dict.fromkeys(network.clusters, "two")
    with pytest.raises(RetriableError, match="belongs to cluster two now, not to one"):
        await client.all_topics()
    assert client.cluster_id == "one" and all(node.closed for node in network.opened)


async def test_a_node_of_another_cluster_gets_no_request(network: Network) -> None:
    client = await connected()
    network.clusters["node:9001"] = "two"
    for purpose in ("data", "coordinator"):
        with pytest.raises(PeerError, match="belongs to cluster two"):
            await client.peer(1, purpose)  # type: ignore[arg-type]
    assert all(node.closed for node in network.opened if node.address == "node:9001")
    network.clusters["node:9001"] = "one"
    assert not (await client.peer(1)).closed


async def test_a_node_that_names_no_cluster_is_taken(network: Network) -> None:
    client = await connected()
    network.clusters["node:9001"] = None
    assert not (await client.peer(1)).closed
