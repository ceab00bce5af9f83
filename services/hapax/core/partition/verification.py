"""Verifies at the write that a partition belongs to a producer's transaction (rule 3, KIP-890).

The first batch of a transaction in a partition waits until the coordinator has confirmed that the partition belongs to
the transaction. Otherwise a batch that comes after the end of its transaction would open a transaction that no marker
ends (KAFKA-9144). The question takes time, and the partition must not wait for it, so:

* A batch that needs the answer is **parked**. Later batches of the same producer are parked behind it, so that they
  stay in order. Batches of other producers pass, and so do all markers.
* **A marker invalidates a question in flight**: its answer may be about the transaction that the marker has just
  ended. The question is asked again.
* **A parked batch that a marker has overtaken never enters the next transaction** (rule 24). A version-1 client has one
  epoch for all its transactions. It registers a partition before it writes there, and the coordinator allows that only
  after the last transaction's markers. So a batch parked before a marker belongs to a transaction that this marker, or
  an earlier one, has ended: it is refused at once. A version-2 batch is identified by its epoch; its question is asked
  again.
* **An answer names its transaction by the serial.** An answer whose serial is not above the last serial decided here
  is about the past. It is ignored, and the question is asked again.
* **An answer carries its shard's epoch.** An epoch below the highest that this broker has seen comes from a coordinator
  that does not know it was replaced. The answer is ignored, and the question is asked again.

There is one `Verification` for each partition led here. It holds writes as opaque objects and does no I/O. There is one
`ShardEpochs` for the whole broker.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Generic, NamedTuple, TypeVar

from hapax.core.batch import TRANSACTIONAL, BatchHeader
from hapax.core.control import Marker
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.partition.values import StaleEpoch

Write = TypeVar("Write")

MAX_QUESTIONS: Final = 3
"""How often one question is asked before the client is told to try later."""

FIRST_VERSION_WITH_ABORTABLE: Final = 11
"""First Produce version in which clients know TRANSACTION_ABORTABLE."""
FIRST_VERSION_THAT_ADDS: Final = 12
"""First Produce version in which a write registers its partition (transactions version 2)."""

LONGEST_ADMISSION_MS: Final = 900_000
"""Where producer.id.expiration.ms is less than twice this, half of it counts instead."""

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
    """Register the partition if it does not belong to the transaction yet (transactions version 2)."""
    after_serial: int = -1
    """Serial of the producer's last transaction that is decided here. The question is about a later one. -1: not
    known."""


class Answer(NamedTuple):
    """`error` NONE: the partition belongs to the open transaction."""

    ticket: int
    error: ErrorCode = ErrorCode.NONE
    shard: int = -1
    shard_epoch: int = -1
    """-1: there was no answer (time-out, no connection)."""
    reason: str = ""
    serial: int = -1
    """Of the transaction that the answer is about; -1: not given."""


class Admission(NamedTuple):
    """A coordinator's answer that came with the write (`hapax.wire.write_pass`): the partition is registered in the
    open transaction of the producer, since the member joined."""

    transactional_id: str
    topic_id: bytes
    partition: int
    producer_id: int
    producer_epoch: int
    serial: int
    shard: int
    shard_epoch: int
    issued_ms: int
    """Wall clock of the coordinator."""


@dataclass(frozen=True, slots=True)
class Outcome(Generic[Write]):
    """The consequences of an answer. The caller decides the verified writes in order, with `VERIFIED`, before anything
    else of that producer. Then it asks the next question, if there is one."""

    verified: list[Write] = field(default_factory=list)
    refused: list[tuple[Write, Refusal]] = field(default_factory=list)
    question: Question | None = None
    serial: int = -1
    """Of the transaction that the verified writes belong to; -1: not given."""


class ShardEpochs:
    """The highest epoch of each transaction shard that this broker has seen in answers and markers."""

    __slots__ = ("_highest",)

    def __init__(self) -> None:
        self._highest: dict[int, int] = {}

    def admit(self, shard: int, epoch: int) -> bool:
        """False: the sender was replaced. Otherwise remembers the epoch."""
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
    """Parked writes of one producer. The question in flight is about the first write's epoch."""

    writes: deque[_Parked[Write]]
    ticket: int
    asked: int = 1
    invalidated: bool = False


class Verification(Generic[Write]):
    """Parked writes of one partition."""

    __slots__ = ("_decided", "_epochs", "_queues", "_tickets", "_waiting")

    def __init__(self, shard_epochs: ShardEpochs, decided: Callable[[int], int]) -> None:
        """`decided(producer id)`: serial of its last transaction with a marker in the partition's log; -1: it has
        none."""
        self._epochs = shard_epochs
        self._decided = decided
        self._queues: dict[int, _Queue[Write]] = {}
        self._waiting: dict[int, int] = {}
        self._tickets = 0

    def holds(self, producer_id: int) -> bool:
        """Whether writes of the producer are parked. Then its next write is parked too, whatever it is."""
        return producer_id in self._queues

    def park(self, header: BatchHeader, transactional_id: str, produce_version: int, write: Write) -> Question | None:
        """Returns the question to ask; None: it is in flight already."""
        parked = _Parked(header, transactional_id, produce_version, write)
        queue = self._queues.get(header.producer_id)
        if queue is not None:
            queue.writes.append(parked)
            return None
        queue = _Queue(deque((parked,)), -1)
        self._queues[header.producer_id] = queue
        return self._ask(queue)

    def under_way(self) -> list[int]:
        """Tickets of the questions on which parked writes wait."""
        return [queue.ticket for queue in self._queues.values()]

    def admits(self, header: BatchHeader, admission: Admission, now_ms: int, expiry_ms: int) -> bool:
        """Whether the admission stands for the answer to the question about this batch, the producer's first of a
        transaction here. `now_ms`: wall clock. `expiry_ms`: how long the partition remembers an idle producer.

        It is as old as the producer's place in the transaction, so a marker may have come since: then its serial is
        decided here. The partition forgets the marker `expiry_ms` later, and the clocks of two nodes differ. So an
        admission counts for half of that, and for LONGEST_ADMISSION_MS at most."""
        return (
            bool(header.attributes & TRANSACTIONAL)
            and (admission.producer_id, admission.producer_epoch) == (header.producer_id, header.producer_epoch)
            and abs(now_ms - admission.issued_ms) <= min(LONGEST_ADMISSION_MS, expiry_ms // 2)
            and admission.serial > self._decided(header.producer_id)
            and self._epochs.admit(admission.shard, admission.shard_epoch)
        )

    def sealed(self, producer_id: int) -> None:
        """The producer's records are being counted: an answer in flight may be older than that."""
        queue = self._queues.get(producer_id)
        if queue is not None:
            queue.invalidated = True

    def marked(self, marker: Marker) -> list[tuple[Write, Refusal]]:
        """A marker was appended. Returns the writes whose transaction it has ended, to be refused. For the others the
        question is asked again."""
        queue = self._queues.get(marker.producer_id)
        if queue is None:
            return []
        queue.invalidated = True
        if marker.serial < 0:  # it ends a hanging transaction, and says nothing of the open one
            return []
        ended = [parked for parked in queue.writes if parked.produce_version < FIRST_VERSION_THAT_ADDS]
        if ended:
            queue.writes = deque(
                parked for parked in queue.writes if parked.produce_version >= FIRST_VERSION_THAT_ADDS)
            if not queue.writes:
                del self._queues[marker.producer_id]
        return [(parked.write, _ended(parked, marker)) for parked in ended]

    def answer(self, answer: Answer) -> Outcome[Write]:
        """An answer came, or its time-out passed (`NETWORK_EXCEPTION`). An answer that no write waits for is
        ignored."""
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
        """Why the answer is ignored; empty: it counts."""
        outdated = answer.shard_epoch >= 0 and not self._epochs.admit(answer.shard, answer.shard_epoch)
        if queue.invalidated:
            return "it was overtaken each time"
        if outdated:
            return "the coordinator has been replaced"
        if answer.error == ErrorCode.NONE and 0 <= answer.serial <= self._decided(producer_id):
            return f"transaction {answer.serial}, of which the coordinator speaks, is decided here"
        return ""

    def abandon(self) -> list[Write]:
        """This node no longer leads the partition. Returns all parked writes, to be refused."""
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
        """The parked writes that the answer is about. Writes of a later epoch, and transactional ones under another
        transactional id, have a question of their own."""
        first = queue.writes[0]
        taken = []
        while queue.writes and _are_of_one_transaction(first, queue.writes[0]):
            taken.append(queue.writes.popleft())
        return taken


def _are_of_one_transaction(first: _Parked[Write], other: _Parked[Write]) -> bool:
    return first.header.producer_epoch == other.header.producer_epoch and (
        first.transactional_id == other.transactional_id or not other.header.attributes & TRANSACTIONAL)


def _ended(parked: _Parked[Write], marker: Marker) -> Refusal:
    """The refusal for a version-1 client's batch whose transaction ended while the batch was parked."""
    reason = f"transaction {marker.serial} was decided while the batch waited for its verification"
    fenced = parked.header.producer_epoch < marker.producer_epoch
    if fenced:
        return StaleEpoch(parked.header.producer_id, parked.header.producer_epoch, reason)
    return refusal_for(ErrorCode.INVALID_TXN_STATE, reason, parked.produce_version)


def refusal_for(error: ErrorCode, reason: str, produce_version: int) -> Refusal:
    """A coordinator's error as a Produce error of the client's version.

    A failing coordinator becomes NOT_ENOUGH_REPLICAS: it is the only retriable error at which no client gives up or
    fetches metadata in vain.
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
    if error == ErrorCode.PRODUCER_FENCED:  # a partition answers 47 to every client
        return Refusal(ErrorCode.INVALID_PRODUCER_EPOCH, reason)
    return Refusal(error, reason)
