"""What of a fetched answer reaches the application: aborted transactions, control batches, damage."""

from __future__ import annotations

import pytest

from hapax.client.readings import Chunk, Reading
from hapax.codec.batch import patch_prefix
from hapax.codec.control import encode_control
from hapax.codec.records import encode_records
from hapax.core.control import Marker, ProducerFence, ShardFence
from hapax.core.errors import Refusal
from hapax.core.types import PartitionIndex, TopicPartition

P = TopicPartition("t", PartitionIndex(0))


class Log:
    """A partition's bytes, batch after batch."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.end = 0

    def write(self, *values: str, producer: int = -1, transactional: bool = False) -> int:
        batch = encode_records(
            [(0, None, value.encode(), ()) for value in values],
            transactional=transactional,
            producer_id=producer,
            producer_epoch=0,
            base_sequence=0,
        )
        return self._append(batch, len(values))

    def mark(self, producer: int, commit: bool) -> None:
        self._append(encode_control(Marker(producer, 0, commit, 0, 1, 0), 0), 1)  # type: ignore[arg-type]

    def control(self, control: object) -> None:
        self._append(encode_control(control, 0), 1)  # type: ignore[arg-type]

    def _append(self, batch: bytearray, records: int) -> int:
        first = self.end
        patch_prefix(batch, first, 0)
        self.data += batch
        self.end += records
        return first


def read(log: Log, aborted: list[tuple[int, int]], start: int = 0) -> list[str]:
    chunk = Chunk(bytes(log.data), aborted, True)
    found = []
    for header, position, visible in chunk.batches():
        if visible:
            found += [(r.value or b"").decode() for r in chunk.records(P, header, position, start)]
    return found


def test_aborted_transactions_are_left_out_and_others_of_the_same_producer_are_not() -> None:
    log = Log()
    log.write("plain")
    first = log.write("a1", "a2", producer=1, transactional=True)
    log.write("b1", producer=2, transactional=True)
    log.write("between")
    log.mark(1, commit=False)
    log.write("a3", producer=1, transactional=True)
    log.mark(2, commit=True)
    log.mark(1, commit=True)
    second = log.write("a4", producer=1, transactional=True)
    log.mark(1, commit=False)
    log.write("a5", producer=1, transactional=True)
    assert read(log, [(1, second), (1, first)]) == ["plain", "b1", "between", "a3", "a5"]
    assert read(log, []) == ["plain", "a1", "a2", "b1", "between", "a3", "a4", "a5"]


def test_an_answer_that_begins_at_an_abort_marker() -> None:
    log = Log()
    log.mark(1, commit=False)
    log.write("a", producer=1, transactional=True)
    assert read(log, []) == ["a"]
    assert read(log, [(1, -5)]) == ["a"], "begun before this answer, ended by its first marker"


def test_fences_are_hidden_and_end_no_transaction() -> None:
    log = Log()
    first = log.write("a1", producer=1, transactional=True)
    log.control(ShardFence(3, 100))  # type: ignore[arg-type]
    log.control(ProducerFence(1, 2, 0))  # type: ignore[arg-type]
    log.write("a2", producer=1, transactional=True)
    log.mark(1, commit=False)
    log.write("seen")
    assert read(log, [(1, first)]) == ["seen"]


def test_only_records_from_the_position_on() -> None:
    log = Log()
    log.write("0", "1", "2")
    assert read(log, [], start=1) == ["1", "2"]


def test_a_partial_batch_at_the_end_waits_for_the_next_answer() -> None:
    log = Log()
    log.write("0")
    log.write("1")
    del log.data[-3:]
    assert read(log, []) == ["0"]


def test_a_damaged_batch_is_refused() -> None:
    log = Log()
    log.write("0")
    log.data[-1] ^= 1
    with pytest.raises(Refusal, match="damaged"):
        read(log, [])


def test_what_waits_of_a_partition_is_counted_until_it_is_read_or_thrown_away() -> None:
    log = Log()
    log.write("a", "b")
    chunk = Chunk(bytes(log.data), [], True)
    reading = Reading()
    reading.keep(chunk)
    reading.keep(chunk)
    assert reading.waiting_bytes == 2 * len(log.data)
    reading.drop_first()
    assert reading.waiting_bytes == len(log.data)
    reading.start_at(7)
    assert reading.waiting_bytes == 0 and not reading.chunks
