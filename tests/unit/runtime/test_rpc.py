"""Calls between services: what a caller is told in each case, in frames and as ordinary gRPC."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections import Counter

import grpc
import grpc.aio
import pytest

from hapax.runtime.network import TcpNetwork
from hapax.runtime.ports import RpcChannel, RpcError, RpcServer

ECHO, HANG, REFUSE, FAIL = "/t.Service/Echo", "/t.Service/Hang", "/t.Service/Refuse", "/t.Service/Fail"


class Service:
    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.let_go = asyncio.Event()
        self.finished = asyncio.Event()
        self.handlers = {ECHO: self.echo, HANG: self.hang, REFUSE: self.refuse, FAIL: self.fail}

    async def echo(self, request: bytes) -> bytes:
        return request

    async def hang(self, request: bytes) -> bytes:
        self.entered.set()
        await self.let_go.wait()
        self.finished.set()
        return b"done"

    async def refuse(self, request: bytes) -> bytes:
        raise RpcError("FAILED_PRECONDITION", "not the leader")

    async def fail(self, request: bytes) -> bytes:
        raise ValueError("a bug")


async def start() -> tuple[TcpNetwork, Service, RpcServer, RpcChannel]:
    network, service = TcpNetwork(), Service()
    server = await network.serve_rpc("127.0.0.1", 0, service.handlers)
    return network, service, server, network.rpc_channel(server.address)


async def failure(channel: RpcChannel, method: str, timeout: float = 5.0) -> RpcError:
    with pytest.raises(RpcError) as caught:
        await channel.call(method, b"", timeout)
    return caught.value


async def test_calls_are_answered_each_with_its_own_answer() -> None:
    network, _, server, channel = await start()
    assert network.rpc_channel(server.address) is channel
    requests = [b"%d" % n * (1 + n * 500) for n in range(50)] + [bytes(3_000_000), b""]
    assert await asyncio.gather(*(channel.call(ECHO, r, 10) for r in requests)) == requests
    await channel.close()
    await server.close()


async def test_what_a_handler_raises_reaches_the_caller(
    caplog: pytest.LogCaptureFixture, task_failures: Counter[str]
) -> None:
    _, _, server, channel = await start()
    refused = await failure(channel, REFUSE)
    assert (refused.status, refused.detail) == ("FAILED_PRECONDITION", "not the leader")
    assert (await failure(channel, "/t.Service/Unknown")).status == "UNIMPLEMENTED"
    with caplog.at_level(logging.ERROR, "hapax"):
        failed = await failure(channel, FAIL)
    assert failed.status == "INTERNAL" and "a bug" not in failed.detail
    assert len(caplog.records) == 1
    assert task_failures == {"call": 1}
    await channel.close()
    await server.close()


async def test_a_caller_that_gave_up_does_not_cancel_the_handler_nor_disturb_the_next_call() -> None:
    _, service, server, channel = await start()
    assert (await failure(channel, HANG, 0.05)).status == "DEADLINE_EXCEEDED"
    service.let_go.set()
    await service.finished.wait()
    assert await channel.call(ECHO, b"next", 5) == b"next"
    await channel.close()
    await server.close()


async def test_a_server_that_dies_fails_what_is_pending_and_is_found_again() -> None:
    network, service, server, channel = await start()
    pending = asyncio.ensure_future(channel.call(HANG, b"", 10))
    await service.entered.wait()
    await server.close()
    with pytest.raises(RpcError, match="UNAVAILABLE"):
        await pending
    assert (await failure(channel, ECHO)).status == "UNAVAILABLE"
    host, _, port = server.address.rpartition(":")
    again = await network.serve_rpc(host, int(port), Service().handlers)
    assert await channel.call(ECHO, b"back", 10) == b"back"
    await channel.close()
    await again.close()


async def test_callers_that_retry_at_once_are_slowed_down_to_the_back_off() -> None:
    network, _, server, _ = await start()
    await server.close()
    channel = network.rpc_channel(server.address)
    loop = asyncio.get_running_loop()
    began = loop.time()
    for _ in range(5):
        assert (await failure(channel, ECHO)).status == "UNAVAILABLE"
    assert loop.time() - began > 0.2  # 25 + 50 + 100 + 200 ms at the least
    await channel.close()


async def test_closing_with_grace_lets_handlers_finish() -> None:
    _, service, server, channel = await start()
    pending = asyncio.ensure_future(channel.call(HANG, b"", 10))
    await service.entered.wait()
    closing = asyncio.ensure_future(server.close(grace=5))
    service.let_go.set()
    assert await pending == b"done"
    await closing
    await channel.close()


async def test_an_address_in_use_is_an_os_error() -> None:
    network, service, server, _ = await start()
    host, _, port = server.address.rpartition(":")
    with pytest.raises(OSError):
        await network.serve_rpc(host, int(port), service.handlers)
    await server.close()


async def test_foreign_grpc_clients_make_ordinary_unary_calls(task_failures: Counter[str]) -> None:
    _, service, server, _ = await start()
    async with grpc.aio.insecure_channel(server.address) as foreign:
        assert await foreign.unary_unary(ECHO)(b"hello") == b"hello"
        for method, code in (
            (REFUSE, grpc.StatusCode.FAILED_PRECONDITION),
            (FAIL, grpc.StatusCode.INTERNAL),
            ("/t.Service/Unknown", grpc.StatusCode.UNIMPLEMENTED),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await foreign.unary_unary(method)(b"")
            assert caught.value.code() == code
        call = foreign.unary_unary(HANG)(b"", timeout=0.2)
        await service.entered.wait()
        with pytest.raises(grpc.aio.AioRpcError):
            await call
        service.let_go.set()
        await service.finished.wait()  # not cancelled with its caller
    await server.close()


async def test_many_calls_at_once_are_bounded_and_all_answered() -> None:
    network, service = TcpNetwork(), Service()
    at_once = most = 0
    full, gate = asyncio.Event(), asyncio.Event()

    async def counted(request: bytes) -> bytes:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        if at_once == 1000:
            full.set()
        await gate.wait()
        at_once -= 1
        return request

    server = await network.serve_rpc("127.0.0.1", 0, service.handlers | {"/t.Service/Count": counted})
    channel = network.rpc_channel(server.address)
    requests = [b"%d" % n for n in range(5000)]
    answers = asyncio.gather(*(channel.call("/t.Service/Count", r, 20) for r in requests))
    await full.wait()
    for _ in range(100):  # one more would have its turn
        await asyncio.sleep(0)
    gate.set()
    assert await answers == requests
    assert most == 1000
    await channel.close()
    await server.close()


@pytest.mark.parametrize("junk", [
    b"\x00" * 64, b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 64, b"PR", b"\xff" * 9,
    b"\x00\x00\x00\x0a" + b"\x00" * 8 + b"\xff\xff", b"\x00\x00\x00\x0c" + b"\x00" * 9 + b"\x02\xff\xfe",
])
async def test_bytes_that_are_no_call_harm_nobody(junk: bytes) -> None:
    _, _, server, channel = await start()
    host, _, port = server.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(junk)
    writer.write_eof()
    await reader.read()  # whatever it is told, it is told the end
    writer.close()
    assert await channel.call(ECHO, b"still here", 5) == b"still here"
    await channel.close()
    await server.close()


async def test_a_foreign_client_that_streams_large_messages_is_passed_on_whole() -> None:
    _, _, server, _ = await start()
    async with grpc.aio.insecure_channel(server.address, options=[
        ("grpc.max_receive_message_length", 32 << 20), ("grpc.max_send_message_length", 32 << 20)
    ]) as foreign:
        payloads = [bytes([n]) * 3_000_000 for n in range(6)]
        call = foreign.unary_unary(ECHO)
        assert await asyncio.gather(*(call(payload) for payload in payloads)) == payloads
    await server.close()


def test_the_grpc_library_is_loaded_only_for_a_foreign_client() -> None:
    check = """
import asyncio, sys
from hapax.runtime.network import TcpNetwork
async def main():
    async def echo(request): return request
    network = TcpNetwork()
    server = await network.serve_rpc("127.0.0.1", 0, {"/t/E": echo})
    assert await network.rpc_channel(server.address).call("/t/E", b"x", 5) == b"x"
    await server.close()
asyncio.run(main())
assert "grpc" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", check], check=True)
