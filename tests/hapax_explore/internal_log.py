"""An internal partition with two replicas. Real machines decide fencing, replication and whether a leader still leads.

There is no store: the follower may be elected at any time, and the former leader does not learn of it. It is cut off
from the store, and continues.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from hapax.core.control import ShardFence
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.partition.barrier import ENDLESS, Conversation, Rounds
from hapax.core.partition.machine import AppendContext, PartitionMachine
from hapax.core.partition.replication import Replication
from hapax.core.types import NodeId, RegistrationEpoch
from hapax_explore.component import Choice, Component, Effect, Send, Tell
from scenarios.partition_log import Entry, data_header

_REGISTERED: Final = RegistrationEpoch(1)
_LEADER, _FOLLOWER = NodeId(1), NodeId(2)


class Batch(NamedTuple):
    """A batch as stored in the log."""

    entry: Entry
    records: tuple[Any, ...] = ()


class Pull(NamedTuple):
    """A follower's Fetch that waits until there is something to answer."""

    number: int
    end: int
    high_watermark: int


class LogReplica(Component):
    """`peer`: the other replica. `successor`: the coordinator that takes the shard over after this replica is
    elected."""

    def __init__(self, name: str, peer: str, *, leads: bool, shard_epoch: int, successor: str = "") -> None:
        self.name = name
        self.peer = peer
        self.successor = successor
        self.batches: tuple[Batch, ...] = ()
        self.machine = PartitionMachine()
        self.leader_epoch = 1
        self.replication: Replication | None = None
        self.rounds = Rounds()
        self.conversation = Conversation()
        self.gates: tuple[tuple[int, Send], ...] = ()
        """(round, answer) of reads that wait for a barrier."""
        self.waiting: tuple[tuple[int, Send], ...] = ()
        """(end, answer) of writes that wait to be committed."""
        self.pull: Pull | None = None
        self.told_high_watermark = 0
        self.out: list[Effect] = []
        self._append(Entry(data_header(-1, -1, -1, 1), ShardFence(shard_epoch, 0)), ())
        self.machine.advance_high_watermark(self.machine.log_end_offset)
        self.told_high_watermark = self.machine.high_watermark
        if leads:
            self._lead((_LEADER, _FOLLOWER), revision=1)

    @property
    def fetch(self) -> Send:
        """Returns the follower's first Fetch."""
        return Send(self.peer, ("fetch", 1, -1, self.machine.log_end_offset), f"{self.name}>{self.peer}")

    @property
    def records(self) -> tuple[Any, ...]:
        return tuple(record for batch in self.batches for record in batch.records)

    def _lead(self, isr: tuple[NodeId, ...], revision: int) -> None:
        me = isr[0]
        end = self.machine.log_end_offset
        self.replication = Replication(
            me, (_LEADER, _FOLLOWER), isr, revision, log_end=end, min_insync=1, now_ms=0
        )
        self._written()

    def _append(self, entry: Entry, records: tuple[Any, ...]) -> None:
        machine = self.machine
        header = entry.header._replace(base_offset=machine.log_end_offset, leader_epoch=self.leader_epoch)
        self._copy(Batch(Entry(header, entry.control), records))

    def _copy(self, batch: Batch) -> None:
        header, control = batch.entry.header, batch.entry.control
        if control is None:
            self.machine.replay(header)
        else:
            self.machine.replay_control(header, control)
        self.batches = (*self.batches, batch)

    def _written(self) -> None:
        assert self.replication is not None
        self.replication.synced(self.machine.log_end_offset)
        self._commit()

    def _commit(self) -> None:
        assert self.replication is not None
        self.machine.advance_high_watermark(self.replication.committed())
        high_watermark = self.machine.high_watermark
        self.out += [answer for end, answer in self.waiting if end <= high_watermark]
        self.waiting = tuple(each for each in self.waiting if each[0] > high_watermark)
        self._check_barrier()
        self._answer_pull()

    def _check_barrier(self) -> None:
        assert self.replication is not None
        confirmed = self.replication.confirmed()
        self.out += [answer for wanted, answer in self.gates if wanted <= confirmed]
        self.gates = tuple(each for each in self.gates if each[0] > confirmed)

    # --- messages -----------------------------------------------------------------------------------------------------

    def receive(self, body: tuple[Any, ...]) -> list[Effect]:
        getattr(self, "_on_" + body[0])(*body[1:])
        out, self.out = self.out, []
        return out

    def _on_fetch(self, number: int, answered: int, end: int) -> None:
        """Corresponds to `broker.followers`."""
        assert self.replication is not None
        self.conversation.asked(number, answered)
        if self.gates:
            self.replication.heard(_FOLLOWER, self.conversation.heard)
        self.replication.fetched(_FOLLOWER, _REGISTERED, end)
        self.pull = Pull(number, end, self.told_high_watermark)
        self._commit()

    def _answer_pull(self) -> None:
        pull = self.pull
        if pull is None:
            return
        pressed = bool(self.gates) and self.gates[-1][0] > self.conversation.heard
        known = (self.machine.log_end_offset, self.machine.high_watermark)
        if (pull.end, pull.high_watermark) == known and not pressed:
            return
        self.pull = None
        if self.gates:
            self.conversation.answered(pull.number, self.rounds.leave())
        self.told_high_watermark = self.machine.high_watermark
        new = tuple(batch for batch in self.batches if batch.entry.header.base_offset >= pull.end)
        self.out.append(Send(
            self.peer, ("fetched", pull.number, new, self.machine.high_watermark), f"{self.name}>{self.peer}"
        ))

    def _on_fetched(self, number: int, batches: tuple[Batch, ...], high_watermark: int) -> None:
        if self.replication is not None:
            return
        for batch in batches:
            self._copy(batch)
        self.machine.advance_high_watermark(min(high_watermark, self.machine.log_end_offset))
        end = self.machine.log_end_offset
        self.out.append(Send(self.peer, ("fetch", number + 1, number, end), f"{self.name}>{self.peer}"))

    def _on_append(self, owner: str, epoch: int, records: tuple[Any, ...]) -> None:
        """Without records, this asks whether the shard still belongs to the owner."""
        machine = self.machine
        answer = Send(owner, ("appended", epoch, 0, len(self.records)))
        if self.replication is None:
            self.out.append(Send(owner, ("appended", epoch, int(ErrorCode.OFFSET_NOT_AVAILABLE), -1)))
            return
        if epoch != machine.shard_epoch:
            self.out.append(Send(owner, ("appended", epoch, int(ErrorCode.TRANSACTION_COORDINATOR_FENCED), -1)))
        elif records:
            header = data_header(-1, -1, -1, len(records))
            machine.decide_append(header, 0, AppendContext(internal=True, shard_epoch=epoch))
            self._append(Entry(header), records)
            self.waiting = (*self.waiting, (machine.log_end_offset, answer))
            self._written()
        elif self.replication.confirmed() == ENDLESS:
            self.out.append(answer)
        else:
            self.gates = (*self.gates, (self.rounds.ask(), answer))
            self._answer_pull()

    def _on_fence(self, owner: str, epoch: int) -> None:
        fence = ShardFence(epoch, 0)
        try:
            if self.replication is None:
                raise Refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            self.machine.decide_control(fence, epoch)
        except Refusal as refusal:
            self.out.append(Send(owner, ("fenced", epoch, int(refusal.code), ())))
            return
        self._append(Entry(data_header(-1, -1, -1, 1), fence), ())
        answer = Send(owner, ("fenced", epoch, 0, self.records))
        self.waiting = (*self.waiting, (self.machine.log_end_offset, answer))
        self._written()

    # --- timers and faults --------------------------------------------------------------------------------------------

    def choices(self) -> list[Choice]:
        found = []
        if self.replication is None and self.successor:
            found.append(Choice("be-elected", "election"))
        if self.gates:
            found.append(Choice("doubt", late=True))
        return found

    def act(self, choice: str) -> list[Effect]:
        if choice == "be-elected":
            self.leader_epoch += 1
            self._lead((_FOLLOWER,), revision=2)
            self.out.append(Tell(self.successor, ("assigned",)))
        else:  # no round was answered in time
            self.out += [
                Send(answer.to, (*answer.body[:2], int(ErrorCode.OFFSET_NOT_AVAILABLE), -1)) for _, answer in self.gates
            ]
            self.gates = ()
        out, self.out = self.out, []
        return out

    def ignores(self, body: tuple[Any, ...]) -> bool:
        return body[0] == "fetched" and self.replication is not None
