"""The consumer with asyncio: reads partitions that its group or the program assigns to it.

Positions are kept here, committed offsets at the group's coordinator. `fetcher` fetches records, `member` takes part in
the group.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from types import TracebackType
from typing import Any

from hapax.client.connected import Connected
from hapax.client.coordination import ConsumerGroup, OffsetAndMetadata, Offsets
from hapax.client.environment import ClientPorts
from hapax.client.errors import FatalError, HapaxError, MembershipLostError, RetriableError, WrongState, group_error
from hapax.client.fetcher import Fetcher
from hapax.client.groups import NO_MEMBER, check_group, commit_once
from hapax.client.member import Member, OnPartitions, Subscribed
from hapax.client.metrics import LAG_MAX, ConsumerCounts
from hapax.client.offsets import EARLIEST, LATEST, list_offsets
from hapax.client.raw_fetch import RawFetch, fetch_raw
from hapax.client.readings import Begin
from hapax.client.records import Record
from hapax.client.settings import Settings, consumer_options
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.group import expressions
from hapax.core.types import PartitionIndex, TopicPartition
from hapax.runtime import supervision
from hapax.runtime.metrics import Metrics
from hapax.wire import messages

log = logging.getLogger("hapax.client")

_NOT_A_MEMBER = (
    ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.STALE_MEMBER_EPOCH)
"""Refusals of a commit that the member's next heartbeat explains."""


class Consumer(Connected):
    """Reads records. Settings under Kafka's names, see `hapax.client.settings.SETTINGS`.

    Use as `async with Consumer({...}) as consumer`, or `start()` and `close()`; then `subscribe` or `assign`, and
    `poll` or `async for record in consumer`.
    """

    def __init__(self, settings: Settings, *, ports: ClientPorts | None = None) -> None:
        options = consumer_options(settings)
        super().__init__(options, options["default.api.timeout.ms"], ports)
        self._group: str | None = options["group.id"]
        self._metrics = Metrics()
        self._counts = ConsumerCounts(self._metrics)
        self._fetcher = Fetcher(self._cluster, self._reset, self._counts)
        self._metrics.observe(LAG_MAX, self._fetcher.lag)
        self._auto: asyncio.Task[None] | None = None
        self._member: Member | None = None
        self._subscribed: Subscribed | None = None
        self._leaving = False

    async def _after_start(self) -> None:
        if self._group is not None and self._options["enable.auto.commit"]:
            self._auto = supervision.keep(
                self._commit_from_time_to_time, "client-auto-commit", self._cluster.ports.random)
        if self._subscribed is not None:
            self._join(self._subscribed)

    async def _before_close(self) -> None:
        """Commits positions as enable.auto.commit says, then leaves the group."""
        try:
            if self._auto is not None:
                await supervision.end(self._auto)
                if self._member is None:
                    await self._commit(automatic=True)
        except HapaxError as error:
            log.warning("positions were not committed at close: %s", error)
        finally:
            try:
                await self._leave()
            except Exception as error:  # a callback's, and close() does not raise
                log.warning("a callback failed at close: %r", error)
            finally:
                await self._fetcher.close()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._fetcher.note_processed()
        await super().__aexit__(kind, error, trace)

    @property
    def metrics(self) -> Metrics:
        """What this consumer counts, see docs/metrics.md. `metrics.values()` is a dict of numbers by name, and
        `prometheus_client.REGISTRY.register(consumer.metrics)` exposes them to Prometheus."""
        return self._metrics

    # --- what is read -----------------------------------------------------------------------------------------

    def subscribe(
        self, topics: Iterable[str] | None = None, *, pattern: str | None = None,
        on_assigned: OnPartitions | None = None, on_revoked: OnPartitions | None = None,
        on_lost: OnPartitions | None = None,
    ) -> None:
        """Reads the partitions that the group assigns to this consumer, of these topics, or of all topics whose whole
        name matches the pattern (a regular expression of RE2). Replaces an earlier subscription.

        The callbacks take a list of partitions and may be coroutine functions. They run within `poll`, an iteration,
        `unsubscribe` and `close`. `on_assigned`: these partitions are read from now on. `on_revoked`: they are taken
        away after this callback, which may still commit. `on_lost` (else `on_revoked`): the group has given up on this
        consumer, so nothing of them can be committed any more. No callback runs for an empty list. If one raises, the
        group is told all the same, and `poll` raises its error. Raises FatalError for a pattern that is not valid.
        """
        if self._group is None:
            raise WrongState("subscribing needs a group.id")
        if (topics is None) == (pattern is None) or isinstance(topics, str):
            raise WrongState("give either a list of topics or a pattern")
        if self._member is None and self._fetcher.assigned():
            raise WrongState("partitions were assigned by `assign`: call `unsubscribe` first")
        if pattern is not None:
            try:
                expressions.check_expression(pattern)
            except Refusal as refusal:
                raise FatalError(refusal.reason, code=refusal.code) from None
        names = tuple(sorted(set(topics or ())))
        subscribed = Subscribed(names, pattern, on_assigned, on_revoked, on_lost)
        if self._member is not None:
            self._member.resubscribe(subscribed)
        self._subscribed = subscribed
        if self._member is None and self._started and not self._closed:
            self._join(subscribed)

    async def unsubscribe(self) -> None:
        """Gives up all partitions, leaves the group, and ends an assignment by `assign`. Raises what a callback
        raised."""
        self._check_usable()
        if self._member is not None:
            self._member.check_callback()
        try:
            await self._leave()
        finally:
            self._subscribed = None
            self._fetcher.assign([])

    def subscription(self) -> tuple[str, ...] | str | None:
        """Topics, or the pattern, or None."""
        subscribed = self._subscribed
        return None if subscribed is None else subscribed.pattern or subscribed.topics

    def group_metadata(self) -> ConsumerGroup:
        """This consumer's membership, for `Producer.send_offsets`. Call it for each transaction: a commit under a
        membership that has ended is refused. Without a subscription: the group alone."""
        if self._group is None:
            raise WrongState("this needs a group.id")
        if self._member is None:
            return ConsumerGroup(self._group)
        who = self._member.identity()
        return ConsumerGroup(
            self._group, who.generation, who.member_id, who.instance_id, frozenset(self._member.tenures()))

    def assign(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        """Reads these partitions and no others. Partitions that were assigned before keep their positions. New ones
        start at the group's committed offset, or as auto.offset.reset says."""
        if self._subscribed is not None:
            raise WrongState("the consumer has subscribed, so its group assigns the partitions")
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

    def seek_to_committed(self, *partitions: TopicPartition) -> None:
        """Forgets the positions. The next poll looks up the group's committed offsets, and reads on from there; without
        one, as auto.offset.reset says. Empty: all assigned partitions. Others are passed over. Use it after a
        transaction was aborted."""
        self._fetcher.forget(partitions or self.assignment())

    def positions(self) -> dict[TopicPartition, int]:
        """The positions of the assigned partitions, as far as they are known: what `commit` commits, and what a
        transaction passes to `Producer.send_offsets`. Partitions of a topic that was deleted and created again are left
        out until reading of the new topic has begun."""
        return self._fetcher.positions()

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

        A consumer that has subscribed must poll at least every max.poll.interval.ms. Its callbacks run here, before
        records are returned. Raises HapaxError for a partition that cannot be read, and for a membership that has ended
        for good.
        """
        self._check_usable()
        self._fetcher.note_processed()
        limit = max_records or self._options["max.poll.records"]
        if self._member is not None:
            return await self._member.poll(timeout_ms, limit)
        return await self._fetcher.take(timeout_ms, limit)

    async def __aiter__(self) -> AsyncIterator[Record]:
        """A position counts a record as read once the iteration has returned it."""
        while True:
            handed = self._hand_out()
            for record in handed:
                yield record
            if not handed:
                await self._poll_held()

    def _hand_out(self) -> list[Record]:
        """The next record of an earlier poll; [] if the program has to poll. May be called on any thread."""
        self._fetcher.note_processed()
        if self._member is not None and not self._member.touch():
            return []
        return self._fetcher.hand_out(1)

    async def _poll_held(self) -> None:
        self._fetcher.hold(await self.poll())

    async def fetch(
        self, partition: TopicPartition | tuple[str, int], offset: int, *, topic_id: str = "",
        max_bytes: int | None = None,
    ) -> RawFetch:
        """Returns whole record batches from `offset` on, as a broker sends them: at most max.partition.fetch.bytes,
        or `max_bytes` (the first batch is always returned), and none at the end of the log. Does not change positions.
        For readers that decode batches themselves. `topic_id`: as in `Admin.list_topics`. A topic that was created
        again under the same name is not read. Raises HapaxError, with code OFFSET_OUT_OF_RANGE where `offset` is
        outside the log."""
        self._check_usable()
        return await fetch_raw(
            self._cluster, _partition(partition), offset, timeout_ms=self._timeout,
            committed=self._options["isolation.level"] == "read_committed",
            max_bytes=max_bytes or self._options["max.partition.fetch.bytes"], topic_id=topic_id,
            replicas=self._fetcher.replicas)

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
        """Commits offsets, or the positions of all assigned partitions. Raises HapaxError; MembershipLostError if this
        consumer has subscribed and one of the partitions is not assigned to it any more.

        A position counts a record as read once `poll` or an iteration has returned it.
        """
        if not self._leaving:  # a callback commits at close
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
        who = self._member.identity() if self._member is not None and self._member.of_consumer_protocol else NO_MEMBER
        joined = version >= 9 and who.generation > 0
        if version >= 8:
            Group = Message.OffsetFetchRequestGroup
            message = Message(
                require_stable=True,
                groups=[
                    Group(
                        group_id=self._group,
                        member_id=who.member_id if joined else None,
                        member_epoch=who.generation if joined else -1,
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
        if joined and answer.error_code in _NOT_A_MEMBER:
            # The member's epoch has changed since, or is about to.
            raise RetriableError("committed offsets: the member has another epoch", code=answer.error_code)
        self._check_group(answer.error_code, "committed offsets")
        found = {}
        for topic in answer.topics:
            for p in topic.partitions:
                self._check_group(p.error_code, f"committed offset of {topic.name}-{p.partition_index}")
                if p.committed_offset >= 0:
                    partition = TopicPartition(topic.name, PartitionIndex(p.partition_index))
                    found[partition] = OffsetAndMetadata(p.committed_offset, p.metadata or "", p.committed_leader_epoch)
        return found

    async def _commit(self, offsets: Offsets | None = None, *, automatic: bool = False) -> None:
        """None: the positions; `automatic`: without records that the program may be processing. They are committed
        under the topic ids for which they apply, if the cluster has topic ids, because another topic of the same name
        may have been created since."""
        positions = self._fetcher.processed if automatic else self._fetcher.positions
        if not (offsets or (offsets is None and positions())):
            return
        assert self._group is not None
        group, member = self._group, self._member

        async def attempt() -> None:
            if offsets is None:
                await commit_once(self._cluster, group, positions(), self._fetcher.topic_ids())
            else:
                await commit_once(self._cluster, group, offsets)

        try:
            if member is None:
                await self._cluster.within(self._timeout, "committing offsets", attempt)
            else:
                await self._commit_as_member(member, offsets, positions)
        except HapaxError:
            self._counts.commits.labels("failed").value += 1
            raise
        self._counts.commits.labels("done").value += 1

    async def _commit_as_member(
        self, member: Member, offsets: Offsets | None, positions: Callable[[], dict[TopicPartition, int]]
    ) -> None:
        """A refused commit is repeated under the member's newest generation or epoch only if the partitions have been
        this consumer's all the time. Otherwise it could set another member's position back."""
        assert self._group is not None
        group = self._group
        began = member.tenures()
        tenures: dict[TopicPartition, int | None]
        if offsets is None:
            tenures = {p: began[p] for p in positions() if p in began}
            if not tenures and not positions():
                return
            tenures = tenures or dict.fromkeys(positions())
        else:
            tenures = {_partition(p): began.get(_partition(p)) for p in offsets}

        async def attempt() -> None:
            member.check()
            now = member.tenures()
            gone = [p for p, tenure in tenures.items() if tenure is None or now.get(p) != tenure]
            if gone:
                raise MembershipLostError(
                    f"{gone[0].topic}-{gone[0].partition} is not assigned to this member of group {group!r}, or not any"
                    " more")
            committed: Any = offsets
            if offsets is None:
                committed = {p: at for p, at in positions().items() if p in tenures}
            who = member.identity()
            try:
                await commit_once(
                    self._cluster, group, committed, self._fetcher.topic_ids() if offsets is None else None, who,
                    with_epoch=member.of_consumer_protocol)
            except HapaxError as error:
                if error.code == ErrorCode.FENCED_INSTANCE_ID:
                    _, _, said = error.message.partition("FENCED_INSTANCE_ID: ")
                    raise group_error(group, error.code, said or None, who.instance_id) from error
                if error.code not in _NOT_A_MEMBER:
                    raise
                if await member.ask_again(who):
                    raise RetriableError(f"committing offsets: {error.message}", code=error.code) from error
                raise MembershipLostError(
                    f"committing offsets of group {group!r} as {who.member_id!r}, generation {who.generation}:"
                    f" {error.message}", code=error.code) from error

        await self._cluster.within(self._timeout, "committing offsets", attempt)

    async def _commit_revoked(self) -> None:
        """Called by the member before partitions are given up."""
        if self._options["enable.auto.commit"]:
            try:
                await self._commit(automatic=True)
            except HapaxError as error:
                log.warning("positions were not committed before a rebalance: %s", error)

    def _join(self, subscribed: Subscribed) -> None:
        assert self._group is not None
        self._member = Member(self._cluster, self._group, self._fetcher, self._commit_revoked, subscribed)
        self._member.start()

    async def _leave(self) -> None:
        member = self._member
        if member is not None:
            member.check_callback()
            self._leaving = True
            try:
                await member.leave()
            finally:
                self._leaving = False
                self._member = None

    def _check_group(self, code: int, what: str) -> None:
        assert self._group is not None
        check_group(self._cluster, self._group, code, what)

    async def _commit_from_time_to_time(self) -> None:
        committed: dict[TopicPartition, int] = {}
        while True:
            await asyncio.sleep(self._options["auto.commit.interval.ms"] / 1000)
            positions = self._fetcher.processed()
            if positions and positions != committed:
                try:
                    await self._commit(automatic=True)
                    committed = positions
                except HapaxError as error:
                    log.warning("positions were not committed, next attempt follows: %s", error)


def _partition(given: TopicPartition | tuple[str, int]) -> TopicPartition:
    return TopicPartition(given[0], PartitionIndex(given[1]))
