"""Corners of the partition machine that no story tells: what the scripts under tests/scenarios/partition leave out."""

from __future__ import annotations

import pytest

from hapax.core.batch import LOG_APPEND_TIME
from hapax.core.control import Marker, ProducerExpiry, ProducerFence, ShardFence
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.partition.aborted_index import AbortedIndex, AbortedTransaction
from hapax.core.partition.leader_epochs import LeaderEpochs
from hapax.core.partition.machine import APPEND, VERIFIED, AppendContext, Duplicate, PartitionMachine
from hapax.core.sequence import MAX_SEQUENCE, advance, distance
from scenarios.partition_log import LoggedPartition, data_header


def test_sequence_arithmetic_wraps() -> None:
    assert advance(-1, 1) == 0
    assert advance(MAX_SEQUENCE, 1) == 0
    assert advance(MAX_SEQUENCE - 1, 5) == 3
    assert advance(3, -5) == MAX_SEQUENCE - 1
    assert distance(MAX_SEQUENCE, 0) == 1
    assert distance(0, MAX_SEQUENCE) == -1
    assert distance(5, 5) == 0


def test_batches_without_a_producer_leave_no_state() -> None:
    log = LoggedPartition()
    assert log.partition.decide_append(data_header(-1, -1, -1, 3), 0) is APPEND
    log.append(data_header(-1, -1, -1, 3))
    assert log.partition.log_end_offset == 3
    assert list(log.partition.describe_producers()) == []


def test_replay_refuses_a_batch_below_the_end_of_the_log() -> None:
    partition = PartitionMachine()
    partition.replay(data_header(-1, -1, -1, 3))
    with pytest.raises(ValueError, match="batch at 0 in a log that ends at 3"):
        partition.replay(data_header(-1, -1, -1, 3))


def test_replay_accepts_the_gaps_of_a_compacted_log() -> None:
    partition = PartitionMachine()
    partition.replay(data_header(7, 0, 0, 2))
    partition.replay(data_header(7, 0, 9, 1)._replace(base_offset=20))
    assert partition.log_end_offset == 21


def test_a_verified_batch_waits_for_the_marker_of_the_former_epoch() -> None:
    log = LoggedPartition()
    log.append(data_header(7, 0, 0, 1, transactional=True))
    with pytest.raises(Refusal) as refused:
        log.partition.decide_append(data_header(7, 1, 0, 1, transactional=True), 0, VERIFIED)
    assert refused.value.code == ErrorCode.NOT_ENOUGH_REPLICAS


def test_an_internal_write_of_a_fenced_producer_is_refused() -> None:
    log = LoggedPartition()
    log.append_control(Marker(7, 5, True, 0, serial=1))
    context = AppendContext(internal=True, shard_epoch=-1)
    with pytest.raises(Refusal) as refused:
        log.partition.decide_append(data_header(7, 4, -1, 1, transactional=True), 0, context)
    assert refused.value.code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert log.partition.decide_append(data_header(7, 5, -1, 1, transactional=True), 0, context) is APPEND


def test_internal_writers_send_fences_and_markers_and_nothing_else() -> None:
    log = LoggedPartition()
    log.append_control(ShardFence(3, 100))
    partition = log.partition
    assert partition.decide_control(ShardFence(3, 100), 3) is APPEND, "its answer was lost"
    assert partition.decide_control(Marker(7, 0, True, 0, serial=1), 3) is APPEND
    for control, shard_epoch, code in (
        (Marker(7, 0, True, 0, serial=1), 2, ErrorCode.TRANSACTION_COORDINATOR_FENCED),
        (Marker(7, 0, True, 0, serial=1), 4, ErrorCode.OPERATION_NOT_ATTEMPTED),
        (ProducerFence(7, 0, 10), 3, ErrorCode.INVALID_RECORD),
        (ProducerExpiry(0, 0), 3, ErrorCode.INVALID_RECORD),
        (ShardFence(4, 100), 3, ErrorCode.INVALID_RECORD),
    ):
        with pytest.raises(Refusal) as refused:
            partition.decide_control(control, shard_epoch)
        assert refused.value.code == code


def test_a_leased_producer_with_an_open_transaction_is_not_taken_over() -> None:
    log = LoggedPartition()
    log.append(data_header(7, 0, 0, 1, transactional=True))
    with pytest.raises(Refusal) as refused:
        log.partition.decide_producer_fence(ProducerFence(7, 1, 10))
    assert refused.value.code == ErrorCode.INVALID_TXN_STATE


def test_refused_batches_are_awaited_in_bounded_number() -> None:
    partition = PartitionMachine()
    for pid in range(3000):
        partition.note_refused(data_header(pid, 0, 5, 1))
    with pytest.raises(Refusal):
        partition.decide_append(data_header(2999, 0, 6, 1), 0)
    assert partition.decide_append(data_header(0, 0, 6, 1), 0) is APPEND, "so long ago that it was forgotten"
    partition.note_refused(data_header(2999, 0, 3, 1))
    with pytest.raises(Refusal):
        partition.decide_append(data_header(2999, 0, 5, 1), 0)
    assert partition.decide_append(data_header(2999, 1, 5, 1), 0) is APPEND, "another epoch"


def test_a_refused_batch_of_an_older_epoch_hides_none_of_a_newer_one() -> None:
    """A zombie's, or one of a lease that was taken over, comes after the first batch of today's producer."""
    partition = PartitionMachine()
    partition.note_refused(data_header(7, 0, 9, 1))
    partition.note_refused(data_header(7, 1, 0, 1))
    partition.note_refused(data_header(7, 0, 5, 1))
    with pytest.raises(Refusal) as refused:
        partition.decide_append(data_header(7, 1, 1, 1), 0)
    assert refused.value.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert partition.decide_append(data_header(7, 1, 0, 1), 0) is APPEND


def test_a_snapshot_ahead_of_the_truncation_point_is_refused() -> None:
    log = LoggedPartition()
    log.append(data_header(7, 0, 0, 5))
    with pytest.raises(ValueError, match="snapshot at 5"):
        log.partition.truncate_to(3, log.partition.snapshot(), 0)


def test_a_snapshot_is_detached() -> None:
    log = LoggedPartition()
    log.append(data_header(7, 0, 0, 1, transactional=True))
    snapshot = log.partition.snapshot()
    log.append(data_header(7, 0, 1, 1, transactional=True))
    assert snapshot.open_transactions[0].record_count == 1
    restored = PartitionMachine(snapshot)
    restored.replay(data_header(7, 0, 1, 1, transactional=True)._replace(base_offset=1))
    assert snapshot.open_transactions[0].record_count == 1


def test_what_was_decided_above_the_high_watermark_stays_hidden_after_a_snapshot() -> None:
    """Its marker may yet be taken back: the snapshot carries it as undecided."""
    log = LoggedPartition()
    log.append(data_header(7, 0, 0, 1, transactional=True))
    log.sync()
    log.append_control(Marker(7, 0, True, 0, serial=1))
    restored = PartitionMachine(log.partition.snapshot())
    restored.advance_high_watermark(1)
    assert restored.last_stable_offset == 0
    restored.advance_high_watermark(2)
    assert restored.last_stable_offset == 2


def test_a_snapshot_older_than_the_high_watermark_hides_nothing_again() -> None:
    """Found by the property test: truncated to a snapshot from before the marker was committed."""
    log = LoggedPartition()
    log.append(data_header(7, 0, 0, 1, transactional=True))
    log.append_control(Marker(7, 0, True, 0, serial=1))
    log.take_snapshot()
    log.sync()
    log.append(data_header(8, 0, 0, 1))
    log.truncate_to(2)
    assert (log.partition.high_watermark, log.partition.last_stable_offset) == (2, 2)


def test_the_high_watermark_never_goes_back() -> None:
    partition = PartitionMachine()
    partition.replay(data_header(-1, -1, -1, 9))
    assert partition.advance_high_watermark(5)
    assert not partition.advance_high_watermark(5)
    assert not partition.advance_high_watermark(3)
    assert partition.high_watermark == 5


def test_expiry_comes_round_in_small_steps() -> None:
    """Each call looks at a bounded number of pages; the record comes when the hand meets somebody to forget."""
    partition = PartitionMachine(expiry_ms=1000)
    assert partition.decide_expiry(0) is None
    for pid in range(5000):
        partition.replay(data_header(pid, 0, 0, 1)._replace(base_offset=pid))
    partition.decide_expiry(500)
    due = [partition.decide_expiry(1500 + i) for i in range(3)]
    assert due[0] is not None and due[0].below_offset == 5000
    before = partition.producers.count
    partition.replay_control(data_header(-1, -1, -1, 1)._replace(base_offset=5000), due[0])
    assert list(partition.describe_producers()) == []
    assert partition.producers.count == before, "nothing was scanned at that moment"
    swept = []
    while partition.producers.count:
        left = partition.producers.count
        assert partition.decide_expiry(1600) is None
        swept.append(left - partition.producers.count)
    assert max(swept) < 1000


def test_the_aborted_index_covers_exactly_the_range() -> None:
    entries = [
        AbortedTransaction(1, 0, 10, 4),
        AbortedTransaction(2, 4, 20, 21),
        AbortedTransaction(3, 30, 40, 41),
    ]
    index = AbortedIndex(entries)
    assert index.overlapping(0, 4) == entries[:1]
    assert index.overlapping(10, 21) == entries[:2]
    assert index.overlapping(11, 31) == entries[1:]
    assert index.overlapping(21, 30) == []
    assert index.overlapping(40, 41) == entries[2:]
    assert index.overlapping(41, 99) == []
    with pytest.raises(ValueError, match="marker at 40 after one at 40"):
        index.add(entries[2])
    index.advance_start(11)
    assert list(index) == entries[1:]
    index.truncate_to(40)
    assert list(index) == entries[1:2]


def test_leader_epochs_answer_where_an_epoch_ends() -> None:
    epochs = LeaderEpochs([(1, 0), (3, 10)])
    assert not epochs.assign(3, 12)
    assert epochs.assign(5, 20)
    assert epochs.end_offset_of(0, 30) == (-1, -1)
    assert epochs.end_offset_of(1, 30) == (1, 10)
    assert epochs.end_offset_of(2, 30) == (1, 10)
    assert epochs.end_offset_of(4, 30) == (3, 20)
    assert epochs.end_offset_of(5, 30) == (5, 30)
    assert epochs.end_offset_of(6, 30) == (-1, -1)
    assert epochs.answer(0, 9, 30) == (0, 0), "older than all that is left: the log's beginning"
    assert epochs.answer(2, 9, 30) == (1, 10)
    assert epochs.answer(5, 9, 30) == (5, 30)
    assert epochs.answer(7, 9, 30) == (5, 30), "nothing was written in 6 to 8"
    assert epochs.answer(9, 9, 30) == (9, 30)
    assert epochs.answer(10, 9, 30) == (-1, -1)
    assert LeaderEpochs().answer(3, 9, 0) == (3, 0)
    epochs.assign(6, 20)  # leader 5 wrote nothing that survived
    assert epochs.entries() == [(1, 0), (3, 10), (6, 20)]
    epochs.advance_start(12)
    assert epochs.entries() == [(3, 12), (6, 20)]
    epochs.truncate_to(15)
    assert epochs.entries() == [(3, 12)]
    assert epochs.latest == 3
    epochs.truncate_to(12)
    assert epochs.latest == -1


def test_markers_of_one_append_count_on_one_another() -> None:
    log = LoggedPartition()
    decisions = log.partition.decide_markers(
        [Marker(1, 0, True, 0, serial=4), Marker(2, 0, True, 0, serial=4), Marker(1, 0, False, 0, serial=4)]
    )
    assert decisions == [APPEND, APPEND, Duplicate(0, 0)]


def test_a_stable_offset_is_never_below_the_start_of_the_log() -> None:
    log = LoggedPartition()
    log.append(data_header(7, 0, 0, 1, transactional=True))
    log.append(data_header(8, 0, 0, 4))
    log.sync()
    log.partition.advance_log_start(3)
    assert log.partition.last_stable_offset == 3


def test_readers_wait_for_each_marker_to_be_committed() -> None:
    """Markers that become committed one by one: the second transaction stays hidden when the first one shows."""
    log = LoggedPartition()
    log.append(data_header(1, 0, 0, 1, transactional=True))
    log.append(data_header(2, 0, 0, 1, transactional=True))
    log.append_control(Marker(1, 0, True, 0, serial=1))
    log.append_control(Marker(2, 0, True, 0, serial=1))
    stable = []
    for high_watermark in (2, 3, 4):
        log.partition.advance_high_watermark(high_watermark)
        stable.append(log.partition.last_stable_offset)
    assert stable == [0, 1, 4]


def test_a_replaced_coordinator_is_known_by_the_producers_last_marker_too() -> None:
    """Markers of tools, and Kafka's own, name no shard."""
    log = LoggedPartition()
    log.append_control(Marker(1, 0, True, 5))
    with pytest.raises(Refusal) as refused:
        log.partition.decide_marker(Marker(1, 0, True, 4))
    assert refused.value.code == ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert log.partition.decide_marker(Marker(1, 0, True, 5)) is APPEND


def test_a_batch_that_bears_the_leaders_time_is_no_other_batch() -> None:
    """With LogAppendTime the checksum in the log is not the client's."""
    log = LoggedPartition()
    sent = data_header(7, 0, 0, 1, transactional=True, values=("a",))
    log.append(sent._replace(crc=1, attributes=sent.attributes | LOG_APPEND_TIME))
    assert log.partition.decide_append(sent, 0) == Duplicate(0, 0)
