"""The life of one owned shard: taken over, serving, released. It is the same for both kinds of coordinator.

    take-over: append the fence of this epoch  ->  read and replay the log through the fence  ->  serve
    lost:      an append has an unknown outcome  ->  take over again, under the next epoch
    fenced:    the log holds a higher epoch  ->  the shard has another owner; the metadata will say so
    released:  the metadata names another owner

A shard's epoch has two parts. The high bits are the epoch that the controller assigned, which rises with every change
of owner. The low `INCARNATION_BITS` count the owner's take-overs. So an owner that no longer knows what its log holds
can fence itself and start again without the metadata store, and every later owner has a higher epoch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from hapax.codec.control import decode_control
from hapax.codec.internal_records import decode_batch
from hapax.codec.metadata import OFFSETS_TOPIC, TXN_STATE_TOPIC, ShardKind
from hapax.coordinator.log_reader import LogReader, LogUnreadable
from hapax.coordinator.log_writer import LogWriter, ShardLog, Unit
from hapax.coordinator.metrics import Counters
from hapax.core.batch import BatchHeader
from hapax.core.control import Control
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.types import NodeId, PartitionIndex, ShardEpoch, ShardId, TopicId
from hapax.runtime import supervision, telemetry
from hapax.runtime.access import Access
from hapax.runtime.cluster import ClusterView
from hapax.runtime.ports import Clock, Randomness, Task
from hapax.runtime.settings import Settings

log = telemetry.logger("shard")

TOPIC_OF: Final[dict[ShardKind, str]] = {"txn": TXN_STATE_TOPIC, "group": OFFSETS_TOPIC}

INCARNATION_BITS: Final = 12
_LAST_INCARNATION: Final = (1 << INCARNATION_BITS) - 1

SLICE: Final = 256
"""Records replayed in one turn of the loop while a shard loads."""
_RETRY_FIRST_S: Final = 0.02
_RETRY_MAX_S: Final = 1.0
_STEADY_S: Final = 5.0
"""A shard that is lost again sooner than this, in seconds, after it began to serve waits longer each time."""


def fencing_epoch(assigned: int, incarnation: int) -> ShardEpoch:
    return ShardEpoch(assigned << INCARNATION_BITS | incarnation)


@dataclass(frozen=True, slots=True)
class ShardResources:
    """The parts that the shards of a process share."""

    node_id: NodeId
    settings: Settings
    clock: Clock
    random: Randomness
    view: ClusterView
    writer: LogWriter
    reader: LogReader
    counters: Counters
    newest_connection: Callable[[], int]
    """The highest serial of this process's client connections (rule 4)."""
    on_fault: Callable[[BaseException], None]
    """Called for a bug in this program: the process must end, because the state of a shard is unknown."""
    access: Access | None = None
    """None: the cluster has no authoriser."""


class SupersededConnection(Exception):
    """The caller's connection must be closed without an answer (rule 4)."""


class Shard:
    """Base class of both kinds. Subclasses hold the state machine. The methods at the end tell them what happens to the
    shard."""

    kind: ShardKind

    def __init__(self, resources: ShardResources, shard: ShardId, assigned_epoch: ShardEpoch) -> None:
        self.resources: Final = resources
        self.shard: Final = shard
        self.assigned_epoch: Final = assigned_epoch
        self.epoch = fencing_epoch(assigned_epoch, 0)
        self.serving = False
        self.released = False
        self.loaded_records = 0
        self.log: ShardLog | None = None
        self._incarnation = 0
        self._lost = asyncio.Event()
        self._waiting: dict[asyncio.Future[None], None] = {}
        self._task: Task | None = None

    # --- life -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._task = supervision.vital(self._live(), f"{self.kind}-shard", self._failed, self.shard)

    def release(self, reason: str) -> None:
        """The shard has another owner, or the process ends. Every waiting call is refused."""
        if self.released:
            return
        self.released = True
        if self._task is not None:
            self._task.cancel()
        self._stop(ErrorCode.NOT_COORDINATOR, reason)

    def _failed(self, error: BaseException) -> None:
        """A shard's task ends by its release. Any other end is a bug in this program."""
        self.release("the shard failed")
        self.resources.on_fault(error)

    async def drained(self) -> None:
        """Returns when no call waits for the log."""
        while self.serving and self._waiting:
            await asyncio.wait(list(self._waiting))

    async def _live(self) -> None:
        delay = _RETRY_FIRST_S
        while not self.released:
            self._lost.clear()
            try:
                await self._take_over()
            except (LogUnreadable, Refusal) as error:
                log.info("take-over failed, trying again", kind=self.kind, shard=self.shard, reason=error)
                self._close_log()
                await asyncio.sleep(delay * (0.5 + self.resources.random.random()))
                delay = min(2 * delay, _RETRY_MAX_S)
                continue
            served_since = asyncio.get_running_loop().time()
            await self._lost.wait()
            if asyncio.get_running_loop().time() - served_since > _STEADY_S:
                delay = _RETRY_FIRST_S
            else:
                await asyncio.sleep(delay * (0.5 + self.resources.random.random()))
                delay = min(2 * delay, _RETRY_MAX_S)
            if self._incarnation == _LAST_INCARNATION:
                log.error("shard was lost too often under one epoch, waiting for another", kind=self.kind,
                          shard=self.shard)
                self.release("its epochs are used up")
                return
            self._incarnation += 1
            self.epoch = fencing_epoch(self.assigned_epoch, self._incarnation)

    async def _take_over(self) -> None:
        loop = asyncio.get_running_loop()
        topic_id = await self._topic()
        partition = PartitionIndex(self.shard)
        await self.resources.view.wait_for(lambda view: view.leader_of(topic_id, partition) is not None)
        began = loop.time()
        fenced_at: asyncio.Future[int] = loop.create_future()

        def lost(reason: str) -> None:
            if not fenced_at.done():
                fenced_at.set_exception(LogUnreadable(reason))
                return
            self._on_lost(reason)

        self.log = self.resources.writer.open(topic_id, partition, self.epoch, lost=lost, fenced=self._on_fenced)
        self.log.fence(self.resources.node_id, fenced_at.set_result)
        fence = await fenced_at
        self._begin_load()
        self.loaded_records = 0
        async for data, position, header in self.resources.reader.read(topic_id, partition, fence):
            if header.is_control:
                self._replay_control(header, decode_control(data, header, position))
                continue
            for offset, key, value in decode_batch(data, header, position):
                self._replay_record(header, offset, key, value)
                self.loaded_records += 1
                if self.loaded_records % SLICE == 0:
                    await asyncio.sleep(0)
        await self._finish_load()
        if self.log.closed:
            raise LogUnreadable("lost again while it loaded")
        self.serving = True
        self.resources.counters.load_seconds.observe(loop.time() - began)
        self._loaded()
        log.debug("serving", kind=self.kind, shard=self.shard, epoch=self.epoch, records=self.loaded_records,
                 ms=round((loop.time() - began) * 1000))

    async def _topic(self) -> TopicId:
        name = TOPIC_OF[self.kind]
        topic = await self.resources.view.wait_for(lambda view: view.topic(name))
        assert topic is not None
        return topic.topic_id

    def _on_lost(self, reason: str) -> None:
        log.warning("lost, loading it again", kind=self.kind, shard=self.shard, epoch=self.epoch, reason=reason)
        self.resources.counters.shards_lost.value += 1
        self._stop(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "the shard is being loaded again")
        self._lost.set()

    def _on_fenced(self, reason: str) -> None:
        self.resources.counters.fencings.labels("shard_taken").value += 1
        log.warning("another node owns the shard", kind=self.kind, shard=self.shard, epoch=self.epoch, reason=reason)
        self.release("another node owns the shard")

    def _stop(self, code: ErrorCode, reason: str) -> None:
        was_serving, self.serving = self.serving, False
        self._close_log()
        if was_serving:
            self._stopped()
        waiting, self._waiting = self._waiting, {}
        for waiter in waiting:
            if not waiter.done():
                waiter.set_exception(Refusal(code, reason))
                waiter.exception()

    def _close_log(self) -> None:
        if self.log is not None:
            self.log.close()

    # --- for subclasses: what a request does -----------------------------------------------------------------------

    def check_serving(self) -> None:
        """Raises Refusal: NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS."""
        if self.released:
            raise Refusal(ErrorCode.NOT_COORDINATOR)
        if not self.serving:
            raise Refusal(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)

    def waiter(self) -> asyncio.Future[None]:
        """A future that fails, at the latest when the shard stops, with a Refusal that tells the client what to do."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[future] = None
        future.add_done_callback(self._forget)
        return future

    def _forget(self, future: asyncio.Future[None]) -> None:
        self._waiting.pop(future, None)

    def append(self, unit: Unit) -> None:
        assert self.log is not None
        self.log.append(unit)

    async def confirm(self) -> None:
        """Returns if no other owner had taken over when this was called (rules 12 and 23). Raises Refusal."""
        self.check_serving()
        assert self.log is not None
        await self.log.confirm()
        self.check_serving()

    # --- what subclasses implement ---------------------------------------------------------------------------------

    def _begin_load(self) -> None:
        """Makes an empty machine."""
        raise NotImplementedError

    def _replay_record(self, header: BatchHeader, offset: int, key: bytes, value: bytes | None) -> None:
        raise NotImplementedError

    def _replay_control(self, header: BatchHeader, control: Control) -> None:
        raise NotImplementedError

    async def _finish_load(self) -> None:
        """Called when the log is read to its end."""

    def _loaded(self) -> None:
        """Called when the shard begins to serve."""
        raise NotImplementedError

    def _stopped(self) -> None:
        """Called when the shard no longer serves: ends timers. The caller refuses the waiting calls."""
        raise NotImplementedError
