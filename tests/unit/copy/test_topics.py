"""Which topics a copy knows, where a cluster refuses some of what it asks for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from hapax.client.errors import FatalError
from hapax.copy.settings import CopySettings
from hapax.copy.topics import Topics
from hapax.core.types import TopicPartition


class World:
    """A source with one topic, and a target that may refuse to extend topics."""

    def __init__(self) -> None:
        self.source = {"t": 1}
        self.target: dict[str, int] = {}
        self.refuses = False
        settings = CopySettings(source={}, target={}, topics=".*", name="n", prefix="copy.", by_key=True, config=False)
        source: Any = SimpleNamespace(list_topics=self._list_source, describe_cluster=self._cluster("s"))
        target: Any = SimpleNamespace(
            list_topics=self._list_target, describe_cluster=self._cluster("t"), create_topics=self._create,
            create_partitions=self._extend, listed_offsets=self._ends)
        self.topics = Topics(settings, source, target)

    def _cluster(self, cluster_id: str) -> Any:
        async def describe() -> Any:
            return SimpleNamespace(cluster_id=cluster_id)

        return describe

    async def _list_source(self) -> list[Any]:
        return _listed(self.source, self.source)

    async def _list_target(self, names: Iterable[str]) -> list[Any]:
        return _listed(self.target, names)

    async def _ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Any]:
        return {each: SimpleNamespace(high_watermark=0) for each in partitions}

    async def _create(self, topics: Iterable[Any], *, exist_ok: bool) -> None:
        self.target |= {each.name: each.partitions for each in topics}

    async def _extend(self, topics: Mapping[str, int]) -> None:
        if self.refuses:
            raise FatalError("no permission")
        self.target |= topics


def _listed(topics: Mapping[str, int], names: Iterable[str]) -> list[Any]:
    return [SimpleNamespace(name=name, topic_id=str(UUID(int=7)), partitions=[None] * topics[name])
            for name in names if name in topics]


async def test_where_records_go_stays_known_while_they_are_under_way() -> None:
    """With --by-key, records that were read are looked up by the topic of their share when they are written."""
    world = World()
    (wanted,) = await world.topics.discover()
    share = world.topics.share_topic(wanted)
    assert (share, world.topics.data_topic(share)) == ("hapax-copy.n.t", "copy.t")

    world.source["t"], world.refuses = 2, True
    assert await world.topics.discover() == [] and "no permission" in world.topics.troubles["copy.t"]
    assert world.topics.data_topic(share) == "copy.t"

    world.source, world.refuses = {}, False
    assert await world.topics.discover() == []
    assert world.topics.data_topic(share) == "copy.t"
