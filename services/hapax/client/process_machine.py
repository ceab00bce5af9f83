"""Decides what a processor does next: collect records, call the function, write, commit, or go back.

No I/O and no clock: `hapax.client.processor` carries out `next(now)` and reports what came of it.

    COLLECTING --batch is due--> CALLING --every record has a result--> WRITING --written--> COMMITTING --committed--+
        ^                                                                  |                    |                    |
        |                                                                  +----- failed -------+                    |
        |                                                                             v                              |
        +------------ GOING_BACK <------------------------------------------------ ABORTING                          |
        +------------------------------------------------------------------------------------------------------------+

Rules:
- The function is called before the transaction begins, so a slow function cannot make a transaction time out.
- After an abort, everything that was read and not committed is forgotten, and is read again from the committed
  positions.
- After each abort the next batch is at most half as large, and after each commit at most twice as large. So a batch
  that is too slow, or contains a record that the cluster refuses, shrinks until it succeeds or consists of one record.
- A commit whose outcome is unknown is repeated until the outcome is known, or its time is up. Then the processor ends:
  the next start reads the committed positions, which tell the outcome. It is never guessed.
- What happened to a record is reported once it is committed, never before.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum, auto
from typing import NamedTuple

from hapax.client.errors import FatalError, HapaxError, RetriableError
from hapax.client.process_records import Failed, NewRecord, dead_letter
from hapax.client.records import Record
from hapax.core.types import Millis, PartitionIndex, TopicPartition


class Rules(NamedTuple):
    group: str
    batch_records: int = 1000
    """Most records of one transaction."""
    batch_ms: int = 100
    """A batch is processed at most this long after its first record was read."""
    attempts: int = 3
    """Calls for one record whose function raises an exception that is not declared as poison."""
    dead_letters: str | None = None
    """The topic for poison records."""
    whole_batches: bool = False
    """Whether the function takes a list of records."""
    pause_ms: int = 100
    pause_max_ms: int = 1000
    outcome_ms: int = 120_000
    """How long to ask for the outcome of a commit or abort."""
    stop_ms: int = 30_000
    """How long a transaction may still take after `stop`."""
    poll_interval_ms: int = 300_000
    """max.poll.interval.ms of the consumer."""
    idle_ms: int = 500


class Kind(Enum):
    """What a failed step means."""

    UNKNOWN = auto()
    """The step may or may not have taken effect, or nothing is decided: the same step again."""
    PASSING = auto()
    """The transaction cannot commit, for a reason that may pass: a rebalance, a time-out."""
    REFUSED = auto()
    """The transaction cannot commit, because the cluster refuses one of its records."""
    TIMED_OUT = auto()
    """The cluster has aborted the transaction, because it took too long, or has forgotten the transactional id, because
    it was not used for long. The producer is of no use any more."""
    FATAL = auto()


class Collect(NamedTuple):
    timeout_ms: int
    limit: int


class Call(NamedTuple):
    """Call the function with these records, in order, up to the first that fails."""

    records: list[Record]


class Write(NamedTuple):
    """Begin a transaction and write these records, and the positions of these partitions."""

    outputs: list[NewRecord]
    partitions: frozenset[TopicPartition]


class Commit(NamedTuple):
    within_ms: int


class Abort(NamedTuple):
    within_ms: int


class Renew(NamedTuple):
    """Replace the producer by a new one of the same identity."""


class GoBack(NamedTuple):
    """Forget the positions of these partitions. `first`: the first record of each that is not committed."""

    first: dict[TopicPartition, int]


class Pause(NamedTuple):
    """`stop` ends a pause."""

    ms: int


class Finish(NamedTuple):
    error: BaseException | None


Action = Collect | Call | Write | Commit | Abort | Renew | GoBack | Pause | Finish


class Done(NamedTuple):
    """What a committed transaction contained."""

    records: int
    outputs: int
    """Dead letters included."""
    dead: list[tuple[Record, Failed]]


class _Phase(Enum):
    COLLECTING = auto()
    CALLING = auto()
    WRITING = auto()
    COMMITTING = auto()
    ABORTING = auto()
    RENEWING = auto()
    GOING_BACK = auto()
    ENDED = auto()


class ProcessMachine:
    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._phase = _Phase.COLLECTING
        self._error: BaseException | None = None
        self._limit = rules.batch_records
        self._records: list[Record] = []
        self._first: dict[TopicPartition, int] = {}
        self._outputs: list[NewRecord] = []
        self._dead: list[tuple[Record, Failed]] = []
        self._called = 0
        """Number of `_records` with a result."""
        self._one_by_one = False
        """Whether the function that takes lists gets them with one record each, to find the one that fails."""
        self._attempts = 0
        """Failed calls for the first record without a result."""
        self._condemned: dict[tuple[str, int, int], Failed] = {}
        """Records (topic, partition, offset) whose results the cluster has refused. They become dead letters."""
        self._refusals: dict[tuple[str, int, int], int] = {}
        """How often the cluster has refused the results of a record that was alone in its transaction. Of records that
        are not committed yet: transactions of other partitions may come in between."""
        self._opened_at = self._calling_since = 0
        self._worked_ms = 0
        """How long the function took for the batch."""
        self.aborts = 0
        """Transactions that had to be aborted, in a row."""
        self._troubles = 0
        """Steps in a row that failed without a decision."""
        self._pause_until = 0
        self._deadline: int | None = None
        """When asking for an outcome ends."""
        self._stop_at: int | None = None

        self.stop_ms = rules.stop_ms

    @property
    def limit(self) -> int:
        return self._limit

    # --- what to do -------------------------------------------------------------------------------------------

    def next(self, now: Millis) -> Action:
        if self._phase is _Phase.ENDED:
            return Finish(self._error)
        if self._stop_at is not None and self._idle():
            return self._end(None)
        if self._pause_until > now:
            return Pause(self._pause_until - now)
        if self._phase is _Phase.COLLECTING:
            if not self._records:
                return Collect(self._rules.idle_ms, self._limit)
            due = self._opened_at + self._rules.batch_ms
            if len(self._records) < self._limit and now < due:
                return Collect(due - now, self._limit - len(self._records))
            self._phase = _Phase.CALLING
            self._calling_since = now
        if self._phase is _Phase.CALLING:
            end = self._bury_condemned()
            if self._called < len(self._records):
                return Call(self._records[self._called : self._called + 1 if self._one_by_one else end])
            self._phase = _Phase.WRITING
            self._worked_ms = now - self._calling_since
        if self._phase is _Phase.WRITING:
            return Write(self._outputs, frozenset(self._first))
        if self._phase is _Phase.COMMITTING:
            return Commit(self._left(now))
        if self._phase is _Phase.ABORTING:
            return Abort(self._left(now))
        if self._phase is _Phase.RENEWING:
            return Renew()
        return GoBack(dict(self._first))

    def _idle(self) -> bool:
        """Whether nothing is lost if the processor ends here."""
        between_attempts = self._phase is _Phase.CALLING and self._attempts > 0
        return between_attempts or self._phase in (_Phase.COLLECTING, _Phase.GOING_BACK, _Phase.RENEWING)

    def _left(self, now: Millis) -> int:
        if self._deadline is None:
            self._deadline = now + self._rules.outcome_ms
        return max(1, self._until() - now)

    def _until(self) -> int:
        assert self._deadline is not None
        return self._deadline if self._stop_at is None else min(self._deadline, self._stop_at)

    def _end(self, error: BaseException | None) -> Finish:
        self._phase, self._error = _Phase.ENDED, error
        return Finish(error)

    # --- what happened ----------------------------------------------------------------------------------------

    def stop(self, now: Millis) -> None:
        """Ends as soon as the running transaction has ended. Records that wait for the function are given up."""
        if self._stop_at is None:
            self._stop_at = now + self._rules.stop_ms

    def overdue(self, error: HapaxError) -> None:
        """The last action has not ended in the time that `stop` gives."""
        if self._phase is _Phase.COMMITTING:
            self._end(_out_of_time("commit", error))
        elif self._phase in (_Phase.WRITING, _Phase.ABORTING):
            self._end(_out_of_time("abort", error))
        else:
            self._end(None)

    def collected(self, records: Sequence[Record], now: Millis) -> None:
        self._troubles = 0
        if not records:
            return
        if not self._records:
            self._opened_at = now
        topic, number = "", -1
        for record in records:
            if record.partition != number or record.topic != topic:
                topic, number = record.topic, record.partition
                self._first.setdefault(TopicPartition(topic, PartitionIndex(number)), record.offset)
        self._records += records

    def given_up(self, partitions: Iterable[TopicPartition]) -> None:
        """The partitions are not this member's any more, so what was read of them is forgotten."""
        for partition in partitions:
            if self._first.pop(partition, None) is not None:
                self._records = [r for r in self._records if (r.topic, r.partition) != partition]
        gone = set(partitions)
        self._condemned = {k: v for k, v in self._condemned.items() if k[:2] not in gone}
        self._refusals = {k: v for k, v in self._refusals.items() if k[:2] not in gone}

    def called(self, count: int, outputs: Iterable[NewRecord], failed: Failed | None, now: Millis) -> None:
        """The function has returned these results for the first `count` records of the call, and has raised for the
        next one (in a list of several, for one of them)."""
        if count:
            self._called += count
            self._outputs += outputs
            self._attempts = 0
        if failed is None:
            return
        if self._rules.whole_batches and not self._one_by_one and len(self._records) - self._called > 1:
            self._one_by_one = True
            return
        self._attempts += 1
        failed = failed._replace(attempts=self._attempts)
        if failed.poison or self._attempts >= self._rules.attempts:
            if self._rules.dead_letters is None:
                self._end(failed.error)
                return
            self._bury(failed)
        else:
            self._pause(self._attempts, now)

    def written(self) -> None:
        self._phase = _Phase.COMMITTING
        self._deadline = None

    def committed(self) -> Done:
        done = Done(len(self._records), len(self._outputs), self._dead)
        self.aborts = self._troubles = 0
        self._deadline = None
        if self._refusals:
            for place in map(_place, self._records):
                self._refusals.pop(place, None)
                self._condemned.pop(place, None)
        self._limit = min(2 * self._limit, self._rules.batch_records)
        self._forget()
        return done

    def aborted(self) -> None:
        """Also: the producer has been renewed, which aborts what it left open."""
        self._troubles = 0
        self._deadline = None
        self._phase = _Phase.GOING_BACK

    renewed = aborted

    def gone_back(self) -> None:
        self._troubles = 0
        self._forget()

    def failed(self, kind: Kind, error: HapaxError, now: Millis) -> None:
        """The last action has failed."""
        if kind is Kind.FATAL:
            self._end(error)
        elif self._phase in (_Phase.WRITING, _Phase.COMMITTING) and kind is not Kind.UNKNOWN:
            self._must_abort(kind, error, now)
        elif self._phase is _Phase.WRITING:
            self._must_abort(Kind.PASSING, error, now)
        elif self._phase is _Phase.ABORTING and kind is Kind.TIMED_OUT:
            self._phase = _Phase.RENEWING
        elif self._phase in (_Phase.COMMITTING, _Phase.ABORTING) and now >= self._until():
            self._end(_out_of_time("commit" if self._phase is _Phase.COMMITTING else "abort", error))
        else:
            self._troubles += 1
            self._pause(self._troubles, now)
            if self._deadline is not None:
                self._pause_until = min(self._pause_until, self._until())

    # --- inner steps ------------------------------------------------------------------------------------------

    def _must_abort(self, kind: Kind, error: HapaxError, now: Millis) -> None:
        single = len(self._records) == 1
        if kind is Kind.REFUSED and single and (stopped := self._refused(error)) is not None:
            self._end(stopped)
            return
        if single and self._worked_ms > self._rules.poll_interval_ms:
            self._end(FatalError(
                f"the function took {self._worked_ms} ms for one record, longer than max.poll.interval.ms="
                f"{self._rules.poll_interval_ms}, so the group has given its partition to another member: {error}",
                code=error.code, advice="Raise max.poll.interval.ms, or make the function faster"))
            return
        self.aborts += 1
        self._limit = max(1, min(self._limit, len(self._records)) // 2)
        self._pause(self.aborts, now)
        self._deadline = None
        self._phase = _Phase.RENEWING if kind is Kind.TIMED_OUT else _Phase.ABORTING

    def _refused(self, error: HapaxError) -> HapaxError | None:
        """The cluster refuses what came of a single record. Returns the error that ends the processor."""
        place = _place(self._records[0])
        refusals = self._refusals[place] = self._refusals.get(place, 0) + 1
        if refusals < self._rules.attempts:
            return None
        if self._rules.dead_letters is None or place in self._condemned:
            return error
        self._condemned[place] = Failed(error, False, refusals)
        return None

    def _bury_condemned(self) -> int:
        """Returns the end of the records that the function may be called with."""
        if not self._condemned:
            return len(self._records)
        while self._called < len(self._records):
            failed = self._condemned.get(_place(self._records[self._called]))
            if failed is None:
                break
            self._bury(failed)
        return next(
            (at for at in range(self._called, len(self._records)) if _place(self._records[at]) in self._condemned),
            len(self._records))

    def _bury(self, failed: Failed) -> None:
        """Gives the first record without a result a dead letter as its result."""
        record = self._records[self._called]
        assert self._rules.dead_letters is not None
        self._outputs.append(dead_letter(self._rules.dead_letters, self._rules.group, record, failed))
        self._dead.append((record, failed))
        self._called += 1
        self._attempts = 0

    def _forget(self) -> None:
        self._phase = _Phase.COLLECTING
        self._records, self._first, self._outputs, self._dead = [], {}, [], []
        self._called = self._attempts = 0
        self._one_by_one = False

    def _pause(self, failures: int, now: Millis) -> None:
        self._pause_until = now + min(self._rules.pause_ms << min(failures - 1, 20), self._rules.pause_max_ms)


def _place(record: Record) -> tuple[str, int, int]:
    return record.topic, record.partition, record.offset


def _out_of_time(what: str, error: HapaxError) -> RetriableError:
    meaning = (
        "whether the transaction is committed is not known" if what == "commit"
        else "the transaction is still open, and the cluster aborts it after transaction.timeout.ms")
    return RetriableError(
        f"no outcome of the {what} in time, so {meaning}: {error}", code=error.code,
        advice="Start again: a new run reads the committed positions, and so continues correctly in either case",
        maybe_written=what == "commit")
