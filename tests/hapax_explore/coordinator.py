"""An owner of a transaction shard: the real `TransactionShard`, and what `coordinator/transactions.py` and
`coordinator/shard.py` have around it, without their futures: calls that wait are values."""

from __future__ import annotations

from typing import Any, NamedTuple

from hapax.core.control import ShardFence
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.partition import AppendContext
from hapax.core.transaction import TransactionShard
from hapax.core.transaction_policy import UNLIMITED, TransactionPolicy
from hapax.core.transaction_record import OFFSETS_TOPIC, ProducerIdentity, Record, Transaction, TransactionPartition
from hapax.core.transaction_requests import (
    AddPartitionsToTxn,
    Caller,
    CloseConnection,
    Decision,
    Effect,
    EndTxn,
    Held,
    InitProducerId,
    Limits,
    MarkerResult,
    Now,
    PartitionResults,
    Reply,
    SendMarkers,
    StartTimer,
    StopTimer,
    VerifyPartitions,
)
from hapax.core.types import Millis, PartitionIndex, TimestampMs
from hapax_explore.broker import topic_id
from hapax_explore.component import Choice, Component, Send
from hapax_explore.component import Effect as Sent
from scenarios.partition_log import LoggedPartition, data_header

NOW = Now(Millis(0), TimestampMs(0))
TIMEOUT_MS = 60_000
LIMITS = Limits()


def policy_of(transactional_id: str) -> TransactionPolicy:
    return UNLIMITED


def partition_of(name: str) -> TransactionPartition:
    topic = OFFSETS_TOPIC if name == "offsets" else "t"
    return TransactionPartition(topic, topic_id(name), PartitionIndex(0))


def name_of(partition: TransactionPartition) -> str:
    return partition.topic_id.rstrip(b"\0").decode()


class Ids:
    """Producer ids count from 1000; those of another owner are others."""

    def __init__(self, first: int) -> None:
        self.next = first

    def take(self) -> Any:
        self.next += 1
        return self.next - 1


class Call(NamedTuple):
    """A client's or a broker's call. `answer_to` and `channel`: where its answer goes."""

    kind: str
    transactional_id: str
    answer_to: str
    channel: str
    connection: int
    arguments: tuple[Any, ...]


class Unit(NamedTuple):
    """A record on its way into the log, and what follows from it."""

    record: Record
    call: Call | None
    reply: Reply | None


class Coordinator(Component):
    """`serves`: it owns the shard from the beginning. Another one may take over."""

    def __init__(
        self, name: str, log: str, told: tuple[str, ...], *, serves: bool = True, successor: str = "",
        first_id: int = 1000,
    ) -> None:
        """`log`: the component that keeps its records; empty: they are stored at once. `told`: who hears of it when it
        takes over. `successor`: it may die, and then this one takes over."""
        self.name = name
        self.log = log
        self.told = told
        self.successor = successor
        self.ids = Ids(first_id)
        self.machine = TransactionShard(LIMITS, self.ids, -1, policy_of)
        self.assigned = 1 if serves else 2
        self.incarnation = 0
        self.serving = serves
        self.taking_over = False
        self.gone = False
        """It was fenced, or released."""
        self.owner_died = False
        self.queue: list[Unit] = []
        self.sent: list[Unit] = []
        self.held: list[Call] = []
        self.confirming: list[tuple[Call, Reply | ErrorCode]] = []
        """Answers on which others decide: they leave once no other owner has taken over since they were made."""
        self.confirms_sent: list[tuple[Call, Reply | ErrorCode]] = []
        self.timers: dict[str, int] = {}
        self.postponed: list[str] = []
        self.marking: dict[str, tuple[SendMarkers, tuple[tuple[int, str], ...]]] = {}
        """Of each transaction: its markers, and those on their way."""
        self.out: list[Sent] = []

    @property
    def epoch(self) -> int:
        return self.assigned << 4 | self.incarnation

    # --- messages -----------------------------------------------------------------------------------------------------

    def receive(self, body: tuple[Any, ...]) -> list[Sent]:
        getattr(self, "_on_" + body[0])(*body[1:])
        self._flush()
        return self._out()

    def _out(self) -> list[Sent]:
        out, self.out = self.out, []
        return out

    def _on_init(self, client: str, connection: int, txid: str, producer_id: int, epoch: int) -> None:
        self._call("init", client, connection, txid, producer_id, epoch)

    def _on_add(
        self, client: str, connection: int, txid: str, producer_id: int, epoch: int, partitions: tuple[str, ...]
    ) -> None:
        self._call("add", client, connection, txid, producer_id, epoch, partitions)

    def _on_end(
        self, client: str, connection: int, txid: str, producer_id: int, epoch: int, commit: bool, version: int
    ) -> None:
        self._call("end", client, connection, txid, producer_id, epoch, commit, version)

    def _call(self, kind: str, client: str, connection: int, txid: str, *arguments: Any) -> None:
        self._ask(Call(kind, txid, client, f"{self.name}>{client}#{connection}", connection, arguments))

    def _on_verify(
        self, broker: str, process: int, ticket: int, txid: str, producer_id: int, epoch: int, add: bool,
        after_serial: int,
    ) -> None:
        question = (process, ticket, txid, producer_id, epoch, add, after_serial)
        self._ask(Call("verify", txid, broker, "", -1, question))

    def _on_appended(self, epoch: int, code: int) -> None:
        if epoch != self.epoch or not self.serving:
            return
        sent, self.sent = self.sent, []
        confirmed, self.confirms_sent = self.confirms_sent, []
        if code == ErrorCode.OFFSET_NOT_AVAILABLE:
            for call, _ in confirmed:
                self._refuse(call, ErrorCode.NOT_COORDINATOR)
            return
        if code:
            self.sent, self.confirms_sent = sent, confirmed
            self._released()
            return
        for unit in sent:
            self._stored(unit)
        for call, reply in confirmed:
            self._answer(call, reply)

    def _on_fenced(self, epoch: int, code: int, records: tuple[Record, ...]) -> None:
        if epoch != self.epoch or not self.taking_over:
            return
        self.taking_over = False
        if code:
            self.gone = True
            return
        self.machine = TransactionShard(LIMITS, self.ids, -1, policy_of)
        for record in records:
            self.machine.load(record)
        self.serving = True
        self._carry_out(list(self.machine.resume(NOW)))
        self.out += [Send(each, ("moved", self.name)) for each in self.told]

    def _on_marked(self, epoch: int, txid: str, serial: int, producer_id: int, partition: str, error: int) -> None:
        if not self.serving or epoch != self.epoch or txid not in self.marking:
            return
        sent, waiting = self.marking[txid]
        if sent.serial != serial or (producer_id, partition) not in waiting:
            return
        self.marking[txid] = sent, tuple(each for each in waiting if each != (producer_id, partition))
        self._marked(txid, sent, [MarkerResult(producer_id, partition_of(partition).by_id, ErrorCode(error))])  # type: ignore[arg-type]

    def _on_died(self, name: str) -> None:
        """The controller's word: the shard is this node's now."""
        self.owner_died = True

    # --- calls --------------------------------------------------------------------------------------------------------

    def _ask(self, call: Call) -> None:
        if not self.serving:
            self._refuse(call, ErrorCode.NOT_COORDINATOR)
            return
        try:
            answer = self._decide(call)
        except Refusal as refusal:
            if refusal.code is ErrorCode.CONCURRENT_TRANSACTIONS:
                self._refuse(call, refusal.code)
            else:
                self.confirming.append((call, refusal.code))
            return
        if isinstance(answer, Decision):
            if answer.effects:
                self._carry_out(answer.effects)
            if answer.record is not None:
                self.queue.append(Unit(answer.record, call, answer.reply))
            elif answer.reply is not None and answer.confirm:
                self.confirming.append((call, answer.reply))
            elif answer.reply is not None:
                self._answer(call, answer.reply)
            else:
                raise AssertionError(answer)
        elif isinstance(answer, Held):
            self.held.append(call)
        elif isinstance(answer, CloseConnection):
            self.out.append(Send(call.answer_to, ("closed", self.name, call.connection), call.channel))
        else:
            raise AssertionError(answer)

    def _decide(self, call: Call) -> Any:
        machine, txid = self.machine, call.transactional_id
        caller = Caller(call.answer_to, call.answer_to, Millis(0), call.connection, 4)
        if call.kind == "init":
            return machine.init_producer_id(InitProducerId(txid, TIMEOUT_MS, caller, *call.arguments), NOW)
        if call.kind == "add":
            producer_id, epoch, partitions = call.arguments
            wanted = tuple(partition_of(each) for each in partitions)
            return machine.add_partitions_to_txn(AddPartitionsToTxn(txid, producer_id, epoch, wanted, caller), NOW)
        if call.kind == "end":
            producer_id, epoch, commit, version = call.arguments
            return machine.end_txn(EndTxn(txid, producer_id, epoch, commit, caller, version), NOW)
        _, _, _, producer_id, epoch, add, after_serial = call.arguments
        question = VerifyPartitions(
            txid, producer_id, epoch, (partition_of(call.answer_to),), add, caller, after_serial=max(0, after_serial)
        )
        return machine.verify_partitions(question, NOW)

    def _refuse(self, call: Call, code: ErrorCode) -> None:
        if call.kind == "verify":
            self.out.append(Send(call.answer_to, ("verified", call.arguments, int(code), -1, -1, self.name)))
        else:
            self.out.append(Send(
                call.answer_to, ("answered", self.name, call.connection, call.kind, int(code), -1, -1), call.channel
            ))

    def _answer(self, call: Call, reply: Reply | ErrorCode) -> None:
        if isinstance(reply, ErrorCode):
            self._refuse(call, reply)
        elif isinstance(reply, ProducerIdentity):
            self.out.append(Send(
                call.answer_to, ("answered", self.name, call.connection, call.kind, 0, *reply), call.channel
            ))
        elif call.kind == "verify":
            assert isinstance(reply, PartitionResults)
            error = int(reply.results[0].error)
            self.out.append(Send(
                call.answer_to, ("verified", call.arguments, error, self.epoch, reply.serial, self.name)
            ))
        else:
            assert isinstance(reply, PartitionResults)
            error = max(int(each.error) for each in reply.results)
            self.out.append(Send(
                call.answer_to, ("answered", self.name, call.connection, call.kind, error, -1, -1), call.channel
            ))

    # --- log ----------------------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        """One request in flight: what comes meanwhile is the next one."""
        if not self.serving or self.sent or self.confirms_sent:
            return
        if not self.log:
            while self.queue or self.confirming:
                self.sent, self.queue = self.queue, []
                self.confirms_sent, self.confirming = self.confirming, []
                self._on_appended(self.epoch, 0)
            return
        if self.queue:
            self.sent, self.queue = self.queue, []
            self.confirms_sent, self.confirming = self.confirming, []
            records = tuple(unit.record for unit in self.sent)
            self.out.append(Send(self.log, ("append", self.name, self.epoch, records)))
        elif self.confirming:
            self.confirms_sent, self.confirming = self.confirming, []
            self.out.append(Send(self.log, ("append", self.name, self.epoch, ())))

    def _stored(self, unit: Unit) -> None:
        effects = self.machine.replay(unit.record, NOW)
        self._carry_out(effects)
        if unit.call is not None:
            if unit.reply is None:
                self._ask(unit.call)
            else:
                self._answer(unit.call, unit.reply)
        self._wake(unit.record.transactional_id)

    def _wake(self, txid: str) -> None:
        held, self.held = self.held, []
        for call in held:
            if call.transactional_id == txid:
                self._ask(call)
            else:
                self.held.append(call)

    def _released(self) -> None:
        """A higher epoch stands in the log: another node owns the shard."""
        self._stop()
        self.gone = True

    def _stop(self) -> None:
        self.serving = False
        waiting = [unit.call for unit in (*self.sent, *self.queue) if unit.call is not None]
        waiting += [*self.held, *(call for call, _ in (*self.confirms_sent, *self.confirming))]
        self._forget()
        for call in waiting:
            self._refuse(call, ErrorCode.NOT_COORDINATOR)

    def _forget(self) -> None:
        self.queue, self.sent, self.held, self.confirming, self.confirms_sent = [], [], [], [], []
        self.timers, self.postponed, self.marking = {}, [], {}
        self.machine = TransactionShard(LIMITS, self.ids, -1, policy_of)

    # --- effects ------------------------------------------------------------------------------------------------------

    def _carry_out(self, effects: Any) -> None:
        each: Effect
        for each in effects:
            if isinstance(each, SendMarkers):
                self._send_markers(each, again=False)
            elif isinstance(each, StartTimer):
                self.timers[each.transactional_id] = each.at
            elif isinstance(each, StopTimer):
                self.timers.pop(each.transactional_id, None)

    def _send_markers(self, sent: SendMarkers, *, again: bool) -> None:
        on_their_way = []
        for marker in sent.markers:
            for partition in marker.partitions:
                name = name_of(partition)
                on_their_way.append((int(marker.producer_id), name))
                self.out.append(Send(name, (
                    "marker", self.name, self.epoch, sent.transactional_id, sent.serial, marker.producer_id,
                    marker.producer_epoch, marker.commit, sent.transaction_version, sent.first_offset,
                )))
        before = self.marking[sent.transactional_id][1] if again else ()
        self.marking[sent.transactional_id] = sent, tuple(dict.fromkeys((*before, *on_their_way)))

    def _marked(self, txid: str, sent: SendMarkers, results: list[MarkerResult]) -> None:
        progress = self.machine.markers_answered(txid, sent.serial, results, NOW)
        if progress.decision is not None:
            completion = progress.decision.record
            assert isinstance(completion, Transaction)
            self.machine.postpone(completion)
            self.marking.pop(txid, None)
            self.postponed = [each for each in self.postponed if each != txid] + [txid]
            self._wake(txid)
        if progress.retry is not None:
            self._send_markers(progress.retry, again=True)

    # --- what happens by itself ---------------------------------------------------------------------------------------

    def choices(self) -> list[Choice]:
        if self.gone or self.taking_over:
            return []
        if not self.serving:
            return [Choice("take-over", "" if self.owner_died else "take-over")]
        found = [Choice(f"time-out:{txid}", "time-out", late=True) for txid in self.timers]
        found += [Choice(f"early-timer:{txid}", "early timer") for txid in self.timers]
        found += [Choice(f"complete:{txid}", "complete", late=True) for txid in self.postponed]
        found += [Choice(f"resend:{txid}", "resend") for txid, (_, waiting) in self.marking.items() if waiting]
        if self.successor:
            found.append(Choice("crash", "coordinator crash"))
        if self.sent:
            found.append(Choice("lose-log", "lost append", late=True))
        return found

    def act(self, choice: str) -> list[Sent]:
        what, _, txid = choice.partition(":")
        getattr(self, "_do_" + what.replace("-", "_"))(txid)
        self._flush()
        return self._out()

    def _do_time_out(self, txid: str) -> None:
        self._fire(txid, self.timers.pop(txid))

    def _do_early_timer(self, txid: str) -> None:
        """A coarse clock: the loop's timer comes a millisecond early."""
        self._fire(txid, self.timers.pop(txid) - 1)

    def _fire(self, txid: str, at: int) -> None:
        decision = self.machine.time_out(txid, Now(Millis(at), TimestampMs(0)))
        if decision is not None:
            self._carry_out(decision.effects)
            if decision.record is not None:
                self.queue.append(Unit(decision.record, None, None))

    def _do_complete(self, txid: str) -> None:
        self.postponed.remove(txid)
        decision = self.machine.completion(txid)
        if decision is not None and decision.record is not None:
            self.queue.append(Unit(decision.record, None, None))

    def _do_resend(self, txid: str) -> None:
        """The call with the markers had no answer in time; what was sent may still arrive."""
        sent, waiting = self.marking[txid]
        self.marking[txid] = sent, ()
        self._marked(txid, sent, [
            MarkerResult(producer_id, partition_of(name).by_id, ErrorCode.NETWORK_EXCEPTION)  # type: ignore[arg-type]
            for producer_id, name in waiting
        ])

    def _do_crash(self, txid: str) -> None:
        """Connections break: nobody knows what became of the calls that wait. What is on its way to the log may be
        stored yet."""
        self._released()
        self.out.append(Send(self.successor, ("died", self.name)))

    def _do_lose_log(self, txid: str) -> None:
        """No answer to what is in flight: nobody knows what the log holds. A higher epoch, and from the beginning."""
        self._stop()
        self.incarnation += 1
        self.taking_over = True
        self.out.append(Send(self.log, ("fence", self.name, self.epoch)))

    def _do_take_over(self, txid: str) -> None:
        self.taking_over = True
        self.out.append(Send(self.log, ("fence", self.name, self.epoch)))

    # --- what one sees ------------------------------------------------------------------------------------------------

    def view(self) -> tuple[Any, ...]:
        """(serving, unfinished transactions, whether calls wait)."""
        unfinished = tuple(
            txid for txid in self.machine.transactions
            if self.machine.describe(txid).is_open or self.machine.describe(txid).is_decided
        )
        return self.serving, unfinished, bool(self.held or self.queue or self.sent or self.confirming)


class TxnLog(Component):
    """The leader of the shard's partition of `__transaction_state`: the real fencing by epochs, records as values."""

    def __init__(self, name: str, owner: str, epoch: int) -> None:
        self.name = name
        self.records: tuple[Record, ...] = ()
        self.log = LoggedPartition()
        self.log.append_control(ShardFence(epoch, 0))
        self.log.sync()

    def receive(self, body: tuple[Any, ...]) -> list[Sent]:
        kind, owner, epoch, *rest = body
        partition = self.log.partition
        try:
            if kind == "fence":
                fence = ShardFence(epoch, 0)
                partition.decide_control(fence, epoch)
                self.log.append_control(fence)
            elif rest[0]:
                header = data_header(-1, -1, -1, len(rest[0]))
                partition.decide_append(header, 0, AppendContext(internal=True, shard_epoch=epoch))
                self.log.append(header)
                self.records = (*self.records, *rest[0])
            else:
                fence = ShardFence(epoch, 0)
                partition.decide_control(fence, epoch)
        except Refusal as refusal:
            code = int(refusal.code)
        else:
            code = 0
            self.log.sync()
        if kind == "fence":
            return [Send(owner, ("fenced", epoch, code, () if code else self.records))]
        return [Send(owner, ("appended", epoch, code))]

    def view(self) -> tuple[Any, ...]:
        """(whether the last decision of each transaction was a commit, by serial)."""
        decided = {
            (each.transactional_id, each.serial): each.outcome.committed
            for each in self.records if isinstance(each, Transaction) and each.is_decided and each.outcome is not None
        }
        return tuple(sorted(decided.items()))
