"""TLS handshakes of a client whose records are changed on their way, at a real listener."""

from __future__ import annotations

import asyncio
import random
import ssl
from typing import Final, NamedTuple

from hapax.runtime import supervision
from hapax.runtime.network import TcpNetwork
from hapax.runtime.ports import FrameLimits
from security.fuzz.target import mutated
from unit.runtime.test_tls_connection import CLIENT, NODE, Server, certificates, client_hello, until

_HEADER: Final = 5
_PLACES: Final = 12
_WAIT_S: Final = 20.0
_PATIENCE_S: Final = 0.2
"""Then the client takes the server to be waiting for the rest of a message that was cut, and goes."""


class Handshake(NamedTuple):
    flight: int
    """Which of the client's messages is changed: 0 the first, 1 the second, 2 none; -1: other bytes take the place of
    the first."""
    whole: bool
    """Changes may be anywhere, also in lengths; otherwise one bit is flipped of what the transcript covers."""
    split: int
    """Bytes that are sent at a time; 0: all at once."""
    spoil: int


class Handshakes:
    name = "tls"
    kinds: Final = frozenset({"refused in flight 1", "refused in flight 2", "completed"})

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._server: Server | None = None
        self._client = certificates("client", CLIENT)

    def make(self, rng: random.Random) -> Handshake:
        return Handshake(rng.choice((-1, 0, 0, 1, 1, 2)), rng.random() < 0.6, rng.choice((0, 0, 0, 1, 7)),
                         rng.randrange(1, 1 << 30))

    def check(self, made: Handshake) -> str:
        return self._loop.run_until_complete(asyncio.wait_for(self._check(made), _WAIT_S))

    async def _check(self, made: Handshake) -> str:
        if self._server is None:
            self._server = await Server(TcpNetwork(), certificates("server", NODE, client_auth="required")).listen(
                FrameLimits(handshake_timeout_ms=5_000))
            self._neighbour = await self._server.connect(self._client)
            await self._server.accepted.get()
        server, faults = self._server, supervision.FAILURES.copy()
        before = sum(server.tls.outcomes.values())
        changed = await self._talk(made, random.Random(made.spoil))
        await until(lambda: sum(server.tls.outcomes.values()) > before)
        assert faults == supervision.FAILURES, "a task has failed"
        self._neighbour.connection.send([b"still here"])
        assert await self._neighbour.frames.get() == b"still here"
        if server.accepted.empty():
            return f"refused in flight {made.flight + 1}"
        (await server.accepted.get()).connection.drop()
        assert not changed, "a handshake that was changed on its way has succeeded"
        return "completed"

    async def _talk(self, made: Handshake, rng: random.Random) -> bool:
        """Whether what the transcript covers was changed."""
        assert self._server is not None
        reader, writer = await asyncio.open_connection("127.0.0.1", self._server.listener.port)
        changed = False
        try:
            if made.flight < 0:
                data = mutated(client_hello(), rng) if rng.random() < 0.5 else rng.randbytes(rng.randrange(1, 600))
                await self._send(writer, data, made.split)
                return False  # it cannot end well: there is no second flight
            context = self._client.context()
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            client = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
            for flight in range(_PLACES):
                done = True
                try:
                    client.do_handshake()
                except ssl.SSLWantReadError:
                    done = False
                except ssl.SSLError:
                    return changed
                data = outgoing.read()
                if flight == made.flight and data:
                    spoilt = mutated(data, rng) if made.whole else _flipped(data, rng)
                    changed = not made.whole and spoilt != data
                    data = spoilt
                await self._send(writer, data, made.split)
                if done:
                    return changed
                received = await asyncio.wait_for(reader.read(65536), _PATIENCE_S)
                if not received:
                    return changed
                incoming.write(received)
            return changed
        except (ConnectionError, TimeoutError):
            return changed
        finally:
            writer.close()

    async def _send(self, writer: asyncio.StreamWriter, data: bytes, split: int) -> None:
        step = split or len(data) or 1
        for at in range(0, len(data), step):
            if writer.is_closing():
                raise ConnectionResetError
            writer.write(data[at : at + step])
            await asyncio.sleep(0)
        await writer.drain()

    def close(self) -> None:
        async def end() -> None:
            if self._server is not None:
                self._neighbour.connection.drop()
                await self._server.listener.close()

        self._loop.run_until_complete(end())
        self._loop.close()


def _flipped(data: bytes, rng: random.Random) -> bytes:
    """One bit of the body of a record that holds a message of the handshake, plain or encrypted."""
    out, places, at = bytearray(data), [], 0
    while at + _HEADER <= len(data):
        size = int.from_bytes(data[at + 3 : at + _HEADER])
        if data[at] in (22, 23):
            places += range(at + _HEADER, min(at + _HEADER + size, len(data)))
        at += _HEADER + size
    out[rng.choice(places)] ^= 1 << rng.randrange(8)
    return bytes(out)
