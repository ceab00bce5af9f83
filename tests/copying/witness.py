"""A writer of the source whose every transaction is in a history, and a final reader of the copy: for the checker."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from copying.world import read_all
from hapax.client import Producer
from hapax.client.errors import AbortableError, HapaxError
from hapax_checker.record import Operation, Value

_PATIENCE = {"delivery.timeout.ms": 20_000, "max.block.ms": 20_000, "request.timeout.ms": 3_000}


class Witness:
    """Keys are partitions (`orders-0`), values as those of `world.Writer`: writer, transaction, number of its records,
    number within it."""

    def __init__(self, bootstrap: str, topics: Iterable[tuple[str, int]], process: int) -> None:
        self._bootstrap = bootstrap
        self._partitions = [(topic, number) for topic, count in topics for number in range(count)]
        self._process = process
        self._began = time.monotonic()
        self._began_ms = int(time.time() * 1000)
        self._stop = False
        self.history: list[Operation] = []
        self.committed = 0

    def stop(self) -> None:
        self._stop = True

    async def run(self) -> None:
        number = 0
        while not self._stop:
            settings = {"bootstrap.servers": self._bootstrap, "transactional.id": f"witness-{self._process}"}
            try:
                async with Producer({**settings, **_PATIENCE}) as producer:
                    while not self._stop:
                        await self._one(producer, number)
                        number += 1
            except HapaxError:
                number += 1  # and another producer

    async def _one(self, producer: Producer, number: int) -> None:
        chosen = [self._partitions[(number * 5 + i) % len(self._partitions)] for i in range(1 + number % 4)]
        sends = [
            ["send", f"{topic}-{partition}", f"{self._process}:{number}:{len(chosen)}:{i}"]
            for i, (topic, partition) in enumerate(chosen)]
        self._note("invoke", sends)
        outcome = "info"
        try:
            producer.begin()
            for (topic, partition), (_, _, value) in zip(chosen, sends, strict=True):
                await producer.send(
                    topic, value.encode(), b"key", partition=partition, timestamp_ms=self._began_ms + number)
            if number % 9 == 8:
                await producer.abort()
                outcome = "fail"
            else:
                await producer.commit()
                outcome = "ok"
                self.committed += 1
        except AbortableError:
            await producer.abort()
            outcome = "fail"
        finally:
            self._note(outcome, [["send", key, [None, value]] for _, key, value in sends])

    def _note(self, kind: Any, value: Any, f: str = "txn") -> None:
        at = time.monotonic() - self._began
        self.history.append(Operation(len(self.history), self._process, at, kind, f, value))


async def final_read(bootstrap: str, topics: dict[str, str], process: int) -> list[Operation]:
    """What a new client finds in the copy. `topics`: name in the copy -> name in the source."""
    found: dict[str, list[tuple[int, Value]]] = {}
    for copy, source in topics.items():
        for partition, records in (await read_all(bootstrap, copy)).items():
            found[f"{source}-{partition}"] = [(i, (each.value or b"").decode()) for i, each in enumerate(records)]
    return [
        Operation(0, process, 0, "invoke", "assign", list(found)),
        Operation(1, process, 0, "ok", "assign", list(found)),
        Operation(2, process, 0, "invoke", "poll", [["poll"]]),
        Operation(3, process, 0, "ok", "poll", [["poll", found]])]
