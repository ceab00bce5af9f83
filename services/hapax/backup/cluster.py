"""The calls to the cluster that is backed up, or restored into."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Any
from uuid import UUID

from hapax.client.admin import TopicInfo
from hapax.client.errors import FatalError, HapaxError, RetriableError, from_code
from hapax.client.identities import Identities
from hapax.client.leaders import by_node
from hapax.client.raw_fetch import RawFetch, fetch_raw
from hapax.codec.batch import iterate_batches
from hapax.codec.metadata import INTERNAL_TOPICS
from hapax.core.batch import BatchHeader
from hapax.core.errors import ErrorCode
from hapax.core.types import TopicPartition
from hapax.rpc.gen.hapax.v1 import restore_pb2 as pb
from hapax.runtime.ports import RpcError
from hapax.wire import messages

_FETCH_BYTES = 4 << 20
CALL_BYTES = 3 << 20
"""Of batches in one call. Public calls carry at most 4 MiB."""
RESTORE = "/hapax.v1.Restore/"


class LogStartMoved(Exception):
    """Retention has deleted records that were to be read. The log begins at `first` now."""

    def __init__(self, first: int) -> None:
        super().__init__(f"the log begins at {first}")
        self.first = first


class BackedUpCluster(Identities):
    """An admin client that also reads whole logs and fills empty ones. Raises HapaxError."""

    @property
    def cluster_id(self) -> str:
        return self._cluster.cluster_id or ""

    async def batches(
        self, partition: TopicPartition, topic_id: str, start: int, end: int
    ) -> AsyncIterator[tuple[memoryview, BatchHeader]]:
        """Every batch from `start` to below `end`, which is committed. Raises LogStartMoved."""
        offset = start

        async def attempt() -> RawFetch:
            found = await fetch_raw(
                self._cluster, partition, offset, committed=False, max_bytes=_FETCH_BYTES, timeout_ms=self._timeout,
                topic_id=topic_id)
            if not found.data and found.high_watermark < end:  # a new leader learns it from its followers
                raise RetriableError(
                    f"{partition.topic}-{partition.partition} ends at {found.high_watermark} now, not at {end}: an "
                    "unclean election has lost records", advice="Take the backup again")
            return found

        while offset < end:
            try:
                fetched = await self._cluster.within(
                    self._timeout, f"reading {partition.topic}-{partition.partition}", attempt)
            except FatalError as error:
                if error.code != ErrorCode.OFFSET_OUT_OF_RANGE:
                    raise
                first = (await self.partition_offsets([partition]))[partition].first
                if first <= offset:
                    raise
                raise LogStartMoved(first) from None
            view = memoryview(fetched.data)
            before = offset
            for position, header in iterate_batches(fetched.data):
                if header.base_offset >= end:
                    return
                if header.next_offset <= offset:
                    continue
                yield view[position : position + header.size], header
                offset = header.next_offset
            if offset == before:
                return  # compaction has removed the rest

    async def topics_by_kind(self) -> tuple[list[TopicInfo], list[TopicInfo]]:
        """(clients' topics, internal topics), all that have acknowledged records."""
        found = await self.list_newest_topics()
        return [t for t in found if t.name not in INTERNAL_TOPICS], [t for t in found if t.name in INTERNAL_TOPICS]

    async def topic_ids(self, names: Iterable[str]) -> dict[str, str]:
        """Waits until each of the topics is named: the only nodes that knew a new one may have ended. Raises HapaxError
        where one was deleted."""
        wanted = list(names)

        async def attempt() -> dict[str, str]:
            ids = {each.name: each.topic_id for each in (await self.topics_by_kind())[0]}
            lacking = [name for name in wanted if name not in ids]
            if lacking:
                raise RetriableError(
                    f"the cluster does not name the topic {lacking[0]!r}, which this restore has created",
                    code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    advice="Delete no topic while a restore runs. Run the restore again")
            return ids

        return await self._cluster.within(self._timeout, "waiting for the restored topics", attempt)

    async def users(self) -> tuple[tuple[str, str], ...]:
        """(name, SCRAM mechanism) of each user who has a password."""
        return tuple((each.user, each.mechanism.sasl_name) for each in await self.describe_user_scram_credentials())

    # --- restore --------------------------------------------------------------------------------------------------

    async def import_batches(
        self, partition: TopicPartition, topic_id: str, first: int, batches: bytes
    ) -> pb.ImportBatchesResponse:
        parts = [
            pb.ImportBatchesRequest(
                topic_id=UUID(topic_id).bytes, partition=partition.partition, first_offset=first,
                batches=batches[position : position + CALL_BYTES], position=position,
                size=len(batches) if len(batches) > CALL_BYTES else 0)
            for position in range(0, max(1, len(batches)), CALL_BYTES)]
        what = f"restoring {partition.topic}-{partition.partition}"

        async def attempt() -> pb.ImportBatchesResponse:
            await self._cluster.topic(partition.topic, self._timeout)
            leader = self._cluster.leader(partition)
            address = None if leader is None else await self._cluster.rpc_address(leader.node_id)
            if address is None:
                self._cluster.refresh_soon()
                raise from_code(ErrorCode.LEADER_NOT_AVAILABLE, what)
            for part in parts:
                try:
                    answer = pb.ImportBatchesResponse.FromString(await self._call(address, "ImportBatches", part))
                except RpcError:
                    self._cluster.refresh_soon()
                    raise
                if answer.error:
                    self._cluster.refresh_soon()
                    raise from_code(answer.error, what, answer.reason)
            return answer

        return await self._cluster.within(self._timeout, what, attempt)

    async def delete_records(self, partition: TopicPartition, below: int) -> None:
        """Deletes the records below an offset."""
        Message = messages.DeleteRecordsRequest
        Topic = Message.DeleteRecordsTopic
        what = f"deleting the records of {partition.topic}-{partition.partition} below {below}"

        async def attempt() -> None:
            await self._cluster.topic(partition.topic, self._timeout)
            (node,) = by_node(self._cluster, [partition])
            answer = await (await self._cluster.peer(node)).call(Message(
                timeout_ms=self._options["request.timeout.ms"], topics=[Topic(name=partition.topic, partitions=[
                    Topic.DeleteRecordsPartition(partition_index=partition.partition, offset=below)])]))
            code = answer.topics[0].partitions[0].error_code
            if code:
                self._cluster.refresh_soon()
                raise from_code(code, what)

        await self._cluster.within(self._timeout, what, attempt)

    async def import_transactional_id(self, transactional_id: str, record: bytes, floor: int) -> None:
        request = pb.ImportTransactionalIdRequest(
            transactional_id=transactional_id, record=record, producer_id_floor=floor)
        what = f"restoring transactional id {transactional_id!r}"

        async def attempt() -> None:
            node = await self._cluster.coordinator("transaction", transactional_id)
            address = await self._cluster.rpc_address(node)
            try:
                if address is None:
                    raise from_code(ErrorCode.COORDINATOR_NOT_AVAILABLE, what)
                answer = pb.ImportTransactionalIdResponse.FromString(
                    await self._call(address, "ImportTransactionalId", request))
                if answer.error:
                    raise from_code(answer.error, what, answer.reason)
            except (RpcError, RetriableError):
                self._cluster.forget_coordinator("transaction", transactional_id)
                raise

        await self._cluster.within(self._timeout, what, attempt)

    async def reserve_producer_ids(self, floor: int) -> None:
        await self._of_allocator("ReserveProducerIds", pb.ReserveProducerIdsRequest(producer_id_floor=floor),
                                 pb.ReserveProducerIdsResponse, "reserving producer ids")

    async def import_lease(self, request: pb.ImportLeaseRequest) -> None:
        await self._of_allocator("ImportLease", request, pb.ImportLeaseResponse, f"restoring lease {request.name!r}")

    async def note_backup(self, backup: str, *, restored: bool) -> str:
        """Records an event in the cluster. Returns why it could not be recorded, or "". It is not needed for a backup,
        whose user may have no right to it."""
        try:
            await self._of_allocator(
                "NoteBackup", pb.NoteBackupRequest(backup=backup, restored=restored), pb.NoteBackupResponse,
                "recording the event of a backup")
        except HapaxError as error:
            return error.message
        return ""

    async def _of_allocator(self, method: str, request: Any, kind: Any, what: str) -> None:
        async def attempt() -> None:
            _, address = await self._cluster.rpc_addresses(fresh=True)
            if address is None:
                raise from_code(ErrorCode.COORDINATOR_NOT_AVAILABLE, what, "no allocator of producer ids is alive")
            answer = kind.FromString(await self._call(address, method, request))
            if getattr(answer, "error", 0):
                raise from_code(answer.error, what, answer.reason)

        await self._cluster.within(self._timeout, what, attempt)

    async def _call(self, address: str, method: str, request: Any) -> bytes:
        return await self._cluster.channel(address).call(
            RESTORE + method, request.SerializeToString(), self._options["request.timeout.ms"] / 1000)

    async def end_restoring(self, topics: list[str]) -> None:
        """Opens the topics to clients."""
        from hapax.rpc.gen.hapax.v1 import cluster_admin_pb2 as admin_pb

        request = admin_pb.AlterTopicConfigsRequest(changes=[
            admin_pb.TopicConfigChange(topic=name, reset=["restoring"]) for name in topics])

        async def attempt() -> None:
            answer = admin_pb.AlterTopicConfigsResponse.FromString(
                await self._controller_rpc("AlterTopicConfigs", request))
            for result in answer.topics:
                if result.error:
                    raise from_code(result.error, "opening the restored topics", result.reason)

        await self._cluster.within(self._timeout, "opening the restored topics", attempt)
