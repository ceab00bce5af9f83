"""What makes the reader doubt a position."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from hapax.client.environment import RealPorts
from hapax.client.errors import RetriableError
from hapax.client.metadata import Leader
from hapax.client.node_fetches import Answer, NodeFetch
from hapax.client.settings import consumer_options
from hapax.codec.batch import patch_prefix
from hapax.codec.records import encode_records
from hapax.copy import reader as module
from hapax.copy.reader import Reader, Reading
from hapax.core.errors import ErrorCode
from hapax.core.types import PartitionIndex, TopicPartition

PARTITION = TopicPartition("t", PartitionIndex(0))


class World:
    """A partition whose leader answers what the test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.epoch, self.epoch_end = 4, -1
        self.code, self.topics = 0, dict[str, Any]()
        self.asked = self.asked_for_end = 0
        self.data = b""
        self.high_watermark, self.knows_end = 200, True
        self.answers_end = asyncio.Event()
        self.answers_end.set()
        self.fetched: list[int] = []
        options = consumer_options({"bootstrap.servers": "127.0.0.1:1"})
        cluster: Any = SimpleNamespace(
            options=options, ports=RealPorts(), now=lambda: 1000, refresh_soon=lambda: None, peer=self._peer,
            leader=lambda _: Leader(0, self.epoch), existing=self._existing)
        self.reader = Reader(cluster, 1 << 20, lambda: None)
        monkeypatch.setattr(self.reader._nodes, "fetch", self._fetch)
        monkeypatch.setattr(module, "epoch_ends", self._ends)
        monkeypatch.setattr(module, "list_offsets", self._list_offsets)
        self.reading: Reading = self.reader.add(PARTITION, 100, uuid.UUID(int=0), 4)

    async def _peer(self, node: int, purpose: str) -> None:
        """No peer is needed."""

    async def _ends(
        self, cluster: Any, epochs: Mapping[TopicPartition, int], timeout_ms: int
    ) -> dict[TopicPartition, int]:
        assert epochs == {PARTITION: 4}
        return {PARTITION: self.epoch_end}

    async def _list_offsets(self, *_: Any, committed: bool) -> dict[TopicPartition, tuple[int, int]]:
        self.asked_for_end += 1
        await self.answers_end.wait()
        if not self.knows_end:
            raise RetriableError("the end is not known yet", code=ErrorCode.OFFSET_NOT_AVAILABLE)
        return {}  # it is not looked at

    async def _fetch(self, node_id: int, peer: object, fetch: NodeFetch) -> Answer:
        self.fetched.append(fetch.wanted[PARTITION][0])
        told = SimpleNamespace(
            error_code=self.code, log_start_offset=0, high_watermark=self.high_watermark,
            last_stable_offset=self.high_watermark, records=self.data, aborted_transactions=None)
        return Answer(0, [(PARTITION, told)])

    async def _existing(self, names: Iterable[str]) -> dict[str, Any]:
        self.asked += 1
        return {name: self.topics[name] for name in names if name in self.topics}

    async def fetch(self) -> None:
        await self.reader._fetch(0, [self.reading])

    async def end_told(self) -> None:
        await asyncio.wait(self.reader._end_questions.values())
        await asyncio.sleep(0)  # the question's end is noted


def batch(offset: int, epoch: int) -> bytes:
    found = encode_records([(1000, None, b"v", ())] * 10)
    patch_prefix(found, offset, epoch)
    return bytes(found)


@pytest.mark.parametrize(("end", "doubted"), [(105, True), (110, False), (150, False), (-1, False)])
async def test_a_new_leader_is_asked_whether_it_has_what_was_read(
    monkeypatch: pytest.MonkeyPatch, end: int, doubted: bool
) -> None:
    """After an unclean election its log may be as long again, and hold other records."""
    world = World(monkeypatch)
    world.data = batch(100, 4)
    await world.fetch()
    assert (world.reading.next_fetch, world.fetched) == (110, [100])
    world.epoch, world.epoch_end, world.data = 5, end, batch(110, 5)
    await world.fetch()
    assert world.reading.range_unclear is doubted
    assert world.fetched == ([100] if doubted else [100, 110])
    assert world.reading.next_fetch == (110 if doubted else 120)


async def test_the_end_that_a_new_leader_tells_is_believed_once_it_knows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its high watermark may be below records that were committed before it led. They may be of a transaction that
    another partition has wholly, which would be divided."""
    world = World(monkeypatch)
    world.data, world.high_watermark = batch(100, 4), 110
    await world.fetch()
    await world.end_told()
    world.reader.tick, world.data = 7, b""
    await world.fetch()
    assert world.reading.lane.current == 7
    world.epoch, world.knows_end = 5, False
    await world.fetch()
    await world.end_told()
    await world.fetch()
    assert world.reading.lane.current == 7, "the partition may go on after 110"
    await world.end_told()
    world.knows_end = True
    await world.fetch()
    await world.end_told()
    await world.fetch()
    assert world.reading.lane.current == 11
    world.knows_end = False
    await world.fetch()
    assert world.reading.lane.current == 12, "one answer is enough"


async def test_a_leader_that_does_not_tell_one_end_tells_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise transactions in all of its partitions would wait."""
    world = World(monkeypatch)
    silent = TopicPartition("t", PartitionIndex(3))
    readings = [world.reader.add(TopicPartition("t", PartitionIndex(i)), 0, uuid.UUID(int=0), 4) for i in range(6)]

    async def list_offsets(_: Any, __: int, times: Mapping[TopicPartition, int], *, committed: bool) -> Any:
        world.asked_for_end += 1
        if silent in times:
            raise RetriableError("its end is not known yet", code=ErrorCode.OFFSET_NOT_AVAILABLE)
        return {}

    monkeypatch.setattr(module, "list_offsets", list_offsets)
    await world.reader._look_for_ends(dict.fromkeys(readings, 4))
    assert [each.sure_of for each in readings] == [4, 4, 4, None, 4, 4]
    assert world.asked_for_end <= 7


async def test_a_leader_that_does_not_tell_the_end_holds_no_records_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other partitions of the same node, too, are read meanwhile."""
    world = World(monkeypatch)
    world.answers_end.clear()
    world.data, world.high_watermark = batch(100, 4), 110
    async with asyncio.timeout(5):
        await world.fetch()
    world.data = b""
    for _ in range(2):
        await world.fetch()
        await asyncio.sleep(0)
    assert (world.reading.next_fetch, world.reading.lane.current) == (110, -1)
    assert world.asked_for_end == 1, "one question at a time"
    world.epoch = 5  # another leader: the answer is about the former one
    world.answers_end.set()
    await world.end_told()
    await world.fetch()
    assert world.reading.lane.current == -1
    await world.reader.close()


@pytest.mark.parametrize(("topic", "doubted"), [
    (None, True), (SimpleNamespace(partitions={0: None}, topic_id=uuid.UUID(int=7)), True),
    (SimpleNamespace(partitions={}, topic_id=uuid.UUID(int=0)), True),
    (SimpleNamespace(partitions={0: None}, topic_id=uuid.UUID(int=0)), False),
])  # fmt: skip
async def test_a_topic_is_gone_only_if_the_source_says_so_when_asked(
    monkeypatch: pytest.MonkeyPatch, topic: Any, doubted: bool
) -> None:
    """A broker that has just started may not know of it yet. A lane that ended holds no other lane's transactions."""
    world = World(monkeypatch)
    world.code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    world.topics = {} if topic is None else {"t": topic}
    await world.fetch()
    assert not world.reading.lane.ended
    await asyncio.gather(*world.reader._questions.values())
    assert (world.asked, world.reading.lane.ended, world.reading.range_unclear) == (1, doubted, doubted)
