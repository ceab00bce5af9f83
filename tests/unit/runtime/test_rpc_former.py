"""Calls between this release and the one before gRPC listeners of their own, on one port. `make upgrade-test
FROM=a76baed` has nodes of both releases."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import threading
from collections import Counter
from collections.abc import AsyncIterator
from typing import cast

import pytest
import uvloop

from hapax.codec.metadata import NodeRecord
from hapax.core.types import NodeId, RegistrationEpoch
from hapax.rpc.gen.hapax.v1 import cluster_admin_pb2, lease_pb2
from hapax.runtime.cluster import NodeView
from hapax.runtime.former_server import FormerServer, _Pipe
from hapax.runtime.network import TcpNetwork
from hapax.runtime.ports import RpcError, RpcHandler, RpcPeer, RpcServer
from hapax.runtime.rpc import RpcIdentity
from hapax.runtime.rpc_former import STATUSES, former_handlers, former_index, text_field
from hapax.runtime.rpc_server import GrpcServer
from hapax.runtime.settings import SettingsError, load
from unit.runtime.rpc_world import ECHO, FAIL, REFUSE, WHO, Service, failure

CREATE = "/hapax.internal.v1.Controller/CreateTopics"
GROUPS = "/hapax.v1.Groups/ListGroups"


class FormerCaller:
    """A connection as a node of the former release opens it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    @classmethod
    async def to(cls, server: RpcServer) -> FormerCaller:
        host, _, port = server.address.rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    @staticmethod
    def frame(call_id: int, method: str, request: bytes) -> bytes:
        name = method.encode()
        body = struct.pack(">QH", call_id, len(name)) + name + request
        return struct.pack(">i", len(body)) + body

    async def answer(self) -> tuple[int, str, bytes]:
        (size,) = struct.unpack(">i", await self._reader.readexactly(4))
        body = await self._reader.readexactly(size)
        call_id, index = struct.unpack_from(">QB", body)
        return call_id, STATUSES[index], body[9:]

    async def call(self, method: str, request: bytes = b"") -> tuple[str, bytes]:
        self.writer.write(self.frame(7, method, request))
        call_id, status, payload = await self.answer()
        assert call_id == 7
        return status, payload


class Both:
    def __init__(self, network: TcpNetwork, service: Service, server: RpcServer) -> None:
        self.network = network
        self.service = service
        self.server = server


@pytest.fixture
async def both() -> AsyncIterator[Both]:
    service = Service()
    former: dict[str, RpcHandler] = {**service.handlers, CREATE: service.echo, GROUPS: service.who}
    network = TcpNetwork(RpcIdentity("c1", "broker/3"))
    server = await network.serve_rpc("127.0.0.1", 0, service.handlers, former=former)
    yield Both(network, service, server)
    await server.close()


async def test_one_port_takes_the_calls_of_both_releases(both: Both) -> None:
    former = await FormerCaller.to(both.server)
    stream = both.network.rpc_channel(both.server.address)
    public = both.network.public_channel(both.server.address, "c1")
    large = bytes(3_000_000)
    assert await former.call(ECHO, large) == ("OK", large)
    assert await stream.call(ECHO, large, 10) == large
    assert await public.call(ECHO, b"x", 10) == b"x"
    other = both.network.public_channel(both.server.address, "another")
    assert (await failure(other, ECHO)).status == "UNAVAILABLE", "calls of this release name their cluster"
    former.writer.close()
    for each in (stream, public, other):
        await each.close()


async def test_a_former_caller_is_told_what_it_knows(both: Both, task_failures: Counter[str]) -> None:
    former = await FormerCaller.to(both.server)
    assert await former.call(REFUSE, b"NOT_FOUND") == ("NOT_FOUND", b"not the leader")
    assert (await former.call(REFUSE, b"PERMISSION_DENIED"))[0] == "FAILED_PRECONDITION"
    assert (await former.call("/t.Service/Unknown"))[0] == "UNIMPLEMENTED"
    assert (await former.call(FAIL))[0] == "INTERNAL"
    assert task_failures.pop("call") == 1
    former.writer.close()


async def test_its_first_bytes_may_arrive_one_by_one(both: Both) -> None:
    former = await FormerCaller.to(both.server)
    for byte in former.frame(1, ECHO, b"a"):
        former.writer.write(bytes([byte]))
        await former.writer.drain()
        await asyncio.sleep(0)
    former.writer.write(former.frame(2, ECHO, b"b") + former.frame(3, ECHO, b"c"))
    assert sorted([await former.answer() for _ in range(3)]) == [
        (1, "OK", b"a"), (2, "OK", b"b"), (3, "OK", b"c")]
    former.writer.close()


async def test_moved_methods_are_found_under_their_former_names(both: Both) -> None:
    former = await FormerCaller.to(both.server)
    assert (await former.call("/hapax.internal.v1.CoordinatorAdmin/ListGroups"))[0] == "OK"
    assert [each.role for each in both.service.peers] == [""]
    former.writer.close()


async def test_a_former_request_that_names_another_cluster_reaches_no_handler(both: Both) -> None:
    """As before: a pod's address is given out again, and may be another cluster's controller by now."""
    former = await FormerCaller.to(both.server)
    request = cluster_admin_pb2.CreateTopicsRequest(timeout_ms=5, validate_only=True).SerializeToString()
    assert await former.call(CREATE, request) == ("OK", request), "a caller that is too old to name it"
    for cluster, status in ((b"c1", "OK"), (b"c2", "UNAVAILABLE")):
        assert (await former.call(CREATE, request + b"\x22\x02" + cluster))[0] == status
    assert (await former.call(CREATE, b"\x22\x09c1"))[0] == "INVALID_ARGUMENT"
    former.writer.close()


async def test_this_release_calls_a_node_of_the_former_one(both: Both) -> None:
    """Whose listener takes frames without a greeting; it is known by its registration."""
    record = NodeRecord(NodeId(1), "broker", "h", 9092, both.server.address)
    node = NodeView(record, RegistrationEpoch(1))
    assert node.rpc_address == node.hot_address == f"former://broker/1@{both.server.address}"
    assert node.public_rpc_address == both.server.address, "it has one listener for all"
    channel = both.network.rpc_channel(node.rpc_address)
    assert channel is both.network.rpc_channel(node.rpc_address)
    requests = [b"%d" % n for n in range(50)]
    assert await asyncio.gather(*(channel.call(ECHO, each, 10) for each in requests)) == requests
    assert (await failure(channel, REFUSE, b"ABORTED")).status == "ABORTED"
    await channel.call(WHO, b"", 10)
    assert both.service.peers[-1].role == "", "it says nothing of itself"
    await both.server.close()
    assert (await failure(channel, ECHO)).status == "UNAVAILABLE"
    await channel.close()


def test_a_client_that_is_gone_at_once_leaves_nothing_behind() -> None:
    """A scan of ports, or a balancer's look: the connection is lost before it leads to the gRPC server."""
    failures: list[object] = []

    async def scenario() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
        service = Service()
        server = await TcpNetwork(RpcIdentity("c1", "broker/3")).serve_rpc(
            "127.0.0.1", 0, service.handlers, former=service.handlers)
        await asyncio.to_thread(gone_at_once, int(server.address.rpartition(":")[2]))
        async with asyncio.timeout(20):
            while pipes := list(server._pipes):  # type: ignore[attr-defined]
                await asyncio.wait(pipes)
        await server.close()

    uvloop.run(scenario())
    assert failures == []


def test_what_the_grpc_server_says_first_is_passed_on() -> None:
    """Its settings may be there before the pipe to it is known to be open: without them a client waits in vain."""
    said, told = b"the server's settings", threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as inside:
        def speaks_first() -> None:
            with inside.accept()[0] as accepted:
                accepted.sendall(said)
                told.set()
                while accepted.recv(100):
                    pass

        grpc = Silent(f"127.0.0.1:{inside.getsockname()[1]}")

        async def scenario() -> bytes:
            loop = asyncio.get_running_loop()
            server = FormerServer(cast(GrpcServer, grpc), {}, "c1")
            await server.start(TcpNetwork(RpcIdentity("c1", "broker/3")), "127.0.0.1", 0)
            host, _, port = server.address.rpartition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"PRI ")

            def busy() -> None:  # a loop with other work, so that its turns take long
                if not told.wait(0.01):
                    loop.call_soon(busy)

            busy()
            try:
                async with asyncio.timeout(10):
                    return await reader.readexactly(len(said))
            finally:
                writer.close()
                await server.close()

        speaking = threading.Thread(target=speaks_first)
        speaking.start()
        try:
            assert uvloop.run(scenario()) == said
        finally:
            speaking.join()


def test_a_client_sends_no_faster_than_the_grpc_server_takes_even_its_first_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A transport pauses its writer once. Where that is passed over, all that the client sends is held in memory."""
    begin, rest = b"PRI " + bytes(60_000), bytes(300_000)
    pipes: list[_Pipe] = []
    paused: list[_Pipe] = []
    once_paused = asyncio.Event()
    connection_made, pause_writing = _Pipe.connection_made, _Pipe.pause_writing

    def narrow(pipe: _Pipe, transport: asyncio.BaseTransport) -> None:
        pipes.append(pipe)
        if len(pipes) == 2:  # to the gRPC server
            cast(asyncio.Transport, transport).set_write_buffer_limits(0)
            with socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno())) as same:
                same.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        connection_made(pipe, transport)

    def pause(pipe: _Pipe) -> None:
        paused.append(pipe)
        once_paused.set()
        pause_writing(pipe)

    monkeypatch.setattr(_Pipe, "connection_made", narrow)
    monkeypatch.setattr(_Pipe, "pause_writing", pause)

    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0)) as inside:
            inside.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
            inside.setblocking(False)
            grpc = Silent(f"127.0.0.1:{inside.getsockname()[1]}")
            server = FormerServer(cast(GrpcServer, grpc), {}, "c1")
            await server.start(TcpNetwork(RpcIdentity("c1", "broker/3")), "127.0.0.1", 0)
            host, _, port = server.address.rpartition(":")
            _, writer = await asyncio.open_connection(host, int(port))
            writer.write(begin + rest)
            loop = asyncio.get_running_loop()
            async with asyncio.timeout(30):
                accepted, _ = await loop.sock_accept(inside)
                await once_paused.wait()
                outer, inner = pipes
                assert paused == [inner]
                assert outer._transport is not None and not outer._transport.is_reading()
                accepted.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
                taken = 0
                while taken < len(begin + rest):  # it goes on as the server takes more
                    taken += len(await loop.sock_recv(accepted, 1 << 20))
            accepted.close()
            writer.close()
            await server.close()

    uvloop.run(scenario())


class Silent:
    """In the place of a gRPC server that is busy."""

    def __init__(self, address: str) -> None:
        self.address = address

    async def start(self, host: str, port: int) -> None: ...

    async def close(self, grace: float) -> None: ...


def gone_at_once(port: int) -> None:
    for begin in (b"PRI ", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"PR", b""):
        for _ in range(50):
            with socket.create_connection(("127.0.0.1", port)) as client:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
                client.sendall(begin)


async def test_without_the_setting_a_former_caller_is_not_answered() -> None:
    service = Service()
    network = TcpNetwork(RpcIdentity("c1", "broker/3"))
    server = await network.serve_rpc("127.0.0.1", 0, service.handlers)
    former = await FormerCaller.to(server)
    with pytest.raises((asyncio.IncompleteReadError, ConnectionError, struct.error, IndexError)):
        await former.call(ECHO)
    assert not service.peers
    former.writer.close()
    await server.close()


def test_a_field_is_found_among_others() -> None:
    request = lease_pb2.LeasePidRequest(name="files", expire_ms=300, resume_producer_id=2**40)
    assert text_field(request.SerializeToString() + b"\x42\x02c1", 8) == "c1"
    assert text_field(request.SerializeToString(), 8) == ""
    for broken in (b"\x42\x05c1", b"\x80", b"\x43", b"\x42\x02\xff\xfe", b"\x80" * 10 + b"\x00", b"\xff" * 3_000_000):
        with pytest.raises(RpcError):
            text_field(broken, 8)


def test_every_handler_is_served_under_todays_name_too() -> None:
    async def handler(request: bytes, peer: RpcPeer) -> bytes:
        return request

    found = former_handlers({GROUPS: handler}, "c1")
    assert set(found) == {GROUPS, "/hapax.internal.v1.CoordinatorAdmin/ListGroups"}
    assert former_index("OK") == 0


def test_the_setting_is_refused_under_tls() -> None:
    given = ["rpc.former.calls=true", "security.inter.broker.protocol=SSL"]
    with pytest.raises(SettingsError, match=r"rpc\.former\.calls"):
        load(given)
