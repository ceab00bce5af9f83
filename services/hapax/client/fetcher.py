"""Prefetches records: one long-polling Fetch per node while the application processes earlier records.

A partition is fetched again as soon as less than one fetch of it is buffered, so that the next answer arrives while the
application works.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Container, Iterable
from functools import partial
from typing import Any

from hapax.client.backoff import Backoff
from hapax.client.cluster import ClusterClient
from hapax.client.errors import AuthenticationError, FatalError, HapaxError, from_code, is_retriable
from hapax.client.metrics import ConsumerCounts
from hapax.client.node_fetches import NodeFetch, NodeFetches
from hapax.client.read_replicas import AVOIDED_MS, REFUSED_MS, ReadReplicas
from hapax.client.readings import Begin, Chunk, Reading
from hapax.client.records import Record
from hapax.codec.batch import iterate_batches
from hapax.core.errors import ErrorCode, Refusal, error_name
from hapax.core.types import PartitionIndex, TopicPartition
from hapax.runtime import supervision
from hapax.wire.peer import PeerError, PeerUnsupported

_HURRY_MS = 20
_BEHIND = (ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.OFFSET_NOT_AVAILABLE)
"""Refusals of a replica that lacks an offset, which say nothing against the metadata."""


class Fetcher:
    def __init__(
        self,
        cluster: ClusterClient,
        reset: Callable[[list[TopicPartition], Begin], Awaitable[dict[TopicPartition, int]]],
        counts: ConsumerCounts,
    ) -> None:
        """`reset`: finds the start positions of partitions without a position."""
        self._cluster = cluster
        self._options = cluster.options
        self._reset = reset
        self._counts = counts
        self._committed = cluster.options["isolation.level"] == "read_committed"
        self._readings: dict[TopicPartition, Reading] = {}
        self.replicas = ReadReplicas(self._options["client.rack"], self._options["metadata.max.age.ms"])
        self._nodes = NodeFetches(self._options)
        self._fetches: dict[int, asyncio.Task[None]] = {}
        self._starting: dict[str, asyncio.Task[None]] = {}
        """By topic, so that a missing topic does not delay the others."""
        self._rest: deque[Record] = deque()
        """Taken by an iteration, which has not handed them out yet."""
        self._held: dict[TopicPartition, tuple[int, int]] = {}
        """Of the partitions in `_rest`: the offset of the next record to hand out, and the number of records left."""
        self._unprocessed: dict[TopicPartition, int] = {}
        """Of the partitions with records that the program has been given and may be processing: the offset of the first
        of them."""
        self._closed = False
        self._arrived = asyncio.Event()
        self._failures: dict[TopicPartition, HapaxError] = {}
        self._retry_at: dict[TopicPartition, float] = {}
        self._backoff = Backoff(cluster.options, cluster.ports)

    async def close(self) -> None:
        self._closed = True
        await supervision.end(*self._fetches.values(), *self._starting.values())
        await self._nodes.close()

    # --- assignment -------------------------------------------------------------------------------------------

    def assign(self, partitions: list[TopicPartition]) -> None:
        former = self._readings
        self._readings = {p: former.get(p) or Reading() for p in partitions}
        self._failures.clear()
        for partition in [p for p in {**former, **self._held, **self._unprocessed} if p not in self._readings]:
            self._drop_held(partition)
            self._unprocessed.pop(partition, None)
            self.replicas.forget(partition)

    def add(self, partitions: Iterable[TopicPartition]) -> None:
        """Partitions that are assigned already keep their positions."""
        for partition in partitions:
            self._readings.setdefault(partition, Reading())

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        """Nothing of these partitions is returned any more."""
        for partition in partitions:
            self._readings.pop(partition, None)
            self._failures.pop(partition, None)
            self._drop_held(partition)
            self._unprocessed.pop(partition, None)
            self.replicas.forget(partition)

    def assigned(self) -> list[TopicPartition]:
        return list(self._readings)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self._reading(partition).start_at(offset)
        self._failures.pop(partition, None)
        self._drop_held(partition)

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Drops what is buffered of these partitions, and their positions. Those that are not assigned are passed
        over."""
        for partition in partitions:
            reading = self._readings.get(partition)
            if reading is not None:
                reading.start_at(0)
                reading.forget_position()
                self._failures.pop(partition, None)
                self._unprocessed.pop(partition, None)
                self._drop_held(partition)

    def position(self, partition: TopicPartition) -> int | None:
        return self._returned(partition, self._reading(partition).position)

    def _returned(self, partition: TopicPartition, position: int | None) -> int | None:
        """The position without what an iteration holds. (The blocking client's iteration runs on another thread.)"""
        held = self._held.get(partition)
        return position if held is None else held[0]

    def lag(self) -> int:
        """The largest lag of any partition: offsets up to its last known end, which lies before the position where a
        replica is read that has heard of the end later than the leader."""
        return max((max(r.end - r.position, 0) for r in self._readings.values()
                    if r.position is not None and r.end >= 0), default=0)

    def positions(self) -> dict[TopicPartition, int]:
        """The positions that may be committed. A position in a topic that was deleted and created again is not valid in
        the new topic, although some of the old topic's records may still be buffered."""
        self._note_made_again()
        return {
            p: position for p, r in self._readings.items()
            if not r.made_again and (position := self._returned(p, r.position)) is not None}

    def processed(self) -> dict[TopicPartition, int]:
        """As `positions`, but no record counts as read that the program has been given since its last poll. A commit of
        such a record, made while the program processes it, would lose it if the program crashed. After a seek back, the
        position is lower."""
        return {p: min(self._unprocessed.get(p, position), position) for p, position in self.positions().items()}

    def note_processed(self) -> None:
        """The program asks for more records, so it has processed those that it has. May be called on any thread."""
        self._unprocessed.clear()

    def topic_ids(self) -> dict[str, Any]:
        """Topic name -> uuid.UUID of the topic to which its `positions` belong, where it is known."""
        return {p.topic: topic_id for p in self.positions()
                if (topic_id := self._readings[p].topic_id) is not None and topic_id.int}

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self._reading(partition).paused = True

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self._reading(partition).paused = False

    def paused(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Those that are paused."""
        return [each for each in partitions if each in self._readings and self._readings[each].paused]

    def _reading(self, partition: TopicPartition) -> Reading:
        reading = self._readings.get(partition)
        if reading is None:
            raise FatalError(f"{partition.topic}-{partition.partition} is not assigned to this consumer")
        return reading

    # --- iterating --------------------------------------------------------------------------------------------

    def hold(self, records: list[Record]) -> None:
        """Keeps records that were taken until `hand_out`. A position does not count them as read before."""
        self._rest.extend(records)
        for record in reversed(records):
            partition = TopicPartition(record.topic, PartitionIndex(record.partition))
            self._held[partition] = record.offset, self._held.get(partition, (0, 0))[1] + 1

    def hand_out(self, limit: int) -> list[Record]:
        """The first held records of partitions that are not paused."""
        handed: list[Record] = []
        passed: list[Record] = []
        while self._rest and len(handed) < limit:
            record = self._rest.popleft()
            partition = TopicPartition(record.topic, PartitionIndex(record.partition))
            if self._readings[partition].paused:
                passed.append(record)
                continue
            handed.append(record)
            # First of all: on another thread, a commit may read both at any moment.
            self._unprocessed.setdefault(partition, record.offset)
            left = self._held[partition][1] - 1
            if left:
                self._held[partition] = record.offset + 1, left
            else:
                del self._held[partition]
        self._rest.extendleft(reversed(passed))
        return handed

    def _drop_held(self, partition: TopicPartition) -> None:
        if self._held.pop(partition, None) is not None:
            self._rest = deque(each for each in self._rest if (each.topic, each.partition) != partition)

    # --- taking -----------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Makes `take` look at `stop`."""
        self._arrived.set()

    async def take(self, timeout_ms: int, limit: int, stop: Callable[[], bool] = lambda: False) -> list[Record]:
        """Buffered records, or the first that arrive within `timeout_ms`, or [] at once where `stop` is true. Raises
        HapaxError."""
        if stop():
            return []
        if self._rest and (held := self.hand_out(limit)):
            return held
        deadline = self._cluster.now() + timeout_ms
        while True:
            self._arrived.clear()
            if stop():
                return []
            taken = self._take_waiting(limit)
            self._fetch_ahead()
            if taken:
                self._counts.read.value += len(taken)
                return taken
            if self._failures:
                raise self._failures.pop(next(iter(self._failures)))
            left = deadline - self._cluster.now()
            if left <= 0:
                await asyncio.sleep(0)  # even a poll with a time-out of 0 lets answers arrive
                return []
            pause = min([left / 1000, *(max(at - self._cluster.now(), 1) / 1000 for at in self._retry_at.values())])
            try:
                async with asyncio.timeout(pause):
                    await self._arrived.wait()
            except TimeoutError:
                continue

    def _take_waiting(self, limit: int) -> list[Record]:
        taken: list[Record] = []
        for partition, reading in self._readings.items():
            while len(taken) < limit and not reading.paused and self._open_next(partition, reading):
                room = limit - len(taken)
                self._unprocessed.setdefault(partition, reading.records[0].offset)
                while reading.records and room:
                    taken.append(reading.records.popleft())
                    room -= 1
                last = taken[-1].offset if taken else -1
                reading.position = last + 1 if reading.records else reading.after_records
        if len(self._readings) > 1 and taken:
            first = next(iter(self._readings))  # the other partitions come first in the next call
            self._readings[first] = self._readings.pop(first)
        return taken

    def _open_next(self, partition: TopicPartition, reading: Reading) -> bool:
        """Decodes the next batch that has records. Returns whether records are buffered."""
        while not reading.records:
            if reading.current is None:
                if not reading.chunks:
                    return False
                reading.current = reading.chunks[0].batches()
            chunk = reading.chunks[0]
            try:
                found = next(reading.current, None)
                if found is None:
                    reading.drop_first()
                    reading.current = None
                    continue
                header, position, visible = found
                start = reading.position or 0
                if header.last_offset < start:
                    continue
                if visible:
                    reading.records.extend(chunk.records(partition, header, position, start))
            except Refusal as refusal:
                offset = reading.position
                reading.start_at(offset or 0, reading.topic_id)
                if not self._leave_copy(partition, AVOIDED_MS):
                    self._failures[partition] = _damaged(partition, offset or 0, refusal)
                return False
            reading.after_records = header.next_offset
            if not reading.records:
                reading.position = header.next_offset
        return True

    # --- fetching ---------------------------------------------------------------------------------------------

    def _fetch_ahead(self) -> None:
        now = self._cluster.now()
        if self._closed:
            return
        self._forget_positions()
        # Without those whose pause is over, because `take` wakes up at the first of these times.
        self._retry_at = {p: at for p, at in self._retry_at.items() if at > now and p in self._readings}
        unknown: dict[str, list[TopicPartition]] = {}
        for partition, reading in self._readings.items():
            waits = partition.topic in self._starting or partition in self._retry_at
            if reading.position is None and not waits:
                unknown.setdefault(partition.topic, []).append(partition)
        for topic, partitions in unknown.items():
            starting = self._starting[topic] = supervision.once(self._start(partitions), "client-positions", topic)
            starting.add_done_callback(partial(self._started, topic))
        share = self._options["max.partition.fetch.bytes"]
        due: dict[int, list[TopicPartition]] = {}
        for partition, reading in self._readings.items():
            if reading.position is None or reading.paused or reading.waiting_bytes >= share:
                continue
            if reading.out_of_range or reading.made_again:
                continue  # buffered records are returned first
            if partition in self._retry_at:
                continue
            source = self._source(partition)
            if source < 0:
                self._later(partition)
            elif source not in self._fetches:
                due.setdefault(source, []).append(partition)
        self._end_idle_sessions(due)
        for node_id, partitions in due.items():
            task = supervision.once(self._fetch(node_id, partitions), "client-fetch", node_id)
            self._fetches[node_id] = task
            task.add_done_callback(partial(self._fetched, node_id))

    def _source(self, partition: TopicPartition) -> int:
        """The node to read the partition from; -1: it has no leader at the moment."""
        leader = self._cluster.leader(partition)
        if leader is None or leader.node_id < 0:
            return -1
        if not self.replicas.are_read:
            return leader.node_id
        return self.replicas.node(partition, leader, self._cluster.nodes, self._cluster.now())

    def _end_idle_sessions(self, due: Container[int]) -> None:
        """Those with nodes from which no assigned partition is read any more."""
        idle = [each for each in self._nodes.nodes() if each not in due and each not in self._fetches]
        if idle:
            sources = {self._source(each) for each in self._readings}
            for node_id in idle:
                if node_id not in sources:
                    self._nodes.end(node_id)

    def _forget_positions(self) -> None:
        """Clears positions that are no longer in the log, once everything that was fetched has been returned."""
        self._note_made_again()
        for partition, reading in self._readings.items():
            lost = reading.position is not None and (reading.out_of_range or reading.made_again)
            if lost and reading.drained and partition not in self._held:
                if reading.made_again:
                    self._unprocessed.pop(partition, None)
                reading.forget_position()

    def _note_made_again(self) -> None:
        for partition, reading in self._readings.items():
            topic = self._cluster.topics.get(partition.topic)
            if reading.position is not None and topic is not None and not reading.is_of(topic):
                if reading.untried:
                    reading.forget_position()
                else:
                    reading.made_again = True

    def _fetched(self, node_id: int, done: asyncio.Task[None]) -> None:
        del self._fetches[node_id]
        if not done.cancelled():
            self._fail_all(done)
            self._fetch_ahead()
        self._arrived.set()

    def _started(self, topic: str, done: asyncio.Task[None]) -> None:
        del self._starting[topic]
        if not done.cancelled():
            self._fail_all(done)
        self._arrived.set()

    def _fail_all(self, done: asyncio.Task[None]) -> None:
        """A defect of the client itself must reach the application instead of being lost with its task."""
        error = done.exception()
        if error is not None:
            for partition in self._readings:
                self._failures[partition] = FatalError(f"the consumer failed: {error!r}")

    def _later(self, partition: TopicPartition) -> None:
        self._retry_at[partition] = self._cluster.now() + self._backoff.seconds() * 1000

    async def _start(self, partitions: list[TopicPartition]) -> None:
        # The assignment may have changed since this task was made.
        partitions = [each for each in partitions if self._lacks_position(each)]
        ways: dict[Begin, list[TopicPartition]] = {}
        for partition in partitions:
            reading = self._readings[partition]
            way = Begin.MADE_AGAIN if reading.made_again else Begin.BY_RULE if reading.out_of_range else Begin.COMMITTED
            ways.setdefault(way, []).append(partition)
        try:
            for way, those in ways.items():
                await self.begin(those, way)
        except HapaxError as error:
            for partition in partitions:
                if self._lacks_position(partition):
                    self._failures[partition] = error
                    self._later(partition)

    async def begin(
        self, partitions: list[TopicPartition], way: Begin = Begin.COMMITTED
    ) -> dict[TopicPartition, int]:
        """The start positions of partitions without a position, which are set if they still have none. Raises
        HapaxError."""
        try:  # before the offsets, so that they may belong to a former topic of this name, but not to a later one
            topics = await self._cluster.topics_of(partitions, fresh=False)
        except HapaxError:
            topics = {}
        found = await self._reset(partitions, way)
        for partition, offset in found.items():
            if self._lacks_position(partition):
                topic = topics.get(partition.topic)
                self._readings[partition].start_at(
                    offset, None if topic is None else topic.topic_id, untried=way is Begin.COMMITTED)
        return found

    def _lacks_position(self, partition: TopicPartition) -> bool:
        reading = self._readings.get(partition)
        return reading is not None and reading.position is None

    async def _fetch(self, node_id: int, partitions: list[TopicPartition]) -> None:
        turns: dict[TopicPartition, tuple[Reading, int, int]] = {}
        wanted: dict[TopicPartition, tuple[int, int]] = {}
        copied: dict[TopicPartition, None] = {}
        """Those that another node leads. This one may lack some of their records."""
        fresh: list[tuple[TopicPartition, Reading, int]] = []
        """Those of which no end is known yet."""
        try:
            peer = await self._cluster.peer(node_id, "fetch")
            # Opening the connection may have taken a long time, so topics and assignments are read only now.
            partitions = [p for p in partitions if self._may_fetch(p)]
            if not partitions:
                return
            for partition in partitions:
                reading = self._readings[partition]
                turns[partition] = (reading, reading.turn, reading.next_fetch)
                leader = self._cluster.leader(partition)
                wanted[partition] = reading.next_fetch, -1 if leader is None else leader.epoch
                if leader is None or leader.node_id != node_id:
                    copied[partition] = None
                if reading.end < 0 or reading.untried:
                    fresh.append((partition, reading, reading.turn))
            fetch = NodeFetch(
                wanted, {p.topic: self._cluster.topics[p.topic].topic_id for p in partitions},
                self._patience(node_id, wanted), self.replicas.rack(wanted, self._cluster.now()))
            asked = self._counts.stopwatch()
            response = await self._nodes.fetch(node_id, peer, fetch)
            self._counts.fetch_seconds.observe(self._counts.stopwatch() - asked)
        except PeerError:
            self._counts.lost.value += 1
            self._cluster.refresh_soon()
            for partition in partitions:
                self._unreached(partition, node_id)
            return
        except AuthenticationError as error:
            for partition in partitions:
                self._failures[partition] = error
                self._later(partition)
            return
        except PeerUnsupported as error:
            for partition in partitions:
                self._failures[partition] = FatalError(str(error))
            return
        if response.error_code:
            for partition in partitions:
                self._answer_failed(partition, response.error_code, copied=partition in copied)
            return
        for partition, answer in response.partitions:
            current, of = self._readings.get(partition), turns.get(partition)
            if current is None or of is None or of[0] is not current:
                continue
            if not answer.error_code:  # even after a seek, because the next answer leaves out what has not changed
                current.end = answer.last_stable_offset if self._committed else answer.high_watermark
            if of[1:] != (current.turn, current.next_fetch):
                continue
            if answer.error_code:
                self._answer_failed(partition, answer.error_code, copied=partition in copied)
                continue
            current.untried = False
            if answer.preferred_read_replica >= 0:
                self._redirected(partition, answer.preferred_read_replica)
            if answer.records:
                try:
                    self._keep(current, answer)
                except Refusal as refusal:
                    if partition not in copied or not self._leave_copy(partition, AVOIDED_MS):
                        self._failures[partition] = _damaged(partition, current.next_fetch, refusal)
                        self._later(partition)
                    continue
                self._backoff = Backoff(self._cluster.options, self._cluster.ports)
        for partition, reading, turn in fresh:
            # Of a partition whose ends the session knows already, because it was assigned a moment ago.
            if (ends := self._nodes.ends(node_id, partition)) is not None:
                reading.end = ends.last_stable_offset if self._committed else ends.high_watermark
                if reading.turn == turn:
                    reading.untried = False

    def _may_fetch(self, partition: TopicPartition) -> bool:
        reading = self._readings.get(partition)
        topic = self._cluster.topics.get(partition.topic)
        return (
            reading is not None and reading.position is not None
            and topic is not None and reading.is_of(topic)
        )

    def _patience(self, node_id: int, partitions: Container[TopicPartition]) -> int:
        """How long this fetch may wait for data, in ms. The wait is short while other partitions of the node are left
        out only because enough of them is buffered, because their next fetch has to wait for this one."""
        patience: int = self._options["fetch.max.wait.ms"]
        for partition, reading in self._readings.items():
            left_out = partition not in partitions and not reading.paused and reading.position is not None
            if left_out and self._source(partition) == node_id:
                return min(patience, _HURRY_MS)
        return patience

    def _keep(self, reading: Reading, answer: Any) -> None:
        data = bytes(answer.records)
        self._counts.bytes.value += len(data)
        following = reading.next_fetch
        for _, header in iterate_batches(data):
            following = header.next_offset
        if following == reading.next_fetch:
            # Less than one whole batch: only a server that ignores KIP-74 sends that.
            return
        aborted = [(a.producer_id, a.first_offset) for a in answer.aborted_transactions or ()]
        reading.keep(Chunk(data, aborted if self._committed else (), self._options["check.crcs"]))
        reading.next_fetch = following

    def _redirected(self, partition: TopicPartition, node_id: int) -> None:
        leader = self._cluster.leader(partition)
        if leader is None or not self.replicas.prefer(partition, node_id, leader, self._cluster.now()):
            self._later(partition)
        if node_id not in self._cluster.nodes:
            self._cluster.refresh_soon()

    def _unreached(self, partition: TopicPartition, node_id: int) -> None:
        leader = self._cluster.leader(partition)
        if leader is None or leader.node_id == node_id or not self._leave_copy(partition, AVOIDED_MS):
            self._later(partition)

    def _leave_copy(self, partition: TopicPartition, for_ms: int) -> bool:
        return self.replicas.leave(partition, self._cluster.now(), for_ms)

    def _answer_failed(self, partition: TopicPartition, code: int, *, copied: bool) -> None:
        self._counts.refused.labels(error_name(code)).value += 1
        reading = self._readings.get(partition)
        if reading is None:
            return
        if copied:  # only the leader can say what is in the log
            if not self._leave_copy(partition, AVOIDED_MS if code == ErrorCode.CORRUPT_MESSAGE else REFUSED_MS):
                self._later(partition)
            if code not in _BEHIND:
                self._cluster.refresh_soon()
            return
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            if self._options["auto.offset.reset"] == "none":
                offset = reading.next_fetch
                self._failures[partition] = from_code(
                    code, f"{partition.topic}-{partition.partition}", f"offset {offset} is not in the log"
                )
                self._later(partition)
            else:
                reading.out_of_range = True
            return
        self._cluster.refresh_soon()
        self._later(partition)
        if code == ErrorCode.CORRUPT_MESSAGE:  # no other replica has the batch, so a retry would not help
            self._failures[partition] = FatalError(
                f"CORRUPT_MESSAGE: {partition.topic}-{partition.partition} is damaged at offset {reading.next_fetch}; "
                "no other replica has the batch. To continue, `seek` beyond it",
                code=code,
            )
        elif not is_retriable(code):
            self._failures[partition] = from_code(code, f"{partition.topic}-{partition.partition}")


def _damaged(partition: TopicPartition, offset: int, refusal: Refusal) -> FatalError:
    return FatalError(
        f"{partition.topic}-{partition.partition} from offset {offset}: {refusal}",
        code=refusal.code,
        advice="Seek beyond the damaged batch, or set check.crcs=false to read it anyway",
    )
