"""What the tests of bad input share: a cluster with short limits, raw sockets, a well-behaved client beside them."""

from __future__ import annotations

import os
import re
import resource
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kafka.record import MemoryRecordsBuilder

from hapax.kafka.registry import all_apis
from hapax.local.cluster import LocalCluster
from hapax.wire import messages

FRAME_TIMEOUT_MS = 1500
SETTINGS = [
    f"connections.frame.timeout.ms={FRAME_TIMEOUT_MS}",
    "socket.request.max.bytes=20971520",
    "queued.max.request.bytes=33554432",
    "message.max.bytes=1048588",
]
_FLEXIBLE = {api.name: api.first_flexible for api in all_apis()}
_KEYS = {api.name: api.key for api in all_apis()}


class Wire:
    """A blocking connection that carries what a test says, right or wrong."""

    def __init__(self, address: tuple[str, int], receive_buffer: int | None = None) -> None:
        self.socket = socket.socket()
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(10)
        self.socket.connect(address)
        host, port = self.socket.getsockname()
        self.name = f"{host}:{port}"
        self._correlation_id = 0

    def send(self, frame: bytes) -> None:
        self.socket.sendall(struct.pack(">i", len(frame)) + frame)

    def read_frame(self) -> bytes | None:
        """None at the end of the connection."""
        size = self._exactly(4)
        return None if size is None else self._exactly(struct.unpack(">i", size)[0])

    def _exactly(self, size: int) -> bytes | None:
        data = b""
        while len(data) < size:
            try:
                part = self.socket.recv(size - len(data))
            except ConnectionResetError:
                return None
            if not part:
                return None
            data += part
        return data

    def ends(self) -> bool:
        """The node closed the connection without an answer."""
        return self.read_frame() is None

    def frame(self, name: str, version: int, body: bytes) -> bytes:
        self._correlation_id += 1
        tags = b"\0" if version >= _FLEXIBLE[name] else b""
        return struct.pack(">hhih", _KEYS[name], version, self._correlation_id, 4) + b"test" + tags + body

    def ask(self, name: str, version: int, request: Any = None, **fields: Any) -> Any:
        """The decoded answer; None where the connection ended instead."""
        if request is None:
            request = getattr(messages, f"{name}Request")(**fields)
        self.send(self.frame(name, version, bytes(request.encode(version=version))))
        answer = self.read_frame()
        if answer is None:
            return None
        skip = 5 if version >= _FLEXIBLE[name] and name != "ApiVersions" else 4
        return getattr(messages, f"{name}Response").decode(memoryview(answer)[skip:], version=version)

    def close(self) -> None:
        self.socket.close()


@contextmanager
def wire(address: tuple[str, int], **options: Any) -> Iterator[Wire]:
    connection = Wire(address, **options)
    try:
        yield connection
    finally:
        connection.close()


class ClusterProcess:
    """One process of the cluster, as the tests look at it."""

    def __init__(self, cluster: LocalCluster, name: str) -> None:
        self.cluster = cluster
        self.name = name
        state = cluster.status().process(name)
        self.address = ("127.0.0.1", state.port)
        self.pid = state.pid

    def memory(self) -> int:
        """Resident bytes."""
        with open(f"/proc/{self.pid}/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()

    def lines_about(self, peer: str) -> list[str]:
        return [line for line in self.cluster.log(self.name).splitlines() if f"peer={peer}" in line]

    def is_the_same_process(self) -> bool:
        return self.cluster.status().process(self.name).pid == self.pid and os.path.exists(f"/proc/{self.pid}")


class Neighbour:
    """A well-behaved client with one connection, kept for all tests: it must notice nothing."""

    TOPIC = "neighbour"

    def __init__(self, node: ClusterProcess) -> None:
        self._wire = Wire(node.address)
        create_topic(self._wire, self.TOPIC, 1)
        self._offset = 0

    def works(self) -> float:
        """Writes a record, reads it back; seconds it took."""
        began = time.monotonic()
        answer = produce(self._wire, self.TOPIC, batch(b"hello"))
        assert answer is not None and answer.error_code == 0, answer
        fetched = self._wire.ask("Fetch", 4, **fetch_fields(self.TOPIC, offset=answer.base_offset))
        (partition,) = fetched.responses[0].partitions
        assert partition.error_code == 0 and b"hello" in bytes(partition.records)
        assert answer.base_offset == self._offset
        self._offset += 1
        return time.monotonic() - began


def create_topic(connection: Wire, name: str, partitions: int, **config: str) -> int:
    """The error code."""
    topic = messages.CreateTopicsRequest.CreatableTopic
    answer = connection.ask("CreateTopics", 5, timeout_ms=10_000, validate_only=False, topics=[topic(
        name=name, num_partitions=partitions, replication_factor=1, assignments=[],
        configs=[topic.CreatableTopicConfig(name=key, value=value) for key, value in config.items()])])
    code: int = answer.topics[0].error_code
    return code


def batch(value: bytes, magic: int = 2, **producer: int) -> bytearray:
    """One record in a batch of its own (or, before magic 2, a message)."""
    builder = MemoryRecordsBuilder(magic=magic, compression_type=0, batch_size=4 << 20)
    if producer:
        builder.set_producer_state(
            producer.get("producer_id", 1), producer.get("producer_epoch", 0), producer.get("base_sequence", 0), False)
    builder.append(timestamp=1_700_000_000_000, key=None, value=value)
    builder.close()
    return bytearray(builder.buffer())


def resealed(data: bytearray) -> bytearray:
    """With the CRC that its bytes deserve."""
    from crc32c import crc32c

    struct.pack_into(">I", data, 17, crc32c(bytes(data[21:])))
    return data


def produce(
    connection: Wire, topic: str, records: bytes | bytearray, version: int = 7, partition: int = 0,
    transactional_id: str | None = None,
) -> Any:
    """The partition's answer; None where the connection ended instead."""
    data = messages.ProduceRequest.TopicProduceData
    topics = [data(name=topic, partition_data=[data.PartitionProduceData(index=partition, records=bytes(records))])]
    answer = connection.ask(
        "Produce", version, transactional_id=transactional_id, acks=-1, timeout_ms=5000, topic_data=topics)
    return None if answer is None else answer.responses[0].partition_responses[0]


def fetch_fields(topic: str, offset: int = 0, replica_id: int = -1, max_wait_ms: int = 0) -> dict[str, Any]:
    request = messages.FetchRequest
    return {
        "replica_id": replica_id, "max_wait_ms": max_wait_ms, "min_bytes": 1, "max_bytes": 1 << 20,
        "isolation_level": 0, "session_id": 0, "session_epoch": -1, "forgotten_topics_data": [], "rack_id": "",
        "topics": [request.FetchTopic(topic=topic, partitions=[request.FetchTopic.FetchPartition(
            partition=0, current_leader_epoch=-1, fetch_offset=offset, last_fetched_epoch=-1, log_start_offset=-1,
            partition_max_bytes=1 << 20)])],
    }


def raise_descriptors(wanted: int) -> bool:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted <= hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard >= wanted


def reason(line: str) -> str:
    found = re.search(r"reason=('[^']*'|\"[^\"]*\"|\S+)", line)
    return found[1] if found else ""


