"""Producers: the real `ClientProducer` with an application's plan, and a model that numbers batches as librdkafka does.

A plan is a sequence of transactions. The invariants compare the state of the cluster with the outcomes that the
application got.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from hapax.core.errors import ErrorCode
from hapax.core.producer.error_kinds import ErrorKind
from hapax.core.producer.machine import ClientProducer, ProducerOptions
from hapax.core.producer.partition_queue import Batch
from hapax.core.producer.states import (
    Delivered,
    Ended,
    RequestAddPartitions,
    RequestEndTransaction,
    RequestProducerId,
    SendBatch,
    State,
)
from hapax.core.types import Millis, Offset, TimestampMs, TopicPartition
from hapax_explore.component import Choice, Close, Component, Drop, Effect, Send

NOW = Millis(0)
_DEADLINE = Millis(1 << 40)
_TAKEN_OVER = (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)
"""Another producer has taken over the id, or the transaction exceeded its limit."""
UNKNOWN, COMMITTED, ABORTED = "unknown", "committed", "aborted"


class Planned(NamedTuple):
    """One transaction."""

    records: tuple[tuple[str, str], ...]
    """(partition, value), each in its own batch."""
    ends: str = "commit"
    """One of "commit", "abort" and "either"."""
    offset: int = -1
    """The group's position that the transaction commits; -1 for none."""


class Outcome(NamedTuple):
    """What the application knows of a transaction that it began."""

    records: tuple[tuple[str, str], ...]
    end: str
    """Committed, aborted, or unknown if the producer ended before it got an answer."""
    offset: int = -1


class Connected(Component):
    """The connections of both kinds of producers: one to each partition's leader, and one to the coordinator."""

    def __init__(self, name: str, transactional_id: str, coordinator: str) -> None:
        self.name = name
        self.transactional_id = transactional_id
        self.coordinator = coordinator
        self.group = "g1"
        self.connections: dict[str, int] = {}
        self.last_connections: dict[str, int] = {}
        self.numbered_per_node = False
        """Whether connections are numbered for each node, not over all nodes."""
        self.former = ""
        """The previous coordinator, which a node that is cut off may still name."""
        self.leaders: dict[str, tuple[int, str]] = {}
        """For partitions with several copies: partition -> (epoch, copy)."""
        self.asked: tuple[Any, ...] = ()
        """The call to the coordinator that has no answer yet."""
        self.asked_at = ""
        self.stuck = False
        """Whether the node has answered that it is not the coordinator, and no other coordinator is known yet."""
        self.out: list[Effect] = []

    def _connection(self, to: str) -> int:
        if to not in self.connections:
            numbered = self._numbered(to)
            self.last_connections[numbered] = self.connections[to] = self.last_connections.get(numbered, 0) + 1
        return self.connections[to]

    def _numbered(self, to: str) -> str:
        return to if self.numbered_per_node else ""

    def _send(self, to: str, *body: Any) -> None:
        connection = self._connection(to)
        self.out.append(Send(to, (body[0], self.name, connection, *body[1:]), f"{self.name}>{to}#{connection}"))

    def _close(self, to: str) -> None:
        connection = self.connections.pop(to)
        self.out.append(Close(f"{self.name}>{to}#{connection}", f"{to}>{self.name}#{connection}"))

    def _ask(self, *call: Any) -> None:
        self.asked, self.stuck = call, False
        self.asked_at = self._owner_for(call[0])
        self._send(self.asked_at, call[0], self.transactional_id, *call[1:])

    def _owner_for(self, kind: str) -> str:
        return self.group if kind in ("offsets", "read") else self.coordinator

    def _leader_of(self, partition: str) -> tuple[int, str]:
        return self.leaders.get(partition, (0, partition))

    def _on_leads(self, partition: str, leader: str, epoch: int) -> None:
        self.leaders[partition] = max(self.leaders.get(partition, (0, "")), (epoch, leader))

    def _on_moved(self, coordinator: str) -> None:
        if coordinator.startswith("g"):
            self.former, self.group = self.group, coordinator
        else:
            self.former, self.coordinator = self.coordinator, coordinator
        if self.stuck:
            self._ask(*self.asked)

    def _do_mislead(self, rest: str) -> None:
        """Asks a node that is cut off from the store where the coordinator is."""
        if self.former.startswith("g"):
            self.former, self.group = self.group, self.former
        else:
            self.former, self.coordinator = self.coordinator, self.former

    def _again(self, former: str) -> None:
        """Repeats the call at the present coordinator, or as soon as one is known."""
        if self.former and former in (self.coordinator, self.group):
            self._do_mislead("")
        if self.asked and former != self._owner_for(self.asked[0]):
            self._ask(*self.asked)
        else:
            self.stuck = bool(self.asked)

    def ignores(self, body: tuple[Any, ...]) -> bool:
        kind, source, *rest = body
        return kind in ("produced", "closed", "answered") and rest[0] < self.connections.get(source, 1 << 30) and (
            source in self.connections or rest[0] <= self.last_connections.get(self._numbered(source), 0)
        )

    def _current(self, source: str, connection: int) -> bool:
        return self.connections.get(source) == connection

    def act(self, choice: str) -> list[Effect]:
        what, _, rest = choice.partition(":")
        getattr(self, "_do_" + what)(rest)
        return self._done()

    def receive(self, body: tuple[Any, ...]) -> list[Effect]:
        getattr(self, "_on_" + body[0])(*body[1:])
        return self._done()

    def _done(self) -> list[Effect]:
        out, self.out = self.out, []
        return out

    def _on_answered(self, source: str, connection: int, kind: str, code: int, producer_id: int, epoch: int) -> None:
        if not self._current(source, connection) or not self.asked or self.asked[0] != kind:
            return
        if code == ErrorCode.NOT_COORDINATOR:
            self._close(source)
            self._again(source)
            return
        self._replied(kind, code, producer_id, epoch)

    def _replied(self, kind: str, code: int, producer_id: int, epoch: int) -> None:
        raise NotImplementedError

    def _on_reset(self, source: str) -> None:
        """The node's process has died."""
        if source in self.connections:
            self._drop(source)

    def _drop(self, source: str) -> None:
        connection = self.connections[source]
        self._lost(source)
        self.out.append(Drop(f"{self.name}>{source}#{connection}"))

    def _on_closed(self, source: str, connection: int) -> None:
        """The node has closed the connection."""
        if self._current(source, connection):
            self._lost(source)

    def _lost(self, source: str) -> None:
        """A connection is lost, and so are the answers to the requests on it."""
        self._close(source)
        if source == self.asked_at:
            if self.asked:
                self._ask(*self.asked)
        elif source.startswith("p"):
            self._writes_lost(source)

    def _writes_lost(self, partition: str) -> None:
        raise NotImplementedError


class NativeProducer(Connected):
    """This project's client: its machine decides, and this class carries its decisions out, like `hapax.client`."""

    def __init__(
        self, name: str, plan: tuple[Planned, ...], *, version: int, transactional_id: str = "tx",
        coordinator: str = "c1", may_die: bool = False, reads: int = 0, numbered_per_node: bool = False,
    ) -> None:
        super().__init__(name, transactional_id, coordinator)
        self.numbered_per_node = numbered_per_node
        options = ProducerOptions(
            transactional=True, version=version, retry_backoff_ms=0, retry_backoff_max_ms=0
        )
        self.machine = ClientProducer(options)
        self.version = version
        self.plan = plan
        self.begun = 0
        self.may_die = may_die
        self.dead = False
        self.flying: dict[str, tuple[Batch, tuple[int, str]]] = {}
        """Value -> (its batch, the leader to which it was sent)."""
        self.homeless: dict[str, tuple[Batch, tuple[int, str]]] = {}
        """Batches refused by a node that does not lead. They wait until another leader is known."""
        self.acknowledged: tuple[str, ...] = ()
        self.outcomes: tuple[Outcome, ...] = ()
        self.offsets_sent = True
        self.failed_by = 0
        """The code of the error after which the producer failed finally."""
        self.reads = reads
        """How many more times the application reads the group's position between transactions."""
        self.positions: tuple[tuple[int, int], ...] = ()
        """What it read: (number of transactions that had begun, position)."""

    # --- the application ----------------------------------------------------------------------------------------------

    def choices(self) -> list[Choice]:
        state = self.machine.state
        if self.dead or state is State.FATAL_ERROR:
            return []
        found = []
        if state is State.UNINITIALIZED:
            found.append(Choice("init"))
        elif state is State.READY and self.begun < len(self.plan) and not self.asked:
            found.append(Choice("begin"))
        elif state is State.IN_TRANSACTION:
            planned = self.plan[self.begun - 1]
            if not self.offsets_sent and not self.asked:
                found.append(Choice("offsets"))
            if self.offsets_sent and (planned.offset < 0 or not self.asked):
                found += [Choice(each) for each in ("commit", "abort") if planned.ends in (each, "either")]
        elif state is State.ABORTABLE_ERROR and not self.asked:
            found.append(Choice("abort"))
        if state is State.READY and self.begun and self.reads and not self.asked:
            found.append(Choice("read"))
        if self.flying:
            leaders = dict.fromkeys(leader for _, (_, leader) in self.flying.values())
            found += [Choice(f"reconnect:{each}", "reconnect") for each in leaders]
            found.append(Choice("expire", "expire"))
        if self.asked and not self.stuck:
            found.append(Choice(f"reconnect:{self.asked_at}", "reconnect"))
        if self.former:
            found.append(Choice("mislead", "misled"))
        if self.may_die and state is not State.UNINITIALIZED:
            found.append(Choice("die", "producer dies"))
        return found

    def _do_init(self, rest: str) -> None:
        self.machine.initialize()

    def _do_begin(self, rest: str) -> None:
        self.machine.begin()
        planned = self.plan[self.begun]
        self.begun += 1
        for partition, value in planned.records:
            self.machine.enqueue(Batch(TopicPartition(partition, 0), 1, _DEADLINE, value))  # type: ignore[arg-type]
        self.offsets_sent = planned.offset < 0
        self.outcomes = (*self.outcomes, Outcome(planned.records, UNKNOWN, planned.offset))

    def _do_offsets(self, rest: str) -> None:
        """Version 1 registers the group first, and sends the offsets after the answer."""
        self.machine.offsets_sent()
        if self.version < 2:
            self._ask("add", *self.machine.identity, ("offsets",))
        else:
            self._send_offsets()

    def _send_offsets(self) -> None:
        self.offsets_sent = True
        self._ask("offsets", *self.machine.identity, self.plan[self.begun - 1].offset, self.version)

    def _do_read(self, rest: str) -> None:
        self.reads -= 1
        self._ask("read")

    def _do_commit(self, rest: str) -> None:
        self.machine.commit()

    def _do_abort(self, rest: str) -> None:
        self.machine.abort()

    def _do_reconnect(self, source: str) -> None:
        self._lost(source)

    def _do_expire(self, rest: str) -> None:
        """delivery.timeout.ms has passed for all batches that are not delivered."""
        self.machine.expire(Millis(_DEADLINE + 1))

    def _do_die(self, rest: str) -> None:
        for to in list(self.connections):
            self._close(to)
        self.dead, self.asked, self.stuck = True, (), False
        self.flying, self.homeless = {}, {}

    # --- answers ------------------------------------------------------------------------------------------------------

    def _on_produced(self, partition: str, connection: int, value: str, error: int) -> None:
        if not self._current(partition, connection) or value not in self.flying:
            return
        batch, leader = self.flying.pop(value)
        if error == ErrorCode.NOT_LEADER_OR_FOLLOWER and leader == self._leader_of(batch.partition.topic):
            self.homeless[value] = batch, leader
        elif not error:
            self.machine.delivered(batch, Offset(0), TimestampMs(-1))
        else:
            self.machine.refused(batch, error, "", NOW)

    def _writes_lost(self, partition: str) -> None:
        for value, (batch, (_, leader)) in list(self.flying.items()):
            if leader == partition:
                del self.flying[value]
                self.machine.lost(batch, "", NOW)

    def _replied(self, kind: str, code: int, producer_id: int, epoch: int) -> None:
        if kind == "read":
            self.asked = ()
            if not code:
                self.positions = (*self.positions, (len(self.outcomes), producer_id))
            return
        if code:
            if self.machine.coordinator_refused(code) is ErrorKind.RETRY:
                self._ask(*self.asked)
            else:
                self.asked = ()
                if self.machine.state is State.FATAL_ERROR:
                    self.failed_by = code
            return
        self.asked = ()
        if kind == "init":
            self.machine.initialized(_identity(producer_id, epoch))
        elif kind == "add" and not self.offsets_sent:
            self._send_offsets()
        elif kind == "add":
            self.machine.partitions_added()
        elif kind == "end":
            self.machine.ended(_identity(producer_id, epoch) if self.version >= 2 else None)

    def _on_moved(self, coordinator: str) -> None:
        if not self.dead:
            super()._on_moved(coordinator)

    def _on_leads(self, partition: str, leader: str, epoch: int) -> None:
        super()._on_leads(partition, leader, epoch)
        homeless, self.homeless = self.homeless, {}
        for value, (batch, former) in homeless.items():
            if former == self._leader_of(batch.partition.topic):
                self.homeless[value] = batch, former
            else:
                self.machine.refused(batch, ErrorCode.NOT_LEADER_OR_FOLLOWER, "", NOW)

    def ignores(self, body: tuple[Any, ...]) -> bool:
        return self.dead or super().ignores(body)

    def _done(self) -> list[Effect]:
        if not self.dead:
            for effect in self.machine.poll(NOW):
                self._carry_out(effect)
        return super()._done()

    def _carry_out(self, effect: Any) -> None:
        if isinstance(effect, SendBatch):
            batch = effect.batch
            value = str(batch.content)
            leader = self._leader_of(batch.partition.topic)
            self.flying[value] = batch, leader
            self._send(
                leader[1], "produce", 11 if self.version < 2 else 12, self.transactional_id,
                *batch.identity, batch.sequence, value,
            )
        elif isinstance(effect, Delivered):
            self.acknowledged = (*self.acknowledged, str(effect.batch.content))
        elif isinstance(effect, RequestProducerId):
            self._ask("init", *effect.current)
        elif isinstance(effect, RequestAddPartitions):
            self._ask("add", *self.machine.identity, tuple(each.topic for each in effect.partitions))
        elif isinstance(effect, RequestEndTransaction):
            self._ask("end", *self.machine.identity, effect.commit, self.version)
        elif isinstance(effect, Ended):
            *before, last = self.outcomes
            self.outcomes = (*before, last._replace(end=COMMITTED if effect.committed else ABORTED))

    def view(self) -> tuple[Any, ...]:
        """(outcomes, whether it still waits for something, positions that it has read, whether it has failed finally
        without being fenced by another producer)."""
        waits = not self.dead and (bool(self.asked) or self.machine.state not in (State.READY, State.FATAL_ERROR))
        broken = self.machine.state is State.FATAL_ERROR and self.failed_by not in _TAKEN_OVER
        return self.outcomes, waits, self.positions, broken


def _identity(producer_id: int, epoch: int) -> Any:
    from hapax.core.producer.partition_queue import Identity

    return Identity(producer_id, epoch)  # type: ignore[arg-type]


class OldProducer(Connected):
    """A version-1 client that numbers its batches as librdkafka does. Records that an abort discards leave no trace in
    its sequences: the next transaction's batches have the same numbers, under the same epoch. Batches on a connection
    that it abandoned may arrive at any later time.
    """

    def __init__(
        self, name: str, plan: tuple[Planned, ...], *, transactional_id: str = "tx", coordinator: str = "c1"
    ) -> None:
        super().__init__(name, transactional_id, coordinator)
        self.plan = plan
        self.begun = 0
        self.state = "new"
        self.identity = (-1, -1)
        self.registered: tuple[str, ...] = ()
        self.unsent: tuple[tuple[str, str], ...] = ()
        self.flying: tuple[tuple[str, str], ...] = ()
        self.sequences: dict[str, int] = {}
        self.committing = False
        self.outcomes: tuple[Outcome, ...] = ()

    def choices(self) -> list[Choice]:
        found = []
        if self.state == "new":
            found.append(Choice("init"))
        elif self.state == "ready" and self.begun < len(self.plan):
            found.append(Choice("begin"))
        elif self.state == "open":
            ends = self.plan[self.begun - 1].ends
            if ends in ("commit", "either") and not self.unsent and not self.flying:
                found.append(Choice("commit"))
            if ends in ("abort", "either"):
                found.append(Choice("abort"))
        elif self.state == "failed":
            found.append(Choice("abort"))
        if self.flying:
            found += [Choice(f"{what}:{self.flying[0][0]}", "reconnect") for what in ("reconnect", "giveup")]
        if self.asked and not self.stuck:
            found.append(Choice(f"reconnect:{self.asked_at}", "reconnect"))
        return found

    def _do_init(self, rest: str) -> None:
        self.state = "asking"
        self._ask("init", -1, -1)

    def _do_begin(self, rest: str) -> None:
        planned = self.plan[self.begun]
        self.begun += 1
        self.state = "open"
        self.registered = ()
        self.unsent = planned.records
        self.outcomes = (*self.outcomes, Outcome(planned.records, UNKNOWN))
        self._ask("add", *self.identity, tuple(dict.fromkeys(partition for partition, _ in planned.records)))

    def _do_commit(self, rest: str) -> None:
        self.state, self.committing = "ending", True
        self._ask("end", *self.identity, True, 1)

    def _do_abort(self, rest: str) -> None:
        """Discards the waiting batches, and those that were sent and have no answer."""
        if self.asked:
            return
        self.state, self.committing = "ending", False
        for partition in dict.fromkeys(partition for partition, _ in self.flying):
            self._close(partition)
        self.unsent, self.flying = (), ()
        self._ask("end", *self.identity, False, 1)

    def _do_reconnect(self, source: str) -> None:
        self._lost(source)

    def _do_giveup(self, partition: str) -> None:
        """message.timeout.ms has passed: the connection is closed, the batches have failed, and the application
        aborts the transaction."""
        self._close(partition)
        self.flying, self.unsent = (), ()
        self.state = "failed"

    def _writes_lost(self, partition: str) -> None:
        for each in self.flying:
            if each[0] == partition:
                self._write(each)

    def _write(self, record: tuple[str, str]) -> None:
        partition, value = record
        place = [each for each in self.flying if each[0] == partition].index(record)
        self._send(
            partition, "produce", 11, self.transactional_id, *self.identity,
            self.sequences.get(partition, 0) + place, value,
        )

    def _on_produced(self, partition: str, connection: int, value: str, error: int) -> None:
        if not self._current(partition, connection) or (partition, value) not in self.flying:
            return
        if not error:
            self.flying = tuple(each for each in self.flying if each != (partition, value))
            self.sequences[partition] = self.sequences.get(partition, 0) + 1
        elif error == ErrorCode.NOT_ENOUGH_REPLICAS:
            self._write((partition, value))
        elif error in (ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.INVALID_TXN_STATE, ErrorCode.TRANSACTION_ABORTABLE):
            self.flying, self.unsent = (), ()
            self.state = "failed"
        else:
            self.flying, self.unsent = (), ()
            self.state = "fatal"

    def _replied(self, kind: str, code: int, producer_id: int, epoch: int) -> None:
        if code in (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS):
            self._ask(*self.asked)
            return
        self.asked = ()
        if code:
            self.state = "fatal"
        elif kind == "init":
            self.identity, self.state = (producer_id, epoch), "ready"
            self.sequences = {}
        elif kind == "add":
            self.flying, self.unsent = self.unsent, ()
            for each in self.flying:
                self._write(each)
        else:
            *before, last = self.outcomes
            self.outcomes = (*before, last._replace(end=COMMITTED if self.committing else ABORTED))
            self.state = "ready"

    def view(self) -> tuple[Any, ...]:
        return self.outcomes, self.state not in ("ready", "fatal"), (), False
