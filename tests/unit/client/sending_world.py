"""A producer's engine on a cluster of one node whose connection the test opens, closes and answers."""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from typing import Any

from hapax.client.engine import Engine
from hapax.client.environment import RealPorts
from hapax.client.metadata import Leader, Topic
from hapax.client.settings import producer_options
from hapax.core.producer.machine import ClientProducer, ProducerOptions
from hapax.core.producer.partition_queue import NO_IDENTITY, Identity
from hapax.core.types import PartitionIndex, ProducerEpoch, ProducerId, TopicPartition
from hapax.wire import messages
from hapax.wire.peer import Capabilities, PeerClosed

HIGH_WATER = 1 << 20


class FakePeer:
    """What the sender sees of a connection: requests in the order in which they left."""

    def __init__(self) -> None:
        self.capabilities = Capabilities({messages.ProduceRequest.API_KEY: (3, 13)}, {})
        self.closed = False
        self.requests: list[Any] = []
        self.tags: list[dict[int, bytes] | None] = []
        """Of each request."""
        self._sent = asyncio.Event()
        self.answers: deque[asyncio.Future[Any]] = deque()
        self.unsent = 0
        self._drained: asyncio.Future[None] | None = None

    def submit(
        self, message: Any, *, version: int, tags: dict[int, bytes] | None = None
    ) -> asyncio.Future[Any]:
        if self.closed:
            raise PeerClosed("the connection is closed")
        self.requests.append(message)
        self.tags.append(tags)
        self._sent.set()
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if message.acks:
            self.answers.append(answer)
        else:
            answer.set_result(None)
        return answer

    async def sent(self, requests: int) -> None:
        """Waits until `requests` requests have been sent."""
        while len(self.requests) < requests:
            self._sent.clear()
            await self._sent.wait()

    def unsent_bytes(self) -> int:
        return self.unsent

    async def drained(self) -> None:
        if self._drained is None:
            self._drained = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._drained)

    def drain(self) -> None:
        self.unsent = 0
        if self._drained is not None:
            self._drained.set_result(None)
            self._drained = None

    def topics(self) -> list[list[str]]:
        """Of each request."""
        return [[topic.name for topic in message.topic_data] for message in self.requests]

    def sizes(self) -> list[int]:
        """Bytes of the batches, in the order in which they left."""
        return [len(p.records) for m in self.requests for t in m.topic_data for p in t.partition_data]


class FakeCluster:
    """Knows one node; its connection opens when the test says so."""

    def __init__(self, **settings: Any) -> None:
        self.options = producer_options({"bootstrap.servers": "127.0.0.1:1", "linger.ms": 0, **settings})
        self.ports = RealPorts()
        self.topics = {name: topic_named(name) for name in ("a", "b")}
        self.listeners: list[object] = []
        self.opened: FakePeer | None = None
        self.wanted = 0
        self._opening: asyncio.Future[FakePeer] | None = None
        self.refuses: Exception | None = None
        """What an attempt to connect raises."""

    def now(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)

    def leader(self, partition: TopicPartition) -> Leader | None:
        topic = self.topics.get(partition.topic)
        return None if topic is None else topic.partitions.get(partition.partition)

    def open_peer(self, node_id: int) -> FakePeer | None:
        return None if self.opened is None or self.opened.closed else self.opened

    async def peer(self, node_id: int) -> FakePeer:
        if self.opened is not None and not self.opened.closed:
            return self.opened
        self.wanted += 1
        if self.refuses is not None:
            raise self.refuses
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_future()
        return await asyncio.shield(self._opening)

    def open(self) -> FakePeer:
        self.opened = FakePeer()
        if self._opening is not None:
            self._opening.set_result(self.opened)
            self._opening = None
        return self.opened

    def refresh_soon(self) -> None:
        pass

    async def close(self) -> None:
        pass


def topic_named(name: str) -> Topic:
    return Topic(name, uuid.uuid5(uuid.NAMESPACE_DNS, name), {PartitionIndex(0): Leader(0, 1)})


def producer_on(cluster: FakeCluster, **options: Any) -> Engine:
    idempotent = bool(cluster.options["enable.idempotence"])
    identity = Identity(ProducerId(7), ProducerEpoch(0)) if idempotent else NO_IDENTITY
    machine = ClientProducer(ProducerOptions(idempotent=idempotent, **options), identity)
    return Engine(cluster, machine, None)  # type: ignore[arg-type]


def answer(peer: FakePeer, error: int = 0, reason: str | None = None) -> None:
    """The oldest request that waits: everything in it ends so."""
    waiting = peer.answers.popleft()
    Response = messages.ProduceResponse
    index = len(peer.requests) - len(peer.answers) - 1
    waiting.set_result(Response(responses=[
        Response.TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=[
            Response.TopicProduceResponse.PartitionProduceResponse(
                index=partition.index, error_code=error, base_offset=5, log_append_time_ms=-1, error_message=reason)
            for partition in topic.partition_data])
        for topic in peer.requests[index].topic_data]))
