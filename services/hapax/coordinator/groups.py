"""One shard of the group coordinator: the members of its groups, and committed offsets, plain and in transactions.

Between a decision and its replay, the machine does not know the record yet. This module waits where that matters. While
a producer's marker is being appended, nothing else of that producer is decided: otherwise offsets of a version-1
producer could follow the marker of a transaction that is still open for the machine. Offsets of a group whose commit is
being appended do not expire.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

from hapax.codec.offsets_log import OffsetsLogError, decode_record, encode_key, encode_value
from hapax.coordinator.log_writer import Unit
from hapax.coordinator.members import ClusterTopics, Members
from hapax.coordinator.shard import Shard, ShardResources, SupersededConnection
from hapax.coordinator.sweep import Difference, is_running, timer_in
from hapax.core import control as control_records
from hapax.core.batch import BatchHeader
from hapax.core.control import Control
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.group.machine import GroupShard
from hapax.core.group.offsets import (
    CommittedOffset,
    FetchedOffset,
    MarkerDecision,
    OffsetCommit,
    OffsetKeys,
    OffsetRecord,
    OffsetsMarker,
    TxnOffsetCommit,
)
from hapax.core.group.removals import parts
from hapax.core.group.values import Answer, RemovalAnswer, Request
from hapax.core.transaction.connection_fencing import ConnectionFencing
from hapax.core.types import (
    Millis,
    Now,
    Offset,
    ProducerEpoch,
    ProducerId,
    Serial,
    ShardEpoch,
    ShardId,
    TimestampMs,
    TopicId,
    TopicPartition,
)
from hapax.runtime import supervision, telemetry
from hapax.runtime.group_limits import LimitsOfGroups

log = telemetry.logger("groups")

Codes = Sequence[ErrorCode]


class VerifiesOffsets(Protocol):
    async def verify_offsets(self, request: TxnOffsetCommit, shard: ShardId, add: bool) -> Serial:
        """Asks the transaction's coordinator whether the group shard's partition is part of the producer's open
        transaction. With `add` the question registers it. Raises Refusal."""
        ...


class OffsetsShard(Shard):
    kind = "group"

    def __init__(
        self, resources: ShardResources, shard: ShardId, assigned_epoch: ShardEpoch, verifier: VerifiesOffsets
    ) -> None:
        super().__init__(resources, shard, assigned_epoch)
        self.machine: GroupShard
        self._verifier = verifier
        self._connections = ConnectionFencing()
        self._marking: dict[ProducerId, list[asyncio.Future[None]]] = {}
        """Producers whose marker is being appended -> the calls that wait for it."""
        self._busy: dict[str, dict[asyncio.Future[None], tuple[Sequence[OffsetRecord], bool]]] = {}
        """Group -> its commits that are being appended, and whether they are part of a transaction."""
        self._deleting: set[str] = set()
        """Groups of which offsets are being deleted on request in several appends. A commit stored between two of them
        would lose those of its offsets whose tombstones come later."""
        self.members = Members(self)
        self._expiry: asyncio.TimerHandle | None = None

    # --- commits --------------------------------------------------------------------------------------------------

    async def offset_commit(self, request: OffsetCommit) -> Codes:
        """Returns one error code per offset, once the offsets are durable. Raises Refusal or SupersededConnection (rule
        4)."""
        self.check_serving()
        if self.machine.is_superseded(request):
            self.resources.counters.fencings.labels("older_connection").value += 1
            raise SupersededConnection("the member has committed over a newer connection")
        self._check_takes_commits(request.group_id)
        decision = self.machine.decide_offset_commit(request, self._clocks())
        if decision.records:
            await self._persist(decision.records)
        return decision.errors

    async def txn_offset_commit(self, request: TxnOffsetCommit, connection: int, transaction_version: int) -> Codes:
        """Returns one error code per offset, once the offsets are durable. Raises Refusal or SupersededConnection (rule
        4).
        """
        producer_id, epoch = request.producer_id, request.producer_epoch
        verified: Serial | None = None
        self.check_serving()
        decided = self.machine.last_decided(producer_id)
        while True:
            self.check_serving()
            if producer_id in self._marking:
                await self._marker_stored(producer_id)
                continue
            if verified is None and self.machine.needs_verification(producer_id, epoch):
                verified = await self._verifier.verify_offsets(request, self.shard, transaction_version >= 2)
                continue
            break
        if verified is not None and self.machine.is_decided(producer_id, verified):
            raise Refusal(
                ErrorCode.INVALID_TXN_STATE, f"transaction {verified} was decided while it was being verified"
            )
        self._check_takes_commits(request.group_id)
        decision = self.machine.decide_txn_offset_commit(request, self._clocks())
        if transaction_version < 2:
            superseded = self._connections.admit(request.transactional_id, producer_id, epoch, connection)
            if superseded is not None:
                self.resources.counters.fencings.labels("older_connection").value += 1
                raise SupersededConnection(superseded.reason)
            if self.machine.last_decided(producer_id) > decided:
                # A version-1 client adds the group before it sends offsets, which it can do only after the markers of
                # its last transaction. Offsets that came before a marker belong to the transaction that the marker has
                # ended (rule 24).
                raise Refusal(
                    ErrorCode.INVALID_TXN_STATE, "the transaction was decided while its offsets waited")
        if decision.records:
            await self._persist(decision.records, producer_id, epoch)
        return decision.errors

    def _check_takes_commits(self, group: str) -> None:
        if group in self._deleting:
            raise Refusal(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"offsets of group {group!r} are being deleted")

    def _persist(
        self, records: Sequence[OffsetRecord], producer_id: ProducerId | None = None,
        producer_epoch: ProducerEpoch | None = None,
    ) -> asyncio.Future[None]:
        encoded = [
            (encode_key(record), None if record.value is None else encode_value(record)) for record in records
        ]
        waiter = self.waiter()
        groups = {record.group: None for record in records}
        for group in groups:
            self._busy.setdefault(group, {})[waiter] = records, producer_id is not None

        def settled() -> None:
            for group in groups:
                del self._busy[group][waiter]
                if not self._busy[group]:
                    del self._busy[group]

        def stored(offset: int) -> None:
            settled()
            self._replay(records, offset, producer_id, producer_epoch)
            self.resources.counters.offsets.value += len(records)
            if not waiter.done():
                waiter.set_result(None)

        def refused(code: ErrorCode, reason: str) -> None:
            settled()
            if not waiter.done():
                waiter.set_exception(Refusal(_refused_commit(code), reason))
                waiter.exception()

        self.append(Unit(
            encoded, stored, refused, producer_id=-1 if producer_id is None else producer_id,
            producer_epoch=-1 if producer_epoch is None else producer_epoch,
        ))
        return waiter

    def _replay(
        self, records: Sequence[OffsetRecord], offset: int, producer_id: ProducerId | None,
        producer_epoch: ProducerEpoch | None,
    ) -> None:
        for number, record in enumerate(records):
            if producer_id is None or producer_epoch is None:
                self.machine.replay_offset(record, Offset(offset + number))
            else:
                self.machine.replay_txn_offset(record, Offset(offset + number), producer_id, producer_epoch)

    async def delete_offsets(self, group: str, partitions: Sequence[TopicPartition] | None) -> int:
        """Deletes some of a group's offsets, or with None all of them and the group. Returns the number of deleted
        offsets, once the deletion is durable. Raises Refusal."""
        if partitions is None:
            return await self._delete_with_offsets(group)
        self.check_serving()
        async with self._confirming_refusals():
            tombstones = self.machine.decide_removal(group, partitions, self._storing(group))
            if not self._storing(group, in_transactions=True).isdisjoint(partitions):
                raise Refusal(ErrorCode.UNSTABLE_OFFSET_COMMIT, "an offset of an open transaction is being stored")
        return await self._delete(
            group, tombstones, lambda chosen: self.machine.decide_removal(group, chosen, self._storing(group)))

    async def _delete_with_offsets(self, group: str) -> int:
        self.check_serving()
        async with self._confirming_refusals():
            self.machine.check_stable(group)
        deleted, _ = self.machine.counts(group)
        code = await self.delete_group(group)
        if code is not ErrorCode.NONE:
            raise Refusal(code)
        return deleted

    async def delete_group_offsets(self, group: str, partitions: Sequence[TopicPartition]) -> Codes:
        """Carries out OffsetDelete. Returns one error code per partition, once the deletion is durable. Raises
        Refusal."""
        self.check_serving()
        async with self._confirming_refusals():
            tombstones, codes = self.machine.decide_offsets_deletion(group, partitions, self._storing(group))
        answered = dict(zip(partitions, codes, strict=True))

        def decide(chosen: Sequence[TopicPartition]) -> Sequence[OffsetRecord]:
            decided, codes = self.machine.decide_offsets_deletion(group, chosen, self._storing(group))
            answered.update(zip(chosen, codes, strict=True))
            return decided

        await self._delete(group, tombstones, decide)
        return [answered[each] for each in partitions]

    def _storing(self, group: str, *, in_transactions: bool = False) -> set[TopicPartition]:
        """Partitions of the group's commits that are being appended: of all, or only of those in transactions."""
        return {
            record.partition for records, in_transaction in self._busy.get(group, {}).values()
            if in_transaction or not in_transactions for record in records if record.group == group
        }

    async def _delete(
        self, group: str, tombstones: Sequence[OffsetRecord],
        decide: Callable[[Sequence[TopicPartition]], Sequence[OffsetRecord]],
    ) -> int:
        """Returns the number of deleted offsets. Each append is decided once the last is replayed, because the group
        may have members by now: their offsets stay. Raises Refusal: 14 if there have to be several appends and offsets
        of the group are being stored or deleted."""
        deleted = 0
        appends = list(parts(tombstones))
        several = len(appends) > 1
        if several:
            if group in self._busy or group in self._deleting:
                raise Refusal(
                    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"offsets of group {group!r} are being stored or deleted")
            self._deleting.add(group)
        try:
            for part in appends:
                self.check_serving()
                decided = decide([each.partition for each in part])
                if decided:
                    await self._persist(decided)
                deleted += len(decided)
        finally:
            if several:
                self._deleting.discard(group)
        if deleted:
            log.info("offsets deleted on request", shard=self.shard, group=group, offsets=deleted)
        else:
            await self.confirm()
        return deleted

    @asynccontextmanager
    async def _confirming_refusals(self) -> AsyncIterator[None]:
        """Confirms a refusal too: a caller that gets "no such group" concludes that its offsets are gone."""
        try:
            yield
        except Refusal:
            await self.confirm()
            raise

    # --- members --------------------------------------------------------------------------------------------------

    async def ask(self, request: Request) -> Answer:
        """Answers a member's call. A JoinGroup waits for the group's other members. Raises Refusal if the shard stops
        before the answer."""
        self.check_serving()
        return await self.members.ask(self.machine.memberships.call, request)

    def begin(self, request: Request) -> Answer | Awaitable[Answer]:
        """Like `ask`, but without a task if the answer is available at once."""
        self.check_serving()
        return self.members.begin(self.machine.memberships.call, request)

    async def delete_group(self, group: str) -> ErrorCode:
        """Returns once the deletion is durable. Raises Refusal: 14 while offsets of the group are being stored, because
        it would delete only those of them whose partitions have had an offset before."""
        self.check_serving()
        if group in self._busy:
            raise Refusal(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"offsets of group {group!r} are being stored")
        async with self._confirming_refusals():
            answer = await self.members.ask(self.machine.delete_group, group)
        assert isinstance(answer, RemovalAnswer)
        return answer.error

    # --- markers --------------------------------------------------------------------------------------------------

    async def write_marker(self, marker: OffsetsMarker, txn_shard: int) -> ErrorCode:
        """Returns once the marker is in the log and replayed (rule 2), or at once if it was replayed before."""
        try:
            while True:
                self.check_serving()
                if marker.producer_id not in self._marking:
                    break
                await self._marker_stored(marker.producer_id)
            if self.machine.decide_marker(marker) is MarkerDecision.DUPLICATE:
                return ErrorCode.NONE
            await self._append_marker(marker, txn_shard)
        except Refusal as refusal:
            return refusal.code
        return ErrorCode.NONE

    def _append_marker(self, marker: OffsetsMarker, txn_shard: int) -> asyncio.Future[None]:
        waiter = self.waiter()
        self._marking[marker.producer_id] = []

        def stored(offset: int) -> None:
            # -1: the partition's leader already had the marker, and a transaction that is open here began after it.
            if offset >= 0:
                self.machine.replay_marker(marker, TimestampMs(unit.timestamp_ms))
            self._marked(marker.producer_id)
            if not waiter.done():
                waiter.set_result(None)

        def refused(code: ErrorCode, reason: str) -> None:
            self._marked(marker.producer_id)
            if not waiter.done():
                waiter.set_exception(Refusal(code, reason))
                waiter.exception()

        unit = Unit((), stored, refused, control=control_records.Marker(
            marker.producer_id, marker.producer_epoch, marker.commit, marker.coordinator_epoch, marker.serial,
            txn_shard,
        ))
        self.append(unit)
        return waiter

    async def _marker_stored(self, producer_id: ProducerId) -> None:
        waiter = self.waiter()
        self._marking[producer_id].append(waiter)
        await waiter

    def _marked(self, producer_id: ProducerId) -> None:
        for waiter in self._marking.pop(producer_id, ()):
            if not waiter.done():
                waiter.set_result(None)

    # --- fetching -------------------------------------------------------------------------------------------------

    async def offset_fetch(
        self, group: str, partitions: Sequence[TopicPartition] | None, require_stable: bool, member_id: str = "",
        member_epoch: int = -1,
    ) -> list[FetchedOffset]:
        """The partition's leader confirms the answer after this call began (rule 12). An owner that was replaced
        without noticing would make the consumer process again the records whose offsets were committed since. Raises
        Refusal."""
        await self.confirm()
        self.machine.check_fetch(group, member_id, member_epoch)
        return [self._of_living_topic(found) for found in self.machine.fetch(group, partitions, require_stable)]

    def _of_living_topic(self, found: FetchedOffset) -> FetchedOffset:
        """Hides an offset of a topic that was deleted and created again. Its tombstone may not be written yet."""
        committed: CommittedOffset | None = found.committed
        if committed is None or not any(committed.topic_id):
            return found
        topic = self.resources.view.topic(found.partition.topic)
        if topic is not None and topic.topic_id != committed.topic_id:
            return found._replace(committed=None)
        return found

    # --- life -----------------------------------------------------------------------------------------------------

    def topics_deleted(self, topic_ids: Collection[TopicId]) -> None:
        """Called when topics are deleted: deletes their offsets."""
        if self.serving:
            self._remove_offsets_of(topic_ids)

    def _begin_load(self) -> None:
        settings = self.resources.settings
        self.machine = GroupShard(
            max_metadata_bytes=settings.offset_metadata_max_bytes,
            retention_ms=settings.offsets_retention_minutes * 60_000,
            limits_of=LimitsOfGroups(self.resources.view, settings),
            topics=ClusterTopics(self.resources.view),
            newest_connection=self.resources.newest_connection(),
        )
        self._connections = ConnectionFencing(self.resources.newest_connection())

    def _replay_record(self, header: BatchHeader, offset: int, key: bytes, value: bytes | None) -> None:
        try:
            record = decode_record(key, value)
        except OffsetsLogError as error:
            log.error("a record cannot be read and is skipped", shard=self.shard, offset=offset, error=error)
            return
        if isinstance(record, OffsetRecord):
            transactional = header.is_transactional
            self._replay(
                (record,), offset, ProducerId(header.producer_id) if transactional else None,
                ProducerEpoch(header.producer_epoch) if transactional else None,
            )
        elif record is not None:
            self.machine.memberships.replay(record)

    def _replay_control(self, header: BatchHeader, control: Control) -> None:
        if isinstance(control, control_records.Marker):
            self.machine.replay_marker(
                OffsetsMarker(
                    ProducerId(control.producer_id), ProducerEpoch(control.producer_epoch), control.commit,
                    control.coordinator_epoch, Serial(control.serial),
                ),
                TimestampMs(header.max_timestamp),
            )

    def _loaded(self) -> None:
        self._remove_offsets_of_deleted_topics()
        self.machine.loaded()
        self.members.loaded()
        self._expire_later()

    def _stopped(self) -> None:
        self._marking.clear()
        self._busy.clear()
        self.members.stopped()
        if self._expiry is not None:
            self._expiry.cancel()

    # --- intent against state (rule 25): for `sweep` ------------------------------------------------------------------

    def differences(self) -> list[Difference]:
        """Activities that should be under way now, and are not."""
        now = asyncio.get_running_loop().time()
        found = [] if is_running(self._expiry, now) else [Difference("expiry_timer", "", 0)]
        return found if self.members.is_armed(now) else [*found, Difference("group_deadline", "", 0)]

    def correct(self, difference: Difference) -> bool:
        if difference.kind == "group_deadline":
            self.members.arm()
        else:
            self._expire_later()
        return True

    def _expire_later(self) -> None:
        interval = self.resources.settings.offsets_retention_check_interval_ms / 1000
        delay = interval * (0.5 + self.resources.random.random())
        self._expiry = timer_in(delay, self._expire)

    def _expire(self) -> None:
        with supervision.contained("offsets-expiry", self.shard):
            self._remove(lambda among: self.machine.decide_expiry(self._now(), self._busy, among))
            # Some may have been stored, or committed by their transaction, after their topic was deleted.
            self._remove_offsets_of_deleted_topics()
            self.members.carry_out(self.machine.expire_groups())
        self._expire_later()

    def _remove_offsets_of_deleted_topics(self) -> None:
        deleted = [
            topic_id for topic_id in self.machine.topic_ids() if self.resources.view.is_deleted(topic_id)
        ]
        if deleted:
            self._remove_offsets_of(deleted)

    def _remove_offsets_of(self, topic_ids: Collection[TopicId]) -> None:
        self._remove(lambda among: self.machine.decide_topic_removal(topic_ids, self._busy, among))

    def _remove(self, decide: Callable[[OffsetKeys | None], Sequence[OffsetRecord]]) -> None:
        """Removes what `decide` names, in several appends. The next one is decided once the last is replayed, because
        an offset may have been committed again meanwhile."""
        tombstones = decide(None)
        if tombstones:
            log.info("offsets are removed", shard=self.shard, offsets=len(tombstones))
            first, *others = parts(tombstones)
            supervision.once(self._remove_others(self._persist(first), others, decide), "offsets-removal", self.shard)

    async def _remove_others(
        self, stored: Awaitable[None], others: Sequence[Sequence[OffsetRecord]],
        decide: Callable[[OffsetKeys | None], Sequence[OffsetRecord]],
    ) -> None:
        machine = self.machine
        try:
            await stored
            for part in others:
                if not self.serving or self.machine is not machine:
                    return
                tombstones = decide({(record.group, record.partition): None for record in part})
                if tombstones:
                    await self._persist(tombstones)
        except Refusal as refusal:  # what is left is removed at the next expiry
            log.warning("offsets were not removed", shard=self.shard, reason=refusal.reason)

    def _clocks(self) -> Now:
        clock = self.resources.clock
        return Now(Millis(clock.monotonic_ms()), TimestampMs(clock.now_ms()))

    def _now(self) -> TimestampMs:
        return TimestampMs(self.resources.clock.now_ms())


def _refused_commit(code: ErrorCode) -> ErrorCode:
    """Translates the log's refusal of a client's offsets, as Kafka does."""
    if code in (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE):
        return ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    return code
