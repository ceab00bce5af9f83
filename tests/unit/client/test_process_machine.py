"""What a processor does next, without I/O."""

from __future__ import annotations

import pytest

from hapax.client.errors import AbortableError, FatalError, FencedError, HapaxError, RetriableError
from hapax.client.process_machine import (
    Abort,
    Action,
    Call,
    Collect,
    Commit,
    Done,
    Finish,
    GoBack,
    Kind,
    Pause,
    ProcessMachine,
    Renew,
    Rules,
    Write,
)
from hapax.client.process_records import Failed, NewRecord
from hapax.client.processor import kind_of
from hapax.client.records import Record
from hapax.core.errors import ErrorCode
from hapax.core.types import Millis, PartitionIndex, TopicPartition

LOST = AbortableError("the group has begun another generation", code=ErrorCode.ILLEGAL_GENERATION)
UNKNOWN = RetriableError("no answer", code=ErrorCode.NETWORK_EXCEPTION)
TOO_LARGE = AbortableError("too large", code=ErrorCode.MESSAGE_TOO_LARGE)


def part(number: int = 0) -> TopicPartition:
    return TopicPartition("in", PartitionIndex(number))


def records(*offsets: int, partition: int = 0) -> list[Record]:
    return [Record("in", partition, offset, 0, 0, b"k", b"%d" % offset, ()) for offset in offsets]


class Shell:
    """Carries out actions at times that the test chooses."""

    def __init__(self, **rules: object) -> None:
        self.machine = ProcessMachine(Rules("g", **rules))  # type: ignore[arg-type]
        self.now = Millis(1000)

    def next(self) -> Action:
        """The next action after all pauses."""
        while isinstance(action := self.machine.next(self.now), Pause):
            self.now = Millis(self.now + action.ms)
        return action

    def collect(self, *found: Record) -> None:
        assert isinstance(self.next(), Collect)
        self.machine.collected(found, self.now)
        self.now = Millis(self.now + 100)

    def call(self, failing: dict[int, Exception] | None = None, *, poison: bool = False) -> None:
        """Calls the function; it raises for the given offsets."""
        action = self.next()
        assert isinstance(action, Call), action
        for done, record in enumerate(action.records):
            error = (failing or {}).get(record.offset)
            if error is not None:
                outputs = [NewRecord("out", r.value) for r in action.records[:done]]
                self.machine.called(done, outputs, Failed(error, poison), self.now)
                return
        self.machine.called(
            len(action.records), [NewRecord("out", r.value) for r in action.records], None, self.now)

    def write(self) -> Write:
        action = self.next()
        assert isinstance(action, Write), action
        self.machine.written()
        return action

    def commit(self) -> Done:
        assert isinstance(self.next(), Commit)
        return self.machine.committed()

    def fail(self, kind: Kind, error: HapaxError) -> None:
        self.machine.failed(kind, error, self.now)

    def abort(self) -> dict[TopicPartition, int]:
        """Aborts and goes back. Returns where to."""
        assert isinstance(self.next(), Abort)
        self.machine.aborted()
        action = self.next()
        assert isinstance(action, GoBack), action
        self.machine.gone_back()
        return action.first


def finished(shell: Shell) -> BaseException | None:
    action = shell.next()
    assert isinstance(action, Finish), action
    return action.error


def test_a_batch_is_collected_processed_written_and_committed() -> None:
    shell = Shell()
    shell.collect(*records(3, 4), *records(7, partition=1))
    shell.call()
    assert shell.write() == Write(
        [NewRecord("out", b"3"), NewRecord("out", b"4"), NewRecord("out", b"7")], frozenset({part(0), part(1)}))
    assert shell.commit() == Done(3, 3, [])
    assert isinstance(shell.next(), Collect)


def test_a_batch_is_due_by_number_or_by_time() -> None:
    shell = Shell(batch_records=3, batch_ms=50)
    assert shell.machine.next(shell.now) == Collect(500, 3)
    shell.machine.collected(records(0), shell.now)
    assert shell.machine.next(shell.now) == Collect(50, 2)
    assert shell.machine.next(Millis(shell.now + 20)) == Collect(30, 2)
    shell.machine.collected(records(1, 2), shell.now)
    assert shell.machine.next(shell.now) == Call(records(0, 1, 2))
    other = Shell(batch_records=3, batch_ms=50)
    other.machine.collected(records(0), other.now)
    assert other.machine.next(Millis(other.now + 50)) == Call(records(0))


def test_partitions_that_are_given_up_are_forgotten() -> None:
    shell = Shell()
    shell.machine.collected(records(3, 4) + records(7, partition=1), shell.now)
    shell.machine.given_up([part(0)])
    shell.now = Millis(shell.now + 1000)
    assert shell.next() == Call(records(7, partition=1))
    shell.call()
    assert shell.write().partitions == {part(1)}


def test_an_abort_goes_back_with_half_a_batch_and_recovers() -> None:
    shell = Shell(batch_records=8)
    for left in (4, 2, 1, 1):
        action = shell.next()
        assert isinstance(action, Collect)
        shell.collect(*records(*range(5, 5 + action.limit)))
        shell.call()
        shell.write()
        shell.fail(Kind.PASSING, LOST)
        assert shell.abort() == {part(): 5}
        assert shell.machine.limit == left
    for left in (2, 4, 8, 8):
        shell.collect(*records(*range(shell.machine.limit)))
        shell.call()
        shell.write()
        shell.commit()
        assert shell.machine.limit == left


def test_each_abort_is_followed_by_a_longer_pause() -> None:
    shell, pauses = Shell(pause_ms=100, pause_max_ms=400), []
    for _ in range(4):
        shell.collect(*records(0))
        shell.call()
        shell.write()
        shell.fail(Kind.PASSING, LOST)
        action = shell.machine.next(shell.now)
        assert isinstance(action, Pause)
        pauses.append(action.ms)
        shell.abort()
    assert pauses == [100, 200, 400, 400]


def test_the_outcome_of_a_commit_is_asked_for_until_its_time_is_up() -> None:
    shell = Shell(outcome_ms=3000, pause_ms=100, pause_max_ms=1000)
    shell.collect(*records(0))
    shell.call()
    shell.write()
    times = 0
    while isinstance(shell.next(), Commit):
        shell.fail(Kind.UNKNOWN, UNKNOWN)
        times += 1
    error = finished(shell)
    assert times == 7 and isinstance(error, RetriableError) and error.maybe_written
    assert "not known" in str(error) and "Start again" in str(error)


def test_a_commit_that_had_no_answer_may_still_be_answered() -> None:
    shell = Shell()
    shell.collect(*records(0))
    shell.call()
    shell.write()
    assert isinstance(shell.next(), Commit)
    shell.fail(Kind.UNKNOWN, UNKNOWN)
    assert shell.commit().records == 1


def test_a_stop_gives_up_what_waits_and_finishes_what_runs() -> None:
    idle = Shell()
    idle.collect(*records(0))
    idle.machine.stop(idle.now)
    assert finished(idle) is None

    calling = Shell()
    calling.collect(*records(0, 1))
    assert isinstance(calling.next(), Call)
    calling.machine.stop(calling.now)
    calling.call()
    calling.write()
    assert calling.commit().records == 2
    assert finished(calling) is None


def test_a_stop_does_not_wait_for_further_attempts() -> None:
    shell = Shell()
    shell.collect(*records(0))
    shell.call({0: OSError()})
    shell.machine.stop(shell.now)
    assert finished(shell) is None


def test_after_a_stop_an_aborted_batch_is_not_read_again() -> None:
    shell = Shell()
    shell.collect(*records(0))
    shell.call()
    shell.write()
    shell.machine.stop(shell.now)
    shell.fail(Kind.PASSING, LOST)
    assert isinstance(shell.next(), Abort)
    shell.machine.aborted()
    assert finished(shell) is None


def test_a_stop_while_the_outcome_is_unknown_is_bounded_and_guesses_nothing() -> None:
    shell = Shell(outcome_ms=100_000, stop_ms=2000)
    shell.collect(*records(0))
    shell.call()
    shell.write()
    shell.machine.stop(shell.now)
    began = shell.now
    while isinstance(shell.next(), Commit):
        shell.fail(Kind.UNKNOWN, UNKNOWN)
    assert shell.now - began == 2000
    error = finished(shell)
    assert isinstance(error, RetriableError) and "not known" in str(error)


@pytest.mark.parametrize(("steps", "said"), [(3, "not known"), (2, "still open"), (1, None)])
def test_what_is_cut_off_at_the_end_of_a_stop(steps: int, said: str | None) -> None:
    shell = Shell()
    shell.collect(*records(0))
    for step in (shell.call, shell.write)[: steps - 1]:
        step()
    shell.next()
    shell.machine.stop(shell.now)
    shell.machine.overdue(UNKNOWN)
    error = finished(shell)
    assert error is None if said is None else said in str(error)


def test_an_exception_is_tried_again_and_then_raised() -> None:
    shell, error = Shell(attempts=3), ValueError("bad")
    shell.collect(*records(0, 1, 2))
    for _ in range(3):
        shell.call({1: error})
    assert finished(shell) is error


def test_results_stay_in_the_order_of_the_records() -> None:
    shell = Shell(attempts=3)
    shell.collect(*records(0, 1, 2))
    shell.call({1: OSError()})
    assert shell.next() == Call(records(1, 2))
    shell.call({1: OSError()})
    shell.call()
    assert [each.value for each in shell.write().outputs] == [b"0", b"1", b"2"]


def test_a_poison_record_becomes_a_dead_letter_in_the_same_transaction() -> None:
    shell, error = Shell(dead_letters="dead", attempts=3), ValueError("bad")
    shell.collect(*records(0, 1, 2))
    shell.call({1: error}, poison=True)
    shell.call()
    outputs = shell.write().outputs
    assert [(each.topic, each.value) for each in outputs] == [("out", b"0"), ("dead", b"1"), ("out", b"2")]
    assert dict(outputs[1].headers) == {
        "hapax.dead.group": b"g", "hapax.dead.topic": b"in", "hapax.dead.partition": b"0", "hapax.dead.offset": b"1",
        "hapax.dead.timestamp.ms": b"0", "hapax.dead.error": b"builtins.ValueError", "hapax.dead.message": b"bad",
        "hapax.dead.attempts": b"1"}
    assert shell.commit() == Done(3, 3, [(records(1)[0], Failed(error, True, 1))])


def test_dead_letters_of_an_aborted_batch_are_not_reported() -> None:
    shell = Shell(dead_letters="dead")
    shell.collect(*records(0))
    shell.call({0: ValueError()}, poison=True)
    shell.write()
    shell.fail(Kind.PASSING, LOST)
    shell.abort()
    shell.collect(*records(0))
    shell.call()
    shell.write()
    assert shell.commit() == Done(1, 1, [])


def test_the_poison_of_a_list_is_found_one_by_one() -> None:
    shell = Shell(dead_letters="dead", whole_batches=True, attempts=2)
    shell.collect(*records(0, 1, 2))
    assert shell.next() == Call(records(0, 1, 2))
    shell.machine.called(0, [], Failed(OSError("?"), False), shell.now)
    calls = []
    while isinstance(action := shell.next(), Call):
        calls.append([each.offset for each in action.records])
        shell.call({1: OSError("?")})
    assert calls == [[0], [1], [1], [2]]
    assert [each.topic for each in shell.write().outputs] == ["out", "dead", "out"]
    shell.commit()
    shell.collect(*records(3, 4))
    assert shell.next() == Call(records(3, 4))


def test_a_record_whose_result_is_refused_is_found_by_halves_and_becomes_a_dead_letter() -> None:
    shell = Shell(dead_letters="dead", attempts=2, batch_records=4)
    log, at, committed, transactions = records(*range(8)), 0, [], 0
    while at < len(log):
        shell.collect(*log[at : at + shell.machine.limit])
        if isinstance(shell.next(), Call):
            shell.call()
        outputs = shell.write().outputs
        transactions += 1
        if NewRecord("out", b"5") in outputs:
            shell.fail(Kind.REFUSED, TOO_LARGE)
            assert shell.abort() == {part(): at}
        else:
            committed += [(each.topic, each.value) for each in outputs]
            at += shell.commit().records
    assert committed == [("dead" if i == 5 else "out", b"%d" % i) for i in range(8)]
    assert transactions < 15


def test_a_refused_record_becomes_a_dead_letter_although_other_partitions_go_on() -> None:
    """After a commit, the partition that went back has to look up its position, so others may always come first."""
    shell = Shell(dead_letters="dead", attempts=2, batch_records=2)
    for turn in range(20):
        shell.collect(*records(5))
        shell.machine.next(shell.now)
        if isinstance(shell.next(), Call):
            shell.call()
        outputs = shell.write().outputs
        if outputs[0].topic == "dead":
            assert [record.offset for record, _ in shell.commit().dead] == [5]
            break
        shell.fail(Kind.REFUSED, TOO_LARGE)
        assert shell.abort() == {part(): 5}
        shell.collect(*records(turn, partition=1))
        shell.call()
        shell.write()
        shell.commit()
    else:
        pytest.fail("the record keeps its partition back for ever")
    shell.collect(*records(5, partition=1))  # another record of that offset
    shell.call()


def test_condemned_records_amid_others_are_not_processed_again() -> None:
    shell = Shell(dead_letters="dead", attempts=1, batch_records=4, whole_batches=True)
    for offset in (6, 7):
        for _ in range(3):
            shell.collect(*records(offset))
            if isinstance(shell.next(), Call):
                shell.call()
                shell.write()
                shell.fail(Kind.REFUSED, TOO_LARGE)
                shell.abort()
                break
    shell.machine.collected(records(5, 6, 7, 8), shell.now)
    shell.now = Millis(shell.now + 100)
    assert shell.next() == Call(records(5))
    shell.call()
    assert shell.next() == Call(records(8))
    shell.call()
    assert [each.topic for each in shell.write().outputs] == ["out", "dead", "dead", "out"]
    assert len(shell.commit().dead) == 2


def test_a_refused_result_without_dead_letters_ends_the_processor() -> None:
    shell = Shell(attempts=2)
    for _ in range(2):
        shell.collect(*records(0))
        shell.call()
        shell.write()
        shell.fail(Kind.REFUSED, TOO_LARGE)
        if isinstance(shell.next(), Finish):
            break
        shell.abort()
    assert finished(shell) is TOO_LARGE


def test_a_refused_dead_letter_ends_the_processor() -> None:
    shell, error = Shell(dead_letters="dead", attempts=2), None
    for _ in range(10):
        shell.collect(*records(0))
        if isinstance(shell.next(), Call):
            shell.call()
        shell.write()
        shell.fail(Kind.REFUSED, TOO_LARGE)
        if isinstance(shell.next(), Finish):
            error = finished(shell)
            break
        shell.abort()
    assert error is TOO_LARGE


def test_a_function_that_is_too_slow_for_its_group_is_said_so() -> None:
    shell = Shell(poll_interval_ms=5000, batch_records=2)
    for _ in range(2):
        shell.collect(*records(0, 1)[: shell.machine.limit])
        assert isinstance(shell.next(), Call)
        shell.now = Millis(shell.now + 6000)
        shell.call()
        shell.write()
        shell.fail(Kind.PASSING, LOST)
        if isinstance(shell.next(), Finish):
            break
        shell.abort()
    error = finished(shell)
    assert isinstance(error, FatalError) and "max.poll.interval.ms" in str(error)


def test_a_transaction_that_timed_out_gets_a_new_producer() -> None:
    shell = Shell()
    shell.collect(*records(4))
    shell.call()
    shell.write()
    shell.fail(Kind.TIMED_OUT, FencedError("timed out and was aborted"))
    assert isinstance(shell.next(), Renew)
    shell.machine.renewed()
    assert shell.next() == GoBack({part(): 4})


def test_a_write_that_does_not_end_is_aborted() -> None:
    shell = Shell()
    shell.collect(*records(4))
    shell.call()
    assert isinstance(shell.next(), Write)
    shell.fail(Kind.UNKNOWN, UNKNOWN)
    assert shell.abort() == {part(): 4}


@pytest.mark.parametrize(("error", "kind"), [
    (LOST, Kind.PASSING),
    (UNKNOWN, Kind.UNKNOWN),
    (TOO_LARGE, Kind.REFUSED),
    (FatalError("x", code=ErrorCode.MESSAGE_TOO_LARGE), Kind.REFUSED),
    (FatalError("x"), Kind.FATAL),
    (AbortableError("x", code=ErrorCode.TOPIC_AUTHORIZATION_FAILED), Kind.FATAL),
    (AbortableError("x", code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), Kind.FATAL),
    (RetriableError("x", code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), Kind.FATAL),
    (FencedError("x was initialised again"), Kind.FATAL),
    (FencedError("x timed out and was aborted"), Kind.TIMED_OUT),
])
def test_what_an_error_means(error: HapaxError, kind: Kind) -> None:
    assert kind_of(error) is kind
