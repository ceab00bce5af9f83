"""Writes of one partition that wait until the coordinator has verified their transaction (rules 3, 4 and 24).

A write is checked again when it is released: by the serial of its transaction (`hapax.core.partition.verification`), by
its connection if the client has no epoch per transaction, and by the partition's machine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from hapax.broker.partition_views import WritablePartition
from hapax.broker.waiters import Settles
from hapax.codec.batch import read_header
from hapax.codec.metadata import TXN_STATE_TOPIC
from hapax.core.batch import TRANSACTIONAL, BatchHeader
from hapax.core.control import Control, Marker, ShardFence
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.partition.values import Condition, WriteResult
from hapax.core.partition.verification import (
    FIRST_VERSION_THAT_ADDS,
    Admission,
    Answer,
    Outcome,
    Question,
    ShardEpochs,
    Verification,
)
from hapax.core.transaction.connection_fencing import ConnectionFencing, Superseded
from hapax.core.types import ProducerEpoch, ProducerId


class ParkedWrite(NamedTuple):
    """A batch that waits for its transaction's verification."""

    batch: bytearray
    call: Settles
    number: int
    local: bool
    """acks=1: answered as soon as this node has it."""
    transactional_id: str
    produce_version: int
    condition: Condition | None = None


class ParkedWrites:
    """The parked writes, and what only the leader learns about their producers."""

    __slots__ = (
        "_append", "_ask", "_partition", "_refuse", "_shard_epochs", "_superseded", "_verification", "fencing",
        "holds", "transactional_ids", "under_way",
    )  # fmt: skip

    def __init__(
        self, partition: WritablePartition, shard_epochs: ShardEpochs, *, ask: Callable[[Question], None],
        append: Callable[[ParkedWrite], BatchHeader],
        refuse: Callable[[memoryview | bytearray, Refusal, Settles, int, str], None], superseded: Callable[[], None],
    ) -> None:
        """`ask` sends a question to the coordinator; its answer comes to `answered`. `append` checks and appends a
        verified write, and raises Refusal. `refuse` reports a refusal, and settles the write, which has a number
        in its call and a transactional id. `superseded`: a write was dropped because its producer has a newer
        connection."""
        self._partition = partition
        self._shard_epochs = shard_epochs
        self._ask = ask
        self._append = append
        self._refuse = refuse
        self._superseded = superseded
        self._verification: Verification[ParkedWrite] = Verification(self._shard_epochs, self._decided)
        self.holds = self._verification.holds
        self.under_way = self._verification.under_way
        self.fencing: ConnectionFencing | None = None
        """Fences version-1 producers' older connections. None before the first transactional write."""
        self.transactional_ids: dict[int, str] = {}
        """Producer id -> transactional id, of open transactions that began while this process led."""

    def lead(self) -> None:
        """A leadership begins. The log shows which coordinators were replaced. That must be known before a
        coordinator's answer is believed (rule 3)."""
        self.fencing = None
        machine = self._partition.machine
        machine.seal_all()
        for shard, epoch in machine.marker_epochs.items():
            self._shard_epochs.admit(shard, epoch)
        self._fenced(machine.shard_epoch)

    def resign(self, result: WriteResult) -> None:
        """The leadership is over. Parked writes are answered with `result`. The next leader sees the markers of the
        open transactions."""
        self.transactional_ids.clear()
        for parked in self._verification.abandon():
            self._partition.machine.note_refused(read_header(parked.batch))
            parked.call.settle(parked.number, result)

    def admit(self, transactional_id: str, header: BatchHeader, connection: int) -> Superseded | None:
        """The newest connection of a version-1 producer wins. None: the write may go on."""
        if self.fencing is None:
            self.fencing = ConnectionFencing(self._partition.newest_connection)
        return self.fencing.admit(
            transactional_id, ProducerId(header.producer_id), ProducerEpoch(header.producer_epoch), connection)

    def check_name(self, header: BatchHeader, transactional_id: str) -> None:
        """A batch enters a transaction under the transactional id that this belongs to: rights are on that id, and
        producer ids are no secret. Raises Refusal."""
        if not header.attributes & TRANSACTIONAL:
            return
        if not transactional_id:
            raise Refusal(ErrorCode.INVALID_TXN_STATE, "a transactional batch in a request without a transactional id")
        if self.transactional_ids.get(header.producer_id, transactional_id) != transactional_id:
            raise Refusal(
                ErrorCode.INVALID_PRODUCER_ID_MAPPING, "the producer's transaction has another transactional id")

    def park(
        self, batch: memoryview, header: BatchHeader, call: Settles, number: int, transactional_id: str,
        produce_version: int, local: bool, condition: Condition | None = None,
    ) -> None:
        """Raises Refusal."""
        self.check_name(header, transactional_id)
        parked = ParkedWrite(bytearray(batch), call, number, local, transactional_id, produce_version, condition)
        question = self._verification.park(header, transactional_id, produce_version, parked)
        if question is not None:
            self._ask(question)

    def admits(self, header: BatchHeader, admission: Admission | None, now_ms: int) -> bool:
        """Whether the producer's first batch of a transaction is verified by what came with it. A producer whose
        transaction is open here was sealed, or this leadership is new: then the coordinator is asked."""
        machine = self._partition.machine
        if admission is None or not self._verification.admits(header, admission, now_ms, machine.expiry_ms):
            return False
        producer = machine.describe_producer(header.producer_id)
        return producer is None or producer.txn_first_offset < 0

    def admitted(self, admission: Admission) -> None:
        """The batch was appended."""
        if self._partition.machine.name_transaction(admission.producer_id, admission.serial):
            self.transactional_ids[admission.producer_id] = admission.transactional_id

    def answered(self, answer: Answer) -> None:
        """The coordinator's answer to a question, or that none came."""
        outcome = self._verification.answer(answer)
        for parked, refusal in outcome.refused:
            self._not_verified(parked, refusal)
        for parked in outcome.verified:
            self._release(parked, outcome)
        if outcome.question is not None:
            self._ask(outcome.question)

    def seal(self, producer_id: int) -> None:
        """From now on the producer's writes to its open transaction are verified again."""
        self._partition.machine.seal(producer_id)
        self._verification.sealed(producer_id)

    def appended(self, control: Control) -> None:
        """A control record was appended and replayed."""
        if isinstance(control, Marker):
            for parked, refusal in self._verification.marked(control):
                self._not_verified(parked, refusal)
            self.transactional_ids.pop(control.producer_id, None)  # a parked write brings its own transactional id
        elif isinstance(control, ShardFence):
            self._fenced(control.shard_epoch)

    def _fenced(self, shard_epoch: int) -> None:
        """A fence in a partition of `__transaction_state` gives the epoch of that shard."""
        partition = self._partition
        if partition.internal and partition.topic == TXN_STATE_TOPIC and shard_epoch >= 0:
            self._shard_epochs.admit(partition.index, shard_epoch)

    def _decided(self, producer_id: int) -> int:
        producer = self._partition.machine.producers.get(producer_id)
        return -1 if producer is None else producer.serial

    def _release(self, parked: ParkedWrite, outcome: Outcome[ParkedWrite]) -> None:
        superseded = self.gave_way(parked)
        if superseded is not None:
            self._superseded()
            parked.call.drop(superseded.reason)
            return
        try:
            header = self._append(parked)
        except Refusal as refusal:
            self._refuse(memoryview(parked.batch), refusal, parked.call, parked.number, parked.transactional_id)
            return
        if not header.attributes & TRANSACTIONAL:  # a duplicate, under whatever name
            return
        if self._partition.machine.name_transaction(header.producer_id, outcome.serial):
            self.transactional_ids[header.producer_id] = parked.transactional_id

    def gave_way(self, parked: ParkedWrite) -> Superseded | None:
        """Whether a version-1 producer has written on a newer connection since the write came."""
        connection = parked.call.connection
        if self.fencing is None or parked.produce_version >= FIRST_VERSION_THAT_ADDS or connection < 0:
            return None
        header = read_header(parked.batch)
        return self.fencing.gave_way(
            parked.transactional_id, ProducerId(header.producer_id), ProducerEpoch(header.producer_epoch), connection)

    def _not_verified(self, parked: ParkedWrite, refusal: Refusal) -> None:
        self._partition.machine.note_refused(read_header(parked.batch))
        self._refuse(parked.batch, refusal, parked.call, parked.number, parked.transactional_id)
