"""Property: whatever is done with checkpoints, scopes, jobs and drivers, each batch that an engine takes for committed
is in the output, and no record is there twice; or the engine was refused.

The engine is a model of Spark: an offset log and a commit log, of which only the newest batch is run again. Everything
else is real: the transaction machine, its decisions, its log. People copy checkpoints, put older copies back, delete
the newest files, note what was never committed, clone jobs, give two jobs one scope, begin with new checkpoints;
drivers die, freeze and come back, in folders whose files others have changed; the cluster is put back, too. Where
only the records tell batches apart, the past of a checkpoint has its numbers alone, so less can be done to it.
"""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hapax.core.errors import Refusal
from hapax.core.transaction.record import Fingerprint, Record, Token, Transaction
from hapax.core.transaction.requests import (
    CommitName,
    Decision,
    EndTransaction,
    JoinTransaction,
    TokenWork,
    VerifyPartitions,
)
from hapax.core.transaction.states import State
from unit.core.transaction.driver import Driver, partition, winner

Output = tuple[str, str]
"""(scope, topic)"""


@dataclass
class Checkpoint:
    """What Spark keeps. `offsets[n]`: (end, name of the plan) of batch n; `committed`: the newest in the commit log."""

    query: str
    start: int
    offsets: list[tuple[int, int]] = field(default_factory=list)
    committed: int = -1

    def range_of(self, batch: int) -> range:
        return range(self.offsets[batch - 1][0] if batch else self.start, self.offsets[batch][0])

    def put_back(self, kept: Checkpoint) -> None:
        """In the same folder."""
        self.query, self.start, self.offsets, self.committed = kept.query, kept.start, [*kept.offsets], kept.committed


@dataclass
class Job:
    """One query with its options. `at`: the path of its checkpoint, so that two runs of it see the same files."""

    at: Checkpoint
    scope: str
    topic: str
    continue_from: CommitName | None = None
    fresh: str = ""
    """The query that begins where the commit of `continue_from` ends; any other one writes records again."""
    kept: list[Checkpoint] = field(default_factory=list)


@dataclass
class Attempt:
    """What a driver holds in memory of the batch that it runs."""

    job: Job
    checkpoint: Checkpoint
    batch: int
    start: int
    rows: list[int]
    past: list[int]
    """The rows of the batches before."""
    token: Token
    work: TokenWork
    winners: tuple[Any, ...] = ()
    serial: int = 0


class Coordinator(Driver):
    """Keeps what its decisions make visible."""

    def __init__(self) -> None:
        super().__init__()
        self.written: dict[tuple[str, int, int], tuple[str, list[int]]] = {}   # by (id, serial, producer id)
        self.visible: dict[Output, Counter[int]] = {}

    def persist(self, decision: Decision) -> list[Any]:
        record: Record | None = decision.record
        if isinstance(record, Transaction) and record.state is State.PREPARE_COMMIT:
            for member in record.members:
                if member.won:
                    topic, rows = self.written[record.transactional_id, record.serial, member.producer_id]
                    self.visible.setdefault((record.transactional_id, topic), Counter()).update(rows)
        return super().persist(decision)


class Histories(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.cluster = Coordinator()
        self.kept_cluster: Coordinator | None = None
        self.records = 0
        self.jobs: list[Job] = []
        self.zombies: list[Attempt] = []
        self.names = 0
        self.by = "offsets"
        self.again: dict[str, set[int]] = {}
        """By scope: what a person chose to write a second time."""

    def _name(self, what: str) -> str:
        self.names += 1
        return f"{what}{self.names}"

    @initialize(by=st.sampled_from(["offsets", "records"]), records=st.integers(1, 6))
    def begin(self, by: str, records: int) -> None:
        self.by, self.records = by, records
        self.submit(None, "t")

    # --- what people do ---

    @rule(count=st.integers(1, 4))
    def produce(self, count: int) -> None:
        self.records += count

    @precondition(lambda self: len(self.jobs) < 5)
    @rule(scope=st.sampled_from([None, "s", "s"]), topic=st.sampled_from("tu"))
    def submit(self, scope: str | None, topic: str) -> None:
        """With an empty checkpoint, from the beginning."""
        query = self._name("query")
        self.jobs.append(Job(Checkpoint(query, 0), scope or query, topic))

    @precondition(lambda self: len(self.jobs) < 5)
    @rule(which=st.integers(0, 9), topic=st.sampled_from(["", "", "u"]))
    def clone(self, which: int, topic: str) -> None:
        job = self._job(which)
        self.jobs.append(Job(copy.deepcopy(job.at), job.scope, topic or job.topic, job.continue_from, job.fresh))

    @rule(which=st.integers(0, 9))
    def save_the_checkpoint(self, which: int) -> None:
        job = self._job(which)
        job.kept.append(copy.deepcopy(job.at))

    @rule(which=st.integers(0, 9), back=st.integers(0, 9))
    def put_a_checkpoint_back(self, which: int, back: int) -> None:
        job = self._job(which)
        if job.kept and self.by == "offsets":
            job.at.put_back(job.kept[back % len(job.kept)])
        elif job.kept:
            job.at = copy.deepcopy(job.kept[back % len(job.kept)])

    @rule(which=st.integers(0, 9))
    def delete_the_newest_commit(self, which: int) -> None:
        at = self._job(which).at
        at.committed = min(at.committed, len(at.offsets) - 2)

    @rule(which=st.integers(0, 9))
    def delete_the_newest_batch(self, which: int) -> None:
        at = self._job(which).at
        del at.offsets[-1:]
        at.committed = min(at.committed, len(at.offsets) - 1)

    @precondition(lambda self: self.by == "offsets")
    @rule(which=st.integers(0, 9))
    def mark_the_newest_batch_as_done(self, which: int) -> None:
        """By hand, in the commit log, whatever has become of it."""
        at = self._job(which).at
        at.committed = len(at.offsets) - 1

    @precondition(lambda self: self.by == "offsets")
    @rule(which=st.integers(0, 9), limit=st.integers(1, 3), tasks=st.integers(0, 1))
    def skip_the_newest_batch(self, which: int, limit: int, tasks: int) -> None:
        """It is planned again, refused or cut off, and marked as done by hand, so that Spark continues after it."""
        self.delete_the_newest_batch(which)
        self.produce(1)
        self.run_a_batch(which, limit, tasks, "before")
        self.mark_the_newest_batch_as_done(which)
        self.produce(1)
        self.run_a_batch(which, limit, 1, "")

    @precondition(lambda self: self.by == "offsets")
    @rule(which=st.integers(0, 9), limit=st.integers(1, 3), back=st.integers(1, 3), tasks=st.integers(0, 1),
          first=st.booleans())  # fmt: skip
    def skip_a_batch_and_write_again(self, which: int, limit: int, back: int, tasks: int, first: bool) -> None:
        """From an older checkpoint. `first`: permitted before the batch that is left out, else after it."""
        at = self._job(which).at
        for _ in range(back):
            self.delete_the_newest_batch(which)
        at.committed = len(at.offsets) - 1
        self.produce(limit)
        if first:
            self.write_again_from_an_old_checkpoint(which)
        self.run_a_batch(which, 2 * limit, tasks, "before")
        self.mark_the_newest_batch_as_done(which)
        if not first:
            self.write_again_from_an_old_checkpoint(which)
        self.run_a_batch(which, limit, 1, "")

    @precondition(lambda self: self.by == "offsets")
    @rule(which=st.integers(0, 9), limit=st.integers(1, 3), batches=st.integers(1, 4))
    def lose_what_the_cluster_has_done_since(self, which: int, limit: int, batches: int) -> None:
        self.save_the_cluster()
        for _ in range(batches):
            self.produce(limit)
            self.run_a_batch(which, limit, 1, "")
        self.put_the_cluster_back()
        self.produce(limit)
        self.run_a_batch(which, limit, 1, "")

    @rule()
    def save_the_cluster(self) -> None:
        self.kept_cluster = copy.deepcopy(self.cluster)

    @precondition(lambda self: self.kept_cluster and self.by == "offsets")
    @rule()
    def put_the_cluster_back(self) -> None:
        """Only where plans tell batches apart: else checkpoints are to be restored together with the cluster."""
        assert self.kept_cluster is not None
        self.cluster = copy.deepcopy(self.kept_cluster)
        # What they have written is gone, and who writes under their identities now is refused elsewhere (rule 12).
        self.zombies = [each for each in self.zombies if not each.winners]

    @rule(which=st.integers(0, 9))
    def go_on_with_a_new_checkpoint(self, which: int) -> None:
        """As the error says: `continueFrom`, and the offsets at which the newest commit ends."""
        job = self._job(which)
        newest = self._newest(job.scope)
        if newest is not None:
            end = max((r + 1 for r in self._seen(job)), default=0)
            job.at = Checkpoint(self._name("query"), end)
            job.continue_from, job.fresh = CommitName(newest.owner, newest.value), job.at.query

    @rule(which=st.integers(0, 9))
    def write_again_from_an_old_checkpoint(self, which: int) -> None:
        """As the error says, knowing that records come twice."""
        job = self._job(which)
        newest = self._newest(job.scope)
        if newest is not None:
            job.continue_from, job.fresh = CommitName(newest.owner, newest.value), ""

    # --- what Spark does ---

    @rule(which=st.integers(0, 9), limit=st.integers(1, 3), tasks=st.integers(1, 2),
          dies=st.sampled_from(["", "", "", "before", "after"]))  # fmt: skip
    def run_a_batch(self, which: int, limit: int, tasks: int, dies: str) -> None:
        attempt = self._write(self._job(which), limit, tasks)
        if attempt is None or dies == "before":
            return
        if self._commit(attempt) and dies != "after":
            self._note(attempt)

    @rule(which=st.integers(0, 9), limit=st.integers(1, 3), batches=st.integers(2, 4))
    def run_several(self, which: int, limit: int, batches: int) -> None:
        for _ in range(batches):
            self.run_a_batch(which, limit, 1, "")

    @rule(which=st.integers(0, 9), limit=st.integers(1, 3))
    def freeze_a_driver(self, which: int, limit: int) -> None:
        attempt = self._write(self._job(which), limit, 1)
        if attempt is not None:
            self.zombies.append(attempt)

    @precondition(lambda self: self.zombies)
    @rule(which=st.integers(0, 9), commits=st.booleans())
    def thaw_a_driver(self, which: int, commits: bool) -> None:
        attempt = self.zombies.pop(which % len(self.zombies))
        if commits:
            if self._commit(attempt):
                self._note(attempt)
            return
        request = EndTransaction(
            attempt.job.scope, False, self.cluster.caller(), attempt.token, serial=attempt.serial, work=attempt.work)  # type: ignore[arg-type]
        self._refused_or(lambda: self.cluster.run("end_transaction", request))

    def _job(self, which: int) -> Job:
        return self.jobs[which % len(self.jobs)]

    def _newest(self, scope: str) -> Any:
        transaction = self.cluster.shard.transactions.get(scope)
        return transaction.committed_token(scope) if transaction else None

    def _seen(self, job: Job) -> list[int]:
        return [r for (scope, _), rows in self.cluster.visible.items() if scope == job.scope for r in rows]

    def _next_batch(self, at: Checkpoint) -> int:
        newest = len(at.offsets) - 1
        return newest if newest >= 0 and at.committed < newest else newest + 1

    def _write(self, job: Job, limit: int, tasks: int) -> Attempt | None:
        """Plans the next batch or takes the newest again; its tasks join, and write."""
        at = job.at
        batch = self._next_batch(at)
        if batch == len(at.offsets):
            start = at.offsets[-1][0] if at.offsets else at.start
            if start >= self.records:
                return None
            self.names += 1
            at.offsets.append((min(self.records, start + limit), self.names))
        rows = _written(at.range_of(batch))
        planned = self.by == "offsets"
        plan = repr((at.offsets[max(0, batch - 1) : batch + 1] if planned else rows, job.topic))
        ends = [Fingerprint("end", repr(each).encode()) for each in at.offsets] if planned else []
        work = TokenWork(
            at.query, self._name("run"), batch - 1 if batch else None, job.continue_from,
            (Fingerprint(self.by, plan.encode()), *ends[batch : batch + 1]), followed=tuple(ends[:batch][-1:]))
        past = _written(range(at.start, at.range_of(batch).start))
        attempt = Attempt(job, at, batch, at.range_of(batch).start, rows, past, Token(job.scope, batch), work)
        for task in range(tasks):
            part = rows[task::tasks]
            if part and not self._refused_or(lambda: self._run_task(attempt, part)):  # noqa: B023
                return None
        return attempt

    def _run_task(self, attempt: Attempt, rows: list[int]) -> None:
        cluster, scope = self.cluster, attempt.job.scope
        joined = cluster.run("join_transaction", JoinTransaction(
            scope, attempt.token, self._name("task"), 60_000, cluster.caller(), work=attempt.work))  # fmt: skip
        attempt.serial = joined.serial
        if joined.already_committed:
            return
        at = partition(0, attempt.job.topic)
        cluster.run("verify_partitions", VerifyPartitions(scope, *joined.identity, (at,), True, cluster.caller()))
        cluster.written[scope, joined.serial, joined.identity.producer_id] = (attempt.job.topic, rows)
        attempt.winners += (winner(joined.identity, at),)

    def _commit(self, attempt: Attempt) -> bool:
        newest = self._newest(attempt.job.scope)
        goes_on = newest is not None and attempt.work.continue_from == (newest.owner, newest.value)
        if goes_on and attempt.job.fresh != attempt.work.owner:
            self.again.setdefault(attempt.job.scope, set()).update(range(attempt.start, self.records))
        request = EndTransaction(
            attempt.job.scope, True, self.cluster.caller(), attempt.token, winners=attempt.winners,
            record_count=len(attempt.rows), serial=attempt.serial, work=attempt.work)  # type: ignore[arg-type]  # fmt: skip
        return self._refused_or(lambda: self.cluster.run("end_transaction", request))

    def _refused_or(self, call: Any) -> bool:
        try:
            call()
        except Refusal:
            return False
        finally:
            for transactional_id in list(self.cluster.markers):
                self.cluster.mark(transactional_id)
        return True

    def _note(self, attempt: Attempt) -> None:
        """Spark takes the batch for done."""
        if attempt.batch < len(attempt.checkpoint.offsets):
            attempt.checkpoint.committed = max(attempt.checkpoint.committed, attempt.batch)
        visible = self.cluster.visible.get((attempt.job.scope, attempt.job.topic), Counter())
        lost = [r for r in attempt.rows if not visible[r]]
        if self.by == "offsets":
            seen = set(self._seen(attempt.job))
            lost += [r for r in attempt.past if r not in seen]
        assert not lost, f"batch {attempt.batch} of {attempt.work.owner} is taken for committed without {lost}"

    @invariant()
    def nothing_is_there_twice(self) -> None:
        for output, rows in self.cluster.visible.items():
            again = self.again.get(output[0], set())
            twice = [r for r, times in rows.items() if times > 1 and r not in again]
            assert not twice, f"{output} has {twice} twice"


def _written(rows: range) -> list[int]:
    """Some batches are empty."""
    return [r for r in rows if r % 5 != 3]


TestHistories = Histories.TestCase
TestHistories.settings = settings(
    max_examples=150, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
