"""The client producer as a pure machine: `(state, event, now) -> effects`, no I/O, no clock.

The owner (hapax.client) passes events in and, after each, carries out the effects that `poll(now)` returns. The machine
owns the state of the producer and the sequences of every partition (partition_queue.py), and decides what each refusal
means (error_kinds.py). It does not know brokers, connections or bytes.

Five rules in addition to those of a partition:

1. Under transactions version 2, each transaction has its own epoch: the answer to EndTxn contains the next epoch, and
   every partition starts at sequence 0. Under version 1, epoch and sequences continue; only an abort that left a
   sequence unresolved is followed by an InitProducerId that raises the epoch (KIP-360).
2. EndTxn is sent when no batch is in flight, so that no batch of a transaction arrives after its decision.
3. Without transactions, an unresolvable loss raises the epoch locally (KIP-360). A leased identity is an exception: its
   epoch is the lease's generation, which only the allocator raises, so the producer fails instead.
4. An error persists: after ABORTABLE_ERROR only an abort is possible, after FATAL_ERROR nothing.
5. Two-phase commit (KIP-939): a prepared transaction is one whose batches are all settled. It takes no more of them,
   and is committed or aborted as another system decides, perhaps by a later instance. That one ends it under its own
   identity, and knows it by the identity under which it was prepared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

from hapax.core.errors import ErrorCode
from hapax.core.producer.error_kinds import NOT_WRITTEN, ErrorKind, coordinator_error_kind, produce_error_kind
from hapax.core.producer.partition_queue import AT_ONCE, NO_IDENTITY, WINDOW, Batch, Identity, PartitionQueue
from hapax.core.producer.states import (
    TRANSITIONS,
    WORDS,
    Delivered,
    Effect,
    Ended,
    Event,
    Failed,
    IllegalTransition,
    RequestAddPartitions,
    RequestEndTransaction,
    RequestProducerId,
    SendBatch,
    State,
    Trouble,
)
from hapax.core.types import (
    MAX_PRODUCER_EPOCH,
    NO_OFFSET,
    Millis,
    Offset,
    ProducerEpoch,
    Sequence,
    TimestampMs,
    TopicPartition,
)

S, E = State, Event


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    idempotent: bool = True
    transactional: bool = False
    version: int = 2
    """Transactions version: 2 if the cluster has finalized `transaction.version` >= 2."""
    leased: bool = False
    two_phase: bool = False
    """Whether transactions can be prepared, and a former instance's open one is kept."""
    window: int = WINDOW
    retries: int = 2**31 - 1
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000

    def pause_ms(self, attempts: int) -> int:
        """The pause before the next attempt. It doubles with each attempt, up to the maximum."""
        most = max(self.retry_backoff_max_ms, self.retry_backoff_ms)
        return min(self.retry_backoff_ms << min(attempts - 1, 20), most)


class ClientProducer:
    """One producer. Events may come in any order that the transition table allows; call `poll(now)` after each."""

    def __init__(
        self,
        options: ProducerOptions,
        identity: Identity = NO_IDENTITY,
        next_sequences: Mapping[TopicPartition, Sequence] | None = None,
    ) -> None:
        """With `identity` (from a lease, or saved) the producer is READY at once and continues at `next_sequences`."""
        self.options = options
        self.state = State.UNINITIALIZED if options.idempotent and identity == NO_IDENTITY else State.READY
        self.identity = identity
        self.trouble: Trouble | None = None
        """The cause of ABORTABLE_ERROR or FATAL_ERROR."""
        self.version = options.version
        self.prepared: Identity | None = None
        """The identity of the prepared transaction, until it is ended."""
        self._queues: dict[TopicPartition, PartitionQueue] = {}
        self._effects: list[Effect] = []
        self._dirty: dict[TopicPartition, None] = {}
        self._registered: set[TopicPartition] = set()
        self._registering: tuple[TopicPartition, ...] = ()
        self._wrote = False
        self._commit = False
        self._ending = False
        self._raise_epoch = False
        self._raising_epoch = False
        self._new_id_wanted = False
        for partition, sequence in (next_sequences or {}).items():
            self._queue(partition).restart(identity, sequence)

    # --- events: life and transactions ------------------------------------------------------------------------

    def initialize(self) -> None:
        self._move(E.INITIALIZE)
        self._effects.append(RequestProducerId(NO_IDENTITY))

    def initialized(
        self, identity: Identity, version: int | None = None, kept: Identity | None = None
    ) -> None:
        """`kept`: the identity of a former instance's transaction, which is open."""
        self._move(E.INITIALIZED if kept is None else E.KEPT)
        self.identity = identity
        if kept is not None:
            self.prepared, self._wrote = kept, True
        if version is not None:
            self.version = version
        if self._raising_epoch:
            self._raising_epoch = False
            self._finish(committed=False)
        self._dirty.update(dict.fromkeys(self._queues))

    def take_up(self, identity: Identity) -> None:
        """Makes the producer READY with the given identity, as a member of a multi-writer transaction."""
        self._move(E.TAKE_UP)
        self.identity = identity

    def begin(self) -> None:
        if not self.options.transactional:
            raise IllegalTransition("this producer has no transactional.id; set one to use transactions")
        self._move(E.BEGIN)
        self._wrote = self._raise_epoch = False
        self._registered.clear()

    def prepare(self) -> Identity:
        """Everything is stored; from here on only a commit or an abort is possible. Returns the transaction's identity,
        for the system that decides it."""
        if not self.options.two_phase:
            raise IllegalTransition("this producer prepares nothing: set transaction.two.phase.commit.enable")
        if self.state is State.IN_TRANSACTION and (self.pending or self._registering):
            raise IllegalTransition("cannot prepare the transaction while records are under way")
        self._move(E.PREPARE)
        self.prepared = self.identity
        return self.identity

    def commit(self, *, always: bool = False) -> None:
        """Everything enqueued so far is sent first. If one of these batches fails, the commit fails.

        `always`: ask the coordinator even if nothing was written, because the commit has a token.
        """
        self._move(E.COMMIT)
        self._commit, self._ending = True, True
        self._wrote |= always

    def abort(self) -> None:
        """Drops the batches that were not sent yet, and waits for those in flight."""
        self._move(E.ABORT)
        self._commit, self._ending = False, True
        dropped = Trouble(ErrorKind.ABORT, ErrorCode.OPERATION_NOT_ATTEMPTED, "the transaction was aborted")
        self._drop_unsent(dropped)

    def offsets_sent(self) -> None:
        """Call before offsets are added to the transaction: from then on it has content to commit or abort."""
        if self.state is not State.IN_TRANSACTION:
            self._illegal("send offsets to a transaction")
        self._wrote = True

    def ended(self, identity: Identity | None) -> None:
        """EndTxn was answered. `identity`: of the next transaction, under version 2; None under version 1."""
        if identity is not None:
            self.identity = identity
            self._queues.clear()
        elif self._raise_epoch and self.state is State.ABORTING_TRANSACTION:
            # Aborted batches may still arrive. Only a new epoch keeps their sequences from being accepted.
            self._move(E.INITIALIZE)
            self._queues.clear()
            self._raising_epoch = True
            self._effects.append(RequestProducerId(self.identity))
            return
        self._move(E.ENDED)
        self._finish(self._commit)

    def partitions_added(self) -> None:
        self._registered.update(self._registering)
        self._dirty.update(dict.fromkeys(self._registering))
        self._registering = ()

    def coordinator_refused(self, code: int, reason: str = "") -> ErrorKind:
        """An InitProducerId, AddPartitions, AddOffsets, TxnOffsetCommit or EndTxn was refused.

        RETRY: the owner repeats the call after a pause, against a coordinator that is looked up again. Anything else
        has moved the producer to ABORTABLE_ERROR or FATAL_ERROR.
        """
        kind = coordinator_error_kind(code)
        if kind is ErrorKind.ABORT and self.state is State.ABORTING_TRANSACTION:
            if self._registering:  # the refused partitions are dropped anyway, and EndTxn follows
                self._registering = ()
                return kind
            kind = ErrorKind.FATAL
        if kind is not ErrorKind.RETRY:
            self._registering = ()
            self.fail(Trouble(kind, _code(code), reason))
        if kind is ErrorKind.ABORT and self.state is State.FATAL_ERROR:
            kind = ErrorKind.FATAL
        return kind

    def fail(self, trouble: Trouble) -> None:
        """Ends the transaction (kind ABORT) or the producer (FENCED, FATAL)."""
        if self.state is State.FATAL_ERROR:
            return
        undecided = self.prepared is None  # else an abort would break what another system may have decided
        if trouble.kind is ErrorKind.ABORT and undecided and (self.state, E.FAIL_TRANSACTION) in TRANSITIONS:
            if self.state in (S.IN_TRANSACTION, S.COMMITTING_TRANSACTION):
                self.trouble = trouble
                self._ending = False
            self._move(E.FAIL_TRANSACTION)
        else:
            if trouble.kind is ErrorKind.ABORT:  # with nothing that may be aborted
                trouble = Trouble(ErrorKind.FATAL, trouble.code, trouble.reason)
            self.trouble = trouble
            self._move(E.FAIL)
            self._ending = False
        self._drop_unsent(trouble)

    def stop(self) -> None:
        """The owner carries out no more effects, so each unsettled batch fails now, in flight or not. The identity and
        the next sequences are kept."""
        trouble = self.trouble or Trouble(ErrorKind.FATAL, ErrorCode.OPERATION_NOT_ATTEMPTED, "the producer is closed")
        self._ending = False
        for queue in self._queues.values():
            for batch in [*queue.numbered, *queue.fresh]:
                self._report(batch, trouble)
            queue.numbered.clear()
            queue.fresh.clear()

    # --- events: batches --------------------------------------------------------------------------------------

    def enqueue(self, batch: Batch) -> None:
        """Raises IllegalTransition outside a transaction (of a transactional producer) and after errors."""
        allowed = State.IN_TRANSACTION if self.options.transactional else State.READY
        if self.state is not allowed and (self.options.transactional or self.state is not State.INITIALIZING):
            self._illegal("send a record")
        self._queue(batch.partition).fresh.append(batch)
        self._dirty[batch.partition] = None

    def wants(self, partition: TopicPartition) -> bool:
        """Whether a batch enqueued now would be sent at once. If not, it can take more records meanwhile."""
        queue = self._queues.get(partition)
        return queue is None or queue.wants(self.options.window)

    def delivered(self, batch: Batch, offset: Offset, timestamp: TimestampMs) -> None:
        queue = self._queues.get(batch.partition)
        if queue is None or batch not in queue.numbered:
            return
        queue.settled(batch)
        self._dirty[batch.partition] = None
        if not batch.reported:
            batch.reported = True
            self._effects.append(Delivered(batch, offset, timestamp))

    def refused(self, batch: Batch, code: int, reason: str, now: Millis) -> ErrorKind:
        """The leader answered `code`. Returns the resulting kind of error (RETRY: the metadata may be stale)."""
        queue = self._queues.get(batch.partition)
        if queue is None or batch not in queue.numbered:
            return ErrorKind.REFUSED
        kind = produce_error_kind(code)
        if kind is ErrorKind.DUPLICATE:
            self.delivered(batch, NO_OFFSET, TimestampMs(-1))
            return kind
        if code not in NOT_WRITTEN:
            batch.doubtful = True
        if kind is ErrorKind.GAP:
            if queue.numbered[0] is batch:
                queue.gap = True
            kind = ErrorKind.RETRY
        if kind is ErrorKind.ABORT and not self.options.transactional:
            # Without a transaction there is nothing to abort: a stale epoch means that the identity was taken over.
            kind = ErrorKind.FENCED if code == ErrorCode.INVALID_PRODUCER_EPOCH else ErrorKind.REFUSED
        trouble = Trouble(kind, _code(code), reason)
        self._attempt_failed(queue, batch, trouble, now)
        return kind

    def lost(self, batch: Batch, reason: str, now: Millis) -> None:
        """This attempt will get no answer: the batch may or may not have been written."""
        queue = self._queues.get(batch.partition)
        if queue is not None and batch in queue.numbered:
            batch.doubtful = True
            self._attempt_failed(queue, batch, Trouble(ErrorKind.RETRY, ErrorCode.NETWORK_EXCEPTION, reason), now)

    def unsent(self, batch: Batch, reason: str, now: Millis) -> None:
        """This attempt was never sent (no known leader, no connection), so the batch was not written."""
        queue = self._queues.get(batch.partition)
        if queue is not None and batch in queue.numbered:
            self._attempt_failed(queue, batch, Trouble(ErrorKind.RETRY, ErrorCode.LEADER_NOT_AVAILABLE, reason), now)

    def leader_moved(self, partition: TopicPartition) -> None:
        """The partition has another leader, so the next attempt need not wait (KIP-951)."""
        queue = self._queues.get(partition)
        if queue is not None:
            queue.not_before = AT_ONCE
            self._dirty[partition] = None

    def expire(self, now: Millis) -> Millis | None:
        """Gives up batches past their deadline (delivery.timeout.ms). Returns the next deadline or pause, if any."""
        wake: list[int] = []
        for partition, queue in list(self._queues.items()):
            for batch in [*queue.numbered, *queue.fresh]:
                if batch.deadline > now or batch.reported:
                    if not batch.reported:
                        wake.append(batch.deadline)
                    continue
                code = ErrorCode.REQUEST_TIMED_OUT
                what = f"not delivered within delivery.timeout.ms, after {batch.attempts} attempts"
                self._report(batch, Trouble(ErrorKind.REFUSED, code, what))
                if not batch.in_flight:
                    self._drop(queue, batch)
                self._after_loss(Trouble(ErrorKind.ABORT, code, f"a batch was {what}"))
            if not queue.idle and not queue.in_flight and queue.not_before > now:
                wake.append(queue.not_before)
            self._dirty[partition] = None
        return Millis(min(wake)) if wake else None

    # --- what to do -------------------------------------------------------------------------------------------

    def poll(self, now: Millis) -> list[Effect]:
        """The effects that the owner must carry out, in order. Call after every event, and at the time that `expire`
        returned."""
        if self.state is not State.FATAL_ERROR:
            self._resolve_gaps()
            self._send(now)
            if self._ending and not self.pending and not self._registering:
                self._end()  # otherwise a running registration could arrive after EndTxn and open the next transaction
        effects, self._effects = self._effects, []
        return effects

    @property
    def pending(self) -> int:
        """Batches that are not settled yet."""
        return sum(len(queue.numbered) + len(queue.fresh) for queue in self._queues.values())

    def next_sequences(self) -> dict[TopicPartition, Sequence]:
        """Partition -> sequence of the next record under the current identity; to be saved with `identity`."""
        return {p: q.next_sequence for p, q in self._queues.items() if q.identity == self.identity}

    # --- inner steps ------------------------------------------------------------------------------------------

    def _queue(self, partition: TopicPartition) -> PartitionQueue:
        queue = self._queues.get(partition)
        if queue is None:
            queue = self._queues[partition] = PartitionQueue()
        return queue

    def _attempt_failed(self, queue: PartitionQueue, batch: Batch, trouble: Trouble, now: Millis) -> None:
        self._dirty[batch.partition] = None
        queue.failed(batch, Millis(now + self.options.pause_ms(batch.attempts)))
        stopped = self.state in (S.ABORTABLE_ERROR, S.ABORTING_TRANSACTION, S.FATAL_ERROR)
        again = trouble.kind is ErrorKind.RETRY and batch.attempts <= self.options.retries
        if again and not stopped and not batch.reported:
            return
        self._report(batch, trouble)
        self._drop(queue, batch)
        if trouble.kind in (ErrorKind.FENCED, ErrorKind.FATAL):
            self.fail(trouble)
        else:
            self._after_loss(Trouble(ErrorKind.ABORT, trouble.code, f"a batch failed: {trouble.reason}"))

    def _after_loss(self, trouble: Trouble) -> None:
        if self.options.transactional:
            self.fail(trouble)

    def _report(self, batch: Batch, trouble: Trouble) -> None:
        if not batch.reported:
            batch.reported = True
            self._effects.append(Failed(batch, trouble, batch.doubtful or batch.in_flight))

    def _drop(self, queue: PartitionQueue, batch: Batch) -> None:
        queue.give_up(batch)
        self._raise_epoch |= batch.doubtful or queue.unresolved

    def _drop_unsent(self, trouble: Trouble) -> None:
        for partition, queue in self._queues.items():
            for batch in [*queue.numbered, *queue.fresh]:
                if not batch.in_flight:
                    self._report(batch, trouble)
            for batch in [b for b in reversed([*queue.numbered, *queue.fresh]) if not b.in_flight]:
                self._drop(queue, batch)
            self._dirty[partition] = None

    def _resolve_gaps(self) -> None:
        for partition in list(self._dirty):
            queue = self._queues.get(partition)
            if queue is None or queue.in_flight or not (queue.gap or (queue.unresolved and not queue.numbered)):
                continue
            if self.options.transactional:
                self._raise_epoch = True
                trouble = Trouble(
                    ErrorKind.ABORT,
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"{partition.topic}-{partition.partition} misses a batch of this producer",
                )
                if self.state in (S.IN_TRANSACTION, S.COMMITTING_TRANSACTION):
                    self.fail(trouble)
                continue
            if self.options.leased:
                what = (
                    f"{partition.topic}-{partition.partition} misses a batch of this lease's generation;"
                    " take the lease again and resume from its progress"
                )
                self.fail(Trouble(ErrorKind.FATAL, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, what))
                return
            self._renumber(queue)

    def _renumber(self, queue: PartitionQueue) -> None:
        trouble = Trouble(
            ErrorKind.REFUSED,
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            "a batch before it was lost, and whether a former attempt of this one still arrives is unknown",
        )
        for batch in queue.unnumber():
            self._report(batch, trouble)
        if queue.identity == self.identity:
            if self.identity.epoch + 1 >= MAX_PRODUCER_EPOCH:
                self._new_id_wanted = True
                queue.restart(NO_IDENTITY)
                return
            self.identity = Identity(self.identity.producer_id, ProducerEpoch(self.identity.epoch + 1))
        queue.restart(self.identity)

    def _send(self, now: Millis) -> None:
        if self._new_id_wanted and self.state is State.READY:
            self._new_id_wanted = False
            self._move(E.INITIALIZE)
            self._effects.append(RequestProducerId(NO_IDENTITY))
        if self.state not in (S.READY, S.IN_TRANSACTION, S.COMMITTING_TRANSACTION):
            return
        unregistered: list[TopicPartition] = []
        for partition in list(self._dirty):
            del self._dirty[partition]
            queue = self._queues.get(partition)
            if queue is None:
                continue
            if self.options.transactional and self.version < 2 and partition not in self._registered:
                if queue.fresh:
                    unregistered.append(partition)
                    self._dirty[partition] = None
                continue
            for batch in queue.take(now, self.identity, self.options.window):
                self._wrote = True
                self._effects.append(SendBatch(batch))
        if unregistered and not self._registering:
            self._registering = tuple(unregistered)
            self._wrote = True
            self._effects.append(RequestAddPartitions(self._registering))

    def _end(self) -> None:
        self._ending = False
        if self._wrote:
            self._effects.append(RequestEndTransaction(self._commit))
            return
        if self.prepared is not None:
            # The other system may have stored its identity, so the next transaction must have another one. The
            # coordinator has no transaction that it could commit, but an abort raises the epoch.
            self._effects.append(RequestEndTransaction(False))
            return
        self._move(E.ENDED)
        self._finish(self._commit)

    def _finish(self, committed: bool) -> None:
        self._ending = False
        self.prepared = None
        self.trouble = None
        self._effects.append(Ended(committed))

    def _move(self, event: Event) -> None:
        after = TRANSITIONS.get((self.state, event))
        if after is None:
            self._illegal(WORDS[event])
        self.state = after

    def _illegal(self, what: str) -> NoReturn:
        why = f": {self.trouble.word()}" if self.trouble is not None else ""
        raise IllegalTransition(f"cannot {what} in state {self.state.name}{why}")


def _code(code: int) -> ErrorCode | int:
    try:
        return ErrorCode(code)
    except ValueError:
        return code
