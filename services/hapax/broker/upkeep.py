"""What a broker does by the clock: retention, expiry of producers, compaction, the search for hanging transactions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from hapax.broker.partitions import PartitionSet
from hapax.broker.replica import Replica
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.hashing import shard_of
from hapax.core.partition.machine import OpenTransaction
from hapax.core.types import TopicIdPartition
from hapax.log.durable import SyncFailed
from hapax.rpc.gen.hapax.internal.v1 import common_pb2, coordinator_pb2
from hapax.runtime import supervision, telemetry
from hapax.runtime.cluster import ClusterView, Node
from hapax.runtime.ports import Clock, Network, Randomness, RpcError, Task
from hapax.runtime.settings import Settings

log = telemetry.logger("upkeep")

ABORT_HANGING: Final = "/hapax.internal.v1.TxnCoordinator/AbortHanging"
_EXPIRY_EVERY_S: Final = 10.0
_COMPACTION_EVERY_S: Final = 5.0
_CALL_TIMEOUT_S: Final = 5.0
_ASK_AGAIN_MS: Final = 30_000
_NOBODY_ANSWERED_MS: Final = 3_000
"""A coordinator that leaves a transaction alone is asked again after the one. One that was not there is not waited for
that long: another takes its shard over within seconds."""


class Upkeep:
    """Four clocks, each with a task of its own. `start`, `close`."""

    def __init__(
        self, partitions: PartitionSet, settings: Settings, clock: Clock, random: Randomness, hanging: HangingWatch
    ) -> None:
        self._partitions = partitions
        self._settings = settings
        self._clock = clock
        self._random = random
        self._hanging = hanging
        self._tasks: list[Task] = []

    def start(self) -> None:
        for name, work, interval in (
            ("retention", self.retire, self._settings.log_retention_check_interval_ms / 1000),
            ("expiry", self.expire, _EXPIRY_EVERY_S),
            ("compaction", self.compact, _COMPACTION_EVERY_S),
            ("hanging", self._hanging.look, self._hanging.interval_s),
        ):
            self._tasks.append(supervision.keep(partial(self._repeat, work, interval), name, self._random))

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _repeat(self, work: Callable[[], Awaitable[None]], interval: float) -> None:
        while True:
            await asyncio.sleep(interval * (0.75 + 0.5 * self._random.random()))
            await work()

    async def retire(self) -> None:
        """Retention by time and size."""
        for replica in self._serving():
            with supervision.contained("retention", replica.name):
                try:
                    replica.keeping.retire()
                except OSError as error:  # a full disk may refuse the new segment; the next round tries again
                    log.warning("retention failed", partition=replica.name, error=error)
            await asyncio.sleep(0)

    async def expire(self) -> None:
        """Idle producers; a shard's epoch never expires (rule 1). On the way: the ids in use, for the memory of what
        the store has given out (rule 12). A copy removes what the leader's expiries have forgotten: it may
        never lead, and its table would only grow."""
        for replica in list(self._partitions.replicas.values()):
            with supervision.contained("expiry", replica.name):
                self._expire(replica)
            await asyncio.sleep(0)

    def _expire(self, replica: Replica) -> None:
        if not replica.serving:
            replica.machine.sweep_dead()
            return
        self._partitions.view.seen.saw_producer_id(replica.machine.producers.highest)
        if not replica.storage_error:
            due = replica.machine.decide_expiry(self._clock.now_ms())
            if due is not None:
                try:
                    replica.append_control(due)
                except Refusal as refusal:
                    log.warning("producers were not expired", partition=replica.name, reason=refusal)

    async def compact(self) -> None:
        """Compacted topics, one after the other."""
        for replica in list(self._partitions.replicas.values()):
            if replica.log.config.compact and not replica.storage_error:
                with supervision.contained("compaction", replica.name):
                    await self._compact(replica)

    async def _compact(self, replica: Replica) -> None:
        try:
            done = await replica.keeping.compact()
        except SyncFailed as error:
            self._partitions.shared.committer.failed(error)
            return
        except OSError as error:
            log.warning("compaction failed; trying again later", partition=replica.name, error=error)
            return
        if done is not None:
            log.info(
                "compacted", partition=replica.name, up_to=done.up_to, bytes_before=done.bytes_before,
                bytes_after=done.bytes_after, segments_before=done.segments_before,
                segments_after=done.segments_after,
            )

    def _serving(self) -> list[Replica]:
        return [replica for replica in self._partitions.replicas.values() if replica.serving]


class HangingWatch:
    """Finds transactions that are open past any limit, and has the coordinator end them (design: self-healing).

    A transaction's age counts from when this process first saw it open, by its own clock: the client's time stamps
    are the client's word.
    """

    def __init__(
        self, partitions: PartitionSet, view: ClusterView, network: Network, clock: Clock, settings: Settings
    ) -> None:
        self._partitions = partitions
        self._view = view
        self._network = network
        self._clock = clock
        self._late_after_ms = settings.transaction_max_timeout_ms + settings.transaction_late_after_ms
        self.interval_s = max(0.5, min(10.0, self._late_after_ms / 4000))
        self._seen: dict[tuple[TopicIdPartition, int, int], int] = {}
        """(partition, producer id, first offset) -> when it was first seen, or asked about; monotonic ms."""
        self.late: set[tuple[TopicIdPartition, int, int]] = set()
        """Those that are open past every limit, as of the last look."""

    async def look(self) -> None:
        now = self._clock.monotonic_ms()
        seen: dict[tuple[TopicIdPartition, int, int], int] = {}
        late: list[tuple[Replica, OpenTransaction]] = []
        for replica in self._partitions.replicas.values():
            if not replica.serving or replica.internal:
                continue
            for transaction in replica.machine.open_transactions():
                key = (replica.id, transaction.producer_id, transaction.first_offset)
                since = self._seen.get(key, now)
                if now - since >= self._late_after_ms:
                    late.append((replica, transaction))
                    since = now - self._late_after_ms + _ASK_AGAIN_MS
                seen[key] = since
        self._seen = seen
        asked = {(replica.id, open_.producer_id, open_.first_offset) for replica, open_ in late}
        self.late = asked | self.late & seen.keys()
        for replica, transaction in late:
            log.warning(
                "a transaction hangs; asking its coordinator to abort it", partition=replica.name,
                producer_id=transaction.producer_id, first_offset=transaction.first_offset,
            )
            refusal = None
            with supervision.contained("hanging", replica.name):
                refusal = await self.ask_to_abort(replica, transaction)
            if refusal is not None:
                log.info("the coordinator left it alone", partition=replica.name, reason=refusal)
                if refusal.code is ErrorCode.COORDINATOR_NOT_AVAILABLE:
                    key = (replica.id, transaction.producer_id, transaction.first_offset)
                    seen[key] = now - self._late_after_ms + _NOBODY_ANSWERED_MS

    async def ask_to_abort(self, replica: Replica, transaction: OpenTransaction) -> Refusal | None:
        """None: its abort marker is stored. Else why not; a transaction that is alive is left alone."""
        transactional_id = replica.parked.transactional_ids.get(transaction.producer_id, "")
        owner = self._coordinator(transactional_id)
        if owner is None:
            return Refusal(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the shard has no owner")
        seen = replica.machine.describe_producer(transaction.producer_id)
        request = coordinator_pb2.AbortHangingRequest(
            transactional_id=transactional_id,
            producer_id=transaction.producer_id,
            producer_epoch=transaction.producer_epoch,
            partition=common_pb2.TopicPartition(topic_id=replica.id.topic_id, partition=replica.index),
            first_offset=transaction.first_offset,
            serial=max(0, transaction.serial),
            last_offset=-1 if seen is None else seen.last_offset,
        )
        try:
            answer = await self._network.rpc_channel(owner.rpc_address).call(
                ABORT_HANGING, request.SerializeToString(), _CALL_TIMEOUT_S)
        except RpcError as error:
            return Refusal(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"the coordinator did not answer: {error}")
        response = coordinator_pb2.AbortHangingResponse.FromString(answer)
        return Refusal(ErrorCode(response.error), response.reason) if response.error else None

    def _coordinator(self, transactional_id: str) -> Node | None:
        """The owner of the id's shard; an id that is not known is looked for by the owner of the empty id's."""
        cluster = self._view.cluster
        return None if cluster is None else self._view.txn_shard_owner(shard_of(transactional_id, cluster.txn_shards))
