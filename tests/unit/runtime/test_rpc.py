"""Calls between processes: what a caller is told in each case, by every form that a call may have."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from hypothesis import given, settings
from hypothesis import strategies as st

from hapax.rpc.gen.hapax.internal.v1 import calls_pb2
from hapax.runtime.network import TcpNetwork
from hapax.runtime.ports import (
    FrameConnection,
    FrameHandler,
    FrameLimits,
    RpcChannel,
    RpcError,
    RpcPeer,
)
from hapax.runtime.rpc import CLUSTER_KEY, CODES, EXCHANGE, HEALTH_CHECK, RpcIdentity, peer_of, status_of
from unit.runtime.name_server import Names
from unit.runtime.rpc_world import ECHO, FAIL, HANG, NAMED, REFUSE, WHO, Service, World, failure

LARGE = [("grpc.max_receive_message_length", 32 << 20), ("grpc.max_send_message_length", 32 << 20)]


@pytest.fixture(params=["stream", "frames", "public"])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    made = World(request.param)
    made.server = await made.serve(made.service.handlers)
    yield made
    await made.close()


# --- in every form ----------------------------------------------------------------------------------------------------


async def test_calls_are_answered_each_with_its_own_answer(world: World) -> None:
    channel = world.channel(world.server)
    assert world.channel(world.server) is channel
    requests = [b"%d" % n * (1 + n * 500) for n in range(50)] + [bytes(3_000_000), b""]
    assert await asyncio.gather(*(channel.call(ECHO, r, 10) for r in requests)) == requests


@pytest.mark.parametrize("side", ["request", "answer"])
async def test_a_message_that_is_too_large_disturbs_no_other_call(world: World, side: str) -> None:
    async def answer(request: bytes, peer: RpcPeer) -> bytes:
        return bytes(33 << 20)

    world.service.handlers["/t.Service/Large"] = answer
    channel = world.channel(world.server)
    other = asyncio.ensure_future(channel.call(HANG, b"", 30))
    await world.service.entered.wait()
    method, request = (ECHO, bytes(33 << 20)) if side == "request" else ("/t.Service/Large", b"")
    assert (await failure(channel, method, request, timeout=30)).status == "RESOURCE_EXHAUSTED"
    world.service.let_go.set()
    assert await other == b"done"


async def test_what_a_handler_raises_reaches_the_caller(
    world: World, caplog: pytest.LogCaptureFixture, task_failures: Counter[str]
) -> None:
    channel = world.channel(world.server)
    refused = await failure(channel, REFUSE)
    assert refused.status == "FAILED_PRECONDITION" and refused.detail.endswith("not the leader")
    assert (await failure(channel, "/t.Service/Unknown")).status == "UNIMPLEMENTED"
    with caplog.at_level(logging.ERROR, "hapax"):
        failed = await failure(channel, FAIL)
    assert failed.status == "INTERNAL" and "a bug" not in failed.detail
    assert len(caplog.records) == 1
    assert task_failures == {"call": 1}


@pytest.mark.parametrize("status", sorted(set(CODES) - {"OK"}))
async def test_every_status_arrives_as_it_was_sent(world: World, status: str) -> None:
    told = (await failure(world.channel(world.server), REFUSE, status.encode())).status
    # gRPC itself ends a call with CANCELLED, and a caller must not take that for a handler's answer.
    assert told == ("UNAVAILABLE" if (world.form, status) == ("public", "CANCELLED") else status)


async def test_a_status_that_no_table_has_is_internal(world: World) -> None:
    assert (await failure(world.channel(world.server), REFUSE, b"TEAPOT")).status == "INTERNAL"


async def test_a_caller_that_gave_up_does_not_cancel_the_handler_nor_disturb_the_next_call(world: World) -> None:
    channel, service = world.channel(world.server), world.service
    asked = asyncio.ensure_future(failure(channel, HANG, timeout=1.0))
    await service.entered.wait()
    assert (await asked).status == "DEADLINE_EXCEEDED"
    for number in b"12":  # the server has heard before the second that the caller gave up
        assert await channel.call(ECHO, bytes([number]), 5) == bytes([number])
    service.let_go.set()
    async with asyncio.timeout(20):
        await service.finished.wait()
    assert await channel.call(ECHO, b"next", 5) == b"next"


async def test_a_server_that_ends_fails_what_is_pending_and_is_found_again(world: World) -> None:
    channel = world.channel(world.server)
    pending = asyncio.ensure_future(channel.call(HANG, b"", 10))
    await world.service.entered.wait()
    await world.server.close()
    with pytest.raises(RpcError, match="UNAVAILABLE"):
        await pending
    assert (await failure(channel, ECHO)).status == "UNAVAILABLE"
    port = int(world.server.address.rpartition(":")[2])
    await world.serve(Service().handlers, port)
    async with asyncio.timeout(20):
        while True:
            try:
                assert await channel.call(ECHO, b"back", 10) == b"back"
                break
            except RpcError as error:  # the back-off of a connection that was refused
                assert error.status == "UNAVAILABLE"
                await asyncio.sleep(0.05)


async def test_calls_that_a_closing_server_cuts_off_have_an_unknown_outcome(world: World) -> None:
    gate = asyncio.Event()

    async def wait(request: bytes, peer: RpcPeer) -> bytes:
        await gate.wait()
        return b"done"

    for turn in range(6):
        gate.clear()
        server = await world.serve({HANG: wait})
        channel = world.channel(server)
        calls = [asyncio.ensure_future(channel.call(HANG, b"", 10)) for _ in range(20)]
        await asyncio.sleep(0.05)
        await server.close(grace=0.05 if turn % 2 else 0.0)
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert {each.status for each in results if isinstance(each, RpcError)} == {"UNAVAILABLE"}
        gate.set()


async def test_a_handler_whose_wait_is_cancelled_is_answered(world: World) -> None:
    async def wait(request: bytes, peer: RpcPeer) -> bytes:
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        future.cancel()
        return await future

    world.service.handlers["/t.Service/Wait"] = wait
    channel = world.channel(world.server)
    for _ in range(1 if world.form == "public" else 3):  # above MAX_RUNNING in all: none may count as running for ever
        failures = await asyncio.gather(*(failure(channel, "/t.Service/Wait", timeout=10) for _ in range(400)))
        assert {each.status for each in failures} == {"UNAVAILABLE"}
    assert await channel.call(ECHO, b"next", 5) == b"next"


async def test_streams_that_broke_leave_no_task_behind() -> None:
    world = World("stream")
    world.server = await world.serve(world.service.handlers)
    channel = world.channel(world.server)
    port = int(world.server.address.rpartition(":")[2])

    async def answered() -> None:
        """Calls fail while the caller still holds the stream that broke."""
        async with asyncio.timeout(10):
            while True:
                with contextlib.suppress(RpcError):
                    await channel.call(ECHO, b"a", 5)
                    return

    def writers() -> list[asyncio.Task[object]]:
        return [task for task in asyncio.all_tasks() if task.get_name() == "rpc-write"]

    for _ in range(3):
        await answered()
        await world.server.close(grace=1.0)
        world.server = await world.serve(world.service.handlers, port)
    await answered()
    async with asyncio.timeout(10):
        while len(left := writers()) != 2:  # the caller's and the server's
            await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
    await world.close()


async def test_a_connection_that_breaks_before_its_first_call_does_not_keep_the_caller_waiting() -> None:
    broken = asyncio.Event()

    class Slow(TcpNetwork):
        async def connect(
            self, host: str, port: int, opened: Callable[[FrameConnection], FrameHandler], limits: FrameLimits,
            tls: object = None,
        ) -> FrameConnection:
            connection = await super().connect(host, port, opened, limits)
            await broken.wait()
            return connection

    class Watch:
        def __init__(self, connection: FrameConnection) -> None:
            connection.drop()

        def on_frame(self, frame: memoryview) -> None: ...
        def on_drained(self) -> None: ...
        def on_closed(self, reason: str) -> None:
            asyncio.get_running_loop().call_later(0.05, broken.set)

    network = Slow(RpcIdentity("c1"))
    listener = await network.listen("127.0.0.1", 0, Watch, FrameLimits())
    channel = network.rpc_channel(f"frames://127.0.0.1:{listener.port}")
    assert (await failure(channel, ECHO, timeout=2.0)).status == "UNAVAILABLE"
    await channel.close()
    await listener.close()


async def test_listeners_on_ipv6() -> None:
    network = TcpNetwork(RpcIdentity("c1"))
    for server, prefix in (
        (await network.serve_rpc("::1", 0, Service().handlers), ""),
        (await network.serve_frames("::1", 0, Service().handlers), "frames://"),
    ):
        assert server.address.startswith("[::1]:")
        channel = network.rpc_channel(prefix + server.address)
        assert await channel.call(ECHO, b"six", 5) == b"six"
        await channel.close()
        await server.close()


@pytest.mark.parametrize("form", ["stream", "public"])
@pytest.mark.parametrize("gone_s", [1.0, 12.0])
async def test_a_node_that_comes_back_at_another_ip_address_is_found(form: str, gone_s: float) -> None:
    """Under its old name, as a pod does. gRPC's own resolver would ask again after half a minute, or two minutes."""
    loop = asyncio.get_running_loop()
    _, names = await loop.create_datagram_endpoint(Names, local_addr=("127.0.0.1", 0))
    network = TcpNetwork(RpcIdentity("c1"))

    async def until_answered(channel: RpcChannel, limit_s: float) -> bool:
        end = loop.time() + limit_s
        while loop.time() < end:
            with contextlib.suppress(RpcError):
                return await channel.call(ECHO, b"a", 2) == b"a"
            await asyncio.sleep(0.1)
        return False

    names.address = "127.0.0.2"
    server = await network.serve_rpc("127.0.0.2", 0, Service().handlers)
    port = int(server.address.rpartition(":")[2])
    name = f"dns://127.0.0.1:{names.port}/node.test:{port}"
    channel = network.rpc_channel(name) if form == "stream" else network.public_channel(name, "c1")
    assert await until_answered(channel, 10)
    await server.close()
    names.address = "" if gone_s > 5 else "127.0.0.2"  # a short absence: the name has its old address meanwhile
    assert not await until_answered(channel, gone_s)
    server = await network.serve_rpc("127.0.0.3", port, Service().handlers)
    names.address = "127.0.0.3"
    assert await until_answered(channel, 5)
    await channel.close()
    await server.close()
    names.close()


async def test_closing_with_grace_lets_handlers_finish(world: World) -> None:
    channel = world.channel(world.server)
    pending = asyncio.ensure_future(channel.call(HANG, b"", 10))
    await world.service.entered.wait()
    closing = asyncio.ensure_future(world.server.close(grace=5))
    world.service.let_go.set()
    assert await pending == b"done"
    await closing


async def test_an_address_in_use_is_an_os_error(world: World) -> None:
    port = int(world.server.address.rpartition(":")[2])
    with pytest.raises(OSError):
        await world.serve(world.service.handlers, port)


async def test_the_handler_knows_who_calls(world: World) -> None:
    await world.channel(world.server).call(WHO, b"", 5)
    (peer,) = world.service.peers
    assert (peer.role, peer.node_id, peer.authenticated) == ("broker", 3, False)
    assert peer.address.startswith("127.0.0.1:")


async def test_a_call_that_names_no_cluster_or_another_one_reaches_no_handler(world: World) -> None:
    nameless = world.channel(world.server, TcpNetwork(), "")
    refused = await failure(nameless, WHO)
    assert refused.status == "FAILED_PRECONDITION" and "names no cluster" in refused.detail
    stranger = world.channel(world.server, TcpNetwork(RpcIdentity("c2", "broker/3")), "c2")
    refused = await failure(stranger, WHO)
    assert refused.status == "UNAVAILABLE" and "cluster c1, not to c2" in refused.detail
    assert world.service.peers == []


async def test_many_calls_at_once_are_bounded_and_all_answered(world: World) -> None:
    if world.form == "public":
        pytest.skip("gRPC itself bounds the calls of a connection")
    at_once = most = 0
    gate, full = asyncio.Event(), asyncio.Event()

    async def counted(request: bytes, peer: RpcPeer) -> bytes:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        if at_once == 1000:
            full.set()
        await gate.wait()
        at_once -= 1
        return request

    world.service.handlers["/t.Service/Count"] = counted
    channel = world.channel(world.server)
    # In turns of their own: a message of the stream holds the calls of one turn, and is read whole.
    requests = [b"%d" % n for n in range(3000)]
    calls = []
    for request in requests:
        calls.append(asyncio.ensure_future(channel.call("/t.Service/Count", request, 30)))
        if not full.is_set():
            await asyncio.sleep(0)
    await full.wait()
    for _ in range(100):  # one more would have its turn
        await asyncio.sleep(0)
    gate.set()
    assert await asyncio.gather(*calls) == requests
    assert most < (3000 if world.form == "stream" else 1001)


# --- back-off ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["", "frames://"])
async def test_callers_that_retry_at_once_are_slowed_down_to_the_back_off(prefix: str) -> None:
    network = TcpNetwork(RpcIdentity("c1"))
    server = await network.serve_frames("127.0.0.1", 0, {})
    await server.close()
    channel = network.rpc_channel(prefix + server.address)
    loop = asyncio.get_running_loop()
    began = loop.time()
    for _ in range(5):
        assert (await failure(channel, ECHO)).status == "UNAVAILABLE"
    assert loop.time() - began > 0.2  # 25 + 50 + 100 + 200 ms at the least
    await channel.close()


# --- gRPC's own -------------------------------------------------------------------------------------------------------


async def with_server(
    check: Callable[[World, grpc.aio.Channel], Awaitable[None]], *, streams: bool = True,
) -> None:
    world = World("stream" if streams else "public")
    world.server = await world.serve(world.service.handlers)
    try:
        async with grpc.aio.insecure_channel(world.server.address, options=LARGE) as foreign:
            await check(world, foreign)
    finally:
        await world.close()


async def code_of_call(call: Awaitable[object]) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code()


async def test_foreign_grpc_clients_make_ordinary_unary_calls(task_failures: Counter[str]) -> None:
    async def check(world: World, foreign: grpc.aio.Channel) -> None:
        assert await foreign.unary_unary(ECHO)(b"hello", metadata=NAMED) == b"hello"
        assert await code_of_call(foreign.unary_unary(REFUSE)(b"", metadata=NAMED)) == (
            grpc.StatusCode.FAILED_PRECONDITION)
        assert await code_of_call(foreign.unary_unary(FAIL)(b"", metadata=NAMED)) == grpc.StatusCode.INTERNAL
        assert await code_of_call(foreign.unary_unary("/t.S/No")(b"", metadata=NAMED)) == (
            grpc.StatusCode.UNIMPLEMENTED)
        call = foreign.unary_unary(HANG)(b"", timeout=2, metadata=NAMED)
        await world.service.entered.wait()
        assert await code_of_call(call) == grpc.StatusCode.DEADLINE_EXCEEDED
        world.service.let_go.set()
        await world.service.finished.wait()  # not cancelled with its caller
        payloads = [bytes([n]) * 3_000_000 for n in range(6)]
        call_echo = foreign.unary_unary(ECHO)
        assert await asyncio.gather(*(call_echo(each, metadata=NAMED) for each in payloads)) == payloads
        assert await code_of_call(call_echo(bytes(33 << 20), metadata=NAMED)) == grpc.StatusCode.RESOURCE_EXHAUSTED

    await with_server(check)


async def test_a_foreign_call_without_a_cluster_is_told_what_is_missing() -> None:
    async def check(world: World, foreign: grpc.aio.Channel) -> None:
        with pytest.raises(grpc.aio.AioRpcError, match=CLUSTER_KEY) as caught:
            await foreign.unary_unary(WHO)(b"")
        assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION
        assert await code_of_call(foreign.unary_unary(WHO)(b"", metadata=((CLUSTER_KEY, ""),))) == (
            grpc.StatusCode.FAILED_PRECONDITION)
        assert world.service.peers == []

    await with_server(check)


async def test_health_follows_readiness_and_reflection_names_the_services() -> None:
    network = TcpNetwork(RpcIdentity("c1"))
    waits_for = ["partitions"]
    server = await network.serve_rpc("127.0.0.1", 0, Service().handlers, lambda: waits_for[0])
    async with grpc.aio.insecure_channel(server.address) as foreign:
        health = foreign.unary_unary(
            HEALTH_CHECK, health_pb2.HealthCheckRequest.SerializeToString, health_pb2.HealthCheckResponse.FromString)
        watch = foreign.unary_stream(
            "/grpc.health.v1.Health/Watch", health_pb2.HealthCheckRequest.SerializeToString,
            health_pb2.HealthCheckResponse.FromString)(health_pb2.HealthCheckRequest())
        assert (await health(health_pb2.HealthCheckRequest())).status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        waits_for[0] = ""
        assert (await health(health_pb2.HealthCheckRequest(service="t.Service"))).status == (
            health_pb2.HealthCheckResponse.SERVING)
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        assert await code_of_call(health(health_pb2.HealthCheckRequest(service="none"))) == grpc.StatusCode.NOT_FOUND
        watch.cancel()
        listed = reflection_pb2_grpc.ServerReflectionStub(foreign).ServerReflectionInfo(
            iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
        names = {each.name for each in (await listed.read()).list_services_response.service}
        assert {"t.Service", "hapax.internal.v1.Calls", "grpc.health.v1.Health"} <= names
        listed.cancel()
    await server.close()


async def test_a_listener_without_streams_does_not_know_them() -> None:
    async def check(world: World, foreign: grpc.aio.Channel) -> None:
        stream = foreign.stream_stream(EXCHANGE)(metadata=NAMED)
        assert await stream.code() == grpc.StatusCode.UNIMPLEMENTED

    await with_server(check, streams=False)


async def test_answers_with_codes_of_a_later_version_are_survived() -> None:
    assert status_of(77) == "UNKNOWN"

    async def strange(_: object, context: grpc.aio.ServicerContext) -> None:  # type: ignore[type-arg]
        await context.send_initial_metadata(((CLUSTER_KEY, "c1"),))
        requests = calls_pb2.Requests.FromString(await context.read()).requests
        await context.write(calls_pb2.Answers(answers=[
            calls_pb2.Answer(id=999, status=3), calls_pb2.Answer(id=requests[0].id, status=77, detail="new")
        ]).SerializeToString())
        await context.read()

    class Handlers(grpc.GenericRpcHandler):  # type: ignore[type-arg]
        def service(self, handler_call_details: object) -> object:
            return grpc.stream_stream_rpc_method_handler(strange)

    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Handlers(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    channel = TcpNetwork(RpcIdentity("c1")).rpc_channel(f"127.0.0.1:{port}")
    told = await failure(channel, ECHO)
    assert (told.status, told.detail) == ("UNKNOWN", "new")
    await channel.close()
    await server.stop(None)


@pytest.mark.parametrize(("caller", "role", "node_id"), [
    ("broker/3", "broker", 3), ("pid", "pid", -1), ("", "", -1), ("client/x", "client", -1), ("b\u00f6se/1", "", -1),
    ("broker/99999999999999", "broker", -1), ("a" * 70, "", -1), ("broker/-1", "broker", -1),
])
def test_what_callers_say_of_themselves(caller: str, role: str, node_id: int) -> None:
    assert peer_of("h:1", caller) == RpcPeer("h:1", role, node_id)


# --- what is no call --------------------------------------------------------------------------------------------------

_JUNK = [
    b"\x00" * 64, b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 64, b"PR", b"\xff" * 9,
    b"\x00\x00\x00\x0a" + b"\x00" * 8 + b"\xff\xff", b"\x00\x00\x00\x0c" + b"\x00" * 9 + b"\x02\xff\xfe",
    b"\x00\x00\x00\x0a\xff\xff\xff\xff\x00\x00\x00\x01\xff\xff",
    b"\x00\x00\x00\x0c\xff\xff\xff\xff\x00\x00\x00\x01\x00\x02\xff\xfe",
]


@pytest.mark.parametrize("junk", _JUNK)
async def test_bytes_that_are_no_call_harm_no_other_caller(world: World, junk: bytes) -> None:
    host, _, port = world.server.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(junk)
    writer.write_eof()
    await reader.read()  # whatever it is told, it is told the end
    writer.close()
    assert await world.channel(world.server).call(ECHO, b"still here", 5) == b"still here"


@pytest.mark.parametrize("junk", [b"\xff" * 40, b"\x0a\xff", b"junk", b"\x0a\x02\x12\x7f"])
async def test_a_stream_of_junk_is_ended_and_harms_no_other_caller(junk: bytes) -> None:
    async def check(world: World, foreign: grpc.aio.Channel) -> None:
        stream = foreign.stream_stream(EXCHANGE)(metadata=NAMED)
        await stream.write(junk)
        assert await stream.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert await world.channel(world.server).call(ECHO, b"still here", 5) == b"still here"

    await with_server(check)


@given(frames=st.lists(st.one_of(
    st.binary(max_size=64),
    st.binary(max_size=40).map(lambda tail: b"\xff\xff\xff\xff\x00\x00\x00\x01" + tail),
    st.binary(max_size=40).map(lambda tail: b"\x00\x00\x00\x00\x00\x00\x00\x01" + tail),
), max_size=5))
@settings(max_examples=60, deadline=None)
def test_frames_of_any_content_harm_no_other_caller(frames: list[bytes]) -> None:
    async def check() -> None:
        world = World("frames")
        world.server = await world.serve(world.service.handlers)
        host, _, port = world.server.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames))
        writer.write_eof()
        await reader.read()
        writer.close()
        assert await world.channel(world.server).call(ECHO, b"still here", 5) == b"still here"
        await world.close()

    asyncio.run(check())


@given(messages=st.lists(st.one_of(
    st.binary(max_size=64),
    st.builds(
        lambda call_id, method, message: calls_pb2.Requests(requests=[
            calls_pb2.Request(id=call_id, method=method, message=message)]).SerializeToString(),
        st.integers(0, 2**64 - 1), st.text(max_size=20), st.binary(max_size=20)),
), max_size=5))
@settings(max_examples=30, deadline=None)
def test_stream_messages_of_any_content_harm_no_other_caller(messages: list[bytes]) -> None:
    async def check(world: World, foreign: grpc.aio.Channel) -> None:
        stream = foreign.stream_stream(EXCHANGE)(metadata=NAMED)
        for message in messages:
            if stream.done():
                break
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                await stream.write(message)
        stream.cancel()
        assert await world.channel(world.server).call(ECHO, b"still here", 5) == b"still here"

    asyncio.run(with_server(check))


def test_the_grpc_library_is_loaded_only_with_the_first_call() -> None:
    check = """
import sys
import hapax.client, hapax.runtime.network, hapax.runtime.rpc_frames
assert "grpc" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", check], check=True)
