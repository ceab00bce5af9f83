"""A whole cluster in one process: the services' `start`, on seeded ports, with a supervisor that restarts them."""

from __future__ import annotations

import asyncio
import importlib
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

from hapax.codec.metadata import Role
from hapax.runtime.node_ids import FIRST_NODE_ID
from hapax.runtime.ports import MetadataUnavailable, Ports
from hapax.runtime.settings import load
from hapax_sim import logins
from hapax_sim.clock import SimClock
from hapax_sim.disk import PowerLossDisk
from hapax_sim.loop import SimLoop, SimProcess
from hapax_sim.metadata import MemoryMetadata, MetadataModel, TakesEffectLater
from hapax_sim.network import World

FIRST_PORT: Final = 9000
STORE: Final = "etcd"
_LATE_WRITES: Final = 0.2
"""Share of calls to an unreachable store that take effect all the same, later."""
_SERVICES: Final[dict[Role, str]] = {
    "broker": "hapax.broker.service",
    "coordinator": "hapax.coordinator.service",
    "pid": "hapax.pid.service",
    "controller": "hapax.controller.service",
}
SETTINGS: Final = (
    "transaction.state.log.num.partitions=4",
    "offsets.topic.num.partitions=4",
    "log.segment.bytes=65536",
    "log.snapshot.interval.bytes=20000",
    "transaction.state.log.segment.bytes=32768",
    "offsets.topic.segment.bytes=32768",
)
"""Few shards, so that the simulation spends its time on transactions and not on a hundred idle partitions. Small
segments, so that they roll, are compacted and are snapshotted within a minute."""


class MetadataLink:
    """The connection between one process and the metadata store: it delays calls, and is silent while the store is
    away."""

    def __init__(self, world: World, process: SimProcess) -> None:
        self._world, self._process = world, process

    async def request(self) -> None:
        await asyncio.sleep(self._delay())
        if self._away():
            await asyncio.sleep(1.0)
            if self._world.rng.random() < _LATE_WRITES:
                raise TakesEffectLater(self._world.rng.uniform(0.1, 5.0))
            raise MetadataUnavailable("the store does not answer")

    async def response(self) -> None:
        await asyncio.sleep(self._delay())
        if self._away():
            await asyncio.sleep(1.0)
            raise MetadataUnavailable("the store does not answer")

    def _away(self) -> bool:
        return (self._process.name, STORE) in self._world.blocked

    def _delay(self) -> float:
        lag = self._world.lag.get((self._process.name, STORE), 0.0) if self._world.lag else 0.0
        return self._world.delay() + (self._world.rng.uniform(0, lag) if lag else 0.0)


@dataclass
class SimNode:
    """One node of the cluster across its lives."""

    name: str
    role: Role
    number: int
    disk: PowerLossDisk
    rng: random.Random
    process: SimProcess | None = None
    skew_ms: int = 0
    clock: SimClock | None = None
    service: Any = None
    lives: int = 0
    wanted: bool = True
    settings: tuple[str, ...] = ()
    """Settings in addition to the cluster's, from the next life on."""
    exits: list[str] = field(default_factory=list)
    """The reasons why its processes ended by themselves."""


class SimCluster:
    """Brokers, coordinators, PID allocator and controllers. One seed determines all randomness."""

    def __init__(
        self, loop: SimLoop, seed: int, *, brokers: int = 1, coordinators: int = 2, controllers: int = 1,
        replication: int = 1, settings: tuple[str, ...] = (), with_logins: bool = False,
    ) -> None:  # fmt: skip
        self.loop = loop
        self.with_logins = with_logins
        """Clients use a listener where they must log in."""
        self.rng = random.Random(seed)
        self.world = World(loop, random.Random(self.rng.random()))
        self.store = MetadataModel()
        internal = (
            f"transaction.state.log.replication.factor={replication}",
            f"offsets.topic.replication.factor={replication}",
        )
        self.replication = replication
        self.settings = SETTINGS + (internal if replication > 1 else ()) + settings
        if with_logins:
            self.settings += logins.NODE_SETTINGS
        self.nodes: dict[str, SimNode] = {}
        self.restart_after_s = (0.2, 3.0)
        roles: list[tuple[Role, int]] = [("pid", 1), ("controller", controllers), ("broker", brokers)]
        for role, count in [*roles, ("coordinator", coordinators)]:
            for number in range(count):
                rng = random.Random(self.rng.random())
                disk = PowerLossDisk(loop, random.Random(rng.random()))
                name = f"{role}-{number}"
                self.nodes[name] = SimNode(name, role, number, disk, rng)

    @property
    def bootstrap(self) -> str:
        return f"sim:{FIRST_PORT}"

    def ports(
        self, process: SimProcess, rng: random.Random, disk: PowerLossDisk | None = None, clock: SimClock | None = None
    ) -> Ports:
        """The five ports of a process: a node's, or a client's without a disk."""
        return Ports(
            clock or SimClock(self.loop),
            self.world.network(process),
            MemoryMetadata(self.store, MetadataLink(self.world, process)),
            random.Random(rng.random()),
            disk.mount(process) if disk is not None else None,
        )

    def start(self, name: str) -> None:
        """Starts a node's next life."""
        node = self.nodes[name]
        node.lives += 1
        node.wanted = True
        node.service = None
        node.process = process = SimProcess(name, node.lives)
        node.clock = SimClock(self.loop, node.skew_ms)
        self.loop.trace(f"start {name} life {node.lives}")
        ports = self.ports(process, node.rng, node.disk, node.clock)
        kafka_port = FIRST_PORT + node.number + (100 if node.role == "coordinator" else 0)
        settings = load(
            [
                f"node.id={FIRST_NODE_ID[node.role] + node.number}",
                f"listeners={logins.listeners(kafka_port) if self.with_logins else f'PLAINTEXT://sim:{kafka_port}'}",
                "rpc.listen=sim:0",
                *self.settings,
                *node.settings,
            ],
            environment={},
        )
        module = importlib.import_module(_SERVICES[node.role])

        def ended(reason: str) -> None:
            # The real process would exit: it dies here and the supervisor starts it again.
            self._exited(node, process, reason)

        async def serve() -> None:
            try:
                node.service = await module.start(ports, settings, on_lost=ended, http_address="")
            except Exception as error:
                self._exited(node, process, f"{type(error).__name__}: {error}")

        self.loop.spawn(process, serve(), f"serve {name}")

    def start_all(self) -> None:
        for name in self.nodes:
            self.start(name)

    def _exited(self, node: SimNode, process: SimProcess, reason: str) -> None:
        if not process.alive:
            return
        node.exits.append(reason)
        self.loop.trace(f"exit {node.name}: {reason}")
        self.loop.crash(process)
        self._restart_later(node)

    def _restart_later(self, node: SimNode, absent_s: tuple[float, float] | None = None) -> None:
        context_free = asyncio.get_running_loop()
        delay = self.rng.uniform(*(absent_s or self.restart_after_s))
        context_free.call_later(delay, self._restart, node, context=_no_process())

    def _restart(self, node: SimNode) -> None:
        if node.wanted and (node.process is None or not node.process.alive):
            self.start(node.name)

    def kill(
        self, name: str, *, power_cut: bool = False, restart: bool = True, absent_s: tuple[float, float] | None = None
    ) -> None:
        """SIGKILL. With `power_cut` the machine stops: unsynced writes are lost, and no peer is notified."""
        node = self.nodes[name]
        if node.process is None or not node.process.alive:
            return
        node.process.vanished = power_cut
        self.loop.crash(node.process)
        if power_cut:
            node.disk.power_cut()
        node.wanted = restart
        if restart:
            self._restart_later(node, absent_s)

    async def wait_until(
        self, condition: Callable[[], bool | Awaitable[bool]], what: str, limit_s: float = 120,
        missing: Callable[[], object] = lambda: "",
    ) -> None:  # fmt: skip
        """Polls on virtual time, at no cost."""
        end = self.loop.time() + limit_s
        while True:
            holds = condition()
            if isinstance(holds, Awaitable):
                holds = await holds
            if holds:
                return
            if self.loop.time() > end:
                why = f"{missing()}; waiting: {self.waiting()}; exits: {self.exits()}"
                raise AssertionError(f"not within {limit_s} s of virtual time: {what} {why}")
            await asyncio.sleep(0.05)

    def ready(self) -> bool:
        return all(
            node.service is not None and not node.service.ready() for node in self.nodes.values() if node.wanted
        )

    def waiting(self) -> list[str]:
        """For each node that is not ready, the reason."""
        return [
            f"{node.name} life {node.lives}: {'starts' if node.service is None else node.service.ready()}"
            for node in self.nodes.values()
            if node.service is None or node.service.ready()
        ]

    def exits(self) -> list[str]:
        return [f"{node.name}: {reason}" for node in self.nodes.values() for reason in node.exits]


def _no_process() -> Any:
    import contextvars

    return contextvars.Context()
