"""One process of a copy: takes its share of the partitions, and copies them one transaction after another.

The processes of a copy are members of a consumer group on the target, which assigns the target's partitions to them. Of
each partition that a process is assigned, it copies the source's partition of the same number. The group's committed
offsets are positions in the *source*, committed in the transactions that hold the records. So:

* a position can never disagree with the records, whatever dies when;
* a process that has lost a partition cannot commit to it, because its generation of the group is refused;
* a process that was replaced by another one of the same `--instance` learns that from its group, and ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from hapax.client.admin import Admin
from hapax.client.backoff import Backoff
from hapax.client.cluster import ClusterClient
from hapax.client.consumer import Consumer
from hapax.client.coordination import OffsetAndMetadata
from hapax.client.environment import ClientPorts, RealPorts
from hapax.client.errors import FatalError, FencedError, HapaxError, RetriableError
from hapax.client.metadata import Topic
from hapax.client.records import DeliveryReport
from hapax.client.settings import consumer_options, known_to
from hapax.copy.batches import Held, Outgoing, by_key, for_target
from hapax.copy.epochs import epoch_ends
from hapax.copy.groups import Copied, GroupPositions
from hapax.copy.metrics import CopyCounts, PartitionCount, State
from hapax.copy.reader import Reader, Reading
from hapax.copy.settings import CopySettings
from hapax.copy.topics import Topics
from hapax.copy.writer import Batch, Refused, Stopped, Writer
from hapax.core.copy.cut import cut
from hapax.core.copy.position import Kind, Position, Source, Trouble, judge
from hapax.core.copy.topics import Wanted
from hapax.core.copy.translate import Run, Runs
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.types import PartitionIndex, TopicPartition
from hapax.runtime import supervision

log = logging.getLogger("hapax.copy")

_IDLE_S: Final = 0.1
"""How often the group is heard while there is nothing to copy."""
_BATCH_BYTES: Final = 1 << 19
"""Of a batch of records that are chosen by key, before compression."""
_EMPTY_MS: Final = 1_000
"""Age at which positions are committed that only passed markers and aborted records."""
_STUCK_MS: Final = 2_000
"""If nothing was copied for this time, a transaction that fills the buffer is split."""
_AGAIN_MS: Final = 10_000
"""Interval at which a partition in trouble is tried again, by a copy that follows."""
_LEAVE_S: Final = 3.0
_FENCED_S: Final = 6.0
"""How long a fenced producer waits for its group's reason: two heartbeats, and a pause."""
_GROUP_SETTINGS: Final = {
    # A static member of the classic protocol is replaced at once by a new process of its instance.
    "group.protocol": "classic", "session.timeout.ms": 10_000, "heartbeat.interval.ms": 1_000,
    "enable.auto.commit": False, "auto.offset.reset": "earliest",
}  # fmt: skip
_WRITER_SETTINGS: Final = {
    "buffer.memory": 256 << 20, "max.request.size": 16 << 20, "transaction.timeout.ms": 60_000, "max.block.ms": 5_000,
}  # fmt: skip
_READER_SETTINGS: Final = {
    "isolation.level": "read_committed", "fetch.max.bytes": 4 << 20, "max.partition.fetch.bytes": 1 << 20,
    "metadata.max.age.ms": 10_000,
}  # fmt: skip


class PartitionResult(NamedTuple):
    topic: str
    """In the source."""
    partition: int
    target: str
    records: int
    bytes: int
    position: int
    """Offset of the next record to copy."""
    end: int
    """Where the partition ended when the copy began; -1: the copy follows."""
    lost: int
    """Offsets that could not be copied, and were left out."""
    trouble: str


class _Load:
    """The records of one transaction."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.sizes: dict[TopicPartition, tuple[int, int]] = {}
        """Share -> (records, bytes)."""
        self._spans: list[tuple[TopicPartition, tuple[tuple[int, int], ...]]] = []

    def add(self, share: TopicPartition, target: TopicPartition, outgoing: Outgoing) -> None:
        self.batches.append((target, outgoing.data, outgoing.records))
        records, size = self.sizes.get(share, (0, 0))
        self.sizes[share] = records + outgoing.records, size + len(outgoing.data)
        self._spans.append((share, outgoing.spans))

    def runs(self, reports: Iterable[DeliveryReport]) -> dict[TopicPartition, list[Run]]:
        """`reports`: of each batch's first record."""
        found: dict[TopicPartition, Runs] = {}
        for (share, spans), report in zip(self._spans, reports, strict=True):
            target = report.offset
            for source, records in spans:
                found.setdefault(share, Runs()).add(Run(source, target, records))
                target += records
        return {share: list(runs) for share, runs in found.items()}


class Copier:
    """`await run()`; `stop()` ends it after the transaction in progress."""

    def __init__(self, settings: CopySettings, *, ports: ClientPorts | None = None) -> None:
        settings.check()
        self._settings = settings
        self._ports = ports or RealPorts()
        self._writer = Writer(
            {**known_to("p", settings.target), **_WRITER_SETTINGS, "transactional.id": settings.transactional_id},
            self._ports, lambda: self._stopping)
        self._news = asyncio.Event()
        self._make_clients()
        self._stopping = self._fenced = self._connected = False
        self._owned: set[TopicPartition] = set()
        """Shares: partitions of the target that the group has assigned to this process."""
        self._pending: set[TopicPartition] = set()
        """Owned shares whose positions are to be read."""
        self._troubles: dict[TopicPartition, tuple[Trouble, int]] = {}
        """Of shares that are not copied, with the time of the next attempt."""
        self._unclaimed: set[TopicPartition] = set()
        """Shares without a committed position."""
        self._ends: dict[TopicPartition, int] = {}
        """Of a copy that does not follow, by share."""
        self._open_since: dict[TopicPartition, tuple[int, int]] = {}
        """Last stable offset of a share that waits for an open transaction, and since when."""
        self._admitting: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._progress_ms = 0
        self._empty_since = -1
        self.metrics = CopyCounts(self._lags, self._state)
        self._counts: dict[TopicPartition, PartitionCount] = {}
        self._sources: dict[TopicPartition, TopicPartition] = {}
        """Share -> partition of the source."""

    def stop(self) -> None:
        self._stopping = True
        self._news.set()

    # --- life -----------------------------------------------------------------------------------------------------

    def _make_clients(self) -> None:
        settings, ports = self._settings, self._ports
        self._source = Admin(known_to("a", settings.source), ports=ports)
        self._target = Admin(known_to("a", settings.target), ports=ports)
        self._reading = ClusterClient(
            consumer_options({**known_to("c", settings.source), **_READER_SETTINGS}), ports)
        self._group = Consumer({
            **known_to("c", settings.target), **_GROUP_SETTINGS, "group.id": settings.group,
            "group.instance.id": settings.instance}, ports=ports)
        self._topics = Topics(settings, self._source, self._target)
        self._reader = Reader(self._reading, settings.transaction_bytes, self._news.set)
        self._lookup = Consumer({**known_to("c", settings.target), "isolation.level": "read_committed"}, ports=ports)
        self._positions = (
            GroupPositions(settings, self._source, self._target, self._lookup) if settings.groups else None)

    async def run(self) -> list[PartitionResult]:
        """Returns when everything is copied, or after `stop`. Raises FencedError if another process has taken over,
        and HapaxError where a cluster does not let the copier in, or (if the copy does not follow) cannot be reached
        at the start."""
        try:
            if await self._connect():
                self._reader.start()
                await self._copy()
                await self._copy_groups()
        except Stopped:
            log.warning(
                "stopped before the target has answered whether the last transaction is committed; the next start of"
                " this copy asks it, and continues after it if it is")
        finally:
            results = self.results()
            await self._close()
        return results

    async def _connect(self) -> bool:
        """False: stopped before. A copy that follows waits for the clusters without a limit."""
        backoff, said = Backoff(self._reading.options, self._ports), ""
        while not self._stopping:
            try:
                await self._source.start()
                await self._target.start()
                await self._reading.start()
                await self._discover_first()
                await self._writer.start()
                await self._group.start()
                if self._positions is not None:
                    await self._lookup.start()
                    await self._positions.prepare()
                self._subscribe()
                self._connected = True
                self._progress_ms = self._now()
                if self._settings.follow:
                    self._tasks = [supervision.keep(self._discover_for_ever, "copy-discover", self._ports.random)]
                    if self._positions is not None:
                        self._tasks.append(
                            supervision.keep(self._copy_groups_for_ever, "copy-groups", self._ports.random))
                return True
            except RetriableError as error:
                if not self._settings.follow:
                    raise
                if str(error) != said:
                    log.warning("waiting for both clusters: %s", error)
                said = str(error)
            await self._close()
            self._make_clients()
            await asyncio.sleep(backoff.seconds())
        return False

    async def _close(self) -> None:
        await supervision.end(self._admitting, *self._tasks)
        self._admitting, self._tasks = None, []
        member = self._group.group_metadata()
        for closing in (self._reader.close, self._reading.close, self._writer.close, self._group.close):
            await closing()
        if member.member_id and not self._fenced:
            await self._leave(member.member_id)
        for closing in (self._lookup.close, self._source.close, self._target.close):
            await closing()

    async def _leave(self, member_id: str) -> None:
        """The group would keep a static member's partitions until its session ends."""
        try:
            async with asyncio.timeout(_LEAVE_S):
                await self._target.remove_group_member(self._settings.group, member_id, self._settings.instance)
        except (HapaxError, TimeoutError) as error:
            log.info("leaving the group was not confirmed: %r", error)

    def waits_for(self) -> str:
        """What the copier waits for before it copies. Empty: it copies."""
        return "" if self._connected else "both clusters have not answered yet"

    def results(self) -> list[PartitionResult]:
        found = []
        for share, source in sorted(self._sources.items()):
            count = self._count(share)
            trouble = self._troubles.get(share)
            wanted = self._topics.wanted.get(share.topic)
            found.append(PartitionResult(
                source.topic, source.partition, share.topic if wanted is None else wanted.target, count.records,
                count.bytes, count.position, self._ends.get(share, -1), count.lost,
                "" if trouble is None else trouble[0].message))
        return found

    def _now(self) -> int:
        return self._ports.clock.monotonic_ms()

    # --- topics ---------------------------------------------------------------------------------------------------

    async def _discover_first(self) -> None:
        wanted = await self._topics.discover()
        if not wanted and not self._settings.follow:
            reasons = "; ".join(self._topics.troubles.values())
            raise FatalError(
                reasons or f"the source has no topic that matches {self._settings.topics!r}",
                code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        self._map(wanted)
        if not self._settings.follow:
            offsets = await self._source.partition_offsets(self._sources.values())
            self._ends = {share: offsets[source].high_watermark for share, source in self._sources.items()}

    def _map(self, wanted: Iterable[Wanted]) -> None:
        for each in wanted:
            for number in range(each.partitions):
                share = TopicPartition(self._topics.share_topic(each), PartitionIndex(number))
                self._sources[share] = TopicPartition(each.source, PartitionIndex(number))
        self._reading.follow(each.source for each in wanted)

    def _subscribe(self) -> None:
        topics = sorted({share.topic for share in self._sources})
        if topics:
            self._group.subscribe(topics, on_assigned=self._assigned, on_revoked=self._revoked)

    async def _discover_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._settings.discover_ms / 1000)
            try:
                before = set(self._sources)
                self._map(await self._topics.discover())
            except HapaxError as error:
                log.warning("the topics could not be looked up, next attempt follows: %s", error)
                continue
            new = set(self._sources) - before
            if {share.topic for share in new} - {share.topic for share in before}:
                self._subscribe()
            self._pending |= new & self._owned
            self._news.set()

    async def _copy_groups_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._settings.groups_ms / 1000)
            try:
                await self._copy_groups()
            except HapaxError as error:
                log.warning("positions of groups could not be copied, next attempt follows: %s", error)

    async def _copy_groups(self) -> None:
        if self._positions is None or self._stopping:
            return
        shares = {}
        for share in self._owned:
            reading = self._reader.readings.get(self._sources[share]) if share in self._sources else None
            if reading is not None and share not in self._unclaimed:
                shares[reading.partition] = Copied(reading.partition, share, reading.position)
        await self._positions.copy(shares)
        self.metrics.groups.value = self._positions.committed

    # --- shares ---------------------------------------------------------------------------------------------------

    def _assigned(self, shares: list[TopicPartition]) -> None:
        self._group.pause(*shares)
        for share in shares:
            self._group.seek(share, 0)  # so that the consumer looks no position up
        self._owned.update(shares)
        self._pending.update(shares)
        log.info("assigned: %s", _listed(shares))

    def _revoked(self, shares: list[TopicPartition]) -> None:
        """Runs between two transactions, so nothing is under way."""
        self._owned.difference_update(shares)
        for share in shares:
            self._forget(share)
        log.info("given up: %s", _listed(shares))

    def _forget(self, share: TopicPartition) -> None:
        self._pending.discard(share)
        self._troubles.pop(share, None)
        self._unclaimed.discard(share)
        if self._positions is not None:
            self._positions.forget(share)
        source = self._sources.get(share)
        if source is not None:
            self._reader.drop(source)

    def _read_positions_again(self) -> None:
        for share in self._owned:
            source = self._sources.get(share)
            if source is not None and source in self._reader.readings:
                self._reader.drop(source)
                self._pending.add(share)
        self._unclaimed.clear()

    def _admit_soon(self) -> None:
        now = self._now()
        for share, (_, again) in list(self._troubles.items()):
            if self._settings.follow and again <= now and share in self._owned:
                self._pending.add(share)
        self._pending = {each for each in self._pending if each in self._sources}
        if self._pending and self._admitting is None:
            self._admitting = supervision.once(
                self._admit(sorted(self._pending)), "copy-positions", expected=(HapaxError,))
            self._admitting.add_done_callback(self._admitted)

    def _admitted(self, done: asyncio.Task[None]) -> None:
        self._admitting = None
        self._news.set()

    async def _admit(self, shares: list[TopicPartition]) -> None:
        """Reads the positions of owned shares, and begins to read the source there. What fails is tried again."""
        try:
            committed = await self._group.committed(shares)
            topics = await self._reading.existing({self._sources[each].topic for each in shares})
        except HapaxError as error:
            log.warning("positions could not be read, next attempt follows: %s", error)
            await asyncio.sleep(1)
            return
        for share in shares:
            try:
                await self._admit_one(share, committed.get(share), topics.get(self._sources[share].topic))
            except HapaxError as error:
                self._in_trouble(share, Trouble(Kind.SOURCE_REFUSES, f"{_name(self._sources[share])}: {error}"))

    async def _admit_one(self, share: TopicPartition, committed: OffsetAndMetadata | None, topic: Topic | None) -> None:
        source = self._sources[share]
        if topic is None or source.partition not in topic.partitions:
            self._in_trouble(share, Trouble(
                Kind.GONE, f"{_name(source)}: the source does not have it any more. What was copied stays in the"
                " target; if the topic is made again, delete it in the target to copy the new one"))
            return
        offsets = (await self._source.partition_offsets([source]))[source]
        topic_id = str(topic.topic_id) if topic.topic_id.int else ""
        cluster = self._reading.cluster_id or ""
        name = _name(source)
        if committed is None:
            trouble = await self._unused(share, name)
            position = Position(offsets.first, cluster, source.topic, topic_id)
        else:
            try:
                position = Position.read(committed.offset, committed.metadata)
            except ValueError as error:
                self._in_trouble(share, Trouble(
                    Kind.NOT_OURS, f"{_name(share)}: group {self._settings.group!r} on the target has a committed"
                    f" offset, but {error}. Choose another --name, or delete the group's offsets"))
                return
            ends = await epoch_ends(
                self._reading, {source: position.epoch} if position.epoch >= 0 else {},
                self._reading.options["default.api.timeout.ms"])
            now = Source(cluster, topic_id, offsets.first, offsets.high_watermark, ends.get(source, -1))
            trouble = judge(name, position, source.topic, now)
        if self._positions is not None and trouble is None:
            await self._positions.load(share)
        if share not in self._owned or share not in self._pending:
            return
        offset = position.offset
        if trouble is not None and trouble.go_on_at > offset and self._settings.skip_lost:
            self._count(share).lose(trouble.go_on_at - offset)
            log.error("%s (left out, as --on-lost skip says)", trouble.message)
            offset, trouble = trouble.go_on_at, None
        if trouble is not None:
            self._in_trouble(share, trouble)
            return
        self._pending.discard(share)
        self._troubles.pop(share, None)
        if committed is None:
            self._unclaimed.add(share)
        reading = self._reader.add(source, offset, topic.topic_id, position.epoch)
        reading.caught_up_ms = self._now()
        self._count(share).position = offset
        reading.high_watermark, reading.last_stable = offsets.high_watermark, offsets.last_stable
        self._progress_ms = self._now()

    async def _unused(self, share: TopicPartition, name: str) -> Trouble | None:
        """A partition of the target without a position must hold nothing: who knows what of the source it has."""
        if self._settings.into_existing or self._settings.by_key:
            return None
        end = (await self._target.partition_offsets([share]))[share].high_watermark
        if end == 0:
            return None
        return Trouble(
            Kind.NOT_EMPTY,
            f"{name}: {_name(share)} on the target already holds offsets up to {end}, and group"
            f" {self._settings.group!r} has no position for it: it was not filled by this copy, or its position was"
            " deleted or has expired. Copying would double what it has. Delete the topic on the target, choose another"
            " --prefix, or give --into-existing to copy everything behind what is there")

    def _in_trouble(self, share: TopicPartition, trouble: Trouble) -> None:
        former = self._troubles.get(share)
        self._pending.discard(share)
        self._troubles[share] = trouble, self._now() + _AGAIN_MS
        self._reader.drop(self._sources[share])
        if former is None or former[0].message != trouble.message:
            log.error("%s", trouble.message)

    def _count(self, share: TopicPartition) -> PartitionCount:
        found = self._counts.get(share)
        if found is None:
            found = self._counts[share] = PartitionCount(self.metrics, self._sources[share])
        return found

    def _lags(self) -> Iterable[tuple[TopicPartition, int, float]]:
        """Partition of the source, its lag in offsets, and in seconds."""
        now = self._now()
        for reading in self._reader.readings.values():
            behind = max(reading.high_watermark - reading.position, 0) if reading.high_watermark >= 0 else 0
            yield reading.partition, behind, 0.0 if reading.caught_up_ms == now else (now - reading.caught_up_ms) / 1000

    def _state(self) -> State:
        kinds = Counter(trouble.kind.value for trouble, _ in self._troubles.values())
        return State(len(self._owned), self._reader.bytes, kinds)

    # --- copying --------------------------------------------------------------------------------------------------

    async def _copy(self) -> None:
        backoff = Backoff(self._reading.options, self._ports)
        while not self._stopping:
            self._news.clear()
            await self._poll_group(0)
            self._admit_soon()
            await self._look_at_readings()
            try:
                copied = await self._copy_some()
                if copied:
                    backoff = Backoff(self._reading.options, self._ports)
            except Refused as refused:
                for share in self._shares_of(refused.partition):
                    self._in_trouble(share, Trouble(
                        Kind.TARGET_REFUSES, f"{_name(refused.partition)} on the target: {refused.error}"))
                await self._start_over(refused.error)
                continue
            except HapaxError as error:
                await self._start_over(error)
                await asyncio.sleep(backoff.seconds())
                continue
            if copied:
                continue
            if not self._settings.follow and await self._is_done():
                return
            try:
                async with asyncio.timeout(_IDLE_S):
                    await self._news.wait()
            except TimeoutError:
                pass

    async def _poll_group(self, timeout_ms: int) -> None:
        """Runs the callbacks. Raises FencedError, FatalError."""
        try:
            await self._group.poll(timeout_ms)
        except FencedError as error:
            self._fenced = True
            raise FencedError(
                f"another process of copy {self._settings.name!r} has started with --instance"
                f" {self._settings.instance!r} and has taken over ({error.message})", code=error.code,
                advice="Nothing is lost or doubled. To share the work between processes, give each an --instance of its"
                " own") from error

    def _shares_of(self, partition: TopicPartition) -> list[TopicPartition]:
        """The shares that write to a partition of the target."""
        if partition in self._owned:
            return [partition]
        return [share for share in sorted(self._owned)
                if share.topic in self._topics.wanted and self._topics.wanted[share.topic].target == partition.topic]

    async def _start_over(self, error: HapaxError) -> None:
        """After a transaction that failed, or whose outcome is not known: the committed positions say."""
        log.warning("a transaction failed, and the positions are read again: %s", error)
        self.metrics.failed.value += 1
        self._read_positions_again()
        try:
            await self._writer.abandon()
        except FencedError as fenced:
            await self._explain(fenced)
            await self._writer.start()

    async def _explain(self, fenced: FencedError) -> None:
        """Raises FencedError if another process has taken this one's place. Otherwise only the transaction was
        aborted, for example because it took too long."""
        limit = asyncio.get_running_loop().time() + _FENCED_S
        while asyncio.get_running_loop().time() < limit and not self._stopping:
            await self._poll_group(200)
        log.info("the producer was fenced, and no other process has the same instance: %s", fenced)

    async def _look_at_readings(self) -> None:
        """Partitions that cannot be read further, once everything that was read is copied."""
        now = self._now()
        for share in sorted(self._owned):
            source = self._sources.get(share)
            reading = None if source is None else self._reader.readings.get(source)
            if reading is None:
                continue
            if reading.position >= reading.last_stable:
                reading.caught_up_ms = now
            if reading.held:
                continue
            if reading.trouble is not None:
                trouble = reading.trouble
                if trouble.go_on_at > reading.position and self._settings.skip_lost:
                    self._count(share).lose(trouble.go_on_at - reading.position)
                    log.error("%s (left out, as --on-lost skip says)", trouble.message)
                    self._reader.continue_at(reading, trouble.go_on_at)
                else:
                    self._in_trouble(share, trouble)
            elif reading.range_unclear:
                self._reader.drop(reading.partition)
                self._pending.add(share)

    async def _copy_some(self) -> bool:
        """One transaction. False: there is nothing to copy now."""
        readings = {
            share: reading for share in self._owned
            if (source := self._sources.get(share)) is not None
            and (reading := self._reader.readings.get(source)) is not None}
        now = self._now()
        counts = cut({share: each.lane for share, each in readings.items()}, now)
        self._reader.set_hurry(any(count < len(readings[share].held) for share, count in counts.items()))
        taken = {share: count for share, count in counts.items() if count}
        if not taken:
            self._split_if_stuck(readings, now)
        with_data = any(
            held.data is not None for share, count in taken.items()
            for held, _ in zip(readings[share].held, range(count), strict=False))
        unclaimed = [share for share in readings if share in self._unclaimed]
        if not with_data and not unclaimed:
            if not taken:
                self._empty_since = -1
                return False
            if self._empty_since < 0:
                self._empty_since = now
            if now - self._empty_since < _EMPTY_MS and self._settings.follow:
                return False
        self._empty_since = -1
        self._progress_ms = now
        # A partition has a position before it has records: of a first transaction that is aborted, its records stay in
        # the log, and nothing would say that they are this copy's.
        await self._transfer(readings, {} if unclaimed else taken, unclaimed)
        return True

    def _split_if_stuck(self, readings: Mapping[TopicPartition, Reading], now: int) -> None:
        """A transaction that is larger than the buffer cannot be kept whole."""
        full = [each for each in readings.values() if each.held and self._reader.is_full(each)]
        if not full or now - self._progress_ms < _STUCK_MS:
            return
        writer = max(full, key=lambda each: each.bytes).lane.split_first()
        if writer is None:
            return
        for each in readings.values():
            each.lane.split(writer)
        self.metrics.split.value += 1
        log.warning(
            "a transaction of the source (producer id %d, epoch %d) is larger than %d bytes can hold together with what"
            " it waits for, and becomes visible in the copy in several steps", *writer,
            self._settings.transaction_bytes)

    async def _transfer(
        self, readings: Mapping[TopicPartition, Reading], taken: Mapping[TopicPartition, int],
        unclaimed: Iterable[TopicPartition],
    ) -> None:
        load = _Load()
        after: dict[TopicPartition, tuple[int, int]] = {}
        for share, count in taken.items():
            reading = readings[share]
            held = self._reader.take(reading, count)
            try:
                if self._settings.by_key:
                    await self._fill_by_key(load, share, reading, held)
                else:
                    self._fill(load, share, reading, held)
            except Refusal as refusal:  # the CRC is right, so the source holds it like this
                raise Refused(share, FatalError(
                    f"the records from offset {reading.position} of the source on cannot be decoded: {refusal}",
                    code=ErrorCode.CORRUPT_MESSAGE)) from refusal
            after[share] = held[-1].header.next_offset, held[-1].header.leader_epoch
        positions = {}
        for share in (*after, *unclaimed):
            reading = readings[share]
            positions[share] = self._position(
                share, reading, *after.get(share, (reading.position, reading.epoch)))
        groups, runs = self._positions, dict[TopicPartition, list[Run]]()

        def where(reports: list[DeliveryReport]) -> list[Batch]:
            runs.update(load.runs(reports))
            return groups.batch(runs, self._ports.clock.now_ms()) if groups is not None and runs else []

        await self._writer.write(
            load.batches, positions, self._group.group_metadata, None if groups is None else where)
        if groups is not None:
            groups.copied(runs)
        self.metrics.transactions.value += 1
        self._unclaimed.difference_update(positions)
        for share, (records, size) in load.sizes.items():
            self._count(share).add(records, size)
        for share, (offset, epoch) in after.items():
            readings[share].position, readings[share].epoch = offset, epoch
            self._count(share).position = offset

    def _fill(self, load: _Load, share: TopicPartition, reading: Reading, held: Iterable[Held]) -> None:
        for each in held:
            outgoing = for_target(each, reading.position)
            if outgoing is not None:
                load.add(share, share, outgoing)

    async def _fill_by_key(self, load: _Load, share: TopicPartition, reading: Reading, held: Iterable[Held]) -> None:
        target = self._topics.wanted[share.topic].target
        found = by_key(
            ((each, reading.position) for each in held), reading.partition.partition,
            await self._writer.partitions_of(target), _BATCH_BYTES)
        for number, batches in found.items():
            for outgoing in batches:
                load.add(share, TopicPartition(target, PartitionIndex(number)), outgoing)

    def _position(self, share: TopicPartition, reading: Reading, offset: int, epoch: int) -> OffsetAndMetadata:
        topic_id = str(reading.topic_id) if reading.topic_id.int else ""
        position = Position(offset, self._reading.cluster_id or "", self._sources[share].topic, topic_id, epoch)
        return OffsetAndMetadata(offset, position.metadata())

    # --- the end --------------------------------------------------------------------------------------------------

    async def _is_done(self) -> bool:
        """Whether everything that the source held at the start is copied, or cannot be copied."""
        if self._admitting is not None or self._pending:
            return False
        others = []
        for share in self._sources:
            if share in self._troubles:
                continue
            reading = self._reader.readings.get(self._sources[share])
            if reading is None:
                others.append(share)
            elif not self._reaches_end(share, reading):
                return False
        if not others:
            return True
        if not self._owned and not self._group.group_metadata().generation > 0:
            return False
        committed = await self._group.committed(others)
        return all(share in committed and committed[share].offset >= self._ends[share] for share in others)

    def _reaches_end(self, share: TopicPartition, reading: Reading) -> bool:
        end = self._ends[share]
        if reading.position >= end or end == reading.first:
            return True
        if reading.held or reading.last_stable < 0 or reading.next_fetch < reading.last_stable:
            self._open_since.pop(share, None)
            return False
        stable, since = self._open_since.get(share, (-1, 0))
        if stable != reading.last_stable:
            self._open_since[share] = reading.last_stable, self._now()
            return False
        if self._now() - since < self._settings.open_wait_ms:
            return False
        if self._now() - since < self._settings.open_wait_ms + 60_000:
            log.warning(
                "%s: from offset %d on, the source has an open transaction, which is left out. Run the copy again once"
                " it has ended", reading.name, reading.last_stable)
            self._ends[share] = reading.position
        return True


def _name(partition: TopicPartition) -> str:
    return f"{partition.topic}-{partition.partition}"


def _listed(shares: Iterable[TopicPartition]) -> str:
    names = sorted(_name(each) for each in shares)
    return ", ".join(names[:8]) + (f", … ({len(names)})" if len(names) > 8 else "")
