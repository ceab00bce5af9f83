"""Verification of a partition's part in a transaction, at the write (rule 3, KIP-890).

The first batch of a transaction in a partition waits until the coordinator has said that the partition belongs to the
transaction: else a batch that comes after its transaction's end would open one that nobody ends (KAFKA-9144). Asking
takes time, and the partition's mailbox must not wait, so:

* A batch that needs the answer is **parked**; whatever else comes from the same producer is parked behind it, so that
  its batches stay in order. Everybody else's go on, and so do markers, also the same producer's.
* **A marker makes an answer under way worthless**: it may speak of the transaction that the marker has just ended.
  The question is asked again.
* **What a marker has overtaken never enters the next transaction** (rule 24). A version-1 client has one epoch for all
  its transactions and registers a partition before it writes there, which its coordinator allows only after the last
  one's markers. So what was parked before a marker belongs to a transaction that this marker, or an earlier one, has
  ended: it is refused at once. A version-2 batch is named by its epoch, and is asked about again.
* **An answer names its transaction by the serial.** One that is not above the last serial decided here speaks of the
  past, whatever became of the marker's other traces: it counts for nothing, and the question is asked again.
* **An answer carries its shard's epoch**, and one below the highest that this broker has seen comes from a coordinator
  that does not know it was replaced: it counts for nothing, and the question is asked again.

One `Verification` for each partition led; it holds writes as opaque objects and does no I/O. One `ShardEpochs` for the
whole broker.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Generic, NamedTuple, TypeVar

from hapax.core.batch import BatchHeader
from hapax.core.control import Marker
from hapax.core.errors import ErrorCode, Refusal

Write = TypeVar("Write")

MAX_QUESTIONS: Final = 3
"""How often one question is asked again before the client is told to try later."""

FIRST_VERSION_WITH_ABORTABLE: Final = 11
"""Produce version from which clients know TRANSACTION_ABORTABLE."""
FIRST_VERSION_THAT_ADDS: Final = 12
"""Produce version from which a write registers its partition by itself (transactions version 2)."""

_COORDINATOR_TROUBLE: Final = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    }
)


class Question(NamedTuple):
    """To be asked of the coordinator of `transactional_id` (VerifyPartitions)."""

    ticket: int
    """Comes back with the answer."""
    transactional_id: str
    producer_id: int
    producer_epoch: int
    add: bool
    """Register the partition if it is not part of the transaction yet (transactions version 2)."""
    after_serial: int = -1
    """The last of the producer's transactions that is decided here; the one asked about comes later. -1: none known."""


class Answer(NamedTuple):
    """`error` NONE: the partition is part of the open transaction."""

    ticket: int
    error: ErrorCode = ErrorCode.NONE
    shard: int = -1
    shard_epoch: int = -1
    """-1: nobody answered (time-out, no connection)."""
    reason: str = ""
    serial: int = -1
    """Of the transaction that the answer is about; -1: not told."""


@dataclass(frozen=True, slots=True)
class Outcome(Generic[Write]):
    """What follows from an answer. Decide the verified writes in order, with `VERIFIED`, before anything else of
    that producer; then ask the next question, if there is one."""

    verified: list[Write] = field(default_factory=list)
    refused: list[tuple[Write, Refusal]] = field(default_factory=list)
    question: Question | None = None
    serial: int = -1
    """Of the transaction that the verified writes belong to; -1: not told."""


class ShardEpochs:
    """The highest epoch of each transaction shard that this broker has seen, in answers and in markers."""

    __slots__ = ("_highest",)

    def __init__(self) -> None:
        self._highest: dict[int, int] = {}

    def admit(self, shard: int, epoch: int) -> bool:
        """False: the sender has been replaced. Else remembers the epoch."""
        if epoch < self._highest.get(shard, -1):
            return False
        self._highest[shard] = epoch
        return True

    def highest(self, shard: int) -> int:
        return self._highest.get(shard, -1)


class _Parked(NamedTuple, Generic[Write]):
    header: BatchHeader
    transactional_id: str
    produce_version: int
    write: Write


@dataclass(slots=True)
class _Queue(Generic[Write]):
    """Parked writes of one producer. The question under way is about the first one's epoch."""

    writes: deque[_Parked[Write]]
    ticket: int
    asked: int = 1
    invalidated: bool = False


class Verification(Generic[Write]):
    """Parked writes of one partition."""

    __slots__ = ("_decided", "_epochs", "_queues", "_tickets", "_waiting")

    def __init__(self, shard_epochs: ShardEpochs, decided: Callable[[int], int]) -> None:
        """`decided(producer id)`: serial of its last transaction that has a marker in the partition's log, -1: none."""
        self._epochs = shard_epochs
        self._decided = decided
        self._queues: dict[int, _Queue[Write]] = {}
        self._waiting: dict[int, int] = {}
        self._tickets = 0

    def holds(self, producer_id: int) -> bool:
        """Whether writes of the producer are parked: then its next one is to be parked too, whatever it is."""
        return producer_id in self._queues

    def park(self, header: BatchHeader, transactional_id: str, produce_version: int, write: Write) -> Question | None:
        """Returns the question to ask; None where it is under way already."""
        parked = _Parked(header, transactional_id, produce_version, write)
        queue = self._queues.get(header.producer_id)
        if queue is not None:
            queue.writes.append(parked)
            return None
        queue = _Queue(deque((parked,)), -1)
        self._queues[header.producer_id] = queue
        return self._ask(queue)

    def under_way(self) -> list[int]:
        """Tickets of the questions for whose answers writes wait."""
        return [queue.ticket for queue in self._queues.values()]

    def sealed(self, producer_id: int) -> None:
        """What the producer has written is being counted: an answer under way may be older than that."""
        queue = self._queues.get(producer_id)
        if queue is not None:
            queue.invalidated = True

    def marked(self, marker: Marker) -> list[tuple[Write, Refusal]]:
        """A marker has been appended. Returns what it has ended, to be refused; what is left is asked about again."""
        queue = self._queues.get(marker.producer_id)
        if queue is None:
            return []
        queue.invalidated = True
        if marker.serial < 0:  # it ends what hangs here, which tells nothing of the transaction that goes on
            return []
        ended = [parked for parked in queue.writes if parked.produce_version < FIRST_VERSION_THAT_ADDS]
        if ended:
            queue.writes = deque(
                parked for parked in queue.writes if parked.produce_version >= FIRST_VERSION_THAT_ADDS)
            if not queue.writes:
                del self._queues[marker.producer_id]
        return [(parked.write, _ended(parked, marker)) for parked in ended]

    def answer(self, answer: Answer) -> Outcome[Write]:
        """An answer came, or the time for it is over (`NETWORK_EXCEPTION`). One that nobody waits for is ignored."""
        producer_id = self._waiting.pop(answer.ticket, -1)
        queue = self._queues.get(producer_id)
        if queue is None or queue.ticket != answer.ticket:
            return Outcome()
        worthless = self._worthless(queue, answer, producer_id)
        if worthless:
            if queue.asked < MAX_QUESTIONS:
                queue.asked += 1
                return Outcome(question=self._ask(queue))
            answer = Answer(answer.ticket, ErrorCode.NOT_COORDINATOR, reason=worthless)
        settled = self._take_first_epoch(queue)
        question = None
        if queue.writes:
            queue.asked = 1
            question = self._ask(queue)
        else:
            del self._queues[producer_id]
        if answer.error == ErrorCode.NONE:
            return Outcome(
                verified=[parked.write for parked in settled], question=question, serial=answer.serial)
        refused = [
            (parked.write, refusal_for(answer.error, answer.reason, parked.produce_version)) for parked in settled
        ]
        return Outcome(refused=refused, question=question)

    def _worthless(self, queue: _Queue[Write], answer: Answer, producer_id: int) -> str:
        """Why the answer counts for nothing; empty: it counts."""
        outdated = answer.shard_epoch >= 0 and not self._epochs.admit(answer.shard, answer.shard_epoch)
        if queue.invalidated:
            return "it was overtaken each time"
        if outdated:
            return "the coordinator has been replaced"
        if answer.error == ErrorCode.NONE and 0 <= answer.serial <= self._decided(producer_id):
            return f"transaction {answer.serial}, of which the coordinator speaks, is decided here"
        return ""

    def abandon(self) -> list[Write]:
        """The partition is led elsewhere from now on: everything parked, to be refused."""
        writes = [parked.write for queue in self._queues.values() for parked in queue.writes]
        self._queues.clear()
        self._waiting.clear()
        return writes

    def _ask(self, queue: _Queue[Write]) -> Question:
        first = queue.writes[0]
        self._tickets += 1
        queue.ticket = self._tickets
        queue.invalidated = False
        self._waiting[queue.ticket] = first.header.producer_id
        return Question(
            ticket=queue.ticket,
            transactional_id=first.transactional_id,
            producer_id=first.header.producer_id,
            producer_epoch=first.header.producer_epoch,
            add=first.produce_version >= FIRST_VERSION_THAT_ADDS,
            after_serial=self._decided(first.header.producer_id),
        )

    def _take_first_epoch(self, queue: _Queue[Write]) -> list[_Parked[Write]]:
        """The parked writes that the answer is about: a later epoch behind them has a question of its own."""
        epoch = queue.writes[0].header.producer_epoch
        taken = []
        while queue.writes and queue.writes[0].header.producer_epoch == epoch:
            taken.append(queue.writes.popleft())
        return taken


def _ended(parked: _Parked[Write], marker: Marker) -> Refusal:
    """What a version-1 client is told of a batch whose transaction ended while it was parked."""
    reason = f"transaction {marker.serial} was decided while the batch waited for its verification"
    fenced = parked.header.producer_epoch < marker.producer_epoch
    error = ErrorCode.PRODUCER_FENCED if fenced else ErrorCode.INVALID_TXN_STATE
    return refusal_for(error, reason, parked.produce_version)


def refusal_for(error: ErrorCode, reason: str, produce_version: int) -> Refusal:
    """A coordinator's error as Produce answers it, by the client's version.

    Trouble with the coordinator becomes NOT_ENOUGH_REPLICAS: the one retriable error that makes no client fetch
    metadata for nothing, or give up.
    """
    if error in _COORDINATOR_TROUBLE or (
        error == ErrorCode.CONCURRENT_TRANSACTIONS and produce_version < FIRST_VERSION_THAT_ADDS
    ):
        detail = f"the partition's part in the transaction could not be verified: {error.name}"
        return Refusal(ErrorCode.NOT_ENOUGH_REPLICAS, f"{detail} ({reason})" if reason else detail)
    if error in (ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.INVALID_TXN_STATE):
        known = produce_version >= FIRST_VERSION_WITH_ABORTABLE
        code = ErrorCode.TRANSACTION_ABORTABLE if known else ErrorCode.INVALID_TXN_STATE
        return Refusal(code, reason or "the partition is not part of the transaction")
    if error == ErrorCode.PRODUCER_FENCED:  # the coordinator's word; a partition says 47 to every client
        return Refusal(ErrorCode.INVALID_PRODUCER_EPOCH, reason)
    return Refusal(error, reason)
