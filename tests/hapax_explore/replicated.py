"""A replica of a data partition, and the store that says which replica leads it.

`broker.replica.Replica` leads or follows, `broker.copying.Copying` appends and truncates, and
`core.partition.replication` counts. A change of the store reaches a replica at any later time. Until then the replica
is cut off, and continues.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Final, NamedTuple, cast

from hapax.broker.copying import Copying
from hapax.broker.followers import diverging
from hapax.codec.batch import read_header
from hapax.core.control import Marker
from hapax.core.errors import ErrorCode
from hapax.core.partition.barrier import ENDLESS, Rounds
from hapax.core.partition.replication import Eligible, Proposal, Replication
from hapax.core.partition.values import WriteResult
from hapax.core.types import NodeId, RegistrationEpoch
from hapax_explore.broker import Broker, Log, Outbox, Port, entry_of
from hapax_explore.component import Choice, Component, Effect, Send

_REGISTERED: Final = RegistrationEpoch(1)
_MARKED: Final = WriteResult(0)


class Record(NamedTuple):
    """The partition's record in the store."""

    leader: str
    epoch: int
    isr: tuple[str, ...]
    revision: int


class Copied(NamedTuple):
    """A batch in flight to a follower."""

    batch: bytes


class Pull(NamedTuple):
    """A follower's Fetch that waits until there is something to answer."""

    offset: int
    high_watermark: int
    """The high watermark that the follower knows."""


class MarkerCall:
    """A coordinator's marker that waits for its commit, or for a barrier if nothing was appended."""

    def __init__(self, outbox: Outbox, coordinator: str, body: tuple[Any, ...]) -> None:
        self.outbox = outbox
        self.coordinator = coordinator
        self.body = body

    def settle(self, number: int, result: WriteResult) -> None:
        self.outbox.effects.append(Send(self.coordinator, ("marked", *self.body, int(result.error))))


class _File:
    def __init__(self, content: bytes) -> None:
        self.content = content
        self.path = "whole"

    async def read_ahead(self, position: int, size: int) -> None:
        pass

    def read(self, position: int, size: int) -> bytes:
        return self.content[position : position + size]


class _Whole:
    """A log that is a single segment."""

    base_offset = 0

    def __init__(self, log: Log) -> None:
        self.file = _File(b"".join(log.batches))
        self.size = len(self.file.content)

    def load_indexes(self) -> None:
        pass


class CopiedLog(Log):
    """The further methods of `SegmentLog` that `Copying` needs. There are no snapshots: after a truncation, the whole
    remaining log is replayed."""

    start_offset = 0
    was_compacted = False
    covered = 0
    snapshot_offsets: tuple[int, ...] = ()

    @property
    def segments(self) -> list[_Whole]:
        return [_Whole(self)]

    async def truncate_to(self, cut: int) -> None:
        self.batches = tuple(each for each in self.batches if read_header(each).next_offset <= cut)
        self.end_offset = read_header(self.batches[-1]).next_offset if self.batches else 0


class Copy(Broker):
    """`copies`: the names of all replicas: "p0", which leads first, then "p0.2" and so on. `told`: the components that
    learn which one leads."""

    def __init__(self, name: str, copies: tuple[str, ...], *, told: tuple[str, ...], lagging: bool = False) -> None:
        self.copies = copies
        self.told = told
        self.lagging = lagging
        """Whether followers may fall behind."""
        self.record = Record("", 0, (), 0)
        self.newest_connection = -1
        self.rounds = Rounds()
        self.pulls: dict[str, Pull] = {}
        self.early: dict[str, tuple[Any, ...]] = {}
        """Fetches with an epoch that this node does not know yet."""
        self.gates: tuple[tuple[int, MarkerCall], ...] = ()
        super().__init__(name)
        self._take(Record(copies[0], 1, copies, 1))
        self.outbox.effects = []

    def _start(self, log: Log, leader_epoch: int) -> None:
        self._open(CopiedLog(log.batches))

    def _node(self, name: str) -> NodeId:
        return NodeId(self.copies.index(name) + 1)

    # --- which replica leads ------------------------------------------------------------------------------------------

    def _on_record(self, leader: str, epoch: int, isr: tuple[str, ...], revision: int) -> None:
        """Corresponds to `PartitionSet._apply` and `_lead`."""
        before = self.record.epoch
        self._take(Record(leader, epoch, isr, revision))
        if self.replica.serving and epoch > before:
            self.outbox.effects += [Send(each, ("leads", self.partition, self.name, epoch)) for each in self.told]

    def _take(self, record: Record) -> None:
        before, self.record = self.record, record
        replica = self.replica
        isr = tuple(self._node(each) for each in record.isr)
        replicas = tuple(self._node(each) for each in self.copies)
        if record.leader != self.name:
            if record.epoch > before.epoch:
                self._end()
                self.outbox.effects.append(self.fetch())
            return
        if not replica.serving or replica.leader_epoch != record.epoch:
            self._end()
            replica.lead(record.epoch, self.newest_connection, Replication(
                self._node(self.name), replicas, isr, record.revision, log_end=replica.machine.log_end_offset,
                min_insync=replica.settings.min_insync_replicas, now_ms=0,
            ))
            early, self.early = self.early, {}
            for follower, fetch in early.items():
                self._on_fetch(follower, *fetch)
        else:
            assert replica.replication is not None
            replica.replication.stored(
                replicas, isr, record.revision, log_end=replica.machine.log_end_offset, now_ms=0)
            replica.members_changed()
        self._reconsider()

    def _end(self) -> None:
        """Ends this node's leadership, if it leads."""
        self.replica.resign()
        for _, call in self.gates:
            call.settle(0, WriteResult(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        self.gates = ()
        self.pulls = {}
        self.waiting = ()

    def _reconsider(self, lagging: tuple[NodeId, ...] = ()) -> None:
        """Corresponds to `InSync`, which has one write in flight."""
        replica = self.replica
        replication = replica.replication
        if replication is None or replication.pending is not None:
            return
        live = {self._node(each): Eligible(_REGISTERED, True) for each in self.copies}
        proposal = replication.decide_isr(replica.machine.high_watermark, live, lagging)
        if proposal is not None:
            replication.sent(proposal)
            self._propose(proposal)

    def _propose(self, proposal: Proposal) -> None:
        isr = tuple(self.copies[node - 1] for node in proposal.isr)
        self.outbox.effects.append(
            Send("store", ("propose", self.name, isr, proposal.revision), f"{self.name}>store"))

    def _on_refused(self, revision: int) -> None:
        replication = self.replica.replication
        if replication is not None and replication.pending is not None and replication.pending.revision == revision:
            replication.refused()
            self.replica.members_changed()
            self._reconsider()

    # --- a leader -----------------------------------------------------------------------------------------------------

    def _on_fetch(
        self, follower: str, epoch: int, offset: int, last_epoch: int, synced_end: int,
        high_watermark: int, heard: int,
    ) -> None:
        """Corresponds to `followers.Pull`. `heard`: the newest round that the follower knew when it sent this."""
        replica = self.replica
        if epoch > self.record.epoch:
            self.early[follower] = (epoch, offset, last_epoch, synced_end, high_watermark, heard)
            return
        replication = replica.replication
        if epoch < self.record.epoch or replication is None:
            return
        node = self._node(follower)
        replication.asked(node, offset, 0)
        divergence = diverging(replica, last_epoch, offset) if last_epoch >= 0 else None
        if divergence is not None:
            self._tell(follower, "cut", *divergence)
            return
        self.pulls[follower] = Pull(offset, high_watermark)
        if self.gates:
            replication.heard(node, heard)
            self._check_gates()
        if synced_end <= replica.machine.log_end_offset:
            replica.fetched(node, _REGISTERED, synced_end)

    def _tell(self, follower: str, what: str, *told: object) -> None:
        newest_round = self.rounds.leave() if self.gates else 0
        body = (what, self.record.epoch, newest_round, *told)
        self.outbox.effects.append(Send(follower, body, f"{self.name}>{follower}"))

    def _answer_pulls(self) -> None:
        machine = self.replica.machine
        for follower, pull in list(self.pulls.items()):
            replication = self.replica.replication
            pressed = bool(self.gates) and replication is not None and self.gates[-1][0] > replication.confirmed()
            if machine.log_end_offset > pull.offset or pressed:
                self._answer(follower, pull)

    def _answer(self, follower: str, pull: Pull) -> None:
        del self.pulls[follower]
        written: tuple[bytes, ...] = self.replica.log.batches  # type: ignore[attr-defined]
        new = tuple(Copied(each) for each in written if read_header(each).base_offset >= pull.offset)
        self._tell(follower, "copied", new, self.replica.machine.high_watermark)

    def _check_gates(self) -> None:
        replication = self.replica.replication
        confirmed = ENDLESS if replication is None else replication.confirmed()
        for wanted, call in self.gates:
            if wanted <= confirmed:
                call.settle(0, _MARKED)
        self.gates = tuple(each for each in self.gates if each[0] > confirmed)

    def _on_produce(self, client: str, connection: int, *rest: Any) -> None:
        self.newest_connection = max(self.newest_connection, connection)
        super()._on_produce(client, connection, *rest)

    def _mark(self, marker: Marker, coordinator: str, body: tuple[Any, ...]) -> None:
        """Corresponds to `BrokerCalls.write_markers`: a marker is stored once it is committed. A leader that was
        replaced cannot answer for markers that it did not append."""
        replica = self.replica
        call = MarkerCall(self.outbox, coordinator, body)
        if not replica.serving:
            call.settle(0, WriteResult(ErrorCode.NOT_LEADER_OR_FOLLOWER))
            return
        before, replication = replica.machine.log_end_offset, replica.replication
        [(end, refused)] = replica.write_markers([marker])
        if refused is not None:
            call.settle(0, WriteResult(refused.code))
        elif replica.machine.log_end_offset > before or replication is None or replication.confirmed() == ENDLESS:
            replica.when_committed(end, call, 0, _MARKED)
        else:
            self.gates = (*self.gates, (self.rounds.ask(), call))

    def _out(self) -> list[Effect]:
        replica = self.replica
        port = cast(Port, replica.context.committer)
        replica.commit_queued = False
        replica.advance(replica.durable_end)
        if port.reconsider:
            port.reconsider = False
            self._reconsider()
        if replica.serving:
            self._check_gates()
            self._answer_pulls()
        return super()._out()

    # --- a follower ---------------------------------------------------------------------------------------------------

    def fetch(self, heard: int = 0) -> Send:
        machine, leader = self.replica.machine, self.record.leader
        return Send(leader, (
            "fetch", self.name, self.record.epoch, machine.log_end_offset, machine.leader_epochs.latest,
            self.replica.durable_end, machine.high_watermark, heard,
        ), f"{self.name}>{leader}")

    def _copying(self) -> Copying:
        return Copying(self.replica, self._node(self.record.leader), self.record.epoch)

    def _on_copied(self, epoch: int, newest_round: int, batches: tuple[Copied, ...], high_watermark: int) -> None:
        if epoch != self.record.epoch:
            return
        copying = self._copying()
        if batches:
            copying.append(memoryview(bytearray(b"".join(each.batch for each in batches))))
        copying.heard(high_watermark, 0)
        self.outbox.effects.append(self.fetch(newest_round))

    def _on_cut(self, epoch: int, newest_round: int, diverging_epoch: int, end: int) -> None:
        if epoch != self.record.epoch:
            return
        _run(self._copying().truncate(diverging_epoch, end))
        self.outbox.effects.append(self.fetch(newest_round))

    # --- timers and faults --------------------------------------------------------------------------------------------

    def choices(self) -> list[Choice]:
        found = []
        high_watermark = self.replica.machine.high_watermark
        if self.replica.serving:
            found += [
                Choice(f"news:{follower}", "news", late=True) for follower, pull in self.pulls.items()
                if pull.high_watermark < high_watermark
            ]
            if self.gates:
                found.append(Choice("doubt", late=True))
            if self.lagging:
                found += [Choice(f"lag:{each}", "lag") for each in self.record.isr if each != self.name]
        return found

    def act(self, choice: str) -> list[Effect]:
        what, _, follower = choice.partition(":")
        if what == "news":
            self._answer(follower, self.pulls[follower])
        elif what == "lag":
            self._reconsider((self._node(follower),))
        else:  # no round was answered in time
            for _, call in self.gates:
                call.settle(0, WriteResult(ErrorCode.NOT_LEADER_OR_FOLLOWER))
            self.gates = ()
        return self._out()

    def ignores(self, body: tuple[Any, ...]) -> bool:
        if body[0] in ("copied", "cut"):
            return bool(body[1] < self.record.epoch)
        if body[0] == "fetch":
            return bool(body[2] < self.record.epoch)
        return False

    def view(self) -> tuple[Any, ...]:
        """The view of a leader, and (its epoch while it serves, the high watermark that it knows)."""
        machine = self.replica.machine
        committed = tuple(
            entry_of(each).header for each in self.replica.log.batches  # type: ignore[attr-defined]
            if read_header(each).last_offset < machine.high_watermark
        )
        return (*super().view(), self.replica.leader_epoch if self.replica.serving else -1, committed)


def _run(work: Coroutine[Any, Any, Any]) -> None:
    """Runs a coroutine in which no await has to wait."""
    try:
        work.send(None)
    except StopIteration:
        return
    raise AssertionError("it waits")


class Store(Component):
    """The store, and the controller that elects. It compares the revision at each write, as every write to etcd
    does."""

    name = "store"

    def __init__(self, copies: tuple[str, ...]) -> None:
        self.copies = copies
        self.record = Record(copies[0], 1, copies, 1)

    def receive(self, body: tuple[Any, ...]) -> list[Effect]:
        _, node, isr, revision = body
        if revision != self.record.revision:
            return [Send(node, ("refused", revision), f"store>{node}")]
        return self._put(self.record._replace(isr=isr))

    def _put(self, record: Record) -> list[Effect]:
        self.record = record._replace(revision=record.revision + 1)
        return [Send(each, ("record", *self.record), f"store>{each}") for each in self.copies]

    def choices(self) -> list[Choice]:
        """The leader's lease has expired, or the leadership is moved while both replicas are in sync."""
        others = [each for each in self.record.isr if each != self.record.leader]
        return [Choice(f"{what}:{each}", "election") for what in ("elect", "move") for each in others]

    def act(self, choice: str) -> list[Effect]:
        what, _, leader = choice.partition(":")
        isr = self.record.isr
        if what == "elect":
            isr = tuple(each for each in isr if each != self.record.leader)
        return self._put(self.record._replace(leader=leader, epoch=self.record.epoch + 1, isr=isr))
