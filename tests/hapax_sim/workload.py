"""Clients of the simulated cluster. Each is a process that may be killed, and continues as a real program would."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Iterable, Sequence

from hapax.client import Admin, Consumer, HapaxError, NewTopic, RetriableError, TopicPartition
from hapax_sim import logins
from hapax_sim.clients import (
    APPENDS,
    COPIES,
    PARTITIONS,
    PLAIN,
    Engine,
    Program,
    append,
    copy,
    key_of,
    load,
    partitions_of,
    polled,
    spread,
    write_plainly,
)
from hapax_sim.cluster import SimCluster
from hapax_sim.loop import SimProcess
from hapax_sim.parts.part import Part
from hapax_sim.recorder import Recorder

LAST = "copier-0"
"""Stops last, because it reads what others write."""


class ClientLife:
    """`clients.Life`."""

    def __init__(self, workload: Workload, name: str, number: int, process: SimProcess) -> None:
        self._workload, self.sim_process = workload, process
        self.name = name
        self.process = f"{name}/{number}"
        self._mechanism = (len(workload.lives) + number) % len(logins.MECHANISMS)
        """Of its logins: each program's next life uses another, and programs differ."""
        self.rng = random.Random(workload.rng.random())
        self.recorder = workload.recorder
        self.ports = workload.cluster.ports(process, self.rng)
        self.most_polled = workload.most_polled
        self.spread_every_s = workload.spread_every_s

    def settings(self, **more: str) -> dict[str, str]:
        if not self._workload.cluster.with_logins:
            return self._workload.settings(**more)
        return self._workload.settings(**more) | {"sasl.mechanism": logins.MECHANISMS[self._mechanism]}

    def writing(self, **more: str) -> dict[str, str]:
        """Settings of a producer, with limits that fit into a simulated minute."""
        limits = {"max.block.ms": "20000", "delivery.timeout.ms": "20000", "transaction.timeout.ms": "10000"}
        return {**self.settings(**more), **limits}

    def stopping(self) -> bool:
        return self._workload.stopping

    def others_done(self) -> bool:
        return all(done for name, done in self._workload.done.items() if name != self.name)

    def crash(self, name: str) -> None:
        self._workload.crash(name)

    async def pause(self) -> None:
        await asyncio.sleep(self.rng.uniform(*self._workload.pause_s))


class Workload:
    """List-append processes, spreaders, and one of each other program. `pause_s`: between a process's operations.
    `rate`: transactions of all spreaders together per second."""

    def __init__(
        self, cluster: SimCluster, seed: int, *, appenders: int = 3, pause_s: tuple[float, float] = (0.0, 0.1),
        replication: int = 1, spreaders: int = 0, rate: float = 0.0, programs: bool = True,
        parts: Sequence[Part] = (),
    ) -> None:  # fmt: skip
        self.cluster = cluster
        self.loop = cluster.loop
        self.recorder = Recorder(cluster.loop)
        self.stopping = False
        self._undecided: dict[str, tuple[int, int]] = {}
        self.pause_s = pause_s
        self.replication = replication
        self.most_polled = 10 if not spreaders else 200
        """The more is written, the more an appender reads at once, so that it stays near the end."""
        self.spread_every_s = spreaders / rate if rate else 0.0
        self.rng = random.Random(seed)
        self.lives: dict[str, int] = {}
        self.processes: dict[str, SimProcess] = {}
        self.engine = Engine()
        self.programs: dict[str, Program] = {f"appender-{i}": append for i in range(appenders)}
        self.programs |= {
            "plain-0": write_plainly, LAST: copy, "engine-0": self.engine.run, "loader-0": load,
        }  # fmt: skip
        self.programs |= {f"spreader-{i}": spread for i in range(spreaders)}
        if not programs:
            self.programs = {}
        self.parts = parts
        self.lasting = {LAST}
        for part in parts:
            self.programs |= part.programs()
            self.lasting.update(getattr(part, "lasting", ()))
        self.done: dict[str, bool] = dict.fromkeys(self.programs, False)

    def settings(self, **more: str) -> dict[str, str]:
        with_logins = self.cluster.with_logins
        return {
            "bootstrap.servers": self._servers(logins.PORT_OFFSET if with_logins else 0),
            "request.timeout.ms": "3000",
            **(logins.CLIENT_SETTINGS if with_logins else {}),
        } | {name.replace("__", "."): value for name, value in more.items()}

    def _servers(self, port_offset: int = 0) -> str:
        nodes = self.cluster.nodes.values()
        return ",".join(f"sim:{9000 + n.number + port_offset}" for n in nodes if n.role == "broker")

    # --- life of the client processes

    async def create_topics(self) -> None:
        process = SimProcess("admin")

        async def create() -> None:
            if self.cluster.with_logins:
                await logins.create_user(self._servers(), self.cluster.ports(process, self.rng))
                await logins.permit(self._servers(), self.cluster.ports(process, self.rng))
            async with Admin(self.settings(), ports=self.cluster.ports(process, self.rng)) as admin:
                wanted = [NewTopic(name, count, self.replication) for name, count in PARTITIONS.items()]
                for part in self.parts:
                    wanted += [
                        NewTopic(name, topic.partitions, self.replication, topic.config)
                        for name, topic in part.topics.items()
                    ]
                await admin.create_topics(wanted, exist_ok=True)

        await self.loop.spawn(process, create(), "create topics")

    async def elect_preferred(self) -> None:
        """Asks once for all partitions."""
        process = SimProcess("elector")

        async def elect() -> None:
            settings = self.settings(default__api__timeout__ms="3000")
            with contextlib.suppress(HapaxError):
                async with Admin(settings, ports=self.cluster.ports(process, self.rng)) as admin:
                    await admin.elect_leaders()

        await self.loop.spawn(process, elect(), "elect")

    def start(self) -> None:
        for name in self.programs:
            self._start(name)

    def crash(self, name: str) -> None:
        """SIGKILL of a client. Another life follows."""
        process = self.processes[name]
        if process.alive and not self.done[name]:
            self.loop.crash(process)
            self.recorder.died(f"{name}/{self.lives[name]}")
            self._start(name)

    def second_instance(self, name: str) -> None:
        """Another life starts while this one is still alive and does not know of it."""
        process = self.processes[name]
        if process.alive and not self.done[name] and not self.stopping:
            process.name = f"{name}-zombie"
            self._start(name)

    def finished(self) -> bool:
        return all(self.done.values())

    def unfinished(self) -> list[str]:
        return [name for name, done in self.done.items() if not done]

    def _start(self, name: str) -> None:
        number = self.lives[name] = self.lives.get(name, 0) + 1
        process = self.processes[name] = SimProcess(name)
        self.loop.spawn(process, self._live(name, number, process), f"{name}/{number}")

    async def _live(self, name: str, number: int, process: SimProcess) -> None:
        """One process. A program that fails starts again in the next life, unless another instance has started
        already."""
        life = ClientLife(self, name, number, process)
        self.loop.trace(f"{life.process} begins")
        try:
            if not self.stopping or name in self.lasting:
                await self.programs[name](life)
        except HapaxError as error:
            self.loop.trace(f"{life.process} ends: {type(error).__name__} {error}")
            self.recorder.died(life.process)
            self.recorder.counts[f"life ended by {type(error).__name__}"] += 1
            await asyncio.sleep(life.rng.uniform(0.05, 0.5))
            if self.processes[name] is process:
                self._start(name)
            return
        except Exception as error:
            self.recorder.complaints.append(f"program-failed: {life.process}: {type(error).__name__}: {error}")
            raise
        if self.processes[name] is process:
            self.done[name] = True

    # --- the end

    async def read_everything(self) -> dict[str, list[str]]:
        """A new client reads every partition from its beginning to its end. The reads are recorded as the last
        operations."""
        process = SimProcess("reader")
        settings = self.settings(
            isolation__level="read_committed", auto__offset__reset="earliest", enable__auto__commit="false"
        )
        seen: dict[str, list[str]] = {key_of(*p): [] for p in self._all()}

        async def read() -> None:
            async with Consumer(settings, ports=self.cluster.ports(process, self.rng)) as consumer:
                partitions = list(self._all())
                ends = await consumer.end_offsets(partitions)
                consumer.assign(partitions)
                self.recorder.note("reader", "assign", list(seen))
                while True:
                    running = self.recorder.invoke("reader", "poll", [["poll"]])
                    records = await consumer.poll(timeout_ms=200, max_records=10_000)
                    judged = [r for r in records if r.topic in (APPENDS, PLAIN, COPIES)]
                    self.recorder.end(running, "ok", [polled(judged)])
                    for record in records:
                        assert record.value is not None
                        seen[key_of(record.topic, record.partition)].append(record.value.decode())
                    if not records and all([await consumer.position(p) >= ends[p] for p in partitions]):
                        return

        await self.loop.spawn(process, read(), "read everything")
        return seen

    async def finish_parts(self) -> None:
        """Each part checks the final state."""
        for number, part in enumerate(self.parts):
            process = SimProcess(f"finish-{number}")
            life = ClientLife(self, process.name, 1, process)
            await self.loop.spawn(process, part.finish(life), process.name)

    async def ends(self) -> dict[str, tuple[int, int]]:
        """Partition -> (last stable offset, high watermark)."""
        process = SimProcess("ends")
        partitions = list(self._all())

        async def ends(level: str) -> dict[TopicPartition, int]:
            settings = self.settings(isolation__level=level, enable__auto__commit="false")
            async with Consumer(settings, ports=self.cluster.ports(process, self.rng)) as consumer:
                return await consumer.end_offsets(partitions)

        stable = await self.loop.spawn(process, ends("read_committed"), "ends")
        last = await self.loop.spawn(process, ends("read_uncommitted"), "ends")
        return {key_of(*p): (stable[p], last[p]) for p in partitions}

    async def decided(self) -> bool:
        """Whether every transaction has come to its end on every partition."""
        try:
            self._undecided = {key: ends for key, ends in (await self.ends()).items() if ends[0] != ends[1]}
        except RetriableError:
            return False
        return not self._undecided

    def undecided(self) -> str:
        """Partitions on which a transaction was open at the last check: (last stable offset, high watermark)."""
        return str(self._undecided)

    @staticmethod
    def _all() -> Iterable[TopicPartition]:
        for topic in PARTITIONS:
            yield from partitions_of(topic)
