"""All topics that any node knows: nodes that lag behind do not hide a topic that others serve already."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from hapax.client.cluster import ClusterClient
from hapax.client.environment import RealPorts
from hapax.client.errors import HapaxError
from hapax.client.newest_image import newest_topics
from hapax.client.settings import Options
from hapax.wire.messages import MetadataRequest
from hapax.wire.peer import PeerError
from unit.client.test_former_topics import PRESENT, said


class Nodes(ClusterClient):
    """A client of several nodes, the first of which answers what one node is asked."""

    def __init__(self) -> None:
        super().__init__(Options({"bootstrap.servers": "127.0.0.1:1", "retry.backoff.ms": 1}, "c"), RealPorts())
        self.images: dict[int, tuple[int, tuple[int, ...], tuple[str, ...]]] = {}
        """Node -> (revision, nodes, topics) of its image."""
        self.silent: set[int] = set()
        self.departed: tuple[int, ...] = ()
        """Nodes that Metadata lists, and DescribeCluster does not."""

    def answer(self, node: int) -> Any:
        revision, nodes, topics = self.images[node]
        return said(PRESENT, revision, node, (*nodes, *self.departed), topics)

    async def _from_any_node(self, *values: object) -> Any:
        return self.answer(next(iter(self.images)))

    async def peer(self, node_id: int, purpose: Any = "data") -> Any:
        if node_id not in self.images.keys() - self.silent:
            raise PeerError(f"node {node_id} does not answer")

        async def call(request: Any) -> Any:
            if isinstance(request, MetadataRequest):
                assert request.topics is None and not request.allow_auto_topic_creation
                return self.answer(node_id)
            return SimpleNamespace(brokers=[SimpleNamespace(broker_id=each) for each in self.images[node_id][1]])

        return SimpleNamespace(call=call)


@pytest.fixture
async def nodes() -> AsyncIterator[Nodes]:
    made = Nodes()
    yield made
    await made.close()


async def names(nodes: Nodes) -> list[str]:
    return sorted(await newest_topics(nodes, 200))


async def test_the_node_that_is_asked_first_lags_behind(nodes: Nodes) -> None:
    nodes.images = {0: (10, (0, 1, 2), ("a",)), 1: (12, (0, 1, 2), ("a", "b")), 2: (11, (0, 1, 2), ("a",))}
    assert await names(nodes) == ["a", "b"]
    nodes.images[2] = 13, (0, 1, 2), ("b",)
    assert await names(nodes) == ["b"], "it was deleted"


async def test_a_node_that_the_others_have_not_heard_of_is_asked(nodes: Nodes) -> None:
    nodes.images = {0: (10, (0, 1), ("a",)), 1: (12, (0, 1, 2), ("a",)), 2: (13, (0, 1, 2), ("a", "b"))}
    assert await names(nodes) == ["a", "b"]


@pytest.mark.parametrize("silent", [{1}, {0, 1}])
async def test_a_node_that_does_not_answer_may_be_the_one_that_knows(nodes: Nodes, silent: set[int]) -> None:
    nodes.images = {0: (10, (0, 1), ("a",)), 1: (12, (0, 1), ("a", "b"))}
    nodes.silent = silent
    with pytest.raises(HapaxError, match=r"listing topics.*does not answer"):
        await names(nodes)
    nodes.silent = set()
    assert await names(nodes) == ["a", "b"]


async def test_a_node_that_has_left_is_not_waited_for(nodes: Nodes) -> None:
    """Metadata lists coordinators for a while after they have left."""
    nodes.images = {0: (10, (0, 1), ("a",)), 1: (12, (0, 1), ("a", "b"))}
    nodes.departed = (1000,)
    assert await names(nodes) == ["a", "b"]


async def test_no_node_at_all_is_an_error_and_not_an_empty_cluster(nodes: Nodes) -> None:
    """Every registration may have run out for a moment, and a backup would then have no topics."""
    nodes.images = {0: (10, (), ("a",))}
    with pytest.raises(HapaxError, match="names no node"):
        await names(nodes)
