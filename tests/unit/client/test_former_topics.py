"""A topic was deleted and made again. A node that lags behind still names the former one, or none."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from hapax.client.cluster import ClusterClient
from hapax.client.environment import RealPorts
from hapax.client.settings import Options
from hapax.core.errors import ErrorCode
from hapax.wire.image_revision import set_image_revision
from hapax.wire.messages import MetadataResponse
from unit.client.fetching_world import A, World, topic_named

_VERSION = 12
FORMER, PRESENT, NONE = 1, 2, 0
"""Lives of a topic."""


def said(life: int, revision: int | None) -> Any:
    """A node's answer about topic `a`, through bytes. `revision`: of its image of the cluster."""
    Topic = MetadataResponse.MetadataResponseTopic
    error = 0 if life else int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    partition = Topic.MetadataResponsePartition(
        error_code=0, partition_index=0, leader_id=0, leader_epoch=1, replica_nodes=[0], isr_nodes=[0],
        offline_replicas=[])
    answer = MetadataResponse(
        throttle_time_ms=0, brokers=[], cluster_id="c", controller_id=0, topics=[Topic(
            error_code=error, name="a", topic_id=topic_named("a", life).topic_id if life else None, is_internal=False,
            partitions=[] if error else [partition])])
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
