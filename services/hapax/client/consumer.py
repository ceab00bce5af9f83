"""The consumer with asyncio: reads partitions that the program assigns to it.

Positions are kept here, committed offsets at the group's coordinator. `fetcher` fetches records. This class does not
join groups or subscribe to topics: name the partitions with `assign`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Mapping

from hapax.client.connected import Connected
from hapax.client.coordination import OffsetAndMetadata, Offsets
from hapax.client.environment import ClientPorts
from hapax.client.errors import FatalError, HapaxError, SettingsError, WrongState
from hapax.client.fetcher import Begin, Fetcher
from hapax.client.groups import check_group, commit_once
from hapax.client.metrics import LAG_MAX, ConsumerCounts
from hapax.client.offsets import EARLIEST, LATEST, list_offsets
from hapax.client.raw_fetch import RawFetch, fetch_raw
from hapax.client.records import Record
from hapax.client.settings import Options, Settings
from hapax.core.errors import ErrorCode
from hapax.core.types import PartitionIndex, TopicPartition
from hapax.runtime import supervision
from hapax.runtime.metrics import Metrics
from hapax.wire import messages

log = logging.getLogger("hapax.client")


class Consumer(Connected):
    """Reads records. Settings under Kafka's names, see `hapax.client.settings.SETTINGS`.

    Use as `async with Consumer({...}) as consumer`, or `start()` and `close()`; then `assign`, and `poll` or
    `async for record in consumer`.
    """

    def __init__(self, settings: Settings, *, ports: ClientPorts | None = None) -> None:
        options = Options(settings, "c")
        super().__init__(options, options["default.api.timeout.ms"], ports)
        self._group: str | None = options["group.id"]
        if options["enable.auto.commit"] and "enable.auto.commit" in options.given and self._group is None:
            raise SettingsError("enable.auto.commit=true needs a group.id")
        self._metrics = Metrics()
        self._counts = ConsumerCounts(self._metrics)
        self._fetcher = Fetcher(self._cluster, self._reset, self._counts)
        self._metrics.observe(LAG_MAX, self._fetcher.lag)
        self._auto: asyncio.Task[None] | None = None

    async def _after_start(self) -> None:
        if self._group is not None and self._options["enable.auto.commit"]:
            self._auto = supervision.keep(
                self._commit_from_time_to_time, "client-auto-commit", self._cluster.ports.random)

    async def _before_close(self) -> None:
        """Commits positions as enable.auto.commit says."""
        try:
            if self._auto is not None:
                self._auto.cancel()
                await asyncio.gather(self._auto, return_exceptions=True)
                await self._commit()
        except HapaxError as error:
            log.warning("positions were not committed at close: %s", error)
        finally:
            await self._fetcher.close()

    @property
    def metrics(self) -> Metrics:
        """What this consumer counts, see docs/metrics.md. `metrics.values()` is a dict of numbers by name, and
        `prometheus_client.REGISTRY.register(consumer.metrics)` exposes them to Prometheus."""
        return self._metrics

    # --- what is read -----------------------------------------------------------------------------------------

    def assign(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        """Reads these partitions and no others. Partitions that were assigned before keep their positions. New ones
        start at the group's committed offset, or as auto.offset.reset says."""
        self._fetcher.assign([_partition(p) for p in partitions])

    def assignment(self) -> list[TopicPartition]:
        return self._fetcher.assigned()

    async def partitions(self, topic: str) -> list[TopicPartition]:
        """All partitions of a topic, for `assign`."""
        known = await self._cluster.topic(topic, self._timeout)
        return [TopicPartition(topic, PartitionIndex(p)) for p in known.partitions]

    def seek(self, partition: TopicPartition | tuple[str, int], offset: int) -> None:
        """The next record read from an assigned partition is the first at or after `offset`."""
        self._fetcher.seek(_partition(partition), offset)

    async def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Empty: all assigned partitions."""
        for partition, offset in (await self.beginning_offsets(partitions or self.assignment())).items():
            self.seek(partition, offset)

    async def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Under read_committed the end is the last stable offset."""
        for partition, offset in (await self.end_offsets(partitions or self.assignment())).items():
            self.seek(partition, offset)

    def pause(self, *partitions: TopicPartition) -> None:
        self._fetcher.pause(partitions)

    def resume(self, *partitions: TopicPartition) -> None:
        self._fetcher.resume(partitions)

    async def poll(self, timeout_ms: int = 500, max_records: int | None = None) -> list[Record]:
        """The next records, at most max.poll.records, in order within each partition. [] if none came in time.

        Raises HapaxError for a partition that cannot be read.
        """
        self._check_usable()
        return await self._fetcher.take(timeout_ms, max_records or self._options["max.poll.records"])

    async def __aiter__(self) -> AsyncIterator[Record]:
        """A position counts a record as read once the iteration has returned it."""
        while True:
            handed = self._fetcher.hand_out(1)
            for record in handed:
                yield record
            if not handed:
                await self._poll_held()

    async def _poll_held(self) -> None:
        self._fetcher.hold(await self.poll())

    async def fetch(
        self, partition: TopicPartition | tuple[str, int], offset: int, *, topic_id: str = "",
        max_bytes: int | None = None,
    ) -> RawFetch:
        """Returns whole record batches from `offset` on, as the leader sends them: at most max.partition.fetch.bytes,
        or `max_bytes` (the first batch is always returned), and none at the end of the log. Does not change positions.
        For readers that decode batches themselves. `topic_id`: as in `Admin.list_topics`. A topic that was created
        again under the same name is not read. Raises HapaxError, with code OFFSET_OUT_OF_RANGE where `offset` is
        outside the log."""
        self._check_usable()
        return await fetch_raw(
            self._cluster, _partition(partition), offset, timeout_ms=self._timeout,
            committed=self._options["isolation.level"] == "read_committed",
            max_bytes=max_bytes or self._options["max.partition.fetch.bytes"], topic_id=topic_id)

    # --- offsets ----------------------------------------------------------------------------------------------

    async def position(self, partition: TopicPartition | tuple[str, int]) -> int:
        """Offset of the next record that `poll` will return."""
        partition = _partition(partition)
        position = self._fetcher.position(partition)
        if position is None:
            position = (await self._fetcher.begin([partition]))[partition]
        return position

    async def committed(
        self, partitions: Iterable[TopicPartition | tuple[str, int]]
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """The group's committed offsets. Partitions without one are left out. Waits for open transactions that will
        commit offsets. Raises HapaxError."""
        wanted = [_partition(p) for p in partitions]
        return await self._cluster.within(self._timeout, "committed offsets", lambda: self._fetch_committed(wanted))

    async def commit(self, offsets: Offsets | None = None) -> None:
        """Commits offsets, or the positions of all assigned partitions. Raises HapaxError.

        A position counts a record as read once `poll` or an iteration has returned it.
        """
        self._check_usable()
        if self._group is None:
            raise WrongState("committing needs a group.id")
        await self._commit(offsets)

    async def beginning_offsets(
        self, partitions: Iterable[TopicPartition | tuple[str, int]]
    ) -> dict[TopicPartition, int]:
        return await self._offsets_at({_partition(p): EARLIEST for p in partitions})

    async def end_offsets(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> dict[TopicPartition, int]:
        """Where the next record will be written; under read_committed the last stable offset."""
        return await self._offsets_at({_partition(p): LATEST for p in partitions})

    async def offsets_for_times(
        self, times: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, tuple[int, int] | None]:
        """For each partition, the first record at or after a time (ms since 1970): (offset, its timestamp), or None."""
        found = await self._list_offsets({_partition(p): time for p, time in times.items()})
        return {p: None if offset < 0 else (offset, time) for p, (offset, time) in found.items()}

    async def _offsets_at(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        return {p: offset for p, (offset, _) in (await self._list_offsets(times)).items()}

    # --- inner steps ------------------------------------------------------------------------------------------

    async def _reset(
        self, partitions: list[TopicPartition], begin: Begin = Begin.COMMITTED
    ) -> dict[TopicPartition, int]:
        """The start positions of partitions that have none. Raises HapaxError."""
        rule = self._options["auto.offset.reset"]
        found = {}
        if begin is Begin.COMMITTED and self._group is not None:
            found = {p: o.offset for p, o in (await self.committed(partitions)).items()}
        missing = [p for p in partitions if p not in found]
        if missing and rule == "none":
            topic, number = missing[0]
            raise FatalError(
                f"{topic}-{number} {begin.value} and auto.offset.reset is none", code=ErrorCode.OFFSET_OUT_OF_RANGE
            )
        earliest = rule == "earliest" or begin is Begin.MADE_AGAIN
        if missing:
            found |= await self._offsets_at(dict.fromkeys(missing, EARLIEST if earliest else LATEST))
        return found

    async def _list_offsets(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, tuple[int, int]]:
        committed = self._options["isolation.level"] == "read_committed"
        return await list_offsets(self._cluster, self._timeout, times, committed)

    async def _fetch_committed(self, partitions: list[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        if self._group is None:
            raise WrongState("committed offsets need a group.id")
        Message = messages.OffsetFetchRequest
        topics: dict[str, list[int]] = {}
        for partition in partitions:
            topics.setdefault(partition.topic, []).append(partition.partition)
        peer = await self._cluster.coordinator_peer("group", self._group)
        version = peer.capabilities.pick(Message, at_most=9)  # 10 names topics by id
        if version >= 8:
            Group = Message.OffsetFetchRequestGroup
            message = Message(
                require_stable=True,
                groups=[
                    Group(
                        group_id=self._group,
                        member_id=None,
                        member_epoch=-1,
                        topics=[
                            Group.OffsetFetchRequestTopics(name=name, partition_indexes=numbers)
                            for name, numbers in topics.items()
                        ],
                    )
                ],
            )
        else:
            message = Message(
                group_id=self._group,
                require_stable=True,
                topics=[
                    Message.OffsetFetchRequestTopic(name=name, partition_indexes=numbers)
                    for name, numbers in topics.items()
                ],
            )
        response = await peer.call(message, version=version)
        answer = response.groups[0] if version >= 8 else response
        self._check_group(answer.error_code, "committed offsets")
        found = {}
        for topic in answer.topics:
            for p in topic.partitions:
                self._check_group(p.error_code, f"committed offset of {topic.name}-{p.partition_index}")
                if p.committed_offset >= 0:
                    partition = TopicPartition(topic.name, PartitionIndex(p.partition_index))
                    found[partition] = OffsetAndMetadata(p.committed_offset, p.metadata or "", p.committed_leader_epoch)
        return found

    async def _commit(self, offsets: Offsets | None = None) -> None:
        """None: the positions. They are committed under the topic ids for which they apply, if the cluster has topic
        ids, because another topic of the same name may have been created since."""
        if offsets or (offsets is None and self._fetcher.positions()):
            assert self._group is not None
            group = self._group

            async def attempt() -> None:
                if offsets is None:
                    await commit_once(self._cluster, group, self._fetcher.positions(), self._fetcher.topic_ids())
                else:
                    await commit_once(self._cluster, group, offsets)

            try:
                await self._cluster.within(self._timeout, "committing offsets", attempt)
            except HapaxError:
                self._counts.commits.labels("failed").value += 1
                raise
            self._counts.commits.labels("done").value += 1

    def _check_group(self, code: int, what: str) -> None:
        assert self._group is not None
        check_group(self._cluster, self._group, code, what)

    async def _commit_from_time_to_time(self) -> None:
        committed: dict[TopicPartition, int] = {}
        while True:
            await asyncio.sleep(self._options["auto.commit.interval.ms"] / 1000)
            positions = self._fetcher.positions()
            if positions and positions != committed:
                try:
                    await self._commit()
                    committed = positions
                except HapaxError as error:
                    log.warning("positions were not committed, next attempt follows: %s", error)


def _partition(given: TopicPartition | tuple[str, int]) -> TopicPartition:
    return TopicPartition(given[0], PartitionIndex(given[1]))
