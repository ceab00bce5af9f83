"""A proxy between clients and nodes that does to single requests what a bad network does to connections.

Frames pass unchanged unless a rule names their API key. Rules arrive as JSON over a control connection, one line for
each change. The answer says how often each action was taken. The actions on a request:

    slow        it, and what follows on its connection, waits
    reset       its connection breaks before the request arrives
    unanswered  it arrives, and its connection breaks before the answer
    late        its connection breaks for the client, which retries on another; later the request still arrives, on the
                old connection (KAFKA-17754, KAFKA-9144)
    twice       it arrives twice in direct succession, and one answer is returned
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import ssl
import struct
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

Action = Literal["slow", "reset", "unanswered", "late", "twice"]
ACTIONS: Final[tuple[Action, ...]] = ("slow", "reset", "unanswered", "late", "twice")
_LENGTH: Final = struct.Struct(">i")
_KEY: Final = struct.Struct(">h")
_LINGER_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Rule:
    api_key: int
    action: Action
    after_s: float = 1.0
    share: float = 0.3
    """Share of the requests with that key."""


class Proxy:
    def __init__(self, seed: int, tls: dict[str, str] | None = None) -> None:
        """`tls`: paths of the `certificate` and the `key` that clients see, and of the `authorities` of the nodes'
        certificates. Logins pass as they are."""
        self._tls = tls
        self.rules: list[Rule] = []
        self.taken: Counter[str] = Counter()
        self._random = random.Random(seed)

    def rule_for(self, frame: bytes) -> Rule | None:
        if len(frame) < 6:
            return None
        (key,) = _KEY.unpack_from(frame, 4)
        for rule in self.rules:
            if rule.api_key == key and self._random.random() < rule.share:
                self.taken[rule.action] += 1
                return rule
        return None

    async def listen(self, host: str, port: int, target: tuple[str, int]) -> None:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                upstream = await asyncio.open_connection(*target, ssl=self._context(ssl.Purpose.SERVER_AUTH))
            except OSError:
                _break(writer)
                return
            await _Link(self, (reader, writer), upstream).run()

        context = self._context(ssl.Purpose.CLIENT_AUTH)
        await asyncio.start_server(accept, host, port, limit=1 << 20, ssl=context)

    def _context(self, purpose: ssl.Purpose) -> ssl.SSLContext | None:
        if self._tls is None:
            return None
        if purpose is ssl.Purpose.SERVER_AUTH:
            return ssl.create_default_context(purpose, cafile=self._tls["authorities"])
        context = ssl.create_default_context(purpose)
        context.load_cert_chain(self._tls["certificate"], self._tls["key"])
        return context

    async def control(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            self.rules = [Rule(**fields) for fields in json.loads(line)]
            writer.write(json.dumps(self.taken).encode() + b"\n")
            await writer.drain()
        writer.close()


_Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Link:
    """A client's connection and the proxy's own connection to the node."""

    def __init__(self, proxy: Proxy, client: _Stream, node: _Stream) -> None:
        self._proxy = proxy
        self._client_reader, self._client = client
        self._node_reader, self._node = node
        self._wanted: deque[bool] = deque()
        """For each request in flight, in order, whether the client waits for its answer."""

    async def run(self) -> None:
        answers = asyncio.ensure_future(self._pass_answers())
        try:
            await self._pass_requests()
        except (OSError, asyncio.IncompleteReadError):
            pass  # one side broke, so the other one is closed too
        finally:
            answers.cancel()
            await asyncio.gather(answers, return_exceptions=True)
            _break(self._client)
            self._node.close()

    async def _pass_requests(self) -> None:
        while True:
            frame = await _read_frame(self._client_reader)
            rule = self._proxy.rule_for(frame)
            if rule is None:
                await self._forward(frame)
            elif rule.action == "slow":
                await asyncio.sleep(rule.after_s)
                await self._forward(frame)
            elif rule.action == "twice":
                await self._forward(frame)
                await self._forward(frame, wanted=False)
            else:
                if rule.action == "unanswered":
                    await self._forward(frame, wanted=False)
                _break(self._client)
                if rule.action == "late":
                    await asyncio.sleep(rule.after_s)
                    await self._forward(frame, wanted=False)
                if rule.action != "reset":
                    await asyncio.sleep(_LINGER_S)
                return

    async def _forward(self, frame: bytes, *, wanted: bool = True) -> None:
        self._wanted.append(wanted)
        self._node.write(frame)
        await self._node.drain()

    async def _pass_answers(self) -> None:
        while True:
            try:
                frame = await _read_frame(self._node_reader)
            except (OSError, asyncio.IncompleteReadError):
                _break(self._client)
                return
            if not self._wanted or self._wanted.popleft():
                self._client.write(frame)


async def _read_frame(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readexactly(_LENGTH.size)
    return head + await reader.readexactly(_LENGTH.unpack(head)[0])


def _break(writer: asyncio.StreamWriter) -> None:
    """Breaks a connection with a reset, like a firewall that no longer knows it."""
    sock = writer.get_extra_info("socket")
    if sock is not None and not writer.is_closing():
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def _serve(arguments: dict[str, Any]) -> None:
    proxy = Proxy(arguments["seed"], arguments["tls"])
    for (host, port), target in arguments["routes"]:
        await proxy.listen(host, port, tuple(target))
    server = await asyncio.start_server(proxy.control, *arguments["control"])
    await server.serve_forever()


def main(argv: Sequence[str]) -> int:
    """The argument is JSON: `seed`, `control` [host, port], `routes` [[[host, port], [host, port] of a node], ...],
    `tls` as of `Proxy`."""
    asyncio.run(_serve(json.loads(argv[0])))
    return 0


class Control:
    """The harness's side of the control connection."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self._stream: _Stream | None = None

    async def set(self, rules: Sequence[Rule]) -> dict[str, int]:
        """Replaces all rules. Returns how often each action has been taken."""
        if self._stream is None:
            self._stream = await asyncio.open_connection(*self._address)
        reader, writer = self._stream
        fields = [
            {"api_key": r.api_key, "action": r.action, "after_s": r.after_s, "share": r.share} for r in rules
        ]
        writer.write(json.dumps(fields).encode() + b"\n")
        taken: dict[str, int] = json.loads(await reader.readline())
        return taken

    def close(self) -> None:
        if self._stream is not None:
            self._stream[1].close()
