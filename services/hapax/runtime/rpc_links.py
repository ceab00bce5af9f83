"""The calling side of framed calls: what frames of this release (`rpc_frames`) and of the former one (`rpc_former`)
have in common."""

from __future__ import annotations

import asyncio
import struct
from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from hapax.runtime.ports import FrameConnection, FrameHandler, FrameLimits, RpcError, TlsContexts
from hapax.runtime.rpc import CONNECT_S, MAX_MESSAGE_BYTES, PendingCalls, ReconnectingChannel

if TYPE_CHECKING:
    from hapax.runtime.network import TcpNetwork

REQUEST: Final = struct.Struct(">QH")
RESPONSE: Final = struct.Struct(">QB")
FOREVER_MS: Final = 2**62
LIMITS: Final = FrameLimits(max_frame_bytes=MAX_MESSAGE_BYTES, idle_ms=FOREVER_MS)
LARGEST: Final = MAX_MESSAGE_BYTES - 1024
"""Bytes of a message: the frame has room for the rest. A larger frame would end the connection, and with it all other
calls, each time that the call is repeated."""


class FrameLink(PendingCalls):
    """One open connection."""

    def __init__(self, connection: FrameConnection) -> None:
        super().__init__()
        self._connection = connection

    @abstractmethod
    def settled(self, call_id: int, status: int, message: bytes) -> None:
        """`status`: as the frame has it. Raises IndexError if it means nothing."""

    def send(self, call_id: int, method: bytes, request: bytes) -> None:
        self._connection.send((REQUEST.pack(call_id, len(method)), method, request))

    def withdraw(self, call_id: int) -> None:
        """Nothing to do: the connection has the request already."""

    def on_frame(self, frame: memoryview) -> None:
        try:
            call_id, status = RESPONSE.unpack_from(frame)
            self.settled(call_id, status, bytes(frame[RESPONSE.size :]))
        except (struct.error, IndexError):
            self.close("the peer sent a frame that is no answer")

    def on_drained(self) -> None:
        """Nothing to do: callers wait for their answers anyway."""

    def on_closed(self, reason: str) -> None:
        self.fail(RpcError("UNAVAILABLE", self.broken or reason))

    def close(self, reason: str) -> None:
        self.broken = reason
        self._connection.drop()


class LinkChannel(ReconnectingChannel[FrameLink]):
    """`ports.RpcChannel`."""

    def __init__(self, network: TcpNetwork, address: str, forget: Callable[[], object]) -> None:
        """`address`: HOST:PORT."""
        super().__init__(address, forget)
        self._network = network
        self._methods: dict[str, bytes] = {}

    @abstractmethod
    def _opened(self, connection: FrameConnection) -> FrameLink:
        """May be called again, for another connection (`network.connect`)."""

    def _tls(self) -> TlsContexts | None:
        return None

    async def call(self, method: str, request: bytes, timeout: float) -> bytes:
        if len(request) > LARGEST:
            raise RpcError("RESOURCE_EXHAUSTED", f"{method}: a request of {len(request)} bytes")
        name = self._methods.get(method)
        if name is None:
            name = self._methods[method] = method.encode()
        return await self._call(method, timeout, lambda link, call_id: link.send(call_id, name, request))

    async def _connect(self) -> FrameLink:
        await self._back_off.wait()
        host, _, port = self._address.rpartition(":")
        links: list[FrameLink] = []

        def opened(connection: FrameConnection) -> FrameHandler:
            links.append(self._opened(connection))
            return links[-1]

        try:
            async with asyncio.timeout(CONNECT_S):
                await self._network.connect(host.strip("[]"), int(port), opened, LIMITS, self._tls())
        except (OSError, ValueError, TimeoutError) as error:
            raise RpcError("UNAVAILABLE", f"{self._address}: {error or 'no connection in time'}") from None
        self._back_off.connected()
        return links[-1]
