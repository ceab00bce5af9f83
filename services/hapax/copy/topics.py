"""Finds the topics that are copied, and creates and extends them on the target."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final
from uuid import UUID

from hapax.client.admin import Admin, NewTopic
from hapax.client.errors import HapaxError
from hapax.copy.settings import GROUP_PREFIX, OWN_TOPICS, CopySettings
from hapax.core.copy.topics import Wanted, changes, chosen, configuration
from hapax.core.errors import ErrorCode
from hapax.core.types import PartitionIndex, TopicPartition

log = logging.getLogger("hapax.copy")

_OTHERS_DID_IT: Final = (ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.INVALID_PARTITIONS)


class Topics:
    def __init__(self, settings: CopySettings, source: Admin, target: Admin) -> None:
        self._settings = settings
        self._source = source
        self._target = target
        self.wanted: dict[str, Wanted] = {}
        """By the name of the topic that holds the shares on the target."""
        self._data: dict[str, str] = {}
        """Topic of shares -> topic of the target that has the records; of all that were ever wanted. A topic may be
        deleted on the source, or be refused another partition on the target, while records of it are under way."""
        self.troubles: dict[str, str] = {}
        """Target topic -> why it cannot be used."""
        self.target_ids: dict[str, str] = {}
        """Of the target's topics, as far as there were any when they were last looked up."""
        self._one_cluster: bool | None = None
        """Whether source and target are the same. None: not known yet."""

    def share_topic(self, wanted: Wanted) -> str:
        """The topic of the target whose partitions stand for those of the source in the copy's group."""
        return f"{self._settings.group}.{wanted.source}" if self._settings.by_key else wanted.target

    def data_topic(self, share_topic: str) -> str:
        """The topic of the target that has the records."""
        return self._data[share_topic]

    async def discover(self) -> list[Wanted]:
        """The topics that are copied, which exist on the target now, with as many partitions at least. A topic for
        which that fails is left out. Raises HapaxError where a cluster does not answer."""
        settings = self._settings
        found = {each.name: (each.topic_id, len(each.partitions)) for each in await self._source.list_topics()}
        wanted = chosen(
            found, settings.topics, settings.exclude, settings.prefix, GROUP_PREFIX,
            one_cluster=await self._in_one_cluster())
        shares = [each._replace(target=self.share_topic(each)) for each in wanted] if settings.by_key else []
        own = settings.positions_topic
        taken = await self._taken(each.target for each in shares if each.target != own)
        await self._prepare([*wanted, *(each for each in shares if each.target not in (own, *taken))])
        for name in taken:
            self.troubles[name] = (
                f"topic {name.removeprefix(settings.group + '.')!r} cannot be copied with --by-key and --name"
                f" {settings.name!r}: topic {name!r} on the target would stand for it, and has records, which are"
                " another copy's. Copy it without --by-key, or choose another --name")
            log.warning("%s", self.troubles[name])
        if own in {each.target for each in shares}:
            self.troubles[own] = (
                f"topic {own.removeprefix(settings.group + '.')!r} cannot be copied with --by-key: topic {own!r} on the"
                " target would stand for it, and has the copy's positions. Copy it without --by-key")
            log.warning("%s", self.troubles[own])
        usable = [
            each for each in wanted
            if each.target not in self.troubles and self.share_topic(each) not in self.troubles]
        self.wanted = {self.share_topic(each): each for each in usable}
        self._data |= {share: each.target for share, each in self.wanted.items()}
        return usable

    async def _taken(self, names: Iterable[str]) -> list[str]:
        """Those of the shares' topics that have records: the own topics of a copy whose name is the rest of theirs.
        Shares' topics have none. Raises HapaxError."""
        asked = [each for each in names if each.endswith(OWN_TOPICS) and each not in self.wanted]
        there = await self._target.list_topics(asked) if asked else []
        ends = await self._target.listed_offsets(
            TopicPartition(each.name, PartitionIndex(number))
            for each in there for number in range(len(each.partitions)))
        return sorted({each.topic for each, found in ends.items() if found.high_watermark > 0})

    async def _in_one_cluster(self) -> bool:
        if self._one_cluster is None:
            source, target = await self._source.describe_cluster(), await self._target.describe_cluster()
            self._one_cluster = bool(source.cluster_id) and source.cluster_id == target.cluster_id
        return self._one_cluster

    async def _prepare(self, wanted: Iterable[Wanted]) -> None:
        topics = list(wanted)
        listed = await self._target.list_topics([each.target for each in topics]) if topics else []
        self.target_ids = {each.name: id_of(each.topic_id) for each in listed}
        there = {each.name: len(each.partitions) for each in listed}
        former, self.troubles = self.troubles, {}
        for change in changes(topics, there):
            name = change.topic.target
            try:
                if change.create:
                    await self._create(change.topic)
                else:
                    await self._target.create_partitions({name: change.topic.partitions})
                    log.info("topic %r on the target has %d partitions now, as the source", name,
                             change.topic.partitions)
            except HapaxError as error:
                if error.code in _OTHERS_DID_IT:
                    continue  # another process of this copy
                what = "cannot be created" if change.create else "has fewer partitions than the source"
                self.troubles[name] = f"topic {name!r} {what} on the target: {error}"
                if name not in former:
                    log.warning("%s", self.troubles[name])

    async def _create(self, topic: Wanted) -> None:
        config: dict[str, str] = {}
        if self._settings.config and topic.target == self._settings.prefix + topic.source:
            of_source = await self._source.topic_config(topic.source)
            node = (await self._target.list_topics())[:1]
            known = await self._target.topic_config(node[0].name) if node else of_source
            config = configuration({name: (each.value, each.source) for name, each in of_source.items()}, known)
        await self._target.create_topics([NewTopic(
            topic.target, topic.partitions, self._settings.replication_factor, config)], exist_ok=True)
        log.info("created topic %r on the target with %d partitions", topic.target, topic.partitions)


def id_of(topic_id: str) -> str:
    """Empty: the cluster knows no topic ids."""
    return topic_id if UUID(topic_id).int else ""
