"""Drives the client's producer machine against a real partition (core/partition/machine.py), over a network in the
script's hands: a batch that was sent is under way until it arrives, is refused, or its connection is cut.

    machine client_producer [transactional=yes] [version=1] [leased=yes] [producer=ID/EPOCH] [next=SEQUENCE]
                            [allow=two-phase]
    initialized producer=ID/EPOCH [kept=ID/EPOCH]   InitProducerId was answered
    begin / prepare / commit / abort   as the application calls them
    ended [producer=ID/EPOCH]          EndTxn was answered (version 2: with the next identity)
    added                              AddPartitionsToTxn was answered (version 1)
    enqueue NAME… [records=N] [within=MS]
    arrive NAME…                       the leader decides; its answer is on its way back
    answer NAME…                       the client gets that answer
    refuse NAME code=CODE              the leader answers so without looking
    lose NAME…                         it vanishes with its connection; the client knows no more than that
    lose-answer NAME                   arrived, and the answer is lost with the connection
    cut                                the connection breaks: what has not arrived may still do so, late
    arrive-late NAME                   from a connection that was cut
    fence epoch=N                      another instance has taken the identity over (a marker of that epoch)
    coordinator code=CODE              a coordinator refused
    time MS                            the clock stands there now; deadlines and pauses are looked at
    reader                             what read_committed and read_uncommitted see
    state                              state, identity, next sequence
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from hapax.core.control import Marker
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.partition.machine import Duplicate
from hapax.core.partition.values import CLIENT
from hapax.core.producer.machine import ClientProducer, ProducerOptions
from hapax.core.producer.partition_queue import NO_IDENTITY, Batch, Identity
from hapax.core.producer.states import (
    Delivered,
    Effect,
    Ended,
    Failed,
    IllegalTransition,
    RequestAddPartitions,
    RequestEndTransaction,
    RequestProducerId,
    SendBatch,
)
from hapax.core.types import (
    Millis,
    Offset,
    PartitionIndex,
    ProducerEpoch,
    ProducerId,
    Sequence,
    Serial,
    ShardEpoch,
    ShardId,
    TimestampMs,
    TopicPartition,
)
from scenarios.partition_log import LoggedPartition, data_header
from scenarios.script import Command, ScriptError

P = TopicPartition("t", PartitionIndex(0))
FOREVER = 10**9


@dataclass
class Copy:
    """A batch as it was sent; the batch itself may be renumbered while a copy is under way."""

    batch: Batch
    identity: Identity
    sequence: int
    code: int | None = None
    offset: int = -1


class Interpreter:
    def __init__(self, machine: Command) -> None:
        identity, sequences = _identity(machine), {}
        if "next" in machine.arguments:
            sequences = {P: Sequence(machine.number("next"))}
        options = ProducerOptions(
            transactional=machine.flag("transactional"),
            version=machine.number("version", 2),
            leased=machine.flag("leased"),
            two_phase=machine.text("allow", "") == "two-phase",
        )
        self.transactional = options.transactional
        self.producer = ClientProducer(options, identity or NO_IDENTITY, sequences)
        self.log = LoggedPartition()
        self.now = 0
        self.batches: dict[str, Batch] = {}
        self.under_way: dict[str, Copy] = {}
        self.late: dict[str, Copy] = {}
        if identity is None:
            self.producer.initialize()
            self.producer.poll(Millis(0))

    def execute(self, command: Command) -> Iterable[str]:
        method = getattr(self, "do_" + command.name.replace("-", "_"), None)
        if method is None:
            raise ScriptError(f"unknown command `{command.name}`")
        try:
            yield from method(command) or ()
        except IllegalTransition as illegal:
            yield f"not possible: {illegal}"
        for effect in self.producer.poll(Millis(self.now)):
            yield self._tell(effect)

    def _tell(self, effect: Effect) -> str:
        if isinstance(effect, SendBatch):
            batch = effect.batch
            name = str(batch.content)
            self.under_way[name] = Copy(batch, batch.identity, batch.sequence)
            return f"send {name} as {_word(batch.identity)} sequence {batch.sequence}"
        if isinstance(effect, Delivered):
            return f"delivered {effect.batch.content} at {effect.offset}"
        if isinstance(effect, Failed):
            doubt = ", maybe written" if effect.maybe_written else ", not written"
            return f"failed {effect.batch.content}{doubt}: {effect.trouble.word()}"
        if isinstance(effect, RequestProducerId):
            new = effect.current == NO_IDENTITY
            return "ask for a producer id" if new else f"raise the epoch of {_word(effect.current)}"
        if isinstance(effect, RequestAddPartitions):
            return "add partitions"
        if isinstance(effect, RequestEndTransaction):
            return f"end the transaction: {'commit' if effect.commit else 'abort'}"
        assert isinstance(effect, Ended)
        return "committed" if effect.committed else "aborted"

    # --- the application --------------------------------------------------------------------------------------

    def do_enqueue(self, command: Command) -> None:
        for name in command.positional:
            deadline = self.now + command.number("within", FOREVER)
            self.batches[name] = Batch(P, command.number("records", 1), Millis(deadline), content=name)
            self.producer.enqueue(self.batches[name])

    def do_begin(self, command: Command) -> None:
        self.producer.begin()

    def do_prepare(self, command: Command) -> Iterator[str]:
        yield f"prepared as {_word(self.producer.prepare())}"

    def do_commit(self, command: Command) -> None:
        self.producer.commit()

    def do_abort(self, command: Command) -> None:
        self.producer.abort()

    # --- the coordinator --------------------------------------------------------------------------------------

    def do_initialized(self, command: Command) -> None:
        identity = _identity(command)
        assert identity is not None
        self.producer.initialized(identity, kept=_identity(command, "kept"))

    def do_added(self, command: Command) -> None:
        self.producer.partitions_added()

    def do_ended(self, command: Command) -> None:
        """The decision reaches the partition, then the client."""
        before, after = self.producer.prepared or self.producer.identity, _identity(command)
        commit = self.producer._commit
        marker = Marker(
            producer_id=before.producer_id,
            producer_epoch=ProducerEpoch(before.epoch + (after is not None)),
            commit=commit,
            coordinator_epoch=ShardEpoch(0),
            serial=Serial(-1),
            shard=ShardId(0),
        )
        self.log.append_control(marker)
        self.log.sync()
        self.producer.ended(after)

    def do_coordinator(self, command: Command) -> Iterator[str]:
        yield self.producer.coordinator_refused(ErrorCode[command.text("code")], "").name.lower()

    # --- the network and the leader ---------------------------------------------------------------------------

    def do_arrive(self, command: Command) -> Iterator[str]:
        for name in command.positional:
            yield from self._decide(name, self.under_way[name])

    def do_arrive_late(self, command: Command) -> Iterator[str]:
        for name in command.positional:
            yield from self._decide(name, self.late.pop(name))

    def do_answer(self, command: Command) -> None:
        for name in command.positional:
            copy = self.under_way.pop(name)
            if copy.code is None:
                raise ScriptError(f"{name} has not arrived")
            if copy.code:
                self.producer.refused(copy.batch, copy.code, "", Millis(self.now))
            else:
                self.producer.delivered(copy.batch, Offset(copy.offset), TimestampMs(-1))

    def do_refuse(self, command: Command) -> None:
        for name in command.positional:
            copy = self.under_way.pop(name)
            self.producer.refused(copy.batch, ErrorCode[command.text("code")], "", Millis(self.now))

    def do_lose_answer(self, command: Command) -> Iterator[str]:
        for name in command.positional:
            copy = self.under_way.pop(name)
            yield from self._decide(name, copy)
            self.producer.lost(copy.batch, "connection reset", Millis(self.now))

    def do_lose(self, command: Command) -> None:
        for name in command.positional:
            copy = self.under_way.pop(name)
            self.producer.lost(copy.batch, "connection reset", Millis(self.now))

    def do_cut(self, command: Command) -> None:
        for name, copy in self.under_way.items():
            if copy.code is None:
                self.late[name] = copy
        under_way, self.under_way = self.under_way, {}
        for copy in under_way.values():
            self.producer.lost(copy.batch, "connection reset", Millis(self.now))

    def do_fence(self, command: Command) -> None:
        marker = Marker(
            producer_id=self.producer.identity.producer_id,
            producer_epoch=ProducerEpoch(command.number("epoch")),
            commit=False,
            coordinator_epoch=ShardEpoch(0),
            serial=Serial(-1),
            shard=ShardId(0),
        )
        self.log.append_control(marker)
        self.log.sync()

    def _decide(self, name: str, copy: Copy) -> Iterator[str]:
        header = data_header(
            copy.identity.producer_id,
            copy.identity.epoch,
            copy.sequence,
            copy.batch.records,
            transactional=self.transactional,
        )
        try:
            decision = self.log.partition.decide_append(header, 0, CLIENT._replace(verified=True))
        except Refusal as refusal:
            copy.code = refusal.code
            yield f"the leader refuses {name}: {refusal.code.name}"
            return
        if isinstance(decision, Duplicate):
            copy.code, copy.offset = decision.error, decision.base_offset
            yield f"the leader has {name} already, at {decision.base_offset}"
            return
        values = tuple(f"{name}{i}" if copy.batch.records > 1 else name for i in range(copy.batch.records))
        entry = self.log.append(header, values)
        self.log.sync()
        copy.code, copy.offset = 0, entry.header.base_offset
        yield f"the leader appends {name} at {copy.offset}"

    # --- looking ----------------------------------------------------------------------------------------------

    def do_time(self, command: Command) -> None:
        self.now = int(command.positional[0])
        self.producer.expire(Millis(self.now))

    def do_reader(self, command: Command) -> Iterator[str]:
        yield "read_committed: " + (" ".join(value for _, value in self.log.read_committed()) or "nothing")
        yield "read_uncommitted: " + (" ".join(value for _, value in self.log.read_uncommitted()) or "nothing")

    def do_state(self, command: Command) -> Iterator[str]:
        sequences = self.producer.next_sequences()
        following = f", next sequence {sequences[P]}" if P in sequences else ""
        prepared = f", prepared as {_word(self.producer.prepared)}" if self.producer.prepared else ""
        yield f"{self.producer.state.name} as {_word(self.producer.identity)}{following}{prepared}"


def _identity(command: Command, name: str = "producer") -> Identity | None:
    if name not in command.arguments:
        return None
    producer_id, epoch = command.text(name).split("/")
    return Identity(ProducerId(int(producer_id)), ProducerEpoch(int(epoch)))


def _word(identity: Identity) -> str:
    return f"{identity.producer_id}/{identity.epoch}"
