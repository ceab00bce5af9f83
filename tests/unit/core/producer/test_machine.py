"""The producer machine, step by step: what it sends after each answer, and what it tells its owner."""

from __future__ import annotations

import pytest

from hapax.core.errors import ErrorCode
from hapax.core.producer.error_kinds import ErrorKind
from hapax.core.producer.machine import ClientProducer, ProducerOptions
from hapax.core.producer.partition_queue import NO_IDENTITY, Batch, Identity, advance
from hapax.core.producer.states import (
    TRANSITIONS,
    Delivered,
    Ended,
    Event,
    Failed,
    IllegalTransition,
    RequestAddPartitions,
    RequestEndTransaction,
    RequestProducerId,
    SendBatch,
    State,
)
from hapax.core.types import (
    Millis,
    Offset,
    PartitionIndex,
    ProducerEpoch,
    ProducerId,
    Sequence,
    TimestampMs,
    TopicPartition,
)

P0 = TopicPartition("t", PartitionIndex(0))
P1 = TopicPartition("t", PartitionIndex(1))
NOW = Millis(0)
LATER = Millis(1000)
NEVER = Millis(10**9)


def identity(producer_id: int, epoch: int) -> Identity:
    return Identity(ProducerId(producer_id), ProducerEpoch(epoch))


def producer(**options: object) -> ClientProducer:
    machine = ClientProducer(ProducerOptions(**options))  # type: ignore[arg-type]
    machine.initialize()
    assert machine.poll(NOW) == [RequestProducerId(NO_IDENTITY)]
    machine.initialized(identity(7, 0))
    return machine


def batch(records: int = 1, partition: TopicPartition = P0, deadline: Millis = NEVER, name: str = "") -> Batch:
    return Batch(partition, records, deadline, content=name)


def enqueue(machine: ClientProducer, *batches: Batch) -> list[Batch]:
    for each in batches:
        machine.enqueue(each)
    return sent(machine)


def sent(machine: ClientProducer, now: Millis = NOW) -> list[Batch]:
    return [effect.batch for effect in machine.poll(now) if isinstance(effect, SendBatch)]


def deliver(machine: ClientProducer, each: Batch, offset: int = 0) -> None:
    machine.delivered(each, Offset(offset), TimestampMs(-1))


def established(machine: ClientProducer, partition: TopicPartition = P0) -> None:
    first = batch(partition=partition)
    assert enqueue(machine, first) == [first]
    deliver(machine, first)
    machine.poll(NOW)


# --- sequences and the window --------------------------------------------------------------------------------


def test_the_first_batch_of_a_numbering_goes_alone_then_five_are_in_flight() -> None:
    machine = producer()
    batches = [batch(2) for _ in range(7)]
    assert enqueue(machine, *batches) == batches[:1]
    deliver(machine, batches[0])
    assert sent(machine) == batches[1:6]
    assert [b.sequence for b in batches[:6]] == [0, 2, 4, 6, 8, 10]
    assert not machine.wants(P0)
    deliver(machine, batches[1])
    assert sent(machine) == batches[6:]


def test_sequences_wrap_to_zero() -> None:
    assert advance(Sequence(2**31 - 1), 1) == 0
    machine = ClientProducer(ProducerOptions(), identity(7, 3), {P0: Sequence(2**31 - 2)})
    first, second = batch(3), batch(1)
    enqueue(machine, first, second)
    deliver(machine, first)
    sent(machine)
    assert (first.sequence, second.sequence, machine.next_sequences()[P0]) == (2**31 - 2, 1, 2)


def test_after_a_failure_the_outcome_of_all_is_awaited_then_the_first_goes_alone() -> None:
    machine = producer()
    established(machine)
    a, b, c = batch(), batch(), batch()
    assert enqueue(machine, a, b, c) == [a, b, c]
    machine.lost(a, "reset", NOW)
    assert sent(machine, LATER) == []
    assert machine.refused(b, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "", NOW) is ErrorKind.RETRY
    machine.lost(c, "reset", NOW)
    assert sent(machine, NOW) == [], "the pause between attempts"
    machine.expire(LATER)
    assert sent(machine, LATER) == [a]
    assert sent(machine, LATER) == []
    deliver(machine, a)
    assert sent(machine, LATER) == [b, c]
    assert [x.sequence for x in (a, b, c)] == [1, 2, 3]


def test_a_duplicate_is_a_success_whose_offset_is_unknown() -> None:
    machine = producer()
    a = batch()
    enqueue(machine, a)
    assert machine.refused(a, ErrorCode.DUPLICATE_SEQUENCE_NUMBER, "", NOW) is ErrorKind.DUPLICATE
    assert machine.poll(NOW) == [Delivered(a, Offset(-1), TimestampMs(-1))]


# --- losses --------------------------------------------------------------------------------------------------


def test_a_batch_that_expires_before_it_was_numbered_leaves_no_trace() -> None:
    machine = producer()
    a, b, c = batch(), batch(deadline=Millis(500)), batch()
    enqueue(machine, a, b, c)
    machine.expire(LATER)
    (failed,) = machine.poll(LATER)
    assert isinstance(failed, Failed) and failed.batch is b and not failed.maybe_written
    deliver(machine, a)
    assert sent(machine) == [c]
    assert c.sequence == 1


def test_a_batch_that_expires_in_flight_and_is_answered_later_leaves_no_gap() -> None:
    machine = producer()
    established(machine)
    a, b = batch(deadline=Millis(500)), batch()
    enqueue(machine, a, b)
    machine.expire(LATER)
    (failed,) = machine.poll(LATER)
    assert isinstance(failed, Failed) and failed.maybe_written
    deliver(machine, a)
    deliver(machine, b, 2)
    assert machine.poll(LATER) == [Delivered(b, Offset(2), TimestampMs(-1))]
    assert machine.identity == identity(7, 0)


def test_a_partition_whose_only_batch_was_given_up_wants_the_next() -> None:
    """A batch is closed once it is wanted: the next one would lie open for ever."""
    machine = producer()
    only = batch(deadline=LATER)
    assert enqueue(machine, only) == [only]
    machine.unsent(only, "no leader", NOW)
    assert not machine.wants(P0)
    machine.expire(LATER)
    machine.poll(LATER)
    assert machine.pending == 0 and machine.wants(P0)
    following = batch()
    machine.enqueue(following)
    assert sent(machine, Millis(2 * LATER)) == [following]


def test_an_expired_batch_certainly_not_written_gives_its_sequence_to_the_next() -> None:
    machine = producer()
    established(machine)
    a, b = batch(2, deadline=Millis(500)), batch(3)
    enqueue(machine, a, b)
    machine.refused(a, ErrorCode.NOT_ENOUGH_REPLICAS, "", NOW)
    machine.refused(b, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "", NOW)
    machine.expire(LATER)
    assert [type(e) for e in machine.poll(LATER)] == [Failed, SendBatch]
    assert (b.sequence, b.identity.epoch) == (1, 0)


def test_a_lost_batch_that_was_stored_after_all_is_seen_by_the_next_one() -> None:
    machine = producer()
    established(machine)
    a, b = batch(deadline=Millis(500)), batch()
    enqueue(machine, a, b)
    machine.lost(a, "reset", NOW)
    machine.unsent(b, "reset", NOW)
    machine.expire(LATER)
    assert sent(machine, LATER) == [b]
    deliver(machine, b)
    c = batch()
    machine.enqueue(c)
    assert sent(machine, LATER) == [c]
    assert (c.sequence, machine.identity) == (3, identity(7, 0))


def test_a_proven_gap_raises_the_epoch_and_renumbers_what_is_certainly_not_stored() -> None:
    machine = producer()
    established(machine)
    a, b, c = batch(deadline=Millis(500)), batch(), batch()
    enqueue(machine, a, b, c)
    machine.lost(a, "reset", NOW)
    machine.unsent(b, "reset", NOW)
    machine.lost(c, "reset", NOW)
    machine.expire(LATER)
    assert sent(machine, LATER) == [b]
    machine.refused(b, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "", LATER)
    machine.expire(Millis(2000))
    effects = machine.poll(Millis(2000))
    assert [(type(e), e.batch) for e in effects] == [(Failed, c), (SendBatch, b)]  # type: ignore[union-attr]
    assert (b.identity, b.sequence) == (identity(7, 1), 0)
    assert effects[0].maybe_written  # type: ignore[union-attr]


def test_a_raised_epoch_reaches_the_other_partitions_when_their_batches_are_settled() -> None:
    machine = producer()
    established(machine)
    established(machine, P1)
    a, other = batch(), batch(partition=P1)
    enqueue(machine, a, other)
    machine.refused(a, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "the log was cut", NOW)
    machine.expire(LATER)
    assert sent(machine, LATER) == [a]
    assert a.identity == identity(7, 1)
    nxt = batch(partition=P1)
    assert enqueue(machine, nxt) == []
    deliver(machine, other)
    assert sent(machine) == [nxt]
    assert (nxt.identity, nxt.sequence, other.identity) == (identity(7, 1), 0, identity(7, 0))


def test_epochs_used_up_bring_a_new_producer_id() -> None:
    machine = ClientProducer(ProducerOptions(), identity(7, 32766))
    a = batch()
    enqueue(machine, a)
    machine.refused(a, ErrorCode.UNKNOWN_PRODUCER_ID, "", NOW)
    machine.expire(LATER)
    assert machine.poll(LATER) == [RequestProducerId(NO_IDENTITY)]
    assert machine.state is State.INITIALIZING
    machine.initialized(identity(8, 0))
    assert sent(machine, LATER) == [a]
    assert (a.identity, a.sequence) == (identity(8, 0), 0)


def test_a_leased_producer_never_raises_its_generation_itself() -> None:
    machine = ClientProducer(ProducerOptions(leased=True), identity(7, 4), {P0: Sequence(10)})
    a = batch()
    enqueue(machine, a)
    machine.refused(a, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "", NOW)
    (failed,) = machine.poll(LATER)
    assert isinstance(failed, Failed) and machine.state is State.FATAL_ERROR
    assert machine.trouble is not None and "take the lease again" in machine.trouble.reason


def test_a_refused_batch_lets_the_others_go_on() -> None:
    machine = producer()
    established(machine)
    a, b = batch(), batch()
    enqueue(machine, a, b)
    assert machine.refused(a, ErrorCode.MESSAGE_TOO_LARGE, "too large", NOW) is ErrorKind.REFUSED
    (failed,) = machine.poll(NOW)
    assert isinstance(failed, Failed) and not failed.maybe_written
    machine.refused(b, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "", NOW)
    machine.expire(LATER)
    assert sent(machine, LATER) == [b]
    assert b.identity == identity(7, 1)


def test_retries_are_counted() -> None:
    machine = producer(retries=1)
    a = batch()
    enqueue(machine, a)
    machine.unsent(a, "no leader", NOW)
    machine.expire(LATER)
    assert sent(machine, LATER) == [a]
    machine.unsent(a, "no leader", LATER)
    (failed,) = machine.poll(LATER)
    assert isinstance(failed, Failed) and failed.trouble.reason == "no leader"


def test_another_leader_is_tried_without_a_pause() -> None:
    machine = producer()
    a, b = batch(), batch(partition=P1)
    assert enqueue(machine, a, b) == [a, b]
    for each in (a, b):
        machine.refused(each, ErrorCode.NOT_LEADER_OR_FOLLOWER, "", NOW)
    assert sent(machine, NOW) == []
    machine.leader_moved(a.partition)
    machine.leader_moved(TopicPartition("other", PartitionIndex(0)))  # nothing was sent there
    assert sent(machine, NOW) == [a]
    machine.expire(LATER)
    assert sent(machine, LATER) == [b]


def test_pauses_between_attempts_double_up_to_the_maximum() -> None:
    options = ProducerOptions(retry_backoff_ms=100, retry_backoff_max_ms=1000)
    assert [options.pause_ms(attempts) for attempts in (1, 2, 3, 4, 5, 100)] == [100, 200, 400, 800, 1000, 1000]


def test_a_fenced_idempotent_producer_is_finished() -> None:
    machine = producer()
    a, b = batch(), batch()
    enqueue(machine, a, b)
    assert machine.refused(a, ErrorCode.INVALID_PRODUCER_EPOCH, "taken over", NOW) is ErrorKind.FENCED
    assert [type(e) for e in machine.poll(NOW)] == [Failed, Failed]
    with pytest.raises(IllegalTransition, match="taken over"):
        machine.enqueue(batch())


def test_without_idempotence_batches_bear_no_sequence_and_stay_in_order() -> None:
    machine = ClientProducer(ProducerOptions(idempotent=False))
    established(machine)
    a, b = batch(), batch()
    assert enqueue(machine, a, b) == [a, b]
    assert (a.identity, a.sequence) == (NO_IDENTITY, -1)
    machine.lost(a, "reset", NOW)
    machine.lost(b, "reset", NOW)
    machine.expire(LATER)
    assert sent(machine, LATER) == [a]


# --- transactions --------------------------------------------------------------------------------------------


def transaction(version: int = 2) -> ClientProducer:
    machine = producer(transactional=True, version=version)
    machine.begin()
    return machine


def test_version_2_commits_after_the_last_batch_and_begins_anew_at_zero_under_the_next_epoch() -> None:
    machine = transaction()
    a = batch()
    assert enqueue(machine, a) == [a]
    machine.commit()
    assert machine.poll(NOW) == []
    deliver(machine, a)
    assert machine.poll(NOW) == [Delivered(a, Offset(0), TimestampMs(-1)), RequestEndTransaction(True)]
    machine.ended(identity(7, 1))
    assert machine.poll(NOW) == [Ended(True)]
    machine.begin()
    b = batch()
    assert enqueue(machine, b) == [b]
    assert (b.identity, b.sequence) == (identity(7, 1), 0)


def test_version_1_registers_each_partition_once_per_transaction_and_keeps_its_sequences() -> None:
    machine = transaction(version=1)
    a, b = batch(), batch(partition=P1)
    machine.enqueue(a)
    assert machine.poll(NOW) == [RequestAddPartitions((P0,))]
    machine.enqueue(b)
    assert machine.poll(NOW) == []
    machine.partitions_added()
    assert machine.poll(NOW) == [SendBatch(a), RequestAddPartitions((P1,))]
    machine.partitions_added()
    assert sent(machine) == [b]
    deliver(machine, a)
    deliver(machine, b)
    machine.commit()
    assert machine.poll(NOW)[-1] == RequestEndTransaction(True)
    machine.ended(None)
    machine.poll(NOW)
    machine.begin()
    c = batch()
    machine.enqueue(c)
    assert machine.poll(NOW) == [RequestAddPartitions((P0,))]
    machine.partitions_added()
    assert sent(machine) == [c]
    assert (c.identity, c.sequence) == (identity(7, 0), 1)


def test_an_abort_waits_until_what_is_being_registered_is_answered() -> None:
    """Repeated on a new connection the registration would come after the end: the end would find nothing to end, or the
    registration would open the next transaction, which nobody ends."""
    machine = transaction(version=1)
    machine.enqueue(batch())
    assert machine.poll(NOW) == [RequestAddPartitions((P0,))]
    machine.abort()
    assert [type(effect) for effect in machine.poll(NOW)] == [Failed]
    machine.partitions_added()
    assert machine.poll(NOW) == [RequestEndTransaction(False)]


def test_a_registration_that_is_refused_does_not_spoil_the_abort_that_waits_for_it() -> None:
    machine = transaction(version=1)
    machine.enqueue(batch())
    machine.poll(NOW)
    machine.abort()
    machine.poll(NOW)
    assert machine.coordinator_refused(ErrorCode.TRANSACTION_ABORTABLE) is ErrorKind.ABORT
    assert machine.poll(NOW) == [RequestEndTransaction(False)]
    machine.ended(None)
    assert machine.state is State.READY


def test_a_transaction_without_writes_needs_no_coordinator() -> None:
    for end in (ClientProducer.commit, ClientProducer.abort):
        machine = transaction()
        end(machine)
        assert machine.poll(NOW) == [Ended(end is ClientProducer.commit)]
        assert machine.state is State.READY


def test_a_commit_with_a_token_is_decided_even_without_writes() -> None:
    machine = transaction()
    machine.commit(always=True)
    assert machine.poll(NOW) == [RequestEndTransaction(True)]


def test_offsets_alone_are_something_to_decide() -> None:
    machine = transaction()
    machine.offsets_sent()
    machine.commit()
    assert machine.poll(NOW) == [RequestEndTransaction(True)]


def test_an_abort_drops_what_is_unsent_and_awaits_what_is_in_flight() -> None:
    machine = transaction()
    a, b = batch(), batch()
    enqueue(machine, a, b)
    machine.abort()
    (failed,) = machine.poll(NOW)
    assert isinstance(failed, Failed) and failed.batch is b
    machine.lost(a, "reset", NOW)
    assert [type(e) for e in machine.poll(NOW)] == [Failed, RequestEndTransaction]


def test_a_lost_batch_makes_the_transaction_abortable_and_nothing_else() -> None:
    machine = transaction()
    a = batch(deadline=Millis(500))
    enqueue(machine, a)
    machine.lost(a, "reset", NOW)
    machine.expire(LATER)
    (failed,) = machine.poll(LATER)
    assert isinstance(failed, Failed) and failed.maybe_written
    for forbidden in (lambda: machine.enqueue(batch()), machine.commit, machine.begin):
        with pytest.raises(IllegalTransition, match=r"delivery\.timeout\.ms"):
            forbidden()
    machine.abort()
    assert machine.poll(LATER) == [RequestEndTransaction(False)]
    machine.ended(identity(7, 1))
    assert machine.poll(LATER) == [Ended(False)] and machine.trouble is None


def test_version_1_raises_the_epoch_after_an_abort_that_left_a_batch_in_doubt() -> None:
    machine = transaction(version=1)
    a = batch(deadline=Millis(500))
    machine.enqueue(a)
    machine.poll(NOW)
    machine.partitions_added()
    sent(machine)
    machine.lost(a, "reset", NOW)
    machine.expire(LATER)
    machine.poll(LATER)
    machine.abort()
    assert machine.poll(LATER) == [RequestEndTransaction(False)]
    machine.ended(None)
    assert machine.poll(LATER) == [RequestProducerId(identity(7, 0))]
    machine.initialized(identity(7, 1))
    assert machine.poll(LATER) == [Ended(False)]
    assert machine.state is State.READY


def test_a_failure_while_committing_fails_the_commit() -> None:
    machine = transaction()
    a = batch()
    enqueue(machine, a)
    machine.commit()
    machine.refused(a, ErrorCode.TRANSACTION_ABORTABLE, "not in the transaction", NOW)
    assert [type(e) for e in machine.poll(NOW)] == [Failed]
    assert machine.state is State.ABORTABLE_ERROR
    machine.abort()
    assert machine.poll(NOW) == [RequestEndTransaction(False)]


def test_a_refused_commit_that_may_have_been_decided_is_never_taken_for_aborted() -> None:
    machine = transaction()
    a = batch()
    enqueue(machine, a)
    assert machine.coordinator_refused(ErrorCode.UNKNOWN_SERVER_ERROR) is ErrorKind.FATAL
    assert machine.state is State.FATAL_ERROR


def test_a_stale_epoch_at_produce_is_abortable_and_at_the_coordinator_final() -> None:
    machine = transaction()
    a = batch()
    enqueue(machine, a)
    assert machine.refused(a, ErrorCode.INVALID_PRODUCER_EPOCH, "", NOW) is ErrorKind.ABORT
    machine.abort()
    assert machine.coordinator_refused(ErrorCode.CONCURRENT_TRANSACTIONS) is ErrorKind.RETRY
    assert machine.coordinator_refused(ErrorCode.PRODUCER_FENCED, "by x") is ErrorKind.FENCED
    assert machine.state is State.FATAL_ERROR


@pytest.mark.parametrize("code", [ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.GROUP_AUTHORIZATION_FAILED])
def test_a_topic_or_group_that_is_not_allowed_costs_the_transaction_and_not_the_producer(code: ErrorCode) -> None:
    machine = transaction()
    machine.offsets_sent()
    assert machine.coordinator_refused(code) is ErrorKind.ABORT
    machine.abort()
    assert machine.poll(NOW) == [RequestEndTransaction(False)]
    machine.ended(None)
    machine.begin()


def test_transactions_need_an_id_and_an_order() -> None:
    machine = producer()
    with pytest.raises(IllegalTransition, match=r"transactional\.id"):
        machine.begin()
    machine = producer(transactional=True)
    with pytest.raises(IllegalTransition, match="cannot send a record in state READY"):
        machine.enqueue(batch())
    with pytest.raises(IllegalTransition, match="cannot commit in state READY"):
        machine.commit()


def test_the_table_leads_out_of_no_fatal_error() -> None:
    out = {event for (state, event), after in TRANSITIONS.items() if state is State.FATAL_ERROR and after is not state}
    assert out == set()
    assert all((state, Event.FAIL) in TRANSITIONS for state in State)
