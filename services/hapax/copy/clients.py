"""The clients of both clusters that a copier has, besides the producer (`writer`)."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from hapax.client.admin import Admin
from hapax.client.cluster import ClusterClient
from hapax.client.consumer import Consumer
from hapax.client.environment import ClientPorts
from hapax.client.errors import HapaxError, SettingsError
from hapax.client.settings import consumer_options, known_to
from hapax.copy.settings import CopySettings

log = logging.getLogger("hapax.copy")

_LEAVE_S: Final = 3.0
_GROUP: Final = {
    # A static member of the classic protocol is replaced at once by a new process of its instance.
    "group.protocol": "classic", "session.timeout.ms": 10_000, "heartbeat.interval.ms": 1_000,
    "enable.auto.commit": False, "auto.offset.reset": "earliest",
}  # fmt: skip
_READING: Final = {
    "isolation.level": "read_committed", "fetch.max.bytes": 4 << 20, "max.partition.fetch.bytes": 1 << 20,
    "metadata.max.age.ms": 10_000,
}  # fmt: skip


class Clients:
    def __init__(self, settings: CopySettings, ports: ClientPorts) -> None:
        self._settings = settings
        self.source = Admin(known_to("a", settings.source), ports=ports)
        self.target = Admin(known_to("a", settings.target), ports=ports)
        self.reading = ClusterClient(consumer_options({**known_to("c", settings.source), **_READING}), ports)
        """Of the source, for the records."""
        self.group = Consumer({
            **known_to("c", settings.target), **_GROUP, "group.id": settings.group,
            "group.instance.id": settings.instance, "metadata.max.age.ms": settings.discover_ms}, ports=ports)
        """The membership in the copy's group. It reads no records."""
        self.lookup = Consumer({**known_to("c", settings.target), "isolation.level": "read_committed"}, ports=ports)
        """Reads the copy's own topic."""
        self.source_answers = False

    async def start(self) -> None:
        """Raises HapaxError."""
        await self.source.start()
        self.source_answers = True
        await self.target.start()
        await self.reading.start()
        await self.group.start()
        await self.lookup.start()

    async def check(self) -> None:
        """Raises SettingsError where topics would be copied onto themselves, other HapaxErrors where a cluster does not
        answer."""
        source, target = await self.source.describe_cluster(), await self.target.describe_cluster()
        if source.cluster_id and source.cluster_id == target.cluster_id and not self._settings.prefix:
            raise SettingsError(
                f"source and target are the same cluster, {source.cluster_id}: give --prefix, or each topic would be"
                " copied onto itself")

    async def close(self, *, leave: bool) -> None:
        """`leave`: gives the partitions up at once. The group would keep a static member's for it until its session
        ends."""
        member = self.group.group_metadata().member_id
        await self.group.close()
        if leave and member:
            try:
                async with asyncio.timeout(_LEAVE_S):
                    await self.target.remove_group_member(self._settings.group, member, self._settings.instance)
            except (HapaxError, TimeoutError) as error:
                log.info("leaving the group was not confirmed: %r", error)
        await self.reading.close()
        for each in (self.lookup, self.source, self.target):
            await each.close()
