"""Drives one partition over a log in memory, as a broker with one replica would.

    machine partition [sync=manual] [verify=manual] [expiry=MS]

By default every append is synced (and so committed) at once, and the coordinator says yes to every question; with
`manual` the script says `sync` and `coordinator`.

    produce pid=N epoch=N seq=N records=N|values=a,b [txn] [expected=N] [scope=N] [version=N] [now=MS] [connection=N]
            [dies=POINT]
        POINT: before-append, after-append (not synced), before-answer (synced)
    internal shard-epoch=N [pid=N epoch=N] [txn] records=N
    marker pid=N epoch=N commit|abort [serial=N] [first=N] [last=N] [coordinator=N] [shard=N] [v2] [dies=POINT]
    markers PID:EPOCH:commit|abort:SERIAL…         several in one append
    shard-fence epoch=N node=N [writer=N]
    lease pid=N epoch=N until=MS
    tick now=MS                                    the broker's timer: expiry
    lead newest-connection=N                       a broker that has seen nothing but the log leads, with these
                                                   connections open already
    sync / crash [unsynced=N] / snapshot / truncate offset=N / delete-below offset=N
    coordinator ticket=N [ERROR] [shard=N] [epoch=N] [serial=N]   answers a question
    refuse pid=N epoch=N seq=N records=N           the broker refuses for a while (its disk is full)
    reader / state / aborted from=N to=N / epoch-end N
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from hapax.core.batch import BatchHeader
from hapax.core.control import Marker, ProducerFence, ShardFence
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.partition.machine import (
    CLIENT,
    VERIFIED,
    AppendContext,
    Condition,
    Duplicate,
    NeedVerification,
    PartitionMachine,
)
from hapax.core.partition.verification import Answer, Outcome, Question, ShardEpochs, Verification
from hapax.core.transaction.connection_fencing import ConnectionFencing
from hapax.core.types import ProducerEpoch, ProducerId
from scenarios.partition_log import LoggedPartition, data_header
from scenarios.script import Command, ScriptError


@dataclass(frozen=True, slots=True)
class Write:
    """A batch on its way in."""

    name: str
    header: BatchHeader
    values: tuple[str, ...]
    context: AppendContext
    now_ms: int
    connection: int = -1


class Interpreter:
    def __init__(self, machine: Command) -> None:
        self.log = LoggedPartition(PartitionMachine(expiry_ms=machine.number("expiry", 24 * 3_600_000)))
        self.sync_by_hand = machine.text("sync", "auto") == "manual"
        self.verify_by_hand = machine.text("verify", "auto") == "manual"
        self.shard_epochs = ShardEpochs()
        self.verification: Verification[Write] = Verification(self.shard_epochs, self._decided)
        self.fencing = ConnectionFencing()
        self.waiting: list[tuple[int, str]] = []
        """(offset that must be below the high watermark, answer)"""

    @property
    def partition(self) -> PartitionMachine:
        return self.log.partition

    def execute(self, command: Command) -> Iterable[str]:
        method = getattr(self, "do_" + command.name.replace("-", "_"), None)
        if method is None:
            raise ScriptError(f"unknown command `{command.name}`")
        try:
            yield from method(command)
        except Refusal as refusal:
            yield f"refused {refusal.code:d} {refusal}"

    # --- writes ---------------------------------------------------------------------------------------------------

    def do_produce(self, command: Command) -> Iterator[str]:
        header, values = self._batch(command)
        write = Write(
            name=f"producer {header.producer_id} sequence {header.base_sequence}",
            header=header,
            values=values,
            context=AppendContext(condition=_condition(command)),
            now_ms=command.number("now", 0),
            connection=command.number("connection", -1),
        )
        version = command.number("version", 12)
        if "connection" in command.arguments:
            superseded = self.fencing.admit(
                "tx", ProducerId(header.producer_id), ProducerEpoch(header.producer_epoch), command.number("connection")
            )
            if superseded is not None:
                yield f"dropped with its connection: {superseded.reason}"
                return
        if self.verification.holds(header.producer_id):
            self.verification.park(header, "tx", version, write)
            yield "parked behind its producer's others"
            return
        if command.text("dies", "") == "before-append":
            yield from self._crash(0)
            return
        if isinstance(self._decide(write), NeedVerification):
            if self.verify_by_hand:
                question = self.verification.park(header, "tx", version, write)
                assert question is not None
                yield f"parked; {_asked(question)}"
                return
            write = Write(write.name, header, values, write.context._replace(verified=True), write.now_ms)
        yield from self._append(write, command.text("dies", ""))

    def _decided(self, producer_id: int) -> int:
        producer = self.partition.producers.get(producer_id)
        return -1 if producer is None else producer.serial

    def _decide(self, write: Write) -> object:
        context = CLIENT if write.context == CLIENT else write.context
        return self.partition.decide_append(write.header, write.now_ms, context)

    def _append(self, write: Write, dies: str = "") -> Iterator[str]:
        decision = self._decide(write)
        if isinstance(decision, Duplicate):
            last = decision.wait_for
            answer = f"ok {_span(decision.base_offset, last)} (it was there)"
            if decision.error != ErrorCode.NONE:
                answer = f"refused {decision.error:d} {decision.error.name}"
            yield from self._answer(last, answer, stored=False)
            return
        header = self.log.append(write.header, write.values).header
        if (condition := write.context.condition) is not None:
            self.partition.scopes.appended(condition.scope, header.base_offset, header.last_offset + 1)
        yield from self._stored(header, dies)

    def _stored(self, header: BatchHeader, dies: str) -> Iterator[str]:
        span = _span(header.base_offset, header.last_offset)
        if dies == "after-append":
            yield f"appended {span}, not synced"
            yield from self._crash(0)
        elif dies == "before-answer":
            self.log.sync()
            yield f"appended {span} and synced, not answered"
            yield from self._crash(0)
        else:
            yield from self._answer(header.last_offset, f"ok {span}", stored=True)

    def _answer(self, wait_for: int, answer: str, *, stored: bool) -> Iterator[str]:
        if not self.sync_by_hand:
            self.log.sync()
        if self.partition.high_watermark > wait_for:
            yield answer
            return
        self.waiting.append((wait_for, answer))
        yield f"{'appended; ' if stored else ''}the answer waits for the high watermark to pass {wait_for}"

    def do_lead(self, command: Command) -> Iterator[str]:
        self.fencing = ConnectionFencing(command.number("newest-connection"))
        self.partition.scopes.forget()
        self.shard_epochs = ShardEpochs()  # of another broker, which has seen nothing but its log
        for shard, epoch in self.partition.marker_epochs.items():
            self.shard_epochs.admit(shard, epoch)
        self.verification = Verification(self.shard_epochs, self._decided)
        yield "leads"

    def do_refuse(self, command: Command) -> Iterator[str]:
        header, _ = self._batch(command)
        self._decide(Write("", header, (), CLIENT, 0))
        self.partition.note_refused(header)
        yield f"refused {ErrorCode.KAFKA_STORAGE_ERROR:d} KAFKA_STORAGE_ERROR"

    def do_internal(self, command: Command) -> Iterator[str]:
        header = data_header(
            command.number("pid", -1), command.number("epoch", -1), -1, command.number("records", 1),
            transactional=command.flag("txn"),
        )  # fmt: skip
        self.partition.decide_append(
            header, 0, AppendContext(internal=True, shard_epoch=command.number("shard-epoch"))
        )
        values = tuple(f"internal{i}" for i in range(header.record_count))
        yield from self._stored(self.log.append(header, values).header, "")

    def _batch(self, command: Command) -> tuple[BatchHeader, tuple[str, ...]]:
        pid, epoch, sequence = command.number("pid", -1), command.number("epoch", 0), command.number("seq", -1)
        if "values" in command.arguments:
            values = tuple(command.text("values").split(","))
        else:
            values = tuple(f"{pid}.{epoch}.{sequence}+{i}" for i in range(command.number("records")))
        header = data_header(
            pid, epoch if pid >= 0 else -1, sequence, len(values), transactional=command.flag("txn"),
            timestamp=command.number("time", 0), values=tuple(values),
        )  # fmt: skip
        return header, values

    # --- control batches ------------------------------------------------------------------------------------------

    def do_marker(self, command: Command) -> Iterator[str]:
        marker = Marker(
            producer_id=command.number("pid"),
            producer_epoch=command.number("epoch"),
            commit=_is_commit(command.positional),
            coordinator_epoch=command.number("coordinator", 0),
            serial=command.number("serial", -1),
            shard=command.number("shard", -1),
            first_offset=command.number("first", -1),
            last_offset=command.number("last", -1),
            transaction_version=2 if command.flag("v2") else 1,
        )
        if command.text("dies", "") == "before-append":
            yield from self._crash(0)
            return
        decision = self.partition.decide_marker(marker)
        if isinstance(decision, Duplicate):
            yield from self._answer(decision.wait_for, "ok, decided before", stored=False)
            return
        yield from self._store_marker(marker, command.text("dies", ""))

    def _store_marker(self, marker: Marker, dies: str = "") -> Iterator[str]:
        entry = self.log.append_control(marker)
        ended = self.verification.marked(marker)
        if marker.shard >= 0:
            self.shard_epochs.admit(marker.shard, marker.coordinator_epoch)
        yield from self._stored(entry.header, dies)
        yield from self._refused(ended)

    def do_markers(self, command: Command) -> Iterator[str]:
        markers = []
        for word in command.positional:
            pid, epoch, outcome, serial = word.split(":")
            markers.append(Marker(int(pid), int(epoch), _is_commit((outcome,)), 0, serial=int(serial)))
        for marker, decision in zip(markers, self.partition.decide_markers(markers), strict=True):
            name = f"producer {marker.producer_id} serial {marker.serial}: "
            if isinstance(decision, Refusal):
                yield f"{name}refused {decision.code:d} {decision}"
            elif isinstance(decision, Duplicate):
                yield f"{name}decided before, once {decision.wait_for} is below the high watermark"
            else:
                yield from (name + line for line in self._store_marker(marker))

    def do_shard_fence(self, command: Command) -> Iterator[str]:
        fence = ShardFence(command.number("epoch"), command.number("node"))
        self.partition.decide_control(fence, command.number("writer", fence.shard_epoch))
        yield from self._stored(self.log.append_control(fence).header, "")

    def do_lease(self, command: Command) -> Iterator[str]:
        fence = ProducerFence(command.number("pid"), command.number("epoch"), command.number("until"))
        decided = self.partition.decide_producer_fence(fence)
        yield from self._stored(self.log.append_control(decided).header, "")

    def do_tick(self, command: Command) -> Iterator[str]:
        expiry = self.partition.decide_expiry(command.number("now"))
        if expiry is None:
            yield "nothing is due"
            return
        yield f"expires what was last heard of below offset {expiry.below_offset}"
        yield from self._stored(self.log.append_control(expiry).header, "")

    # --- the coordinator's answers --------------------------------------------------------------------------------

    def do_coordinator(self, command: Command) -> Iterator[str]:
        error = ErrorCode[command.positional[0]] if command.positional else ErrorCode.NONE
        outcome: Outcome[Write] = self.verification.answer(
            Answer(
                command.number("ticket"), error, command.number("shard", 0), command.number("epoch", 0),
                serial=command.number("serial", -1),
            )
        )
        for write in outcome.verified:
            lines = self._verified(write, outcome.serial)
            yield from (f"{write.name}: {line}" for line in lines)
        yield from self._refused(outcome.refused)
        if outcome.question is not None:
            yield _asked(outcome.question)
        if outcome == Outcome():
            yield "no call waits for it"

    def _refused(self, refused: Iterable[tuple[Write, Refusal]]) -> Iterator[str]:
        for write, refusal in refused:
            self.partition.note_refused(write.header)
            yield f"{write.name}: refused {refusal.code:d} {refusal}"

    def _verified(self, write: Write, serial: int) -> Iterator[str]:
        producer_id, producer_epoch = ProducerId(write.header.producer_id), ProducerEpoch(write.header.producer_epoch)
        superseded = self.fencing.gave_way("tx", producer_id, producer_epoch, write.connection)
        if superseded is not None:
            yield f"dropped with its connection: {superseded.reason}"
            return
        context = write.context._replace(verified=True) if write.context != CLIENT else VERIFIED
        try:
            yield from self._append(Write(write.name, write.header, write.values, context, write.now_ms))
            self.partition.name_transaction(write.header.producer_id, serial)
        except Refusal as refusal:
            yield f"refused {refusal.code:d} {refusal}"

    # --- the disk -------------------------------------------------------------------------------------------------

    def do_sync(self, command: Command) -> Iterator[str]:
        self.log.sync()
        waiting, self.waiting = self.waiting, []
        for wait_for, answer in waiting:
            if self.partition.high_watermark > wait_for:
                yield answer
            else:
                self.waiting.append((wait_for, answer))

    def do_crash(self, command: Command) -> Iterator[str]:
        yield from self._crash(command.number("unsynced", 0))

    def _crash(self, kept_unsynced: int) -> Iterator[str]:
        lost = self.log.crash(kept_unsynced)
        self.waiting.clear()
        self.verification.abandon()
        for entry in lost:
            yield f"lost {_span(entry.header.base_offset, entry.header.last_offset)}, which was never acknowledged"
        yield f"the broker died and is back: the log ends at {self.partition.log_end_offset}"

    def do_snapshot(self, command: Command) -> Iterator[str]:
        yield f"snapshot at {self.log.take_snapshot()}"

    def do_truncate(self, command: Command) -> Iterator[str]:
        start = self.log.truncate_to(command.number("offset"))
        yield f"replayed from {start} to {self.partition.log_end_offset}"

    def do_delete_below(self, command: Command) -> Iterator[str]:
        self.partition.advance_log_start(command.number("offset"))
        yield f"the log starts at {self.partition.log_start_offset}"

    # --- what one sees --------------------------------------------------------------------------------------------

    def do_reader(self, command: Command) -> Iterator[str]:
        yield "read_uncommitted: " + _records(self.log.read_uncommitted())
        yield "read_committed:   " + _records(self.log.read_committed())

    def do_aborted(self, command: Command) -> Iterator[str]:
        for entry in self.partition.aborted_transactions(command.number("from"), command.number("to")):
            yield (
                f"producer {entry.producer_id}: {_span(entry.first_offset, entry.last_offset)}, "
                f"last stable offset {entry.last_stable_offset}"
            )

    def do_epoch_end(self, command: Command) -> Iterator[str]:
        epoch, offset = self.partition.leader_epochs.end_offset_of(
            int(command.positional[0]), self.partition.log_end_offset
        )
        yield f"epoch {epoch} ends at {offset}"

    def do_state(self, command: Command) -> Iterator[str]:
        partition = self.partition
        yield (
            f"log {partition.log_start_offset} to {partition.log_end_offset}, high watermark "
            f"{partition.high_watermark}, last stable offset {partition.last_stable_offset}"
            + (f", shard epoch {partition.shard_epoch}" if partition.shard_epoch >= 0 else "")
        )
        for view in partition.describe_producers():
            sequence = "no batch yet" if view.last_sequence < 0 else f"sequence {view.last_sequence}"
            line = f"producer {view.producer_id}: epoch {view.producer_epoch}, {sequence}, {view.record_count} records"
            if view.txn_first_offset >= 0:
                line += f", open since {view.txn_first_offset} with {view.txn_record_count}"
            if view.serial >= 0:
                line += f", decided serial {view.serial}"
            if view.keep_until_ms >= 0:
                line += f", leased until {view.keep_until_ms}"
            yield line


def _condition(command: Command) -> Condition | None:
    if "expected" not in command.arguments and "scope" not in command.arguments:
        return None
    return Condition(command.number("scope", 0), command.number("expected", -1))


def _asked(question: Question) -> str:
    add = "add" if question.add else "check"
    return (
        f"asks the coordinator to {add} it for producer {question.producer_id} epoch {question.producer_epoch} "
        f"(ticket {question.ticket})"
    )


def _is_commit(words: tuple[str, ...]) -> bool:
    if ("commit" in words) == ("abort" in words):
        raise ScriptError("a marker says `commit` or `abort`")
    return "commit" in words


def _span(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def _records(records: list[tuple[int, str]]) -> str:
    return " ".join(f"{offset}={value}" for offset, value in records) or "nothing"
