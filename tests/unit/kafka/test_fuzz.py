"""Mutated valid frames of every API and version at a node that serves none of them itself: each is answered or ends
its connection with one line, and none is a fault of the program. (`tests/integration/test_bad_input.py` does the same
to the processes of a real cluster.)"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from typing import Any

import pytest

from hapax.kafka.api import api_versions
from hapax.kafka.registry import API_MODULES, all_apis, register_other_roles
from hapax.kafka.server import KafkaServer
from hapax.kafka.table import ApiTable, Role
from hapax.runtime.ports import FrameConnection, FrameHandler, FrameLimits
from unit.kafka.samples import REQUESTS, mutate, request_frame

SEED = 20260121
FRAMES = 2500


class Connection:
    serial, peer = 1, "10.0.0.1:1"

    def __init__(self) -> None:
        self.answers = 0
        self.closed = False

    def send(self, chunks: Any) -> None:
        self.answers += 1

    def unsent_bytes(self) -> int:
        return 0

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...

    def close(self, reason: str = "") -> None:
        self.closed = True

    def drop(self) -> None:
        self.closed = True


class Listening:
    async def listen(
        self, host: str, port: int, accept: Callable[[FrameConnection], FrameHandler], limits: FrameLimits
    ) -> None: ...


async def test_no_frame_is_a_fault_of_the_program(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hapax.runtime.incidents.LINES_PER_SECOND", 1 << 30)
    table = ApiTable(all_apis())
    api_versions.register(table)
    for module in API_MODULES:
        if module.ROW.answered_by is Role.EVERY_NODE and module is not api_versions:
            table.on(module.ROW, lambda ctx, request: [b"decoded"])
    register_other_roles(table)
    server = KafkaServer(Listening(), table)  # type: ignore[arg-type]
    rng = random.Random(SEED)
    answered = closed = silent = 0
    for _ in range(FRAMES):
        key, name, version, flexible = rng.choice(REQUESTS)
        frame = mutate(request_frame(key, name, version, flexible, rng), rng)
        connection = Connection()
        session = server._accept(connection)
        caplog.clear()
        with caplog.at_level(logging.WARNING, "hapax"):
            session.on_frame(memoryview(frame))
        assert not [r for r in caplog.records if r.levelno >= logging.ERROR], (name, version, frame.hex())
        assert len(caplog.records) == (1 if connection.closed else 0), (name, version, frame.hex())
        assert not (connection.answers and connection.closed)
        answered += connection.answers
        closed += connection.closed
        silent += not (connection.answers or connection.closed)
        session.on_closed("done")
    assert server.bytes_in_flight == 0
    assert silent == 0
    assert answered > FRAMES // 10 and closed > FRAMES // 4, "the mutations are of no use"
