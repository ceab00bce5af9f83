"""A topic was deleted and made again. A node that lags behind still names the former one, or none."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from hapax.client import cluster
from hapax.client.cluster import ClusterClient
from hapax.client.environment import RealPorts
from hapax.client.settings import Options
from hapax.core.errors import ErrorCode
from hapax.wire.image_revision import set_image_revision
from hapax.wire.messages import MetadataResponse
from hapax.wire.peer import PeerError
from unit.client.fetching_world import A, World, topic_named

_VERSION = 12
FORMER, PRESENT, NONE = 1, 2, 0
"""Lives of a topic."""


def said(
    life: int, revision: int | None, node: int = 0, nodes: tuple[int, ...] = (), names: tuple[str, ...] = ("a",)
) -> Any:
    """A node's answer about topics, through bytes. `revision`: of its image of the cluster, which has these
    nodes."""
    Topic = MetadataResponse.MetadataResponseTopic
    error = 0 if life else int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    partition = Topic.MetadataResponsePartition(
        error_code=0, partition_index=0, leader_id=0, leader_epoch=1, replica_nodes=[0], isr_nodes=[0],
        offline_replicas=[])
    Broker = MetadataResponse.MetadataResponseBroker
    answer = MetadataResponse(
        throttle_time_ms=0, cluster_id="c", controller_id=node,
        brokers=[Broker(node_id=each, host="h", port=each, rack=None) for each in nodes],
        topics=[Topic(
            error_code=error, name=name, topic_id=topic_named(name, life).topic_id if life else None, is_internal=False,
            partitions=[] if error else [partition]) for name in names])
    if revision is not None:
        set_image_revision(answer, revision)
    return MetadataResponse.decode(answer.encode(version=_VERSION), version=_VERSION)


class Told(ClusterClient):
    """A client whose next answers are given by the test."""

    def __init__(self) -> None:
        super().__init__(Options({"bootstrap.servers": "127.0.0.1:1"}, "c"), RealPorts())

    async def hear(self, life: int, revision: int | None) -> dict[str, Any]:
        async def answered(*_: object) -> Any:
            return said(life, revision)

        self._from_any_node = answered  # type: ignore[method-assign]
        return await self.existing(["a"])


@pytest.fixture
async def client() -> AsyncIterator[Told]:
    made = Told()
    yield made
    await made.close()


def life_of(topics: Any) -> int:
    ids = {topic_named("a", life).topic_id: life for life in (FORMER, PRESENT)}
    return ids[topics["a"].topic_id] if "a" in topics else NONE


async def test_a_lagging_node_does_not_bring_the_former_topic_back(client: Told) -> None:
    await client.hear(FORMER, 10)
    await client.hear(PRESENT, 20)
    assert life_of(await client.hear(FORMER, 15)) == PRESENT
    assert life_of(client.topics) == PRESENT


async def test_whoever_hears_of_the_present_topic_first_does_not_hear_of_the_former_one(client: Told) -> None:
    """The client never left it, so it cannot know it as one that it has left."""
    await client.hear(PRESENT, 20)
    await client.hear(FORMER, 10)
    assert life_of(client.topics) == PRESENT
    await client.hear(NONE, 15)
    assert life_of(client.topics) == PRESENT
    await client.hear(FORMER, 10)
    assert life_of(client.topics) == PRESENT


async def test_a_topic_that_is_gone_does_not_come_back(client: Told) -> None:
    await client.hear(FORMER, 10)
    await client.hear(NONE, 15)
    assert life_of(await client.hear(FORMER, 12)) == NONE
    assert life_of(await client.hear(PRESENT, 20)) == PRESENT


async def test_an_answer_that_confirms_what_is_known_makes_it_as_new_as_itself(client: Told) -> None:
    await client.hear(FORMER, 10)
    await client.hear(FORMER, 30)
    await client.hear(NONE, 20)
    assert life_of(client.topics) == FORMER


async def test_a_newer_answer_counts_whatever_it_says(client: Told) -> None:
    for life, revision in ((PRESENT, 10), (FORMER, 11), (NONE, 12), (PRESENT, 13)):
        await client.hear(life, revision)
        assert life_of(client.topics) == life


async def test_nodes_that_say_no_revision_are_believed(client: Told) -> None:
    """Kafka's own, and those of an older release."""
    await client.hear(PRESENT, 20)
    await client.hear(FORMER, None)
    assert life_of(client.topics) == FORMER


class Nodes(ClusterClient):
    """A client of several nodes, which asks one of them until it has a reason to ask another."""

    def __init__(self) -> None:
        super().__init__(Options({"bootstrap.servers": "127.0.0.1:1"}, "c"), RealPorts())
        self.says: dict[int, tuple[int, int]] = {}
        """Node -> (life, revision)."""
        self.silent: set[int] = set()

    async def _connect(self, host: str, port: int, at_most_ms: int | None = None) -> Any:
        return NodePeer(self, port)

    async def ask(self, node: int, *others: str) -> int:
        self._metadata_peer = NodePeer(self, node)  # type: ignore[assignment]
        return life_of(await self.existing(["a", *others]))


class NodePeer:
    def __init__(self, client: Nodes, node: int) -> None:
        self.closed = False
        self._client = client
        self._node = node

    async def call(self, request: Any, timeout_ms: int) -> Any:
        says = self._client.says
        if self.closed or self._node not in says.keys() - self._client.silent:
            raise PeerError("closed")
        names = tuple(each.name for each in request.topics)
        return said(*says[self._node], self._node, tuple(says), names)

    def close(self, reason: str = "") -> None:
        self.closed = True


@pytest.fixture
async def nodes() -> AsyncIterator[Nodes]:
    made = Nodes()
    yield made
    await made.close()


async def test_who_is_told_of_a_former_topic_asks_another_node(nodes: Nodes) -> None:
    """The first may lag behind for long."""
    nodes.says = {1: (FORMER, 10), 2: (PRESENT, 20)}
    assert await nodes.ask(2) == PRESENT
    nodes.says[2] = NONE, 30
    assert await nodes.ask(1) == NONE
    nodes.says[2] = PRESENT, 40
    assert life_of(await nodes.existing(["a"])) == PRESENT


@pytest.mark.parametrize("life", [FORMER, NONE])
async def test_a_cluster_that_was_put_back_is_believed(nodes: Nodes, life: int) -> None:
    """From a copy: it is the same cluster, and its revisions are lower. A client that waited for a higher one would
    name a topic that no node knows, perhaps for months."""
    nodes.says = {1: (PRESENT, 100), 2: (PRESENT, 100), 3: (PRESENT, 100)}
    for node in (1, 2, 3):
        assert await nodes.ask(node) == PRESENT
    nodes.says = {1: (life, 50), 2: (life, 51), 3: (life, 52)}
    assert await nodes.ask(1, "heard of since then") == life
    nodes.says = {2: (PRESENT, 53), 3: (life, 52)}
    assert await nodes.ask(2) == PRESENT
    nodes.says = {2: (FORMER, 54), 3: (FORMER, 55)}
    assert await nodes.ask(3) == FORMER


async def test_nodes_that_lag_behind_are_not_believed_while_one_that_knows_more_is_silent(nodes: Nodes) -> None:
    nodes.says = {1: (FORMER, 10), 2: (FORMER, 10), 3: (PRESENT, 20)}
    assert await nodes.ask(3) == PRESENT
    nodes.silent = {3}
    for _ in range(3):
        for node in (1, 2):
            assert await nodes.ask(node) == PRESENT


async def test_a_node_that_lagged_behind_before_does_not_count_as_one_that_does_now(nodes: Nodes) -> None:
    nodes.says = {1: (FORMER, 10), 2: (FORMER, 10), 3: (PRESENT, 20)}
    assert await nodes.ask(3) == PRESENT
    nodes.silent = {1, 3}
    assert await nodes.ask(2) == PRESENT
    nodes.says[2] = NONE, 30
    assert await nodes.ask(2) == NONE
    nodes.silent = {2}
    assert await nodes.ask(1) == NONE
    assert await nodes.ask(3) == NONE


async def test_a_topic_made_again_is_not_read_a_second_time(client: Told) -> None:
    world = World()
    world.topics = client.topics
    await client.hear(FORMER, 10)
    world.write("a", "old0")
    world.fetcher.assign([A])
    assert await world.take() == ["old0"]
    world.make_again("a", heard=False)
    await client.hear(PRESENT, 20)
    assert await world.take() == ["new0", "new1", "new2", "new3", "new4"]
    await client.hear(FORMER, 15)
    assert await world.fetcher.take(20, 500) == []
    await client.hear(PRESENT, 25)
    world.write("a", "new5")
    assert await world.take() == ["new5"]
    await world.fetcher.close()


async def test_forgotten_names_do_not_bring_former_topics_back(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs may ask for ever more names."""
    monkeypatch.setattr(cluster, "_NAMES_REMEMBERED", 10)
    nodes._forget_at = 10
    nodes.says = {1: (FORMER, 10), 2: (PRESENT, 20)}
    assert await nodes.ask(2) == PRESENT
    for number in range(100):
        nodes.says[2] = NONE, 21 + number
        await nodes.existing([f"gone{number}"])
        assert len(nodes._topic_ids) <= 10 and len(nodes.topic_errors) <= 11
    nodes.says[2] = PRESENT, 200
    assert await nodes.ask(1) == PRESENT, "it asks the other node"
    nodes.silent = {2}
    nodes.says[1] = FORMER, 15
    assert await nodes.ask(1) == PRESENT, "it waits"


async def test_the_absence_of_a_forgotten_topic_is_as_new_as_it_was(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "_NAMES_REMEMBERED", 1)
    nodes._forget_at = 1
    nodes.says = {1: (FORMER, 10), 2: (NONE, 20)}
    assert await nodes.ask(2, "b") == NONE
    assert not nodes._topic_ids
    assert await nodes.ask(1) == NONE
    nodes.says[1] = PRESENT, 21
    assert await nodes.ask(1) == PRESENT


async def test_topics_that_the_client_follows_are_remembered(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "_NAMES_REMEMBERED", 1)
    nodes._forget_at = 1
    nodes._interesting["a"] = None
    nodes.says = {1: (PRESENT, 10)}
    assert await nodes.ask(1, "b", "c") == PRESENT
    assert set(nodes._topic_ids) == {"a"}
