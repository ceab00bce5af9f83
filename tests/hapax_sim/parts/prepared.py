"""Programs with two-phase commit (KIP-939): another system, here a store outside of the cluster, decides each
transaction. What the store says is committed is readable once, and nothing else ever.

A program dies, stands still or is started twice at any step; its next life keeps what is prepared and ends it as the
store has decided. Some programs never come back: an operator looks into the store and ends their transactions."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Final

from hapax.client import (
    AbortableError,
    Admin,
    Consumer,
    HapaxError,
    PreparedTransaction,
    Producer,
    RetriableError,
    TopicPartition,
)
from hapax_sim.clients import Life, Program
from hapax_sim.parts.part import PartTopic, a_few_of_each

BOOKED: Final = "booked"
PARTITIONS: Final = 3
SETTINGS: Final = (
    "transaction.two.phase.commit.enable=true", "transaction.late.after.ms=5000",
    "transactional.id.expiration.ms=20000",
)
_BOOKERS: Final = 3
_LOOKS_EVERY_S: Final = 4.0
_ENDS_WITHIN_S: Final = 120.0


class _TakenOver(Exception):
    """The store has another holder for this id."""


class _Store:
    """A database with transactions: each method is one of them."""

    def __init__(self) -> None:
        self.holder: dict[str, str] = {}
        self.decided: dict[str, PreparedTransaction] = {}
        """Transactional id -> the last transaction that was committed here."""
        self.committed: list[str] = []

    def take_over(self, transactional_id: str, holder: str) -> PreparedTransaction | None:
        self.holder[transactional_id] = holder
        return self.decided.get(transactional_id)

    def decide(self, transactional_id: str, holder: str, prepared: PreparedTransaction, values: list[str]) -> None:
        if self.holder[transactional_id] != holder:
            raise _TakenOver
        self.decided[transactional_id] = prepared
        self.committed += values


class Prepared:
    topics: Mapping[str, PartTopic] = {BOOKED: PartTopic(PARTITIONS)}

    def __init__(self) -> None:
        self.store = _Store()
        self.runs: Counter[str] = Counter()
        """Booker -> how many of its ids were abandoned."""
        self.abandoned: set[str] = set()
        self.found: list[str] = []
        self.seen: Counter[str] = Counter()

    def programs(self) -> dict[str, Program]:
        return {**{name: self.book for name in self._bookers()}, "operator-0": self.operate}

    @property
    def lasting(self) -> list[str]:
        """What is prepared is ended after the workload has stopped, too."""
        return [*self._bookers(), "operator-0"]

    @staticmethod
    def _bookers() -> list[str]:
        return [f"booker-{number}" for number in range(_BOOKERS)]

    # --- programs

    async def book(self, life: Life) -> None:
        while True:
            transactional_id = f"{life.name}.{self.runs[life.name]}"
            settings = life.writing(transactional__id=transactional_id) | {
                "transaction.two.phase.commit.enable": "true"}
            del settings["transaction.timeout.ms"]
            async with Producer(settings, ports=life.ports) as producer:
                await self._complete(life, producer, self.store.take_over(transactional_id, life.process))
                while not life.stopping() and transactional_id not in self.abandoned:
                    try:
                        await self._once(life, producer, transactional_id)
                    except _TakenOver:
                        return
                    await life.pause()
            if life.stopping():
                return

    async def _once(self, life: Life, producer: Producer, transactional_id: str) -> None:
        rng = life.rng
        producer.begin()
        identity = producer.identity
        life.recorder.identities.append((identity.producer_id, identity.generation, life.process))
        values = []
        try:
            for number in range(rng.randrange(1, 5)):
                values.append(f"{life.process}.{identity.producer_id}.{identity.generation}.{number}")
                await producer.send(BOOKED, values[-1].encode(), partition=rng.randrange(PARTITIONS))
            if rng.random() < 0.1:
                raise AbortableError("the program changed its mind")
            prepared = await producer.prepare()
        except (AbortableError, RetriableError):
            await producer.abort()
            life.recorder.counts["txn fail"] += 1
            return
        await self._dawdle(life)
        if rng.random() < 0.8:
            self.store.decide(transactional_id, life.process, prepared, values)
        await self._dawdle(life)
        if rng.random() < 0.05:
            self.runs[life.name] += 1
            self.abandoned.add(transactional_id)
            return
        await self._complete(life, producer, self.store.decided.get(transactional_id))

    async def _complete(self, life: Life, producer: Producer, decided: PreparedTransaction | None) -> None:
        while True:
            try:
                committed = await producer.complete(decided)
            except RetriableError:
                life.recorder.counts["commit asked again"] += 1
            else:
                life.recorder.counts["txn ok" if committed else "txn fail"] += committed is not None
                return

    async def _dawdle(self, life: Life) -> None:
        """Now and then for longer than any time-out, or for ever."""
        rng = life.rng
        chance = rng.random()
        if chance < 0.03 and not life.stopping():
            life.crash(life.name)
            await asyncio.sleep(3600.0)
        elif chance < 0.06 and not life.stopping():
            await asyncio.sleep(rng.uniform(10.0, 40.0))
        elif chance < 0.5:
            await asyncio.sleep(rng.uniform(0.0, 1.0))

    async def operate(self, life: Life) -> None:
        """Ends what abandoned ids have left."""
        ended = False
        async with Admin(life.settings(default__api__timeout__ms="10000"), ports=life.ports) as admin:
            while not ended:
                ended = life.stopping() and life.others_done()
                try:
                    left = [each for each in await admin.list_two_phase() if each.transactional_id in self.abandoned]
                    for each in left:
                        name = PreparedTransaction(each.producer_id, each.producer_epoch)
                        await self._end(life, admin, each.transactional_id, name)
                except RetriableError as error:
                    life.recorder.loop.trace(f"{life.process} tries again: {error}")
                    ended = False
                await asyncio.sleep(_LOOKS_EVERY_S)

    async def _end(self, life: Life, admin: Admin, transactional_id: str, name: PreparedTransaction) -> None:
        decided = self.store.take_over(transactional_id, life.process)
        serial = (await admin.describe_transactional_id(transactional_id)).serial
        life.recorder.counts["ended by the operator"] += 1
        try:
            if decided == name:
                await admin.commit_prepared(transactional_id, serial=serial, by="operator")
            else:
                await admin.fence_and_abort(transactional_id, serial=serial, by="operator")
        except RetriableError:
            raise
        except HapaxError as error:  # a former life of its program was faster; it does as the store says, too
            life.recorder.loop.trace(f"{life.process} finds {transactional_id} ended: {error}")

    # --- the end

    async def finish(self, life: Life) -> None:
        where = [TopicPartition(BOOKED, p) for p in range(PARTITIONS)]  # type: ignore[arg-type]
        settings = {"auto.offset.reset": "earliest", "enable.auto.commit": "false"} | life.settings()
        loop = life.recorder.loop
        async with (
            Consumer(settings | {"isolation.level": "read_uncommitted"}, ports=life.ports) as all_records,
            Consumer(settings | {"isolation.level": "read_committed"}, ports=life.ports) as consumer,
        ):
            limit = loop.time() + _ENDS_WITHIN_S
            while (ends := await all_records.end_offsets(where)) != (stable := await consumer.end_offsets(where)):
                assert loop.time() < limit, f"a prepared transaction stays open: {stable} of {ends}"
                await asyncio.sleep(0.5)
            consumer.assign(where)
            while not all([await consumer.position(each) >= ends[each] for each in where]):
                for record in await consumer.poll(timeout_ms=200, max_records=10_000):
                    self.seen[(record.value or b"").decode()] += 1

    def judge(self) -> list[str]:
        decided, seen = set(self.store.committed), set(self.seen)
        self.found += [f"lost-booking: {each} was decided and is not readable" for each in sorted(decided - seen)]
        self.found += [f"undecided-booking: {each} is readable" for each in sorted(seen - decided)]
        self.found += [f"doubled-booking: {each} is readable {n} times" for each, n in self.seen.items() if n > 1]
        return a_few_of_each(self.found)
