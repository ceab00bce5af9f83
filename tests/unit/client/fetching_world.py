"""The fetcher, with a cluster of nodes in memory instead of connections."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Callable
from typing import Any

from hapax.client.environment import RealPorts
from hapax.client.errors import RetriableError
from hapax.client.fetcher import Fetcher
from hapax.client.metadata import Leader, Topic
from hapax.client.metrics import ConsumerCounts
from hapax.client.readings import Begin
from hapax.client.settings import Options
from hapax.codec.batch import iterate_batches, patch_prefix
from hapax.codec.records import encode_records
from hapax.core.errors import ErrorCode, Refusal
from hapax.core.fetch_sessions import FULL, FetchSessions, Offsets, PartitionKey, Session
from hapax.core.types import PartitionIndex, TopicPartition
from hapax.runtime.metrics import Metrics
from hapax.wire import messages
from hapax.wire.peer import Capabilities, PeerClosed

A, B = TopicPartition("a", PartitionIndex(0)), TopicPartition("b", PartitionIndex(0))


def topic_named(name: str, life: int = 1) -> Topic:
    return Topic(name, uuid.uuid5(uuid.NAMESPACE_DNS, f"{name}-{life}"), {PartitionIndex(0): Leader(0, 1)})


class World:
    """One node; each topic's log is whole batches. It answers fetches by topic id, as brokers do."""

    def __init__(self, reset: str = "latest", **settings: object) -> None:
        given = {name.replace("_", "."): value for name, value in settings.items()}
        self.options = Options({"bootstrap.servers": "127.0.0.1:1", "auto.offset.reset": reset, **given}, "c")
        self.ports = RealPorts()
        self.topics = {"a": topic_named("a"), "b": topic_named("b")}
        self.nodes = {0: ("127.0.0.1", 1)}
        self.there = dict(self.topics)
        """What the cluster has; `topics` is what the client knows."""
        self.committed: dict[Any, int] = {}
        self.logs: dict[Any, bytes] = {topic.topic_id: b"" for topic in self.topics.values()}
        self.starts: dict[Any, int] = {}
        self.capabilities = Capabilities({messages.FetchRequest.API_KEY: (4, 16)}, {})
        self.connected: asyncio.Event = asyncio.Event()
        self.connected.set()
        self.asked: list[tuple[TopicPartition, Begin]] = []
        self.refuse: dict[str, Exception | asyncio.Event] = {}
        self.fetcher = Fetcher(self, self.reset, ConsumerCounts(Metrics()))  # type: ignore[arg-type]

    def now(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)

    def leader(self, partition: TopicPartition) -> Leader | None:
        topic = self.topics.get(partition.topic)
        return None if topic is None else topic.partitions[partition.partition]

    async def peer(self, node_id: int, purpose: str = "data") -> World:
        await self.connected.wait()
        return self

    def refresh_soon(self) -> None:
        self.topics |= self.there

    def write(self, topic: str, *values: str) -> None:
        found = self.there[topic].topic_id
        batch = encode_records([(0, None, value.encode(), ()) for value in values])
        patch_prefix(batch, self.end(found), 0)
        self.logs[found] += bytes(batch)

    def end(self, topic_id: Any) -> int:
        return max((header.next_offset for _, header in iterate_batches(self.logs[topic_id])), default=0)

    async def reset(self, partitions: list[TopicPartition], begin: Begin) -> dict[TopicPartition, int]:
        found = {}
        for partition in partitions:
            self.asked.append((partition, begin))
            refusal = self.refuse.get(partition.topic)
            if isinstance(refusal, Exception):
                raise refusal
            topic_id = self.there[partition.topic].topic_id
            found[partition] = self.committed.get(topic_id, self.starts.get(topic_id, 0))
            if isinstance(refusal, asyncio.Event):
                await refusal.wait()
        return found

    async def topic(self, name: str, timeout_ms: int) -> Topic:
        return self.topics[name]

    async def existing(self, names: list[str]) -> dict[str, Topic]:
        self.topics |= self.there
        return {name: self.there[name] for name in names if name in self.there}

    async def within(self, timeout_ms: int, what: str, attempt: Callable[[], Any]) -> Any:
        while True:
            try:
                return await attempt()
            except RetriableError:
                await asyncio.sleep(0)

    async def topics_of(self, partitions: list[TopicPartition], *, fresh: bool) -> dict[str, Topic]:
        for partition in partitions:
            self.topics.setdefault(partition.topic, self.there[partition.topic])
        return dict(self.topics)

    def make_again(self, name: str, *, heard: bool = True) -> None:
        """With five records. `heard`: the client's metadata say so."""
        del self.logs[self.there[name].topic_id]
        self.there[name] = topic_named(name, life=2)
        self.logs[self.there[name].topic_id] = b""
        self.write(name, "new0", "new1", "new2", "new3", "new4")
        if heard:
            self.topics[name] = self.there[name]

    async def call(self, message: Any, *, version: int, timeout_ms: int) -> Any:
        Answer = messages.FetchResponse
        answers = []
        for topic in message.topics:
            for partition in topic.partitions:
                log = self.logs.get(topic.topic_id)
                error, records = 0, b""
                if log is None:
                    error = ErrorCode.UNKNOWN_TOPIC_ID
                elif not self.starts.get(topic.topic_id, 0) <= partition.fetch_offset <= self.end(topic.topic_id):
                    error = ErrorCode.OFFSET_OUT_OF_RANGE
                else:
                    records = self.from_offset(log, partition.fetch_offset)
                answers.append(Answer.FetchableTopicResponse(topic_id=topic.topic_id, partitions=[
                    Answer.FetchableTopicResponse.PartitionData(
                        partition_index=0, error_code=int(error), high_watermark=0, last_stable_offset=0,
                        log_start_offset=0,
                        aborted_transactions=[], records=records)]))
        await asyncio.sleep(0.001)  # a long poll that ends
        return Answer(error_code=0, session_id=0, responses=answers)

    @staticmethod
    def from_offset(log: bytes, offset: int) -> bytes:
        return next((log[position:] for position, header in iterate_batches(log) if header.last_offset >= offset), b"")

    async def take(self, limit: int = 500) -> list[str]:
        async with asyncio.timeout(10):
            while not (taken := await self.fetcher.take(50, limit)):
                pass
        return [(record.value or b"").decode() for record in taken]


async def until(true: Callable[[], bool]) -> None:
    """Lets the loop turn until it is so."""
    for _ in iter(true, True):
        await asyncio.sleep(0)


# --- nodes with fetch sessions and replicas ------------------------------------------------------------------------


class Node:
    """A broker. It keeps fetch sessions in the real cache, and serves every partition as far as it has it."""

    def __init__(self, world: Cluster) -> None:
        ids = itertools.count(1)
        self.world = world
        self.cache: FetchSessions[Any] = FetchSessions(lambda: next(ids), 10, 1 << 20)
        self.told: dict[int, dict[PartitionKey, Offsets]] = {}
        self.requests: list[Any] = []
        self.lose: list[str] = []
        """What happens to the next requests: `request` or `answer` is lost, with the connection, or `answer alone`."""
        self.prefers = -1
        """The replica that it names to a request that tells a rack."""
        self.has: int | None = None
        """Of a replica that does not lead: the offset up to which it has copied."""
        self.commits: int | None = None
        """Of such a replica: the high watermark that it has heard of, if that is lower."""
        self.refuses: dict[str, ErrorCode] = {}
        """By topic."""
        self.damages = False
        self.when_asked: Callable[[], None] = lambda: None

    def answer(self, message: Any) -> Any:
        Answer = messages.FetchResponse
        named = {(topic.topic_id.bytes, p.partition): p for topic in message.topics for p in topic.partitions}
        forgotten = [(each.topic_id.bytes, p) for each in message.forgotten_topics_data for p in each.partitions]
        mode = (True, message.rack_id)
        if message.session_epoch in (FULL, -1):
            self.cache.close(message.session_id)
            session: Session[Any] = Session(True, mode)
            session.update(named.items(), (), mode)
            if message.session_epoch == FULL:
                self.cache.admit(session, 0)
            told = self.told[session.id] = {}
        else:
            try:
                session = self.cache.find(message.session_id, message.session_epoch, by_id=True)
            except Refusal as refusal:
                return Answer(error_code=int(refusal.code), session_id=0, responses=[])
            self.cache.update(session, named, forgotten, mode, 0)
            told = self.told[session.id]
            for key in forgotten:
                told.pop(key, None)
        responses = []
        for (topic_id, index), each in session.partitions.items():
            error, records, preferred, offsets = self.look(uuid.UUID(bytes=topic_id), each.asked, message.rack_id)
            if told.get((topic_id, index)) == offsets and not (error or records or preferred >= 0):
                continue
            told[topic_id, index] = offsets
            responses.append(Answer.FetchableTopicResponse(topic_id=uuid.UUID(bytes=topic_id), partitions=[
                Answer.FetchableTopicResponse.PartitionData(
                    partition_index=index, error_code=int(error), high_watermark=offsets.high_watermark,
                    last_stable_offset=offsets.last_stable_offset, log_start_offset=0, aborted_transactions=[],
                    preferred_read_replica=preferred, records=records)]))
        return Answer(error_code=0, session_id=session.id, responses=responses)

    def look(self, topic_id: uuid.UUID, asked: Any, rack: str) -> tuple[int, bytes, int, Offsets]:
        """(error, records, preferred replica, ends)"""
        log = self.world.logs.get(topic_id)
        if log is None:
            return ErrorCode.UNKNOWN_TOPIC_ID, b"", -1, Offsets(-1, -1, -1)
        name = next(name for name, topic in self.world.there.items() if topic.topic_id == topic_id)
        end = self.world.end(topic_id) if self.has is None else self.has
        readable = end if self.commits is None else min(end, self.commits)
        offsets = Offsets(readable, readable, 0)
        if name in self.refuses:
            return self.refuses[name], b"", -1, offsets
        if asked.fetch_offset > end:
            return (ErrorCode.OFFSET_OUT_OF_RANGE if self.has is None else ErrorCode.OFFSET_NOT_AVAILABLE,
                    b"", -1, offsets)
        if rack and self.prefers >= 0:
            return 0, b"", self.prefers, offsets
        records = self.world.from_offset(log, asked.fetch_offset) if asked.fetch_offset < readable else b""
        return 0, records[:-1] + bytes([records[-1] ^ 1]) if self.damages and records else records, -1, offsets


class Connection:
    def __init__(self, node: Node) -> None:
        self.node = node
        self.closed = False
        self.capabilities = Capabilities({messages.FetchRequest.API_KEY: (4, 16)}, {})

    async def call(self, message: Any, *, version: int, timeout_ms: int = 0) -> Any:
        if self.closed:
            raise PeerClosed("it is closed")
        node = self.node
        node.requests.append(message)
        fate = node.lose.pop(0) if node.lose else ""
        answer = None if fate == "request" else node.answer(message)
        node.when_asked()
        await asyncio.sleep(0.001)
        if fate:
            self.closed = fate != "answer alone"
            raise PeerClosed(f"the {fate} was lost")
        return answer


class Cluster(World):
    """Node 0 leads both topics. Node 1 has copies."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"retry_backoff_ms": 1, **settings})
        self.brokers = {0: Node(self), 1: Node(self)}
        self.nodes = dict.fromkeys(self.brokers, ("127.0.0.1", 1))
        self.connections: dict[int, Connection] = {}
        self.unreachable: set[int] = set()
        self.later_ms = 0
        self.refreshes = 0

    def now(self) -> int:
        return super().now() + self.later_ms

    def refresh_soon(self) -> None:
        super().refresh_soon()
        self.refreshes += 1

    async def peer(self, node_id: int, purpose: str = "data") -> Any:
        if node_id in self.unreachable:
            raise PeerClosed(f"node {node_id} cannot be reached")
        found = self.connections.get(node_id)
        if found is None or found.closed:
            found = self.connections[node_id] = Connection(self.brokers[node_id])
        return found

    async def rounds(self, node_id: int, number: int = 1) -> list[Any]:
        """The node's next requests, while the application polls and gets no record."""
        requests = self.brokers[node_id].requests
        first = len(requests)
        async with asyncio.timeout(10):
            while len(requests) < first + number:
                assert await self.fetcher.take(1, 500) == []
        return requests[first:first + number]

    def elect(self, topic: str, node_id: int) -> None:
        former = self.there[topic]
        leader = Leader(node_id, former.partitions[0].epoch + 1)
        self.there[topic] = self.topics[topic] = former._replace(partitions={PartitionIndex(0): leader})


def said(request: Any) -> tuple[int, int, dict[str, int], list[str]]:
    """(session id, epoch, topics with offsets, forgotten topics)"""
    return (
        request.session_id, request.session_epoch,
        {topic.topic: topic.partitions[0].fetch_offset for topic in request.topics},
        [topic.topic for topic in request.forgotten_topics_data])
