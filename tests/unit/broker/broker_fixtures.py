"""One partition on a real folder, with a disk that can be told to fail."""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from hapax.broker.commit import Committer
from hapax.broker.copying import LeaderSnapshot
from hapax.broker.fetcher import FetcherContext, Fetchers
from hapax.broker.opening import open_replica
from hapax.broker.replica import Replica
from hapax.broker.replica_context import ReplicaContext
from hapax.broker.storage import StorageGuard
from hapax.broker.throttle import Throttle
from hapax.broker.waiters import NO_TIMEOUT_MS
from hapax.codec.batch import iterate_batches, read_header
from hapax.codec.records import encode_records
from hapax.core.batch import BatchHeader
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.partition.values import Condition, WriteResult
from hapax.core.partition.verification import Answer, Question, ShardEpochs
from hapax.core.types import NodeId, PartitionIndex, TopicId, TopicIdPartition
from hapax.log.config import LogConfig
from hapax.log.layout import PARTITION_METADATA, encode_partition_metadata
from hapax.log.segment_log import SegmentLog
from hapax.runtime.cluster import ClusterView
from hapax.runtime.disk import RealDisk, RealFile
from hapax.runtime.network import TcpNetwork
from hapax.runtime.ports import Folder, OpenFolder
from hapax.runtime.registration import Registration
from hapax.runtime.settings import Settings

FOLDER = "t-0"
TOPIC_ID = TopicId(bytes(range(16)))


class FaultyFile:
    """A file of the real disk, except for what the disk is told to fail."""

    def __init__(self, file: RealFile, disk: FaultyDisk) -> None:
        self._file = file
        self._disk = disk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def append(self, chunks: Sequence[bytes]) -> int:
        if self._disk.full or self._disk.broken:
            self._file.append([bytes(chunks[0][:10])])  # a torn tail
            self._file._size -= 10
            raise OSError(errno.ENOSPC if self._disk.full else errno.EIO, "No space left on device")
        return self._file.append(chunks)

    async def sync(self) -> None:
        await self._disk.sync_files([self])


class FaultyDisk:
    """`ports.Disk` on a real folder. `full`, `broken`: writes fail; `sync_fails`; `hold_syncs` until `release`."""

    def __init__(self, disk: RealDisk) -> None:
        self._disk = disk
        self.full = False
        self.broken = False
        self.sync_fails = False
        self.syncs = 0
        self.held: list[str] = []
        """Files whose replacement waits for `release`."""
        self._may_sync = asyncio.Event()
        self._may_sync.set()
        self._may_replace = asyncio.Event()
        self._may_replace.set()
        self._names: tuple[str, ...] = ()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)

    def folder(self, path: str) -> FaultyFolder:
        return FaultyFolder(self._disk.folder(path), self)

    def open(self, path: str, *, create: bool = False) -> FaultyFile:
        return FaultyFile(self._disk.open(path, create=create), self)

    def hold_syncs(self) -> None:
        self._may_sync.clear()

    def hold_replacements(self, *names: str) -> None:
        """Of files in partitions' folders: of those with these names, or of all."""
        self._names = names
        self._may_replace.clear()

    def release(self) -> None:
        self._may_sync.set()
        self._may_replace.set()

    async def sync_files(self, files: Sequence[Any]) -> None:
        self.syncs += 1
        await self._may_sync.wait()
        if self.sync_fails:
            raise OSError(errno.EIO, "Input/output error")
        await self._disk.sync_files(files)

    async def write_atomically(self, path: str, data: bytes) -> None:
        await self.replace(self._disk, path, data)

    async def replace(self, folder: Folder, path: str, data: bytes) -> None:
        if not self._may_replace.is_set() and folder is not self._disk and (not self._names or path in self._names):
            self.held.append(path)
            await self._may_replace.wait()
        if self.full or self.broken:
            raise OSError(errno.ENOSPC if self.full else errno.EIO, "No space left on device")
        await folder.write_atomically(path, data)

    def free_bytes(self) -> int:
        return 0 if self.full else self._disk.free_bytes()


class FaultyFolder:
    """`ports.OpenFolder` of a `FaultyDisk`."""

    def __init__(self, folder: OpenFolder, disk: FaultyDisk) -> None:
        self._folder = folder
        self._disk = disk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._folder, name)

    def open(self, path: str, *, create: bool = False) -> FaultyFile:
        return FaultyFile(self._folder.open(path, create=create), self._disk)

    async def write_atomically(self, path: str, data: bytes) -> None:
        await self._disk.replace(self._folder, path, data)


class FakeClock:
    def __init__(self) -> None:
        self.now = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.now

    def monotonic_ms(self) -> int:
        return self.now


@dataclass
class Calls:
    """Collects results by number; `await calls.result(n)`."""

    timeout_ms: ClassVar[int] = NO_TIMEOUT_MS
    peer: ClassVar[str] = ""
    connection: ClassVar[int] = -1
    gone: bool = False

    results: dict[int, WriteResult] = field(default_factory=dict)
    dropped: list[str] = field(default_factory=list)
    _futures: dict[int, asyncio.Future[WriteResult]] = field(default_factory=dict)

    def drop(self, reason: str) -> None:
        self.dropped.append(reason)

    def settle(self, number: int, result: WriteResult) -> None:
        assert number not in self.results, "settled twice"
        self.results[number] = result
        if number in self._futures:
            self._futures[number].set_result(result)

    async def result(self, number: int) -> WriteResult:
        if number not in self.results:
            self._futures[number] = asyncio.get_running_loop().create_future()
            async with asyncio.timeout(10):
                await self._futures[number]
        return self.results[number]


class Harness:
    """A partition and everything around it. `await harness.open()` first."""

    def __init__(self, disk: RealDisk, settings: Settings | None = None) -> None:
        self.disk = FaultyDisk(disk)
        self.clock = FakeClock()
        self.settings = settings or Settings()
        self.fatal: list[str] = []
        self.questions: list[Question] = []
        self.fenced: list[BatchHeader] = []
        self.calls = Calls()
        self._number = 0
        self.storage = StorageGuard(self.disk, random.Random(1))
        self.committer = Committer(self.disk, self.fatal.append)
        self.context = ReplicaContext(
            disk=self.disk, clock=self.clock, committer=self.committer, storage=self.storage,
            shard_epochs=ShardEpochs(), ask=self._ask, refused=self._refused,
        )
        self.replica: Replica

    def _ask(self, replica: Replica, question: Question) -> None:
        self.questions.append(question)

    def _refused(
        self, replica: Replica, batch: memoryview | bytearray, refusal: Refusal, call: object
    ) -> None:
        if refusal.code is ErrorCode.INVALID_PRODUCER_EPOCH:
            self.fenced.append(read_header(batch))

    async def open(self, *, clean: bool = False, internal: bool = False, topic: str = "t") -> Replica:
        """Makes the partition, or opens it again as after a crash or (`clean`) a clean stop."""
        partition = TopicIdPartition(TOPIC_ID, PartitionIndex(0))
        self.replica = Replica(self.context, topic, partition, self.settings, internal=internal)
        if self.disk.exists(f"{FOLDER}/{PARTITION_METADATA}"):
            self.recovery = await open_replica(self.replica, FOLDER, clean=clean)
        else:
            log = SegmentLog(self.disk, FOLDER, LogConfig.from_settings(self.settings, internal=internal))
            log.create([(PARTITION_METADATA, encode_partition_metadata(TOPIC_ID))])
            self.replica.restore(None, 0, 0, (), ())
            self.replica.opened(log)
        self.replica.lead(1, -1)
        return self.replica

    def crash(self) -> None:
        """What is written stays (the page cache survives a process); nothing is closed in order."""
        self.replica.serving = False
        self.replica.log.close()

    def produce(
        self, batch: bytes | bytearray, *, transactional_id: str = "", version: int = 9,
        condition: Condition | None = None,
    ) -> int:
        """Returns the number under which the result will be found."""
        self._number += 1
        self.replica.produce(
            memoryview(bytearray(batch)), self.calls, self._number, transactional_id, version, condition=condition)
        return self._number

    def produce_internal(self, batches: bytes | bytearray, shard_epoch: int = -1) -> int:
        self._number += 1
        self.replica.produce_internal(memoryview(bytearray(batches)), self.calls, self._number, shard_epoch)
        return self._number

    async def produced(self, batch: bytes | bytearray, **options: Any) -> WriteResult:
        return await self.calls.result(self.produce(batch, **options))

    def verify(self, error: ErrorCode = ErrorCode.NONE, shard_epoch: int = 1, serial: int = -1) -> None:
        """Answers the oldest question."""
        question = self.questions.pop(0)
        self.replica.parked.answered(Answer(question.ticket, error, 0, shard_epoch, serial=serial))

    def log_bytes(self) -> bytes:
        return b"".join(segment.file.read(0, segment.size) for segment in self.replica.log.segments)

    def log_headers(self) -> list[BatchHeader]:
        return [header for _, header in iterate_batches(self.log_bytes())]


def batch(
    count: int = 1, *, producer_id: int = -1, epoch: int = -1, sequence: int = -1, transactional: bool = False,
    timestamp: int = 1_700_000_000_000, value: bytes = b"v", compression: int = 0,
) -> bytearray:
    """A client's batch of `count` records."""
    return encode_records(
        [(timestamp + i, b"k%d" % i, value, ()) for i in range(count)],
        compression=compression, transactional=transactional, producer_id=producer_id, producer_epoch=epoch,
        base_sequence=sequence,
    )


def unfollowing(view: ClusterView, committer: Committer) -> Fetchers:
    """Fetchers of a broker that is alone in its test."""
    async def no_snapshot(
        replica: Replica, leader: NodeId, leader_epoch: int, registration: Registration
    ) -> LeaderSnapshot:
        raise Refusal(ErrorCode.LEADER_NOT_AVAILABLE)

    return Fetchers(FetcherContext(
        network=TcpNetwork(), view=view, random=random.Random(3), settings=Settings(),
        throttle=Throttle(lambda: 1 << 30, FakeClock().monotonic_ms), fetch_snapshot=no_snapshot,
        lost=lambda replica, lost: None, fatal=committer.failed,
    ))
