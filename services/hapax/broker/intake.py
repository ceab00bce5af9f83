"""Clients' writes to one partition whose records have to be looked at, or compressed in another way, before they are
decided on.

They pass one after the other, in the order of their arrival, so that a producer's sequences and the writes of a
connection stay in order; markers pass them. When a write comes out, it is judged as if it came then: to the partition,
it is as if the network had been slower. A write with bad records is refused then too, unless it repeats a stored one.

Work that may take long runs in a thread, for all partitions of a broker in at most `LOOKS_AT_ONCE` at once, since each
may need `MAX_RECORDS_BYTES` and as much again for the places of its records.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from hapax.broker.parked_writes import ParkedWrite
from hapax.codec.batch import Buffer
from hapax.codec.incoming import AS_PRODUCED, CODECS, UNBOUNDED_MS, Rules, prepared
from hapax.core.batch import COMPRESSION_MASK, TRANSACTIONAL, BatchHeader
from hapax.core.control import Control, Marker
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.partition.machine import PartitionMachine
from hapax.core.partition.values import WriteResult
from hapax.core.partition.verification import FIRST_VERSION_THAT_ADDS
from hapax.runtime import supervision
from hapax.runtime.ports import Disk
from hapax.runtime.settings import Settings

LookedAt = tuple[ParkedWrite, Refusal | None]
"""A write as it is to be stored, and what is wrong with its records."""

LOOKS_AT_ONCE: Final = 2
_RECORDS_ON_LOOP: Final = 16
"""A batch with more records, or a compressed one, is looked at in a thread."""
_BYTES_ON_LOOP: Final = 16 << 10


class IntakePartition(Protocol):
    name: str
    machine: PartitionMachine


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    write: ParkedWrite
    header: BatchHeader
    rules: Rules
    now_ms: int
    """When it arrived, by the wall clock."""


class Intake:
    __slots__ = ("_admit", "_disk", "_gate", "_partition", "_queue", "_task", "after_ms", "attentive", "rules")

    def __init__(
        self, partition: IntakePartition, gate: asyncio.Semaphore, disk: Disk,
        admit: Callable[[ParkedWrite, Refusal | None], None],
    ) -> None:
        """`gate`: the broker's. `admit` gets each write once, in order, with what is wrong with its records."""
        self._partition = partition
        self._gate = gate
        self._disk = disk
        self._admit = admit
        self._queue: deque[_Waiting] | None = None
        """None: nothing waits (an empty deque takes 760 bytes in each partition)."""
        self._task: asyncio.Task[None] | None = None
        self.rules = Rules()
        self.after_ms = UNBOUNDED_MS
        """A batch whose header has a later timestamp than this much after now is offered, whatever `attentive` says."""
        self.attentive = False
        """Every batch is to be offered: the topic asks for it, or one waits, which no other may pass."""

    def set_rules(self, rules: Rules) -> None:
        self.rules = rules
        self.after_ms = rules.after_ms
        self._attend()

    def _attend(self) -> None:
        rules = self.rules
        self.attentive = (
            self._queue is not None or rules.keyed or rules.before_ms != UNBOUNDED_MS
            or rules.compression != AS_PRODUCED)

    def takes(self, header: BatchHeader, now_ms: int) -> bool:
        """Whether `take` has to be called with the batch."""
        return self._queue is not None or self.rules.concern(header, now_ms)

    def take(self, write: ParkedWrite, header: BatchHeader, now_ms: int) -> None:
        """The write comes out of it through `admit`, now or later."""
        waiting = _Waiting(write, header, self.rules, now_ms)
        if self._queue is None and _is_quick(waiting):
            self._admit(*_looked_at(waiting))
            return
        if self._queue is None:
            self._queue = deque()
            self._attend()
        self._queue.append(waiting)
        if self._task is None:
            self._start()

    def appended(self, control: Control) -> None:
        """A control record was appended. Of a client without an epoch per transaction, the transactional writes that
        wait belong to the transaction that a marker has ended: it may use their sequences again in its next one, which
        they must not enter (rule 24). Other clients' writes may be those of the next one; their epoch tells. A marker
        without a serial ends a hanging transaction, and says nothing of the open one."""
        if self._queue is None or not isinstance(control, Marker) or control.serial < 0:
            return
        ended = [
            waiting for waiting in self._queue
            if waiting.header.producer_id == control.producer_id and waiting.header.attributes & TRANSACTIONAL
            and waiting.write.produce_version < FIRST_VERSION_THAT_ADDS]
        if not ended:
            return
        for waiting in ended:
            self._queue.remove(waiting)
        if not self._queue:
            self._queue = None
            self._attend()
        for waiting in ended:
            self._admit(waiting.write, Refusal(
                ErrorCode.INVALID_TXN_STATE, "the transaction ended before its batch was looked at"))

    def abandon(self, result: WriteResult) -> None:
        """The leadership is over: every write that waits is answered with `result`."""
        queue, self._queue = self._queue, None
        self._attend()
        for waiting in queue or ():
            self._partition.machine.note_refused(waiting.header)
            waiting.write.call.settle(waiting.write.number, result)

    # --- intent against state (rule 25): for `sweep` ------------------------------------------------------------------

    @property
    def stalled(self) -> bool:
        """Writes wait, and nothing looks at them."""
        return self._queue is not None and (self._task is None or self._task.done())

    def resume(self) -> None:
        if self.stalled:
            self._start()

    # --- in a task of its own, while writes wait ----------------------------------------------------------------------

    def _start(self) -> None:
        self._task = supervision.once(self._run(), "intake", self._partition.name)

    async def _run(self) -> None:
        try:
            while self._queue:
                waiting = self._queue[0]
                try:
                    looked_at = await self._look(waiting)
                except Exception as error:  # whatever a client's bytes may cause, the writes behind them go on
                    supervision.failed("intake", error, self._partition.name)
                    looked_at = waiting.write, Refusal(
                        ErrorCode.UNKNOWN_SERVER_ERROR, "the batch's records could not be looked at")
                if not self._is_next(waiting):
                    continue
                self._queue.popleft()
                if not self._queue:
                    self._queue = None
                    self._attend()
                try:
                    self._admit(*looked_at)
                except Exception as error:  # as where a request fails: whether the batch is stored is not known
                    supervision.failed("intake", error, self._partition.name)
                    waiting.write.call.drop("a write could not be decided on")
        finally:
            self._task = None

    async def _look(self, waiting: _Waiting) -> LookedAt:
        if not waiting.rules.concern(waiting.header, waiting.now_ms):
            return waiting.write, None
        async with self._gate:
            if not self._is_next(waiting):
                return waiting.write, None
            if waiting.write.call.gone:
                # Looks at writes that come again on the next connection would delay that one too, until it is closed.
                return waiting.write, Refusal(ErrorCode.NETWORK_EXCEPTION, "its connection is closed")
            return await self._disk.off_loop(_looked_at, waiting)

    def _is_next(self, waiting: _Waiting) -> bool:
        """False: the leadership or the transaction ended meanwhile, and the call is answered."""
        return self._queue is not None and self._queue[0] is waiting


def _is_quick(waiting: _Waiting) -> bool:
    header, rules = waiting.header, waiting.rules
    return (
        header.record_count <= _RECORDS_ON_LOOP and header.size <= _BYTES_ON_LOOP
        and not header.attributes & COMPRESSION_MASK and rules.compression in (AS_PRODUCED, 0))


def _looked_at(waiting: _Waiting) -> LookedAt:
    write = waiting.write
    batch: Buffer
    try:
        batch, bad = prepared(write.batch, waiting.header, waiting.rules, waiting.now_ms)
    except Refusal as refusal:
        return write, refusal
    return (write if batch is write.batch else write._replace(batch=bytearray(batch))), bad


def rules_of(settings: Settings) -> Rules:
    """`settings` are the topic's (`Settings.for_topic`)."""
    broker_sets_time = settings.log_message_timestamp_type == "LogAppendTime"
    compression = CODECS[settings.compression_type]
    return Rules(
        keyed="compact" in settings.log_cleanup_policy,
        before_ms=UNBOUNDED_MS if broker_sets_time else settings.log_message_timestamp_before_max_ms,
        after_ms=UNBOUNDED_MS if broker_sets_time else settings.log_message_timestamp_after_max_ms,
        compression=compression,
        level={
            1: settings.compression_gzip_level, 3: settings.compression_lz4_level, 4: settings.compression_zstd_level,
        }.get(compression),
    )
