"""A partition's leader: the real `Replica` and `ProduceService` over a log in memory, and what it asks coordinators."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any, Final, NamedTuple, cast

from hapax.broker.kafka_api import ProduceService
from hapax.broker.replica import Replica
from hapax.broker.replica_context import ReplicaContext
from hapax.broker.waiters import Settles
from hapax.codec.batch import read_header
from hapax.codec.control import decode_control
from hapax.codec.incoming import same_records
from hapax.codec.records import decode_batch, encode_records
from hapax.core.control import Marker
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.partition.values import OtherBatch, WriteResult
from hapax.core.partition.verification import Answer, Question, ShardEpochs
from hapax.core.types import PartitionIndex, TopicId, TopicIdPartition
from hapax.kafka.api.produce import PartitionRecords, ProduceCall, ProduceRequest
from hapax.kafka.table import CloseConnection
from hapax.runtime.settings import Settings
from hapax_explore.component import Choice, Component, Effect, Send, Tell
from scenarios.partition_log import Entry, filter_aborted

MOVING: Final = frozenset({
    ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE,
})
"""Answers after which the verifier looks for the shard's owner and repeats the question."""

_SETTINGS: Final = Settings()


class Compared(Replica):
    """Compares a batch with the stored one that has its sequences at once: a replica does so in a thread
    (`broker.repeats`), and here is no loop."""

    def refuse(
        self, batch: memoryview | bytearray, refusal: Refusal, call: Settles, number: int, transactional_id: str
    ) -> None:
        stored = refusal.stored if isinstance(refusal, OtherBatch) else None
        if stored is not None and any(
            read_header(other).base_offset == stored.base_offset and same_records(other, batch)
            for other in self.log.batches  # type: ignore[attr-defined]
        ):
            self.carry_out(stored, memoryview(batch), read_header(batch), call, number, False)
        else:
            self.context.settle_refused(call, number, self.refused(batch, refusal, call), refusal, transactional_id)


def partition_of(name: str) -> str:
    """The partition to which a leader or a copy belongs: "p0" and "p0.2" belong to "p0"."""
    return name.partition(".")[0]


def topic_id(name: str) -> TopicId:
    return TopicId(partition_of(name).encode().ljust(16, b"\0"))


class Log:
    """The part of `SegmentLog` that `Replica` needs: batches as they were written. Everything is synced at once."""

    def __init__(self, batches: tuple[bytes, ...] = ()) -> None:
        self.batches = batches
        self.scan_cost = 0
        self.end_offset = read_header(batches[-1]).next_offset if batches else 0

    @property
    def synced_offset(self) -> int:
        return self.end_offset

    def append(self, batch: Any, base_offset: int, last_offset: int, max_timestamp: int) -> None:
        self.batches = (*self.batches, bytes(batch))
        self.end_offset = last_offset + 1

    def note_aborted(self, aborted: object) -> None:
        """Does nothing: recovery replays the whole log and finds aborted transactions again."""

    def write_leader_epochs(self, entries: object) -> None:
        """Does nothing, for the same reason."""


class Clock:
    def now_ms(self) -> int:
        return 0

    def monotonic_ms(self) -> int:
        return 0


class Port:
    """Requests of `ReplicaContext` to the rest of the process. They are carried out when the event is over."""

    def __init__(self) -> None:
        self.asked: list[Question] = []
        self.reconsider = False

    def request(self, replica: Replica) -> None:
        """Requests a sync of the log, which is carried out at the end of the event."""


class Connection(NamedTuple):
    serial: int


class Context(NamedTuple):
    """What a handler knows of a request's connection."""

    api_version: int
    connection: Connection


class ClientCall(ProduceCall):
    """A Produce request for one partition, and the receiver of its answer."""

    __slots__ = ("client", "outbox", "partition", "value")

    def __init__(
        self, ctx: Context, request: ProduceRequest, client: str, partition: str, value: str, outbox: Outbox
    ) -> None:
        super().__init__(cast(Any, ctx), request)
        self.client = client
        self.partition = partition
        self.value = value
        self.outbox = outbox

    def settle(self, number: int, result: WriteResult) -> None:
        self.tell("produced", self.value, int(result.error))

    def drop(self, reason: str) -> None:
        self.tell("closed")

    def tell(self, what: str, *told: object) -> None:
        connection = self.ctx.connection.serial
        self.outbox.effects.append(Send(
            self.client, (what, self.partition, connection, *told), f"{self.partition}>{self.client}#{connection}"
        ))


class Outbox:
    def __init__(self) -> None:
        self.effects: list[Effect] = []


def ask(replica: Replica, question: Question) -> None:
    cast(Port, replica.context.committer).asked.append(question)


def reconsider(replica: Replica) -> None:
    cast(Port, replica.context.committer).reconsider = True


def nothing(*arguments: object) -> None:
    pass


@cache
def batch_of(producer_id: int, epoch: int, sequence: int, value: str, transactional: bool) -> bytes:
    return bytes(encode_records(
        [(0, None, value.encode(), ())], producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence,
        transactional=transactional,
    ))


class Broker(Component):
    def __init__(
        self, name: str, coordinator: str = "c1", *, clients: tuple[str, ...] = (), alike: bool = False
    ) -> None:
        """`clients`: the clients with a connection to the broker, which may die; empty if it may not. `alike`: whether
        the broker is interchangeable with another one."""
        self.name = name
        self.partition = partition_of(name)
        self.alike = alike
        self.outbox = Outbox()
        self.clients = clients
        self.coordinator = coordinator
        """The shard's owner, as far as this node knows."""
        self.process = 1
        self.waiting: tuple[Question, ...] = ()
        """Questions that are repeated as soon as this node knows another owner."""
        self.replica: Replica
        self._start(Log(), 1)

    @property
    def _suffix(self) -> str:
        """The suffix of values' names here. It is not written, so that interchangeable partitions have the same bytes
        in their logs."""
        return "@" + self.partition

    def _start(self, log: Log, leader_epoch: int) -> None:
        self._open(log)
        self.replica.lead(leader_epoch, -1)

    def _open(self, log: Log) -> None:
        context = ReplicaContext(
            disk=cast(Any, None), clock=cast(Any, Clock()), committer=cast(Any, Port()), storage=cast(Any, None),
            shard_epochs=ShardEpochs(), ask=ask, refused=nothing, reconsider=reconsider, damaged=nothing,
            mislisted=nothing, superseded=nothing, unreadable=nothing,
        )
        replica = Compared(
            context, "t", TopicIdPartition(topic_id(self.name), PartitionIndex(0)), _SETTINGS, internal=False
        )
        replica.restore(None, 0, 0, (), ())
        replica.log = cast(Any, log)
        for batch in log.batches:
            replica.replay(read_header(batch), memoryview(batch), 0)
        replica._recovered_aborted.clear()
        self.replica = replica

    # --- events -------------------------------------------------------------------------------------------------------

    def receive(self, body: tuple[Any, ...]) -> list[Effect]:
        getattr(self, "_on_" + body[0])(*body[1:])
        return self._out()

    def _out(self) -> list[Effect]:
        replica = self.replica
        replica.commit_queued = False
        replica.advance(replica.durable_end)
        port = cast(Port, replica.context.committer)
        for question in port.asked:
            self._ask(question)
        port.asked.clear()
        effects, self.outbox.effects = self.outbox.effects, []
        return effects

    def _ask(self, question: Question) -> None:
        self.outbox.effects.append(Send(self.coordinator, ("verify", self.name, self.process, *question)))

    def _on_produce(
        self, client: str, connection: int, version: int, transactional_id: str, producer_id: int, epoch: int,
        sequence: int, value: str,
    ) -> None:
        written = value.removesuffix(self._suffix)
        body = bytearray(batch_of(producer_id, epoch, sequence, written, bool(transactional_id)))
        part = PartitionRecords("t", 0, 0, len(body))
        call = ClientCall(
            Context(version, Connection(connection)), ProduceRequest(transactional_id, -1, 0, [part], None), client,
            self.name, value, self.outbox,
        )
        partitions = SimpleNamespace(
            settings=_SETTINGS,
            view=SimpleNamespace(producer_ids_below=1 << 40, producer_id_floor=0),
            by_name={("t", 0): self.replica} if self.replica.serving else {},
            refusal=lambda topic, index: Refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER),
            early_writes=SimpleNamespace(note=lambda topic, index, header: self.replica.machine.note_refused(header)),
        )
        service = ProduceService(
            cast(Any, partitions), cast(Any, SimpleNamespace(counter=lambda metric: SimpleNamespace(value=0))),
            cast(Any, SimpleNamespace(value=0)),
        )
        try:
            service.produce(call, memoryview(body))
        except CloseConnection:
            call.tell("closed")

    def _on_verified(self, asked_by: tuple[Any, ...], error: int, epoch: int, serial: int, asked: str) -> None:
        process, *question = asked_by
        if process != self.process:
            return
        if error in MOVING:
            if asked != self.coordinator:
                self._ask(Question(*question))
            else:
                self.waiting = (*self.waiting, Question(*question))
            return
        self.replica.parked.answered(Answer(
            question[0], ErrorCode(error), 0 if epoch >= 0 else -1, epoch, serial=serial or -1
        ))

    def _on_moved(self, coordinator: str) -> None:
        self.coordinator = coordinator
        waiting, self.waiting = self.waiting, ()
        for question in waiting:
            self._ask(question)

    def _on_marker(
        self, coordinator: str, coordinator_epoch: int, transactional_id: str, serial: int, producer_id: int,
        producer_epoch: int, commit: bool, version: int, first_offset: int,
    ) -> None:
        marker = Marker(
            producer_id, producer_epoch, commit, coordinator_epoch, serial, 0, first_offset, version
        )
        self._mark(marker, coordinator, (coordinator_epoch, transactional_id, serial, producer_id, self.partition))

    def _on_describe(self, coordinator: str, epoch: int, ticket: int, producer_ids: tuple[int, ...]) -> None:
        """Corresponds to `BrokerRpc.describe_producers` with `seal`."""
        held = []
        for producer_id in producer_ids:
            self.replica.parked.seal(producer_id)
            view = self.replica.machine.describe_producer(producer_id)
            if view is not None and view.txn_first_offset >= 0:
                held.append((producer_id, view.producer_epoch, view.last_sequence))
        self.outbox.effects.append(Send(coordinator, ("described", epoch, ticket, self.partition, tuple(held))))

    def _mark(self, marker: Marker, coordinator: str, body: tuple[Any, ...]) -> None:
        [(_, refused)] = self.replica.write_markers([marker])
        error = 0 if refused is None else int(refused.code)
        self.outbox.effects.append(Send(coordinator, ("marked", *body, error)))

    # --- faults -------------------------------------------------------------------------------------------------------

    def choices(self) -> list[Choice]:
        return [Choice("crash", "broker crash")] if self.clients else []

    def act(self, choice: str) -> list[Effect]:
        """The broker's process dies and restarts. Synced data remain."""
        self.waiting = ()
        self.process += 1
        self._start(Log(self.replica.log.batches), self.replica.leader_epoch + 1)  # type: ignore[attr-defined]
        return [*(Tell(client, ("reset", self.name)) for client in self.clients), *self._out()]

    def ignores(self, body: tuple[Any, ...]) -> bool:
        return body[0] == "verified" and body[1][0] != self.process

    # --- what is visible ----------------------------------------------------------------------------------------------

    def view(self) -> tuple[tuple[str, ...], int, int]:
        """(what a read_committed reader sees, number of open transactions, number of parked writes)."""
        machine = self.replica.machine
        entries = [entry_of(batch) for batch in self.replica.log.batches]  # type: ignore[attr-defined]
        stable = [entry for entry in entries if entry.header.last_offset < machine.last_stable_offset]
        aborted = machine.aborted_transactions(0, machine.last_stable_offset)
        parked = len(self.replica.parked.under_way())
        values = tuple(value for _, value in filter_aborted(stable, aborted))
        if self.alike:
            values = tuple(value + self._suffix for value in values)
        return values, machine.open_transaction_count, parked


@cache
def entry_of(batch: bytes) -> Entry:
    header = read_header(batch)
    if header.is_control:
        return Entry(header, decode_control(batch, header))
    return Entry(header, None, tuple((each.value or b"").decode() for each in decode_batch(batch, 0, len(batch))))
