"""A minimal client that takes almost no CPU, so that a benchmark measures the broker.

It sends prepared Produce and Fetch frames over plain sockets. All other calls use kafka.protocol.
"""

from __future__ import annotations

import selectors
import socket
import ssl
import struct
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hapax.codec.batch import assemble_batch, iterate_batches, patch_prefix
from hapax.wire.messages import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    MetadataRequest,
    MetadataResponse,
)

_LENGTH = struct.Struct(">i")
_TICKS_PER_SECOND = 100


def cpu_seconds(pid: int) -> float:
    """User and system time of a process and its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND


class Login(NamedTuple):
    """By PLAIN."""

    user: str
    password: str


class Connection:
    """A blocking connection: one request after another, or many at once by hand."""

    def __init__(self, bootstrap: str, tls: ssl.SSLContext | None = None, login: Login | None = None) -> None:
        host, _, port = bootstrap.rpartition(":")
        self.socket = socket.create_connection((host, int(port)))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname=host)
        self._buffer = bytearray()
        if login is not None:
            self._log_in(login)

    def _log_in(self, login: Login) -> None:
        token = f"\0{login.user}\0{login.password}".encode()
        handshake = frame(17, 1, struct.pack(">h5s", 5, b"PLAIN"), flexible=False)
        for request in (handshake, frame(36, 1, struct.pack(">i", len(token)) + token, flexible=False)):
            self.socket.sendall(request)
            error = struct.unpack_from(">h", self.read_frame(), 4)[0]
            assert error == 0, f"the login was answered {error}"

    def call(self, request: Any, response: Any, version: int) -> Any:
        self.socket.sendall(frame(request.API_KEY, version, bytes(request.encode(version=version)), flexible=True))
        body = self.read_frame()
        return response.decode(memoryview(body)[5:], version=version)

    def read_frame(self) -> bytes:
        while len(self._buffer) < 4 or len(self._buffer) < 4 + _LENGTH.unpack_from(self._buffer)[0]:
            data = self.socket.recv(1 << 20)
            if not data:
                raise ConnectionError("the broker closed the connection")
            self._buffer += data
        size = 4 + _LENGTH.unpack_from(self._buffer)[0]
        whole = bytes(self._buffer[4:size])
        del self._buffer[:size]
        return whole


def frame(api_key: int, version: int, body: bytes, *, flexible: bool) -> bytes:
    header = struct.pack(">hhihc" if flexible else ">hhih", api_key, version, 7, -1, *([b"\0"] if flexible else []))
    return _LENGTH.pack(len(header) + len(body)) + header + body


def make_topic(bootstrap: str, name: str, partitions: int) -> None:
    """Returns when every partition has a leader."""
    connection = Connection(bootstrap)
    Topic = CreateTopicsRequest.CreatableTopic
    request = CreateTopicsRequest(
        topics=[Topic(name=name, num_partitions=partitions, replication_factor=1, assignments=[], configs=[])],
        timeout_ms=20_000, validate_only=False,
    )
    answer = connection.call(request, CreateTopicsResponse, 5)
    assert answer.topics[0].error_code == 0, answer
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        metadata = connection.call(
            MetadataRequest(
                topics=[MetadataRequest.MetadataRequestTopic(name=name)], allow_auto_topic_creation=False,
                include_cluster_authorized_operations=False, include_topic_authorized_operations=False,
            ), MetadataResponse, 9,
        )
        if all(p.error_code == 0 for p in metadata.topics[0].partitions):
            return
    raise TimeoutError(f"no leaders for {name}")


def producer_id(bootstrap: str, tls: ssl.SSLContext | None = None, login: Login | None = None) -> int:
    answer = Connection(bootstrap, tls, login).call(
        InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000), InitProducerIdResponse, 2
    )
    assert answer.error_code == 0, answer
    return int(answer.producer_id)


def produce_frame(topic: str, partition: int, batch: bytes, acks: int = -1) -> bytes:
    """Produce v7."""
    name = topic.encode()
    body = struct.pack(f">hhiih{len(name)}siii", -1, acks, 30_000, 1, len(name), name, 1, partition, len(batch)) + batch
    return frame(0, 7, body, flexible=False)


class Flood:
    """Sends idempotent batches of one size to a partition, over its own connection, with several requests in flight."""

    def __init__(
        self, bootstrap: str, topic: str, partition: int, batch_bytes: int, in_flight: int, producer: int = -1,
        tls: ssl.SSLContext | None = None, login: Login | None = None,
    ) -> None:
        """Requests a producer id if none is given."""
        self.connection = Connection(bootstrap, tls, login)
        self.connection.socket.setblocking(False)
        self.acknowledged = 0
        self._topic, self._partition = topic, partition
        self._records = bytes(batch_bytes - 61)
        self._producer_id = producer if producer >= 0 else producer_id(bootstrap, tls, login)
        self._sequence = 0
        self._out = bytearray()
        self._in = bytearray()
        self._missing = in_flight

    def next_request(self) -> bytes:
        batch = assemble_batch(
            self._records, record_count=10, base_timestamp=1_700_000_000_000, max_timestamp=1_700_000_000_000,
            producer_id=self._producer_id, producer_epoch=0, base_sequence=self._sequence,
        )
        patch_prefix(batch, 0, -1)
        self._sequence += 10
        return produce_frame(self._topic, self._partition, bytes(batch))

    def write(self) -> None:
        while self._missing:
            self._out += self.next_request()
            self._missing -= 1
        if self._out:
            try:
                sent = self.connection.socket.send(self._out)
                del self._out[:sent]
            except (BlockingIOError, ssl.SSLWantWriteError):
                return

    def read(self) -> None:
        try:
            self._in += self.connection.socket.recv(1 << 16)  # under TLS: a whole record, and answers are small
        except ssl.SSLWantReadError:
            return
        while len(self._in) >= 4 and len(self._in) >= 4 + (size := _LENGTH.unpack_from(self._in)[0]):
            error = self.error_of(self._in[4 : 4 + size], self._topic)
            assert error == 0, f"Produce answered {error}"
            del self._in[: 4 + size]
            self.acknowledged += 1
            self._missing += 1

    @staticmethod
    def error_of(answer: bytes | bytearray, topic: str) -> int:
        """The error in a Produce answer (without its length) with one partition."""
        return int(struct.unpack_from(">h", answer, 4 + 4 + 2 + len(topic) + 4 + 4)[0])

    @staticmethod
    def offset_of(answer: bytes | bytearray, topic: str) -> int:
        return int(struct.unpack_from(">q", answer, 4 + 4 + 2 + len(topic) + 4 + 4 + 2)[0])

    @property
    def wants_write(self) -> bool:
        return bool(self._out)


def flood(floods: Sequence[Flood], seconds: float) -> int:
    """Runs all of them for some time. Returns the number of requests acknowledged in that time."""
    selector = selectors.DefaultSelector()
    before = sum(f.acknowledged for f in floods)
    for each in floods:
        each.write()
        selector.register(each.connection.socket, selectors.EVENT_READ, each)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for key, events in selector.select(0.1):
            each = key.data
            if events & selectors.EVENT_READ:
                each.read()
            each.write()
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if each.wants_write else 0)
            if key.events != wanted:
                selector.modify(key.fileobj, wanted, each)
    selector.close()
    return sum(f.acknowledged for f in floods) - before


def fetch_frame(topic: str, partition: int, offset: int, max_bytes: int) -> bytes:
    """A Fetch of version 4 that does not wait, because the broker's other work while it waits would be counted too."""
    name = topic.encode()
    body = struct.pack(
        f">iiiibih{len(name)}siiqi", -1, 0, 1, max_bytes, 0, 1, len(name), name, 1, partition, offset, max_bytes
    )
    return frame(1, 4, body, flexible=False)


class Drain:
    """Reads a partition from its beginning, one Fetch after another, without parsing the batches."""

    _SKIPPED = struct.Struct(">ihqqii")

    def __init__(
        self, bootstrap: str, topic: str, partition: int, max_bytes: int, tls: ssl.SSLContext | None = None,
        login: Login | None = None,
    ) -> None:
        self.connection = Connection(bootstrap, tls, login)
        self.bytes = 0
        self.requests = 0
        self._topic, self._partition, self._max_bytes = topic, partition, max_bytes
        self._scratch = bytearray(max_bytes + (1 << 20))

    def run(self) -> None:
        """Reads to the end of the partition."""
        for _ in self.steps():
            pass

    def steps(self) -> Iterator[int]:
        """Reads likewise, and yields the number of bytes after each answer."""
        offset = 0
        sock = self.connection.socket
        head = 4 + 4 + 4 + 4 + 2 + len(self._topic) + 4
        view = memoryview(self._scratch)
        while True:
            sock.sendall(fetch_frame(self._topic, self._partition, offset, self._max_bytes))
            got = 0
            while got < 4 or got < 4 + _LENGTH.unpack_from(view)[0]:
                received = sock.recv_into(view[got:])
                if not received:
                    raise ConnectionError("the broker closed the connection")
                got += received
            _, error, _, _, _, size = self._SKIPPED.unpack_from(view, head)
            assert error == 0, f"Fetch answered {error}"
            if size == 0:
                return
            self.bytes += size
            self.requests += 1
            offset = self._next_offset(view[head + self._SKIPPED.size :][:size])
            yield size

    @staticmethod
    def _next_offset(records: memoryview) -> int:
        last = 0
        for _, header in iterate_batches(records):
            last = header.next_offset
        return last
