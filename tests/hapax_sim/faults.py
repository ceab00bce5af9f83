"""What goes wrong, when, for how long: drawn from the seed, one after the other and some at once."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

from hapax_sim.cluster import SimCluster
from hapax_sim.workload import Workload


class Faults:
    """Injects a fault every `every_s` virtual seconds on average until it is stopped."""

    def __init__(self, cluster: SimCluster, workload: Workload, seed: int, every_s: float = 3.0) -> None:
        self.cluster, self.workload = cluster, workload
        self.rng = random.Random(seed)
        self.every_s = every_s
        self.injected: Counter[str] = Counter()
        self._running: list[asyncio.Task[None]] = []
        self._kinds = {
            "kill": self._kill,
            "power cut": self._power_cut,
            "client crash": self._client_crash,
            "cut connections": self._cut_connections,
            "one-way partition": self._one_way,
            "store away": self._store_away,
            "freeze": self._freeze,
        }

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self.rng.expovariate(1 / self.every_s))
            kind = self.rng.choice(list(self._kinds))
            self.injected[kind] += 1
            self.cluster.loop.trace(f"fault: {kind}")
            self._running = [task for task in self._running if not task.done()]
            self._running.append(asyncio.ensure_future(self._kinds[kind]()))

    def heal(self) -> None:
        """The network is whole and nobody is frozen any more."""
        world = self.cluster.world
        world.weather.cut_share = 0.0
        world.blocked.clear()
        for node in self.cluster.nodes.values():
            if node.process is not None and node.process.frozen:
                self.cluster.loop.thaw(node.process)

    def _node(self, *roles: str) -> str:
        return self.rng.choice([n.name for n in self.cluster.nodes.values() if not roles or n.role in roles])

    async def _kill(self) -> None:
        self.cluster.kill(self._node())

    async def _power_cut(self) -> None:
        self.cluster.kill(self._node("broker"), power_cut=True)

    async def _client_crash(self) -> None:
        self.workload.crash(self.rng.choice(sorted(self.workload.processes)))

    async def _cut_connections(self) -> None:
        weather = self.cluster.world.weather
        weather.cut_share = self.rng.uniform(0.001, 0.03)
        await asyncio.sleep(self.rng.uniform(0.2, 2.0))
        weather.cut_share = 0.0

    async def _one_way(self) -> None:
        names = sorted({*self.cluster.nodes, *self.workload.processes})
        pair = (self.rng.choice(names), self.rng.choice(names))
        self.cluster.world.blocked.add(pair)
        await asyncio.sleep(self.rng.uniform(0.2, 4.0))
        self.cluster.world.blocked.discard(pair)

    async def _store_away(self) -> None:
        pair = (self._node(), "etcd")
        self.cluster.world.blocked.add(pair)
        await asyncio.sleep(self.rng.uniform(0.2, 5.0))
        self.cluster.world.blocked.discard(pair)

    async def _freeze(self) -> None:
        process = self.cluster.nodes[self._node()].process
        if process is not None and process.alive and not process.frozen:
            self.cluster.loop.freeze(process)
            await asyncio.sleep(self.rng.uniform(0.1, 6.0))
            if process.frozen:
                self.cluster.loop.thaw(process)
