"""Members of consumer groups that run the project's own client: they subscribe, are told of partitions by callbacks,
and consume, process and produce in transactions that may span several polls.

Such a program ends its transaction when a callback says that partitions are taken away, as Kafka's documentation
advises: until the callback has returned the member may still commit. Now and then it stands still for longer than its
time-outs, also within a callback, dies without a word, or pauses a partition."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from hapax.client import AbortableError, Consumer, HapaxError, Producer, Record, RetriableError, TopicPartition
from hapax.client.classic_membership import ClassicMembership
from hapax_sim.clients import Life
from hapax_sim.members import REBALANCE_MS, SESSION_MS, Told, Watch

if TYPE_CHECKING:
    from hapax_sim.parts.groups import Groups

_BEAT_MS: Final = 400
_IDLE_S: Final = 5.0
"""A program without work commits its positions again after this time, and so learns whether it was fenced."""


class NativeMember:
    """What a watch knows of a member: see `members.Member`. It lasts as long as its consumer."""

    def __init__(self, life: Life, group: str, instance_id: str | None, watch: Watch, consumer: Consumer) -> None:
        self.life, self.group, self.instance_id = life, group, instance_id
        self.watch, self._consumer = watch, consumer
        self.member_id = ""
        self.epoch = -1
        self.held: Mapping[int, int] = {}

    @property
    def key(self) -> str:
        return self.instance_id or self.member_id

    def look(self) -> None:
        """Tells what the client holds now. Not while a round of the classic protocol is under way: a coordinator that
        fails uses the number of a generation that it has not stored again."""
        member = self._consumer._member
        membership = None if member is None else member._membership
        if membership is None or not membership.usable:
            return
        if isinstance(membership, ClassicMembership) and membership._target is None:
            return
        who = self._consumer.group_metadata()
        fence_at = membership.fence_at()
        if who.generation <= 0 or who.assigned is None or fence_at is None:
            return
        self.member_id, self.epoch = who.member_id, who.generation
        held = frozenset(each.partition for each in who.assigned)
        self.held = dict.fromkeys(sorted(held), 0)
        cluster = self._consumer._cluster
        address = cluster.nodes.get(cluster._coordinators.get(("group", self.group), -1), (self.life.process, 0))
        now = self.life.recorder.loop.time()
        alive_until = now + (fence_at - cluster.now()) / 1000
        self.watch.told(self, Told(self.epoch, held, alive_until, address))

    def loses(self, partitions: Iterable[TopicPartition]) -> None:
        """A callback begins that takes them away."""
        numbers = {each.partition for each in partitions}
        self.held = {p: serial for p, serial in self.held.items() if p not in numbers}
        self.watch.lost(self, numbers)

    def releases(self, partitions: Iterable[TopicPartition]) -> None:
        """That callback returns."""
        self.watch.released(self, [each.partition for each in partitions])


class NativeWorker:
    """Copies what its consumer is assigned, from when it subscribes until it has had enough."""

    def __init__(
        self, part: Groups, life: Life, producer: Producer, group: str, settings: Mapping[str, str], source: str,
        output: str,
    ) -> None:  # fmt: skip
        self.part, self.life, self.producer, self.output = part, life, producer, output
        self.group = part.groups[group]
        self.source = source
        self.instance_id = life.name if "static" in life.name else None
        self._settings = life.settings(
            group__id=self.group.name, isolation__level="read_committed", auto__offset__reset="earliest",
            enable__auto__commit="false", default__api__timeout__ms="20000", session__timeout__ms=str(SESSION_MS),
            max__poll__interval__ms=str(REBALANCE_MS),
        ) | dict(settings)  # fmt: skip
        if settings["group.protocol"] == "classic":
            self._settings["heartbeat.interval.ms"] = str(_BEAT_MS)
        if self.instance_id is not None:
            self._settings["group.instance.id"] = self.instance_id
        self._positions: dict[TopicPartition, int] = {}
        """The open transaction's: what it will commit. Empty: none is open."""
        self._begun: dict[TopicPartition, int] = {}
        """Where it began to read."""

    async def run(self) -> None:
        """One consumer's life. It may subscribe several times."""
        watching = self.life.settings(group__id=self.group.name, default__api__timeout__ms="2000")
        async with (
            Consumer(self._settings, ports=self.life.ports) as consumer,
            Consumer(watching, ports=self.life.ports) as self._outside,
        ):
            self.consumer = consumer
            while not self.group.over:
                self.member = NativeMember(self.life, self.group.name, self.instance_id, self.part, consumer)
                consumer.subscribe(
                    [self.source], on_assigned=self._assigned, on_revoked=self._revoked, on_lost=self._lost)
                await self._work()
                if self.group.over:
                    return
                fate = self.life.rng.random()
                if fate < 0.2:  # it dies without a word, amid a transaction or not
                    self.life.crash(self.life.name)
                    await asyncio.sleep(3600.0)
                await consumer.unsubscribe()
                if fate < 0.6:
                    return
                await asyncio.sleep(self.life.rng.uniform(0.1, 3.0))

    async def _work(self) -> None:
        rng, consumer = self.life.rng, self.consumer
        patience_ends = self._now() + rng.expovariate(1 / 5.0)
        looked_at = busy_at = self._now()
        while not self.group.over:
            stopping = self.life.stopping()
            if not stopping and self._now() > patience_ends:
                return
            if stopping and self._now() > looked_at + 1:
                looked_at = self._now()
                with contextlib.suppress(RetriableError):
                    await self.part.look_for_the_end(self.life, self.group, self._outside)
            self._pause_or_resume(stopping)
            records = await consumer.poll(timeout_ms=100, max_records=20)
            self.member.look()
            if records:
                await self._write(records)
            elif not self._positions and self._now() > busy_at + _IDLE_S and consumer.assignment():
                await self._write([])
                busy_at = self._now()
            if self._positions and (not records or rng.random() < 0.6):
                await self._end(commit=True)
            if records:
                busy_at = self._now()

    # --- callbacks

    async def _assigned(self, partitions: list[TopicPartition]) -> None:
        self.member.look()

    async def _revoked(self, partitions: list[TopicPartition]) -> None:
        await self._give_up(partitions, commit=self.life.rng.random() < 0.7)

    async def _lost(self, partitions: list[TopicPartition]) -> None:
        """Nothing can be committed any more."""
        await self._give_up(partitions, commit=self.life.rng.random() < 0.2)  # some programs try all the same

    async def _give_up(self, partitions: list[TopicPartition], *, commit: bool) -> None:
        self.member.loses(partitions)
        try:
            await self._end(commit)
        except HapaxError:  # not `finally`, which would run when the memory of a dead process is cleared
            self.member.releases(partitions)
            raise
        self.member.releases(partitions)

    # --- transactions

    async def _write(self, records: list[Record]) -> None:
        """Without records: the positions alone, as they are."""
        if not self._positions:
            self._begin()
        try:
            for record in records:
                where = TopicPartition(record.topic, record.partition)
                self._begun.setdefault(where, record.offset)
                self._positions[where] = record.offset + 1
                self.group.open.setdefault(record.partition, set()).add(self.life.name)
                await self.producer.send(self.output, record.value, partition=record.partition)
            if not records:
                for where in self.consumer.assignment():
                    self._begun[where] = self._positions[where] = await self.consumer.position(where)
            await self._dawdle(0.7, 1.0)
        except (AbortableError, RetriableError) as error:
            await self._abort(error)

    def _begin(self) -> None:
        self.producer.begin()
        identity = self.producer.identity
        self.life.recorder.identities.append((identity.producer_id, identity.generation, self.life.process))

    async def _end(self, commit: bool) -> None:
        if not self._positions:
            return
        counts = self.life.recorder.counts
        try:
            if not commit:
                raise AbortableError("the program gives up")
            await self._dawdle(0.3, 2.0)
            await self.producer.send_offsets(self._positions, self.consumer.group_metadata())
            await self._dawdle(0.5, 1.0)
            await self._commit()
            counts["txn ok"] += 1
        except (AbortableError, RetriableError) as error:
            await self._abort(error)
            return
        self._forget()

    async def _abort(self, error: Exception) -> None:
        """What was read is read again, unless the partition is gone."""
        self.life.recorder.loop.trace(f"{self.life.process} aborts: {error}")
        await self.producer.abort()
        self.life.recorder.counts["txn fail"] += 1
        assigned = self.consumer.assignment()
        for where, offset in self._begun.items():
            if where in assigned:
                self.consumer.seek(where, offset)
        self._forget()

    def _forget(self) -> None:
        for each in self._positions:
            self.group.open.get(each.partition, set()).discard(self.life.name)
        self._positions, self._begun = {}, {}

    async def _commit(self) -> None:
        while True:
            try:
                await self.producer.commit()
                return
            except RetriableError:
                self.life.recorder.counts["commit asked again"] += 1

    # --- delays

    def _pause_or_resume(self, stopping: bool) -> None:
        for each in self.consumer.assignment():
            if stopping or self.life.rng.random() < 0.5:
                self.consumer.resume(each)
            elif self.life.rng.random() < 0.02:
                self.consumer.pause(each)

    async def _dawdle(self, share: float, most_s: float) -> None:
        """In a few cases the program works for longer than its session and the interval in which it must poll."""
        rng = self.life.rng
        if self.life.stopping():
            return
        if rng.random() < 0.02:
            await asyncio.sleep(rng.uniform(3.0, 14.0))
        elif rng.random() < share:
            await asyncio.sleep(rng.uniform(0.0, most_s))

    def _now(self) -> float:
        return self.life.recorder.loop.time()
