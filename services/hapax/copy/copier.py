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
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from hapax.client.backoff import Backoff
from hapax.client.coordination import OffsetAndMetadata
from hapax.client.environment import ClientPorts, RealPorts
from hapax.client.errors import FatalError, FencedError, HapaxError, RetriableError
from hapax.client.records import DeliveryReport
from hapax.client.settings import known_to
from hapax.copy.batches import MERGED_BYTES, Held, by_key, merged
from hapax.copy.clients import Clients
from hapax.copy.groups import GroupPositions
from hapax.copy.load import Load
from hapax.copy.metrics import CopyCounts
from hapax.copy.reader import Reader, Reading
from hapax.copy.report import silence, topic_reports
from hapax.copy.saved import SavedPositions
from hapax.copy.settings import CopySettings
from hapax.copy.shares import Shares, name_of
from hapax.copy.topics import Topics
from hapax.copy.writer import Batch, Refused, Stopped, Writer
from hapax.core.copy.cut import QUIET_MS, Lane, cut, split
from hapax.core.copy.position import Kind, Position, Trouble
from hapax.core.copy.translate import Run
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.types import PartitionIndex, TopicPartition
from hapax.runtime import supervision

log = logging.getLogger("hapax.copy")

_IDLE_S: Final = 0.1
"""How often the group is heard while there is nothing to copy."""
_BATCH_BYTES: Final = 1 << 19
"""Of a batch of records that are chosen by key, before compression."""
_LEAST_BATCH_BYTES: Final = 256
_SMALLER: Final = 4
"""By what the batches for a topic become smaller, where the target finds one too large."""
_TOO_LARGE: Final = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE)
_EMPTY_MS: Final = 1_000
"""Age at which positions are committed that only passed markers and aborted records."""
_STUCK_MS: Final = 2_000
"""If nothing was copied for this time, a transaction that fills the buffer is split."""
_FENCED_S: Final = 6.0
"""How long a fenced producer waits for its group's reason: two heartbeats, and a pause."""
_STANDSTILL_MS: Final = 30_000
"""Longer than it takes the group to find out that a process was killed."""
_WRITER_SETTINGS: Final = {
    "buffer.memory": 256 << 20, "max.request.size": 16 << 20, "transaction.timeout.ms": 60_000, "max.block.ms": 5_000,
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


class Copier:
    """`await run()`; `stop()` ends it after the transaction in progress."""

    def __init__(self, settings: CopySettings, *, ports: ClientPorts | None = None) -> None:
        settings.check()
        self._settings = settings
        self._ports = ports or RealPorts()
        self._stopping = self._fenced = self._connected = False
        self._made_again = False
        """A topic of the target was deleted and made again."""
        self._started_ms = self._ports.clock.now_ms()
        self._unreached = {"sourceError": "", "targetError": ""}
        """Why the clusters could not be connected to; empty: they could, or it has not been tried."""
        self._news = asyncio.Event()
        self._ends: dict[TopicPartition, int] = {}
        """Of a copy that does not follow, by share."""
        self._open_since: dict[TopicPartition, tuple[int, int]] = {}
        """Last stable offset of a share that waits for an open transaction, and since when."""
        self._limits: dict[str, int] = {}
        """Topic of the target -> bytes of a batch that is put together of several, where it takes no larger ones."""
        self._others: tuple[dict[TopicPartition, int] | None, int] = None, 0
        """Positions of the shares of other processes when this one last had nothing more to do, and since when they are
        the same."""
        self._passed_over: set[TopicPartition] = set()
        """Shares whose partition was not read far enough for the transactions that are copied."""
        self._tasks: list[asyncio.Task[None]] = []
        self._progress_ms = 0
        self._empty_since = -1
        self.metrics = CopyCounts(lambda: self._shares.lags(), lambda: self._shares.state())
        self._writer = Writer(
            {**known_to("p", settings.target), **_WRITER_SETTINGS, "transactional.id": settings.transactional_id},
            self._ports, lambda: self._stopping)
        self._compose()

    def _compose(self) -> None:
        settings = self._settings
        self._clients = clients = Clients(settings, self._ports)
        self._topics = Topics(settings, clients.source, clients.target)
        self._reader = Reader(clients.reading, settings.transaction_bytes, self._news.set)
        self._groups = (
            GroupPositions(settings, clients.source, clients.target, clients.lookup) if settings.groups else None)
        self._saved = SavedPositions(
            settings.positions_topic, clients.target, clients.lookup, settings.replication_factor)
        self._shares = Shares(
            settings, clients, self._topics, self._reader, self._saved, self._groups, self.metrics, self._news.set)

    def stop(self) -> None:
        self._stopping = True
        self._news.set()

    # --- life -----------------------------------------------------------------------------------------------------

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
        backoff, said = Backoff(self._clients.reading.options, self._ports), ""
        while not self._stopping:
            try:
                await self._clients.start()
                await self._clients.check()
                await self._discover_first()
                await self._writer.start()
                await self._saved.prepare()
                if self._groups is not None:
                    await self._groups.prepare()
                self._shares.subscribe()
            except RetriableError as error:
                if not self._settings.follow:
                    raise
                if str(error) != said:
                    log.warning("waiting for both clusters: %s", error)
                said = str(error)
                side, other = ("targetError", "sourceError")[::1 if self._clients.source_answers else -1]
                self._unreached = {side: said, other: ""}
                await self._close()
                self._compose()
                await asyncio.sleep(backoff.seconds())
                continue
            self._connected = True
            self._unreached = {"sourceError": "", "targetError": ""}
            self._progress_ms = self._now()
            if self._settings.follow:
                self._tasks = [supervision.keep(self._discover_for_ever, "copy-discover", self._ports.random)]
                if self._groups is not None:
                    self._tasks.append(
                        supervision.keep(self._copy_groups_for_ever, "copy-groups", self._ports.random))
            return True
        return False

    async def _close(self) -> None:
        await supervision.end(*self._tasks)
        self._tasks = []
        await self._shares.close()
        await self._reader.close()
        await self._writer.close()
        await self._clients.close(leave=not self._fenced)

    def waits_for(self) -> str:
        """What the copier waits for before it copies. Empty: it copies."""
        return "" if self._connected else "both clusters have not answered yet"

    def report(self) -> dict[str, Any]:
        """What /status tells. `startedMs`: in ms since 1970; `records`: copied since then; `matching`: the number of
        topics on the source that match, here or in other copiers, once it is known."""
        told = {"startedMs": self._started_ms, "records": sum(each.records for each in self._shares.counts.values())}
        if not self._connected:
            return {**told, **self._unreached, "topics": []}
        return {**told, "matching": len(self._topics.wanted), "sourceError": silence(self._shares, self._now()),
                "targetError": "", "topics": topic_reports(self._settings, self._shares, self._topics)}

    def results(self) -> list[PartitionResult]:
        found = []
        for share, source in sorted(self._shares.sources.items()):
            count = self._shares.count(share)
            trouble = self._shares.troubles.get(share)
            found.append(PartitionResult(
                source.topic, source.partition, self._topics.data_topic(share.topic), count.records,
                count.bytes, count.position, self._ends.get(share, -1), count.lost,
                "" if trouble is None else trouble[0].message))
        return found

    def _now(self) -> int:
        return self._ports.clock.monotonic_ms()

    # --- topics and groups ----------------------------------------------------------------------------------------

    async def _discover_first(self) -> None:
        wanted = await self._topics.discover()
        if not wanted and not self._settings.follow:
            reasons = "; ".join(self._topics.troubles.values())
            raise FatalError(
                reasons or f"the source has no topic that matches {self._settings.topics!r}",
                code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        self._shares.map(wanted)
        if not self._settings.follow:
            sources = self._shares.sources
            offsets = await self._clients.source.listed_offsets(sources.values())
            self._ends = {share: offsets[source].high_watermark for share, source in sources.items()}

    async def _discover_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._settings.discover_ms / 1000)
            try:
                topics = {share.topic for share in self._shares.sources}
                await self._saved.prepare()
                new = self._shares.map(await self._topics.discover())
            except HapaxError as error:
                log.warning("the topics could not be looked up, next attempt follows: %s", error)
                continue
            self._made_again = self._made_again or self._shares.has_former(self._topics.target_ids)
            if {share.topic for share in new} - topics:
                self._shares.subscribe()
            self._news.set()

    async def _copy_groups_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._settings.groups_ms / 1000)
            try:
                await self._copy_groups()
            except HapaxError as error:
                log.warning("positions of groups could not be copied, next attempt follows: %s", error)

    async def _copy_groups(self) -> None:
        if self._groups is not None and not self._stopping:
            await self._groups.copy(self._shares.copied())
            self.metrics.groups.value = self._groups.committed

    # --- copying --------------------------------------------------------------------------------------------------

    async def _copy(self) -> None:
        backoff = Backoff(self._clients.reading.options, self._ports)
        while not self._stopping:
            self._news.clear()
            await self._poll_group(0)
            if self._made_again:
                self._made_again = False
                self._shares.read_positions_again()
            if self._saved.is_new:
                self._saved.is_new = False
                self._shares.save_again()
            self._shares.admit_soon()
            await self._look_at_readings()
            try:
                copied = await self._copy_some()
                if copied:
                    backoff = Backoff(self._clients.reading.options, self._ports)
            except Refused as refused:
                shares = self._shares.writing_to(refused.partition)
                if shares and self._makes_smaller(refused):
                    await self._start_over(refused.error)
                    continue
                # Each transaction writes to the copy's own topics.
                for share in shares or self._shares.readings():
                    self._shares.put_in_trouble(share, Trouble(
                        Kind.TARGET_REFUSES, f"{name_of(refused.partition)} on the target: {refused.error}"))
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
            await self._clients.group.poll(timeout_ms)
        except FencedError as error:
            self._fenced = True
            raise FencedError(
                f"another process of copy {self._settings.name!r} has started with --instance"
                f" {self._settings.instance!r} and has taken over ({error.message})", code=error.code,
                advice="Nothing is lost or doubled. To share the work between processes, give each an --instance of its"
                " own") from error

    async def _start_over(self, error: HapaxError) -> None:
        """After a transaction that failed, or whose outcome is not known: the committed positions say."""
        log.warning("a transaction failed, and the positions are read again: %s", error)
        self.metrics.failed.value += 1
        self._shares.read_positions_again()
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
        for share, reading in self._shares.readings().items():
            if reading.position >= reading.last_stable:
                reading.caught_up_ms = now
            if reading.held:
                continue
            if reading.trouble is not None:
                trouble = reading.trouble
                if trouble.go_on_at > reading.position and self._settings.skip_lost:
                    self._shares.count(share).lose(trouble.go_on_at - reading.position)
                    log.error("%s (left out, as --on-lost skip says)", trouble.message)
                    self._reader.continue_at(reading, trouble.go_on_at)
                else:
                    self._shares.put_in_trouble(share, trouble)
            elif reading.range_unclear:
                self._reader.drop(reading.partition)
                self._shares.pending.add(share)

    async def _copy_some(self) -> bool:
        """One transaction. False: there is nothing to copy now."""
        readings = self._shares.readings()
        now = self._now()
        # A partition that is not read yet may hold a part of any transaction.
        unread = {share: Lane(-1) for share in self._shares.awaited if share not in readings}
        lanes = {**unread, **{share: each.lane for share, each in readings.items()}}
        counts = cut(lanes, now)
        self._note_passed_over(lanes)
        self._reader.set_hurry(any(counts[share] < len(each.held) for share, each in readings.items()))
        taken = {share: count for share, count in counts.items() if count}
        if not taken:
            self._split_if_stuck(readings, now)
        with_data = any(
            held.data is not None for share, count in taken.items()
            for held, _ in zip(readings[share].held, range(count), strict=False))
        unclaimed = [share for share in readings if share in self._shares.unclaimed]
        if not with_data and not unclaimed and not self._shares.unread:
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

    def _note_passed_over(self, lanes: Mapping[TopicPartition, Lane]) -> None:
        found = {share for share, lane in lanes.items() if lane.passed_over}
        for share in sorted(found - self._passed_over):
            log.warning(
                "%s could not be read to its end for %d s, usually because a transaction is open there: transactions"
                " that have also written to it may become visible in several steps",
                name_of(self._shares.sources[share]), QUIET_MS // 1000)
        self._passed_over = found

    def _split_if_stuck(self, readings: Mapping[TopicPartition, Reading], now: int) -> None:
        """A transaction that is larger than the buffer cannot be kept whole."""
        full = [each for each in readings.values() if each.held and self._reader.is_full(each)]
        if not full or now - self._progress_ms < _STUCK_MS:
            return
        writer = split([each.lane for each in readings.values()], max(full, key=lambda each: each.bytes).lane)
        if writer is None:
            return
        self.metrics.split.value += 1
        log.warning(
            "a transaction of the source (producer id %d, epoch %d) is larger than %d bytes can hold together with what"
            " it waits for, and becomes visible in the copy in several steps", *writer,
            self._settings.transaction_bytes)

    async def _transfer(
        self, readings: Mapping[TopicPartition, Reading], taken: Mapping[TopicPartition, int],
        unclaimed: Iterable[TopicPartition],
    ) -> None:
        load = Load()
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
        unread = dict(self._shares.unread)
        positions = {**unread}
        for share in (*after, *unclaimed):
            reading = readings[share]
            positions[share] = self._position(
                share, reading, *after.get(share, (reading.position, reading.epoch)))
        groups, runs = self._groups, dict[TopicPartition, list[Run]](
            (share, []) for share in unclaimed if self._shares.unclaimed[share])

        def where(reports: list[DeliveryReport]) -> list[Batch]:
            runs.update(load.runs(reports))
            return groups.batch(runs, self._ports.clock.now_ms()) if groups is not None and runs else []

        await self._writer.write(
            load.batches, positions, self._clients.group.group_metadata,
            self._saved.batches(positions, self._ports.clock.now_ms()), None if groups is None else where)
        if groups is not None:
            groups.copied(runs)
        self.metrics.transactions.value += 1
        for share in unclaimed:
            del self._shares.unclaimed[share]
        for share, position in unread.items():
            if self._shares.unread.get(share) == position:
                del self._shares.unread[share]
        for share, (records, size) in load.sizes.items():
            self._shares.count(share).add(records, size)
        for share, (offset, epoch) in after.items():
            readings[share].position, readings[share].epoch = offset, epoch
            self._shares.count(share).position = offset

    def _makes_smaller(self, refused: Refused) -> bool:
        """After a batch that was too large for the target. It may have been put together of smaller ones. False: the
        batches of that topic cannot become smaller."""
        limit = self._limit(refused.partition.topic)
        if refused.error.code not in _TOO_LARGE or limit <= _LEAST_BATCH_BYTES:
            return False
        self._limits[refused.partition.topic] = limit // _SMALLER
        return True

    def _limit(self, topic: str) -> int:
        return self._limits.get(topic, _BATCH_BYTES if self._settings.by_key else MERGED_BYTES)

    def _fill(self, load: Load, share: TopicPartition, reading: Reading, held: Sequence[Held]) -> None:
        for outgoing in merged(held, reading.position, self._limit(share.topic)):
            load.add(share, share, outgoing)

    async def _fill_by_key(self, load: Load, share: TopicPartition, reading: Reading, held: Iterable[Held]) -> None:
        target = self._topics.data_topic(share.topic)
        found = by_key(
            ((each, reading.position) for each in held), reading.partition.partition,
            await self._writer.partitions_of(target), self._limit(target))
        for number, batches in found.items():
            for outgoing in batches:
                load.add(share, TopicPartition(target, PartitionIndex(number)), outgoing)

    def _position(self, share: TopicPartition, reading: Reading, offset: int, epoch: int) -> OffsetAndMetadata:
        topic_id = str(reading.topic_id) if reading.topic_id.int else ""
        cluster = self._clients.reading.cluster_id or ""
        position = Position(
            offset, cluster, self._shares.sources[share].topic, topic_id, epoch,
            *self._shares.target_ids.get(share, ("", "")))
        return OffsetAndMetadata(offset, position.metadata())

    # --- the end --------------------------------------------------------------------------------------------------

    async def _is_done(self) -> bool:
        """Whether everything that the source held at the start is copied, or cannot be copied."""
        if not self._shares.settled:
            return False
        others = []
        for share in self._shares.sources:
            if share in self._shares.troubles:
                continue
            reading = self._shares.reading(share)
            if reading is None:
                others.append(share)
            elif not self._reaches_end(share, reading):
                return False
        if not others:
            return True
        if not self._shares.owned and not self._clients.group.group_metadata().generation > 0:
            return False
        if await self._shares.copied_by_others({share: self._ends[share] for share in others}):
            return True
        return bool(self._shares.troubles) and self._others_stand_still()

    def _others_stand_still(self) -> bool:
        """Whether no other process has come further for a while. It may be waiting for a share that is in trouble here,
        as this one waits for it. Once this one has ended, with the error, the other has that share too."""
        former, since = self._others
        if self._shares.others != former:
            self._others = self._shares.others, self._now()
            return False
        return self._now() - since >= _STANDSTILL_MS

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
