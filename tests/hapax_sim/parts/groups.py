"""Groups of members that consume, process and produce in transactions while they join, pause, leave and die.

Members of a raw protocol program and of the native client share the groups. Each group copies one topic to a topic of
its own. Because a partition is copied in order, and each record once, the copy must equal its input."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from hapax.client import AbortableError, Admin, Consumer, Producer, Record, RetriableError, TopicPartition
from hapax.client.coordination import ConsumerGroup
from hapax_sim.clients import Life, Program
from hapax_sim.members import KINDS, PROTOCOL, SESSION_MS, Member, Told
from hapax_sim.native_members import NativeMember, NativeWorker
from hapax_sim.parts.part import PartTopic, a_few_of_each
from hapax_sim.recorder import MOVED

INPUT: Final = "group-input"
PARTITIONS: Final = 6
SETTINGS: Final = (
    "group.initial.rebalance.delay.ms=300",
    "group.consumer.session.timeout.ms=6000",
    "group.consumer.heartbeat.interval.ms=400",
    "group.consumer.assignment.interval.ms=200",
)
_CLASSIC: Final = {"group.protocol": "classic", "partition.assignment.strategy": PROTOCOL}
_COOPERATIVE: Final = {"group.protocol": "classic", "partition.assignment.strategy": "cooperative-sticky"}
_CONSUMER: Final = {"group.protocol": "consumer"}
_CAST: Final[Mapping[str, Mapping[str, str | Mapping[str, str]]]] = {
    "classic": {"raw-0": "classic", "raw-static-0": "classic", "native-0": _CLASSIC, "native-static-0": _CLASSIC},
    "consumer": {"raw-0": "consumer", "raw-static-0": "consumer", "native-0": _CONSUMER, "native-static-0": _CONSUMER},
    "cooperative": {"native-0": _COOPERATIVE, "native-1": _COOPERATIVE, "native-static-0": _COOPERATIVE},
    "hybrid": {"raw-0": "consumer", "native-0": _CONSUMER, "native-classic-0": _COOPERATIVE},
}
"""Group -> member -> the raw protocol, or the native client's settings."""
_TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    "classic": ("classic",), "consumer": ("consumer",), "cooperative": ("classic",), "hybrid": ("classic", "consumer"),
}
"""The protocol that each group may have at the end. Members of both make a group that changes it as they come and go.
"""
_SETTLED_WITHIN_S: Final = 60.0
"""After the faults: a transaction's time-out, a session, a rebalance time-out and a few calls that are repeated."""


Known = Member | NativeMember


@dataclass
class Group:
    """What the members of one group have been told, as known from outside of their processes."""

    name: str
    told: dict[str, tuple[Known, Told]] = field(default_factory=dict)
    """Program -> its newest member."""
    alive: dict[int, dict[str, Told]] = field(default_factory=dict)
    """Partition -> member that has not given it up -> what it was told."""
    ids: dict[str, str] = field(default_factory=dict)
    """Member -> the member id of its newest process."""
    owners: dict[tuple[int, int], str] = field(default_factory=dict)
    """(partition, epoch) -> its owner."""
    holder: dict[int, str] = field(default_factory=dict)
    """Partition -> the life that was told so last."""
    open: dict[int, set[str]] = field(default_factory=dict)
    """Partition -> programs with a transaction that has its records."""
    moving: set[int] = field(default_factory=set)
    """Partitions that were given up amid a transaction and have no new owner yet."""
    over: bool = False

    def settled(self, names: Iterable[str]) -> bool:
        """All members were told the same epoch, and own everything between them."""
        if set(names) != self.told.keys() or len({told.epoch for _, told in self.told.values()}) != 1:
            return False
        held = [p for member, _ in self.told.values() for p in member.held]
        return sorted(held) == list(range(PARTITIONS))


class Groups:
    """`members.Watch`."""

    topics: Mapping[str, PartTopic] = {
        INPUT: PartTopic(PARTITIONS), **{f"group-output-{kind}": PartTopic(PARTITIONS) for kind in _CAST}}

    def __init__(self) -> None:
        self.groups = {kind: Group(f"{kind}-group") for kind in _CAST}
        self.names = {kind: [f"member-{kind}-{name}" for name in cast] for kind, cast in _CAST.items()}
        self.found: list[str] = []
        self.feeding = False
        self.stopped_at: float | None = None

    def programs(self) -> dict[str, Program]:
        return {"feeder-0": self.feed} | {name: self.consume for names in self.names.values() for name in names}

    @property
    def lasting(self) -> list[str]:
        """Programs that go on when the workload stops, until they have read everything."""
        return [name for names in self.names.values() for name in names]

    async def feed(self, life: Life) -> None:
        number = 0
        self.feeding = True
        try:
            async with Producer(life.writing(), ports=life.ports) as producer:
                while not life.stopping():
                    sent = []
                    for _ in range(life.rng.randrange(1, 8)):
                        number += 1
                        sent.append(await producer.send(
                            INPUT, f"{life.process}.{number}".encode(), partition=life.rng.randrange(PARTITIONS)))
                    for one in sent:
                        await one
                    await life.pause()
        finally:
            self.feeding = False

    # --- one member's life

    async def consume(self, life: Life) -> None:
        _, kind, name = life.name.split("-", 2)
        group = self.groups[kind]
        role = _CAST[kind][name]
        for names in group.open.values():
            names.discard(life.name)  # the former life's transaction is fenced below
        if isinstance(role, str):
            await self._consume_raw(life, group, KINDS[role], f"group-output-{kind}")
            return
        async with Producer(life.writing(transactional__id=life.name), ports=life.ports) as producer:
            while not group.over:
                await NativeWorker(self, life, producer, kind, role, INPUT, f"group-output-{kind}").run()
                await asyncio.sleep(life.rng.uniform(0.1, 3.0))

    async def _consume_raw(self, life: Life, group: Group, kind: Callable[..., Member], output: str) -> None:
        reading = life.settings(
            group__id=group.name, isolation__level="read_committed", auto__offset__reset="earliest",
            enable__auto__commit="false", default__api__timeout__ms="20000",
        )  # fmt: skip
        async with (
            Producer(life.writing(transactional__id=life.name), ports=life.ports) as producer,
            Consumer(reading, ports=life.ports) as consumer,
        ):
            while not group.over:
                instance = life.name if "static" in life.name else None
                member = kind(life, group.name, INPUT, PARTITIONS, instance, self)
                running = asyncio.ensure_future(member.run())
                try:
                    await _Worker(self, life, group, member, running, producer, consumer, output).run()
                finally:
                    running.cancel()
                    member.close()
                if life.rng.random() < 0.8 or group.over:
                    await member.leave()
                    member.close()
                await asyncio.sleep(life.rng.uniform(0.1, 3.0))

    # --- what members are told

    def told(self, member: Known, told: Told) -> None:
        group = self._group(member)
        former = group.told.get(member.life.name)
        if former is None or _number(former[0]) <= _number(member):
            group.told[member.life.name] = (member, told)
        now = member.life.recorder.loop.time()
        successor = group.ids.get(member.key) not in (None, member.member_id)
        group.ids[member.key] = member.member_id
        for partition, holders in group.alive.items():
            if member.key in holders:
                if successor and partition not in told.partitions:
                    # The session of the former process has ended, and its place was taken without this partition.
                    del holders[member.key]
                else:
                    holders[member.key] = told
        self._notice_new_epochs(group, member, told, now)
        for partition in sorted(told.partitions):
            owner = group.owners.setdefault((partition, told.epoch), member.key)
            if owner != member.key:
                self.found.append(
                    f"two-owners: {group.name} gave {INPUT}-{partition} at epoch {told.epoch} to {owner} and to "
                    f"{member.key} ({member.life.process})")
            holders = group.alive.setdefault(partition, {})
            if member.key not in holders:
                self._check_alone(group, member, partition, told, now)
            holders[member.key] = told
            self._note_move(group, member, partition)

    @staticmethod
    def _notice_new_epochs(group: Group, member: Known, told: Told, now: float) -> None:
        """A group of the consumer protocol that is empty when a member of the classic protocol joins counts its epochs
        from the beginning, as in Kafka. Without a member, nothing has an owner."""
        others = (other for holders in group.alive.values() for key, other in holders.items() if key != member.key)
        if len(_TYPES[group.name.removesuffix("-group")]) > 1 and told.epoch <= max(
            (epoch for _, epoch in group.owners), default=0
        ) and all(other.alive_until < now for other in others):
            group.owners.clear()

    def _check_alone(self, group: Group, member: Known, partition: int, told: Told, now: float) -> None:
        """Where one coordinator speaks to both: it gives nothing away that a living member has not given up. Not in
        the classic protocol, which ends a round without the members that are late for it."""
        if "classic" in _TYPES[group.name.removesuffix("-group")]:
            return
        for key, other in group.alive[partition].items():
            if key != member.key and other.by == told.by and now < other.alive_until - 0.1:
                self.found.append(
                    f"not-free: {group.name} gave {INPUT}-{partition} to {member.key} at epoch {told.epoch}, while "
                    f"{key} has it since epoch {other.epoch}")

    def _note_move(self, group: Group, member: Known, partition: int) -> None:
        former = group.holder.get(partition)
        group.holder[partition] = member.life.name
        others = group.open.get(partition, set()) - {member.life.name}
        if former != member.life.name and (others or partition in group.moving):
            member.life.recorder.counts[MOVED] += 1
        group.moving.discard(partition)

    def lost(self, member: Known, partitions: Iterable[int]) -> None:
        group = self._group(member)
        group.moving.update(p for p in partitions if member.life.name in group.open.get(p, ()))

    def released(self, member: Known, partitions: Iterable[int]) -> None:
        for partition in partitions:
            self._group(member).alive.get(partition, {}).pop(member.key, None)

    def _group(self, member: Known) -> Group:
        return next(group for group in self.groups.values() if group.name == member.group)

    # --- the end

    async def look_for_the_end(self, life: Life, group: Group, consumer: Consumer) -> None:
        """Everything has been read, and the group has settled."""
        loop = life.recorder.loop
        if self.stopped_at is None:
            self.stopped_at = loop.time()
        everything = [_where(INPUT, p) for p in range(PARTITIONS)]
        ends = await consumer.end_offsets(everything)
        committed = await consumer.committed(everything)
        read = all(not ends[each] or (each in committed and committed[each].offset == ends[each]) for each in ends)
        if group.over or self.feeding or not read or not group.settled(self.names[life.name.split("-")[1]]):
            return
        if loop.time() > self.stopped_at + _SETTLED_WITHIN_S:
            self.found.append(f"late: {group.name} settled after {loop.time() - self.stopped_at:.1f} s")
        loop.trace(f"{group.name} is over")
        group.over = True

    async def finish(self, life: Life) -> None:
        copied = await self._read(life, INPUT)
        for kind, group in self.groups.items():
            copies = await self._read(life, f"group-output-{kind}")
            for partition, values in copied.items():
                self._compare(f"group-output-{kind}-{partition}", values, copies[partition])
            async with Admin(life.settings(), ports=life.ports) as admin:
                (listed,) = [each for each in await admin.list_groups() if each.group == group.name]
            if listed.protocol not in _TYPES[kind]:
                self.found.append(f"group: {group.name} is of type {listed.protocol}")
        # Members that ended without a word, and static ones that keep their place, are removed meanwhile.
        await asyncio.sleep(2 * SESSION_MS / 1000)
        life.recorder.counts["records copied by groups"] = sum(map(len, copied.values()))

    def _compare(self, name: str, values: list[str], copies: list[str]) -> None:
        if values == copies:
            return
        known = set(values)
        doubled = len(copies) - len(set(copies))
        lost = [value for value in values if value not in set(copies)]
        strange = [value for value in copies if value not in known]
        pairs = enumerate(zip(values, copies, strict=False))
        at = next((i for i, (value, copy) in pairs if value != copy), min(len(values), len(copies)))
        self.found.append(
            f"copied-wrongly: {name} has {doubled} values twice, lacks {len(lost)} ({lost[:2]}), has {len(strange)} "
            f"strangers, and differs from {at} on: {copies[at:at + 2]} where {values[at:at + 2]} belong")

    async def _read(self, life: Life, topic: str) -> dict[int, list[str]]:
        """Everything that is committed, once every transaction has ended."""
        where = [_where(topic, p) for p in range(PARTITIONS)]
        seen: dict[int, list[str]] = {p: [] for p in range(PARTITIONS)}
        settings = {"auto.offset.reset": "earliest", "enable.auto.commit": "false"} | life.settings()
        async with (
            Consumer(settings | {"isolation.level": "read_uncommitted"}, ports=life.ports) as all_records,
            Consumer(settings | {"isolation.level": "read_committed"}, ports=life.ports) as consumer,
        ):
            ends = await all_records.end_offsets(where)
            limit = life.recorder.loop.time() + 60
            while await consumer.end_offsets(where) != ends:
                assert life.recorder.loop.time() < limit, f"a transaction stays open in {topic}"
                await asyncio.sleep(0.5)
            consumer.assign(where)
            while not all([await consumer.position(each) >= ends[each] for each in where]):
                for record in await consumer.poll(timeout_ms=200, max_records=10_000):
                    seen[record.partition].append((record.value or b"").decode())
        return seen

    def judge(self) -> list[str]:
        return a_few_of_each(self.found)


class _Worker:
    """Copies what its member holds, from when it joins until it has had enough."""

    def __init__(
        self, part: Groups, life: Life, group: Group, member: Member, running: asyncio.Future[None],
        producer: Producer, consumer: Consumer, output: str,
    ) -> None:  # fmt: skip
        self.part, self.life, self.group, self.member, self.running = part, life, group, member, running
        self.producer, self.consumer, self.output = producer, consumer, output
        self.reading: Mapping[int, int] = {}
        """What `held` was when the positions were read."""
        self.patience_ends = self._now() + life.rng.expovariate(1 / 5.0)

    async def run(self) -> None:
        looked_at = 0.0
        while not self.group.over:
            if self.running.cancelled() or (not self.life.stopping() and self._now() > self.patience_ends):
                return
            if self.running.done():
                self.running.result()
            if self.life.stopping() and self._now() > looked_at + 1:
                looked_at = self._now()
                await self.part.look_for_the_end(self.life, self.group, self.consumer)
            if not self.member.held:
                await asyncio.sleep(0.1)
            elif self.member.held != self.reading:
                await self._read_positions()
            else:
                membership = self.member.membership()
                records = await self.consumer.poll(timeout_ms=100, max_records=20)
                if records:
                    await self._copy(records, membership)

    async def _read_positions(self) -> None:
        held = self.member.held
        where = [_where(INPUT, p) for p in held]
        try:
            committed = await self.consumer.committed(where)
        except RetriableError:
            return
        self.consumer.assign(where)
        for each in where:
            self.consumer.seek(each, committed[each].offset if each in committed else 0)
        self.reading = held

    async def _copy(self, records: list[Record], membership: ConsumerGroup) -> None:
        """Under the membership of before the poll: the member may have lost it since, and the program does not look."""
        life, producer, counts = self.life, self.producer, self.life.recorder.counts
        positions = {_where(INPUT, record.partition): record.offset + 1 for record in records}
        busy = [self.group.open.setdefault(each.partition, set()) for each in positions]
        for names in busy:
            names.add(life.name)
        try:
            producer.begin()
            identity = producer.identity
            life.recorder.identities.append((identity.producer_id, identity.generation, life.process))
            for record in records:
                await producer.send(self.output, record.value, partition=record.partition)
            await self._dawdle()
            await producer.send_offsets(positions, membership)
            await self._dawdle()
            await self._commit()
            counts["txn ok"] += 1
        except (AbortableError, RetriableError) as error:
            life.recorder.loop.trace(f"{life.process} aborts: {error}")
            await producer.abort()
            counts["txn fail"] += 1
            self.reading = {}
        finally:
            for names in busy:
                names.discard(life.name)

    async def _commit(self) -> None:
        while True:
            try:
                await self.producer.commit()
                return
            except RetriableError:
                self.life.recorder.counts["commit asked again"] += 1

    async def _dawdle(self) -> None:
        """Most transactions take long. In some, the whole process stands still until its session has ended, or its
        membership ends."""
        rng = self.life.rng
        if self.life.stopping():
            return
        if self._now() > self.patience_ends and not self.running.cancelled():
            self.running.cancel()
            await self.member.leave()
        if rng.random() < 0.02:
            pause_s = rng.uniform(3.0, 9.0)
            self.member.quiet_until = self._now() + pause_s
            await asyncio.sleep(pause_s)
        elif rng.random() < 0.7:
            await asyncio.sleep(rng.uniform(0.0, 1.0))

    def _now(self) -> float:
        return self.life.recorder.loop.time()


def _where(topic: str, partition: int) -> TopicPartition:
    return TopicPartition(topic, partition)  # type: ignore[arg-type]


def _number(member: Known) -> int:
    return int(member.life.process.rpartition("/")[2])
