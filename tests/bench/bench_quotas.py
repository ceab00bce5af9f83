"""What quotas cost a request: a Produce that a listener takes and answers, while none is stored, and while those of
its client are stored and not reached (of bytes; of bytes and of time). In turns, because other programs of the computer
disturb all alike."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from bench.figures import record
from hapax.codec.metadata import Keys, QuotaRecord
from hapax.core.access.principals import user
from hapax.core.quota.entities import CLIENT_ID, IP, USER, Entity, entity_of
from hapax.core.quota.index import QuotaIndex
from hapax.kafka.api import produce
from hapax.kafka.quotas import Quotas
from hapax.kafka.registry import all_apis
from hapax.kafka.server import KafkaServer, Session
from hapax.kafka.table import ApiTable, RequestContext
from hapax.runtime.ports import KeyValue
from hapax.runtime.quota_image import QuotaImage
from hapax.runtime.settings import Settings
from unit.kafka.test_quotas import write
from unit.kafka.test_server import frame

USERS = 10_000
REQUESTS = 2_000
ROUNDS = 20


class Sink:
    """A connection that nothing leaves by."""

    serial = 1
    peer = "10.0.0.1:5000"

    def send(self, chunks: object) -> None: ...
    def pause_reading(self) -> None:
        raise AssertionError("the quota is reached")


class View:
    """What `Quotas` looks at of the cluster."""

    def __init__(self) -> None:
        self.quotas = QuotaImage()

    def set(self, entities: Mapping[Entity, Mapping[str, float]]) -> None:
        keys = Keys("bench")
        self.quotas.stored.clear()
        for entity, quotas in entities.items():
            self.quotas.apply(keys.quota(entity), KeyValue("", QuotaRecord(entity, quotas).encode(), 1, 1))
        self.quotas._dirty = True
        self.quotas.swap()


def never_reached(**quotas: float) -> dict[Entity, dict[str, float]]:
    """Of each of many users; and those of others, that each request is asked about in vain."""
    return {entity_of({USER: f"app-{number}"}): quotas for number in range(USERS)} | {
        entity_of({CLIENT_ID: None}): {"consumer_byte_rate": 2.0**60},
        entity_of({IP: None}): {"connection_creation_rate": 2.0**30}}


BYTES = never_reached(producer_byte_rate=2.0**60)
KINDS = {"without": {}, "bytes": BYTES, "bytes_and_time": never_reached(
    producer_byte_rate=2.0**60, request_percentage=1e12)}


async def measure() -> None:
    view: Any = View()
    table = ApiTable(all_apis(), quotas=Quotas(Settings(), view))
    answer = bytes(60)

    def handle(ctx: RequestContext, body: memoryview) -> object:
        produce.decode_request(body, ctx.api_version)
        return (answer,)

    table.on_raw(produce.ROW, handle)
    server = KafkaServer(SimpleNamespace(), table)  # type: ignore[arg-type]
    session = Session(server, Sink())  # type: ignore[arg-type]
    session.principal = user("app-7")
    request = frame(produce.ROW.key, 8, 1, write(1_000), client_id=b"me")

    def seconds() -> float:
        on_frame = session.on_frame
        began = time.perf_counter()
        for _ in range(REQUESTS):
            on_frame(request)
        return time.perf_counter() - began

    best = dict.fromkeys(KINDS, float("inf"))
    for _ in range(ROUNDS):
        for kind, entities in KINDS.items():
            view.set(entities)
            seconds()
            best[kind] = min(best[kind], *(seconds() for _ in range(3)))
    took = {kind: each / REQUESTS * 1e6 for kind, each in best.items()}
    record("quota_produce_without", took["without"], "us")
    record("quota_cost_of_bytes", took["bytes"] - took["without"], "us", at_most=1)
    record("quota_cost_of_bytes_and_time", took["bytes_and_time"] - took["without"], "us", at_most=2)
    index = QuotaIndex(BYTES)
    began = time.perf_counter()
    for _ in range(10_000):
        index.limit("producer_byte_rate", "app-7", "me")
    record("quota_first_look", (time.perf_counter() - began) / 10_000 * 1e6, "us", at_most=5)


def main() -> None:
    asyncio.run(measure())
