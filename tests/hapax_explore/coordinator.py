"""An owner of a transaction shard: the real `TransactionShard`, and a model of `coordinator/transactions.py`."""

from __future__ import annotations

from typing import Any

from hapax.codec.transaction_log import encode_record
from hapax.core.control import Control, Marker, ShardFence
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.partition.machine import AppendContext, Duplicate
from hapax.core.transaction.machine import TransactionShard
from hapax.core.transaction.policy import UNLIMITED, TransactionPolicy
from hapax.core.transaction.record import (
    OFFSETS_TOPIC,
    ProducerIdentity,
    Token,
    Transaction,
    TransactionPartition,
)
from hapax.core.transaction.requests import (
    AddPartitionsToTxn,
    Caller,
    CheckWinners,
    CloseConnection,
    Decision,
    Effect,
    Ended,
    EndTransaction,
    EndTxn,
    Held,
    InitProducerId,
    Joined,
    JoinTransaction,
    Kept,
    Limits,
    MarkerResult,
    SendMarkers,
    StartTimer,
    StopTimer,
    VerifyPartitions,
    Winner,
    WinnerCheck,
    WinnerPartition,
)
from hapax.core.types import Millis, Now, PartitionIndex, TimestampMs
from hapax_explore.broker import topic_id
from hapax_explore.component import Choice, Component, Send
from hapax_explore.component import Effect as Sent
from hapax_explore.owner import Call, Owner, Unit
from scenarios.partition_log import LoggedPartition, data_header

NOW = Now(Millis(0), TimestampMs(0))
TIMEOUT_MS = 60_000
TOKEN = Token("q", 0)
LIMITS = Limits(two_phase_commit=True)


def policy_of(transactional_id: str) -> TransactionPolicy:
    return UNLIMITED


def partition_of(name: str) -> TransactionPartition:
    topic = OFFSETS_TOPIC if name == "offsets" else "t"
    return TransactionPartition(topic, topic_id(name), PartitionIndex(0))


def name_of(partition: TransactionPartition) -> str:
    return partition.topic_id.rstrip(b"\0").decode()


class Ids:
    """Producer ids start at 1000. Another owner uses another range."""

    def __init__(self, first: int) -> None:
        self.next = first

    def take(self) -> Any:
        self.next += 1
        return self.next - 1


class Coordinator(Owner):
    """The key of a transaction shard's record."""

    def __init__(
        self, name: str, log: str, told: tuple[str, ...], *, serves: bool = True, successor: str = "",
        first_id: int = 1000, group_owner: str = "g1",
    ) -> None:
        super().__init__(name, log, told, serves=serves, successor=successor)
        self.ids = Ids(first_id)
        self.group_owner = group_owner
        self.leaders: dict[str, tuple[int, str]] = {}
        """For partitions with several copies: partition -> (epoch, copy)."""
        self.held: list[Call] = []
        self.tickets = 0
        self._begin_load()

    # --- log ----------------------------------------------------------------------------------------------------------

    def _begin_load(self) -> None:
        self.machine = TransactionShard(LIMITS, self.ids, -1, policy_of)
        self.timers: dict[str, int] = {}
        self.postponed: list[str] = []
        self.marking: dict[str, tuple[SendMarkers, tuple[tuple[int, str], ...]]] = {}
        """Transaction -> (its markers, those in flight)."""
        self.checking: dict[int, tuple[Call, tuple[WinnerCheck, ...], tuple[WinnerCheck, ...]]] = {}
        """Commits that ask what their winners have written -> (the open questions, the missing records)."""

    def _load(self, record: Any, offset: int) -> None:
        self.machine.load(record)

    def _loaded(self) -> None:
        self._carry_out(list(self.machine.resume(NOW)))

    def _stored(self, unit: Unit, offset: int) -> None:
        [record] = unit.records
        self._carry_out(self.machine.replay(record, NOW))
        if unit.call is not None:
            if unit.reply is None:
                self._ask(unit.call)
            else:
                self._answer(unit.call, unit.reply)
        self._wake(record.transactional_id)

    def _waiting(self) -> list[Call]:
        held, self.held = self.held, []
        checking, self.checking = self.checking, {}
        return [*held, *(call for call, _, _ in checking.values())]

    def _wake(self, txid: str) -> None:
        held, self.held = self.held, []
        for call in held:
            if call.transactional_id == txid:
                self._ask(call)
            else:
                self.held.append(call)

    # --- messages -----------------------------------------------------------------------------------------------------

    def _on_init(
        self, client: str, connection: int, txid: str, producer_id: int, epoch: int, *two_phase: bool
    ) -> None:
        self._call("init", client, connection, txid, producer_id, epoch, *two_phase)

    def _on_add(
        self, client: str, connection: int, txid: str, producer_id: int, epoch: int, partitions: tuple[str, ...]
    ) -> None:
        self._call("add", client, connection, txid, producer_id, epoch, partitions)

    def _on_end(
        self, client: str, connection: int, txid: str, producer_id: int, epoch: int, commit: bool, version: int
    ) -> None:
        self._call("end", client, connection, txid, producer_id, epoch, commit, version)

    def _on_join(self, client: str, connection: int, txid: str, member: str) -> None:
        self._call("join", client, connection, txid, member)

    def _on_decide(
        self, client: str, connection: int, txid: str, winners: tuple[tuple[int, int, str], ...]
    ) -> None:
        self._call("decide", client, connection, txid, winners)

    def _on_described(self, epoch: int, ticket: int, partition: str, held: tuple[tuple[int, int, int], ...]) -> None:
        """What winners have written in the partition: (producer id, epoch, last sequence) of open transactions."""
        if not self.serving or epoch != self.epoch or ticket not in self.checking:
            return
        call, waiting, missing = self.checking.pop(ticket)
        here = [check for check in waiting if name_of(check.partition) == partition]
        missing += tuple(
            check for check in here if (check.producer_id, check.producer_epoch, check.last_sequence) not in held
        )
        waiting = tuple(check for check in waiting if check not in here)
        if waiting:
            self.checking[ticket] = call, waiting, missing
            return
        self._ask(call, missing)
        self.machine.winners_checked(call.transactional_id)
        self._wake(call.transactional_id)

    def _check(self, call: Call, checks: tuple[WinnerCheck, ...]) -> None:
        self.tickets += 1
        self.checking[self.tickets] = call, checks, ()
        for name in dict.fromkeys(name_of(check.partition) for check in checks):
            self.out.append(Send(name, (
                "describe", self.name, self.epoch, self.tickets, tuple(check.producer_id for check in checks)
            )))

    def _call(self, kind: str, client: str, connection: int, txid: str, *arguments: Any) -> None:
        self._ask(Call(kind, txid, client, f"{self.name}>{client}#{connection}", connection, arguments))

    def _on_verify(
        self, asker: str, process: int, ticket: int, txid: str, producer_id: int, epoch: int, add: bool,
        after_serial: int,
    ) -> None:
        question = (process, ticket, txid, producer_id, epoch, add, after_serial)
        self._ask(Call("verify", txid, asker, "", -1, question))

    def _on_moved(self, group_owner: str) -> None:
        self.group_owner = group_owner

    def _on_leads(self, partition: str, leader: str, epoch: int) -> None:
        self.leaders[partition] = max(self.leaders.get(partition, (0, "")), (epoch, leader))

    def _on_marked(self, epoch: int, txid: str, serial: int, producer_id: int, partition: str, error: int) -> None:
        if not self.serving or epoch != self.epoch or txid not in self.marking:
            return
        sent, waiting = self.marking[txid]
        if sent.serial != serial or (producer_id, partition) not in waiting:
            return
        self.marking[txid] = sent, tuple(each for each in waiting if each != (producer_id, partition))
        self._marked(txid, sent, [MarkerResult(producer_id, partition_of(partition).by_id, ErrorCode(error))])  # type: ignore[arg-type]

    # --- calls --------------------------------------------------------------------------------------------------------

    def _ask(self, call: Call, missing: tuple[WinnerCheck, ...] | None = None) -> None:
        """As `TxnShard.ask`."""
        if self.taking_over:
            self.later.append(call)
            return
        if not self.serving:
            self._refuse(call, ErrorCode.NOT_COORDINATOR)
            return
        try:
            answer = self._decide(call, missing)
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
                self.queue.append(Unit((answer.record,), call, answer.reply))
            elif answer.reply is not None and answer.confirm:
                self.confirming.append((call, answer.reply))
            elif answer.reply is not None:
                self._answer(call, answer.reply)
            else:
                raise AssertionError(answer)
        elif isinstance(answer, Held):
            self.held.append(call)
        elif isinstance(answer, CheckWinners):
            self._check(call, answer.checks)
        elif isinstance(answer, CloseConnection):
            self.out.append(Send(call.answer_to, ("closed", self.name, call.connection), call.channel))
        else:
            raise AssertionError(answer)

    def _again(self, call: Call) -> None:
        self._ask(call)

    def _decide(self, call: Call, missing: tuple[WinnerCheck, ...] | None) -> Any:
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
        if call.kind == "join":
            return machine.join_transaction(JoinTransaction(txid, TOKEN, *call.arguments, TIMEOUT_MS, caller), NOW)
        if call.kind == "decide":
            winners = tuple(
                Winner(producer_id, epoch, (WinnerPartition(partition_of(name), 0),))  # type: ignore[arg-type]
                for producer_id, epoch, name in call.arguments[0]
            )
            end = EndTransaction(txid, True, caller, TOKEN, winners=winners, missing=missing)
            return machine.end_transaction(end, NOW)
        _, _, _, producer_id, epoch, add, after_serial = call.arguments
        asked = partition_of("offsets" if call.answer_to.startswith("g") else call.answer_to)
        question = VerifyPartitions(
            txid, producer_id, epoch, (asked,), add, caller, after_serial=max(0, after_serial)
        )
        return machine.verify_partitions(question, NOW)

    def _refuse(self, call: Call, code: ErrorCode) -> None:
        if call.kind == "verify":
            self.out.append(Send(call.answer_to, ("verified", call.arguments, int(code), -1, -1, self.name)))
        else:
            self._tell(call, int(code))

    def _answer(self, call: Call, reply: Any) -> None:
        if isinstance(reply, ErrorCode):
            self._refuse(call, reply)
        elif isinstance(reply, ProducerIdentity):
            self._tell(call, 0, *reply)
        elif isinstance(reply, Kept):
            self._tell(call, 0, *reply.identity, *reply.ongoing)
        elif isinstance(reply, Joined):
            self._tell(call, 0, *reply.identity)
        elif isinstance(reply, Ended):
            self._tell(call, 0)
        elif call.kind == "verify":
            error = int(reply.results[0].error)
            self.out.append(Send(
                call.answer_to, ("verified", call.arguments, error, self.epoch, reply.serial, self.name)
            ))
        else:
            self._tell(call, max(int(each.error) for each in reply.results))

    def _tell(self, call: Call, code: int, producer_id: int = -1, epoch: int = -1, *kept: int) -> None:
        self.out.append(Send(
            call.answer_to, ("answered", self.name, call.connection, call.kind, code, producer_id, epoch, *kept),
            call.channel,
        ))

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
                leader = self.group_owner if name == "offsets" else self.leaders.get(name, (0, name))[1]
                self.out.append(Send(leader, (
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

    # --- timers and faults --------------------------------------------------------------------------------------------

    def choices(self) -> list[Choice]:
        found = super().choices()
        found += [Choice(f"time-out:{txid}", "time-out", late=True) for txid in self.timers]
        found += [Choice(f"early-timer:{txid}", "early timer") for txid in self.timers]
        found += [Choice(f"complete:{txid}", "complete", late=True) for txid in self.postponed]
        unanswered = [txid for txid, (_, waiting) in self.marking.items() if waiting]
        found += [Choice(f"resend:{txid}", "resend", late=True) for txid in unanswered]
        return found

    def _do_time_out(self, txid: str) -> None:
        self._fire(txid, self.timers.pop(txid))

    def _do_early_timer(self, txid: str) -> None:
        """A coarse clock: the event loop's timer fires a millisecond early."""
        self._fire(txid, self.timers.pop(txid) - 1)

    def _fire(self, txid: str, at: int) -> None:
        decision = self.machine.time_out(txid, Now(Millis(at), TimestampMs(0)))
        if decision is not None:
            self._carry_out(decision.effects)
            if decision.record is not None:
                self.queue.append(Unit((decision.record,), None))

    def _do_complete(self, txid: str) -> None:
        self.postponed.remove(txid)
        decision = self.machine.completion(txid)
        if decision is not None and decision.record is not None:
            self.queue.append(Unit((decision.record,), None))

    def _do_resend(self, txid: str) -> None:
        """The call with the markers timed out. Its messages may still arrive."""
        sent, waiting = self.marking[txid]
        self.marking[txid] = sent, ()
        self._marked(txid, sent, [
            MarkerResult(producer_id, partition_of(name).by_id, ErrorCode.NETWORK_EXCEPTION)  # type: ignore[arg-type]
            for producer_id, name in waiting
        ])

    # --- what is visible ----------------------------------------------------------------------------------------------

    def view(self) -> tuple[Any, ...]:
        """(serving, unfinished transactions, whether calls wait)."""
        unfinished = tuple(
            txid for txid in self.machine.transactions
            if self.machine.describe(txid).is_open or self.machine.describe(txid).is_decided
        )
        waiting = self.held or self.queue or self.sent or self.confirming or self.checking
        return self.serving, unfinished, bool(waiting)


class ShardLog(Component):
    """The leader of a shard's internal partition: real fencing by epochs, over a log whose records are values."""

    def __init__(self, name: str, epoch: int = 16, *, compacts: bool = False) -> None:
        self.name = name
        self.compacts = compacts
        self.records: tuple[Any, ...] = ()
        self.log = LoggedPartition()
        self.log.append_control(ShardFence(epoch, 0))
        self.log.sync()

    def receive(self, body: tuple[Any, ...]) -> list[Sent]:
        kind, owner, epoch, *rest = body
        code, offset = 0, len(self.records)
        try:
            if kind == "fence":
                self._append(ShardFence(epoch, 0), epoch)
            elif not self._append_records(rest[0], epoch):
                offset = -1
        except Refusal as refusal:
            code = int(refusal.code)
        self.log.sync()
        if kind == "fence":
            return [Send(owner, ("fenced", epoch, code, () if code else self.records))]
        return [Send(owner, ("appended", epoch, code, offset))]

    def choices(self) -> list[Choice]:
        return [Choice("compact", "compact")] if self.compacts and self.records else []

    def act(self, choice: str) -> list[Sent]:
        """Compacts the log: keeps the last record of each key, in its place."""
        last = {key: record for record in self.records for key, _ in encode_record(record)}
        self.records = tuple(record for record in self.records if any(record is each for each in last.values()))
        return []

    def _append_records(self, records: tuple[Any, ...], epoch: int) -> bool:
        """Returns False if the log already had the records. Raises Refusal. Without records, this asks whether the
        shard still belongs to the owner."""
        partition = self.log.partition
        if not records:
            partition.decide_control(ShardFence(epoch, 0), epoch)
            return True
        if isinstance(records[0], Marker):
            if not self._append(records[0], epoch):
                return False
        else:
            header = data_header(-1, -1, -1, len(records))
            partition.decide_append(header, 0, AppendContext(internal=True, shard_epoch=epoch))
            self.log.append(header)
        self.records = (*self.records, *records)
        return True

    def _append(self, control: Control, epoch: int) -> bool:
        if isinstance(self.log.partition.decide_control(control, epoch), Duplicate):
            return False
        self.log.append_control(control)
        return True
