"""What a consumer has of each of its partitions: its position, and the fetched data that was not returned yet.

Fetched data is kept as bytes. Batches are decoded one by one as records are taken, so of aborted transactions and
control batches only the header is read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from hapax.client.metadata import Topic
from hapax.client.records import Record
from hapax.codec.batch import crc_matches, iterate_batches
from hapax.codec.control import decode_control
from hapax.codec.records import decode_batch
from hapax.core.batch import LOG_APPEND_TIME, BatchHeader
from hapax.core.control import Marker
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.types import TopicPartition


class Begin(Enum):
    """Where a partition without a position starts. The value states why it has none."""

    COMMITTED = "has no committed offset"
    """At the group's committed offset; without one, by auto.offset.reset."""
    BY_RULE = "has a position that is not in the log"
    """By auto.offset.reset."""
    MADE_AGAIN = "was deleted and made again"
    """At the beginning of the new log, because all of it is newer than the reader, unless auto.offset.reset is none."""


class Chunk:
    """The fetched bytes of one partition, decoded batch by batch."""

    def __init__(self, data: bytes, aborted: Iterable[tuple[int, int]], check_crcs: bool) -> None:
        """`aborted`: (producer id, first offset) of transactions that read_committed leaves out."""
        self.size = len(data)
        self._data = data
        self._batches = iterate_batches(data)
        self._check_crcs = check_crcs
        self._aborted = deque(sorted(aborted, key=lambda transaction: transaction[1]))
        self._dropping: set[int] = set()

    def batches(self) -> Iterator[tuple[BatchHeader, int, bool]]:
        """Yields each batch: header, position, and whether the application receives its records. Raises Refusal."""
        for position, header in self._batches:
            if self._check_crcs and not crc_matches(self._data, header, position):
                raise Refusal(ErrorCode.CORRUPT_MESSAGE, f"the batch at offset {header.base_offset} is damaged")
            while self._aborted and self._aborted[0][1] <= header.last_offset:
                self._dropping.add(self._aborted.popleft()[0])
            visible = not header.is_control
            if header.is_control:
                if header.producer_id in self._dropping and self._is_abort(header, position):
                    self._dropping.discard(header.producer_id)
            elif header.is_transactional and header.producer_id in self._dropping:
                visible = False
            yield header, position, visible

    def records(self, partition: TopicPartition, header: BatchHeader, position: int, start: int) -> list[Record]:
        kind = int(header.attributes & LOG_APPEND_TIME != 0)
        topic, number = partition
        return [
            Record(topic, number, r.offset, r.timestamp, kind, r.key, r.value, r.headers)
            for r in decode_batch(self._data, position, header.size)
            if r.offset >= start
        ]

    def _is_abort(self, header: BatchHeader, position: int) -> bool:
        try:
            control = decode_control(self._data, header, position)
        except Refusal:
            return False  # a control record of a later version, which is not a transaction's marker
        return isinstance(control, Marker) and not control.commit


@dataclass(slots=True)
class Reading:
    """One assigned partition."""

    position: int | None = None
    """Offset of the next record to return to the application; None if it is not known yet."""
    next_fetch: int = 0
    """Offset to fetch next: after everything that is buffered."""
    chunks: deque[Chunk] = field(default_factory=deque)
    waiting_bytes: int = 0
    """Number of bytes in `chunks`."""
    records: deque[Record] = field(default_factory=deque)
    after_records: int = 0
    """The position after `records` have been returned."""
    current: Iterator[tuple[BatchHeader, int, bool]] | None = None
    paused: bool = False
    out_of_range: bool = False
    """`next_fetch` is not in the log: the next position comes from auto.offset.reset."""
    end: int = -1
    """The offset at which readable records end, from the last answer; -1 before the first one."""
    turn: int = 0
    """Number of seeks. An answer to a fetch from before a seek is discarded."""
    topic_id: Any = None
    """uuid.UUID of the topic that the position belongs to; None until the first fetch."""
    made_again: bool = False
    """The topic was deleted and created again: the next position is the beginning of its log."""
    untried: bool = False
    """The position is the group's, and no leader has answered a fetch from it yet. If the topic turns out to be a
    different one, the group's offset is looked up again."""

    def start_at(self, offset: int, topic_id: Any = None, *, untried: bool = False) -> None:
        """`topic_id`: the topic to which the offset belongs; None: whichever topic has the name."""
        self.position = self.next_fetch = self.after_records = offset
        self.chunks.clear()
        self.waiting_bytes = 0
        self.records.clear()
        self.current = None
        self.out_of_range = self.made_again = False
        self.topic_id, self.untried = topic_id, untried
        self.turn += 1

    @property
    def drained(self) -> bool:
        """Whether everything that was fetched has been returned."""
        return not self.records and not self.chunks

    def is_of(self, topic: Topic) -> bool:
        """False if the position belongs to a former topic of this name."""
        if self.topic_id is topic.topic_id:  # almost always, and comparing UUIDs is slow
            return True
        if self.topic_id is None or topic.topic_id.int == 0:
            self.topic_id = topic.topic_id
        return bool(self.topic_id == topic.topic_id)

    def forget_position(self) -> None:
        """Call only if `drained`, because buffered records start at the position."""
        self.position = None
        self.topic_id = None
        self.turn += 1

    def keep(self, chunk: Chunk) -> None:
        self.chunks.append(chunk)
        self.waiting_bytes += chunk.size

    def drop_first(self) -> None:
        """Drops the first chunk, which was read to its end."""
        self.waiting_bytes -= self.chunks.popleft().size
