"""Writes of one partition that wait for the coordinator's word on their transaction (rules 3, 4 and 24).

What waited is judged again when it is released: by the name of its transaction (`hapax.core.partition.verification`),
by its connection, where the client has no epoch per transaction, and by the partition's machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hapax.broker.waiters import Settles
from hapax.codec.batch import read_header
from hapax.codec.metadata import TXN_STATE_TOPIC
from hapax.core.batch import TRANSACTIONAL, BatchHeader
from hapax.core.control import Control, Marker, ShardFence
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.partition.machine import VERIFIED
from hapax.core.partition.verification import FIRST_VERSION_THAT_ADDS, Answer, Outcome, Verification
from hapax.core.transaction.connection_fencing import ConnectionFencing, Superseded
from hapax.core.types import ProducerEpoch, ProducerId
from hapax.kafka.api.produce import PartitionResult, ProduceCall

if TYPE_CHECKING:
    from hapax.broker.replica import Replica


class ParkedWrite(NamedTuple):
    """A batch that waits for its transaction's verification."""

    batch: bytearray
    call: Settles
    number: int
    local: bool
    transactional_id: str


class ParkedWrites:
    """What is parked, and what the leader learned about the producers on the way. No replica else knows it."""

    __slots__ = (
        "_replica", "_shard_epochs", "_verification", "fencing", "holds", "transactional_ids", "under_way",
    )

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._shard_epochs = replica.context.shard_epochs
        self._verification: Verification[ParkedWrite] = Verification(self._shard_epochs, self._decided)
        self.holds = self._verification.holds
        self.under_way = self._verification.under_way
        self.fencing: ConnectionFencing | None = None
        """Of version-1 producers' connections, from the first transactional write on."""
        self.transactional_ids: dict[int, str] = {}
        """Producer id -> transactional id, of the open transactions that this process saw begin."""

    def lead(self) -> None:
        """A leadership begins. Its log says which coordinators were replaced: that must be known before an answer of
        one is believed (rule 3)."""
        self.fencing = None
        machine = self._replica.machine
        machine.seal_all()
        for shard, epoch in machine.marker_epochs.items():
            self._shard_epochs.admit(shard, epoch)
        self._fenced(machine.shard_epoch)

    def resign(self, result: PartitionResult) -> None:
        """The leadership is over: nothing waits any more. Markers that end what is open are another's to see."""
        self.transactional_ids.clear()
        for parked in self._verification.abandon():
            parked.call.settle(parked.number, result)

    def admit(self, transactional_id: str, header: BatchHeader, connection: int) -> Superseded | None:
        """Of a version-1 producer's connections the newest wins. None: the write may go on."""
        if self.fencing is None:
            self.fencing = ConnectionFencing(self._replica.newest_connection)
        return self.fencing.admit(
            transactional_id, ProducerId(header.producer_id), ProducerEpoch(header.producer_epoch), connection)

    def park(
        self, batch: memoryview, header: BatchHeader, call: Settles, number: int, transactional_id: str,
        produce_version: int, local: bool,
    ) -> None:
        """Raises Refusal."""
        if header.attributes & TRANSACTIONAL and not transactional_id:
            raise Refusal(ErrorCode.INVALID_TXN_STATE, "a transactional batch in a request without a transactional id")
        parked = ParkedWrite(bytearray(batch), call, number, local, transactional_id)
        question = self._verification.park(header, transactional_id, produce_version, parked)
        if question is not None:
            self._replica.context.ask(self._replica, question)

    def answered(self, answer: Answer) -> None:
        """The coordinator's word on a question, or that there was none."""
        outcome = self._verification.answer(answer)
        for parked, refusal in outcome.refused:
            self._refuse(parked, refusal)
        for parked in outcome.verified:
            self._release(parked, outcome)
        if outcome.question is not None:
            self._replica.context.ask(self._replica, outcome.question)

    def seal(self, producer_id: int) -> None:
        """From now on the producer adds nothing to its open transaction without its coordinator's word."""
        self._replica.machine.seal(producer_id)
        self._verification.sealed(producer_id)

    def appended(self, control: Control) -> None:
        """A control record has been appended and replayed here."""
        if isinstance(control, Marker):
            for parked, refusal in self._verification.marked(control):
                self._refuse(parked, refusal)
            self.transactional_ids.pop(control.producer_id, None)  # what is parked brings its own name
        elif isinstance(control, ShardFence):
            self._fenced(control.shard_epoch)

    def _fenced(self, shard_epoch: int) -> None:
        """A shard's partition of `__transaction_state` knows the shard's epoch from its fence."""
        replica = self._replica
        if replica.internal and replica.topic == TXN_STATE_TOPIC and shard_epoch >= 0:
            self._shard_epochs.admit(replica.index, shard_epoch)

    def _decided(self, producer_id: int) -> int:
        producer = self._replica.machine.producers.get(producer_id)
        return -1 if producer is None else producer.serial

    def _release(self, parked: ParkedWrite, outcome: Outcome[ParkedWrite]) -> None:
        replica, batch = self._replica, memoryview(parked.batch)
        superseded = self._gave_way(parked)
        if superseded is not None:
            replica.context.superseded()
            assert isinstance(parked.call, ProduceCall)
            parked.call.drop(superseded.reason)
            return
        try:
            header = replica.checked(batch)
            decision = replica.machine.decide_append(header, replica.context.clock.now_ms(), VERIFIED)
            replica.carry_out(decision, batch, header, parked.call, parked.number, parked.local)
        except Refusal as refusal:
            parked.call.settle(parked.number, replica.refused(batch, refusal, parked.call))
            return
        if replica.machine.name_transaction(header.producer_id, outcome.serial):
            self.transactional_ids[header.producer_id] = parked.transactional_id

    def _gave_way(self, parked: ParkedWrite) -> Superseded | None:
        """Whether a newer connection of a version-1 producer has spoken since the write was parked."""
        call = parked.call
        if self.fencing is None or not isinstance(call, ProduceCall) or call.ctx.api_version >= FIRST_VERSION_THAT_ADDS:
            return None
        header = read_header(parked.batch)
        return self.fencing.gave_way(
            parked.transactional_id, ProducerId(header.producer_id), ProducerEpoch(header.producer_epoch),
            call.ctx.connection.serial)

    def _refuse(self, parked: ParkedWrite, refusal: Refusal) -> None:
        self._replica.machine.note_refused(read_header(parked.batch))
        parked.call.settle(parked.number, self._replica.refused(parked.batch, refusal, parked.call))
