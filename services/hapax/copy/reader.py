"""Reads partitions of the source ahead, as batches, within bounds of memory.

One request at a time goes to each node, for all partitions that have room. A partition that cannot be read further has
a trouble, and what was read before it is copied all the same; the others are read on.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from hapax.client.backoff import Backoff
from hapax.client.cluster import ClusterClient
from hapax.client.errors import HapaxError, RetriableError, from_code, is_retriable
from hapax.client.node_fetches import NodeFetch, NodeFetches
from hapax.client.offsets import LATEST, list_offsets
from hapax.copy.batches import Damage, Held, parse
from hapax.copy.epochs import epoch_ends
from hapax.core.copy.cut import Lane
from hapax.core.copy.position import Kind, Trouble, damaged
from hapax.core.errors import ErrorCode
from hapax.core.types import TopicPartition
from hapax.runtime import supervision
from hapax.wire.peer import PeerError, PeerUnsupported

log = logging.getLogger("hapax.copy")

_HURRY_MS: Final = 5
_HURRY_FOR_MS: Final = 1_000
_LESS_HURRY_MS: Final = 100
_UNREADABLE_MS: Final = 30_000
"""A partition that could not be read for this time holds back no transactions of others."""
_EPOCHS_MS: Final = 5_000
"""Longest wait for a new leader's answer whether its log holds what was read."""
_LOOK_EVERY_S: Final = 0.5
"""How often is checked for partitions that can be read again, where nothing else causes it."""
_LEAST_SHARE: Final = 64 << 10
"""Bytes that each partition may have buffered, whatever the others have: a transaction that is held back waits for what
others have not read yet."""
_PIECE_BYTES: Final = 600
"""About what a batch costs in memory besides its bytes."""
_MADE_AGAIN: Final = frozenset({
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INCONSISTENT_TOPIC_ID})


@dataclass(slots=True, eq=False)
class Reading:
    """One partition that is read."""

    partition: TopicPartition
    position: int
    """Offset of the next record to copy."""
    topic_id: Any
    """uuid.UUID of the topic that is read."""
    epoch: int
    """Leader epoch of the last batch before the position; -1: unknown."""
    read_epoch: int
    """The same before `next_fetch`."""
    lane: Lane
    held: deque[Held] = field(default_factory=deque)
    bytes: int = 0
    next_fetch: int = 0
    leader_epoch: int = -1
    """Of the leader whose log holds what was read; -1: it was not asked yet."""
    sure_of: int | None = None
    """Epoch of the leader whose high watermarks are believed; None: of none yet."""
    trouble: Trouble | None = None
    range_unclear: bool = False
    """`next_fetch` is not in the log. Where the log begins and ends is to be asked."""
    retry_at: int = 0
    first: int = -1
    last_stable: int = -1
    high_watermark: int = -1
    failing_since: int = -1
    """Since when no answer had its records; -1: the last one had."""
    caught_up_ms: int = -1
    """When the copy was last seen at the end of the partition."""

    @property
    def name(self) -> str:
        return f"{self.partition.topic}-{self.partition.partition}"


class Reader:
    def __init__(self, cluster: ClusterClient, transaction_bytes: int, news: Callable[[], None]) -> None:
        """`news` is called after each answer and each change."""
        self._cluster = cluster
        self._news = news
        self._total_bytes = transaction_bytes
        self.readings: dict[TopicPartition, Reading] = {}
        self.bytes = 0
        self.hurry = False
        """Something is held back until other partitions have been read further."""
        self._hurry_since = 0
        self.tick = 0
        """Number of answers."""
        self.read_bytes = 0
        self._nodes = NodeFetches(cluster.options)
        self._fetches: dict[int, asyncio.Task[None]] = {}
        self._questions: dict[str, asyncio.Task[None]] = {}
        """Topics of which the source is asked whether they are still there."""
        self._end_questions: dict[int, asyncio.Task[None]] = {}
        """Nodes that are asked for ends of partitions that they lead now."""
        self._backoff = Backoff(cluster.options, cluster.ports)
        self._due = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def start(self) -> None:
        self._task = supervision.keep(self._run, "copy-reader", self._cluster.ports.random)

    async def close(self) -> None:
        self._closed = True
        await supervision.end(self._task, *self._fetches.values(), *self._questions.values(),
                              *self._end_questions.values())
        await self._nodes.close()

    # --- what is read ---------------------------------------------------------------------------------------------

    def add(self, partition: TopicPartition, position: int, topic_id: Any, epoch: int) -> Reading:
        self.drop(partition)
        reading = self.readings[partition] = Reading(
            partition, position, topic_id, epoch, epoch, Lane(position), next_fetch=position)
        self._due.set()
        return reading

    def drop(self, partition: TopicPartition) -> None:
        former = self.readings.pop(partition, None)
        if former is not None:
            self.bytes -= former.bytes

    def continue_at(self, reading: Reading, offset: int) -> None:
        """Leaves out the offsets before this one. Call it once everything that was read has been taken."""
        self.add(reading.partition, offset, reading.topic_id, reading.epoch)

    def take(self, reading: Reading, count: int) -> list[Held]:
        """Removes the first batches."""
        reading.lane.take(count)
        found = [reading.held.popleft() for _ in range(count)]
        size = sum(each.size + _PIECE_BYTES for each in found)
        reading.bytes -= size
        self.bytes -= size
        self._due.set()
        return found

    def set_hurry(self, hurry: bool) -> None:
        if hurry and not self.hurry:
            self._hurry_since = self._cluster.now()
        self.hurry = hurry

    def is_full(self, reading: Reading) -> bool:
        return not self._has_room(reading)

    def _has_room(self, reading: Reading) -> bool:
        if reading.bytes < _LEAST_SHARE:
            return True
        share = self._total_bytes // 2 if len(self.readings) > 1 else self._total_bytes
        return reading.bytes < share and self.bytes < self._total_bytes

    # --- reading --------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            self._due.clear()
            self._fetch_due()
            try:
                async with asyncio.timeout(_LOOK_EVERY_S):
                    await self._due.wait()
            except TimeoutError:
                pass

    def _fetch_due(self) -> None:
        if self._closed:
            return
        now = self._cluster.now()
        due: dict[int, list[Reading]] = {}
        for reading in self.readings.values():
            if reading.trouble is not None or reading.range_unclear or reading.retry_at > now:
                continue
            if not self._has_room(reading):
                continue
            leader = self._cluster.leader(reading.partition)
            if leader is None or leader.node_id < 0:
                self._later(reading)
                self._ask_for(reading.partition.topic)
            elif leader.node_id not in self._fetches:
                due.setdefault(leader.node_id, []).append(reading)
        for node_id, readings in due.items():
            task = self._fetches[node_id] = supervision.once(self._fetch(node_id, readings), "copy-fetch", node_id)
            task.add_done_callback(partial(self._fetched, node_id))

    def _fetched(self, node_id: int, done: asyncio.Task[None]) -> None:
        del self._fetches[node_id]
        self._due.set()
        self._news()

    def _later(self, reading: Reading) -> None:
        now = self._cluster.now()
        if reading.failing_since < 0:
            reading.failing_since = now
        elif now - reading.failing_since >= _UNREADABLE_MS and not reading.lane.ended:
            reading.lane.ended = True
            log.warning(
                "%s could not be read for %d s: transactions that have also written to it may become visible in several"
                " steps", reading.name, _UNREADABLE_MS // 1000)
        reading.retry_at = self._cluster.now() + max(int(self._backoff.seconds() * 1000), 1)

    async def _fetch(self, node_id: int, readings: list[Reading]) -> None:
        try:
            peer = await self._cluster.peer(node_id, "fetch")
            readings = await self._continued(readings)
            wanted: dict[TopicPartition, tuple[int, int]] = {}
            ids: dict[str, Any] = {}
            asked: dict[TopicPartition, Reading] = {}
            for reading in readings:
                leader = self._cluster.leader(reading.partition)
                if self.readings.get(reading.partition) is not reading or leader is None:
                    continue
                wanted[reading.partition] = reading.next_fetch, leader.epoch
                reading.leader_epoch = leader.epoch
                ids[reading.partition.topic] = reading.topic_id
                asked[reading.partition] = reading
            if not wanted:
                return
            sure = self._sure_of_ends(node_id, asked)
            sent = self.tick
            answer = await self._nodes.fetch(node_id, peer, NodeFetch(wanted, ids, self._patience(node_id, wanted), ""))
        except PeerError:
            self._cluster.refresh_soon()
            for reading in readings:
                self._later(reading)
            return
        except (HapaxError, PeerUnsupported) as error:
            for reading in readings:
                self._end(reading, Trouble(Kind.SOURCE_REFUSES, f"{reading.name}: {error}"))
            return
        self.tick += 1
        named = set()
        for partition, told in answer.partitions:
            named.add(partition)
            reading_ = asked.get(partition)
            if reading_ is not None and self.readings.get(partition) is reading_:
                self._keep(reading_, told, sent if partition in sure else None)
        for partition, reading in asked.items():
            if answer.error_code:
                self._failed(reading, answer.error_code)
            elif partition not in named and (ends := self._nodes.ends(node_id, partition)) is not None:
                # The answer leaves out what has not changed.
                reading.high_watermark, reading.last_stable = ends.high_watermark, ends.last_stable_offset
                if partition in sure:
                    reading.lane.seen_end(sent, ends.high_watermark)

    def _sure_of_ends(self, node_id: int, asked: Mapping[TopicPartition, Reading]) -> set[TopicPartition]:
        """Those whose leader's high watermark counts all that was committed before it led. A new leader's may be lower
        at first. It then answers Fetch, but not ListOffsets (KIP-207), so that question tells. It is asked beside the
        fetches: a slow answer holds no records back."""
        leaders = {each: self._cluster.leader(each) for each in asked}
        epochs = {each: leader.epoch for each, leader in leaders.items() if leader is not None}
        new = {each: epoch for each, epoch in epochs.items() if asked[each].sure_of != epoch}
        if new and node_id not in self._end_questions:
            task = self._end_questions[node_id] = supervision.once(
                self._look_for_ends({asked[each]: epoch for each, epoch in new.items()}), "copy-ends", node_id,
                expected=(HapaxError,))  # Fetch says what is wrong, or all is well in a moment
            task.add_done_callback(partial(self._looked_for_ends, node_id))
        return epochs.keys() - new.keys()

    async def _look_for_ends(self, epochs: Mapping[Reading, int]) -> None:
        """A refusal of one partition's end is one of the whole question, and says nothing of the others."""
        try:
            await list_offsets(self._cluster, 0, {each.partition: LATEST for each in epochs}, committed=False)
        except HapaxError as error:
            if len(epochs) == 1 or error.code == ErrorCode.NETWORK_EXCEPTION:
                raise
            pairs = list(epochs.items())
            for half in (pairs[::2], pairs[1::2]):
                with suppress(HapaxError):
                    await self._look_for_ends(dict(half))
            return
        for reading, epoch in epochs.items():
            reading.sure_of = epoch

    def _looked_for_ends(self, node_id: int, done: asyncio.Task[None]) -> None:
        del self._end_questions[node_id]

    async def _continued(self, readings: list[Reading]) -> list[Reading]:
        """Those whose leader's log holds what was read. A new leader may have lost some of it (an unclean election) and
        have written as much since, so that its offsets go on as if nothing was missing."""
        asked: dict[TopicPartition, tuple[Reading, int]] = {}
        for reading in readings:
            leader = self._cluster.leader(reading.partition)
            if leader is not None and reading.read_epoch >= 0 and reading.leader_epoch not in (-1, leader.epoch):
                asked[reading.partition] = reading, leader.epoch
        if not asked:
            return readings
        try:
            ends = await epoch_ends(
                self._cluster, {each: reading.read_epoch for each, (reading, _) in asked.items()}, _EPOCHS_MS)
        except RetriableError:
            for reading, _ in asked.values():
                self._later(reading)
            return [each for each in readings if each.partition not in asked]
        for partition, (reading, leader_epoch) in asked.items():
            reading.leader_epoch = leader_epoch
            if 0 <= ends.get(partition, -1) < reading.next_fetch:
                reading.range_unclear = reading.lane.ended = True
        return [each for each in readings if not each.range_unclear]

    def _patience(self, node_id: int, wanted: Iterable[TopicPartition]) -> int:
        """How long a request may wait for data, in ms."""
        if self.hurry:
            return _HURRY_MS if self._cluster.now() - self._hurry_since < _HURRY_FOR_MS else _LESS_HURRY_MS
        asked = set(wanted)
        for partition, reading in self.readings.items():
            # A partition without room has room again in a moment, and must not wait for the others' data then.
            if partition not in asked and not self._has_room(reading):
                leader = self._cluster.leader(partition)
                if leader is not None and leader.node_id == node_id:
                    return _HURRY_MS
        patience: int = self._cluster.options["fetch.max.wait.ms"]
        return patience

    def _keep(self, reading: Reading, told: Any, sent: int | None) -> None:
        """`sent`: as of `Lane.seen_end`; None: the high watermark may be too low."""
        if told.error_code:
            self._failed(reading, told.error_code)
            return
        reading.failing_since, reading.lane.ended = -1, False
        reading.first = told.log_start_offset
        reading.high_watermark, reading.last_stable = told.high_watermark, told.last_stable_offset
        if told.records:
            data = bytearray(told.records)
            self.read_bytes += len(data)
            aborted = [(each.producer_id, each.first_offset) for each in told.aborted_transactions or ()]
            held, following, damage = parse(data, aborted, reading.next_fetch)
            now, size = self._cluster.now(), 0
            for each in held:
                reading.lane.push(each.piece, self.tick, now)
                size += each.size + _PIECE_BYTES
            reading.held.extend(held)
            reading.bytes += size
            self.bytes += size
            reading.next_fetch = following
            if held:
                reading.read_epoch = held[-1].header.leader_epoch
            if damage is not None:
                if damage.following > told.high_watermark:
                    damage = damage._replace(following=-1)
                self._end(reading, _trouble(reading.name, damage))
            if held:
                self._backoff = Backoff(self._cluster.options, self._cluster.ports)
        if sent is not None:
            reading.lane.seen_end(sent, told.high_watermark)

    def _failed(self, reading: Reading, code: int) -> None:
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            reading.range_unclear = reading.lane.ended = True
            return
        self._cluster.refresh_soon()
        self._later(reading)
        if code in _MADE_AGAIN:
            self._ask_for(reading.partition.topic)
        elif code == ErrorCode.CORRUPT_MESSAGE:
            self._end(reading, damaged(reading.name, reading.next_fetch, -1, "the broker cannot read it"))
        elif not is_retriable(code):
            self._end(reading, Trouble(
                Kind.SOURCE_REFUSES, str(from_code(code, f"reading {reading.name} from the source"))))

    def _ask_for(self, topic: str) -> None:
        """Whether it was deleted, or made again. A broker that has just started may say so falsely, and a partition
        that has ended holds no other one's transactions back."""
        if topic in self._questions or self._closed:
            return
        task = self._questions[topic] = supervision.once(
            self._look_for(topic), "copy-topic", expected=(HapaxError,))
        task.add_done_callback(partial(self._looked_for, topic))

    def _looked_for(self, topic: str, done: asyncio.Task[None]) -> None:
        del self._questions[topic]
        self._news()

    async def _look_for(self, topic: str) -> None:
        found = (await self._cluster.existing([topic])).get(topic)
        for reading in self.readings.values():
            if reading.partition.topic == topic and (
                found is None or reading.partition.partition not in found.partitions
                or found.topic_id != reading.topic_id
            ):
                reading.range_unclear = reading.lane.ended = True

    def _end(self, reading: Reading, trouble: Trouble) -> None:
        reading.trouble, reading.lane.ended = trouble, True



def _trouble(name: str, damage: Damage) -> Trouble:
    if damage.code == ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT:
        return Trouble(
            Kind.OLD_FORMAT,
            f"{name}: from offset {damage.offset} on, the source holds message format 0 or 1, from before Kafka 0.11,"
            " which hapax copy does not read. Upgrade the topic on the source: Kafka 4 serves format 2 alone")
    return damaged(name, damage.offset, damage.following, damage.reason)
