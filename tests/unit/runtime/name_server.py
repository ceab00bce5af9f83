"""A name server that a test controls."""

from __future__ import annotations

import asyncio
import socket
import struct


class Names(asyncio.DatagramProtocol):
    """A name server: each name has `address`, or does not exist."""

    def __init__(self) -> None:
        self.address = ""
        self.port = 0

    def connection_made(self, transport: asyncio.DatagramTransport) -> None:
        self._transport = transport
        self.port = transport.get_extra_info("sockname")[1]

    def datagram_received(self, data: bytes, peer: tuple[str, int]) -> None:
        end = data.index(0, 12) + 5
        kind = int.from_bytes(data[end - 4 : end - 2], "big")
        found = b""
        if self.address and kind == 1:
            found = b"\xc0\x0c" + struct.pack(">HHIH", 1, 1, 1, 4) + socket.inet_aton(self.address)
        flags = 0x8580 if self.address else 0x8583
        head = data[:2] + struct.pack(">HHHHH", flags, 1, 1 if found else 0, 0, 0)
        self._transport.sendto(head + data[12:end] + found, peer)

    def close(self) -> None:
        self._transport.close()
