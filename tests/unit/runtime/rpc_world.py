"""A service and the channels to it, by every form that a call may have."""

from __future__ import annotations

import asyncio

import pytest

from hapax.runtime.network import TcpNetwork
from hapax.runtime.ports import RpcChannel, RpcError, RpcHandler, RpcPeer, RpcServer
from hapax.runtime.rpc import CLUSTER_KEY, RpcIdentity

ECHO, HANG, REFUSE, FAIL, WHO = (
    "/t.Service/Echo", "/t.Service/Hang", "/t.Service/Refuse", "/t.Service/Fail", "/t.Service/Who")
NAMED = ((CLUSTER_KEY, "c1"),)


class Service:
    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.let_go = asyncio.Event()
        self.finished = asyncio.Event()
        self.peers: list[RpcPeer] = []
        self.handlers: dict[str, RpcHandler] = {
            ECHO: self.echo, HANG: self.hang, REFUSE: self.refuse, FAIL: self.fail, WHO: self.who}

    async def echo(self, request: bytes, peer: RpcPeer) -> bytes:
        return request

    async def hang(self, request: bytes, peer: RpcPeer) -> bytes:
        self.entered.set()
        await self.let_go.wait()
        self.finished.set()
        return b"done"

    async def refuse(self, request: bytes, peer: RpcPeer) -> bytes:
        raise RpcError(request.decode() or "FAILED_PRECONDITION", "not the leader")  # type: ignore[arg-type]

    async def fail(self, request: bytes, peer: RpcPeer) -> bytes:
        raise ValueError("a bug")

    async def who(self, request: bytes, peer: RpcPeer) -> bytes:
        self.peers.append(peer)
        return b""


class World:
    """A server, and a channel to it, by one form of call."""

    def __init__(self, form: str) -> None:
        self.form = form
        self.network = TcpNetwork(RpcIdentity("c1", "broker/3"))
        self.service = Service()
        self.server: RpcServer
        self._open: list[RpcServer | RpcChannel] = []

    async def serve(self, handlers: dict[str, RpcHandler], port: int = 0) -> RpcServer:
        if self.form == "frames":
            server = await self.network.serve_frames("127.0.0.1", port, handlers)
        else:
            server = await self.network.serve_rpc("127.0.0.1", port, handlers, streams=self.form == "stream")
        self._open.append(server)
        return server

    def channel(self, server: RpcServer, network: TcpNetwork | None = None, cluster_id: str = "c1") -> RpcChannel:
        network = network or self.network
        if self.form == "public":
            channel = network.public_channel(server.address, cluster_id)
        else:
            channel = network.rpc_channel(("frames://" if self.form == "frames" else "") + server.address)
        if channel not in self._open:
            self._open.append(channel)
        return channel

    async def close(self) -> None:
        for each in reversed(self._open):
            await each.close()


async def failure(channel: RpcChannel, method: str, request: bytes = b"", timeout: float = 5.0) -> RpcError:
    with pytest.raises(RpcError) as caught:
        await channel.call(method, request, timeout)
    return caught.value
