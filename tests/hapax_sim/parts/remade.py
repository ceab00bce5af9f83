"""A topic that is deleted and created again while clients continue to write to it and read from it.

A record that was sent after the topic existed again, and acknowledged before a reader started from the beginning, is in
that reading. Clients continue: each record gets an outcome, and a consumer that also reads other topics does not
end."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final, NamedTuple

from hapax.client import Admin, Consumer, HapaxError, NewTopic, Producer, RetriableError, TopicPartition
from hapax.core.errors import ErrorCode
from hapax_sim.clients import Life, Program
from hapax_sim.parts.part import PartTopic, a_few_of_each

_REMADE: Final = "remade"
_STEADY: Final = "steady"
_WHERE: Final = TopicPartition(_REMADE, 0)  # type: ignore[arg-type]
_BESIDE: Final = TopicPartition(_STEADY, 0)  # type: ignore[arg-type]
_VISITORS: Final = 3
_NOT_THERE: Final = frozenset({
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INCONSISTENT_TOPIC_ID,
    ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
})  # fmt: skip
"""Errors that a client may get for good when its topic is deleted."""


class _Sent(NamedTuple):
    value: str
    topic_id: str
    """The id that the producer knew from before it sent the value until after the answer. Its requests name the topic
    by this id."""
    acknowledged: float


def _known_id(producer: Producer) -> str:
    known = producer._cluster.topics.get(_REMADE)
    return "" if known is None else str(known.topic_id)


class Remade:
    topics: Mapping[str, PartTopic] = {_REMADE: PartTopic(1), _STEADY: PartTopic(1)}

    def __init__(self) -> None:
        self.sent: list[_Sent] = []
        self.found: list[str] = []
        self.former: set[str] = set()
        """Ids of the topics that had the name."""
        self.steady_sent: list[str] = []
        self.steady_read: dict[str, list[str]] = {}

    def programs(self) -> dict[str, Program]:
        visitors: dict[str, Program] = {f"visitor-{number}": self.write for number in range(_VISITORS)}
        return {"remaker-0": self.remake, **visitors, "follower-0": self.follow}

    # --- the program that deletes and creates it

    async def remake(self, life: Life) -> None:
        loop = life.recorder.loop
        async with Admin(life.settings(default__api__timeout__ms="20000"), ports=life.ports) as admin:
            while not life.stopping():
                try:
                    await admin.delete_topics([_REMADE])
                except HapaxError as error:
                    if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                        raise
                loop.trace(f"{life.process} deleted {_REMADE}")
                if life.rng.random() < 0.3:
                    await life.pause()
                await admin.create_topics([NewTopic(_REMADE, 1, 3)], exist_ok=True)
                made = await self._new_id(admin)
                loop.trace(f"{life.process} made {_REMADE} {made}")
                await asyncio.sleep(life.rng.uniform(0.5, 12.0))
                try:
                    missing = await self._read_all(life, made) if made else []
                    # A deletion that the network delayed may have deleted the new topic by its name.
                    if made and made == await self._topic_id(admin):
                        self.found += missing
                except RetriableError:
                    life.recorder.counts["remade not read"] += 1

    async def _new_id(self, admin: Admin) -> str:
        """Empty: the brokers that were asked still show an earlier topic, as a broker does that is cut off from the
        store."""
        for _ in range(20):
            found = await self._topic_id(admin)
            if found and found not in self.former:
                self.former.add(found)
                return found
            await asyncio.sleep(0.2)
        return ""

    @staticmethod
    async def _topic_id(admin: Admin) -> str:
        """Empty: there is no such topic."""
        return next((topic.topic_id for topic in await admin.list_topics() if topic.name == _REMADE), "")

    async def _read_all(self, life: Life, topic_id: str) -> list[str]:
        now = life.recorder.loop.time()
        wanted = {one.value for one in self.sent if one.topic_id == topic_id and one.acknowledged <= now}
        settings = life.settings(
            auto__offset__reset="earliest", enable__auto__commit="false", default__api__timeout__ms="20000")
        seen = []
        async with Consumer(settings, ports=life.ports) as consumer:
            end = (await consumer.end_offsets([_WHERE]))[_WHERE]
            consumer.assign([_WHERE])
            limit = life.recorder.loop.time() + 40
            while await consumer.position(_WHERE) < end and life.recorder.loop.time() < limit:
                for record in await consumer.poll(timeout_ms=200, max_records=1000):
                    assert record.value is not None
                    seen.append(record.value.decode())
            whole = await consumer.position(_WHERE) >= end
        if not whole:
            return []
        life.recorder.counts["remade read"] += 1
        missing, double = sorted(wanted - set(seen)), len(seen) - len(set(seen))
        found = []
        if missing:
            found.append(
                f"lost-write: {_REMADE} {topic_id}, read at {now:.3f} s: {len(missing)} acknowledged values are "
                f"not in it, such as {missing[:3]}")
        if double:
            found.append(f"duplicate: {double} values stand twice in {_REMADE}")
        return found

    # --- the programs that use it

    async def write(self, life: Life) -> None:
        """One producer over many lives of the topic. It also writes to a topic that stays."""
        loop = life.recorder.loop
        number = 0
        async with Producer(life.writing(), ports=life.ports) as producer:
            while not life.stopping():
                number += 1
                value, before = f"{life.process}.{number}", _known_id(producer)
                steady = asyncio.ensure_future(self._send(producer, _STEADY, value))
                if await self._send(producer, _REMADE, value) and before == _known_id(producer):
                    self.sent.append(_Sent(value, before, loop.time()))
                if await steady:
                    self.steady_sent.append(value)
                await life.pause()

    async def _send(self, producer: Producer, topic: str, value: str) -> bool:
        """Returns whether it was acknowledged. Raises errors that the topic that stays must not have."""
        try:
            async with asyncio.timeout(120):
                await producer.send_and_wait(topic, value.encode(), partition=0)
            return True
        except TimeoutError:
            self.found.append(f"no-outcome: {value} to {topic} has none after 120 s")
            return False
        except RetriableError:
            return False
        except HapaxError as error:
            if error.code in _NOT_THERE:
                return False
            raise

    async def follow(self, life: Life) -> None:
        """Reads both topics. Events of the one must not lose records of the other."""
        read = self.steady_read.setdefault(life.process, [])
        settings = life.settings(auto__offset__reset="earliest", enable__auto__commit="false")
        async with Consumer(settings, ports=life.ports) as consumer:
            consumer.assign([_WHERE, _BESIDE])
            while not life.stopping():
                try:
                    for record in await consumer.poll(timeout_ms=300, max_records=100):
                        if record.topic == _STEADY:
                            assert record.value is not None
                            read.append(record.value.decode())
                except RetriableError:
                    continue
                except HapaxError as error:
                    if error.code not in _NOT_THERE:
                        self.found.append(f"reader-failed: {life.process}: {type(error).__name__}: {error}")
                        raise

    # --- the end

    async def finish(self, life: Life) -> None:
        settings = life.settings(auto__offset__reset="earliest", enable__auto__commit="false")
        seen = []
        async with Consumer(settings, ports=life.ports) as consumer:
            end = (await consumer.end_offsets([_BESIDE]))[_BESIDE]
            consumer.assign([_BESIDE])
            while await consumer.position(_BESIDE) < end:
                seen += [(r.value or b"").decode() for r in await consumer.poll(timeout_ms=200, max_records=1000)]
        missing = sorted(set(self.steady_sent) - set(seen))
        if missing:
            self.found.append(f"lost-write: {_STEADY}: {len(missing)} acknowledged values, such as {missing[:3]}")
        for process, read in self.steady_read.items():
            if read != seen[: len(read)]:
                self.found.append(f"poll-skip: {process} did not read {_STEADY} as it is")

    def judge(self) -> list[str]:
        return a_few_of_each(self.found)
